"""Damaged files and command lines, made by chance from fixed seeds: each is refused in a sentence or does no harm.

A case changes one file of a small world of runs, corpora and models, asks a verb that reads it, and puts the file back.
"""

import contextlib
import copy
import hashlib
import io
import json
import math
import random
import re
import shutil

import pytest
import torch

from statewise.cli import main
from statewise.evaluation.judging.judgements import NEEDED
from statewise.experiments import seeds
from statewise.reporting.grouping import compare
from statewise.runtime.ledger import Ledger
from statewise.strips.model.learned import Learned, write_model
from statewise.strips.model.model import ActionModel
from statewise.strips.model.schemas import Schema

SMALL = [
    *("--backbone.width=8", "--backbone.heads=1", "--backbone.layers=1", "--trainer.steps=2", "--trainer.batch_size=2"),
    *("--trainer.device=cpu", "--trainer.warmup_steps=0", "--trainer.precision=fp32"),
]
VALUES = [None, [], {}, "x", "", -1, 1.5, math.inf, math.nan, 10**30, True, [[]], {"x": 1}, 0, "[/b]", "../x"]
CONTENTS = [b"", b"\n", b"[]", b"{}", b"null", b"NaN", b"\xff\xfe", b"{", b"[" * 100_000, b'"x"', b"0", b"\x00" * 40]
"""Of whole files."""


