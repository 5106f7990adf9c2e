"""Errors name the objective of another package, and the method, that returns something else than it must."""

import pytest
import torch
from doubles import SMALL_RUN

from statewise import train
from statewise.data_types import Loss, Part
from statewise.objectives.base import Objective
from statewise.objectives.next_token import NextToken


class NumberAsLoss(NextToken):
    def loss(self, batch, counts):
        return 3.0


class TensorAsLoss(NextToken):
    def loss(self, batch, counts):
        return super().loss(batch, counts).value()


class NoParts(NextToken):
    def loss(self, batch, counts):
        return Loss({})


class MatrixInPart(NextToken):
    def loss(self, batch, counts):
        part = super().loss(batch, counts).parts["next_token"]
        return Loss({"next_token": part._replace(total=part.total * torch.ones(3, 3))})


class PairAsPart(NextToken):
    def loss(self, batch, counts):
        part = super().loss(batch, counts).parts["next_token"]
        return Loss({"next_token": part[:2]})


class OtherCounts(NextToken):
    def loss(self, batch, counts):
        part = super().loss(batch, counts).parts["next_token"]
        return Loss({"next_token": Part(part.total, torch.ones(2), 1.0)})


class Detached(NextToken):
    def loss(self, batch, counts):
        part = super().loss(batch, counts).parts["next_token"]
        return Loss({"next_token": part._replace(total=part.total.detach())})


class NoneAsCounts(NextToken):
    def counts(self, batch):
        return None


class NumberAsCount(NextToken):
    def counts(self, batch):
        return {"next_token": 5}


class NoPredictor(NextToken):
    def predictor(self):
        return None


FLAGS = ["path-star-small", *SMALL_RUN, "--task.held_out_graphs=8"]
SETTINGS = {"steps": 2, "warmup_steps": 0, "evaluate_every": 1, "evaluate_num": 4, "threads": 1}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (NumberAsLoss, "loss() must return a statewise.data_types.Loss with one part or more, not float"),
        (TensorAsLoss, "loss() must return a statewise.data_types.Loss with one part or more, not Tensor ()"),
        (NoParts, "loss() must return a statewise.data_types.Loss with one part or more, not one without parts"),
        (MatrixInPart, "as 'next_token' sums and counts, both () or (m,), not sums (3, 3) and counts ()"),
        (PairAsPart, "as 'next_token' a Part of two tensors and a weight, not tuple"),
        (OtherCounts, "as 'next_token' sums and counts, both () or (m,), not sums () and counts (2,)"),
        (Detached, "a part with a gradient, not parts that are all detached from the weights"),
        (NoneAsCounts, "counts() must return a dict of tensors by the names of the loss's parts, not None"),
        (NumberAsCount, "counts() must return for 'next_token' a tensor () or (m,), not int"),
        (NoPredictor, "predictor() must return a statewise.decoding.predictor.Predictor, not None"),
    ],
)
def test_what_is_wrong_is_said_by_name(kind, said, tmp_path):
    name = f"{__name__}:{kind.__name__}"
    with pytest.raises(ValueError) as raised:  # noqa: PT011 (its whole text is asserted)
        train(*FLAGS, objective=name, out=tmp_path / "run", **SETTINGS)
    assert str(raised.value).startswith(f"objective {name}: ")
    assert said in str(raised.value)


def test_a_run_checks_what_its_objective_returns_once(tmp_path, monkeypatch):
    checked = []
    for method in ("checked_counts", "check_loss"):
        original = getattr(Objective, method)
        monkeypatch.setattr(
            Objective, method, lambda self, given, to=original: checked.append(to.__name__) or to(self, given)
        )
    train(*FLAGS, out=tmp_path / "run", **SETTINGS)
    assert checked == ["checked_counts", "check_loss"]
