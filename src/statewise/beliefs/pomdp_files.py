"""POMDPs from files: Cassandra's .pomdp format (pomdp.org), or JSON. Nothing is unpickled.

Of the .pomdp format everything with numbers is read: `discount`, `values`, `states`, `actions` and `observations`
(names or a number of them), `start` (probabilities, a state, `uniform`, `include`, `exclude`), and `T`, `O` and `R` by
entry, row or matrix, with `*`, `uniform` and `identity`. A later entry replaces an earlier one.

JSON: `{"states": [...], "actions": [...], "observations": [...], "T": [[[...]]], "O": [[[...]]], "R": [[...]], "start":
[...], "discount": 0.95}`, with T by action, state and next state, O by action, next state and observation, R by action
and state. R (0), start (uniform) and discount (.95) may be missing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from statewise.beliefs.pomdp import Pomdp
from statewise.beliefs.process import LARGEST
from statewise.runtime.json_files import NUMBER, TEXT, Shape, check_keys, parse_json
from statewise.runtime.messages import cut, short
from statewise.runtime.text_files import decoded, read_whole

SHAPE: Shape = {
    "states": [TEXT],
    "actions": [TEXT],
    "observations": [TEXT],
    "T": [[[NUMBER]]],
    "O": [[[NUMBER]]],
    "R?": [[NUMBER]],
    "start?": [NUMBER],
    "discount?": NUMBER,
}
"""Shape of the JSON file, and of the file that a run keeps."""
KEYS = ("states", "actions", "observations", "T", "O", "R", "start", "discount")
"""Keys of that content."""
MOST_BYTES = 2**26
MOST_NAMES = 2**16
"""Maximum number of states, actions or observations before anything is computed."""
DISCOUNT = 0.95
LISTS = ("states", "actions", "observations")
KEYWORDS = {"discount", "values", "start", "T", "O", "R", *LISTS}


def read_pomdp(path: Path) -> Pomdp:
    """The POMDP of a file. Raises `ValueError` with the file, and with the line where it has one, and `OSError`."""
    content = read_whole(path, MOST_BYTES)
    if path.suffix == ".json" or content.lstrip()[:1] == b"{":
        fields = parse_json(content, SHAPE, str(path))
        check_keys(fields, KEYS, str(path))
        return of_content(fields, str(path))
    return _Reader(decoded(content, str(path)), str(path)).whole()


def of_content(content: dict[str, Any], where: str) -> Pomdp:
    """The POMDP of a JSON file's content. Raises `ValueError`, which begins with `where`."""
    for kind in LISTS:
        _check_names(content[kind], kind, where)
    states, actions = content["states"], content["actions"]
    arrays = []
    for key, default in (("T", None), ("O", None), ("start", [1 / max(len(states), 1)] * len(states)), ("R", None)):
        rows = content.get(key, default)
        if key == "R" and rows is None:
            arrays.append(np.zeros((len(actions), len(states))))
            continue
        try:
            arrays.append(np.array(rows, np.float64))
        except ValueError:
            raise ValueError(f"{where}: the rows of {key} must have one length") from None
    try:
        return Pomdp(
            arrays[0], arrays[1], arrays[2], arrays[3], content.get("discount", DISCOUNT),
            *(content[kind] for kind in LISTS),
        )  # fmt: skip
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def as_json(problem: Pomdp) -> bytes:
    """The problem as a run keeps it, in the shape `SHAPE`."""
    return json.dumps(
        {
            "states": list(problem.state_names),
            "actions": list(problem.action_names),
            "observations": list(problem.observation_names),
            "T": problem.transitions.tolist(),
            "O": problem.observations.tolist(),
            "R": problem.rewards.tolist(),
            "start": problem.start.tolist(),
            "discount": problem.discount,
        }
    ).encode()


