"""Gradient ratio and restricted state, against copies of the parameters and against masks of their own."""

import numpy as np
import pytest
import torch
from doubles import VOCABULARY, FixedTask, spread_weights, subject, tiny_gpt, tiny_two_stream
from torch.nn import functional as F
from two_stream_paper import from_the_paper

from statewise.analysis.documents import documents, positions
from statewise.analysis.smoothing import smoothed
from statewise.experiment import make_analysis
from statewise.nn.streams import Reach, stream_mask
from statewise.objectives.base import head_predictor
from statewise.types import Examples

pytestmark = pytest.mark.usefixtures("float64")


def made(variant):
    backbone = tiny_two_stream(variant=variant, window=2)
    spread_weights(backbone)
    return backbone.eval()


def task(rows=3, places=14, packed=None):
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (rows, places))
    return FixedTask(Examples(tokens, np.full(rows, places), np.zeros(rows, np.int64), packed))


@pytest.mark.parametrize("variant", ["standard", "sps", "delayed_state", "reverse_sps", "strict"])
def test_the_ratio_is_that_of_copies_of_the_parameters(variant):
    """Each slot is given parameters of its own; what the later loss sends to those of one slot is the numerator."""
    backbone, furthest = made(variant), 3
    held_out = task(rows=1, places=furthest + 2)  # leaves one place to look at: the first
    found = make_analysis("gradient-ratio", furthest=furthest, sources=1, sequences=1, rows=2).analyze(
        subject(head_predictor(backbone), held_out)
    )
    tokens = torch.from_numpy(held_out.held_out().tokens[0])
    names = [name for name, _ in backbone.named_parameters()]
    slots = [(kind, i) for i in range(len(tokens)) for kind in (("x",) if variant == "standard" else ("x", "p"))]
    copies = {slot: {n: p.detach().clone().requires_grad_() for n, p in backbone.named_parameters()} for slot in slots}
    _, readout = from_the_paper(backbone, tokens, parameters=copies.__getitem__)
    losses = F.cross_entropy(F.linear(readout[:-1], backbone.embedding.weight[:VOCABULARY].detach()), tokens[1:],
                             reduction="none")  # fmt: skip
    for slot, (kind, label) in enumerate(zip("xp", found.details["slots"])):
        assert label == {"x": "input", "p": "prediction"}[kind]
        norms = []
        if variant == "reverse_sps" and kind == "p":  # read off the input, before it
            assert any("prediction" in note for note in found.notes)
            continue
        for k in range(furthest + 1):
            gradients = torch.autograd.grad(
                losses[k], [copies[kind, 0][name] for name in names], retain_graph=True, allow_unused=True
            )
            norms.append(sum(g.square().sum() for g in gradients if g is not None) ** 0.5)
        for k in range(furthest + 1):
            wanted = float(norms[k] / norms[0])
            assert found.details["mean"][k][slot] == pytest.approx(wanted, rel=1e-7)
            assert found.details["median"][k][slot] == pytest.approx(wanted, rel=1e-7)


def test_a_plain_transformer_and_layer_norms_with_biases_are_measured_too():
    backbone = tiny_gpt(norm="layer", bias=True, mlp="gelu")
    spread_weights(backbone)
    tokens = torch.from_numpy(task(rows=2).held_out().tokens)
    traced = head_predictor(backbone).trace(tokens[:1, :3])
    gradients = torch.autograd.grad(traced.losses[0, 1], [use.output for use in traced.uses], allow_unused=True)
    total = 0.0
    for place in range(3):
        total += sum(float((g * use.weight)[0, place].square().sum()) for g, use in zip(gradients, traced.uses)
                     if g is not None)  # fmt: skip
    # One place alone: then all gradients of the parameters go through it.
    alone = head_predictor(backbone).trace(tokens[:1, :2])
    gradients = torch.autograd.grad(alone.losses[0, 0], [use.output for use in alone.uses], retain_graph=True)
    ours = sum(float((g * use.weight)[0, 0].square().sum()) for g, use in zip(gradients, alone.uses))
    hidden = backbone(tokens[:1, :1]).readout[0]
    loss = F.cross_entropy(F.linear(hidden, backbone.embedding.weight.detach()), tokens[:1, 1])
    theirs = torch.autograd.grad(loss, list(backbone.parameters()), allow_unused=True)
    assert ours == pytest.approx(sum(float(g.square().sum()) for g in theirs if g is not None), rel=1e-9)
    assert total > 0


