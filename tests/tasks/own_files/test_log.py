"""Files of every format, as people have them, become the same event log; bad ones end in a sentence."""

import gzip
import io
import json
import random
import zipfile

import numpy as np
import pytest

from statewise.tasks.own_files import lines
from statewise.tasks.own_files.inspection import inspect
from statewise.tasks.own_files.layout import SequenceFile
from statewise.tasks.own_files.reading import read_log
from statewise.tasks.own_files.sequences import Sequences, SequencesConfig
from statewise.tasks.own_files.times import Reader, ordered

ROWS = [("x", "go", "2024-03-04 08:00:02"), ("y", "go", "2024-03-04 08:00:00"), ("x", "stop", "2024-03-04 08:00:01")]
LOG = {"column": "what", "group": "case", "order": "when"}
TEXT = "case,what,when\n" + "".join(",".join(row) + "\n" for row in ROWS)
XES = """<?xml version="1.0" encoding="UTF-8" ?>
<log xes.version="2.0" xmlns="http://www.xes-standard.org/">
  <global scope="event"><string key="concept:name" value="nothing"/></global>
  <trace>
    <string key="concept:name" value="x"/><int key="amount" value="7"/>
    <event><string key="concept:name" value="stop"><string key="concept:name" value="inner"/></string>
      <date key="time:timestamp" value="2024-03-04T08:00:01Z"/></event>
    <event><list key="l"><values><string key="concept:name" value="inner"/></values></list>
      <date key="time:timestamp" value="2024-03-04T08:00:02Z"/><string key="concept:name" value="go"/></event>
  </trace>
  <trace><event><string key="concept:name" value="go"/>
    <date key="time:timestamp" value="2024-03-04T08:00:00Z"/></event><string key="concept:name" value="x"/></trace>
  <trace><string key="concept:name" value="empty"/></trace>
</log>
"""


def written(tmp_path, content, name):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(tmp_path, content, name="log.csv", **fields):
    return read_log(written(tmp_path, content, name), SequenceFile(**fields))


def zipped(content, *names):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            # without the time of writing, which would be in the names of tests, different in each process
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def records():
    return [dict(zip(("case", "what", "when"), row)) for row in ROWS]


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (TEXT, "log.csv"),
        (TEXT, "log.txt"),
        (TEXT.replace("\n", "\r"), "log.csv"),
        (TEXT.replace("\n", "\r\n"), "log.csv"),
        ("sep=;\r\n" + TEXT.replace(",", ";"), "log.csv"),
        (TEXT.replace(",", "|"), "log.csv"),
        ("Report of March 4\nfor the board, in two parts\n\n" + TEXT, "log.csv"),
        (TEXT.encode("utf-16"), "log.csv"),
        (TEXT.encode("utf-16-le"), "log.csv"),
        (TEXT.encode("utf-8-sig"), "log.csv"),
        (gzip.compress(TEXT.encode(), mtime=0), "log.csv.GZ"),
        (gzip.compress(TEXT.encode(), mtime=0), "log.csv"),
        (zipped(TEXT, "inner.csv", "__MACOSX/._inner.csv"), "log.zip"),
        (json.dumps(records()), "log.json"),
        (json.dumps(records(), indent=1), "log.txt"),
        ("".join(json.dumps(one) + "\n" for one in records()), "log.jsonl"),
    ],
)
def test_one_log_in_many_forms(tmp_path, content, name):
    log = read(tmp_path, content, name, **LOG)
    assert [log.sequence(number) for number in range(len(log))] == [["stop", "go"], ["go"]]
    assert log.symbols == ["stop", "go"]
    assert log.cases == ["x", "y"]
    assert log.rows.tolist() == [2, 0, 1]
    seconds = [1, 2, 0]
    assert (log.times - log.times.min()).tolist() == [second * 10**9 for second in seconds]
    assert np.datetime64(int(log.times[2]), "ns") == np.datetime64("2024-03-04T08:00:00")
    assert log.table.column("what") == [row[1] for row in ROWS]
    assert list(log.table.records()) == [list(row) for row in ROWS]
    assert not log.doubts
    with pytest.raises(ValueError, match="unknown column 'whom'"):
        log.table.column("whom")