def run(*words):
    """Exit code of a command line and what it said on both streams."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(word) for word in words])
        except SystemExit as leave:  # help
            code = leave.code
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with one of everything that statewise reads."""
    pytest.importorskip("tokenizers")
    at = tmp_path_factory.mktemp("world")
    (at / "data.txt").write_text("".join(f"a b {c} {d}\n" for c in "cdefg" for d in "hijk"))
    (at / "text.txt").write_text(
        "\n".join(f"The cat number {n} sat on the mat and looked at the moon." for n in range(60))
    )

    def did(*words):
        code, _, said = run(*words)
        assert code == 0, said

    sequences = ["--task=sequences", f"--task.path={at / 'data.txt'}", *SMALL]
    did("train", "path-star-small", *sequences, "--out", at / "run")
    did("analyze", at / "run", "effective-rank")
    did(
        "train",
        "path-star-small",
        *sequences,
        "--backbone=belief_slots",
        "--backbone.chunk=2",
        "--backbone.slots=1",
        "--out",
        at / "slots",
    )
    did("generate", at / "slots", "--prompt", "a b", "--save-state", at / "kept.state", "--limit", 1)
    did(
        "data",
        "text",
        at / "text.txt",
        "--tokenizer",
        "bpe:280",
        "--held-out",
        0.1,
        "--documents",
        "line",
        "--out",
        at / "corpus",
    )
    did(
        "train",
        "path-star-small",
        "--task=text",
        f"--task.path={at / 'corpus'}",
        "--task.context=16",
        *SMALL,
        "--out",
        at / "text",
    )
    questions = [{"context": "The cat", "choices": ["sat", "moon"], "answer": 0}] * 2
    (at / "questions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in questions))
    did("data", "city", "--rows", 3, "--columns", 4, "--out", at / "city")
    did("strips", "traces", "simple", "--num", 8, "--max-length", 5, "--out", at / "traces.csv")
    did("strips", "learn", at / "traces.csv", "--restarts", 1, "--steps", 2, "--out", at / "learned")
    schema = Schema(frozenset({("p", (0,))}), frozenset(), frozenset({("p", (0,))}))
    write_model(at / "lifted", ActionModel.of(["p x"], {"go x": (["p x"], [], ["p x"])}), {}, schemas={"go": schema})
    with Ledger(at / "judged.jsonl", "judging", {"model": "m"}, NEEDED) as ledger:
        for repeat in (1, 2):
            ledger.add({"story": 1, "first": "a", "repeat": repeat, "verdict": "equal", "answer": "VERDICT: EQUAL"})
    group = at / "group"
    shutil.copytree(at / "run", group / "seed-1")
    shutil.copy(at / "run" / "config.json", group / "recipe.yaml")
    recipe = json.loads((group / "recipe.yaml").read_text())
    recipe.pop("format")
    (group / "recipe.yaml").write_text(json.dumps(recipe))  # JSON is YAML
    (group / "seeds.json").write_text('{"seeds": [1]}')
    return at


def library(ask):
    """Asks the library for what a verb would read, where the verb itself would draw pictures or start processes."""

    def asked(at):
        try:
            return 0, ask(at), ""
        except (ValueError, OSError) as error:
            return 2, "", f"statewise: {error}\n"

    return asked


GENERATE = lambda name: lambda at: run("generate", at / name, "--prompt", "a b")  # noqa: E731
COMPARED = library(lambda at: compare([at / "run"], metrics="all").as_text())
LEARNED = library(lambda at: Learned.load(at / "learned").model)
STEP = "checkpoints/step-00000002"


def judged(at):
    """What a judging goes on from."""
    with Ledger(at / "judged.jsonl", "judging", {"model": "m"}, NEEDED) as ledger:
        return ledger.records


CASES = 14
"""Of each file."""
TARGETS = {
    "run/config.json": GENERATE("run"),
    "run/environment.json": GENERATE("run"),
    "run/data.json": COMPARED,
    "run/task/sequences.json": GENERATE("run"),
    f"run/{STEP}/manifest.json": GENERATE("run"),
    "run/checkpoints/best.json": GENERATE("run"),
    "run/metrics.jsonl": COMPARED,
    "run/reports/evaluation.json": COMPARED,
    "run/reports/effective-rank.json": COMPARED,
    "group/seeds.json": library(lambda at: seeds.members(at / "group")),
    "group/recipe.yaml": lambda at: run("train", "--resume", at / "group"),
    "text/task/corpus.json": lambda at: run("score", at / "text", at / "questions.jsonl"),
    "text/task/tokenizer.json": lambda at: run("score", at / "text", at / "questions.jsonl"),
    "questions.jsonl": lambda at: run("score", at / "text", at / "questions.jsonl"),
    "corpus/index.json": lambda at: run("data", "check", at / "corpus"),
    "corpus/tokenizer.json": lambda at: run("data", "check", at / "corpus"),
    "learned/model.json": lambda at: run("strips", "verify", at / "learned", "--against", "simple"),
    "learned/report.json": LEARNED,
    "judged.jsonl": library(judged),
    "lifted/schemas.json": lambda at: run("strips", "verify", at / "lifted", "--against", at / "lifted"),
}


HARMLESS = {
    "judged.jsonl": (r"(?!title|model|first).+", "other judgements, whose number is counted later"),
    "run/config.json": (
        r"trainer(\..+)?|seed|(task|objective)\..+|backbone\.(?!width|layers).+",
        "a recipe may be edited: other valid values, or defaults for what is left out",
    ),
    "run/environment.json": (r"device_name|torch|python|steps|device|threads", "notes, or how a resumed run begins"),
    "run/data.json": (r"data|tokenizer", "other data, or none that are known"),
    "run/task/sequences.json": (r"sha256.*|context|symbols\[\d+\]|has_prompts", "the data; names of symbols"),
    f"run/{STEP}/manifest.json": (r"^$", ""),
    "run/checkpoints/best.json": (r"(?!step).+", "a note on why it is the best"),
    "run/metrics.jsonl": (r"(?!kind$|step$)\w+", "records of training are shown as they are, if they can be true"),
    "run/reports/evaluation.json": (
        r"(checkpoint|num|chance|verdict|samples|continuations|hardest|easiest|baselines|metrics\.|headline\.(?!metric)).*",
        "shown as it is, if it can be true",
    ),
    "run/reports/effective-rank.json": (
        r"checkpoint|main\[\d+\]|main|notes.*|details.*|drawings|metrics\..+|settings.*|"
        r"panels|panels\[0\]|panels\[0\]\.(title|[xy]_title|log_[xy]|shares|curves|curves\[0\].*)",
        "shown as it is, if it can be true, or an analysis of another checkpoint",
    ),
    "group/seeds.json": (r"seeds.*", "fewer seeds"),
    "group/recipe.yaml": (
        r"trainer(\..+)?|seed|(task|backbone|objective)\..+",
        "a recipe may be edited, and complete seeds do not read it",
    ),
    "text/task/corpus.json": (r"(?!tokenizer).*", "read where the corpus is asked for"),
    "questions.jsonl": (r"context|choices\[\d+\]|answer|text", "another question"),
    "corpus/index.json": (r"sources.*", "where the text lay"),
    "learned/model.json": (r"atoms(\[\d+\])?|actions\.\w+\.(pre|add|delete)(\[\d+\])?|actions\.\w+", "another model"),
    "learned/report.json": (r"(?!best_restart).*", "notes"),
    "lifted/schemas.json": (r"\w+(\.(pre|add|delete)(\[\d+\]){0,2})?", "other schemas"),
}
"""The keys of each file that may hold something else, and why."""
DROPPED = object()
"""In place of the value of a key that was left out."""
TRUE = {
    r"(.*\.)?(\w*_)?accuracy|(.*\.)?exact_match": lambda value: 0 <= value <= 1 or math.isnan(value),
    r"seconds|tokens": lambda value: 0 <= value < math.inf,
}
"""What a value that is shown must be, by key."""


def places(value, at=()):
    """Every place within a JSON value."""
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*at, key))


