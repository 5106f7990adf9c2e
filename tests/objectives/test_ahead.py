"""Multi-token, joint multi-token and teacherless prediction against loops over positions."""

import pytest
import torch
from doubles import CONTEXT, pack, random_batch, spread_weights, tiny_gpt, tiny_objective
from torch.nn import functional as F

from statewise.data_types import Batch, LacksCapability
from statewise.losses.targets import follows, predicted, predicts, reached
from statewise.objectives import OBJECTIVES

pytestmark = pytest.mark.usefixtures("float64")


def targets(batch, steps):
    """(row, source, target column) of what lies `steps` beyond the next token, within one document."""
    documents = batch.documents if batch.documents is not None else torch.ones_like(batch.tokens)
    for b in range(len(batch.tokens)):
        for t in range(batch.tokens.shape[1] - 1 - steps):
            target = t + 1 + steps
            if batch.scored[b, target] and documents[b, t] == documents[b, target - 1]:
                yield b, t, target


def mean(values):
    return sum(values) / len(values) if values else torch.zeros(())


def multi_token_twin(objective, batch):
    """Every head is a GPT of its own that shares all but its last block."""
    trunk = objective.backbone.trunk(batch)
    states = [objective.backbone.last(trunk).readout, *(branch(trunk) for branch in objective.branches)]
    return [
        mean(
            [
                F.cross_entropy(objective.backbone.logits(state[b, t]), batch.tokens[b, target])
                for b, t, target in targets(batch, steps)
            ]
        )
        for steps, state in enumerate(states)
    ]


def joint_twin(objective, batch):
    """Fetch one position, and of it one place, at a time."""
    fetch, backbone, tokens = objective.fetch, objective.backbone, batch.tokens
    states = backbone.encode(Batch.plain(tokens, batch.documents)).state
    width, heads = backbone.width, fetch.heads
    size = width // heads
    found = []
    for steps in range(objective.config.horizon + 1):
        losses = []
        for b, t, target in targets(batch, steps):
            places = [
                fetch.mix_norm(backbone.embed(tokens[b, t + i]) + fetch.gamma * states[b, t]) for i in range(steps + 1)
            ]
            qkv = [fetch.in_proj(place).view(3, heads, size) for place in places]
            seen = []
            for head in range(heads):
                scores = torch.stack(
                    [
                        (qkv[steps][0, head] @ qkv[i][1, head]) / size**0.5 + fetch.bias[head, steps, i]
                        for i in range(steps + 1)
                    ]
                )
                weights = scores.softmax(0)
                seen.append(sum(weights[i] * qkv[i][2, head] for i in range(steps + 1)))
            out = fetch.out_proj(torch.cat(seen)) + (states[b, t] if steps else 0)
            losses.append(F.cross_entropy(backbone.logits(fetch.norm(out)), tokens[b, target]))
        found.append(mean(losses))
    return found


@pytest.mark.parametrize("name", ["multi_token", "joint_multi_token"])
@pytest.mark.parametrize("fields", [{"horizon": 1}, {"horizon": 3, "ahead_weight": 0.4}, {"horizon": 20}], ids=str)
@pytest.mark.parametrize("packed", [False, True], ids=["apart", "packed"])
def test_loss_and_gradients_are_those_of_the_equations(name, fields, packed):
    objective = tiny_objective(name, backbone={"layers": 1}, **fields)
    spread_weights(objective)
    batch = random_batch(longest=6)
    batch = pack(batch) if packed else batch
    loss = objective(batch)
    following, *ahead = (multi_token_twin if name == "multi_token" else joint_twin)(objective, batch)
    torch.testing.assert_close(loss.parts["next_token"].mean(), following)
    torch.testing.assert_close(loss.parts["ahead"].mean(), mean(ahead))
    total = following + objective.config.ahead_weight * mean(ahead)
    parameters = dict(objective.named_parameters())
    fast = torch.autograd.grad(loss.value(), parameters.values(), materialize_grads=True, allow_unused=True)
    slow = torch.autograd.grad(total, parameters.values(), materialize_grads=True, allow_unused=True)
    for parameter, got, expected in zip(parameters, fast, slow):
        torch.testing.assert_close(got, expected, msg=lambda text, parameter=parameter: f"{parameter}: {text}")


def test_the_first_head_is_the_plain_model():
    torch.manual_seed(0)
    objective = tiny_objective("multi_token", horizon=2)
    batch = random_batch()
    torch.testing.assert_close(
        objective.predictor().logits(batch),
        objective.backbone.logits(objective.backbone.encode(Batch.plain(batch.tokens)).readout),
    )


