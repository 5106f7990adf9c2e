"""FASTA: sequences of letters under headers that begin with >."""

from __future__ import annotations

from collections.abc import Iterable

from statewise.tasks.own_files.lines import Problems
from statewise.tasks.own_files.sources import Collected


def read_fasta(lines: Iterable[tuple[int, str]], problems: Problems) -> tuple[Collected, list[str]]:
    """Sequences of numbered lines, named by the first word of their headers, every letter a symbol, and notes. Small
    letters, which mask repeats, are read as capitals. Lines that begin with ; are comments."""
    found = Collected()
    start, name, small = 0, "", 0
    parts: list[str] = []

    def close() -> None:
        letters = "".join(parts)
        if start and letters:
            found.add(start, len(found.lines), letters, name=name)
        elif start:
            problems.add(start, f"the sequence {name!r} has no letters")

    for number, line in lines:
        line = line.strip()
        if line.startswith(">"):
            close()
            start, name, parts = number, (line[1:].split() or [f"line {number}"])[0], []
        elif not line.startswith(";"):
            if not start:
                problems.add(number, "a sequence without a header above, which begins with >")
                continue
            letters = "".join(line.split())
            if not letters.isascii() or letters.translate(_LETTERS):
                problems.add(number, f"{line[:40]!r} is not letters of a sequence")
                continue
            small += letters != letters.upper()
            parts.append(letters.upper())
    close()
    notes = ["small letters, which mask repeats, are read as capitals"] if small else []
    return found, notes


_LETTERS = {ord(letter): None for letter in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ*-."}
