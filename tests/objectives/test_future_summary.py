"""Future summaries against loops over positions, gradients included."""

import pytest
import torch
from doubles import VOCABULARY, pack, random_batch, spread_weights, tiny_gpt, tiny_objective, tiny_two_stream
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from statewise.data_types import Batch
from statewise.losses import vocabulary_head

pytestmark = pytest.mark.usefixtures("float64")


def documents(batch):
    """(row, first column, tokens (n,), scored (n,)) of each document."""
    group = batch.document_ids
    for b in range(len(batch.tokens)):
        for number in group[b].unique().tolist():
            columns = (group[b] == number).nonzero()[:, 0]
            if number:
                yield b, int(columns[0]), batch.tokens[b, columns], batch.scored[b, columns]


def bag(objective, hidden, batch):
    losses = []
    for b, first, tokens, scored in documents(batch):
        for t in range(len(tokens) - 2):
            if scored[t + 2]:
                logits = objective.map.weight @ hidden.state[b, first + t]
                places = range(t + 2, min(len(tokens), t + objective.config.window + 1))
                inside = {int(tokens[place]) for place in places if scored[place]}
                present = [-F.logsigmoid(logits[v]) for v in range(VOCABULARY) if v in inside]
                absent = [-F.logsigmoid(-logits[v]) for v in range(VOCABULARY) if v not in inside]
                means = [sum(values) / len(values) for values in (present, absent) if values]
                losses.append(sum(means) / 2)
    return {"bag": sum(losses) / len(losses)}


def reverse(objective, hidden, batch):
    summaries, previous = [], []
    for b, first, tokens, scored in documents(batch):
        backwards = objective.reverse.encode(Batch.plain(tokens.flip(0)[None]))
        for j in range(len(tokens) - 1):  # the reader of tokens j + 1 .. end predicts token j
            if scored[j] or (j == 0 and scored[1]):
                logits = objective.reverse.logits(backwards.readout[0, len(tokens) - 2 - j])
                previous.append(F.cross_entropy(logits, tokens[j]))
        for t in range(len(tokens) - 2):
            if scored[t + 2]:
                target = backwards.state[0, len(tokens) - 1 - (t + 2)].detach()
                summaries.append(F.mse_loss(objective.map(hidden.state[b, first + t]), target))
    return {"previous_token": sum(previous) / len(previous), "summary": sum(summaries) / len(summaries)}


def slow_twin(objective, batch):
    hidden = objective.backbone.encode(Batch.plain(batch.tokens, batch.documents))
    following = [
        F.cross_entropy(objective.backbone.logits(hidden.readout[b, first + t]), tokens[t + 1])
        for b, first, tokens, scored in documents(batch)
        for t in range(len(tokens) - 1)
        if scored[t + 1]
    ]
    summary = bag if objective.config.summary == "bag" else reverse
    return {"next_token": sum(following) / len(following), **summary(objective, hidden, batch)}


@pytest.mark.parametrize("settings", [{}, {"summary": "bag", "window": 2}, {"summary": "bag", "window": 40}], ids=str)
@pytest.mark.parametrize("make_backbone", [tiny_gpt, tiny_two_stream])
@pytest.mark.parametrize("packed", [False, True], ids=["apart", "packed"])
@pytest.mark.parametrize("blocks", [False, True], ids=["whole", "blocks"])
def test_loss_and_gradients_are_those_of_the_definition(monkeypatch, blocks, packed, make_backbone, settings):
    if blocks:
        monkeypatch.setitem(vocabulary_head.BLOCK, "cpu", 70)
    objective = tiny_objective("future_summary", make_backbone=make_backbone, summary_weight=0.7, **settings)
    spread_weights(objective)
    batch = random_batch(longest=9)
    batch = pack(batch) if packed else batch
    loss, slow = objective(batch), slow_twin(objective, batch)
    assert set(loss.parts) == set(slow)
    for name, part in loss.parts.items():
        torch.testing.assert_close(part.mean(), slow[name])
    total = sum(value * (0.7 if name in ("bag", "summary") else 1) for name, value in slow.items())
    parameters = dict(objective.named_parameters())
    expected = torch.autograd.grad(total, parameters.values())
    for name, got, wanted in zip(parameters, torch.autograd.grad(loss.value(), parameters.values()), expected):
        torch.testing.assert_close(got, wanted, msg=lambda text, name=name: f"{name}: {text}")


def test_the_summary_does_not_train_the_reverse_model():
    objective = tiny_objective("future_summary")
    spread_weights(objective)
    objective(random_batch()).parts["summary"].mean().backward()
    assert all(parameter.grad is None for parameter in objective.reverse.parameters())
    assert objective.backbone.embedding.weight.grad.any()


def test_a_bag_with_every_token_has_no_outsiders():
    tokens = torch.arange(VOCABULARY).repeat(2)[None]
    scored = torch.ones_like(tokens, dtype=torch.bool).index_fill(1, torch.tensor([0]), False)
    batch = Batch.plain(tokens)._replace(scored=scored, span=(1, tokens.shape[1]))
    objective = tiny_objective("future_summary", summary="bag", window=40)
    torch.testing.assert_close(objective(batch).parts["bag"].mean(), slow_twin(objective, batch)["bag"])


@pytest.mark.usefixtures("attention_without_padding")
@pytest.mark.parametrize("summary", ["bag", "reverse"])
def test_a_step_costs_what_a_counter_finds(summary):
    torch.set_default_dtype(torch.float32)  # attention in float64 is hidden from the counter
    batch = random_batch(prompts=False)
    full = torch.ones_like(batch.real)
    batch = batch._replace(real=full, scored=full.index_fill(1, torch.tensor([0]), False), span=(1, full.shape[1]))
    objective, plain = tiny_objective("future_summary", summary=summary), tiny_objective("next_token")
    found = []
    for made in (objective, plain):
        with FlopCounterMode(display=False) as counter:
            made(batch).value().backward()
        found.append(counter.get_total_flops())
    B, T = batch.tokens.shape
    masked = 3 * B * plain.backbone.layers * 4 * plain.backbone.width * T * (T - 1) / 2
    more = found[0] - found[1] - (masked if summary == "reverse" else 0)
    assert objective.flops(batch) - plain.flops(batch) == pytest.approx(more)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"summary": "words"}, "objective.summary must be reverse or bag, not 'words'"),
        ({"summary_weight": 0.0}, "summary_weight"),
        ({"window": 1}, "window"),
    ],
)
def test_what_makes_no_sense_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        tiny_objective("future_summary", **fields)
