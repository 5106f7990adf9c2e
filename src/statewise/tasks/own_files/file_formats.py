"""File formats that users have, recognised by the first bytes of a file.

Read as lines of text, such a file would give sequences of markup without an error. `FORMATS` is the only place that
knows them, and which of them are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

BEGINNING = 4096
"""Bytes at the beginning of a file by which its format is recognised."""
AS_LINES = "; if it contains lines of text anyway, set --task.format text"
EVENTS = (
    "write its events as CSV, one event per row, and set --task.column, --task.group (the column that names the case) "
    "and --task.order (the column that orders the events)"
)
TABLE = "write the table as CSV with a header, or each row as a JSON object on a line of its own"
LINES = "write one sequence per line of text"
LETTERS = "set --task.separator '' if each letter is a symbol"
AS_UTF8, CONVERT = "save it as UTF-8", "-t UTF-8 FILE > NEW"
UNPACK = "unpack it, and give the file inside"


class Format(NamedTuple):
    """A format that is recognised."""

    name: str
    """The format's name, as in `this is NAME`."""
    signature: Callable[[bytes], bool]
    """Whether a file begins so, from its first `BEGINNING` bytes."""
    instead: str
    """Advice for the user where it is not read."""
    is_text: bool = False
    """Whether such a file can be text that someone wants to read as it is."""
    family: str = ""
    """What reads it as sequences: a value of `SequenceFile.format`, or the encoding of its text. Empty: nothing."""


def check_text(beginning: bytes, path: Path) -> None:
    """Raises `ValueError` if the first bytes of a file are not those of UTF-8 text."""
    for kind in FORMATS:
        if not kind.is_text and kind.signature(beginning):
            raise ValueError(f"{path}: this is {kind.name}, not UTF-8 text: {kind.instead}")


def recognised(beginning: bytes, path: Path, *, text: bool = False) -> Format | None:
    """The format of a file of sequences, from its first bytes; None: text without a format that is known. `text`:
    whether it is lines of text whatever they look like. Raises `ValueError` for a format that is not read."""
    for kind in FORMATS:
        if (kind.is_text and text) or not kind.signature(beginning):
            continue
        if kind.family:
            return kind
        if kind.is_text:
            raise ValueError(f"{path}: this is {kind.name}, which is not read: {kind.instead}{AS_LINES}")
        raise ValueError(f"{path}: this is {kind.name}, not UTF-8 text: {kind.instead}")
    return None


def _starts(*magic: bytes, at: int = 0) -> Callable[[bytes], bool]:
    """Whether one of `magic` is at the offset `at`."""
    return lambda beginning: beginning.startswith(magic, at)


