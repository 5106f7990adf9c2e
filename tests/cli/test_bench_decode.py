import json

import pytest
from doubles import SMALL_RUN

from statewise.backbones.baseline import HasStandard
from statewise.backbones.gpt import GPTConfig
from statewise.backbones.two_stream import TwoStreamConfig
from statewise.cli import main
from statewise.objectives.predictors import CausalPredictor
from statewise.run import Run
from statewise.throughput import decode_speed

CONTEXT = 24
"""Of the recipe path-star-small."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "sps"
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
    assert main(["train", "path-star-small", *SMALL_RUN, *flags, "--out", str(folder)]) == 0
    return folder


def test_a_run_is_set_against_standard(run, capsys):
    words = ["bench-decode", str(run), "--batch", "2", "--prefill", "4", "--decode", "3", "--rounds", "1", "--json"]
    capsys.readouterr()
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["models"]) == {"this model", "standard"}
    assert all(value > 0 for model in found["models"].values() for value in model.values())
    assert (found["batch"], found["prefill"], found["decode"]) == (2, 4, 3)


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
    monkeypatch.setattr(CausalPredictor, "extend", lambda one, *given: seen.append(one.streams) or extend(one, *given))
    decode_speed(recipe, opened.task_files(), 2, 4, 3, "cpu", "fp32", None)
    assert seen == [("input", "prediction")] * 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prefill", str(CONTEXT)], f"a prompt of {CONTEXT} tokens leaves nothing of the context of {CONTEXT}"),
        (["--prefill", str(CONTEXT + 9)], "set --prefill lower"),
        (["--prefill", "900", "--decode", "900"], "do not fit the context"),
        (["--batch", "0"], "--batch must be at least 1"),
    ],
)
def test_what_cannot_be_measured_is_said(run, words, message, capsys):
    assert main(["bench-decode", str(run), *words]) == 2
    assert message in capsys.readouterr().err
