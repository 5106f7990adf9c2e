"""The loop: exact means, exact continuation, and what it refuses."""

import contextlib
import dataclasses
import importlib.util
import itertools
import json
import os
import shutil
import signal
import threading
from typing import NamedTuple

import pytest
import torch
from doubles import SMALL_RUN, PhasedGPT
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

import statewise
from statewise.backbones import BACKBONES
from statewise.backbones.gpt import GPTConfig
from statewise.config.recipes import recipe_text
from statewise.data_types import NotFinite
from statewise.evaluation.evaluate import evaluate
from statewise.experiments.launch import Listener, resume, train
from statewise.experiments.progress import record_line, total_steps
from statewise.model.model import load_model, new_model
from statewise.model.recipes import read_recipe
from statewise.objectives import OBJECTIVES
from statewise.objectives.base import Objective
from statewise.objectives.next_latent import NextLatent
from statewise.run import Run
from statewise.tasks.batches import Stream
from statewise.training.one_device import OneDevice
from statewise.training.trainer import Trainer, prefetch

TINY = [
    *SMALL_RUN,
    "--task.held_out_graphs=50",
    "--trainer.log_every=4",
    "--trainer.evaluate_every=10",
    "--trainer.evaluate_num=20",
    "--trainer.checkpoint_every=5",
    "--trainer.precision=fp32",
    "--trainer.steps=20",
    "--trainer.warmup_steps=2",
]


def tiny(*flags):
    return read_recipe(recipe_text("path-star-small"), [*TINY, *flags])


def weights(folder, step=20):
    return load_file(folder / "checkpoints" / f"step-{step:08d}" / "weights.safetensors")


def assert_same(one, two):
    assert set(one) == set(two)
    for name, tensor in one.items():
        assert torch.equal(tensor, two[name]), name


def numbers(folder):
    """The run's metrics without what a clock says."""
    return [
        {key: value for key, value in record.items() if key not in ("seconds", "tokens_per_second", "flops_per_second")}
        for record in Run(folder).metrics()
    ]


def test_a_run_holds_what_it_promises(tmp_path):
    seen = []
    outcome = train(tiny(), tmp_path / "run", listener=Listener(record=seen.append))
    run = Run.open(tmp_path / "run")
    assert (outcome.step, outcome.reason) == (20, "steps")
    assert run.metrics() == seen
    assert [record["step"] for record in seen if record["kind"] == "train"] == [4, 8, 12, 16, 20]
    assert [record["step"] for record in seen if record["kind"] == "evaluation"] == [10, 20]
    assert run.checkpoints()[-1].step == 20
    assert run.report("evaluation")["num"] == 50
    assert run.environment()["precision"] == "fp32"
    assert load_model(tmp_path / "run").evaluate(20).num == 20


def test_it_is_told_that_the_rate_will_only_rise(tmp_path):
    notes = []
    train(tiny("--trainer.steps=2"), tmp_path / "run", listener=Listener(note=notes.append))
    assert len(notes) == 1
    assert notes[0].startswith("the warm-up of 2 steps")


def test_the_same_seed_is_the_same_run(tmp_path):
    for name in ("a", "b"):
        train(tiny(), tmp_path / name)
    train(tiny("--seed=2"), tmp_path / "c")
    assert_same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert numbers(tmp_path / "a") == numbers(tmp_path / "b")
    assert numbers(tmp_path / "a") != numbers(tmp_path / "c")


class Stop(Exception):
    """Stands for a machine that goes away."""


def stop_at(step):
    def check(now):
        if now == step:
            raise Stop

    return Listener(step=check)


@pytest.fixture(scope="module")
def uncut(made_once):
    """The folder of a run that nothing cut off, trained once; tests share it."""
    return lambda *flags: made_once("uncut", lambda folder: train(tiny(*flags), folder), *TINY, *flags)