@pytest.mark.parametrize("packed", [False, True], ids=["apart", "packed"])
def test_the_state_of_multi_token_is_what_all_its_heads_read(packed):
    objective = tiny_objective("multi_token", backbone={"layers": 3}, horizon=2)
    spread_weights(objective)
    batch = pack(random_batch()) if packed else random_batch()
    read = []
    heads = [objective.backbone.blocks[-1], *(branch.block for branch in objective.branches)]
    handles = [head.register_forward_pre_hook(lambda _, given: read.append(given[0])) for head in heads]
    objective(batch)
    for handle in handles:
        handle.remove()
    hidden = objective.predictor().states(batch)
    assert len(read) == 3
    for given in read:
        torch.testing.assert_close(hidden.state, given)
    torch.testing.assert_close(hidden.readout, objective.backbone.encode(batch).readout)


def test_a_backbone_that_cannot_branch_is_refused():
    class Whole(torch.nn.Module):
        pass

    kind = OBJECTIVES["multi_token"]
    with pytest.raises(LacksCapability, match="multi_token needs a backbone whose last block can be replicated"):
        kind(kind.Config(), lambda **_: Whole())


@pytest.mark.parametrize("name", ["multi_token", "joint_multi_token"])
@pytest.mark.parametrize("fields", [{"horizon": 0}, {"ahead_weight": 0.0}])
def test_senseless_fields_are_refused(name, fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        tiny_objective(name, **fields)


@pytest.mark.parametrize("make", [random_batch, lambda: pack(random_batch(1)), lambda: random_batch(2, prompts=False)])
@pytest.mark.parametrize("horizon", [1, 3, 200])
def test_counts_of_all_steps_are_those_of_each(make, horizon):
    batch = make()
    steps = range(1, min(horizon, batch.tokens.shape[1] - 1) + 1)
    rest = [0] * (horizon - len(steps))
    assert reached(batch, horizon).tolist() == [*(int(follows(batch, step).sum()) for step in steps), *rest]
    assert predicted(batch, horizon).tolist() == [*(int(predicts(batch, step).sum()) for step in steps), *rest]
    assert predicted(batch, horizon).tolist() == [len(list(targets(batch, step))) for step in range(1, horizon + 1)]


@pytest.mark.parametrize("name", ["multi_token", "latent_multi_token", "joint_multi_token", "next_latent"])
@pytest.mark.parametrize("horizon", [CONTEXT, 10**6, 2**53 - 1])
def test_a_horizon_beyond_the_longest_sequence_is_refused(name, horizon):
    with pytest.raises(
        ValueError, match=rf"objective.horizon {horizon:,} is beyond .* {CONTEXT} .* most {CONTEXT - 1}"
    ):
        tiny_objective(name, horizon=horizon)
    assert tiny_objective(name, horizon=CONTEXT - 1).config.horizon == CONTEXT - 1


def test_teacherless_sees_no_token_of_the_answer():
    objective = tiny_objective("teacherless")
    spread_weights(objective)
    batch = random_batch()
    blotted = torch.where(batch.scored, objective.filler, batch.tokens)
    logits = objective.backbone.logits(objective.backbone.encode(Batch.plain(blotted)).readout)[..., : objective.filler]
    expected = [
        F.cross_entropy(logits[b, t], batch.tokens[b, t + 1])
        for b in range(len(blotted))
        for t in range(blotted.shape[1] - 1)
        if batch.scored[b, t + 1]
    ]
    torch.testing.assert_close(objective(batch).value(), mean(expected))


def test_teacherless_answers_in_one_pass_whatever_it_is_told():
    objective = tiny_objective("teacherless").eval()
    spread_weights(objective)
    predictor, backbone = objective.predictor(), objective.backbone
    prompts = random_batch(prompts=False).tokens[:, :4]
    calls = []
    handle = backbone.blocks[0].register_forward_hook(lambda *_: calls.append(1))
    cursor, first = predictor.start(prompts)
    steps = [first, *(predictor.extend(cursor, torch.randint(0, 11, (4, 1)))[:, 0] for _ in range(5))]
    handle.remove()
    assert len(calls) == 2
    filled = torch.cat((prompts, torch.full((4, 5), objective.filler)), 1)
    expected = backbone.logits(backbone.encode(Batch.plain(filled)).readout)[:, 3:, : objective.filler]
    torch.testing.assert_close(torch.stack(steps, 1), expected)
    with pytest.raises(ValueError, match="prompt"):
        predictor.rewind(cursor, 6)
    with pytest.raises(ValueError, match="context"):
        predictor.extend(cursor, torch.zeros(4, 30, dtype=torch.long))


def test_a_borrowed_embedding_is_no_parameter_of_its_own():
    owner = tiny_gpt()
    guest = tiny_gpt(embedding_of=owner)
    assert not any("embedding" in name for name in guest.state_dict())
    tokens = torch.randint(0, 11, (2, 5))
    assert guest.embed(tokens).data_ptr() != owner.embed(tokens).data_ptr()
    torch.testing.assert_close(guest.embed(tokens), owner.embed(tokens))
    guest.encode(Batch.plain(tokens)).state.sum().backward()
    assert owner.embedding.weight.grad.abs().max() > 0