@pytest.mark.parametrize("kind", ["parquet", "feather"])
def test_parquet_and_feather_give_what_csv_gives(tmp_path, kind):
    pa = pytest.importorskip("pyarrow")
    columns = {name: [one[name] for one in records()] for name in ("case", "what")}
    when = pa.array([np.datetime64(row[2], "ns") for row in ROWS], pa.timestamp("ns"))
    table = pa.table({**columns, "when": when, "n": [1.0, None, 2.5]})
    path = tmp_path / "log.bin"
    if kind == "parquet":
        __import__("pyarrow.parquet").parquet.write_table(table, path)
    else:
        __import__("pyarrow.feather").feather.write_feather(table, path)
    log, same = read_log(path, SequenceFile(**LOG)), read(tmp_path, TEXT, **LOG)
    for name in ("codes", "offsets", "rows", "times"):
        np.testing.assert_array_equal(getattr(log, name), getattr(same, name))
    assert log.table.column("n") == ["1", "", "2.5"]
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(ValueError, match=f"damaged {kind.capitalize()} file"):
        read_log(path, SequenceFile(**LOG))


@pytest.mark.parametrize("name", ["log.xes", "log.txt", "log.xes.gz"])
def test_traces_of_xes_are_sequences_whatever_their_names(tmp_path, name):
    content = gzip.compress(XES.encode()) if name.endswith("gz") else XES
    log = read(tmp_path, content, name)
    assert [log.sequence(number) for number in range(len(log))] == [["stop", "go"], ["go"]]
    assert log.cases == ["x", "x (2)"]
    assert (log.times - log.times.min()).tolist() == [10**9, 2 * 10**9, 0]
    assert log.notes == ("1 trace without an event left out",)
    assert log.table.column("case:amount") == ["7", "7", ""]
    prompted = read(tmp_path, content, name, format="xes", prompt_column="case:amount", missing="none")
    assert [prompted.sequence(number) for number in range(2)] == [["7", "stop", "go"], ["none", "go"]]
    assert prompted.prompts.tolist() == [1, 1]
    assert prompted.rows.tolist() == [0, 0, 1, 2, 2]


def test_traces_of_xes_are_whole_across_blocks(tmp_path, monkeypatch):
    events = "".join(f'<event><string key="concept:name" value="{n % 7}"/></event>\n' for n in range(200))
    path = written(tmp_path, f'<log xes.version="1.0">\n{f"<trace>{events}</trace>" * 3}</log>', "log.xes")
    whole = read_log(path, SequenceFile())
    monkeypatch.setattr("statewise.tasks.own_files.xes.BLOCK", 64)
    monkeypatch.setattr("statewise.tasks.own_files.xes.CHUNK", 5)
    again = read_log(path, SequenceFile())
    assert whole.lengths.tolist() == again.lengths.tolist() == [200] * 3
    np.testing.assert_array_equal(whole.codes, again.codes)
    np.testing.assert_array_equal(whole.lines, again.lines)


def test_chunks_of_csv_keep_numbers_of_lines_and_records(tmp_path, monkeypatch):
    chance = random.Random(0)
    rows = [chance.choice(["c,a", 'c,"a\nb"', "", ",", "d,a", "c,a,b", '"d\n\n",b']) for _ in range(300)]
    path = written(tmp_path, "case,what\n" + "\n".join(rows) + "\n", "log.csv")
    layout = SequenceFile(group="case", column="what", on_error="drop")
    whole = read_log(path, layout)
    monkeypatch.setattr("statewise.tasks.own_files.delimited.CHUNK", 3)
    parts = read_log(path, layout)
    for name in ("codes", "offsets", "rows", "lines"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))
    assert whole.doubts == parts.doubts
    real = [row for row in rows if row.strip(",")]
    cells = [(row + ",").split(",")[1].strip('"') for row in real]
    assert [whole.symbols[code] for code in whole.codes] == [cells[record] for record in whole.rows]


