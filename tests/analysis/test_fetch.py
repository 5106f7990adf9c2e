"""Attention of predictions to their own inputs, against attention that is computed token by token."""

import numpy as np
import pytest
import torch
from doubles import CONTEXT, VOCABULARY, FixedTask, spread_weights, subject, tiny_gpt, tiny_two_stream
from torch.nn import functional as F
from two_stream_paper import from_the_paper

from statewise.analysis import make_analysis
from statewise.backbones import two_stream
from statewise.backbones.two_stream import VARIANTS
from statewise.data_types import Batch, Examples
from statewise.objectives.predictors import HeadPredictor

pytestmark = pytest.mark.usefixtures("float64")
PREDICTING = [name for name in VARIANTS if name != "standard"]
PACKED = np.array([[1] * 5 + [2] * 4, [1] * 9, [1] * 2 + [2] + [3] * 6])


def made(variant="sps", seed=1, **fields):
    backbone = tiny_two_stream(**{"variant": variant, "window": 2, **fields})
    spread_weights(backbone, seed)
    return backbone.eval()


def task(packed=None, rows=3, places=9):
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (rows, places))
    return FixedTask(Examples(tokens, np.full(rows, places), np.zeros(rows, np.int64), packed))


def slow(backbone, row, documents=None):
    """(T, L, H) own weights, (T,) numbers of keys, (T - 1,) nats of one row."""
    attention = {}
    with torch.no_grad():
        _, readout = from_the_paper(backbone, row, documents, attention=attention)
        losses = F.cross_entropy(backbone.logits(readout[:-1]), row[1:], reduction="none")
    own = [[attention[layer, ("p", i), ("x", i)].tolist() for layer in range(backbone.layers)] for i in range(len(row))]
    keys = [sum(layer == 0 and query == ("p", i) for layer, query, _ in attention) for i in range(len(row))]
    return np.array(own), np.array(keys), losses


@pytest.mark.parametrize("packed", [None, PACKED], ids=["apart", "packed"])
@pytest.mark.parametrize("start", ["predict", "own"])
@pytest.mark.parametrize("variant", PREDICTING)
def test_weights_are_those_of_the_paper(variant, start, packed, monkeypatch):
    """Whether they are computed at once, in parts, or one by one."""
    backbone, tokens = made(variant, prediction_start=start), torch.from_numpy(task().held_out().tokens)
    documents = None if packed is None else torch.from_numpy(packed)
    expected = [slow(backbone, tokens[row], None if packed is None else packed[row].tolist()) for row in range(3)]
    for scores in (2**24, 100, 1):
        monkeypatch.setattr(two_stream, "SCORES", scores)
        weights, keys = backbone.fetches(Batch.plain(tokens, documents))
        assert weights.shape == (3, 9, 2, 2)
        for row, (own, count, _) in enumerate(expected):
            np.testing.assert_allclose(weights[row].detach().numpy(), own, rtol=1e-6)
            assert keys[row].tolist() == count.tolist()


def test_learned_positions_and_bfloat16_are_read_too():
    tokens = torch.from_numpy(task().held_out().tokens)
    backbone = made(positions="learned", bias=True)
    exact = backbone.fetches(Batch.plain(tokens))[0]
    with torch.autocast("cpu", torch.bfloat16):
        rough = backbone.float().fetches(Batch.plain(tokens))[0]
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough.double(), exact, atol=0.05, rtol=0)


@pytest.mark.parametrize("packed", [None, PACKED], ids=["apart", "packed"])
def test_the_best_head_is_found_at_every_checkpoint(packed):
    models = {step: made(seed=step) for step in (3, 6, 9)}
    held_out = task(packed)
    asked = subject(
        HeadPredictor(models[9]), held_out, **{f"step_{step}": HeadPredictor(models[step]) for step in models}
    )
    found = make_analysis("fetch").analyze(asked)
    tokens = torch.from_numpy(held_out.held_out().tokens)
    for place, step in enumerate((3, 6, 9)):
        own, uniform, nats = [], [], []
        for row in range(3):
            of_row = None if packed is None else packed[row].tolist()
            weights, keys, losses = slow(models[step], tokens[row], of_row)
            for i in range(8):  # positions whose next token is scored: of the same document
                if packed is None or packed[row, i] == packed[row, i + 1]:
                    own.append(weights[i])
                    uniform.append(1 / keys[i])
                    nats.append(float(losses[i]))
        mean = np.mean(own, axis=0)
        np.testing.assert_allclose(found.details["weights"][place], mean, rtol=1e-6)
        assert found.details["uniform"][place] == pytest.approx(np.mean(uniform))
        assert found.details["loss"][place] == pytest.approx(np.mean(nats))
        best, *layers, control = found.panels[0].curves
        assert (best.label, best.role, best.y[place]) == ("best head", "line", pytest.approx(mean.max()))
        assert [curve.y[place] for curve in layers] == pytest.approx(mean.max(axis=1).tolist())
        assert (control.role, control.y[place]) == ("control", pytest.approx(np.mean(uniform)))
    assert found.details["steps"] == found.panels[0].curves[0].x == found.panels[1].curves[0].x == [3, 6, 9]
    assert found.metrics["fetch"] == pytest.approx(mean.max())  # of step 9, the chosen one
    assert mean[found.metrics["fetch_layer"], found.metrics["fetch_head"]] == mean.max()
    assert found.main == ["fetch"]


def test_a_head_that_does_nothing_but_fetch_is_seen():
    """The first head of layer 1 compares learned positions; no prediction is read that would have the same one."""
    backbone = made("strict", positions="learned")
    D = backbone.width
    with torch.no_grad():
        backbone.blocks[1].attention_norm.weight.fill_(1)
        backbone.positions.weight.zero_()
        backbone.positions.weight[:, :8] = 50 * torch.eye(CONTEXT)[:, :8].double()
        weight = backbone.blocks[1].attention.in_proj.weight
        for rows in (slice(0, 8), slice(D, D + 8)):  # queries and keys of the first head
            weight[rows] = 0
            weight[rows, :8] = 10 * torch.eye(8, dtype=torch.float64)
    held_out = task(places=8)
    found = make_analysis("fetch").analyze(subject(HeadPredictor(backbone), held_out))
    weights = np.array(found.details["weights"][0])
    assert weights[1, 0] == pytest.approx(1, abs=1e-3)
    assert (found.metrics["fetch"], found.metrics["fetch_layer"], found.metrics["fetch_head"]) == (weights[1, 0], 1, 0)


def test_checkpoints_before_the_streams_part_are_left_out():
    young, grown = made(separate_from=0.5), made(separate_from=0.5)
    young.set_progress(0.0)
    grown.set_progress(1.0)
    found = make_analysis("fetch").analyze(
        subject(HeadPredictor(grown), task(), step_3=HeadPredictor(young), step_9=HeadPredictor(grown))
    )
    assert found.details["steps"] == [9]
    assert found.notes == ["step 3 is left out: it has no prediction stream"]
    with pytest.raises(ValueError, match="its streams have not separated yet"):
        make_analysis("fetch").analyze(subject(HeadPredictor(young), task()))
    with pytest.raises(ValueError, match="there is no prediction stream"):
        young.fetches(Batch.plain(torch.from_numpy(task().held_out().tokens)))


def test_other_models_are_refused():
    with pytest.raises(ValueError, match="whose predictions attend to their own inputs"):
        make_analysis("fetch").analyze(subject(HeadPredictor(tiny_gpt()), task()))
    with pytest.raises(ValueError, match="sequences must be at least 1"):
        make_analysis("fetch", sequences=0)
