"""Gradient ratio and restricted state, against copies of the parameters and against masks of their own."""

import copy

import numpy as np
import pytest
import torch
from doubles import VOCABULARY, FixedTask, spread_weights, subject, tiny_gpt, tiny_two_stream
from torch.nn import functional as F
from two_stream_paper import from_the_paper

from statewise.analysis import make_analysis
from statewise.analysis.streams import documents, positions, smoothed
from statewise.backbones.nn.layers import TokenEmbedding
from statewise.backbones.nn.masks import Reach, stream_mask
from statewise.data_types import Batch, Examples
from statewise.decoding.predictor import Traceable, require
from statewise.objectives.predictors import CausalPredictor, HeadPredictor
from statewise.tasks import batches as data

pytestmark = pytest.mark.usefixtures("float64")


def made(variant, **fields):
    backbone = tiny_two_stream(variant=variant, window=2, **fields)
    spread_weights(backbone)
    return backbone.eval()


def task(rows=3, places=14, packed=None):
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (rows, places))
    return FixedTask(Examples(tokens, np.full(rows, places), np.zeros(rows, np.int64), packed))


@pytest.mark.parametrize("positions", ["rope", "learned"])
@pytest.mark.parametrize("start", ["predict", "own"])
@pytest.mark.parametrize("variant", ["standard", "sps", "delayed_state", "reverse_sps", "strict"])
def test_the_ratio_is_that_of_copies_of_the_parameters(variant, positions, start):
    """Each stream of each place is given parameters of its own; what the later loss sends to those of one is the
    numerator."""
    backbone, furthest = made(variant, positions=positions, prediction_start=start), 3
    held_out = task(rows=1, places=furthest + 2)  # leaves one place to look at: the first
    found = make_analysis("gradient-ratio", furthest=furthest, sources=1, sequences=1, rows=2).analyze(
        subject(HeadPredictor(backbone), held_out)
    )
    tokens = torch.from_numpy(held_out.held_out().tokens[0])
    names = [name for name, _ in backbone.named_parameters()]
    pairs = [(kind, i) for i in range(len(tokens)) for kind in (("x",) if variant == "standard" else ("x", "p"))]
    copies = {pair: {n: p.detach().clone().requires_grad_() for n, p in backbone.named_parameters()} for pair in pairs}
    _, readout = from_the_paper(backbone, tokens, parameters=copies.__getitem__)
    losses = F.cross_entropy(
        F.linear(readout[:-1], backbone.embedding.weight[:VOCABULARY].detach()), tokens[1:], reduction="none"
    )
    for stream, (kind, label) in enumerate(zip("xp", found.details["streams"])):
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
            assert found.details["mean"][k][stream] == pytest.approx(wanted, rel=1e-7)
            assert found.details["median"][k][stream] == pytest.approx(wanted, rel=1e-7)


class Apart(torch.nn.Module):
    """A linear map, norm or embedding with parameters of its own at each place."""

    def __init__(self, part, places):
        super().__init__()
        self.parts = torch.nn.ModuleList(copy.deepcopy(part) for _ in range(places))

    def forward(self, x):
        axis = -2 if x.is_floating_point() else -1
        return torch.stack([part(x.select(axis, place)) for place, part in enumerate(self.parts)], dim=-2)


def taken_apart(gpt, places):
    """A copy of a GPT of which no two places share a parameter, and the parts of it that are `Apart`."""
    other, apart = copy.deepcopy(gpt), []
    for name, part in list(other.named_modules()):
        if isinstance(
            part, torch.nn.Linear | TokenEmbedding | torch.nn.Embedding | torch.nn.RMSNorm | torch.nn.LayerNorm
        ):
            apart.append(Apart(part, places))
            other.set_submodule(name, apart[-1])
    return other, apart


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"positions": "learned"},
        {"norm": "layer", "bias": True, "mlp": "gelu"},
        {"norm": "layer", "positions": "learned", "mlp": "relu"},
    ],
)
def test_what_each_place_of_a_plain_transformer_contributes(fields):
    """Against a copy with parameters for each place, whatever the positions, norms and feed-forward parts."""
    backbone, places = tiny_gpt(**fields), 6
    spread_weights(backbone)
    tokens = torch.from_numpy(task(rows=3, places=places).held_out().tokens)
    at = torch.tensor([2, 4, 1])
    traced = require(HeadPredictor(backbone), Traceable).trace(tokens, at)
    gradients = torch.autograd.grad(traced.losses.sum(), [use.output for use in traced.uses], allow_unused=True)
    ours = sum(
        (gradient * use.weight).square().sum(-1)
        for gradient, use in zip(gradients, traced.uses)
        if gradient is not None
    )
    assert ours.shape == (3, places)
    other, apart = taken_apart(backbone, places)
    for row in range(3):
        readout = other.encode(Batch.plain(tokens[row : row + 1])).readout[0, at[row]]
        loss = F.cross_entropy(F.linear(readout, backbone.embedding.weight.detach()), tokens[row, at[row] + 1])
        torch.testing.assert_close(traced.losses[row], loss)
        other.zero_grad()
        loss.backward()
        for place in range(places):
            own = [p.grad for part in apart for p in part.parts[place].parameters() if p.grad is not None]
            wanted = float(sum(gradient.square().sum() for gradient in own))
            assert float(ours[row, place]) == pytest.approx(wanted, rel=1e-9)
            assert (wanted > 0) == (place <= at[row])