def _check_names(names: Sequence[str], kind: str, where: str) -> None:
    """Raises `ValueError` unless the names are different words."""
    for name in names:
        if not name or len(name.split()) != 1 or not name.isprintable() or name == "<bos>":
            raise ValueError(f"{where}: {kind}: {cut(repr(name))} must be a word without spaces, and not <bos>")
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise ValueError(f"{where}: {kind}: {cut(repr(twice))} is given twice")


class _Reader:
    """Reads a .pomdp file from its first word to its last."""

    def __init__(self, text: str, where: str) -> None:
        self.where = where
        self.words: list[tuple[str, int]] = [
            (word, number)
            for number, line in enumerate(text.splitlines(), 1)
            for word in re.findall(r":|[^\s:]+", line.partition("#")[0])
        ]
        self.place = 0
        self.names: dict[str, list[str]] = {}
        self.arrays: dict[str, np.ndarray] = {}

    def whole(self) -> Pomdp:
        discount, costs, start = DISCOUNT, False, None
        given: set[str] = set()
        while self.place < len(self.words):
            keyword = self.keyword()
            if keyword not in ("T", "O", "R") and keyword in given:
                self.fail(f"{keyword} is given twice")
            given.add(keyword)
            if keyword == "discount":
                discount = self.number()
            elif keyword == "values":
                word = self.next("reward or cost")
                if word not in ("reward", "cost"):
                    self.fail(f"values must be reward or cost, not {cut(repr(word))}")
                costs = word == "cost"
            elif keyword in LISTS:
                self.names[keyword] = self.listed(keyword)
            elif keyword.startswith("start"):
                start = self.start(keyword)
            else:
                self.entry(keyword)
        for kind in LISTS:
            if kind not in self.names:
                raise ValueError(f"{self.where}: {kind} is missing")
        for name in "TO":
            if name not in self.arrays:
                raise ValueError(f"{self.where}: {name} is missing")
        states = self.names["states"]
        T, sees = self.arrays["T"], self.arrays["O"]
        R = self.arrays.get("R")
        # A reward may depend on where an action leads and what is seen there: what counts is its mean.
        rewards = np.zeros(T.shape[:2]) if R is None else np.einsum("ast,ato,asto->as", T, sees, R, optimize=True)
        begin = np.full(len(states), 1 / len(states)) if start is None else start
        try:
            return Pomdp(
                T, sees, begin, -rewards if costs else rewards, discount, *(self.names[kind] for kind in LISTS)
            )
        except ValueError as error:
            raise ValueError(f"{self.where}: {error}") from None

    # Words

    def fail(self, problem: str) -> None:
        """Raises `ValueError` with the line of the word that was read last."""
        line = self.words[min(max(self.place - 1, 0), len(self.words) - 1)][1] if self.words else 1
        raise ValueError(f"{self.where}:{line}: {problem}")

    def next(self, wanted: str) -> str:
        if self.place >= len(self.words):
            self.fail(f"the file ends where {wanted} must stand")
        word, _ = self.words[self.place]
        self.place += 1
        return word

    def peek(self, ahead: int = 0) -> str:
        place = self.place + ahead
        return self.words[place][0] if place < len(self.words) else ""

    def at_keyword(self) -> bool:
        """Whether an entry begins here, or the file ends."""
        if self.place >= len(self.words):
            return True
        after_start = self.peek() == "start" and self.peek(1) in ("include", "exclude")
        return (self.peek() in KEYWORDS and self.peek(1) == ":") or after_start

    def keyword(self) -> str:
        word = self.next("a keyword")
        if word not in KEYWORDS:
            self.fail(f"{cut(repr(word))} must be one of {', '.join(sorted(KEYWORDS))}")
        if word == "start" and self.peek() in ("include", "exclude"):
            word = f"start {self.next('include or exclude')}"
        if self.next("a colon") != ":":
            self.fail(f"a colon must follow {word}")
        return word

    def number(self) -> float:
        word = self.next("a number")
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            self.fail(f"{cut(repr(word))} must be a finite number")
        return value

    def upto_keyword(self) -> list[str]:
        words = []
        while not self.at_keyword():
            words.append(self.next("a word"))
        return words

    # Entries

    def listed(self, kind: str) -> list[str]:
        """Names, or as many numbers as the file says."""
        words = self.upto_keyword()
        if not words:
            self.fail(f"{kind} must be names, or how many there are")
        if len(words) == 1 and words[0].isascii() and words[0].isdigit():
            count = int(words[0]) if len(words[0]) < 10 else MOST_NAMES + 1
            if not 0 < count <= MOST_NAMES:
                self.fail(f"{kind} must be 1 to {MOST_NAMES:,}, not {short(words[0])}")
            return [str(number) for number in range(count)]
        line = self.words[self.place - 1][1]
        _check_names(words, kind, f"{self.where}:{line}")
        return words

    def start(self, keyword: str) -> np.ndarray:
        states, words = self.known("states"), self.upto_keyword()
        S = len(states)
        if keyword == "start" and words == ["uniform"]:
            return np.full(S, 1 / S)
        if keyword == "start" and len(words) == S and S > 1:
            self.place -= S
            return np.array([self.number() for _ in range(S)])
        if not words or (keyword == "start" and len(words) > 1):
            self.fail(f"{keyword} must be {S} probabilities, uniform, or a state")
        named = np.zeros(S)
        for word in words:
            named[self.index(word, "states")] = 1
        named = 1 - named if keyword == "start exclude" else named
        if not named.any():
            self.fail("start excludes every state")
        share: np.ndarray = named / named.sum()
        return share

    def known(self, kind: str) -> list[str]:
        if kind not in self.names:
            self.fail(f"{kind} must be given before this")
        return self.names[kind]

    def index(self, word: str, kind: str) -> slice:
        """The place of a name or number among those of `kind`; all for `*`."""
        names = self.known(kind)
        if word == "*":
            return slice(None)
        if word in names:
            place = names.index(word)
        elif word.isascii() and word.isdigit() and len(word) < 10 and int(word) < len(names):
            place = int(word)
        else:
            self.fail(f"{cut(repr(word))} is not one of the {len(names):,} {kind}")
        return slice(place, place + 1)

    def entry(self, keyword: str) -> None:
        """One entry of T, O or R: what is named, then the numbers of what is not."""
        kinds = {
            "T": ["actions", "states", "states"],
            "O": ["actions", "states", "observations"],
            "R": ["actions", "states", "states", "observations"],
        }[keyword]
        shape = tuple(len(self.known(kind)) for kind in kinds)
        if keyword not in self.arrays:
            if math.prod(shape) > LARGEST:
                self.fail(f"{keyword} of {math.prod(shape):,} numbers is too large: {LARGEST:,} at most")
            self.arrays[keyword] = np.zeros(shape)
        chosen = [self.index(self.next("a name"), kinds[0])]
        while self.peek() == ":" and len(chosen) < len(kinds):
            self.next("a colon")
            chosen.append(self.index(self.next("a name"), kinds[len(chosen)]))
        rest = shape[len(chosen) :]
        if keyword == "R" and len(rest) > 2:
            self.fail("R must name at least an action and a state")
        place = tuple(chosen)
        if rest and self.peek() in ("uniform", "identity") and keyword != "R":
            word = self.next("a row")
            if word == "identity" and (keyword != "T" or len(rest) != 2):
                self.fail("identity is for a matrix of T")
            self.arrays[keyword][place] = np.eye(rest[-1]) if word == "identity" else 1 / rest[-1]
            return
        values = np.empty(math.prod(rest))
        for position in range(len(values)):
            if self.at_keyword():
                self.fail(f"{keyword} needs {len(values):,} numbers here, not {position:,}")
            values[position] = self.number()
        self.arrays[keyword][place] = values.reshape(rest)