def changed(content, rng):
    """(bytes, key, value): a file's JSON, or one of its lines, with one place changed to `value` or `DROPPED`; or other
    bytes altogether, without a key."""
    if rng.random() < 0.25:
        if rng.random() < 0.4:
            return content[: rng.randrange(len(content.rstrip()))], None, None
        return rng.choice(CONTENTS), None, None
    lines = content.decode().splitlines()
    try:
        parts = [json.loads(content)]
    except ValueError:
        parts = [json.loads(line) for line in lines]
    number = rng.randrange(len(parts))
    value = copy.deepcopy(parts[number])
    place = rng.choice(list(places(value)))
    put, drop = rng.choice(VALUES), rng.random() < 0.3
    if not place:
        value = put
    else:
        inner = value
        for key in place[:-1]:
            inner = inner[key]
        if drop:
            del inner[place[-1]]
        else:
            inner[place[-1]] = put
    parts[number] = value
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
    return ("\n".join(map(json.dumps, parts)) + "\n").encode(), key, DROPPED if drop else put


WHOLE = {
    "run/metrics.jsonl": "its end may be torn, as a kill leaves it",
    "judged.jsonl": "the same, and an empty file is a new one",
}
"""The files of which more may be gone than one key, and why."""
NAMELESS = {
    "run/config.json": r"(task|backbone|objective)(\..*)?",  # another way to read what is asked of it
    "run/task/sequences.json": r"context|symbols.*",  # a model of another size, or for other sequences
    "run/checkpoints/best.json": r"step",  # a checkpoint that is not there
    "learned/model.json": r".*",  # another model, which does not go with the reference
}
"""What means something else, and is refused by whoever meets it later."""


def judge(target, content, key, value, outcome, path):
    """Raises `AssertionError` unless the answer is one that a person can use."""
    code, _, said = outcome
    assert code in (0, 1, 2, 3)
    if code == 2:
        assert said.startswith("statewise: ")
        assert len(said.strip().splitlines()) == 1, said
        nameless = key is not None and re.fullmatch(NAMELESS.get(target, "(?!)"), key)
        assert nameless or path.name in said or path.parent.name in said, said
        assert not re.match(r"statewise: (Expecting|Extra data|Invalid)", said), said
    elif key is None:
        assert target in WHOLE, content[:200]
    else:
        assert re.fullmatch(HARMLESS.get(target, ("(?!)", ""))[0], key), (key, content[:200])
        for shown, true in TRUE.items():
            if re.fullmatch(shown, key) and target.startswith("run/") and value is not DROPPED:
                assert true(value), (key, value)


@pytest.mark.parametrize("target", TARGETS)
def test_damaged_files_are_refused_or_harmless(world, target):
    path, ask = world / target, TARGETS[target]
    whole, rng = path.read_bytes(), random.Random(target)
    assert ask(world)[0] in (0, 1, 3), ask(world)
    for _ in range(CASES):
        content, key, value = changed(whole, rng)
        if content == whole:
            continue
        path.write_bytes(content)
        try:
            outcome = ask(world)
        except Exception as error:
            raise AssertionError(f"{target}, {key}: {content[:300]!r}: {type(error).__name__}: {error}") from error
        finally:
            path.write_bytes(whole)
        judge(target, content, key, value, outcome, path)


