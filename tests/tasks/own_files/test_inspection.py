"""What a file is said to be, and that the command that is printed reads it as a person means."""

import json
import shlex

import numpy as np
import pytest

from statewise.cli import main
from statewise.tasks.own_files.inspection import FEWEST_CASES, inspect
from statewise.tasks.own_files.sequences import Sequences, SequencesConfig
from statewise.tasks.own_files.splits import HELD_OUT_SHARE

EVENTS = "id,activity,when\n" + "".join(
    f"{n // 4},{'abcd'[n % 4]}{n % 3},2024-01-{1 + n % 28:02} 08:00\n" for n in range(80)
)
SLASHED = "id,activity,when\n" + "".join(
    f"{n // 4},{'abcd'[n % 4]},0{1 + n % 9}/0{1 + n % 7}/2024 08:00\n" for n in range(80)
)
STEPS = "".join(json.dumps({"n": n, "steps": ["a", str(n)]}) + "\n" for n in range(9))
NESTED = "".join(
    json.dumps({"meta": {"session": n // 4, "at": 1709539200 + 60 * n}, "event": {"type": f"{'abcd'[n % 4]}{n % 3}"}})
    + "\n"
    for n in range(80)
)
TRACES = "".join(
    json.dumps({"trace": n, "steps": [{"tool": tool, "ms": n} for tool in ("find", "read", f"edit{n % 5}")]}) + "\n"
    for n in range(20)
)
XES = '<log xes.version="1.0">' + "".join(
    f'<trace><string key="concept:name" value="{n}"/>'
    + "".join(f'<event><string key="concept:name" value="{name}"/></event>' for name in ("a", "b", str(n % 5)))
    + "</trace>"
    for n in range(20)
)


def trained_on(command):
    """The task of a command line."""
    words = shlex.split(command)
    assert words[:3] == ["statewise", "train", "sequences-small"]
    flags = dict(zip(words[3::2], words[4::2]))
    assert flags.pop("--out").startswith("runs/")
    fields = {name.removeprefix("--task."): value for name, value in flags.items()}
    if "held_out_share" in fields:
        fields["held_out_share"] = float(fields["held_out_share"])
    return Sequences(SequencesConfig(**fields))


@pytest.mark.parametrize(
    ("content", "name", "said", "sequences", "fields"),
    [
        (EVENTS, "log.csv", "CSV, 80 records", 20, {"group": "id", "column": "activity", "order": "when"}),
        (EVENTS, "log of mine.txt", "CSV", 20, {"format": "csv", "group": "id"}),
        (EVENTS.replace("a0", "NA"), "log.csv", "missing: 7 NA", 20, {"missing": "drop"}),
        (EVENTS + "1,2,3,4\n", "log.csv", "1 row with errors", 20, {"on_error": "drop"}),
        (EVENTS.replace("2024-01-", "2024/01/"), "log.csv", "2024-01-01T08:00:00 to", 20, {"order": "when"}),
        (SLASHED, "log.csv", "none shows whether", 20, {"order": "when", "time_format": "%d/%m/%Y %H:%M"}),
        (XES + "</log>", "log.xes", "XES, 60 records", 20, {"group": None, "column": None}),
        (EVENTS.encode("utf-16"), "log.csv", "the text is in UTF-16", 20, {}),
        ("".join(f"a b {n}\n" for n in range(9)), "x.txt", "text, 9 sequences", 9, {}),
        ("".join(f"north,east,{n}{',end' * (n % 2)}\n" for n in range(9)), "x.txt", "text", 9, {"separator": ","}),
        ("".join(f"abc{n}\n" for n in range(9)), "x.txt", "text", 9, {"separator": ""}),
        (STEPS, "x.jsonl", "lists", 9, {"column": "steps"}),
        (NESTED, "x.jsonl", "event.type", 20, {"group": "meta.session", "order": "meta.at", "column": "event.type"}),
        (TRACES, "x.jsonl", "steps.tool", 20, {"column": "steps.tool", "group": None}),
        ("".join(json.dumps({"prompt": "a", "target": [str(n)]}) + "\n" for n in range(9)), "x.jsonl", "JSON", 9, {}),
        (">a\nACG\n>b\nTTg\n", "x.fa", "FASTA, 2 sequences", 2, {"separator": ""}),
    ],
)  # fmt: skip
def test_the_printed_command_reads_the_file(tmp_path, content, name, said, sequences, fields, capsys):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["inspect", str(path)]) == 0
    printed = capsys.readouterr().out
    assert said in printed
    command = printed.splitlines()[-1].strip()
    task = trained_on(command)
    assert len(task.training()) + len(task.held_out()) == sequences
    for field, value in fields.items():
        assert getattr(task.config, field) == value
    assert main(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["command"] == command


@pytest.mark.parametrize(
    ("different", "copies", "share", "said"),
    [
        (400, 1, None, ""),
        (80, 1, None, ""),
        (75, 1, None, ""),
        (74, 1, 0.15, "a tenth of 74 different sequences is too little"),
        (40, 5, 0.2, "a tenth of 40 different sequences is too little"),
        (16, 3, 0.5, "--task.held_out_share 0.5 holds out at least 8"),
        (15, 9, None, "15 different sequences: too few for a verdict"),
        (1, 20, None, "all sequences are the same: training needs at least two different ones"),
    ],
)
def test_the_command_holds_out_enough_for_a_verdict(tmp_path, different, copies, share, said):
    path = tmp_path / "x.txt"
    path.write_text("".join(f"a b{n} c\n" for n in range(different)) * copies)
    found = inspect(path)
    assert said in "\n".join(found.reads)
    assert bool(said) == ("different sequence" in found.reads[-1] or "all sequences" in found.reads[-1])
    assert ("--task.held_out_share" in found.command) == (share is not None)
    if different == 1:
        with pytest.raises(ValueError, match="at least two different sequences"):
            trained_on(found.command)
        return
    task = trained_on(found.command)
    assert task.config.held_out_share == (share or HELD_OUT_SHARE)
    held_out = task.held_out()
    assert len(held_out) % copies == 0
    assert (len(np.unique(held_out.tokens, axis=0)) >= FEWEST_CASES) == ("too few" not in said)


def test_a_large_file_is_looked_at_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr("statewise.tasks.own_files.inspection.RECORDS", 50)
    path = tmp_path / "log.csv"
    path.write_text(EVENTS)
    found = inspect(path)
    assert found.what == "CSV, of which the first 50 records were looked at, of about 81 lines in 0 MB"
    path = tmp_path / "x.txt"
    path.write_text("a b\n" * 60)
    assert "the first 50 sequences were looked at" in inspect(path).what


def test_a_terminal_gets_lines_that_fit_but_for_the_command(tmp_path, monkeypatch, capsys):
    path = tmp_path / "log.csv"
    path.write_text(EVENTS)
    assert main(["inspect", str(path)]) == 0
    piped = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert main(["inspect", str(path)]) == 0
    *lines, command = capsys.readouterr().out.splitlines()
    assert command == piped.splitlines()[-1]
    assert all(len(line) <= 60 or " " not in line.strip() for line in lines[1:])
    assert [word for line in lines for word in line.split()] == piped.rpartition("\n  statewise")[0].split()


def test_what_is_not_known_is_refused(tmp_path, capsys):
    for words, message in (
        ([str(tmp_path / "none.csv")], "No such file"),
        ([str(tmp_path)], "this folder has no file"),
        ([str(tmp_path), "--format", "cvs"], "did you mean csv"),
        ([str(tmp_path), "--encoding", "zip"], "task.encoding must be an encoding"),
    ):
        assert main(["inspect", *words]) == 2
        assert message in capsys.readouterr().err


def test_a_stray_object_does_not_hide_its_column(tmp_path):
    rows = [{"case": f"c{number % 4}", "activity": {"a": 1} if number == 3 else "act"} for number in range(20)]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert {"case", "activity", "activity.a"} == {column.name for column in inspect(path).columns}


@pytest.mark.parametrize(
    ("whens", "look", "trouble"),
    [
        (
            ["2024-03-30T01:00:00Z", "25.03.2024 13:05", "03/26/2024"],
            "times: dates with the day first, as in line 3, and with the month first, as in line 4: write them alike",
            "column 'when' has dates with the day first",
        ),
        (
            ["2024-03-30T01:00:00Z", "2024-03-30T01:00:00"],
            "times, some with a zone and some without",
            "column 'when' is a time without a zone, but a time with a zone in line 2",
        ),
    ],
)
def test_times_that_cannot_be_compared_are_not_passed_over(tmp_path, whens, look, trouble, capsys):
    """Otherwise the rows would be read in the order of the file."""
    path = tmp_path / "log.csv"
    rows = [f"c{n // 3},{'abc'[n % 3]},{whens[n % len(whens)]}\n" for n in range(60)]
    path.write_text("case,activity,when\n" + "".join(rows))
    assert main(["inspect", str(path)]) == 0
    printed = capsys.readouterr().out
    assert f"{look}  (" in printed
    assert "order: when" in printed
    assert f"  nothing yet: {path}" in printed
    assert trouble in printed
    assert "--task.order when" in printed
    assert "--task.on_error" not in printed


def test_copies_of_rows_with_times_are_counted(tmp_path, capsys):
    path = tmp_path / "log.csv"
    path.write_text(EVENTS + "".join(EVENTS.splitlines(keepends=True)[1:4]))
    assert main(["inspect", str(path)]) == 0
    assert "  3 rows equal to an earlier row in every column: each counts as an event\n" in capsys.readouterr().out