def test_letters_of_fasta_are_symbols(tmp_path):
    log = read(tmp_path, "; old\n>one of them\nACg\nNN\n\n>two\nT\n", "genome.fa")
    assert [log.sequence(number) for number in range(2)] == [list("ACGNN"), ["T"]]
    assert (log.cases, log.lines.tolist()) == (["one", "two"], [2, 6])
    assert log.notes == ("small letters, which mask repeats, are read as capitals",)
    with pytest.raises(ValueError, match=r":2: 'A C 1' is not letters of a sequence"):
        read(tmp_path, ">one\nA C 1\n", "genome.fa", format="fasta")


@pytest.mark.parametrize("field", ["column", "prompt_column", "group"])
@pytest.mark.parametrize(
    ("content", "name", "kind"),
    [
        (">one\nACG\n>two\nTT\n", "genome.fa", "FASTA is read as one sequence a record"),
        ('[Event "a"]\n\n1. e4 e5 *\n', "games.pgn", "PGN is read as one sequence a game"),
        ("a b\n", "folder/a.txt", "a folder is read as one sequence a file"),
    ],
)
def test_what_has_no_columns_refuses_them(tmp_path, content, name, kind, field):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    given = path if path.parent == tmp_path else path.parent
    with pytest.raises(ValueError, match=f"{given}: {kind}, without columns: omit --task.{field}"):
        read_log(given, SequenceFile(**{field: "activity"}))


def test_files_of_a_folder_are_sequences(tmp_path):
    for name, text in (("b.txt", "c\nd e"), ("a.txt", "a b\n"), (".hidden", "x")):
        (tmp_path / name).write_text(text)
    log = read_log(tmp_path, SequenceFile())
    assert [log.sequence(number) for number in range(2)] == [["a", "b"], ["c", "d", "e"]]
    assert log.cases == ["a.txt", "b.txt"]
    task = Sequences(SequencesConfig(path=str(tmp_path)))
    again = Sequences(task.config, task.files())
    (tmp_path / "a.txt").write_text("a b c\n")
    with pytest.raises(ValueError, match="has changed since the run began"):
        again.training()


def test_values_in_objects_are_found_by_their_path(tmp_path):
    lines_ = [{"id": n, "steps": [{"tool": "find"}, {"tool": {"name": "x"}}], "a": {"b": n}} for n in range(2)]
    text = "".join(json.dumps(one) + "\n" for one in lines_)
    log = read(tmp_path, text.replace('{"name": "x"}', '"open"'), "log.jsonl", column="steps.tool")
    assert log.sequence(0) == ["find", "open"]
    events = read(tmp_path, text, "log.jsonl", column="a.b", group="id")
    assert events.symbols == ["0", "1"]
    with pytest.raises(ValueError, match=r"unknown column 'a\.c': did you mean a\.b"):
        read(tmp_path, text, "log.jsonl", column="a.c", group="id")


def test_objects_in_cells_are_written_as_json(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": {"b": "x", "c": [1, null, 0.5]}, "s": ["p", "q"]}\n')
    table = read_log(path, SequenceFile(column="s")).table
    (cell,) = table.column("a")
    assert json.loads(cell) == {"b": "x", "c": [1, None, "0.5"]}
    assert table.column("s") == ["p q"]


def test_windows_1252_is_read_and_said(tmp_path):
    text = TEXT.replace("stop", "Prüfung")
    log = read(tmp_path, text.encode("windows-1252"), **LOG)
    assert log.sequence(0) == ["Prüfung", "go"]
    assert "not in UTF-8 and is read as Windows-1252: line 4 has 'x,Prüfung" in log.doubts[0]
    assert read(tmp_path, text.encode("utf-16-be"), encoding="utf-16-be", **LOG).sequence(0) == ["Prüfung", "go"]
    with pytest.raises(ValueError, match=r"log.csv:4: not UTF-8 text"):
        read(tmp_path, text.encode("windows-1252"), encoding="utf-8", **LOG)


# Times


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2024-03-04 09:05 PM", "2024-03-04T21:05"),
        ("2024-03-04 9:05", "2024-03-04T09:05"),
        ("2024/3/4 09:05:01.123456789", "2024-03-04T09:05:01.123456789"),
        ("31.12.2024 8:00", "2024-12-31T08:00"),
        ("12/31/2024 12:00 AM", "2024-12-31T00:00"),
        ("04-Mar-2024 10:00", "2024-03-04T10:00"),
        ("March 4, 2024 10:00", "2024-03-04T10:00"),
        ("Mon, 04 Mar 2024 08:00:00 +0100", "2024-03-04T07:00"),
        ("2024-03-04 08:00:51 UTC", "2024-03-04T08:00:51"),
        ("2024-W10-1", "2024-03-04"),
        ("1709539251", "2024-03-04T08:00:51"),
        ("1709539251.5", "2024-03-04T08:00:51.5"),
        ("1709539251000", "2024-03-04T08:00:51"),
        ("1709539251000001", "2024-03-04T08:00:51.000001"),
        ("1709539251000000001", "2024-03-04T08:00:51.000000001"),
    ],
)
def test_times_as_people_write_them(text, time):
    moments, wrong = Reader("t").read([text], np.array([1]))
    assert not wrong
    assert np.datetime64(int(ordered(moments, "t").times[0]), "ns") == np.datetime64(time, "ns")


