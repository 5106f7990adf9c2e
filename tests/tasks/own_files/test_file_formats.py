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
from statewise.tasks.own_files.layout import SequenceFile
from statewise.tasks.own_files.lines import read_lines
from statewise.tasks.own_files.reading import read_log

TEXTS = {
    "<WorkflowLog>\n<Process/>": "an event log in MXML",
    '<?xml version="1.0"?>\n<score-partwise/>': "an XML document",
    "<!DOCTYPE html>\n<p>a</p>": "a web page",
    "\n<html lang='en'>\n": "a web page",
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
    '{\n  "case": 1\n}\n': "a JSON object on several lines",
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
    layouts = [SequenceFile(), SequenceFile(column="activity", group="case"), SequenceFile(separator="")]
    if message.startswith("PGN"):  # it could be read, but has no columns
        del layouts[1]
    for layout in layouts:
        with pytest.raises(ValueError, match=f"{name}: this is {message}.*set --task.format text") as raised:
            read_log(path, layout)
        assert len(str(raised.value)) - len(str(path)) < 330
    assert len(read_log(path, SequenceFile(format="text")))
    if name.endswith(".txt"):
        (source,) = find([path], "file")
        assert "".join(piece.text for piece in source.pieces()).strip() == text.strip().removeprefix("\ufeff")


@pytest.mark.parametrize("text", LIKE_THEM)
@pytest.mark.parametrize("separator", [None, ""])
def test_lines_that_resemble_another_format_are_read(tmp_path, text, separator):
    path = tmp_path / "data.txt"
    path.write_text(text)
    log = read_log(path, SequenceFile(separator=separator))
    assert [log.sequence(number) for number in range(len(log))] == [
        line.split() if separator is None else list(line) for line in text.splitlines()
    ]


def zipped(name, content="<a/>"):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content)
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
    "a gzip file inside another archive": lambda folder: gzip.compress(gzip.compress(b"a b\n")),
    "an Excel workbook": lambda folder: zipped("xl/workbook.xml"),
    "a zip archive inside another archive": lambda folder: zipped("a.zip", zipped("a.txt")),
    "a tar archive": lambda folder: tarred(),
    "a SQLite database": database,
    "a NumPy array": lambda folder: array(),
    "a Python pickle": lambda folder: pickle.dumps(["a"]),
    "a PDF document": lambda folder: b"%PDF-1.4\n1 0 obj\n",
}
NO_LINES = {
    "a Parquet file": lambda folder: arrow(folder, "parquet"),
    "a Feather or Arrow file": lambda folder: arrow(folder, "feather"),
    "text in UTF-16, not UTF-8 text: save it as UTF-8": lambda folder: "a b\nb a\n".encode("utf-16"),
    "text in UTF-16 without a byte order mark": lambda folder: "a b\nb ä\n".encode("utf-16-be"),
    "text in UTF-32": lambda folder: "a b\n".encode("utf-32"),
}
"""What tasks that read lines of UTF-8 refuse, and the task `sequences` reads."""


@pytest.mark.parametrize(("message", "make"), [*BINARY.items(), *NO_LINES.items()])
def test_what_is_no_text_is_named_whoever_reads_it(tmp_path, message, make):
    content = make(tmp_path)
    for name, stored in (("data.txt", content), ("data.csv", content), ("data.gz", gzip.compress(content))):
        if "archive" in message and name == "data.gz":
            continue
        path = tmp_path / name
        path.write_bytes(stored)
        refused = f"{name}: this is {message}"
        for layout in (SequenceFile(), SequenceFile(format="text"), SequenceFile(column="a")):
            if message in BINARY and not ("Excel" in message and name == "data.gz"):
                with pytest.raises(ValueError, match=refused):
                    read_log(path, layout)
        with pytest.raises(
            ValueError, match=refused if not ("Excel" in message and name == "data.gz") else "this is a zip"
        ):
            list(read_lines(path))
    (source,) = find([tmp_path / "data.txt"])
    with pytest.raises(ValueError, match=f"data.txt: this is {message}"):
        list(source.pieces())


def test_every_beginning_is_judged_without_an_error():
    chance = np.random.default_rng(0)
    for size in [0, 1, 2, 3, 5, 64, 4096]:
        for content in (chance.bytes(size), b"<" * size, b"\n" * size, b"[" * size, b">\n" * size, b"\0" * size):
            assert all(kind.signature(content) in (True, False) for kind in FORMATS)