@pytest.mark.parametrize(
    ("variant", "reach"),
    [("sps", Reach(3, 2)), ("standard", Reach(3, -1)), ("delayed_state", Reach(2, 3)), ("double_memory", Reach(3, 3))],
)
def test_a_limited_model_sees_so_many_places(variant, reach, monkeypatch):
    """Held against the dense mask; the parameters stay the same ones."""
    backbone = made(variant)
    tokens = torch.from_numpy(task().held_out().tokens)
    limited = backbone.limited(4)
    found = limited(tokens).readout
    assert not torch.allclose(found, backbone(tokens).readout)
    torch.testing.assert_close(found[:, :3], backbone(tokens).readout[:, :3])
    assert [id(p) for p in limited.parameters()] == [id(p) for p in backbone.parameters()]
    from statewise.backbones import two_stream
    from statewise.nn.stream_attention import attend_dense

    def dense(*tensors, streams, reach: object, documents, dropout):
        return attend_dense(*tensors, streams=streams, reach=wanted, documents=documents)

    wanted = reach
    monkeypatch.setattr(two_stream, "attend_streams", dense)
    torch.testing.assert_close(found, backbone(tokens).readout)
    assert stream_mask((0,), 6, wanted)[5, :6].sum() == min(6, 1 + (wanted.inputs or 0))


def test_restricted_state_is_the_difference_of_the_losses():
    backbone = made("sps")
    packed = np.array([[1] * 6 + [2] * 8, [1] * 14, [1] * 2 + [2] * 12])
    held_out = task(packed=packed)
    found = make_analysis("restricted-state", keep=3).analyze(subject(head_predictor(backbone), held_out))
    rises: dict[int, list[float]] = {}
    for row in documents(held_out.held_out()):
        tokens = torch.from_numpy(row)[None]
        both = [F.cross_entropy(model.logits(model(tokens).readout[0, :-1]), tokens[0, 1:], reduction="none")
                for model in (backbone, backbone.limited(3))]  # fmt: skip
        for place, rise in enumerate((both[1] - both[0]).tolist()):
            rises.setdefault(place + 1, []).append(rise)
    assert found.details["position"] == sorted(rises)
    for place, rise, count in zip(*(found.details[key] for key in ("position", "rise", "count"))):
        assert rise == pytest.approx(np.mean(rises[place]), abs=1e-9)
        assert count == len(rises[place])
    beyond = [rise for place, all_rises in rises.items() for rise in all_rises if place > 3]
    assert found.metrics["rise"] == pytest.approx(np.mean(beyond), abs=1e-9)
    assert found.metrics["positions"] == len(beyond)


def test_documents_of_packed_rows():
    tokens = np.arange(12).reshape(2, 6)
    examples = Examples(tokens, np.array([6, 4]), np.zeros(2, np.int64), np.array([[1, 1, 2, 2, 2, 3], [1] * 6]))
    assert [row.tolist() for row in documents(examples)] == [[0, 1], [2, 3, 4], [5], [6, 7, 8, 9]]
    assert positions(examples)[0].tolist() == [0, 1, 0, 1, 2, 0]


def test_few_points_are_not_smoothed():
    x = np.arange(10.0)
    (alone,) = smoothed("a", x, x**2)
    assert alone.y == (x**2).tolist()
    trend, raw = smoothed("a", np.arange(40.0), np.ones(40))
    assert raw.role == "raw"
    assert trend.y == pytest.approx([1.0] * 40)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("gradient-ratio", {"furthest": 30}, "no held-out document has the 32 tokens"),
        ("restricted-state", {"keep": 30}, "no held-out document has more than 30 tokens"),
        ("gradient-ratio", {"sources": 0}, "sources must be at least 1"),
        ("restricted-state", {"keep": 0}, "keep must be at least 1"),
    ],
)
def test_what_cannot_be_measured_is_said(name, fields, message):
    with pytest.raises(ValueError, match=message):
        make_analysis(name, **fields).analyze(subject(head_predictor(made("sps")), task()))


def test_models_without_the_power_are_refused():
    with pytest.raises(ValueError, match="the backbone two_stream"):
        make_analysis("restricted-state", keep=2).analyze(subject(head_predictor(tiny_gpt()), task()))
