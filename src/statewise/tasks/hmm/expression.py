"""Processes as text: `mess3`, `mess3(x=0.15, a=0.6)`, products, conditional products and mixtures of them.

mess3 * bloch-walk(1, 3)                          two factors side by side: a token is a pair
mess3 * (mess3 | mess3(0.11, 0.79) | mess3(0.5, 0.6))
                                                  the second factor's matrices depend on the first one's token
mess3 + mess3(0.15, 0.6)                          a sequence comes from one of the two
0.9 mess3 + 0.1 mess3(0.15, 0.6)                  the same, with these probabilities
"""

from __future__ import annotations

import re

from statewise.runtime.messages import short
from statewise.tasks.hmm.process import Factor, Process, alternatives, mixture
from statewise.tasks.hmm.published import published

LONGEST = 2000
"""Most characters of an expression."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
NAME = re.compile(r"[A-Za-z][\w-]*")


def process(text: str, noise: float = 0.0) -> Process:
    """The process that `text` describes. Raises `ValueError` with the place of an error in it."""
    if len(text) > LONGEST:
        raise ValueError(f"the process has {len(text):,} characters: at most {LONGEST:,} are read")
    return _Reader(text).whole(noise)


class _Reader:
    """Reads an expression from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.place = text, 0

    def whole(self, noise: float) -> Process:
        shares, parts = [self.match(NUMBER)], [self.product()]
        while self.take("+"):
            shares.append(self.match(NUMBER))
            parts.append(self.product())
        if self.peek():
            self.fail("`*`, `+` or the end")
        if any(shares) and not all(shares):
            raise ValueError(f"process {short(self.text)}: give a probability for each part of a mixture, or for none")
        found = mixture(parts, [float(share or 1 / len(parts)) for share in shares])
        return Process(found.factors, noise)

    def product(self) -> Process:
        factors = [self.factor()]
        while self.take("*"):
            factors.append(self.factor())
        return Process(factors)

    def factor(self) -> Factor:
        if not self.take("("):
            return self.single()
        variants = [self.single()]
        while self.take("|"):
            variants.append(self.single())
        if not self.take(")"):
            self.fail("`|` or `)`")
        return alternatives(variants, short(self.text))

    def single(self) -> Factor:
        name = self.match(NAME) or self.fail("the name of a process")
        values: list[float] = []
        named: dict[str, float] = {}
        if self.take("(") and not self.take(")"):
            while True:
                key = self.match(NAME)
                if key and not self.take("="):
                    self.fail("`=` and a number")
                number = float(self.match(NUMBER) or self.fail("a number"))
                if key in named:
                    raise ValueError(f"process {short(self.text)}: {name} is given {key} twice")
                if key:
                    named[key] = number
                elif named:
                    self.fail("a parameter's name, since those before it have one")
                else:
                    values.append(number)
                if self.take(")"):
                    break
                if not self.take(","):
                    self.fail("`,` or `)`")
        if values and named:
            raise ValueError(f"process {short(self.text)}: give the parameters of {name} all by name, or all in order")
        return published(name, named or values)

    def peek(self) -> str:
        while self.text[self.place : self.place + 1].isspace():
            self.place += 1
        return self.text[self.place : self.place + 1]

    def take(self, symbol: str) -> bool:
        found = self.peek() == symbol
        self.place += found
        return found

    def match(self, pattern: re.Pattern[str]) -> str:
        self.peek()
        found = pattern.match(self.text, self.place)
        self.place = found.end() if found else self.place
        return found[0] if found else ""

    def fail(self, wanted: str) -> str:
        there = f"not {short(self.text[self.place :])}" if self.peek() else "but it ends there"
        raise ValueError(f"process {short(self.text)}: character {self.place + 1} must be {wanted}, {there}")
