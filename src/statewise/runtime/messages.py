"""Text for people: values of users in messages, and the one function that prints."""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import shlex
import sys
import unicodedata
from collections.abc import Iterable
from importlib import metadata
from typing import IO


def short(value: object, most: int = 60) -> str:
    """`value` as JSON, or else as Python writes it, with at most about `most` characters."""
    if isinstance(value, int) and value.bit_length() > 200:  # Python may refuse to write it
        return f"a number of {int(value.bit_length() * 0.30103) + 1:,} digits"
    try:
        text = repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        try:
            text = " ".join(repr(value).split())  # a tensor's has several lines
        except ValueError:
            text = type(value).__name__
    return cut(text, most)


def cut(text: str, most: int = 60) -> str:
    """`text`, or its beginning and length."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def counted(number: int, thing: str) -> str:
    """`1 state`, `1,024 states`."""
    return f"{number:,} {thing}{'s' * (number != 1)}"


def series(names: Iterable[str], joint: str = "and") -> str:
    """`a, b and c`, of at least one name."""
    *first, last = names
    return f"{', '.join(first)} {joint} {last}" if first else last


def percent(share: float) -> str:
    """A share as a percentage: `86%`, `99.6%`, `0.4%`; 0% and 100% only if exact."""
    if math.isnan(share):
        return "an undefined share"
    whole = f"{share:.0%}"
    if (whole == "100%" and share != 1) or (whole in ("0%", "-0%") and share != 0):
        if 0 < share < 0.0005:
            return "less than 0.1%"
        return "more than 99.9%" if 0.9995 <= share < 1 else f"{share:.1%}"
    return whole


def explained(r2: float) -> str:
    """The share of a variance that a fit with this R^2 explains; `none` if R^2 is at most 0, where the mean is as
    good."""
    return "none" if r2 <= 0 else percent(r2)


def suggestion(word: str, choices: Iterable[str]) -> str:
    """The `choices` that look like `word`, as "did you mean ...? ", or nothing.

    At most three, and none that is far less similar than the best: after a slip of one letter one word is meant.
    """
    word = word[:200]
    near = difflib.get_close_matches(word, list(choices), n=3, cutoff=0.5)
    likeness = [difflib.SequenceMatcher(None, choice, word).ratio() for choice in near]
    near = [choice for choice, like in zip(near, likeness, strict=True) if like >= likeness[0] - 0.25]
    return f"did you mean {series(near, 'or')}? " if near else ""


def cut_words(message: str) -> str:
    """A message of other software, with words of more than 200 characters cut."""
    return re.sub(r"\S{201,}", lambda word: cut(word[0]), message)


def without_advice(error: ValueError) -> str:
    """The error's message; without Python's advice to raise its limit on digits."""
    too_long = "integer string conversion" in str(error)
    return "a whole number has more digits than can be read" if too_long else str(error)


def in_words(error: BaseException) -> str:
    """The error's message, which begins with the file if it has one."""
    if isinstance(error, IsADirectoryError) and error.filename is not None:
        return f"{error.filename} is a folder: give a file"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def check_texts(values: object, name: str, what: str) -> None:
    """Raises `TypeError` unless `values` is a sequence of texts; the message says that `name` must be a list of `what`.
    A single text is refused, since it would be read as a list of its characters."""
    if isinstance(values, str):
        raise TypeError(f"{name} must be a list of {what}, not one text: write [{short(values)}]")
    if not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list of {what}, not {type(values).__name__}")
    for place, value in enumerate(values):
        if not isinstance(value, str):
            raise TypeError(f"{name}[{place}] must be text, not {type(value).__name__} {short(value)}")


JOINERS = "\u200c\u200d"
"""Invisible characters that Persian, Hindi and emoji are written with. They control nothing."""


def escaped(text: str, keep: str = "") -> str:
    """`text` for one cell of a table, or with `keep` the line ends for a terminal.

    Characters that could steer a terminal or change the order of what it shows (control characters, bidirectional
    overrides, and others that Unicode calls not printable) are written as Python writes them. White space of all
    languages remains.
    """
    return "".join(letter if _harmless(letter) or letter in keep else repr(letter)[1:-1] for letter in text)


def _harmless(letter: str) -> bool:
    return letter.isprintable() or letter in JOINERS or unicodedata.category(letter) == "Zs"


def say(*values: object, sep: str = " ", end: str = "\n", file: IO[str] | None = None, flush: bool = False) -> None:
    """Prints as `print` does; all that a command prints passes here, or through `cli.progress.console`.

    On a terminal, and always on standard error, `values` are `escaped` except for line ends and tabs, since they may
    contain text from elsewhere. Redirected standard output gets them exactly, since files and pipes are data. A
    character that the stream's encoding lacks is escaped in both cases.
    """
    stream = sys.stdout if file is None else file
    text = sep.join(map(str, values)) + end
    if steers(stream):
        text = escaped(text, keep="\n\t")
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    if flush:
        stream.flush()


def say_in_place(text: str) -> None:
    """Replaces the last line of standard error, which must be a terminal, by `text`."""
    sys.stderr.write("\r\x1b[K")
    say(text, end="", file=sys.stderr, flush=True)


def steers(stream: IO[str]) -> bool:
    """Whether control characters written to `stream` reach a terminal: it is one, or standard error, which people read
    on terminals even after it was stored."""
    return stream is sys.stderr or stream.isatty()


def to_install(extra: str) -> str:
    """The command that installs the packages of an extra for the Python that runs: `PYTHON -m pip install "NAME>=1"`.

    It names the packages themselves, so that it works for a wheel as for a checkout, and does not ask an index for
    statewise."""
    words = " ".join(f'"{one}"' if re.search(r"[^\w.-]", one) else one for one in packages_of(extra))
    python, here = sys.executable or "python", os.path.join(os.getcwd(), "")
    return f"{shlex.quote(python.removeprefix(here))} -m pip install " + (words or f'"statewise[{extra}]"')


def packages_of(extra: str) -> list[str]:
    """The requirements of an extra, of those extras that it includes, too; nothing where statewise is not installed."""
    try:
        every = metadata.requires("statewise") or []
    except metadata.PackageNotFoundError:
        return []
    packages = []
    for requirement in every:
        name, _, marker = requirement.partition(";")
        if re.search(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]", marker):
            included = re.fullmatch(r"statewise\[(.+)\]", name.strip())
            packages += (
                [part for one in included[1].split(",") for part in packages_of(one)] if included else [name.strip()]
            )
    return list(dict.fromkeys(packages))


class LacksCapability(ValueError):
    """Raised if a task or model lacks an optional capability (a type that only some have)."""

    def __init__(self, message: str, capability: type) -> None:
        super().__init__(message)
        self.capability = capability
