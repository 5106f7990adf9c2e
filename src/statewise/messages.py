"""Values of users in messages: short ones as they are, long ones cut; and what is said of values of a wrong type."""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
import sys
from collections.abc import Iterable
from importlib import metadata


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


def suggestion(word: str, choices: Iterable[str]) -> str:
    """The `choices` that look like `word`, as "did you mean ...? ", or nothing.

    At most three, and none that is far less similar than the best: after a slip of one letter one word is meant.
    """
    word = word[:200]
    near = difflib.get_close_matches(word, list(choices), n=3, cutoff=0.5)
    likeness = [difflib.SequenceMatcher(None, choice, word).ratio() for choice in near]
    near = [choice for choice, like in zip(near, likeness, strict=True) if like >= likeness[0] - 0.25]
    return f"did you mean {' or '.join(near)}? " if near else ""


def cut_words(message: str) -> str:
    """A message of other software, with words of more than 200 characters cut."""
    return re.sub(r"\S{201,}", lambda word: cut(word[0]), message)


def without_advice(error: ValueError) -> str:
    """Its message; if Python refuses to read a long whole number, without the advice to change its limit."""
    too_long = "integer string conversion" in str(error)
    return "a whole number has more digits than can be read" if too_long else str(error)


def in_words(error: BaseException) -> str:
    """Its message; of an error of the system with the file first."""
    if isinstance(error, IsADirectoryError) and error.filename is not None:
        return f"{error.filename} is a folder: give a file"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def check_texts(values: object, name: str, what: str) -> None:
    """Raises `TypeError` unless `values` is a list, or something like it, of text: `name` in the message, of `what`. A
    single text is refused, since it would be taken for a list of its characters."""
    if isinstance(values, str):
        raise TypeError(f"{name} must be a list of {what}, not one text: write [{short(values)}]")
    if not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list of {what}, not {type(values).__name__}")
    for place, value in enumerate(values):
        if not isinstance(value, str):
            raise TypeError(f"{name}[{place}] must be text, not {type(value).__name__} {short(value)}")


def escaped(text: str, keep: str = "") -> str:
    """A text for one cell of a table, or with `keep` the line ends for a terminal: what cannot be printed, and might
    steer the terminal, is written as Python writes it."""
    return "".join(letter if letter.isprintable() or letter in keep else repr(letter)[1:-1] for letter in text)


def to_install(extra: str) -> str:
    """The command that installs the packages of an extra for the Python that runs: `PYTHON -m pip install "NAME>=1"`.

    It names the packages themselves, so that it works for a wheel as for a checkout, and does not ask an index for
    statewise."""
    words = " ".join(f'"{one}"' if re.search(r"[^\w.-]", one) else one for one in _packages(extra))
    python, here = sys.executable or "python", os.path.join(os.getcwd(), "")
    return f"{shlex.quote(python.removeprefix(here))} -m pip install " + (words or f'"statewise[{extra}]"')


def _packages(extra: str) -> list[str]:
    """The requirements of an extra, of those extras that it includes, too; nothing where statewise is not installed."""
    try:
        every = metadata.requires("statewise") or []
    except metadata.PackageNotFoundError:
        return []
    found = []
    for requirement in every:
        name, _, marker = requirement.partition(";")
        if re.search(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]", marker):
            included = re.fullmatch(r"statewise\[(.+)\]", name.strip())
            found += [part for one in included[1].split(",") for part in _packages(one)] if included else [name.strip()]
    return list(dict.fromkeys(found))