PLAIN = ()
DROPOUT = ("--task.training_graphs=50", "--backbone.dropout=0.2", "--objective=next_latent")
DECAYED = ("--objective=next_latent", "--objective.horizon=2", "--trainer.auxiliary_decay_share=0.5")
MUON = ("--trainer.optimizer=muon", "--trainer.precision=bf16", "--objective=next_latent", "--backbone.init=fan_in")


@pytest.mark.parametrize(
    ("flags", "step"),
    [
        *(pytest.param(PLAIN, step, id=f"fresh graphs, {step}") for step in (3, 7, 10, 19)),
        *(pytest.param(DROPOUT, step, id=f"middle of an epoch, with dropout, {step}") for step in (7, 19)),
        pytest.param(DECAYED, 13, id="within the decay of other losses"),
        *(pytest.param(MUON, step, id=f"muon in bf16, {step}") for step in (3, 10, 19)),
    ],
)
def test_a_run_that_was_cut_off_goes_on_bit_for_bit(tmp_path, uncut, step, flags):
    whole = uncut(*flags)
    with pytest.raises(Stop):
        train(tiny(*flags), tmp_path / "cut", listener=stop_at(step))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]
    resume(tmp_path / "cut")
    assert_same(weights(tmp_path / "cut"), weights(whole))
    states = [
        torch.load(folder / "checkpoints/step-00000020/training.pt", weights_only=True)["optimizer"]
        for folder in (tmp_path / "cut", whole)
    ]
    for moments, others in zip(states[0]["state"].values(), states[1]["state"].values()):
        assert_same(moments, others)
    assert numbers(tmp_path / "cut") == numbers(whole)
    assert resume(tmp_path / "cut") is None  # complete


def test_decayed_weights_are_those_of_an_objective_that_changes_them_itself(tmp_path, uncut, monkeypatch):
    told = NextLatent.set_progress

    def change(objective, fraction):
        told(objective, fraction)
        weight = min(10, 20 - round(20 * fraction)) / 10
        objective.config = dataclasses.replace(objective.config, latent_weight=weight, kl_weight=weight)

    whole = uncut(*DECAYED)
    monkeypatch.setattr(NextLatent, "set_progress", change)
    train(tiny(*DECAYED[:2]), tmp_path / "twin")
    assert_same(weights(whole), weights(tmp_path / "twin"))
    logged = [record for record in numbers(whole) if record["kind"] == "train"]
    assert [record.pop("auxiliary_factor") for record in logged] == [1.0, 1.0, 0.9, 0.5, 0.1]
    for record, other in zip(logged, (each for each in numbers(tmp_path / "twin") if each["kind"] == "train")):
        assert record == pytest.approx(other)


@given(
    st.fixed_dictionaries(
        {
            "log_every": st.integers(1, 9),
            "evaluate_every": st.integers(0, 9),
            "checkpoint_every": st.integers(1, 9),
            "keep": st.sampled_from(["null", "3", "0,2,7", "every:4", "0,log:5"]),
            "schedule": st.sampled_from(["linear", "cosine"]),
            "accumulate": st.sampled_from([1, 2]),
        }
    ),
    st.lists(st.integers(1, 12), min_size=1, max_size=3),
    st.sampled_from([(), ("--task.training_graphs=37",)]),
)
@settings(max_examples=8, deadline=None)
def test_whatever_the_rhythm_and_the_cuts_the_run_is_the_same(tmp_path_factory, fields, cuts, flags):
    folder = tmp_path_factory.mktemp("runs")
    recipe = tiny("--trainer.steps=12", *flags, *(f"--trainer.{name}={value}" for name, value in fields.items()))
    train(recipe, folder / "whole")
    with contextlib.suppress(Stop):
        train(recipe, folder / "cut", listener=stop_at(cuts[0]))
    for cut in cuts[1:]:
        with contextlib.suppress(Stop):
            resume(folder / "cut", listener=stop_at(cut))
    resume(folder / "cut")
    assert Run(folder / "cut").best_step() == Run(folder / "whole").best_step()
    assert_same(weights(folder / "cut", 12), weights(folder / "whole", 12))
    assert numbers(folder / "cut") == numbers(folder / "whole")


