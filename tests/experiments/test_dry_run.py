"""What a run will need: parameters as the papers print them, and measurements against the whole thing."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch
from doubles import SMALL_RUN, small_corpus

from statewise.cli import main
from statewise.cli.dry_run import as_json, as_text, span
from statewise.config.recipes import recipe_names, recipe_text
from statewise.experiments import dry_run
from statewise.experiments.dry_run import count_parameters, make_plan, random_data, task_data
from statewise.model.building import make_objective
from statewise.model.recipes import read_recipe

SMALL = [
    *SMALL_RUN,
    "--trainer.batch_size=16",
    "--trainer.precision=fp32",
    "--trainer.threads=1",
    "--trainer.device=cpu",
]


def counted(name, *flags, vocabulary=1000, length=256):
    recipe = read_recipe(recipe_text(name), ["--trainer.batch_size=1", "--trainer.accumulate=1", *flags])
    with torch.device("meta"):
        return count_parameters(make_objective(recipe, random_data(recipe, vocabulary, length)))


def millions(counts, *without):
    return sum(count for name, count in counts.items() if name not in without) / 1e6


HEADS = ("head", "objective: head")
GPT = "--objective=next_token"
PATH_STAR = [name for name in recipe_names() if name.startswith("path-star-") and name.endswith("-fixed")]


@pytest.mark.parametrize(
    ("name", "flags", "vocabulary", "without", "published"),
    [
        # Teoh et al., fourth version: section 4.4, of all parameters
        ("fineweb-edu", [GPT], 50257, (), 1320),
        ("fineweb-edu", [], 50257, (), 1400),
        ("fineweb-edu", ["--objective.horizon=2"], 50257, (), 1400),
        ("fineweb-edu", ["--objective=joint_multi_token"], 50257, (), 1340),
        ("fineweb-edu", ["--objective=multi_token"], 50257, (), 1370),
        ("fineweb-edu", ["--objective=multi_token", "--objective.horizon=8"], 50257, (), 1720),
        # Table 3, TinyStories: one matrix of embedding and head counts, of the Belief State Transformer both encoders
        ("tinystories", [GPT], 1000, HEADS, 57),
        ("tinystories", [], 1000, HEADS, 114),
        ("tinystories", ["--objective=multi_token"], 1000, HEADS, 64),
        ("tinystories", ["--objective=multi_token", "--objective.horizon=8"], 1000, HEADS, 114),
        ("tinystories", ["--objective=joint_multi_token"], 1000, HEADS, 60),
        ("tinystories", ["--objective=next_latent", "--objective.dynamics_factor=1.333"], 1000, HEADS, 66),
        # Hu et al., section 4: the model that fills in the middle, without embeddings
        ("tinystories", [GPT, "--backbone.layers=12"], 1000, ("embeddings", "head"), 85),
        # Appendix of Teoh et al. on Manhattan, whose vocabulary it does not print: intersections, moves and marks
        ("manhattan", [GPT], 4600, (), 89),
        # Table 1 of the State-Prediction Separation paper
        *(
            (f"two-stream-{size}", ["--trainer.devices=1"], 50257, (), published)
            for size, published in {"xs": 53.0, "s": 130.7, "m": 378.7, "l": 831.3, "xl": 1678.1}.items()
        ),
    ],
)
def test_published_sizes(name, flags, vocabulary, without, published):
    found = millions(counted(name, *flags, vocabulary=vocabulary), *without)
    unit = 10 if published > 1000 and name == "fineweb-edu" else 1 if isinstance(published, int) else 0.1
    assert round(round(found / unit) * unit, 1) == published


@pytest.mark.parametrize("name", ["countdown", *PATH_STAR])
def test_sizes_that_the_paper_does_not_print_follow_from_its_shapes(name):
    width, vocabulary = (768 if name == "countdown" else 384), 104
    hidden = 128 * round(8 / 3 * width / 128)
    assert counted(name, vocabulary=vocabulary) == {
        "backbone, without embeddings": 12 * (4 * width**2 + 3 * width * hidden + 2 * width) + width,
        "embeddings": vocabulary * width,
        "head": vocabulary * width,
        "objective: dynamics": 2 * width + 2 * width * width + width * width + width * width,
    }


EVERY = [
    "next_token",
    "next_latent",
    "multi_token",
    "joint_multi_token",
    "belief_state",
    "teacherless",
    "token_order",
    "future_summary",
    "latent_multi_token",
    "semantic_tube",
]
BACKBONES = {
    "tied": ["--backbone.tied=true"],
    "untied": ["--backbone.tied=false"],
    "two_stream": ["--backbone=two_stream", "--backbone.vocabulary_multiple=16"],
    "recurrent": ["--backbone=recurrent", "--backbone.tied=true"],
    "belief_slots": ["--backbone=belief_slots"],
}


@pytest.mark.parametrize(
    ("objective", "backbone"),
    [
        (objective, backbone)
        for objective in EVERY
        for backbone in BACKBONES
        if backbone in ("tied", "untied") or objective in ("next_latent", "belief_state")
    ],
)
def test_every_parameter_is_counted_once(objective, backbone):
    flags = [*BACKBONES[backbone], f"--objective={objective}", "--backbone.width=16", "--backbone.layers=2"]
    recipe = read_recipe(recipe_text("path-star-demo"), flags)
    model = make_objective(recipe, random_data(recipe, 11, 200))
    counts = count_parameters(model)
    assert sum(counts.values()) == sum(parameter.numel() for parameter in model.parameters())
    assert bool(counts["head"]) == (backbone == "untied" and objective != "belief_state")
    extra = {"belief_state": 2, "teacherless": 1}.get(objective, 0)
    rows = 16 if backbone == "two_stream" else 11 + extra
    assert counts["embeddings"] == rows * 16


def test_a_state_carried_across_rows_is_measured(tmp_path):
    corpus = small_corpus(tmp_path, 40)
    flags = (
        f"--task.path={corpus.folder} --task.context=20 --backbone=belief_slots --backbone.chunk=8 --backbone.width=16 "
        "--backbone.heads=2 --backbone.layers=1 --backbone.across_rows=true --trainer.rows=consecutive "
        "--trainer.batch_size=4 --trainer.precision=fp32 --trainer.threads=1"
    ).split()
    recipe = read_recipe(recipe_text("text-small"), flags)
    plan = make_plan(recipe, task_data(recipe))
    assert plan.step_seconds is not None
    assert plan.step_seconds > 0


@pytest.fixture(scope="module")
def whole():
    recipe = read_recipe(recipe_text("path-star-demo"), [*SMALL, "--objective=next_latent", "--backbone.layers=6"])
    return recipe, make_plan(recipe, task_data(recipe))


def test_a_plan_is_of_the_steps_that_training_takes(whole):
    recipe, plan = whole
    from statewise.model.model import new_model
    from statewise.tasks.batches import Stream

    model = new_model(recipe)
    batch = Stream(model.task, seed=recipe.seed, batch_size=16).batch(0)
    assert plan.total == sum(parameter.numel() for parameter in model.objective.parameters())
    assert plan.tokens == int(batch.real.sum())
    assert plan.flops == model.objective.flops(batch)
    assert (plan.steps, plan.sequences, plan.part, plan.parts) == (recipe.trainer.steps, 16, 16, 1)
    assert not plan.by_layers
    assert plan.measured.optimizer_bytes == pytest.approx(8 * plan.total, rel=0.01)
    assert plan.step_seconds == plan.measured.pass_seconds + plan.measured.update_seconds > 0


def kept_by(recipe, rows):
    """Bytes of all tensors that autograd was handed for `rows` sequences, one entry a tensor's address."""
    data = task_data(recipe)
    objective = make_objective(recipe, data)
    weights = {weight.data_ptr() for weight in objective.parameters()}
    found = {}

    def pack(tensor):
        found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = objective(dry_run.first_rows(data.parts[0], rows)).value()
    assert loss.requires_grad
    return sum(size for address, size in found.items() if address not in weights)


