"""Logs that leave arguments out, on the command line."""

import json

import pytest
from command_line import called, refused

from statewise.strips import read_observed, read_schemas

pytestmark = pytest.mark.usefixtures("forked")

PREDICATES = "at,up-of,left-of"


@pytest.fixture(scope="module")
def moves(tmp_path_factory):
    """A log of the sliding tile by directions, with the places of tiles."""
    from statewise.cli import main

    path = tmp_path_factory.mktemp("implicit") / "moves.jsonl"
    words = [
        "npuzzle:2x3",
        "--num",
        "20",
        "--max-length",
        "25",
        "--implicit",
        "--states",
        PREDICATES,
        "--out",
        str(path),
    ]
    assert main(["strips", "traces", *words]) == 0
    return path


def last_line(capsys, *words):
    """The sentence with which a command line is refused, after what it says of the file."""
    code, _, err = called(capsys, *words)
    assert code == 2, err
    assert err.splitlines()[-1].startswith("statewise: ")
    return err.splitlines()[-1]


def test_from_a_log_of_directions_to_pddl(moves, tmp_path, capsys):
    observed = read_observed(moves)
    assert set(observed.traces.actions) == {"up", "down", "left", "right"}
    assert set(observed.predicates) == {*PREDICATES.split(",")}
    out = tmp_path / "tile"
    code, said, err = called(capsys, "strips", "learn", moves, "--implicit-arguments", "--out", out)
    assert code == 0, err
    assert "arguments of left: schema 2 of 4" in err
    assert "up x1 x2 x3: no at _ x1; up-of x1 x2; at x3 x2" in said
    assert "no-at x is true if no atom of at has x as argument 2" in said
    assert {len(places) for schema in read_schemas(out).values() for _, places in schema.pre} == {1, 2}
    code, said, _ = called(capsys, "strips", "verify", out, "--against", "npuzzle:3x3")
    assert code == 0
    assert "equivalent" in said
    assert "proven for all instances" in said
    pddl = tmp_path / "domain.pddl"
    assert called(capsys, "strips", "export", out, "--lifted", "--out", pddl)[0] == 0
    assert "(:action up\n  :parameters (?x1 - type-x ?x2 - type-x ?x3 - type-t)" in pddl.read_text()
    assert pddl.read_text().startswith("; The log left arguments out.")
    assert ";   up x1 x2 x3: no at _ x1; up-of x1 x2; at x3 x2\n" in pddl.read_text()
    code, _, err = called(capsys, "strips", "verify", pddl, "--against", pddl)
    assert code == 0
    assert "arguments in the order in which they were found" in err
    assert "left arguments out" in refused(capsys, "strips", "check", out, moves)
    assert "not those of the domain's" in (why := refused(capsys, "strips", "verify", out, "--against", "grid:3x3"))
    assert "no atoms of" in why
    for words in (
        ["verify", out, "--against", pddl],
        ["verify", pddl, "--against", out],
        ["simplify", out, "--against", "npuzzle:2x2", "--out", tmp_path / "simple"],
        ["show", out, "--against", "npuzzle:2x2"],
    ):
        assert "only states show which arguments" in last_line(capsys, "strips", *words)
    code, said, _ = called(capsys, "strips", "evaluate", out, "--against", "npuzzle:2x2", "--walks", "2", "--json")
    assert (code, json.loads(said)["equivalence"]["definition_1"]) == (0, "equivalent")
    report = json.loads((out / "report.json").read_text())
    for damaged in ([], 3, {"shown": {}}, {**report["implicit"], "shown": {"up": -1}}, {"registers": []}):
        (out / "report.json").write_text(json.dumps({**report, "implicit": damaged}))
        code, _, err = called(capsys, "strips", "verify", out, "--against", "npuzzle:2x2")
        assert code == 2, (damaged, err)
        assert "Traceback" not in err


def test_options_that_do_not_suit(moves, tmp_path, capsys):
    learn = ("strips", "learn", moves, "--implicit-arguments", "--out", tmp_path / "o")
    for words in (
        ["--method", "exact"],
        ["--noise", "auto"],
        ["--symmetry"],
        ["--names-from", "x.pddl"],
        ["--atoms", "3"],
    ):
        assert words[0] in refused(capsys, *learn, *words)
    assert "list all true atoms" in last_line(capsys, *learn, "--states", "some")
    assert "name no objects" in last_line(capsys, *learn, "--states", "none")
    assert not (tmp_path / "o").exists()
    traces = ("strips", "traces", "npuzzle:2x2", "--num", "3")
    out = ("--out", tmp_path / "t.jsonl")
    assert "--negatives" in refused(capsys, *traces, *out, "--implicit", "--negatives", "0.5")
    assert "--noise" in refused(capsys, *traces, *out, "--implicit", "--noise", "0.5")
    assert "no predicate 'nowhere'" in refused(capsys, *traces, *out, "--states", "at,nowhere")
    assert ".jsonl" in refused(capsys, *traces, "--out", tmp_path / "t.csv", "--states", "all")
    assert "not known of simple" in refused(capsys, "strips", "traces", "simple", "--num", "3", *out, "--implicit")


@pytest.mark.parametrize(
    "text",
    [
        '{"actions": ["up"], "states": [["at a"], ["at b"]]}',
        '{"actions": ["up", "up a"], "states": [["at a"], ["at b"], ["at c"]]}',
        '{"actions": ["up"], "states": [[], []]}',
        '{"actions": ["up"], "states": [["at [red]a[/red]", "at b"], ["at c", "at b"]]}',
        '{"actions": ["up"], "states": [["at a", "at a b"], null]}',
        '{"actions": ["up"], "states": [{"at a": NaN}, null]}',
        '{"actions": ["up"], "states": [null, ["at b"]]}',
        '{"actions": ["up"], "states": "at a"}',
        '{"actions": [1e400], "states": []}',
        '{"actions": [], "states": [[]]}',
        '{"actions": ["up x"], "label": 1}',
        "[]",
        "{}",
        "",
    ],
)
def test_odd_logs_get_a_sentence(text, tmp_path, capsys):
    path = tmp_path / "odd.jsonl"
    path.write_text(text)
    code, said, err = called(
        capsys, "strips", "learn", path, "--implicit-arguments", "--out", tmp_path / "o", "--seconds", "1"
    )
    assert code in (0, 2), err
    assert "Traceback" not in err + said
    if code:
        assert err.splitlines()[-1].startswith("statewise: ")


def test_a_folder_without_traces_is_refused(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert "empty" in refused(
        capsys, "strips", "learn", tmp_path / "empty", "--implicit-arguments", "--out", tmp_path / "o"
    )