def test_the_optimiser_and_its_state_follow_parameters_that_are_replaced_on_their_way_to_the_device(
    tmp_path, monkeypatch
):
    """Float64 stands for the device: the state must arrive where the new parameters are."""
    setup = OneDevice.setup_module

    def replacing(self, module, *arguments, **options):
        for part in module.modules():
            for name, parameter in part.named_parameters(recurse=False):
                setattr(part, name, torch.nn.Parameter(parameter.detach().double()))
        return setup(self, module, *arguments, **options)

    monkeypatch.setattr(OneDevice, "setup_module", replacing)
    recipe = tiny()
    train(recipe, tmp_path / "whole")
    with pytest.raises(Stop):
        train(recipe, tmp_path / "cut", listener=stop_at(13))
    resume(tmp_path / "cut")
    assert not torch.equal(*(next(iter(weights(tmp_path / "whole", step).values())) for step in (15, 20)))
    assert_same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    state = torch.load(tmp_path / "cut/checkpoints/step-00000020/training.pt", weights_only=True)["optimizer"]["state"]
    assert {moments["exp_avg"].dtype for moments in state.values()} == {torch.float64}


def test_checkpoints_are_kept_by_schedule_and_found_again(tmp_path):
    recipe = tiny("--trainer.keep=0,3,log:3,400", "--trainer.checkpoint_every=7", "--trainer.evaluate_every=0")
    notes = []
    train(recipe, tmp_path / "whole", listener=Listener(note=notes.append))
    assert "trainer.keep names steps after the last, 20: 400 will not be reached" in notes
    kept = [0, 1, 3, 4]  # log:3 of 20 steps: 1, 4 and 20
    run = Run(tmp_path / "whole")
    assert [found.step for found in run.checkpoints()] == [*kept, 14, 20]
    with pytest.raises(Stop):
        train(recipe, tmp_path / "cut", listener=stop_at(2))
    resume(tmp_path / "cut", checkpoint="0")
    assert_same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    for name, tensor in new_model(recipe).objective.state_dict().items():  # step 0: the model as it was drawn
        assert torch.equal(tensor, weights(tmp_path / "whole", 0)[name])


def test_batches_are_drawn_once_each_and_in_the_background(tmp_path, monkeypatch):
    drawn, batches = [], Stream.batches

    def noted(self, number, parts):
        drawn.append((number, threading.current_thread().name))
        return batches(self, number, parts)

    model = tiny()
    monkeypatch.setattr(Stream, "batches", noted)
    seen = []
    train(model, tmp_path / "run", listener=Listener(step=lambda step: seen.append(len(drawn))))
    assert [number for number, name in drawn if name != "MainThread"] == list(range(20))
    assert [number for number, name in drawn if name == "MainThread"] == [0]  # the look at the data before training
    assert all(many - 1 <= step + 2 for step, many in enumerate(seen, 1))


def test_accumulated_parts_give_the_gradient_of_the_whole(tmp_path):
    whole = ("--objective=next_latent", "--objective.horizon=3", "--trainer.evaluate_every=0")
    train(tiny(*whole), tmp_path / "one")
    train(tiny(*whole, "--trainer.accumulate=4"), tmp_path / "four")
    for one, four in zip(numbers(tmp_path / "one"), numbers(tmp_path / "four")):
        assert one.keys() == four.keys()
        if one["kind"] == "train":
            assert {**one, "kind": 0} == pytest.approx({**four, "kind": 0}, rel=1e-4, abs=1e-6)