BINARY = {
    f"run/{STEP}/weights.safetensors": GENERATE("run"),
    "kept.state": lambda at: run("generate", at / "slots", "--state", at / "kept.state", "--prompt", "a", "--limit", 1),
    "corpus/training-00000.npy": lambda at: run("data", "check", at / "corpus"),
    "corpus/training-00000.ends.npy": lambda at: run("data", "check", at / "corpus"),
    "learned/theta.npz": LEARNED,
    "city/edges.csv": lambda at: run("rides", "map", "--map", at / "city", "--draw", 2, "--out", at / "drawn"),
    "city/nodes.csv": lambda at: run("rides", "map", "--map", at / "city", "--draw", 2, "--out", at / "drawn"),
    "traces.csv": lambda at: run("strips", "evaluate", at / "learned", "--traces", at / "traces.csv"),
}


@pytest.mark.parametrize("target", BINARY)
def test_other_files_cut_or_replaced_are_refused(world, target):
    path, ask = world / target, BINARY[target]
    whole, rng = path.read_bytes(), random.Random(target)
    cuts = [
        whole[: rng.randrange(1, len(whole) // 2)],
        whole[: len(whole) // 3] + b"\x00\xff\x00" + whole[len(whole) // 3 :],
    ]
    for content in (*cuts, *rng.sample(CONTENTS, 3)):
        path.write_bytes(content)
        try:
            code, _, said = ask(world)
        except Exception as error:
            raise AssertionError(f"{target}: {content[:100]!r}: {type(error).__name__}: {error}") from error
        finally:
            path.write_bytes(whole)
        if code != 2:  # a file of lines may end early, at a line's end or within its last word
            assert target.endswith(".csv"), (target, content[:100])
            continue
        assert path.name in said or path.parent.name in said, said


@pytest.mark.parametrize(
    "state",
    [
        [],
        {},
        {"optimizer": {}, "progress": {}},
        {"optimizer": [], "progress": {"step": 2}},
        None,
        b"",
        b"PK\x03\x04",
        {"optimizer": {"state": {}, "param_groups": []}, "progress": {"step": 2}},
        {"progress": {"step": 10**30}},
    ],
)
def test_a_training_state_of_anything_else_is_refused(world, tmp_path, state):
    said = resumed_with(unfinished(world, tmp_path), state)
    assert "training.pt" in said


def unfinished(world, tmp_path):
    """A copy of the run that is to be resumed from its last step."""
    folder = shutil.copytree(world / "run", tmp_path / "run")
    records = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(line for line in records if '"end"' not in line))
    (folder / "reports" / "evaluation.json").unlink()
    return folder


def resumed_with(folder, state):
    """The sentence that refuses a training state. The checksum of its checkpoint fits."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = state if isinstance(state, bytes) else buffer.getvalue()
    (folder / STEP / "training.pt").write_bytes(content)
    sums = json.loads((folder / STEP / "manifest.json").read_text())
    sums["training.pt"] = hashlib.sha256(content).hexdigest()
    (folder / STEP / "manifest.json").write_text(json.dumps(sums))
    code, _, said = run("train", "--resume", folder)
    assert code == 2
    assert len(said.strip().splitlines()) == 1, said
    return said


WEIGHT, NORM = "backbone.embedding.weight", "backbone.norm.weight"
WRONG_MOMENTS = [  # `None`: the key is dropped
    ({WEIGHT: None}, f"state of {WEIGHT} is missing"),
    (dict.fromkeys((WEIGHT, NORM), None), f"state of {WEIGHT} is missing"),
    ({f"{WEIGHT}.exp_avg": None}, r"\['exp_avg_sq', 'step'\], not \['exp_avg'"),
    ({f"{WEIGHT}.max_exp_avg_sq": torch.zeros(3)}, "'max_exp_avg_sq'"),
    ({f"{WEIGHT}.exp_avg": torch.zeros(3)}, r"float32 of shape \(3,\), not floats of shape \(\d+, 8\)"),
    ({f"{WEIGHT}.exp_avg_sq": torch.zeros(10**4, 8)}, r"float32 of shape \(10000, 8\)"),
    ({f"{NORM}.exp_avg": torch.zeros(8, dtype=torch.int32)}, r"int32 of shape \(8,\)"),
    ({f"{NORM}.exp_avg": "x"}, "is not a tensor"),
    ({f"{NORM}.step": torch.zeros(7)}, r"step of .* of shape \(7,\), not floats of shape \(\)"),
    ({NORM: []}, "training.pt does not fit"),
    ({"other": {}}, "training.pt does not fit"),
]
WRONG_PROGRESS = [
    *[{"tokens": value} for value in ("x", None, torch.zeros(3, 3), 1.5, -1)],
    *[{"seconds": value} for value in ("x", math.nan, -1.0)],
    *[{"best": value} for value in ("x", [1.0])],
    *[{"window": value} for value in ([], None, {"loss": "x"}, {"steps": -1.0})],
    *[{"step": 2.0}, {"best_step": None}, {"solved_in_a_row": True}, {"unknown": 1}],
]


def test_a_training_state_with_one_thing_wrong_is_refused(world, tmp_path):
    folder = unfinished(world, tmp_path)
    whole = torch.load(folder / STEP / "training.pt", weights_only=True)
    for change, message in WRONG_MOMENTS:
        state = copy.deepcopy(whole)
        for place, value in change.items():
            name, _, kind = place.rpartition(".") if place not in (WEIGHT, NORM, "other") else (place, "", "")
            owner, key = (state["optimizer"]["state"][name], kind) if kind else (state["optimizer"]["state"], name)
            if value is None:
                del owner[key]
            else:
                owner[key] = value
        assert re.search(message, resumed_with(folder, state)), change
    for change in WRONG_PROGRESS:
        state = copy.deepcopy(whole)
        state["progress"] |= change
        said = resumed_with(folder, state)
        assert "training.pt" in said
        assert next(iter(change)) in said


VERBS = """
list
evaluate {run}
generate {run} --prompt=a
train path-star-small --print_config
analyze {run} effective-rank
embed {run} {data} --out={out}/x.npy
data check {corpus}
strips show simple
strips evaluate {learned} --against=simple --walks=2
strips traces simple --num=2 --out={out}/t.csv
strips learn {data} --out={out}/l
strips export {learned} --lifted --problem-from={data} --out={out}/d.pddl
strips plan {learned} --goal-possible=a
score {text} {questions}
fill {run} --out={out}/f.jsonl
rides check {data} --map={city}
compare {missing} --out={out}/c
"""
WORDS = """
- -- -1 0 nan inf x [/b] 1e9 = --= --x --num=-1 --num=x --batch=0 --seed=-1 --limit=0 --checkpoint=x --checkpoint=-1
--checkpoint=99 --device=x --trainer.steps=x --task=x --task.x=1 --json=1 --data={run} --data={missing} --out= --prompt=
--goal=a --decoder=x --decoder=beam --beams=0 --temperature=0 --positions=x --sequences=0 --trainer.learning_rate=-1
--trainer.betas=[1] --trainer.betas=[2,3] --seed=[1] --trainer=5 --objective.horizon=0 --backbone.width=7 --trace=z
--against=x:y --max-length=0
"""


@pytest.mark.parametrize("seed", range(4))
def test_mutated_command_lines_end_in_a_sentence(world, tmp_path, seed):
    rng = random.Random(seed)
    names = {
        "run": world / "run",
        "data": world / "data.txt",
        "out": tmp_path,
        "corpus": world / "corpus",
        "learned": world / "learned",
        "text": world / "text",
        "questions": world / "questions.jsonl",
        "city": world / "city",
        "missing": tmp_path / "missing",
    }
    for _ in range(40):
        words = rng.choice(VERBS.strip().splitlines()).split()
        for _ in range(rng.randint(1, 2)):
            place, kind = rng.randrange(len(words)), rng.random()
            if kind < 0.5:
                words.append(rng.choice([*WORDS.split(), "", "\x00"]))
            elif kind < 0.8:
                words[place] = rng.choice([*WORDS.split(), "", "\x00"])
            else:
                del words[place]
                words = words or ["x"]
        words = [re.sub(r"\{(\w+)\}", lambda found: str(names[found[1]]), word) for word in words]
        try:
            code, _, said = run(*words)
        except Exception as error:
            raise AssertionError(f"{words}: {type(error).__name__}: {error}") from error
        assert code in (0, 1, 2, 3), words
        assert "Traceback" not in said
        if code == 2 and words[0] in ("evaluate", "generate", "embed", "score"):
            assert said.strip(), words


@pytest.mark.parametrize("value", [math.nan, -7, 1.5, math.inf])
@pytest.mark.parametrize("of", ["metrics", "chance", "baselines"])
def test_no_accuracy_that_cannot_be_is_compared(world, value, of):
    path = world / "run/reports/evaluation.json"
    whole = path.read_bytes()
    report = json.loads(whole)
    report["metrics"]["token_accuracy"] = 0.5
    part = report["baselines"]["bigram"] if of == "baselines" else report[of]
    part["token_accuracy"] = value
    report["headline"]["metric"] = "token_accuracy"
    path.write_text(json.dumps(report))
    try:
        code, _, said = COMPARED(world)
    finally:
        path.write_bytes(whole)
    if math.isnan(value) and of != "metrics":  # of none; shown as a dash
        assert code == 0
        return
    assert code == 2
    assert "token_accuracy must be a" in said
    assert str(path) in said


def test_extract_refuses_what_it_cannot_ask(world, tmp_path):
    """Bad folders, damaged runs, and logs of one's own with wrong names of actions."""
    out = tmp_path / "out"
    symbols = json.loads((world / "run/task/sequences.json").read_text())["symbols"]
    assert run("strips", "extract", world / "run", "--questions", 3, "--seconds", 1, "--out", out)[0] == 0
    (tmp_path / "empty").mkdir()
    damaged = shutil.copytree(world / "run", tmp_path / "damaged")
    (damaged / "config.json").write_text('{"task": [], "backbone": null}')
    cut = shutil.copytree(world / "run", tmp_path / "cut")
    weights = cut / STEP / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    taken = tmp_path / "taken"
    taken.write_text("mine")
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "mine.txt").write_text("mine")
    cases = [
        [each] for each in (tmp_path / "missing", tmp_path / "empty", world / "data.txt", world / "learned", damaged)
    ]
    cases += [[each] for each in (cut, world / "text", world / "corpus", "", "[/b]", "\x00")]
    own = [world / "run"]
    cases += [[*own, "--actions", each] for each in (tmp_path / "missing", tmp_path, weights, taken, "")]
    cases += [[*own, option] for option in ("--share=nan", "--share=-1", "--share=inf", "--seconds=0", "--questions=0")]
    cases += [
        [*own, option] for option in ("--seed=-1", "--accept=x", "--checkpoint=99", "--checkpoint=x", "--device=x")
    ]
    cases += [[*own, "--against", each] for each in ("x:y", "blocksworld:1e9", tmp_path / "missing", world / "run")]
    for number, content in enumerate(
        ("", "\n\n", f"{symbols[0]}\n{symbols[0]}\n", "[/b]\n", "\ud800".encode("utf-8", "surrogatepass"))
    ):
        path = tmp_path / f"names-{number}.txt"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        cases.append([*own, "--actions", path])
    cases = [(words, tmp_path / f"out-{number}") for number, words in enumerate(cases)]
    for words, place in [*cases, (own, taken), (own, kept), (own, out)]:
        limits = [] if any(str(word).startswith(("--questions", "--seconds")) for word in words) else ["--questions", 3]
        try:
            code, _, said = run("strips", "extract", *words, *limits, "--out", place)
        except Exception as error:
            raise AssertionError(f"{words}: {type(error).__name__}: {error}") from error
        assert code == 2, (words, code, said)
        assert said.strip(), words
        assert "Traceback" not in said, words
    assert taken.read_text() == (kept / "mine.txt").read_text() == "mine"
