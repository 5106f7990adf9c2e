"""Files of formats that are not read: each is refused with what to do, and text that only resembles one is read."""

import gzip
import io
import pickle
import sqlite3
import tarfile
import zipfile

import numpy as np
import pytest

from statewise.tasks.corpus.documents import find
from statewise.tasks.own_files.file_formats import FORMATS
from statewise.tasks.own_files.lines import read_lines
from statewise.tasks.own_files.sequence_files import SequenceFile, parse_file

XES = """<?xml version="1.0" encoding="UTF-8" ?>
<!-- written by a program -->
<log xes.version="1.0">
  <trace><event><string key="concept:name" value="register"/></event></trace>
</log>
"""
TEXTS = {
    XES: "an event log in XES, which is not read: write its events as CSV, one event per row, and set --task.column",
    XES.partition("-->\n")[2]: "an event log in XES",
    "\ufeff" + XES: "an event log in XES",
    "<WorkflowLog>\n<Process/>": "an event log in MXML",
    '<?xml version="1.0"?>\n<score-partwise/>': "an XML document",
    "<!DOCTYPE html>\n<p>a</p>": "a web page",
    "\n<html lang='en'>\n": "a web page",
    ">seq0 chromosome 0\nGATNNTTagatt\n>seq1\nAC\n": "FASTA, which is not read: write one sequence per line of text",
    ">sp|P1|X\nMKVLAAGIVQ*\n": "FASTA",
    "; an old comment\n>seq0\nGATN\n": "FASTA",
    "CLUSTAL W (1.82) multiple sequence alignment\n\na  ACGT\n": "a CLUSTAL alignment",
    "# STOCKHOLM 1.0\na  ACGT\n": "a Stockholm alignment",
    "#NEXUS\nbegin data;\n": "a NEXUS file",
    "HEADER    OXYGEN TRANSPORT                        01-JAN-99   1ABC\n": "a PDB file",
    "##gff-version 3\nx . gene 1 2 . + . ID=a\n": "GFF",
    "BEGIN:VCALENDAR\nVERSION:2.0\n": "an iCalendar file",
    "(define (domain ferry)\n (:predicates))\n": "a PDDL file, .* draw traces from it",
    "@read1\nGATN\n+\nIIII\n": "FASTQ",
    "LOCUS       X1   12 bp    DNA\n": "GenBank",
    '[Event "Match"]\n[Site "Here"]\n\n1. e4 e5 1-0\n': "PGN, a record of chess games",
    "(;FF[4]GM[1];B[aa])\n": "SGF",
    '[{"case": 1, "activity": "a"}, {"case": 1, "activity": "b"}]': "a JSON array",
    '[\n  {\n    "case": 1\n  }\n]\n': "a JSON array .*jq",
    "[\n1,\n2]\n": "a JSON array",
    "[\n  [\n    1\n  ]\n]\n": "a JSON array",
    '{\n  "case": 1\n}\n': "a JSON array or object",
    "sep=;\ncase;activity\n": "a table with a line sep= for Excel above its header, .* delete that line",
    "version https://git-lfs.github.com/spec/v1\noid sha256:1\n": "a pointer of Git LFS .*: run git lfs pull",
    "##fileformat=VCFv4.2\n": "VCF",
    "@HD\tVN:1.6\n": "SAM",
    "@relation weather\n@attribute a real\n": "ARFF",
    "{\\rtf1\\ansi a}\n": "RTF",
}
LIKE_THEM = [
    "; a\n> b c\nd e\n",
    "HEADER a b\nc d\n",
    "# stock a b\nc\n",
    "(define a)\n(define b c)\n",
    "> hello\nhow are you\n> fine\n",
    ">\nhello\n",
    "> v <\n^ > >\n",
    "[\n[[\n[]\n",
    "[ { ( ) } ]\n( [ ] )\n",
    "[CLS] a b\n[CLS] c\n",
    "[Event one] two\nthree\n",
    "<s> a b </s>\n<s> <log> c </s>\n",
    "<log> a\n<log> b\n",
    "@ a\nGAT\nb\n",
    "sep=ab c\nd\n",
    "PAR1 gene\nORC gene\nustar\n",
    "version 1\n( ; a\n",
]