@pytest.mark.parametrize("long_enough", [0.0, 100.0], ids=["from few", "from all"])
def test_what_is_kept_of_few_sequences_tells_of_many(monkeypatch, whole, long_enough):
    recipe, _ = whole
    monkeypatch.setattr(dry_run, "TOO_LONG", long_enough)
    monkeypatch.setattr(dry_run, "LONG_ENOUGH", 100.0)
    plan = make_plan(recipe, task_data(recipe))
    assert plan.measured.sequences == (16 if long_enough else 1)
    assert plan.measured.kept_bytes == pytest.approx(kept_by(recipe, 16), rel=0.02)


def test_a_model_that_does_not_fit_is_measured_with_fewer_layers(monkeypatch, whole):
    recipe, plan = whole
    monkeypatch.setattr(dry_run, "device_bytes", lambda device: int(1.9 * dry_run.STATE * plan.total))
    shallow = make_plan(recipe, task_data(recipe))
    assert shallow.by_layers
    assert shallow.parameters == plan.parameters
    assert shallow.measured.optimizer_bytes == pytest.approx(plan.measured.optimizer_bytes, rel=0.01)
    assert shallow.measured.kept_bytes == pytest.approx(plan.measured.kept_bytes, rel=0.05)
    assert "2 and 3 of its 6" in " ".join(as_text(shallow).split())
    monkeypatch.setattr(dry_run, "device_bytes", lambda device: 1000)
    nothing = make_plan(recipe, task_data(recipe))
    assert (nothing.measured, nothing.step_seconds) == (None, None)
    assert "not known" in as_text(nothing)
    unknown = json.loads(as_json(nothing))
    assert unknown["total_parameters"] == nothing.total
    assert [unknown[name] for name in ("seconds", "seconds_per_step", "sequences_measured")] == [None] * 3
    assert unknown["bytes"] == {
        "weights": 4 * nothing.total,
        "gradients": 4 * nothing.total,
        "optimiser": None,
        "activations": None,
    }