def test_every_date_is_what_numpy_says():
    days = np.arange(np.datetime64("1678-01-01"), np.datetime64("2261-12-31"), 17)
    moments, wrong = Reader("t").read([f"{day} 01:02" for day in days], np.arange(len(days)))
    assert not wrong
    np.testing.assert_array_equal(
        ordered(moments, "t").times, days.astype("datetime64[ns]").astype(np.int64) + 3720 * 10**9
    )


@pytest.mark.parametrize("text", ["30.2.2024", "2023-02-29", "2024-01-01 24:01", "13/13/2024", "32/1/2024", "0/1/2024"])
def test_times_that_do_not_exist_are_errors(tmp_path, text):
    with pytest.raises(ValueError, match=r"log.csv:\d: column 'when'"):
        read(tmp_path, f"case,what,when\nx,a,{text}\n", **LOG)


def test_day_and_month_are_found_out_or_asked_for(tmp_path):
    both = "case,what,when\nx,b,03/04/2024 08:00\nx,a,{}/2024 08:00\n"
    assert "day before month, as line 3 shows" in read(tmp_path, both.format("25/03"), **LOG).how
    assert read(tmp_path, both.format("03/25"), **LOG).sequence(0) == ["b", "a"]
    with pytest.raises(ValueError, match=r"set --task.time_format '%d/%m/%Y %H:%M' if the day is, or '%m/%d/%Y %H:%M'"):
        read(tmp_path, both.format("02/05"), **LOG)
    for form, expected in (("%d/%m/%Y %H:%M", ["b", "a"]), ("%m/%d/%Y %H:%M", ["a", "b"])):
        assert read(tmp_path, both.format("02/05"), time_format=form, **LOG).sequence(0) == expected
    with pytest.raises(ValueError, match=r"the day first, as in line 3, and with the month first, as in line 4"):
        read(tmp_path, both.format("25/03") + "x,a,3/25/2024\n", **LOG)


@pytest.mark.parametrize("form", ["%H:%M", "%d/%m/%Y %Q", "%d/%d/%Y", "x"])
def test_formats_that_mean_no_time_are_refused(form):
    with pytest.raises(ValueError, match=r"task\.time_format"):
        SequenceFile(**LOG, time_format=form)


# Missing cells, errors, symbols of several columns


MESSY = "case,what,when\nx,a,1\nx,,2\nx,NA,3\nx,b,soon\nx,c,4,5\ny,NaN,1\n,a,1\ny,b,2\n"


def test_errors_are_counted_by_kind(tmp_path):
    with pytest.raises(ValueError, match="column 'what' is empty") as raised:
        read(tmp_path, MESSY, **LOG)
    said = str(raised.value)
    for part in (
        ":3: column 'what' is empty",
        ":5: column 'when' is 'soon'",
        ":6: 4 cells",
        ":8: column 'case' is empty",
    ):
        assert part in said
    log = read(tmp_path, MESSY, on_error="drop", **LOG)
    assert [log.sequence(number) for number in range(2)] == [["a", "NA"], ["NaN", "b"]]
    assert log.doubts[0].startswith("4 rows with errors left out: ")