def scripted(monkeypatch, values):
    """Evaluations during training, not the one for the report, find these path accuracies, one after another."""
    left = iter(values)

    def evaluated(*given, details, **options):
        found = evaluate(*given, details=details, **options)
        if not details:
            found.metrics["path_accuracy"] = next(left)
        return found

    monkeypatch.setattr("statewise.experiments.launch.evaluate", evaluated)


def test_it_stops_when_solved_and_keeps_the_best(tmp_path, monkeypatch):
    scripted(monkeypatch, [0.2, 0.995, 0.9, 0.995, 0.992, 1.0])
    outcome = train(tiny("--trainer.steps=40", "--trainer.evaluate_every=5"), tmp_path / "run")
    assert (outcome.step, outcome.reason) == (25, "solved")  # the first was followed by one that was not
    assert Run(tmp_path / "run").best_step() == 20
    assert resume(tmp_path / "run") is None


def test_a_loss_that_is_not_finite_stops_before_anything_bad_is_saved(tmp_path):
    calls = 0
    from statewise.losses import vocabulary_head

    original = vocabulary_head.head_loss

    def breaking(*given, **settings):
        nonlocal calls
        calls += torch.is_grad_enabled()
        return original(*given, **settings) * (float("nan") if calls == 13 else 1.0)

    vocabulary_head.head_loss = breaking
    try:
        with pytest.raises(
            NotFinite, match=r"step 13: .*next_token.* is nan; .*the last checkpoint is that of step 10"
        ):
            train(tiny(), tmp_path / "run")
    finally:
        vocabulary_head.head_loss = original
    run = Run.open(tmp_path / "run")
    assert run.end()["reason"] == "not finite"
    assert [found.step for found in run.checkpoints()] == [5, 10]
    assert all(torch.isfinite(tensor).all() for tensor in weights(tmp_path / "run", 10).values())
    assert resume(tmp_path / "run").reason == "steps"


def test_a_loss_that_is_not_finite_at_once_is_not_put_down_to_the_learning_rate(tmp_path, monkeypatch):
    from statewise.losses import vocabulary_head

    original = vocabulary_head.head_loss
    monkeypatch.setattr(
        vocabulary_head, "head_loss", lambda *given, **settings: original(*given, **settings) * float("nan")
    )
    with pytest.raises(NotFinite, match=r"step 1: .*no checkpoint yet\. No step had been made: the loss"):
        train(tiny(), tmp_path / "run")


def test_weights_that_are_not_finite_after_the_first_step_may_be_of_the_learning_rate(tmp_path, monkeypatch):
    model = new_model(tiny("--trainer.checkpoint_every=1", "--trainer.evaluate_every=1"))
    monkeypatch.setattr("statewise.experiments.launch.make_objective", lambda recipe, task: model.objective)
    monkeypatch.setattr("statewise.experiments.launch.evaluate", lambda *_, **__: Evaluated({"path_accuracy": 0.5}))
    breaking = Listener(step=lambda step: next(model.objective.parameters()).data.fill_(float("inf")))
    with pytest.raises(NotFinite, match=r"step 1: the weights \S+ are not finite; .* Try a lower learning rate"):
        train(model.recipe, tmp_path / "run", listener=breaking)


def test_weights_that_are_not_finite_are_never_saved(tmp_path, monkeypatch):
    model = new_model(tiny())
    monkeypatch.setattr("statewise.experiments.launch.make_objective", lambda recipe, task: model.objective)

    def break_one(step):
        if step == 10:
            next(model.objective.parameters()).data[0] = float("inf")

    monkeypatch.setattr("statewise.experiments.launch.evaluate", lambda *_, **__: Evaluated({"path_accuracy": 0.5}))
    with pytest.raises(NotFinite, match=r"step 10: the weights \S+ are not finite; .*the last .* that of step 5"):
        train(model.recipe, tmp_path / "run", listener=Listener(step=break_one))
    run = Run.open(tmp_path / "run")
    assert run.end()["reason"] == "not finite"
    assert [found.step for found in run.checkpoints()] == [5]
    monkeypatch.undo()
    assert resume(tmp_path / "run").reason == "steps"


