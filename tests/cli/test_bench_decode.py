import json
import os

import numpy as np
import pytest
from doubles import SMALL_RUN

from statewise.backbones.capabilities import HasStandard
from statewise.backbones.gpt import GPTConfig
from statewise.backbones.two_stream import TwoStreamConfig
from statewise.cli import main
from statewise.decoding.base import Decoder, Request, Step
from statewise.decoding.predictor import Fetcher, require
from statewise.experiments.decode_speed import Speed, decode_speed, in_own_process
from statewise.experiments.draft_speed import DraftSpeed
from statewise.objectives.predictors import CausalPredictor
from statewise.run import Run

CONTEXT = 24
"""Of the recipe path-star-small."""


@pytest.fixture(scope="module")
def run(trained):
    flags = [
        "--backbone",
        "two_stream",
        "--backbone.window",
        "2",
        "--trainer.steps",
        "1",
        "--task.held_out_graphs",
        "20",
    ]
    return trained("path-star-small", *SMALL_RUN, *flags)


def test_a_run_is_set_against_standard(run, monkeypatch, capsys):
    """The first of the two measurements really is in a process of its own."""
    asked = []

    def measured(*given):
        asked.append(given)
        return in_own_process(*given) if len(asked) == 1 else decode_speed(*given)

    monkeypatch.setattr("statewise.experiments.decode_speed.in_own_process", measured)
    words = ["bench-decode", str(run), "--batch", "2", "--prefill", "4", "--decode", "3", "--rounds", "1", "--json"]
    capsys.readouterr()
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["models"]) == {"this model", "standard"}
    assert all(value > 0 for model in found["models"].values() for value in model.values())
    assert (found["batch"], found["prefill"], found["decode"]) == (2, 4, 3)
    assert len(asked) == 2


def test_where_the_system_does_not_tell_memory_the_rest_is_shown(run, monkeypatch, capsys):
    monkeypatch.setattr(
        "statewise.experiments.decode_speed.in_own_process", lambda *asked: Speed(1.0, 2.0, 8.0, None, "cpu")
    )
    words = ["bench-decode", str(run), "--prefill", "4", "--decode", "3"]
    capsys.readouterr()
    assert main(words) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[3].split() == ["this", "model", "8", "1.00", "2.00", "-"]
    assert shown[-1] == "against standard: 1.00 times the tokens per second"
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["models"]["standard"]["megabytes"] is None


def test_standard_is_the_same_size_without_the_second_stream():
    config = TwoStreamConfig(width=24, heads=2, variant="strict", separate_from=0.5)
    assert isinstance(config, HasStandard)
    assert config.standard() == TwoStreamConfig(width=24, heads=2, variant="standard")
    assert config.standard().standard() is None
    assert not isinstance(GPTConfig(), HasStandard)


def test_streams_that_part_while_training_have_parted(run, monkeypatch):
    """Also in a run that had not come so far: what is measured is the trained model."""
    opened = Run.open(run)
    recipe = opened.recipe()
    recipe["backbone"]["separate_from"] = 0.5
    seen = []
    extend = CausalPredictor.extend

    def watched(predictor, *given):
        seen.append(require(predictor, Fetcher).streams)
        return extend(predictor, *given)

    monkeypatch.setattr(CausalPredictor, "extend", watched)
    decode_speed(recipe, opened.task_files(), 2, 4, 3, "cpu", "fp32", None)
    assert seen == [("input", "prediction")] * 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prefill", str(CONTEXT)], f"a prompt of {CONTEXT} tokens leaves nothing of the context of {CONTEXT}"),
        (["--prefill", str(CONTEXT + 9)], "set --prefill lower"),
        (["--prefill", "900", "--decode", "900"], "do not fit the context"),
        (["--batch", "0"], "--batch must be at least 1"),
        (["--temperature", "1"], "--temperature needs --draft"),
        (["--without-cache"], "--without-cache needs --draft"),
        (["--draft-vocabulary", "3"], "--draft-vocabulary needs --draft"),
        (["--draft", "2", "--without-cache", "--batch", "2"], "one prompt at a time"),
        (["--draft", "2", "--without-cache", "--draft-vocabulary", "3"], "omit --draft-vocabulary"),
        (["--draft", "8-0"], "--draft takes lengths as in 0-8, 0,4,8 or auto, not"),
        (["--draft", "0-"], "--draft takes lengths"),
        (["--draft", "2"], "such models, with default fields, have the objective"),
        (["--draft", "2", "--prefill", "900"], f"{CONTEXT} tokens leaves nothing of the context of {CONTEXT} to"),
        (["--draft", "2", "--temperature", "-1"], "temperature must be"),
        (["--draft", "2", "--drafter", "prompt_lookup", "--decode", "900"], "do not fit the context"),
        (["--draft", "1", "--drafter", "prompt_lookup", "--decode", "1"], "set --decode to at least 2"),
        (["--draft", str(CONTEXT), "--drafter", "prompt_lookup"], f"does not fit the context of {CONTEXT}"),
    ],
)
def test_what_cannot_be_measured_is_said(run, words, message, monkeypatch, capsys):
    monkeypatch.setattr("statewise.experiments.decode_speed.in_own_process", decode_speed)
    assert main(["bench-decode", str(run), *words]) == 2
    assert message in capsys.readouterr().err


