"""What every objective of the table must hold."""

import functools

import numpy as np
import pytest
import torch
from doubles import (
    VOCABULARY,
    pack,
    random_batch,
    spread_weights,
    tiny_belief_slots,
    tiny_gpt,
    tiny_objective,
    tiny_two_stream,
)
from safetensors.torch import load_file, save_file

from statewise.data import collate
from statewise.decoding.base import Drafter
from statewise.nn.stream_cache import SLACK
from statewise.objectives import OBJECTIVES
from statewise.types import Examples

pytestmark = pytest.mark.usefixtures("float64")
ON_OTHERS = ["next_token", "next_latent", "joint_multi_token", "teacherless", "belief_state"]
"""Objectives that are tried with backbones whose state is not their readout, too."""
OTHERS = {"two streams": tiny_two_stream, "belief slots": tiny_belief_slots}
names = [*OBJECTIVES, *(f"{name} on {other}" for other in OTHERS for name in ON_OTHERS)]
every_objective = pytest.mark.parametrize("name", names)


def new(name, seed=0):
    name, _, other = name.partition(" on ")
    return tiny_objective(name, seed, make_backbone=OTHERS.get(other, tiny_gpt))


def made(name):
    objective = new(name)
    spread_weights(objective)
    return objective


@every_objective
def test_loss_is_finite_and_every_parameter_gets_gradient(name):
    objective = made(name)
    loss = objective(random_batch())
    assert all(torch.isfinite(part.total).all() for part in loss.parts.values())
    loss.value().backward()
    for parameter_name, parameter in objective.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.abs().max() > 0, parameter_name


@every_objective
def test_counts_are_those_of_the_loss(name):
    objective = made(name)
    for batch in (random_batch(), pack(random_batch()), random_batch(prompts=False)):
        counts = objective.counts(batch)
        parts = objective(batch).parts
        assert set(counts) == set(parts)
        for part_name, part in parts.items():
            torch.testing.assert_close(counts[part_name], part.terms)
            assert part.total.shape == part.terms.shape


@every_objective
def test_padding_changes_nothing(name):
    objective = made(name)
    batch = random_batch(longest=8)
    width = 3
    garbage = torch.randint(0, VOCABULARY, (len(batch.tokens), width))
    wide = batch._replace(
        tokens=torch.cat([torch.where(batch.real, batch.tokens, VOCABULARY - 1), garbage], 1),
        scored=torch.nn.functional.pad(batch.scored, (0, width)),
        real=torch.nn.functional.pad(batch.real, (0, width)),
    )
    torch.testing.assert_close(objective(wide).value(), objective(batch).value())


# Belief slots are left out: where in its chunk a document begins bears on how it is read.
@pytest.mark.parametrize("name", [name for name in names if "slots" not in name])
def test_packed_documents_are_trained_as_if_apart(name):
    objective = made(name)
    batch = random_batch(longest=8)
    apart, packed = objective(batch), objective(pack(batch))
    for part_name, part in apart.parts.items():
        torch.testing.assert_close(packed.parts[part_name].total, part.total)
        torch.testing.assert_close(packed.parts[part_name].terms, part.terms)


@every_objective
def test_a_batch_is_the_sum_of_its_shares(name):
    objective = made(name)
    batch = random_batch()
    counts = objective.counts(batch)
    whole = objective(batch).value()
    shares = [batch._replace(**{field: getattr(batch, field)[half] for field in ("tokens", "scored", "real")})
              for half in (slice(0, 1), slice(1, None))]  # fmt: skip
    torch.testing.assert_close(sum(objective(share, counts).value() for share in shares), whole)


def prompted(length):
    """Sequences of ten tokens, of which `length` are given."""
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (4, 10))
    return collate(Examples(tokens, np.full(4, 10), np.full(4, length)))


@every_objective
def test_no_leak_from_the_future(name):
    predictor = made(name).eval().predictor()
    batch = prompted(8)
    changed = batch.tokens.clone()
    changed[:, 6] = (changed[:, 6] + 1) % VOCABULARY
    before, after = predictor.logits(batch), predictor.logits(batch._replace(tokens=changed))
    torch.testing.assert_close(after[:, :6], before[:, :6])
    assert not torch.allclose(after[:, 6], before[:, 6])


@every_objective
def test_answers_are_read_or_not_as_the_predictor_says(name):
    predictor = made(name).eval().predictor()
    batch = prompted(3)
    changed = batch.tokens.clone()
    changed[:, 6] = (changed[:, 6] + 1) % VOCABULARY
    before, after = predictor.logits(batch), predictor.logits(batch._replace(tokens=changed))
    assert torch.allclose(after[:, 6:], before[:, 6:]) != predictor.reads_answers


@every_objective
def test_reading_step_by_step_is_reading_at_once(name):
    predictor = made(name).eval().predictor()
    batch = prompted(3)
    whole = predictor.logits(batch)
    cursor, logits = predictor.start(batch.tokens[:, :3])
    torch.testing.assert_close(logits, whole[:, 2])
    torch.testing.assert_close(predictor.extend(cursor, batch.tokens[:, 3:5]), whole[:, 3:5])
    predictor.extend(cursor, batch.tokens[:, :4])
    predictor.rewind(cursor, 4)
    rows = torch.tensor([2, 0, 1, 1])
    predictor.reorder(cursor, rows)
    torch.testing.assert_close(predictor.extend(cursor, batch.tokens[rows, 5:6])[:, 0], whole[rows, 5])
    width = 16 * (1 + 2 * ("slots" in name))
    assert predictor.states(batch).state.shape == (*batch.tokens.shape, width)


@every_objective
def test_it_comes_back_to_where_it_was_held(name):
    """From further than any window keeps, whose length is reach and twice its slack."""
    places = 3 + 2 * SLACK + 3 + 40
    name, _, two_streams = name.partition(" on ")
    make_backbone = functools.partial(tiny_two_stream if two_streams else tiny_gpt, context=places)
    objective = tiny_objective(name, make_backbone=make_backbone)
    spread_weights(objective)
    predictor = objective.eval().predictor()
    tokens = torch.randint(0, VOCABULARY, (2, places), generator=torch.Generator().manual_seed(0))
    cursor, _ = predictor.start(tokens[:, :3])
    predictor.hold(cursor)
    straight = predictor.extend(predictor.start(tokens[:, :3])[0], tokens[:, 3:8])
    for token in (7 * tokens[:, 3:] % VOCABULARY).split(1, dim=1):
        predictor.extend(cursor, token)
    predictor.rewind(cursor, places - 3)
    torch.testing.assert_close(predictor.extend(cursor, tokens[:, 3:8]), straight)


@every_objective
def test_weights_survive_the_disk(name, tmp_path):
    objective, other = made(name), new(name, seed=5)
    save_file(dict(objective.state_dict()), tmp_path / "weights.safetensors")
    other.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    batch = random_batch()
    torch.testing.assert_close(other(batch).value(), objective(batch).value())


@every_objective
def test_drafts_have_the_promised_shape(name):
    predictor = made(name).eval().predictor()
    if isinstance(predictor, Drafter):
        cursor, logits = predictor.start(random_batch(prompts=False).tokens[:, :4])
        tokens, drafted = predictor.draft(cursor, logits.argmax(-1), 3)
        assert tokens.shape == (4, 3)
        assert drafted.shape == (4, 3, VOCABULARY)
        assert torch.equal(drafted.argmax(-1), tokens)