def _squares(predictor, tokens, at, source):
    """(B, S, places from `source` on): squared norms of what the losses send to the parameters as used there."""
    traced = predictor.trace(tokens, at, source)
    gradients = torch.autograd.grad(traced.losses.sum(), [use.output for use in traced.uses], allow_unused=True)
    shape = len(tokens), len(predictor.streams), tokens.shape[1] - source
    every = [
        (gradient * use.weight).view(*shape, -1).square().sum(-1)
        for gradient, use in zip(gradients, traced.uses)
        if gradient is not None
    ]
    return traced.losses.detach(), sum(every)


@pytest.mark.parametrize("positions", ["rope", "learned"])
@pytest.mark.parametrize(
    "variant", ["gpt", "standard", "sps", "double_memory", "delayed_state", "reverse_sps", "strict"]
)
def test_what_lies_before_the_source_need_not_be_traced(variant, positions):
    backbone = tiny_gpt(positions=positions) if variant == "gpt" else made(variant, positions=positions)
    spread_weights(backbone)
    tokens = torch.from_numpy(task(rows=3, places=12).held_out().tokens)
    tokens[1:, :7] = tokens[0, :7]
    at, predictor = torch.tensor([7, 10, 8]), require(HeadPredictor(backbone.eval()), Traceable)
    whole_losses, whole = _squares(predictor, tokens, at, 0)
    losses, later = _squares(predictor, tokens, at, 7)
    torch.testing.assert_close(losses, whole_losses)
    torch.testing.assert_close(later, whole[:, :, 7:])
    assert (later > 0).any(dim=2).all(dim=0).any()


def test_before_the_streams_part_there_is_one_stream():
    """What is measured is the model as it stands, not what it is to become."""
    parted, young = made("standard"), made("sps", separate_from=0.5)
    young.load_state_dict({**parted.state_dict(), "separated": torch.tensor(False)})
    predictor = HeadPredictor(young)
    analysis = make_analysis("gradient-ratio", furthest=3, sources=2)
    found = analysis.analyze(subject(predictor, task()))
    assert found.details == analysis.analyze(subject(HeadPredictor(parted), task())).details
    assert found.details["streams"] == ["input"]
    young.set_progress(0.5)
    assert analysis.analyze(subject(predictor, task())).details["streams"] == ["input", "prediction"]


@pytest.mark.parametrize(
    ("variant", "reach"),
    [("sps", Reach(3, 2)), ("standard", Reach(3, -1)), ("delayed_state", Reach(2, 3)), ("double_memory", Reach(3, 3))],
)
def test_a_limited_model_sees_so_many_places(variant, reach, monkeypatch):
    """Held against the dense mask; the parameters stay the same ones. What is kept for 3 places is 4 keys."""
    backbone = made(variant)
    tokens = torch.from_numpy(task().held_out().tokens)
    limited = backbone.limited(3)
    found = limited.encode(Batch.plain(tokens)).readout
    assert not torch.allclose(found, backbone.encode(Batch.plain(tokens)).readout)
    torch.testing.assert_close(found[:, :3], backbone.encode(Batch.plain(tokens)).readout[:, :3])
    assert [id(p) for p in limited.parameters()] == [id(p) for p in backbone.parameters()]
    from statewise.backbones import two_stream
    from statewise.backbones.nn.attention import attend_dense

    def dense(query, key, value, pattern, dropout):
        return attend_dense(query, key, value, pattern._replace(reach=wanted))

    wanted = reach
    monkeypatch.setattr(two_stream, "attend_streams", dense)
    torch.testing.assert_close(found, backbone.encode(Batch.plain(tokens)).readout)
    assert stream_mask((0,), 6, wanted)[5, :6].sum() == min(6, 1 + (wanted.inputs or 0))


@pytest.mark.parametrize("omega", [0, 1, 4])
@pytest.mark.parametrize("variant", ["standard", "sps", "double_memory", "delayed_state", "reverse_sps", "strict"])
def test_a_limited_model_is_that_of_the_paper(variant, omega):
    """M_omega: the persistent keys are read as the window's are, i - k <= omega."""
    backbone = made(variant)
    tokens = torch.from_numpy(task(rows=1, places=9).held_out().tokens)
    state, readout = from_the_paper(backbone, tokens[0], omega=omega)
    limited = backbone.limited(omega).encode(Batch.plain(tokens))
    torch.testing.assert_close(limited.state[0], state)
    torch.testing.assert_close(limited.readout[0], readout)