def test_missing_cells_are_dropped_or_a_symbol(tmp_path):
    dropped = read(tmp_path, MESSY, missing="drop", on_error="drop", **LOG)
    assert [dropped.sequence(number) for number in range(2)] == [["a"], ["b"]]
    assert "column 'what': 1 empty, 1 'NA' and 1 'NaN' cells: rows left out" in dropped.notes
    assert "column 'case': 1 empty cell: rows left out" in dropped.notes
    replaced = read(tmp_path, MESSY, missing="?", on_error="drop", **LOG)
    assert [replaced.sequence(number) for number in range(2)] == [["a", "?", "?"], ["?", "b"]]
    with pytest.raises(ValueError, match="every row has an error"):
        read(tmp_path, "case,what,when\nx,,1\n", on_error="drop", **LOG)


def test_columns_make_one_symbol(tmp_path):
    text = "case,a,b\nx,cut,start\nx,cut,end\ny,cut,start\n"
    log = read(tmp_path, text, group="case", column="a,b")
    assert log.symbols == ["cut+start", "cut+end"]
    assert [log.sequence(number) for number in range(2)] == [["cut+start", "cut+end"], ["cut+start"]]
    with pytest.raises(ValueError, match="unknown column 'c'"):
        read(tmp_path, text, group="case", column="a,c")
    with pytest.raises(ValueError, match=r"only in a file with an event per row: set task\.group"):
        read(tmp_path, text, column="a,b")
    with pytest.raises(ValueError, match=r"make the symbol 'a\+b\+c' in two ways"):
        read(tmp_path, "case,a,b\nx,a+b,c\nx,a,b+c\n", group="case", column="a,b")


def test_a_lifecycle_that_is_not_used_is_said(tmp_path):
    text = "case,what,lifecycle:transition\nx,a,start\nx,a,complete\n"
    log = read(tmp_path, text, group="case", column="what")
    assert "set --task.column what,lifecycle:transition" in log.doubts[0]
    assert not read(tmp_path, text.replace("start", "complete"), group="case", column="what").doubts


# Splits, unfinished cases, durations


def timed(count=40, stop=True):
    """Cases that begin one after another, of go, go, ... and stop."""
    rows = ["case,what,when,region"]
    for case in range(count):
        for event in range(3 + case % 3):
            name = "stop" if stop and event == 2 + case % 3 else f"go{case % 5}"
            rows.append(f"{case},{name},2024-01-{1 + case // 2:02} {8 + event}:{30 * (case % 2):02},{case % 4}")
    return "\n".join(rows) + "\n"


def task_of(tmp_path, text, **fields):
    return Sequences(SequencesConfig(path=str(written(tmp_path, text, "log.csv")), **LOG, **fields))


def test_time_splits_test_on_what_comes_later(tmp_path):
    task = task_of(tmp_path, timed(), split="time", held_out_share=0.25)
    log, held_out = task.log(), task.held_out_cases()
    starts = log.times[log.offsets[:-1]]
    assert held_out.sum() == 10
    assert starts[~held_out].max() < starts[held_out].min()
    used = task.training()
    cut = log.times[log.offsets[1:] - 1][~held_out] >= starts[held_out].min()
    assert (used.tokens[used.starts + used.lengths - 1] == task.end).tolist() == (~cut).tolist()
    assert "are the same as a sequence of training" in "\n".join(task.summary())
    with pytest.raises(ValueError, match="there are no times to split by"):
        Sequences(SequencesConfig(path=str(tmp_path / "log.csv"), group="case", column="what", split="time"))


def test_cases_and_groups_are_on_one_side(tmp_path):
    by_case = task_of(tmp_path, timed(), split="case")
    assert by_case.held_out_cases().sum() == 4
    assert "4 of the 40 cases, chosen by their names; 4 of them are the same" in "\n".join(by_case.summary())
    by_group = task_of(tmp_path, timed(), split="column", split_column="region")
    log = by_group.log()
    regions = np.array([log.table.column("region")[row] for row in log.rows[log.offsets[:-1]]])
    assert len(set(regions[by_group.held_out_cases()])) == 1
    assert not set(regions[by_group.held_out_cases()]) & set(regions[~by_group.held_out_cases()])
    for fields in ({"split": "column"}, {"split_column": "x"}, {"split": "case", "held_out_path": "x"}):
        with pytest.raises(ValueError, match=r"task\.split|task\.held_out_path"):
            SequencesConfig(**fields)


