"""The commands for action models, as a user calls them."""

import json
import re
import shutil

import command_line
import pytest
from disk import in_thread

from statewise.cli import main
from statewise.model.model import keep_model, new_model
from statewise.model.recipes import read_recipe
from statewise.strips import domain, read_learned_model
from statewise.strips.model.learned import Learned, alone
from statewise.strips.planning.planner import installed
from statewise.strips.trace_data.trace_files import read_traces

pytestmark = pytest.mark.usefixtures("forked")

PROBLEM = """(define (problem two) (:domain blocks) (:objects b1 b2 - block)
(:init (ontable b1) (ontable b2) (clear b1) (clear b2) (handempty)) (:goal (on b1 b2)))"""
DOMAIN = """(define (domain blocks) (:requirements :strips :typing) (:types block)
(:predicates (on ?x ?y - block) (ontable ?x - block) (clear ?x - block) (holding ?x - block) (handempty))
(:action pickup :parameters (?x - block) :precondition (and (clear ?x) (ontable ?x) (handempty))
 :effect (and (holding ?x) (not (clear ?x)) (not (ontable ?x)) (not (handempty))))
(:action putdown :parameters (?x - block) :precondition (holding ?x)
 :effect (and (not (holding ?x)) (clear ?x) (ontable ?x) (handempty)))
(:action stack :parameters (?x ?y - block) :precondition (and (holding ?x) (clear ?y))
 :effect (and (not (holding ?x)) (not (clear ?y)) (on ?x ?y) (clear ?x) (handempty)))
(:action unstack :parameters (?x ?y - block) :precondition (and (on ?x ?y) (clear ?x) (handempty))
 :effect (and (not (on ?x ?y)) (not (clear ?x)) (not (handempty)) (holding ?x) (clear ?y))))"""
QUICK = ["--restarts", "3", "--steps", "1000"]
SHORT = ["--restarts", "1", "--steps", "40"]
"""Where nothing depends on how good the learned model is."""


