import json

import pytest
from doubles import SMALL_RUN

from statewise.cli import main


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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prefill", "900", "--decode", "900"], "do not fit the context"),
        (["--batch", "0"], "--batch must be at least 1"),
    ],
)
def test_what_cannot_be_measured_is_said(run, words, message, capsys):
    assert main(["bench-decode", str(run), *words]) == 2
    assert message in capsys.readouterr().err