def test_cases_that_the_end_of_the_log_cuts_get_no_end(tmp_path):
    text = timed() + "40,go0,2024-01-20 11:40,0\n40,go0,2024-01-20 11:50,0\n41,stop,2024-01-20 11:55,0\n"
    task = task_of(tmp_path, text, unfinished="mark")
    log = task.log()
    assert [log.cases[number] for number in np.flatnonzero(log.unfinished)] == ["40"]
    rows = task.encoded(log).rows
    ends = rows.tokens[rows.starts + rows.lengths - 1] == task.end
    assert ends.tolist() == (~log.unfinished).tolist()
    assert not read(tmp_path, text, **LOG).unfinished.any()


def test_cases_that_are_cut_after_one_event_have_nothing_to_predict(tmp_path):
    text = timed() + "40,go0,2024-01-20 11:40,0\n"
    task = task_of(tmp_path, text, unfinished="mark")
    assert len(task.training()) + len(task.held_out()) == 40
    early = "case,what,when,x\na,b,1000000000,0\nc,b,1000000001,0\na,b,1000000002,0\n"
    with pytest.raises(ValueError, match="every training sequence is cut after its first event"):
        task_of(tmp_path, early, split="time")


def test_durations_become_symbols_with_edges_from_training(tmp_path):
    rows = [f"{case},{event},{case * 1000 + event * (1 + case)},0" for case in range(30) for event in range(4)]
    task = task_of(tmp_path, "case,what,when,x\n" + "\n".join(rows) + "\n", gaps=4, split="case")
    assert task.vocab.symbols[-5:] == ["<gap 1>", "<gap 2>", "<gap 3>", "<gap 4>", "<end>"]
    log = task.log()
    waits = 1 + np.array([int(case) for case in log.cases])
    trained = np.repeat(waits[~task.held_out_cases()], 3)
    np.testing.assert_array_equal(task.edges, np.quantile(trained, [0.25, 0.5, 0.75], method="higher"))
    found = task.encoded(log)
    row = task.vocab.decode(found.rows.row(20))
    assert row[::2] == ["0", "1", "2", "3"]
    assert row[-1] == "<end>"
    assert set(row[1:-1:2]) == {f"<gap {1 + np.searchsorted(task.edges, waits[20], side='right')}>"}
    events = found.events[found.rows.starts[20] :][: found.rows.lengths[20]]
    assert events.tolist() == [80, 81, 81, 82, 82, 83, 83, -1]
    again = Sequences(task.config, task.files())
    assert again.edges == task.edges
    np.testing.assert_array_equal(again.training().tokens, task.training().tokens)
    with pytest.raises(ValueError, match=r"task\.gaps needs an event log with times or numbers"):
        Sequences(SequencesConfig(path=str(tmp_path / "log.csv"), group="case", column="what", gaps=2, split="case"))