@pytest.mark.parametrize("keep", [0, 1, 4])
def test_the_first_position_that_loses_keys_has_more_than_keep_before_it(keep):
    backbone = made("sps")
    found = make_analysis("restricted-state", keep=keep).analyze(subject(HeadPredictor(backbone), task(places=9)))
    rise = dict(zip(found.details["position"], found.details["rise"]))
    assert [position for position in rise if rise[position] == pytest.approx(0, abs=1e-12)] == list(range(1, keep + 2))
    assert found.metrics["positions"] == 3 * (8 - keep - 1)


def test_restricted_state_is_the_difference_of_the_losses():
    backbone = made("sps")
    packed = np.array([[1] * 6 + [2] * 8, [1] * 14, [1] * 2 + [2] * 12])
    held_out = task(packed=packed)
    found = make_analysis("restricted-state", keep=3).analyze(subject(HeadPredictor(backbone), held_out))
    rises: dict[int, list[float]] = {}
    for row in documents(held_out.held_out()):
        tokens = torch.from_numpy(row)[None]
        readouts = (model.encode(Batch.plain(tokens)).readout[0, :-1] for model in (backbone, backbone.limited(3)))
        both = [F.cross_entropy(backbone.logits(one), tokens[0, 1:], reduction="none") for one in readouts]
        for place, rise in enumerate((both[1] - both[0]).tolist()):
            rises.setdefault(place + 1, []).append(rise)
    assert found.details["position"] == sorted(rises)
    for place, rise, count in zip(*(found.details[key] for key in ("position", "rise", "count"))):
        assert rise == pytest.approx(np.mean(rises[place]), abs=1e-9)
        assert count == len(rises[place])
    beyond = [rise for place, all_rises in rises.items() for rise in all_rises if place > 4]
    assert found.metrics["rise"] == pytest.approx(np.mean(beyond), abs=1e-9)
    assert found.metrics["positions"] == len(beyond)


def test_the_error_of_the_rise_is_over_sequences():
    """Sequences of equal length: then the rise is the mean of theirs, and its error that of a mean."""
    predictor, held_out = HeadPredictor(made("sps")), task(rows=7, places=9)
    analysis = make_analysis("restricted-state", keep=3)
    alone = []
    for row in range(7):
        examples = held_out.held_out()
        one = Examples(examples.tokens[row : row + 1], examples.lengths[:1], examples.prompt_lengths[:1], None)
        alone.append(analysis.analyze(subject(predictor, FixedTask(one))).metrics)
    found = analysis.analyze(subject(predictor, held_out)).metrics
    rises = [metrics["rise"] for metrics in alone]
    assert found["rise"] == pytest.approx(np.mean(rises))
    assert found["rise_standard_error"] == pytest.approx(np.std(rises, ddof=1) / 7**0.5)
    assert "rise_standard_error" not in alone[0]


@pytest.mark.parametrize(("logits", "rows"), [(2**26, [16, 4]), (14 * VOCABULARY * 3, [3] * 6 + [2]), (1, [1] * 20)])
def test_the_state_is_restricted_of_as_many_rows_as_their_logits_allow(logits, rows, monkeypatch):
    predictor, held_out = HeadPredictor(made("sps")), task(rows=20)
    analysis = make_analysis("restricted-state", keep=3)
    wanted = analysis.analyze(subject(predictor, held_out)).metrics
    seen = []
    asked = CausalPredictor.logits
    monkeypatch.setattr(data, "LOGITS", logits)
    monkeypatch.setattr(
        CausalPredictor, "logits", lambda self, batch: seen.append(len(batch.tokens)) or asked(self, batch)
    )
    assert analysis.analyze(subject(predictor, held_out)).metrics == pytest.approx(wanted)
    assert seen[::2] == seen[1::2] == rows  # whole and restricted


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
        ("gradient-ratio", {"furthest": 8, "every": 20}, "every 20 is above furthest 8"),
        (
            "restricted-state",
            {"keep": 8, "positions": 9},
            "positions 9 is too low: with keep 8 the first 9 lose no key",
        ),
        ("restricted-state", {"keep": 30}, "no held-out document has the 33 tokens that `keep` 30"),
        ("gradient-ratio", {"sources": 0}, "sources must be at least 1"),
        ("restricted-state", {"keep": -1}, "keep must be at least 0"),
        ("restricted-state", {"keep": 12}, "no held-out document has the 15 tokens"),
    ],
)
def test_what_cannot_be_measured_is_said(name, fields, message):
    with pytest.raises(ValueError, match=message):
        make_analysis(name, **fields).analyze(subject(HeadPredictor(made("sps")), task()))


def test_models_without_the_power_are_refused():
    with pytest.raises(ValueError, match="whose kept state can be limited"):
        make_analysis("restricted-state", keep=2).analyze(subject(HeadPredictor(tiny_gpt()), task()))
