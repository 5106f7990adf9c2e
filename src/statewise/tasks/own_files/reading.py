"""What reads a file, by its format, and the sequences that it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from statewise.runtime.json_files import loads
from statewise.tasks.own_files.cases import read_cases
from statewise.tasks.own_files.encodings import WESTERN, Text, text_of, western
from statewise.tasks.own_files.fasta import read_fasta
from statewise.tasks.own_files.file_formats import Format, recognised
from statewise.tasks.own_files.layout import SequenceFile, symbols_in, unescaped
from statewise.tasks.own_files.lines import Problems, beginning_of, opened
from statewise.tasks.own_files.log import EventLog, log_of
from statewise.tasks.own_files.pgn import read_pgn
from statewise.tasks.own_files.plain_text import files_in, read_folder, read_texts
from statewise.tasks.own_files.roles import Roles, roles_of
from statewise.tasks.own_files.sources import Absent, Collected, Source, unknown_column


class File(NamedTuple):
    """A file and what reads it."""

    path: Path
    family: str
    """A value of `SequenceFile.format` but `auto`, or `folder`."""
    text: Text | None
    """How it is decoded; None: it is not text."""
    kind: Format | None
    """Its format, if its beginning shows it."""


def identified(path: Path, layout: SequenceFile, text: Text | None = None) -> File:
    """What reads a file. `text`: how it is decoded, if that is known. Raises `ValueError` for formats that are not
    read."""
    if path.is_dir():
        return File(path, "folder", None, None)
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: this is not a file that can be read twice: write it to a file first")
    with opened(path) as file:
        beginning = beginning_of(file)
    kind = recognised(beginning, path, text=layout.format == "text")
    binary = kind is not None and not kind.is_text and not kind.family.startswith("utf-")
    if kind is not None and binary:
        if layout.format not in ("auto", kind.family):
            raise ValueError(f"{path}: this is {kind.name}, not UTF-8 text: set --task.format {kind.family} or auto")
        return File(path, kind.family, None, kind)
    if layout.format in ("parquet", "feather"):
        raise ValueError(f"{path}: this is not a {layout.format.capitalize()} file")
    if text is None:
        text = text_of(path, layout.encoding, kind)
    if kind is not None and kind.family.startswith("utf-"):
        with text.open() as decoded:
            sample = decoded.read(2**12)
        kind = recognised(sample.removeprefix("\ufeff").encode("utf-8", "replace"), path, text=layout.format == "text")
    if layout.format != "auto":
        return File(path, layout.format, text, kind)
    return File(path, _family(path, layout, text, kind), text, kind)


def _family(path: Path, layout: SequenceFile, text: Text, kind: Format | None) -> str:
    if kind is not None and kind.family:
        return kind.family
    _, first = next(text.lines())
    suffixes = [suffix.lower() for suffix in path.suffixes]
    while suffixes and suffixes[-1] in (".gz", ".zip"):
        suffixes.pop()
    suffix = suffixes[-1] if suffixes else ""
    if suffix in (".csv", ".tsv"):
        return "csv"
    if suffix in (".json", ".jsonl", ".ndjson") or (_is_json(first) and not _may_be_characters(first, layout)):
        return "json"
    return "text" if layout.column is None and layout.group is None else "csv"


def _is_json(line: str) -> bool:
    """Whether a line begins like a JSON object, or is a JSON list or string."""
    line = line.strip()
    if line[0] == "{":
        return True
    try:
        return line[0] in '["' and isinstance(loads(line), (list, str))
    except ValueError:
        return False


def _may_be_characters(line: str, layout: SequenceFile) -> bool:
    """Whether the characters of a JSON list, such as [3,1], may be symbols themselves: each of its symbols is one."""
    if layout.separator != "" or not line.lstrip().startswith("["):
        return False
    return all(len(str(symbol)) == 1 for symbol in loads(line))


def source_of(file: File, layout: SequenceFile) -> Source | None:
    """The columns of a file; None: it has no columns. Raises `ValueError` if it cannot be read."""
    if file.family == "csv":
        from statewise.tasks.own_files.delimited import Delimited

        assert file.text is not None
        return Delimited(file.text, None if layout.delimiter is None else unescaped(layout.delimiter))
    if file.family == "json":
        from statewise.tasks.own_files.json_records import JsonObjects, JsonValues

        assert file.text is not None
        values = JsonValues(file.text)
        return JsonObjects(values) if values.kind is dict else None
    if file.family == "xes":
        from statewise.tasks.own_files.xes import Xes

        return Xes(file.path)
    if file.family in ("parquet", "feather"):
        from statewise.tasks.own_files.columnar import Columnar

        return Columnar(file.path, file.family)
    return None


def read_log(path: Path, layout: SequenceFile) -> EventLog:
    """The sequences of a file, or of the files of a folder. Raises `ValueError` as `FILE:LINE: what is wrong`."""
    log: EventLog = decoded(path, layout, lambda file: _read(file, layout))
    return log


def decoded(path: Path, layout: SequenceFile, read: Callable[[File], Any]) -> Any:
    """What `read` makes of a file; in Windows-1252 if the file turns out not to be in UTF-8. Raises `ValueError`."""
    try:
        return read(identified(path, layout))
    except UnicodeDecodeError:
        pass
    text = western(text_of(path, layout.encoding, None), layout.encoding is not None)
    return read(identified(path, layout, text))


def _read(file: File, layout: SequenceFile) -> EventLog:
    source = source_of(file, layout)
    log = _of_text(file, layout, None) if source is None else read_source(source, layout)
    if file.text is None or not file.text.note:
        return log
    if file.text.encoding == WESTERN:
        return replace(log, doubts=(file.text.note, *log.doubts))
    return replace(log, notes=(file.text.note, *log.notes))


def read_source(source: Source, layout: SequenceFile) -> EventLog:
    """The sequences of a file with columns. Raises `ValueError` as `read_log` does."""
    roles, problems = roles_of(source, layout), Problems(source.path, by_kind=True)
    read = _read_records if roles.case is None else read_cases
    return read(source, roles, layout, problems)


def read_beginning(file: File, layout: SequenceFile, most: int) -> EventLog:
    """The first `most` sequences, or lines, of a file without columns. Raises `ValueError` as `read_log` does."""
    return _of_text(file, layout, most)


def _of_text(file: File, layout: SequenceFile, most: int | None) -> EventLog:
    problems = Problems(file.path, by_kind=True)
    found, how, notes = _sequences(file, layout, problems, most)
    return log_of(found, file.path, layout, problems, how, notes)


def _sequences(
    file: File, layout: SequenceFile, problems: Problems, most: int | None
) -> tuple[Collected, str, list[str]]:
    """Sequences of a file without columns, how it was read, and notes. `most`: sequences, or lines, that are read."""
    given = [name for name in ("column", "prompt_column", "group", "order") if getattr(layout, name) is not None]
    if given and file.family in _ONE_EACH:
        raise ValueError(f"{file.path}: {_ONE_EACH[file.family]}, without columns: omit --task.{given[0]}")
    if file.family == "folder":
        texts = [text_of(path, layout.encoding, None) for path in files_in(file.path)[:most]]
        try:
            return read_folder(texts, layout, problems), "a folder, one sequence a file", []
        except UnicodeDecodeError:
            raise ValueError(f"{file.path}: a file of this folder is not in UTF-8: set --task.encoding") from None
    assert file.text is not None
    if file.family == "fasta":
        found, notes = read_fasta(islice(file.text.lines(), most), problems)
        return found, "FASTA, each letter a symbol", notes
    if file.family == "pgn":
        return read_pgn(file.text, problems, most), "PGN, the moves of each game", []
    if file.family == "json":
        from statewise.tasks.own_files.json_records import JsonValues

        values = JsonValues(file.text)
        of_file = islice(values.values(problems), most)
        if values.kind is str:
            return read_texts(of_file, layout, problems), values.how, []
        found = Collected()
        for record, (number, value) in enumerate(of_file):
            try:
                found.add(number, record, _nonempty(symbols_in(value, "the line", layout)))
            except ValueError as error:
                problems.add(number, str(error))
        return found, values.how, []
    found = read_texts(islice(file.text.lines(), most), layout, problems)
    return found, "text, one sequence a line" + (", its prompt before a tab" if any(found.prompts) else ""), []


_ONE_EACH = {
    "folder": "a folder is read as one sequence a file",
    "fasta": "FASTA is read as one sequence a record",
    "pgn": "PGN is read as one sequence a game",
}


def _read_records(source: Source, roles: Roles, layout: SequenceFile, problems: Problems) -> EventLog:
    """A sequence from each record."""
    found = Collected()
    target = roles.symbols[0]
    prompt = roles.prompts[0] if roles.prompts else None
    wanted = [target, *roles.prompts, *([roles.never] if roles.never else [])]
    for chunk in source.chunks(wanted, problems):
        for place, (record, line) in enumerate(zip(chunk.records.tolist(), chunk.lines.tolist())):
            cells = [column[place] for column in chunk.cells]
            try:
                for name, cell in zip((target, *roles.prompts), cells):
                    if isinstance(cell, Absent):
                        raise ValueError(unknown_column(name, cell.names))
                if roles.never and not isinstance(cells[-1], Absent):
                    raise ValueError(
                        f"it has {roles.never!r}, which the first object lacks: give it to all, or to none"
                    )
                answer = symbols_in(cells[0], repr(target), layout)
                before = () if prompt is None else symbols_in(cells[1], repr(prompt), layout)
                _nonempty((*before, *answer))
            except ValueError as error:
                problems.add(line, str(error))
                continue
            found.add(line, record, answer, before)
    how = f"{source.how}, column {target!r}" + ("" if prompt is None else f" after {prompt!r}")
    columns = getattr(source, "first", source.names)
    return log_of(found, source.path, layout, problems, how, source.notes, source, columns)


def _nonempty(symbols: tuple[str, ...]) -> tuple[str, ...]:
    if not symbols:
        raise ValueError("no symbol")
    return symbols