# Bad input


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (zipped(TEXT, "a.csv", "b.csv"), "log.zip", "this zip archive has 2 files: unpack it"),
        (zipped(TEXT, "a.csv")[:-30], "log.zip", "damaged zip archive"),
        (gzip.compress(gzip.compress(b"a", mtime=0), mtime=0), "log.gz", "a gzip file inside another archive"),
        (XES.replace("?>", '?><!DOCTYPE log [<!ENTITY a "b">]>', 1), "log.xes", "declares entities, which are not"),
        (XES[:-30], "log.xes", "log.xes:[0-9]+: not XML: unclosed token"),
        ("<?xml version='1.0'?><log xes.version='1'><event/></log>", "log.xes", "no trace of this log has an event"),
        ('[{"case": 1}, {"case" 2}]', "log.json", "log.json:1: not JSON"),
        ('[{"case": 1}\n', "log.json", "log.json:.: not JSON: the array does not end"),
        ('[{"case": 1}] x', "log.json", "there is more after the array"),
        ('[Event "a"]\n\n1. e4 e5 *\n', "log.pgn", "python -m pip install chess"),
        (b"a,b\n1,\x00\n", "log.csv", "log.csv:2: a zero byte"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_sentence(tmp_path, content, name, message, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "chess.pgn", None)
    for reads in (lambda path: read_log(path, SequenceFile()), *([inspect] if name != "log.json" else [])):
        with pytest.raises(ValueError, match=message) as raised:
            reads(written(tmp_path, content, name))
        assert str(tmp_path / name) in str(raised.value)


def test_archives_made_to_fill_a_disk_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "_ENOUGH", 2**18)
    text = b"case,what\n" + b"c,a\n" * 2**18
    for content, name in ((gzip.compress(text), "a.csv.gz"), (zipped(text, "a.csv"), "a.zip")):
        with pytest.raises(ValueError, match="unpacked to more than 500 times its size"):
            read(tmp_path, content, name, group="case", column="what")


def test_a_file_that_changes_while_it_is_read_is_named(tmp_path):
    path = written(tmp_path, TEXT * 3, "log.csv")

    def read_while_it_grows():
        with lines.opened(path) as file:
            file.read(10)
            path.write_text(TEXT * 4)

    with pytest.raises(ValueError, match="changed while it was read"):
        read_while_it_grows()


def test_very_wide_and_very_long_rows_are_read(tmp_path):
    names = ",".join(f"c{number}" for number in range(30_000))
    wide = written(tmp_path, f"{names}\n" + f"{'1,' * 29_999}1\n" * 3, "wide.csv")
    assert read_log(wide, SequenceFile(column="c29999")).sequence(2) == ["1"]
    with pytest.raises(ValueError, match=r"unknown column 'c30000': .*there are 30,000, such as c0, c1"):
        read_log(wide, SequenceFile(column="c30000"))
    assert "30,000 columns, of which the first 200 are shown" in inspect(wide).notes
    long = read(tmp_path, f"id,s\n1,{'a b ' * 500_000}\n2,a\n", column="s")
    assert long.lengths.tolist() == [1_000_000, 1]


def test_damaged_files_end_in_sentences(tmp_path):
    pytest.importorskip("pyarrow")
    chance = random.Random(0)
    __import__("pyarrow.parquet").parquet.write_table(__import__("pyarrow").table({"case": ["x"]}), tmp_path / "p")
    whole = [TEXT.encode(), XES.encode(), json.dumps(records(), indent=1).encode(), b">a\nACG\n", TEXT.encode("utf-16")]
    whole += [(tmp_path / "p").read_bytes(), b'{"a": {"b": [1, {"c": NaN}]}}\n["x"]\n', MESSY.encode()]
    pieces = [
        b"\n",
        b"\r",
        b'"',
        b",",
        b"\0",
        b"\xff",
        b"<",
        b"[",
        b"{",
        b"]",
        b"NaN",
        b"9" * 30,
        b"[/b]",
        b"31/12/2024",
    ]
    layouts = [SequenceFile(), SequenceFile(**LOG), SequenceFile(**LOG, missing="drop", on_error="drop")]
    layouts += [SequenceFile(format=kind) for kind in ("csv", "json", "xes", "fasta", "text", "parquet")]
    said = []
    for number in range(120):
        content = bytearray(chance.choice(whole))
        for _ in range(chance.choice([1, 3, 20])):
            place = chance.randrange(len(content) + 1)
            content[place : place + chance.choice([0, 0, 5])] = chance.choice(pieces)
        packed = bytes(content) if number % 4 else gzip.compress(content)[: chance.choice([None, -9])]
        path = written(tmp_path, packed, f"x{chance.choice(['.txt', '.csv', '.jsonl', '.gz'])}")
        for reads in (lambda path: read_log(path, chance.choice(layouts)), inspect):
            try:
                reads(path)
            except ValueError as error:
                said.append(str(error))
    assert len(said) > 50
    assert all(str(tmp_path) in one for one in said)