class Evaluated(NamedTuple):
    """Stands for an evaluation."""

    metrics: dict[str, float]


def test_an_evaluation_that_comes_to_nothing_is_neither_the_best_nor_solved(tmp_path, monkeypatch):
    values = iter([0.5, float("nan"), 0.4, 0.3])
    monkeypatch.setattr(
        "statewise.experiments.launch.evaluate",
        lambda *_, **__: Evaluated({"path_accuracy": next(values), "loss": 1.0}),
    )
    with pytest.raises(NotFinite, match=r"step 10: the metric 'path_accuracy' is nan; .*the last .* that of step 5"):
        train(tiny("--trainer.evaluate_every=5", "--trainer.stop_when_solved=true"), tmp_path / "run")
    run = Run(tmp_path / "run")
    assert (run.best_step(), [found.step for found in run.checkpoints()]) == (5, [5])
    assert run.end()["part"] == "path_accuracy"


def test_a_signal_in_the_last_evaluation_leaves_the_rest_to_resuming(tmp_path):
    def interrupt(record):
        if (record["kind"], record["step"]) == ("evaluation", 20):
            os.kill(os.getpid(), signal.SIGTERM)

    outcome = train(tiny(), tmp_path / "run", listener=Listener(record=interrupt))
    assert (outcome.step, outcome.reason, outcome.signal) == (20, "signal", signal.SIGTERM)
    run = Run(tmp_path / "run")
    assert run.checkpoints()[-1].step == 20
    assert (run.end(), run.report("evaluation")) == (None, None)
    assert resume(tmp_path / "run").reason == "steps"
    assert run.complete()


def test_a_damaged_newest_checkpoint_can_be_stepped_over(tmp_path, uncut):
    whole = uncut()
    with pytest.raises(Stop):
        train(tiny(), tmp_path / "cut", listener=stop_at(17))
    newest = tmp_path / "cut" / "checkpoints" / "step-00000015" / "training.pt"
    newest.write_bytes(newest.read_bytes()[:100])
    with pytest.raises(ValueError, match="add `checkpoint` 10"):
        resume(tmp_path / "cut")
    resume(tmp_path / "cut", checkpoint="10")
    for found in Run(tmp_path / "cut").checkpoints():
        found.verify()
    assert Run(tmp_path / "cut").best_step() == Run(whole).best_step()
    assert_same(weights(tmp_path / "cut"), weights(whole))
    assert numbers(tmp_path / "cut") == numbers(whole)


