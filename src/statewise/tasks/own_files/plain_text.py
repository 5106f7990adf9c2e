"""Sequences as text: a line each, or a file each in a folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from statewise.tasks.own_files.encodings import Text
from statewise.tasks.own_files.layout import SequenceFile
from statewise.tasks.own_files.lines import Problems
from statewise.tasks.own_files.sources import Collected


def read_texts(texts: Iterable[tuple[int, str]], layout: SequenceFile, problems: Problems) -> Collected:
    """Sequences from lines of text, given with their numbers. The first line decides whether all have a prompt."""
    found = Collected()
    prompted = None
    for record, (number, text) in enumerate(texts):
        if prompted is None:
            prompted = layout.tab_ends_prompt and "\t" in text
        try:
            prompt, answer = _text(text, layout, prompted)
        except ValueError as error:
            problems.add(number, str(error))
        else:
            found.add(number, record, answer, prompt)
    return found


def _text(text: str, layout: SequenceFile, prompted: bool) -> tuple[list[str], list[str]]:
    halves = text.split("\t") if layout.tab_ends_prompt else [text]
    if len(halves) > 1 and not prompted:
        raise ValueError("a tab, but the first line has none: either every line has a prompt or none")
    if prompted and len(halves) != 2:
        raise ValueError(
            f"{len(halves) - 1} tabs: there must be one, between prompt and answer. If tabs separate symbols, set "
            "--task.separator '\\t'; if they separate columns under a header, --task.format csv"
        )
    *prompt, answer = (layout.symbols_of(half) for half in halves)
    if prompted and not prompt[0]:
        raise ValueError("the prompt, before the tab, is empty")
    if not prompted and not answer:
        raise ValueError("no symbol")
    return (prompt[0] if prompted else []), answer


def files_in(folder: Path) -> list[Path]:
    """The files of a folder that are not hidden, by name. Raises `ValueError` if there is none, and for folders in it
    alone."""
    try:
        inner = sorted(path for path in folder.iterdir() if path.name[0] != ".")
    except OSError as error:
        raise ValueError(f"{folder}: {error.strerror or error}") from None
    files = [path for path in inner if path.is_file()]
    if not files:
        raise ValueError(f"{folder}: this folder has no file: give one with a file for each sequence")
    return files


def read_folder(texts: Iterable[Text], layout: SequenceFile, problems: Problems) -> Collected:
    """A sequence from each file, named after it. Line ends separate symbols as white space does."""
    found = Collected()
    for record, text in enumerate(texts):
        with text.open() as file:
            content = file.read()
        try:
            if layout.separator is None or layout.separator == "":
                symbols = layout.symbols_of("".join(content.splitlines()) if layout.separator == "" else content)
            else:
                symbols = [
                    symbol for line in content.splitlines() if line.strip() for symbol in layout.symbols_of(line)
                ]
            if not symbols:
                raise ValueError("no symbol")
        except ValueError as error:
            problems.add(1, f"{text.path.name}: {error}", "a file of the folder")
        else:
            found.add(1, record, symbols, name=text.path.name)
    return found