def test_the_table_fits_a_terminal_and_nothing_is_written(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ["--vocabulary", "300", "--length", "12", "--out", "runs/never"]
    small = ["--backbone.layers=1", "--backbone.width=32", "--trainer.batch_size=4", "--trainer.accumulate=2"]
    assert main(["train", "fineweb-edu", "--dry-run", *words, *small]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    wanted = {"sequences per step": 4, "tokens per step": 48, "embeddings": 300 * 32, "head": 300 * 32}
    for label, value in wanted.items():
        assert re.search(rf"^  {label} +{value:,}$", out, re.M), label
    assert not list(tmp_path.iterdir())


def test_it_says_that_training_compiles(whole):
    recipe, plan = whole
    assert "compile" not in as_text(plan)
    trainer = dataclasses.replace(recipe.trainer, compile=True)
    compiled = make_plan(dataclasses.replace(recipe, trainer=trainer), task_data(recipe))
    assert "Training compiles the model (trainer.compile): its steps take a different time" in " ".join(
        as_text(compiled).split()
    )


def test_as_json_it_says_the_same(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ["fineweb-edu", "--vocabulary", "300", "--length", "12", "--trainer.steps=7", "--trainer.tokens=null"]
    small = ["--backbone.layers=1", "--backbone.width=32", "--trainer.batch_size=4", "--trainer.accumulate=2"]
    assert main(["train", "--dry-run", "--json", *words, *small]) == 0
    found = json.loads(capsys.readouterr().out)
    counts = found["parameters"]
    assert found["total_parameters"] == sum(counts.values())
    assert counts["embeddings"] == counts["head"] == 300 * 32
    assert (found["steps"], found["sequences_per_step"], found["sequences_at_a_time"]) == (7, 4, 2)
    assert found["tokens_per_step"] == 48
    assert found["bytes"]["weights"] == found["bytes"]["gradients"] == 4 * sum(counts.values())
    assert found["bytes"]["optimiser"] == pytest.approx(8 * sum(counts.values()), rel=0.05)
    assert found["bytes"]["activations"] > 0
    assert found["sequences_measured"] == 2
    assert found["seconds"] == pytest.approx(7 * found["seconds_per_step"])
    assert found["estimated_from_fewer_layers"] is False
    assert not list(tmp_path.iterdir())


MISTAKES = [
    (["path-star-demo", "--json", "--out", "x"], "--json is for --dry-run"),
    (["manhattan", "--dry-run"], "--vocabulary N --length T"),
    (
        ["hmm-even", "--task.path=nosuch.json", "--dry-run"],
        "nosuch.json: No such file or directory. Without these data give --voc",
    ),
    (["hmm-even", f"--task.path={__file__}", "--dry-run"], "not JSON: Extra data at line 1, column 3\n"),
    (["hmm-even", "--task.process=mess3(2)", "--dry-run"], "x must be between 0 and 0.5, not 2.0\n"),
    (["path-star-demo", "--vocabulary", "5", "--length", "5", "--out", "x"], "give it with --dry-run"),
    (["path-star-demo", "--dry-run", "--vocabulary", "5"], "give both"),
    (["path-star-demo", "--dry-run", "--vocabulary", "1", "--length", "5"], "--vocabulary must be at least 2"),
    (["--resume", "runs/x", "--dry-run"], "continues a run unchanged"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=lambda value: " ".join(value)[:40])
def test_mistakes_get_a_sentence(capsys, monkeypatch, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
    assert not list(Path().iterdir())


def test_lengths_of_time_are_in_a_unit_that_reads_well():
    times = [0.0042, 1.5, 90, 200, 7300, 3 * 86400, 800 * 86400]
    assert [span(seconds) for seconds in times] == [
        *("4.2 ms", "1.5 s", "90.0 s", "3.3 minutes", "2.0 hours", "3.0 days", "2.2 years")
    ]


def test_lines_go_through_the_first_and_the_last_point():
    assert dry_run.grown([(1, 5.0), (2, 9.0), (3, 9.0)], 5) == 13.0
    assert dry_run.grown([(2, 5.0)], 6) == 15.0
    assert dry_run.grown([(1, 5.0), (3, 4.0)], 100) == 4.0  # noise