def test_draft_lengths_are_compared_on_the_same_prompts(run, capsys):
    words = [
        "bench-decode",
        str(run),
        "--draft",
        "0-2,auto",
        "--drafter",
        "prompt_lookup",
        "--batch",
        "2",
        "--rounds",
        "2",
    ]
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["drafts"]) == ["plain", "0", "1", "2", "auto"]
    assert all(one["tokens_per_second"] > 0 for one in found["drafts"].values())
    assert found["drafts"]["plain"]["accepted_by_place"] == found["drafts"]["0"]["accepted_by_place"] == []
    assert len(found["drafts"]["1"]["accepted_by_place"]) <= 1
    assert main([*words, "--temperature", "1.0"]) == 0
    assert "accepted per cycle" in capsys.readouterr().out


def test_both_conventions_accept_the_same_drafts(tmp_path, capsys):
    folder = tmp_path / "nl"
    flags = ["--objective", "next_latent", "--trainer.steps", "1", "--task.held_out_graphs", "20"]
    assert main(["train", "path-star-small", *SMALL_RUN, *flags, "--out", str(folder)]) == 0
    few = ["bench-decode", str(folder), "--draft", "0-1", "--rounds", "2"]
    words = [*few, "--without-cache"]
    capsys.readouterr()
    assert main([*few, "--json", "--draft-vocabulary", "4"]) == 0
    assert json.loads(capsys.readouterr().out)["draft_vocabulary"] == 4
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["without_cache"]) == ["plain", "1"]
    assert found["without_cache"]["1"]["tokens_per_second"] > 0
    assert main(words) == 0
    assert "without a cache, two passes per cycle" in capsys.readouterr().out


def test_acceptance_is_counted_by_place():
    class Told(Decoder):
        def steps(self, predictor, request):
            for offered, drafted in (([0, 0], [0, 0]), ([3, 3], [3, 1]), ([3, 2], [0, 2]), ([0, 0], [0, 0])):
                new = np.where(np.arange(4) < np.array(drafted)[:, None] + 1, 1, -1)
                yield Step(new, np.zeros(new.shape), np.array(drafted), np.array(offered))

    speed = DraftSpeed()
    speed.add(Told(None), None, Request([np.array([0])] * 2, 9))
    found = speed.summary()
    assert (speed.tokens, speed.cycles, speed.offered, speed.accepted) == (12, 4, [4, 3, 1], [3, 2, 1])
    assert found["accepted_per_cycle"] == 6 / 4
    assert found["accepted_by_place"] == [3 / 4, 2 / 3, 1.0]


def test_a_killed_measuring_process_is_told(monkeypatch):
    monkeypatch.setattr("statewise.experiments.decode_speed.decode_speed", os._exit)
    with pytest.raises(ValueError, match="killed, probably for lack of memory: set `batch`"):
        in_own_process(1)


def test_what_the_measuring_process_raises_is_raised_here(monkeypatch):
    monkeypatch.setattr("statewise.experiments.decode_speed.decode_speed", json.loads)
    with pytest.raises(json.JSONDecodeError, match="Expecting property name"):
        in_own_process("{")
