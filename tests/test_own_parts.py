"""What own parts may get wrong beyond their interface, which would spoil a run without a word."""

import json

import pytest

from statewise.cli import main
from statewise.run import Run

PARTS = """
from dataclasses import dataclass
import numpy as np
from statewise.analysis.base import Analysis, Findings
from statewise.reporting.figures import Curve, Panel
from statewise.objectives.next_token import NextToken
from statewise.tasks.path_star import PathStar
from statewise.data_types import Headline, Loss

class Steps(NextToken):
    def loss(self, batch, counts):
        found = super().loss(batch, counts)
        return Loss({"steps": found.parts["next_token"]})

class Share(NextToken):
    def loss(self, batch, counts):
        found = super().loss(batch, counts)
        return Loss({"accuracy": found.parts["next_token"]})

class Tied(NextToken):
    def __init__(self, config, make_backbone):
        super().__init__(config, make_backbone)
        self.again = self.backbone.blocks[0]

class BelowZero(PathStar):
    def score(self, examples, completions):
        return {**super().score(examples, completions), "gain_in_accuracy": -0.1}

class Headless(PathStar):
    def __init__(self, *given):
        super().__init__(*given)
        self.headline = Headline("exact_matches", True)

class Numbers(PathStar):
    def score(self, examples, completions):
        return {**super().score(examples, completions), "share": np.float32(0.25), "seen": np.int64(3)}

class TakesLoss(PathStar):
    def score(self, examples, completions):
        return {**super().score(examples, completions), "loss": 0.0}

class NoNumber(PathStar):
    def score(self, examples, completions):
        return {**super().score(examples, completions), "share": "much"}

class Short(PathStar):
    def sample(self, rng, n):
        return super().sample(rng, n)[:1]

class Folder(PathStar):
    def files(self):
        return {"../../outside.txt": b"x"}

@dataclass(frozen=True)
class PlainConfig:
    panels: bool = False

class Plain(Analysis):
    Config = PlainConfig
    def analyze(self, subject):
        curve = Curve("one", np.arange(3.0), np.arange(3.0, dtype=np.float32))
        panels = [Panel("x", "y", [curve])] if self.config.panels else []
        return Findings({"half": np.float32(0.5)}, panels, {"all": np.arange(2)}, verdict="Half of it.")
"""
TINY = (
    "--task.held_out_graphs=20 --trainer.steps=2 --trainer.batch_size=8 --backbone.width=16 --backbone.heads=2 "
    "--backbone.layers=1"
)


@pytest.fixture
def train(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_parts.py").write_text(PARTS)

    def trained(task="path_star", objective="next_token"):
        (tmp_path / "mine.yaml").write_text(f"{{task: '{task}', backbone: gpt, objective: '{objective}'}}")
        code = main(["train", "--config", "mine.yaml", *TINY.split(), "--out", "run"])
        return code, " ".join(capsys.readouterr().err.split())

    return trained


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"objective": "own_parts:Steps"}, "Steps: a part of its loss is called steps, which the training log uses"),
        ({"objective": "own_parts:Share"}, "Share: a part of its loss is called accuracy, which the training log"),
        ({"objective": "own_parts:Tied"}, "are one tensor, and a checkpoint holds each under one name"),
        ({"task": "own_parts:BelowZero"}, "BelowZero: the metric gain_in_accuracy must be a number from 0 to 1"),
        ({"task": "own_parts:Headless"}, "headline metric is 'exact_matches', which is not one of its metrics: path"),
        ({"task": "own_parts:TakesLoss"}, "TakesLoss: the metric loss has a reserved name"),
        ({"task": "own_parts:NoNumber"}, "NoNumber: the metric share must be a number, not"),
        ({"task": "own_parts:Short"}, "Short.sample drew 1 sequences instead of 8"),
        ({"task": "own_parts:Folder"}, "the task keeps a file called '../../outside.txt'"),
    ],
)
def test_what_would_spoil_a_run_is_refused(train, parts, said, tmp_path):
    code, err = train(**parts)
    assert code == 2
    assert said in err
    assert "Traceback" not in err
    assert not (tmp_path.parent / "outside.txt").exists()


def test_numbers_of_numpy_are_numbers(train, tmp_path):
    assert train(task="own_parts:Numbers") == (0, "")
    [metrics] = [record for record in Run(tmp_path / "run").metrics() if record["kind"] == "evaluation"]
    assert (metrics["share"], metrics["seen"]) == (0.25, 3)


@pytest.mark.parametrize("panels", ["true", "false"])
def test_an_analysis_may_have_no_panels_and_arrays_in_place_of_lists(train, panels, tmp_path):
    assert train()[0] == 0
    assert main(["analyze", "run", "own_parts:Plain", "--panels", panels]) == 0
    report = tmp_path / "run" / "reports" / "own_parts.Plain.json"
    content = json.loads(report.read_text())
    assert (content["metrics"], content["details"]) == ({"half": 0.5}, {"all": [0, 1]})
    assert report.with_suffix(".png").is_file() == (panels == "true")