def called(capsys, *words):
    return command_line.called(capsys, "strips", *words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Traces of `simple`, and what was learned from them."""
    place = tmp_path_factory.mktemp("strips")
    simple = ["strips", "traces", "simple", "--max-length", "10"]
    assert main([*simple, "--num", "200", "--out", str(place / "train.csv")]) == 0
    assert (
        main(
            [
                *simple,
                "--num",
                "60",
                "--split",
                "test",
                "--negatives",
                "0.5",
                "--seed",
                "2",
                "--out",
                str(place / "test.jsonl"),
            ]
        )
        == 0
    )
    assert (
        main(["strips", "learn", str(place / "train.csv"), "--atoms", "3", *QUICK, "--out", str(place / "learned")])
        == 0
    )
    (place / "domain.pddl").write_text(DOMAIN)
    (place / "p.pddl").write_text(PROBLEM)
    return place


@pytest.fixture(scope="module")
def exact(folder):
    """The folder learned exactly from the same traces."""
    assert main(["strips", "learn", str(folder / "train.csv"), "--out", str(folder / "exact")]) == 0
    return folder / "exact"


def test_clean_traces_are_learned_exactly(capsys, exact):
    capsys.readouterr()
    code, out, _ = called(capsys, "verify", exact, "--against", "simple", "--drawn-only")
    assert (code, out.split()[0]) == (0, "equivalent")
    assert called(capsys, "show", exact)[0] == 0
    code, out, err = called(capsys, "learn", exact.parent / "train.csv", "--out", exact, "--overwrite")
    assert code == 0
    assert "method     exact: the traces are free of noise" in out
    assert "minimal windows" in err


def test_new_traces_are_checked(capsys, exact):
    code, out, _ = called(capsys, "check", exact, exact.parent / "test.jsonl")
    assert code == 1
    assert "labels     1.0000 of the decided verdicts agree" in out
    assert "invalid by action" in out
    code, out, _ = called(capsys, "check", exact, exact.parent / "test.jsonl", "--json")
    found = json.loads(out)
    assert found["valid"] + found["invalid"] + found["undecided"] == len(found["verdicts"]) == 60
    assert found["labels"]["right"] == 1
    code, out, _ = called(capsys, "evaluate", exact, "--traces", exact.parent / "test.jsonl", "--json")
    assert json.loads(out)["certainty"] == found["labels"]
    for place, said in ((exact.parent / "nowhere", "nowhere does not exist"), (exact / "model.json", "is a file")):
        code, _, err = called(capsys, "check", place, exact.parent / "test.jsonl")
        assert (code, f"{said}: give a learned folder" in err) == (2, True)
    code, _, err = called(capsys, "check", exact.parent, exact.parent / "test.jsonl")
    assert (code, "has no seen.json" in err) == (2, True)


def test_plans_alone_are_learned_from(capsys, tmp_path):
    (tmp_path / "plans.txt").write_text("(a) (c) (b) (c) (c) (a)\n; cost = 6\n\na, c, b\nc, b, c, a\n")
    code, out, err = called(capsys, "learn", tmp_path / "plans.txt", "--positive-only", "--out", tmp_path / "learned")
    assert code == 0
    assert "3 traces (3 positive), 3 actions, up to 6 long" in err
    assert "exact" in out


def test_walks_begin_in_the_initial_state_unless_told_otherwise(capsys, tmp_path):
    """The problem begins with both blocks on the table, from where `unstack` cannot be first."""
    (tmp_path / "d.pddl").write_text(DOMAIN)
    (tmp_path / "p.pddl").write_text(PROBLEM)
    files, first = ["--domain", tmp_path / "d.pddl", "--problem", tmp_path / "p.pddl"], {}
    for start in ("init", "random", "both"):
        more = ["--start", start] if start != "both" else []
        code, _, _ = called(
            capsys,
            "traces",
            *files,
            "--num",
            "20",
            "--max-length",
            "6",
            "--negatives",
            "0",
            *more,
            "--out",
            tmp_path / f"{start}.csv",
        )
        found = read_traces(tmp_path / f"{start}.csv")
        first[start] = {found.actions[row[0]] for row in found.rows}
        assert code == 0
    assert first["init"] == {"pickup b1", "pickup b2"} < first["both"]
    assert first["random"] - first["init"]
    swapped = [files[0], files[3], files[2], files[1]]
    code, _, err = called(capsys, "traces", *swapped, "--num", "2", "--out", tmp_path / "x.csv")
    assert (code, "p.pddl:1: this is a problem, and" in err) == (2, True)


def test_observed_states_are_not_dropped_without_a_word(capsys, tmp_path):
    rows = "trace_id,action,state,note\n1,a,p,\n1,b,,\n1,a,p,x\n1,b,,\n"
    (tmp_path / "s.csv").write_text(rows)
    learn = ["learn", tmp_path / "s.csv", "--positive-only", "--out", tmp_path / "learned"]
    code, _, err = called(capsys, *learn)
    assert (code, "s.csv: 2 observed states, 1 predicates: p/0" in err) == (0, True)
    assert "s.csv: not read: the column 'note'\n" in err
    code, out, _ = called(capsys, "check", tmp_path / "learned", tmp_path / "s.csv")
    assert (code, "valid      0 of 1" in out, "no state was observed before it" in out) == (0, True, True)
    assert "assumed: STRIPS schemas" in out
    found = json.loads(called(capsys, "check", tmp_path / "learned", tmp_path / "s.csv", "--json")[1])
    assert (found["undecided"], found["verdicts"][0]["step"]) == (1, 1)
    code, _, err = called(capsys, "check", tmp_path / "learned", tmp_path / "s.csv", "--constants", "none")
    assert (code, "--constants is for traces without states" in err) == (2, True)
    code, out, _ = called(capsys, *learn, "--overwrite", "--noise", "0.1")
    assert (code, "with probability 0.99 none of this is wrong, if at most 10.0%" in " ".join(out.split())) == (0, True)
    code, _, err = called(capsys, *learn, "--overwrite", "--noise", "0.45")
    assert (code, "share of noise must be from 0 to 0.4" in err) == (2, True)
    code, _, err = called(capsys, *learn, "--overwrite", "--noise", "auto", "--method", "exact")
    assert (code, "--states none" in err) == (2, True)
    code, _, err = called(capsys, *learn, "--overwrite", "--states", "none")
    assert (code, "s.csv: not read: the column 'state', the column 'note'" in err) == (0, True)
    for words in (["check"], ["evaluate", "--traces"], ["plan", "--goal-after"], ["export", "--problem-from"]):
        verb, *option = words
        code, _, err = called(capsys, verb, tmp_path / "learned", *option, tmp_path / "s.csv")
        assert (code, "the column 'state' holds observed states" in err) == (2, True)
        code, _, err = called(capsys, "check", tmp_path / "learned", tmp_path / "s.csv", "--ignore-states")
        assert (code, "not read: the column 'state'" in err) == (0, True)


def test_help_explains_every_verb(capsys):
    code, out, _ = called(capsys, "--help")
    assert code == 0
    for verb in ("traces", "learn", "show", "verify", "evaluate", "export", "plan"):
        assert f"  {verb} " in out
        with pytest.raises(SystemExit) as left:
            main(["strips", verb, "--help"])
        assert left.value.code == 0
        assert f"statewise strips {verb}" in capsys.readouterr().out


def test_what_was_learned_is_shown_and_verified(capsys, folder):
    code, out, _ = called(capsys, "verify", folder / "learned", "--against", "simple")
    assert code == 0
    assert out.startswith("equivalent (definition 1")
    code, out, _ = called(capsys, "show", folder / "learned", "--against", "simple", "--trace", "a c a")
    assert code == 0
    assert "negative trace" in out
    for picture in ("theta", "models", "attention"):
        assert (folder / "learned" / f"{picture}.png").read_bytes().startswith(b"\x89PNG")


def test_large_models_are_not_drawn(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("statewise.strips.write.pictures.MOST_DRAWN", 17)
    for against in ((), ("--against", "blocksworld:3")):
        code, out, _ = called(capsys, "show", "blocksworld:3", *against, "--out", tmp_path / "out")
        assert code == 0
        assert "no plot of the model: it has 18 actions and 16 atoms, and plots show up to 17 of each" in out
    assert not (tmp_path / "out").exists()
    assert "model.png" in called(capsys, "show", "simple", "--out", tmp_path / "out")[1]


def test_a_wrong_model_gets_a_counterexample_and_exit_code_1(capsys, folder, tmp_path):
    shutil.copytree(folder / "learned", tmp_path / "wrong")
    model = json.loads((tmp_path / "wrong" / "model.json").read_text())
    for action in model["actions"].values():
        action["pre"] = []
    (tmp_path / "wrong" / "model.json").write_text(json.dumps(model))
    code, out, _ = called(capsys, "verify", tmp_path / "wrong", "--against", "simple")
    assert code == 1
    assert "counterexample: " in out
    assert "the learned model accepts it, the reference rejects its last action" in out
    code, out, _ = called(capsys, "verify", tmp_path / "wrong", "--against", "simple", "--json")
    assert (code, json.loads(out)["outcome"]) == (1, "different")


def test_what_cannot_be_decided_in_time_is_unknown(capsys, folder):
    strict = folder / "strict.json"
    model = json.loads((folder / "learned" / "model.json").read_text())
    model["atoms"].append("extra")
    model["actions"]["a"]["delete"].append("extra")
    model["actions"]["b"]["pre"].append("extra")
    strict.write_text(json.dumps(model))
    code, out, _ = called(capsys, "verify", strict, "--against", "simple", "--seconds", "1e-9")
    assert code == 3
    assert out.startswith("unknown")


def test_evaluation_counts_traces_and_compares_models(capsys, folder):
    words = ("evaluate", folder / "learned", "--traces", folder / "test.jsonl", "--against", "simple", "--json")
    code, out, _ = called(capsys, *words)
    found = json.loads(out)
    assert code == 0
    assert found["traces"]["accuracy"] == 1
    assert found["equivalence"] == dict.fromkeys(("definition_1", "real_states", "drawn_traces"), "equivalent")
    assert found["applicability"]["definition_recall"] == 1
    assert "precision" in found["syntactic"]
    assert "exact equivalence" in called(capsys, *words[:-1])[1]


def test_a_simplified_model_is_a_learned_folder(capsys, folder, tmp_path):
    words = ("simplify", folder / "learned", "--out", tmp_path / "simple")
    code, out, _ = called(capsys, *words)
    assert code == 0
    assert "each step proven equivalent (definition 1)" in out
    assert called(capsys, "verify", tmp_path / "simple", "--against", folder / "learned")[0] == 0
    assert called(capsys, *words)[0] == 2
    code, out, _ = called(capsys, *words, "--overwrite", "--against", "simple", "--drawn-only")
    assert code == 0
    assert "(drawn traces)" in out
    assert "against simple: precision" in out
    assert called(capsys, "verify", tmp_path / "simple", "--against", "simple", "--drawn-only")[0] == 0


def test_a_simplified_model_is_checked_and_drawn(capsys, exact, tmp_path):
    assert called(capsys, "simplify", exact, "--out", tmp_path / "simple")[0] == 0
    words = exact.parent / "test.jsonl", "--lines", "0"
    assert called(capsys, "check", tmp_path / "simple", *words) == called(capsys, "check", exact, *words)
    code, out, _ = called(capsys, "show", tmp_path / "simple")
    assert code == 0
    assert out.endswith(f"wrote {tmp_path / 'simple' / 'model.png'}\n")
    assert (tmp_path / "simple" / "model.png").read_bytes().startswith(b"\x89PNG")
    assert called(capsys, "simplify", tmp_path / "simple", "--out", tmp_path / "simple", "--overwrite")[0] == 0
    assert (tmp_path / "simple" / "seen.json").is_file()
    assert not (tmp_path / "simple" / "model.png").exists()


def test_learning_goes_on_only_where_it_may(capsys, folder):
    words = ("learn", folder / "train.csv", "--atoms", "3", *QUICK, "--out", folder / "learned")
    code, _, err = called(capsys, *words)
    assert code == 2
    assert "exists: choose another --out, or give --overwrite" in err
    again = (
        "learn",
        folder / "train.csv",
        "--atoms",
        "3",
        "--restarts",
        "1",
        "--steps",
        "250",
        "--out",
        folder / "learned-2",
    )
    assert called(capsys, *again)[0] == 0
    assert called(capsys, *again, "--overwrite")[0] == 0
    assert Learned.load(folder / "learned-2").report["settings"]["restarts"] == 1


def test_two_processes_do_not_learn_into_one_folder(capsys, folder):
    with alone(folder / "taken"):
        words = ("learn", folder / "train.csv", "--out", folder / "taken")
        code, _, err = in_thread(lambda: called(capsys, *words))
    assert (code, f"{folder / 'taken'} is being written by another process" in err) == (2, True)
    assert not (folder / "taken").exists()
    assert not list(folder.glob(".taken*"))


def test_lifted_learning_is_good_for_other_sizes(capsys, folder, tmp_path):
    assert called(capsys, "traces", "ferry:2x1", "--num", "150", "--out", tmp_path / "t.csv")[0] == 0
    code, out, _ = called(capsys, "learn", tmp_path / "t.csv", "--lifted", *SHORT, "--out", tmp_path / "lifted")
    assert code == 0
    assert "sail\n" in out
    code, out, _ = called(capsys, "verify", tmp_path / "lifted", "--against", "ferry:3x2", "--drawn-only")
    assert code in (0, 1)
    assert "drawn traces" in out
    code, out, _ = called(capsys, "show", tmp_path / "lifted")
    assert code == 0
    assert "learned lifted:" in out
    assert "sail l0 l1" not in out
    assert re.search(r"\d ground actions and \d+ atoms?; --ground shows them", out)
    code, out, _ = called(capsys, "show", tmp_path / "lifted", "--ground")
    assert code == 0
    assert "sail l0 l1" in out
    assert called(capsys, "show", tmp_path / "lifted", "--against", "ferry:2x1")[0] == 0
    assert called(capsys, "evaluate", tmp_path / "lifted", "--traces", tmp_path / "t.csv")[0] == 0
    assert called(capsys, "verify", tmp_path / "lifted", "--against", tmp_path / "lifted")[0] == 0


@pytest.mark.skipif(not installed(), reason="no planner is installed")
def test_planning_and_pddl(capsys, folder, tmp_path):
    code, out, _ = called(
        capsys, "export", folder / "learned", "--out", tmp_path / "out.pddl", "--names-from", "simple"
    )
    assert code == 0
    assert "(:predicates" in (tmp_path / "out.pddl").read_text()
    goal = Learned.load(folder / "learned").model
    known_false = goal.spelled(goal.after([goal.number["a"]]))[0]
    code, out, _ = called(capsys, "plan", folder / "learned", "--goal", known_false, "--after", "a")
    assert code == 0
    assert "valid in the learned model" in out
    assert (
        called(
            capsys,
            "traces",
            "--domain",
            folder / "domain.pddl",
            "--problem",
            folder / "p.pddl",
            "--num",
            "200",
            "--out",
            tmp_path / "t.csv",
        )[0]
        == 0
    )
    assert called(capsys, "learn", tmp_path / "t.csv", "--atoms", "9", *SHORT, "--out", tmp_path / "b")[0] == 0
    code, out, _ = called(capsys, "plan", tmp_path / "b", "--problem", folder / "p.pddl", "--json")
    assert json.loads(out)["planner"]
    spec = f"{folder / 'domain.pddl'},{folder / 'p.pddl'}"
    assert called(capsys, "verify", tmp_path / "b", "--against", spec, "--drawn-only")[0] in (0, 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["learn", "pos.csv", "--method", "neural", "--out", "x"], "no negative traces"),
        (["learn", "pos.csv", "--method", "exact", "--steps", "5", "--out", "x"], "--steps is an option of training"),
        (["learn", "gap.csv", "--out", "x"], "gap.csv:4: trace 1 continues here after other traces"),
        (["learn", "late.csv", "--out", "x"], "late.csv:3: label 1 on an action that is not the last"),
        (["learn", "train.csv", "--atoms", "0", "--out", "x"], "atoms must be at least 1"),
        (["learn", "train.csv", "--atoms", "many", "--out", "x"], "a number or auto, not 'many'"),
        (["learn", "train.csv", "--atomz", "3", "--out", "x"], "did you mean --atoms"),
        (["traces", "simple", "--num", "3", "--noise-of", "steps", "--out", "x.csv"], "give its share, too"),
        (["learn", "train.csv", "--lifted", "--noise", "0.7", "--out", "x"], "noise must be at least 0 and below 0.5"),
        (["learn", "train.csv", "--lifted", "--atoms", "3", "--out", "x"], "--lifted always finds the number"),
        (["learn", "pos.csv", "--lifted", "--noise", "auto", "--out", "x"], "without negative traces, noise cannot"),
        (["learn", "pos.csv", "--method", "hybrid", "--out", "x"], "without negative traces"),
        (["learn", "train.csv", "--method", "locm", "--noise", "0.1", "--out", "x"], "LOCM reads every trace as"),
        (["learn", "train.csv", "--method", "locm", "--restarts", "2", "--out", "x"], "--restarts is an option"),
        (["learn", "train.csv", "--seed", "9" * 30, "--out", "x"], "--seed must be below 9,007,199,254,740,992, not 9"),
        (["learn", "train.csv", "--seconds", "inf", "--out", "x"], "--seconds must be below 9,007,199,254,740,992"),
        (["learn", "train.csv", "--seconds", "nan", "--out", "x"], "--seconds must be above 0, not nan"),
        (["learn", "train.csv", "--out", "train.csv/x"], "train.csv/x: train.csv is a file: choose another --out"),
        (["verify", "idle.json", "--against", "idle.json"], "that idle.json is compared with has no actions"),
        (
            ["plan", "learned", "--domain", "domain.pddl", "--problem", "idle.pddl"],
            "none is reachable from the initial",
        ),
        (["show", "blank.json"], "blank.json: actions: a name is empty"),
        (["verify", "learned", "--against", "blank.json"], "blank.json: actions: a name is empty"),
        (
            ["show", "spaced"],
            "schemas.json: a literal begins with its predicate: [0] must be a word without blanks, not",
        ),
        (["show", "unnamed"], 'schemas.json: the names of schemas: [0] must be a word without blanks, not ""'),
        (["show", "binary"], "binary: byte 0: not UTF-8 text"),
        (["evaluate", "learned", "--traces", "odd.csv"], "have different actions: learned has no 'd'"),
        (["evaluate", "learned"], "--traces FILE, --against REFERENCE"),
        (["verify", "learned", "--against", "ferry:2"], "written ferry:PORTSxCARS"),
        (["verify", "learned", "--against", "ferry:2x1"], "different actions"),
        (["verify", "nowhere", "--against", "simple"], "nowhere"),
        (["verify", "learned", "--against", "simple", "--seconds", "0"], "--seconds must be above 0"),
        (["traces", "blocksword:3", "--num", "5", "--out", "x.csv"], "is not a domain; choices: simple, "),
        (["traces", "--num", "5", "--out", "x.csv"], "name a domain"),
        (["traces", "simple", "--num", "1000", "--max-length", "10", "--out", "x.csv"], "not have enough unique"),
        (["plan", "learned"], "give one of --goal, --goal-after, --goal-possible, --problem"),
        (["plan", "learned", "--goal", " ,"], "--goal names no atom"),
        (["plan", "swaps", "--goal-possible", "swap x x"], "'swap x x' has the same object in several places"),
        (["traces", f"ferry:{'9' * 5000}x1", "--num", "5", "--out", "x.csv"], "(5,008 characters)': the domain is wri"),
        (["traces", "ferry:\u0968x1", "--num", "5", "--out", "x.csv"], "the domain is written ferry:PORTSxCARS"),
        (["show", "learned", "--trace", "a z"], "z"),
        (["learned"], "did you mean learn"),
    ],
)
def test_bad_input_is_answered_in_the_users_words(capsys, folder, monkeypatch, words, said):
    monkeypatch.chdir(folder)
    (folder / "pos.csv").write_text("trace_id,action\n1,a\n1,c\n")
    (folder / "gap.csv").write_text("trace_id,action\n1,a\n2,c\n1,b\n")
    (folder / "late.csv").write_text("trace_id,action,label\n1,a,0\n1,b,1\n1,c,0\n")
    (folder / "odd.csv").write_text("trace_id,action\n1,d\n")
    (folder / "binary").write_bytes(b"\xff\xfe\x00")
    (folder / "idle.pddl").write_text(PROBLEM.replace("(handempty)", ""))
    model = {"format": "statewise action model 1", "atoms": ["p"], "actions": {}}
    (folder / "idle.json").write_text(json.dumps(model))
    act = {"pre": ["p"], "add": [], "delete": []}
    (folder / "blank.json").write_text(json.dumps({**model, "actions": {" ": act}}))
    (folder / "swaps").mkdir(exist_ok=True)
    swaps = {f"swap {x} {y}": {"pre": [f"p {x}"], "add": [f"p {y}"], "delete": []} for x, y in ("ab", "ba")}
    (folder / "swaps" / "model.json").write_text(json.dumps({**model, "atoms": ["p a", "p b"], "actions": swaps}))
    swap = {"pre": [["p", 0]], "add": [["p", 1]], "delete": []}
    (folder / "swaps" / "schemas.json").write_text(json.dumps({"swap": swap}))
    for name, schemas in (("spaced", {"go": {**act, "pre": [["a b", 0]]}}), ("unnamed", {"": {**act, "pre": []}})):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "model.json").write_text(json.dumps({**model, "actions": {"go x": act}}))
        (folder / name / "schemas.json").write_text(json.dumps(schemas))
    code, _, err = called(capsys, *words)
    assert code == 2
    assert said in err
    assert "Traceback" not in err


def test_the_report_says_what_was_proven(capsys, folder, tmp_path):
    from schemas_by_hand import BLOCKSWORLD, as_schemas

    from statewise.strips.model.learned import write_model
    from statewise.strips.model.schemas import ground
    from statewise.strips.trace_data.domains import domain

    schemas = as_schemas({**BLOCKSWORLD, "putdown": (*BLOCKSWORLD["putdown"][:2], set())})
    right = as_schemas(BLOCKSWORLD)
    actions = domain("blocksworld:3").model.names
    write_model(tmp_path / "right", ground(right, actions), {}, schemas=right)
    write_model(tmp_path / "wrong", ground(schemas, actions), {}, schemas=schemas)
    code, out, _ = called(capsys, "verify", tmp_path / "right", "--against", "blocksworld:10", "--drawn-only")
    assert code == 0
    assert "proven for all instances" in out.splitlines()[0]
    code, out, _ = called(capsys, "verify", tmp_path / "wrong", "--against", "blocksworld:10", "--drawn-only")
    assert code == 1
    assert "counterexample: putdown b1, putdown b1\n" in out
    code, out, _ = called(capsys, "verify", folder / "learned", "--against", "simple")
    assert "proven for this instance" in out


@pytest.fixture(scope="module")
def ferry(tmp_path_factory):
    """A lifted model of three ports, and traces of four."""
    from schemas_by_hand import FERRY, as_schemas

    from statewise.strips.model.learned import write_model
    from statewise.strips.model.schemas import ground
    from statewise.strips.trace_data.domains import domain

    place = tmp_path_factory.mktemp("ferry")
    schemas = as_schemas(FERRY)
    write_model(place / "lifted", ground(schemas, domain("ferry:3x2").model.names), {}, schemas=schemas)
    (place / "t.csv").write_text(
        "trace_id,action\n0,board c9 l7\n0,sail l7 l8\n0,debark c9 l8\n0,sail l8 l9\n1,sail l8 l9\n"
    )
    return place


def test_a_lifted_domain_and_a_problem_from_a_trace(capsys, ferry, tmp_path):
    words = ("export", ferry / "lifted", "--to", "pddl", "--lifted", "--problem-from", ferry / "t.csv")
    code, out, _ = called(capsys, *words, "--out", tmp_path / "domain.pddl")
    assert code == 0
    assert "4 predicates, 3 schemas" in out
    assert "from " in out
    assert "the first of 2 traces, 4 actions" in out
    assert "(:objects" in (tmp_path / "problem.pddl").read_text()
    code, _, err = called(capsys, *words, "--out", tmp_path / "domain.pddl")
    assert code == 2
    assert "exists" in err
    assert called(capsys, *words, "--out", tmp_path / "domain.pddl", "--overwrite")[0] == 0
    assert called(capsys, *words[:-2], "--out", tmp_path / "alone.pddl")[0] == 0
    code, out, _ = called(capsys, *words, "--no-negative", "--out", tmp_path / "plain.pddl")
    assert (code, "--no-negative" in out) == (0, False)
    for one, other in (
        ("plain.pddl", ferry / "lifted"),
        (ferry / "lifted", "plain.pddl"),
        ("domain.pddl", "ferry:2x2"),
    ):
        spec = [tmp_path / each if str(each).endswith(".pddl") else each for each in (one, other)]
        code, out, _ = called(capsys, "verify", spec[0], "--against", spec[1])
        assert (code, "proven for all instances" in out) == (0, True)
    pair = f"{tmp_path / 'plain.pddl'},{tmp_path / 'plain-problem.pddl'}"
    assert called(capsys, "verify", pair, "--against", tmp_path / "plain.pddl")[0] == 0
    code, _, err = called(capsys, "verify", pair, "--against", tmp_path / "plain.pddl", "--drawn-only")
    assert (code, "has no initial state" in err) == (2, True)
    assert re.search(r":requirements :strips :typing\)", (tmp_path / "plain.pddl").read_text())
    assert "(not " not in (tmp_path / "plain-problem.pddl").read_text().partition("(define")[2]
    assert not (tmp_path / "alone-problem.pddl").exists()


def test_a_ground_problem_from_a_trace(capsys, ferry, tmp_path):
    (tmp_path / "t.csv").write_text("trace_id,action\n0,board c0 l0\n0,sail l0 l1\n")
    code, _, _ = called(
        capsys, "export", ferry / "lifted", "--problem-from", tmp_path / "t.csv", "--out", tmp_path / "g.pddl"
    )
    assert code == 0
    assert (tmp_path / "g-problem.pddl").read_text().count("(p") > 3
    code, _, err = called(
        capsys, "export", ferry / "lifted", "--problem-from", ferry / "t.csv", "--out", tmp_path / "h.pddl"
    )
    assert code == 2
    assert "'board c9 l7' is not an action of the model" in err


BAD_TRACES = {
    "schema": ("fly a b", "the model has no schema 'fly'"),
    "arity": ("sail l1", "has 1 argument, but 'sail' was learned with 2"),
    "sort": ("sail l1 l2\n0,board l1 l2", "is of another sort here than elsewhere"),
    "rejected": ("sail l1 l2\n0,sail l1 l3", "rejects action 2, 'sail l1 l3', which requires at-ferry l1"),
    "markup": ("[red]<b>x</b>[/red] a", "the model has no schema '[red]<b>x</b>[/red]'"),
}


@pytest.mark.parametrize("bad", BAD_TRACES)
@pytest.mark.parametrize("verb", ["export", "plan"])
def test_traces_that_do_not_fit_end_with_a_sentence(capsys, ferry, tmp_path, bad, verb):
    actions, message = BAD_TRACES[bad]
    (tmp_path / "t.csv").write_text(f"trace_id,action\n0,{actions}\n")
    words = {
        "export": ("--lifted", "--problem-from", tmp_path / "t.csv", "--out", tmp_path / "d.pddl"),
        "plan": ("--goal-after", tmp_path / "t.csv"),
    }
    code, out, err = called(capsys, verb, ferry / "lifted", *words[verb])
    assert code == 2
    assert out == ""
    if verb == "export" or installed():
        assert message in err
    assert not (tmp_path / "d.pddl").exists()


def test_options_of_export_and_plan_that_do_not_go_together(capsys, folder, ferry, tmp_path):
    for words, message in (
        (("export", folder / "learned", "--lifted", "--out", tmp_path / "x.pddl"), "has no schemas"),
        (("export", folder / "learned" / "model.json", "--lifted", "--out", tmp_path / "x.pddl"), "has no schemas"),
        (("export", tmp_path / "nowhere", "--lifted", "--out", tmp_path / "x.pddl"), "nowhere: No such file or dir"),
        (("export", ferry / "lifted", "--to", "sas", "--out", tmp_path / "x.pddl"), "--to"),
        (("plan", ferry / "lifted"), "give one of --goal, --goal-after, --goal-possible, --problem"),
        (("plan", ferry / "lifted", "--goal", "p", "--goal-after", ferry / "t.csv"), "not --goal and --goal-after"),
        (("plan", ferry / "lifted", "--goal-possible", ""), "is not an action"),
        (("plan", ferry / "lifted", "--goal-possible", "fly x"), "the model has no schema 'fly'"),
        (("plan", folder / "learned", "--goal-possible", "fly"), "'fly' is not an action of the model"),
        (("plan", ferry / "lifted", "--goal-after", tmp_path / "none.csv"), "none.csv"),
        (("plan", ferry / "lifted", "--problem", tmp_path / "p.pddl"), "domain.pddl does not exist; give --domain"),
    ):
        code, out, err = called(capsys, *words)
        assert (code, out) == (2, "")
        assert message in err or not installed()
    (tmp_path / "bad.csv").write_text("trace_id,action,label\n0,sail l1 l2,0\n0,sail l1 l2,1\n")
    code, _, err = called(capsys, "plan", ferry / "lifted", "--goal-after", tmp_path / "bad.csv")
    assert code == 2
    assert "the first trace ends in an invalid action" in err


@pytest.mark.skipif(not installed(), reason="no planner is installed")
def test_goals_by_example_and_goals_of_actions(capsys, folder, ferry):
    code, out, _ = called(capsys, "plan", ferry / "lifted", "--goal-after", ferry / "t.csv", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["actions"] == ["board c9 l7", "sail l7 l8", "debark c9 l8", "sail l8 l9"]
    assert set(found["goal"]) == {"at c9 l8", "empty", "at-ferry l9"}
    assert found["assumed"] == []
    code, out, _ = called(capsys, "plan", ferry / "lifted", "--goal-possible", "board c9 l8", "--after", "board c9 l7")
    assert code == 0
    assert "goal: at-ferry l8, at c9 l8, empty" in out
    assert out.splitlines()[1:3] == ["  1  sail l7 l8", "  2  debark c9 l8"]
    code, out, _ = called(capsys, "plan", ferry / "lifted", "--goal-possible", "board c9 l8")
    assert code == 0
    assert "nothing to do if these assumptions are true; --after" in out
    code, out, _ = called(capsys, "plan", folder / "learned", "--goal-possible", "b", "--after", "b")
    assert code == 0
    assert "valid in the learned model" in out


def test_schemas_from_noisy_traces_and_what_is_said_of_them(capsys, tmp_path, monkeypatch):
    assert (
        called(
            capsys,
            "traces",
            "ferry:3x3",
            "--num",
            "150",
            "--max-length",
            "30",
            "--noise",
            "0.1",
            "--out",
            tmp_path / "noisy.csv",
        )[0]
        == 0
    )
    monkeypatch.setenv("COLUMNS", "80")
    words = ("learn", tmp_path / "noisy.csv", "--lifted", "--noise", "auto", "--out", tmp_path / "schemas")
    code, out, err = called(capsys, *words)
    assert code == 0
    assert "schemas, windows of at least 2 traces: " in err
    lines = out.splitlines()
    assert max(len(line) for line in lines if not line.startswith("wrote ")) <= 80
    labels = [line[:11].rstrip() for line in lines[lines.index("") + 1 :]]
    assert [label for label in labels if label] == ["method", "windows", "model", "wrote " + str(tmp_path)[:5]]
    code, out, _ = called(capsys, "verify", tmp_path / "schemas", "--against", "ferry:5x4", "--drawn-only")
    assert code == 0
    assert "proven for all instances" in out
    assert all(line.startswith("  ") for line in out.splitlines()[2:])  # a pair per line
    assert len(out.splitlines()) > 3
    code, out, err = called(capsys, "learn", tmp_path / "noisy.csv", "--out", tmp_path / "ground")
    assert code == 0
    assert "of 29 held-out traces they explain: schemas 0." in " ".join(out.split())
    assert "ground atoms 0." in " ".join(out.split())
    assert "ground atoms, windows of at least" in err
    code, _, err = called(capsys, "learn", tmp_path / "noisy.csv", "--method", "exact", "--out", tmp_path / "x")
    assert code == 2
    assert "or learn with --noise auto" in err


def test_what_was_cut_short_does_not_say_that_nothing_is_open(capsys, tmp_path):
    words = ["ferry:3x3", "--num", "40", "--max-length", "30", "--negatives", "0", "--out", tmp_path / "walks.csv"]
    assert called(capsys, "traces", *words)[0] == 0
    learn = ("learn", tmp_path / "walks.csv", "--positive-only", "--lifted", "--out", tmp_path / "out")
    code, out, err = called(capsys, *learn, "--seconds", "0.000001")
    assert code == 0
    assert "unfinished " in out
    assert "the same command continues, best with more --seconds" in " ".join(out.split())
    assert "no predicate was found: give more --seconds" in err
    assert "open       no open question" not in out
    assert "open       no open question" in called(capsys, *learn, "--overwrite")[1]


@pytest.mark.parametrize("flags", [["--positive-only"], ["--lifted"]])
def test_traces_without_a_valid_action_are_refused(flags, tmp_path, capsys):
    path = tmp_path / "neg.csv"
    path.write_text("trace_id,action,label\n0,a b,1\n1,c d,1\n")
    assert main(["strips", "learn", str(path), *flags, "--out", str(tmp_path / "model")]) == 2
    assert "neg.csv: no trace has a valid action: label 1 marks" in " ".join(capsys.readouterr().err.split())


def test_simplification_against_a_part_keeps_what_the_part_lacks(capsys, ferry, tmp_path):
    """The reference has no action of `sail`."""
    model = json.loads((ferry / "lifted" / "model.json").read_text())
    model["actions"] = {name: each for name, each in model["actions"].items() if not name.startswith("sail")}
    (tmp_path / "part.json").write_text(json.dumps(model))
    words = ("simplify", ferry / "lifted", "--out")
    assert called(capsys, *words, tmp_path / "alone")[0] == 0
    code, out, _ = called(capsys, *words, tmp_path / "plain", "--against", tmp_path / "part.json")
    assert code == 0
    assert "against " in out
    for name in ("schemas.json", "model.json"):
        assert (tmp_path / "plain" / name).read_text() == (tmp_path / "alone" / name).read_text()
    code, out, _ = called(capsys, "verify", tmp_path / "plain", "--against", "ferry:5x4", "--drawn-only")
    assert code == 0
    assert "compared by the schemas before simplification" in out


def test_what_simplification_leaves_for_lack_of_actions_is_said(capsys, ferry, tmp_path):
    (tmp_path / "p.pddl").write_text(
        "(define (problem one) (:domain port) (:objects c0 l0)(:init (at c0 l0) (at-ferry l0) (empty)) (:goal (on c0)))"
    )
    (tmp_path / "domain.pddl").write_text(
        "(define (domain port) (:predicates (at ?c ?l) (at-ferry ?l) (empty) (on ?c))"
        "(:action board :parameters (?c ?l) :precondition (and (at-ferry ?l) (at ?c ?l) (empty))"
        " :effect (and (on ?c) (not (at ?c ?l)) (not (empty))))"
        "(:action debark :parameters (?c ?l) :precondition (and (at-ferry ?l) (on ?c))"
        " :effect (and (at ?c ?l) (empty) (not (on ?c)))))"
    )
    against = f"{tmp_path / 'domain.pddl'},{tmp_path / 'p.pddl'}"
    code, out, _ = called(
        capsys, "simplify", ferry / "lifted", "--out", tmp_path / "plain", "--against", against, "--drawn-only"
    )
    assert code == 0
    assert f"not simplified, since {against} has no such actions: sail" in out


def test_simplification_fails_before_it_writes(capsys, folder, ferry, tmp_path):
    for model, against in ((ferry / "lifted", "blocksworld:3"), (folder / "learned", "ferry:2x1")):
        code, _, err = called(capsys, "simplify", model, "--out", tmp_path / "out", "--against", against)
        assert (code, "have different actions" in err) == (2, True)
    wide = json.loads((folder / "learned" / "model.json").read_text())
    wide["actions"]["d"] = wide["actions"]["a"]
    (tmp_path / "wide.json").write_text(json.dumps(wide))
    code, _, err = called(capsys, "simplify", tmp_path / "wide.json", "--out", tmp_path / "out", "--against", "simple")
    assert (code, "the two models have different actions: the reference has no 'd'" in err) == (2, True)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def no_atoms(tmp_path):
    """A learned folder whose model has no atom, and accepts every trace."""
    from statewise.strips.model.learned import write_model
    from statewise.strips.model.model import ActionModel
    from statewise.strips.trace_data.domains import domain

    write_model(tmp_path / "none", domain("ferry:2x1").model.with_atoms([]), {})
    assert ActionModel.from_json((tmp_path / "none" / "model.json").read_text(), "none").atoms == ()
    return tmp_path / "none"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "none", "--against", "ferry:2x1", "--out", "pictures"), "nothing learned = at-ferry l0"),
        (("evaluate", "none", "--against", "ferry:2x1", "--json"), '"definition_1": "different"'),
        (("export", "none", "--names-from", "ferry:2x1", "--out", "x.pddl"), "0 atoms, 6 actions"),
        (("simplify", "none", "--against", "ferry:2x1", "--out", "plain"), "atoms: 0 of 0"),
    ],
)
def test_a_model_without_atoms_is_compared(capsys, no_atoms, monkeypatch, words, said):
    monkeypatch.chdir(no_atoms.parent)
    code, out, err = called(capsys, *words)
    assert (code, err) == (0, "")
    assert said in out


def test_schemas_are_not_compared_with_other_actions(capsys, ferry, tmp_path):
    code, out, err = called(capsys, "verify", ferry / "lifted", "--against", "blocksworld:3")
    assert (code, out) == (2, "")
    assert "lifted has no 'pickup'" in err
    shutil.copytree(ferry / "lifted", tmp_path / "upper")
    for name in ("model.json", "schemas.json"):
        text = (tmp_path / "upper" / name).read_text()
        (tmp_path / "upper" / name).write_text(re.sub("board|sail|debark", lambda found: found[0].upper(), text))
    for model in (tmp_path / "upper", tmp_path / "upper" / "model.json"):
        code, out, err = called(capsys, "verify", model, "--against", "ferry:3x2")
        assert (code, out) == (2, "")
        found = re.search(r"different actions: .* has no '(.*)'. It has '(.*)': PDDL ignores the case", err)
        assert found is not None
        assert found[1].upper().split()[0] == found[2].split()[0]
    (tmp_path / "t.csv").write_text("trace_id,action\n1,SAIL l0 l1\n")
    code, _, err = called(capsys, "evaluate", ferry / "lifted", "--traces", tmp_path / "t.csv")
    assert (code, "It has 'sail': PDDL ignores" in err) == (2, True)


def test_a_first_action_cannot_be_rejected(capsys, tmp_path):
    (tmp_path / "one.csv").write_text("trace_id,action,label\n1,a x,1\n")
    words = ("--out", tmp_path / "out")
    code, _, err = called(capsys, "learn", tmp_path / "one.csv", *words)
    assert (code, "A first action cannot be rejected, since the initial state is unknown" in err) == (2, True)
    (tmp_path / "more.csv").write_text("trace_id,action,label\n1,a x,1\n2,b x,0\n2,a x,0\n3,b x,0\n3,b x,1\n")
    code, _, err = called(capsys, "learn", tmp_path / "more.csv", "--method", "exact", *words)
    assert code == 2
    assert "no model explains 1 negative trace of a single action (line 2): a first action cannot be rejected" in err
    assert "contradict" not in err
    (tmp_path / "both.csv").write_text("trace_id,action,label\n1,a x,1\n2,b x,0\n2,a x,0\n3,b x,0\n3,a x,1\n")
    code, _, err = called(capsys, "learn", tmp_path / "both.csv", "--method", "exact", *words)
    assert code == 2
    assert "2 negative traces end in an action that the valid ones show to be valid (line 2, line 5)" in err
    assert "For line 2: a first action cannot be rejected" in err


def test_what_is_certain_of_schemas_is_said_with_what_is_assumed(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    words = ["ferry:3x3", "--num", "40", "--max-length", "30", "--negatives", "0", "--out", tmp_path / "walks.csv"]
    assert called(capsys, "traces", *words)[0] == 0
    out = called(capsys, "learn", tmp_path / "walks.csv", "--lifted", "--out", tmp_path / "learned")[1]
    assert "open       no open question about what the model allows in the places that the traces" in out
    said = " ".join(out.split())
    assert "assumed what the model forbids never happened in these 40 traces, which begin with" in said
    assert "If traces do not begin in all kinds of states, such as every level of a resource, it may happen" in said
    assert "Schemas have predicates of at most 2 arguments, which are different arguments of the action, no con" in said
    assert "nothing" not in out
    (tmp_path / "new.txt").write_text("(board c0 l0)\n(sail l0 l1) (board l0 c0)\n(board c7 l8) (fly c7)\n")
    code, out, _ = called(capsys, "check", tmp_path / "learned", tmp_path / "new.txt")
    assert code == 0
    assert "line 2: undecided from action 2, board l0 c0: 'l0' is in a place of 'c0' in training" in out
    assert "line 3: undecided from action 2, fly c7: no action 'fly' was seen in training" in out
    assert "valid      1 of 3" in out
    assert "assumed: schemas with predicates of at most 3 arguments, which are different arguments of the action" in out
    assert "except that one object (any of 6) may be a constant in predicates of at most 2" in out
    assert "with --constants none 1 would be valid and 0 invalid" in out
    out = called(capsys, "check", tmp_path / "learned", tmp_path / "new.txt", "--constants", "l0,l1")[1]
    assert "except that one object (l0 or l1) may be a constant" in out
    assert "would be" not in out
    code, _, err = called(capsys, "check", tmp_path / "learned", tmp_path / "new.txt", "--constants", "home")
    assert code == 2
    assert (
        "--constants home: 'home' is not an object of the training traces, whose objects are: c0, c1, c2, l0, l1, l2"
        in err
    )
    words = (tmp_path / "learned", tmp_path / "new.txt", "--constants", "none", "--json")
    found = json.loads(called(capsys, "check", *words)[1])
    assert "no constants" in found["assumed"]
    assert "'fly'" in found["verdicts"][2]["why"]
    (tmp_path / "short.txt").write_text("(board c0 l0)\n(sail l0 l1) (board l0)\n")
    code, out, err = called(capsys, "check", tmp_path / "learned", tmp_path / "short.txt")
    assert (code, out) == (2, "")
    assert "line 2: 'board l0' has 1 argument, but 'board' was learned with 2" in err
    if installed():
        words = ("plan", tmp_path / "learned", "--goal-possible", "board c9 l8", "--after", "board c9 l7")
        code, out, _ = called(capsys, *words)
        assert code == 0
        assert "certain: among schemas with predicates of at most 3 arguments, which are different arguments" in out


def test_questions_answers_and_a_simulator(capsys, tmp_path, monkeypatch):
    code, out, _ = called(
        capsys, "explore", "simple", "--steps", 9, "--max-length", 5, "--attempts", "--out", tmp_path / "t.csv"
    )
    assert code == 0
    assert out.startswith("9 steps, ")
    assert called(capsys, "learn", tmp_path / "t.csv", "--method", "exact", "--out", tmp_path / "m")[0] == 0
    asked = ("ask", tmp_path / "m", "--out", tmp_path / "q.jsonl", "--overwrite")
    code, out, _ = called(capsys, *asked, "--num", 2)
    assert (code, "there may be more" in out) == (0, True)
    assert (tmp_path / "q.jsonl").read_text().count('"label": null') == 2
    code, out, _ = called(capsys, *asked, "--num", 50, "--answered-by", "simple")
    assert (code, "; answer: " in out) == (0, True)
    words = ("learn", tmp_path / "t.csv", "--method", "exact", "--out", tmp_path / "n", "--overwrite")
    code, _, err = called(capsys, *words, "--answers", tmp_path / "q.jsonl")
    assert (code, "q.jsonl: " in err, " answers, " in err) == (0, True, True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "robot_of_test.py").write_text(
        "class Robot:\n    actions = ['go']\n    def reset(self): pass\n    def step(self, name): return True\n"
        "class Broken(Robot):\n    def step(self, name): return 1 / 0\n"
    )
    out = ("--out", tmp_path / "r.csv", "--overwrite")
    assert called(capsys, "explore", "--simulator", "robot_of_test:Robot", "--steps", 3, *out)[0] == 0
    for words in (
        ("explore", "--simulator", "robot_of_test:none", "--steps", 3, *out),
        ("explore", "--simulator", "robot_of_test:Broken", "--steps", 3, *out),
        ("explore", "--simulator", "decimal:localcontext", "--steps", 3, *out),
        ("explore", "simple", "--simulator", "robot_of_test:Robot", "--steps", 3, *out),
        ("explore", "--steps", 3, *out),
        ("ask", tmp_path / "none"),
        ("ask", tmp_path / "t.csv"),
        ("learn", tmp_path / "t.csv", "--answers", tmp_path, "--out", tmp_path / "o"),
        ("learn", tmp_path / "t.csv", "--answers", tmp_path / "t.csv", "--out", tmp_path / "o"),
        ("verify", tmp_path / "none.pddl", "--against", "simple"),
    ):
        code, _, err = called(capsys, *words)
        assert (code, "Traceback" in err) == (2, False), words
        assert "statewise: " in err or "usage" in err


def test_a_model_is_extracted_from_a_run(capsys, tmp_path):
    task = {"name": "strips_traces", "domain": "blocksworld:2", "max_length": 8, "held_out_traces": 5}
    backbone = {"name": "gpt", "width": 16, "layers": 1, "heads": 2}
    recipe = {"task": task, "backbone": backbone, "objective": "next_token"}
    keep_model(new_model(read_recipe(json.dumps(recipe))), tmp_path / "run", overwrite=False)
    words = ("extract", tmp_path / "run", "--questions", 60, "--out", tmp_path / "m")
    code, out, err = called(capsys, *words)
    assert (code, "questions in" in err) == (0, True)
    # an untrained model accepts everything, which is wrong: a trace shows it
    flat = " ".join(out.split())
    assert "without contradictions" in flat
    assert "truth different; the shortest trace that shows it: " in flat
    assert "The extracted model accepts the last action, wrongly; the sequence model accepts it" in flat
    report = json.loads((tmp_path / "m" / "report.json").read_text())["extracted"]
    assert (report["checkpoint"], report["share"], report["agreement"]["share"]) == (0, 0.1, 1.0)
    assert called(capsys, "verify", tmp_path / "m", "--against", "blocksworld:2")[0] == 1
    (tmp_path / "names.txt").write_text("pickup b1\nputdown b1\n")
    (tmp_path / "twice.txt").write_text("pickup b1\npickup  b1\n")
    (tmp_path / "unknown.txt").write_text("pickup b1\n\x1b[31mjump [/b] <b>\n")
    again = ("--overwrite", *words[1:])
    for more in (
        ("extract", *words[1:]),
        ("extract", *again, "--share", 2),
        ("extract", *again, "--share", "nan"),
        ("extract", *again, "--seconds", -1),
        ("extract", *again, "--seconds", "nan"),
        ("extract", *again, "--questions", 0),
        ("extract", *again, "--questions", "9" * 30),
        ("extract", *again, "--accept", "most"),
        ("extract", *again, "--actions", tmp_path),
        ("extract", *again, "--actions", tmp_path / "none.txt"),
        ("extract", *again, "--actions", tmp_path / "twice.txt"),
        ("extract", *again, "--actions", tmp_path / "unknown.txt"),
        ("extract", *again, "--against", "nowhere"),
        ("extract", *again, "--against", "gripper:1"),
        ("extract", *again, "--checkpoint", "7"),
        ("extract", tmp_path / "m", "--out", tmp_path / "o"),
        ("extract", tmp_path / "run", "--out", tmp_path / "run", "--overwrite"),
        ("extract", tmp_path / "run", "--out", tmp_path / "names.txt", "--overwrite"),
    ):
        code, _, err = called(capsys, *more)
        assert (code, "Traceback" in err, "statewise: " in err) == (2, False, True), (more, err)
        assert "questions in" not in err
    assert read_learned_model(tmp_path / "m").names == domain("blocksworld:2").model.names