def test_mistakes_are_found_before_a_directory_is_made(tmp_path):
    with pytest.raises(ValueError, match="No such file"):
        train(tiny(f"--task.held_out_file={tmp_path / 'none.txt'}"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="there is no device 'cuda' here"):
            train(tiny("--trainer.device=cuda"), tmp_path / "run")
    for objective, lack in (("next_token", "has no loss but that"), ("belief_state", "computes the gradients")):
        with pytest.raises(ValueError, match=f"auxiliary_decay_share: the objective {objective} {lack}"):
            train(tiny("--trainer.auxiliary_decay_share=0.5", f"--objective={objective}"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_of_a_device_that_is_not_here_is_continued_on_another(tmp_path, uncut):
    whole = uncut()
    with pytest.raises(Stop):
        train(tiny(), tmp_path / "cut", listener=stop_at(17))
    path = tmp_path / "cut" / "environment.json"
    path.write_text(path.read_text().replace('"device": "cpu"', '"device": "xpu"'))
    with pytest.raises(ValueError, match=r"no device 'xpu' here: .*give --trainer.device cpu to continue the run"):
        resume(tmp_path / "cut")
    with pytest.raises(ValueError, match=r"no device 'mps' here: .*give --trainer.device cpu to continue the run"):
        resume(tmp_path / "cut", flags=["--trainer.device=mps"])
    config = tmp_path / "cut" / "config.json"
    config.write_text(config.read_text().replace('"device": "auto"', '"device": "xpu"'))  # as --trainer.device gives it
    with pytest.raises(ValueError, match=r"no device 'xpu' here: .*give --trainer.device cpu to continue the run"):
        resume(tmp_path / "cut")
    resume(tmp_path / "cut", flags=["--trainer.device=cpu"])
    assert_same(weights(tmp_path / "cut"), weights(whole))
    assert numbers(tmp_path / "cut") == numbers(whole)


@pytest.mark.slow
def test_a_compiled_model_trains_to_the_same_losses(tmp_path):
    train(tiny("--objective=next_latent"), tmp_path / "plain")
    train(tiny("--objective=next_latent", "--trainer.compile=true"), tmp_path / "compiled")
    plain, compiled = (
        [record["loss"] for record in numbers(tmp_path / name) if record["kind"] == "train"]
        for name in ("plain", "compiled")
    )
    assert plain
    assert plain == pytest.approx(compiled, rel=1e-3)


def test_tensorboard_gets_every_number_or_says_what_is_missing(tmp_path):
    if importlib.util.find_spec("tensorboard") is None:
        with pytest.raises(ValueError, match="extra `track`"):
            train(tiny("--trainer.tensorboard=true"), tmp_path / "run")
        assert not (tmp_path / "run").exists()
    else:
        train(tiny("--trainer.tensorboard=true"), tmp_path / "run")
        assert list((tmp_path / "run" / "tensorboard").glob("events*"))


@pytest.fixture
def phased(monkeypatch):
    """The backbone `phased` in the table; what it is told, in turn."""
    monkeypatch.setitem(BACKBONES.rows, "phased", ("doubles:PhasedGPT", "for this test"))
    monkeypatch.setattr(PhasedGPT, "told", [])
    return PhasedGPT.told


def test_backbones_are_told_the_share_of_training_before_every_step_and_after_resuming(tmp_path, phased):
    recipe = tiny("--backbone=phased", "--backbone.width=16", "--backbone.heads=2", "--backbone.layers=1")
    train(recipe, tmp_path / "whole")
    assert phased == [step / 20 for step in range(20)]
    phased.clear()
    with pytest.raises(Stop):
        train(recipe, tmp_path / "cut", listener=stop_at(13))
    phased.clear()
    resume(tmp_path / "cut")
    assert phased == [step / 20 for step in range(10, 20)]
    assert_same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    late = [load_model(tmp_path / "whole", which).objective.backbone.late.item() for which in ("10", "last")]
    assert late == [0.0, 1.0]  # a buffer: what inference must know stays with the weights


def test_every_backbone_of_an_objective_is_told(phased):
    objective = OBJECTIVES["belief_state"]
    both = objective(
        objective.Config(),
        lambda extra_tokens=0, embedding_of=None, **fields: PhasedGPT(
            GPTConfig(16, 2, 1, **fields), vocabulary=9 + extra_tokens, context=8, embedding_of=embedding_of
        ),
    )
    both.set_progress(0.25)
    assert phased == [0.25, 0.25]


def test_a_budget_of_tokens_is_trained_in_whole_steps(tmp_path):
    shown = []
    context = new_model(tiny()).task.context
    recipe = tiny()
    budget = dataclasses.replace(recipe.trainer, tokens=str(12 * 8 * context - 1), warmup_tokens=2 * 8 * context)
    outcome = train(
        dataclasses.replace(recipe, trainer=budget),
        tmp_path / "tokens",
        listener=Listener(begin=lambda run, recipe, step: shown.append(total_steps(run, recipe.as_dict()))),
    )
    train(tiny("--trainer.steps=12"), tmp_path / "steps")
    assert outcome.step == 12
    assert shown == [12]
    assert numbers(tmp_path / "tokens") == numbers(tmp_path / "steps")
    with pytest.raises(Stop):
        train(dataclasses.replace(recipe, trainer=budget), tmp_path / "cut", listener=stop_at(7))
    resume(tmp_path / "cut")
    assert_same(weights(tmp_path / "cut", 12), weights(tmp_path / "steps", 12))


@pytest.mark.parametrize("objective", [*OBJECTIVES, "one that cannot say"])
def test_the_pace_in_arithmetic_is_recorded_where_the_objective_can_say_its_cost(tmp_path, monkeypatch, objective):
    known = objective in OBJECTIVES
    if not known:
        objective = "multi_token"
        monkeypatch.setattr(OBJECTIVES[objective], "flops", Objective.flops)
    steps = ["--trainer.steps=4", "--trainer.log_every=2", "--trainer.evaluate_every=0"]
    assert train(tiny(f"--objective={objective}", *steps), tmp_path / "run").step == 4
    records = [record for record in Run(tmp_path / "run").metrics() if record["kind"] == "train"]
    assert len(records) == 2
    for record in records:
        assert ("flops_per_second" in record) == known
        assert "flops" not in record
        assert "mfu" not in record  # of a processor nobody knows the peak


def test_operations_are_those_of_the_step_although_batches_are_drawn_ahead(tmp_path, monkeypatch):
    counted, log = [], Trainer._log

    def noted(self):
        counted.append(self.progress.window["flops"])
        log(self)

    monkeypatch.setattr(Trainer, "_log", noted)
    backbone = ["--backbone=two_stream", "--backbone.window=2", "--backbone.separate_from=0.5"]
    trainer = ["--trainer.steps=4", "--trainer.log_every=1", "--trainer.evaluate_every=0"]
    train(tiny(*backbone, *trainer), tmp_path / "run")
    young, _, grown, _ = counted
    assert counted == [young, young, grown, grown]
    assert grown > young


def test_use_of_the_device_is_the_share_of_its_peak(tmp_path, monkeypatch):
    monkeypatch.setattr("statewise.experiments.launch.peak_flops", lambda name, precision: 1e12)
    train(tiny(), tmp_path / "run")
    records = [record for record in Run(tmp_path / "run").metrics() if record["kind"] == "train"]
    assert len(records) == 5
    for record in records:
        assert record["mfu"] == pytest.approx(record["flops_per_second"] / 1e12)
        assert f"tokens/s  MFU {record['mfu']:.1%}  " in record_line(record, 20)


def test_config_holds_every_field(tmp_path):
    train(tiny("--trainer.steps=4"), tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["objective"] == {"name": "next_token"}
    assert config["backbone"]["width"] == 16
    assert config["trainer"]["betas"] == [0.9, 0.95]


def test_a_report_that_was_cut_off_is_made_up_for(tmp_path):
    folder = tmp_path / "run"
    train(tiny(), folder)
    before = Run(folder).report("evaluation")
    (folder / "reports" / "evaluation.json").unlink()
    assert not Run(folder).complete()
    assert resume(folder).reason == "steps"
    assert Run(folder).report("evaluation") == before
    assert [record["kind"] for record in Run(folder).metrics()].count("end") == 1


def test_the_report_needs_the_data_no_second_time(tmp_path):
    file, folder = tmp_path / "sequences.txt", tmp_path / "run"
    file.write_text("".join(f"a b {'c ' * (number % 9)}d\n" for number in range(200)))
    flags = [flag for flag in TINY if not flag.startswith("--task.")]
    recipe = read_recipe(recipe_text("sequences-small"), [*flags, f"--task.path={file}"])

    def lose(step):
        if step == 20:
            file.unlink()

    train(recipe, folder, listener=Listener(step=lose))
    assert Run(folder).report("evaluation")["baselines"]
    assert Run(folder).complete()


def test_resuming_from_an_older_checkpoint_forgets_a_best_that_is_gone(tmp_path, monkeypatch):
    scripted(monkeypatch, [0.5, 0.4, 0.6, 0.3, 0.2, 0.15, 0.1, 0.05, 0.04, 0.03])
    recipe = tiny("--trainer.steps=40", "--trainer.evaluate_every=5", "--trainer.keep=every:10")
    with pytest.raises(Stop):
        train(recipe, tmp_path / "run", listener=stop_at(24))
    run = Run(tmp_path / "run")
    assert run.best_step() == 15
    assert [found.step for found in run.checkpoints()] == [10, 15, 20]
    resume(tmp_path / "run", checkpoint="10")  # its best was step 5, which has made way
    assert run.best_step() == 15
    assert load_model(tmp_path / "run").checkpoint.step == 15


def test_solved_twice_stays_solved_when_the_end_was_cut_off(tmp_path):
    recipe = tiny("--trainer.evaluate_every=5", "--trainer.stop_when_solved=true")
    train(recipe, tmp_path / "run")
    run = Run(tmp_path / "run")
    found = run.find_checkpoint("last")
    from statewise.training import checkpoint as checkpoints

    state = checkpoints.load_training(found)
    state["progress"]["solved_in_a_row"] = 2
    state["progress"]["step"] = 15
    run.forget_after(15)
    model = new_model(recipe)
    checkpoints.save(run, 15, model.objective.state_dict(), state)
    outcome = resume(tmp_path / "run")
    assert (outcome.step, outcome.reason) == (15, "solved")


def test_an_evaluation_made_during_training_is_not_taken_for_the_report(tmp_path):
    folder = tmp_path / "run"
    train(tiny(), folder)
    run = Run(folder)
    report, steps = run.report("evaluation"), [checkpoint.step for checkpoint in run.checkpoints()]
    run.write_report("evaluation", {**report, "checkpoint": report["checkpoint"] - 1, "num": 3})
    assert not run.complete()
    assert resume(folder).step == 20
    assert run.report("evaluation") == report
    assert run.complete()
    assert [checkpoint.step for checkpoint in run.checkpoints()] == steps
    assert [record["kind"] for record in run.metrics()].count("train") == 5, "nothing was trained again"
    shutil.rmtree(run.checkpoints_folder)
    assert run.complete(), "without checkpoints the report stays what it is"


def test_progress_is_shown_or_told_not_both(tmp_path):
    with pytest.raises(ValueError, match="give progress or a listener, not both"):
        statewise.train("path-star-demo", out=tmp_path / "run", progress=True, listener=Listener())
    assert not (tmp_path / "run").exists()


def test_a_task_that_nothing_solves_goes_on_to_its_last_step_and_says_so(tmp_path):
    recipe = read_recipe(
        recipe_text("hmm-mess3"),
        ["--trainer.steps=2", "--trainer.stop_when_solved=true", "--task.held_out_sequences=8"],
    )
    notes = []

    assert train(recipe, tmp_path / "run", listener=Listener(note=notes.append)).reason == "steps"
    assert any("no loss counts as solving the task hmm" in note for note in notes)


def threads_ahead():
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_batches_made_ahead_are_the_same_and_few():
    made = []
    together = prefetch(lambda number: made.append(number) or number**2, range(7), most=2)
    for number in range(7):
        assert next(together) == number**2
        assert len(made) <= number + 3
    assert next(together, None) is None
    assert made == list(range(7))
    assert not threads_ahead()


def test_what_cannot_be_made_is_said_where_it_is_asked_for():
    def drawn(number):
        if number == 3:
            raise ValueError("the well is dry")
        return number

    batches = prefetch(drawn, range(9))
    assert [next(batches) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="the well is dry"):
        next(batches)
    assert not threads_ahead()


def test_the_thread_ends_when_nobody_wants_more():
    batches = prefetch(lambda number: number, itertools.count())
    assert next(batches) == 0
    assert threads_ahead()
    batches.close()
    assert not threads_ahead()