@pytest.mark.parametrize(("text", "message"), TEXTS.items())
@pytest.mark.parametrize("name", ["data.txt", "data.csv", "data.jsonl", "data.txt.gz"])
def test_text_of_another_format_is_refused_unless_its_lines_are_wanted(tmp_path, text, message, name):
    path = tmp_path / name
    content = text.encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    for layout in (SequenceFile(), SequenceFile(column="activity", group="case"), SequenceFile(separator="")):
        with pytest.raises(ValueError, match=f"{name}: this is {message}.*set --task.format text") as raised:
            parse_file(path, layout)
        assert len(str(raised.value)) - len(str(path)) < 330
    assert parse_file(path, SequenceFile(format="text")).lines
    if name.endswith(".txt"):
        (source,) = find([path], "file")
        assert "".join(piece.text for piece in source.pieces()).strip() == text.strip().removeprefix("\ufeff")


@pytest.mark.parametrize("text", LIKE_THEM)
@pytest.mark.parametrize("separator", [None, ""])
def test_lines_that_resemble_another_format_are_read(tmp_path, text, separator):
    path = tmp_path / "data.txt"
    path.write_text(text)
    found = parse_file(path, SequenceFile(separator=separator))
    assert [list(answer) for _, (_, answer) in found.lines] == [
        line.split() if separator is None else list(line) for line in text.splitlines()
    ]


def zipped():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("xl/workbook.xml", "<a/>")
    return file.getvalue()


def tarred():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    return file.getvalue()


def database(folder):
    connection = sqlite3.connect(folder / "made.sqlite")
    connection.execute("create table a (b)")
    connection.commit()
    connection.close()
    return (folder / "made.sqlite").read_bytes()


def array():
    file = io.BytesIO()
    np.save(file, np.arange(3))
    return file.getvalue()


def arrow(folder, kind):
    pa = pytest.importorskip("pyarrow")
    rows = pa.table({"a": [1, 2]})
    path = folder / "made"
    if kind == "parquet":
        __import__("pyarrow.parquet").parquet.write_table(rows, path)
    else:
        __import__("pyarrow.feather").feather.write_feather(rows, path, compression="uncompressed")
    return path.read_bytes()


BINARY = {
    "a gzip file": lambda folder: gzip.compress(b"a b\n"),
    "an Excel workbook": lambda folder: zipped(),
    "a tar archive": lambda folder: tarred(),
    "a SQLite database": database,
    "a NumPy array": lambda folder: array(),
    "a Python pickle": lambda folder: pickle.dumps(["a"]),
    "a Parquet file": lambda folder: arrow(folder, "parquet"),
    "a Feather or Arrow file": lambda folder: arrow(folder, "feather"),
    "a PDF document": lambda folder: b"%PDF-1.4\n1 0 obj\n",
    "text in UTF-16, not UTF-8 text: save it as UTF-8": lambda folder: "a b\nb a\n".encode("utf-16"),
    "text in UTF-16 without a byte order mark": lambda folder: "a b\nb ä\n".encode("utf-16-be"),
    "text in UTF-32": lambda folder: "a b\n".encode("utf-32"),
}


@pytest.mark.parametrize(("message", "make"), BINARY.items())
def test_what_is_no_text_is_named_whoever_reads_it(tmp_path, message, make):
    content = make(tmp_path)
    for name, stored in (("data.txt", content), ("data.csv", content), ("data.gz", gzip.compress(content))):
        path = tmp_path / name
        path.write_bytes(stored)
        for layout in (SequenceFile(), SequenceFile(format="text"), SequenceFile(column="a")):
            with pytest.raises(ValueError, match=f"{name}: this is {message}"):
                parse_file(path, layout)
        with pytest.raises(ValueError, match=f"{name}: this is {message}"):
            list(read_lines(path))
    (source,) = find([tmp_path / "data.txt"])
    with pytest.raises(ValueError, match=f"data.txt: this is {message}"):
        list(source.pieces())


def test_every_beginning_is_judged_without_an_error():
    chance = np.random.default_rng(0)
    for size in [0, 1, 2, 3, 5, 64, 4096]:
        for content in (chance.bytes(size), b"<" * size, b"\n" * size, b"[" * size, b">\n" * size, b"\0" * size):
            assert all(kind.signature(content) in (True, False) for kind in FORMATS)