def _first_lines(test: Callable[[Sequence[str]], bool], least: int = 1) -> Callable[[bytes], bool]:
    """Whether the stripped lines that are not blank, at least `least`, pass a test. The last may be cut."""

    def found(beginning: bytes) -> bool:
        text = beginning.decode("utf-8-sig", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return len(lines) >= least and test(lines)

    return found


def _line(pattern: str) -> Callable[[bytes], bool]:
    """Whether the first line that is not blank begins with a pattern."""
    compiled = re.compile(pattern, re.IGNORECASE)
    return _first_lines(lambda lines: compiled.match(lines[0]) is not None)


def _without_order_mark(beginning: bytes, order: str) -> bool:
    """Whether it is text of two bytes per character, most of them ASCII, the low byte first (`le`) or second (`be`)."""
    pairs = beginning[: len(beginning) // 2 * 2]
    letters, zeros = (pairs[::2], pairs[1::2]) if order == "le" else (pairs[1::2], pairs[::2])
    return len(zeros) >= 2 and 2 * zeros.count(0) > len(zeros) and not letters.count(0)


def _binary(*magic: bytes, at: int = 0) -> Callable[[bytes], bool]:
    """Whether the content starts with the letters `magic`, followed by bytes that no text has."""
    return lambda beginning: (
        _starts(*magic, at=at)(beginning) and re.search(rb"[\x00-\x08\x0e-\x1f]", beginning) is not None
    )


NUCLEOTIDES = re.compile("[ACGTUNRYSWKMBDHV*-]+", re.IGNORECASE)
AMINO_ACIDS = re.compile("[A-Z*-]+")  # in capitals: small letters would be any word


def _is_residues(line: str) -> bool:
    return line.strip("*-") != "" and bool(NUCLEOTIDES.fullmatch(line) or AMINO_ACIDS.fullmatch(line))


def _is_fasta(lines: Sequence[str]) -> bool:
    """Whether it begins with a header and a sequence, perhaps after comments, as old files do."""
    content = [line for line in lines if line[0] != ";"]
    return len(content) > 1 and content[0][0] == ">" and _is_residues(content[1])


def _is_fastq(lines: Sequence[str]) -> bool:
    return lines[0][0] == "@" and _is_residues(lines[1]) and lines[2][0] == "+"


def _is_array_in_lines(lines: Sequence[str]) -> bool:
    """Whether it is a JSON array of objects, or another array that begins with a bracket on a line of its own.
    Quotation marks and digits distinguish it from sequences of brackets."""
    alone = r'(\[ )+("|-?[0-9])' if lines[0] == "[" else "$"
    return re.match(rf'\[\s*\{{\s*"|{alone}', " ".join(lines[:20])) is not None


def _is_object_in_lines(lines: Sequence[str]) -> bool:
    """Whether it is a JSON object that begins with a bracket on a line of its own."""
    return lines[0] == "{" and " ".join(lines[:2]).startswith('{ "')


def _xml(*patterns: str) -> Callable[[bytes], bool]:
    """Whether it is XML, or its first element, and has all of the patterns in its beginning."""

    def found(beginning: bytes) -> bool:
        text = beginning.decode("utf-8-sig", errors="replace").lstrip()
        begins = re.match(rf"<\?xml\s|<!--|{patterns[0]}", text) is not None
        return begins and all(re.search(pattern, text) for pattern in patterns)

    return found


FORMATS: tuple[Format, ...] = (
    # Not text.
    Format("a gzip file inside another archive", _starts(b"\x1f\x8b"), UNPACK),
    Format("a zip archive inside another archive", _starts(b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08"), UNPACK),
    Format(
        "an old Excel workbook, or another Office document",
        _starts(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"),
        "save the sheet as CSV (UTF-8)",
    ),
    Format("a bzip2 file", _starts(*(b"BZh%d1AY&SY" % size for size in range(1, 10))), UNPACK),
    Format("an xz file", _starts(b"\xfd7zXZ\0"), UNPACK),
    Format("a Zstandard file", _starts(b"\x28\xb5\x2f\xfd"), UNPACK),
    Format("a 7z archive", _starts(b"7z\xbc\xaf\x27\x1c"), UNPACK),
    Format("a RAR archive", _starts(b"Rar!\x1a\x07"), UNPACK),
    Format("a tar archive", _binary(b"ustar", at=257), UNPACK),
    Format("a Parquet file", _binary(b"PAR1", b"PARE"), TABLE, family="parquet"),
    Format("a Feather or Arrow file", _binary(b"ARROW1", b"FEA1", b"\xff\xff\xff\xff"), TABLE, family="feather"),
    Format("an ORC file", _binary(b"ORC"), TABLE),
    Format("an Avro file", _starts(b"Obj\x01"), TABLE),
    Format("a SQLite database", _starts(b"SQLite format 3\0"), TABLE),
    Format("an HDF5 file", _starts(b"\x89HDF\r\n\x1a\n"), TABLE),
    Format("a MATLAB file", _starts(b"MATLAB 5.0 MAT-file"), TABLE),
    Format("a NumPy array", _starts(b"\x93NUMPY"), LINES),
    Format("a Python pickle", _starts(*(b"\x80%c" % version for version in range(2, 6))), LINES),
    Format("a PDF document", _starts(b"%PDF-"), "extract its text, or save its table as CSV"),
    Format("a MIDI file", _starts(b"MThd\0\0\0\x06"), LINES),
    Format(
        "text in UTF-32",
        _starts(b"\xff\xfe\0\0", b"\0\0\xfe\xff"),
        f"{AS_UTF8} (iconv -f UTF-32 {CONVERT})",
        family="utf-32",
    ),
    Format(
        "text in UTF-16", _starts(b"\xff\xfe", b"\xfe\xff"), f"{AS_UTF8} (iconv -f UTF-16 {CONVERT})", family="utf-16"
    ),
    *(
        Format(
            "text in UTF-16 without a byte order mark",
            partial(_without_order_mark, order=order),
            f"{AS_UTF8} (iconv -f UTF-16{order.upper()} {CONVERT})",
            family=f"utf-16-{order}",
        )
        for order in ("le", "be")
    ),
    # Text that is not a sequence per line.
    Format("a pointer of Git LFS in place of a file", _line("version https://git-lfs"), "run git lfs pull", True),
    Format(
        "an event log in XES",
        _xml(r"<log[\s>]", r"\bxes\b|<(trace|extension|global|classifier)\b"),
        EVENTS,
        True,
        "xes",
    ),
    Format("an event log in MXML", _xml(r"<WorkflowLog[\s>]"), EVENTS, True),
    Format("a web page", _line(r"<!doctype\s+html|<html[\s>]"), "save its table as CSV, or its text", True),
    Format("an XML document", _line(r"<\?xml\s|<!doctype\s"), f"{TABLE}, or {LINES}", True),
    Format("a JSON array", _first_lines(_is_array_in_lines), "", True, "json"),
    Format(
        "a JSON object on several lines",
        _first_lines(_is_object_in_lines),
        "write each object on a line of its own (jq -c . FILE > FILE.jsonl), or all as one array",
        True,
    ),
    Format("FASTA", _first_lines(_is_fasta, 2), f"{LINES}, without the headers; {LETTERS}", True, "fasta"),
    Format("FASTQ", _first_lines(_is_fastq, 3), f"{LINES}, without names and qualities; {LETTERS}", True),
    Format("GenBank", _line(r"LOCUS\s+\S+\s+[0-9]+ (bp|aa)\b"), f"{LINES}; {LETTERS}", True),
    Format("VCF", _line("##fileformat=VCF"), TABLE, True),
    Format("SAM", _line("@(HD\tVN|SQ\tSN):"), LINES, True),
    Format("a CLUSTAL alignment", _line(r"CLUSTAL\b"), f"{LINES}, without the names; {LETTERS}", True),
    Format("a Stockholm alignment", _line(r"# STOCKHOLM\s"), f"{LINES}, without the names; {LETTERS}", True),
    Format("a NEXUS file", _line(r"#NEXUS\b"), f"{LINES}, without the names; {LETTERS}", True),
    Format("a PDB file", _line(r"HEADER\s.*\b[0-9]{2}-[A-Z]{3}-[0-9]{2}\b"), f"{LINES}; {LETTERS}", True),
    Format("GFF", _line("##gff-version"), TABLE, True),
    Format("an iCalendar file", _line("BEGIN:VCALENDAR$"), EVENTS, True),
    Format(
        "a PDDL file",
        _line(r"\(define\s*\(\s*(domain|problem)\b"),
        "draw traces from it (statewise strips traces --domain D.pddl --problem P.pddl)",
        True,
    ),
    Format(
        "PGN, a record of chess games",
        _line(r'\[[A-Za-z0-9_]+\s+".*"\]$'),
        "write the moves of one game per line, without the tags in brackets",
        True,
        "pgn",
    ),
    Format("SGF, a record of games", _line(r"\(;[A-Z]{1,2}\["), "write the moves of one game per line", True),
    Format("ARFF", _line(r"@relation\s"), TABLE, True),
    Format("RTF", _line(r"\{\\rtf"), "save it as plain text (UTF-8)", True),
    Format("a table with a line sep= for Excel above its header", _line("sep=.?$"), "delete that line", True, "csv"),
)
