"""What every objective of the table must hold."""

import functools
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from doubles import (
    OWN_OBJECTIVES,
    TINY_BACKBONES,
    VOCABULARY,
    makes_sense,
    pack,
    random_batch,
    spread_weights,
    tiny_gpt,
    tiny_objective,
    tiny_two_stream,
)
from safetensors.torch import load_file, save_file

from statewise.backbones import BACKBONES
from statewise.backbones.nn.cache import SLACK
from statewise.data_types import Batch, Examples, LacksCapability
from statewise.decoding.predictor import Drafter, Traceable, require
from statewise.objectives import OBJECTIVES
from statewise.tasks.batches import collate

pytestmark = pytest.mark.usefixtures("float64")
BACKBONES_OF = {
    **TINY_BACKBONES,
    "gpt, stick_breaking": functools.partial(tiny_gpt, attention="stick_breaking", positions="none"),
    "two_stream, own": functools.partial(tiny_two_stream, prediction_start="own"),
}
"""A tiny one of each backbone of the table, some also with another option behind a comma."""
GUIDE = "the guide's"
REFUSED = {
    (name, backbone)
    for backbone in BACKBONES_OF
    for name in OBJECTIVES
    if not makes_sense(name, backbone.partition(",")[0])
}
WITH_OPTIONS = ("next_token", "belief_state", "multi_token", "latent_multi_token")
"""Objectives that are tried with options of backbones: those with encoders or blocks of their own, and the plainest."""
pairs = [
    (name, backbone)
    for backbone in BACKBONES_OF
    for name in (*OBJECTIVES, *OWN_OBJECTIVES, GUIDE)
    if "," not in backbone or name in (*WITH_OPTIONS, *OWN_OBJECTIVES)
]


@functools.cache
def guide():
    """The objective of docs/adding-an-objective.md, examples/two_ahead.py."""
    code = (Path(__file__).parents[2] / "examples" / "two_ahead.py").read_text()
    module = types.ModuleType("two_ahead")
    sys.modules["two_ahead"] = module  # where its dataclass looks for its annotations
    exec(code, module.__dict__)
    return module.TwoAhead


def new(name, seed=0, **fields):
    name, _, backbone = name.partition(" on ")
    make_backbone = functools.partial(BACKBONES_OF[backbone], **fields)
    if name != GUIDE:
        return tiny_objective(name, seed, make_backbone=make_backbone)
    torch.manual_seed(seed)
    return guide()(guide().Config(), make_backbone)


def can_be_had(name, backbone):
    """Of our own objectives `REFUSED` says it; one of another package says so itself."""
    try:
        return (name, backbone) not in REFUSED and bool(name not in OWN_OBJECTIVES or new(f"{name} on {backbone}"))
    except LacksCapability:
        return False


names = [f"{name} on {backbone}" for name, backbone in pairs if can_be_had(name, backbone)]
every_objective = pytest.mark.parametrize("name", names)


@functools.cache
def untrained_predictors():
    """That of each of the names."""
    torch.set_default_dtype(torch.float64)
    found = {name: new(name).predictor() for name in names}
    torch.set_default_dtype(torch.float32)
    return found


def able(kind):
    """Parametrised over the names whose predictor has a capability."""
    having = [name for name, predictor in untrained_predictors().items() if predictor.capability(kind) is not None]
    assert having
    return pytest.mark.parametrize("name", having)


def each_way_of_reading():
    """One name of each class of predictors on each backbone: a `HeadPredictor` reads as its backbone does, whichever
    objective made it."""
    found = {}
    for name, predictor in untrained_predictors().items():
        own = name.partition(" on ")[0] if name.partition(" on ")[0] in (GUIDE, *OWN_OBJECTIVES) else None
        found.setdefault((type(predictor), name.partition(" on ")[2], own), name)
    return pytest.mark.parametrize("name", list(found.values()))


every_reading = each_way_of_reading()


def test_every_backbone_is_tried():
    assert {name.partition(",")[0] for name in BACKBONES_OF} >= set(BACKBONES)


@pytest.mark.parametrize("pair", sorted(REFUSED), ids=" on ".join)
def test_a_pair_that_makes_no_sense_is_refused_with_the_reason(pair):
    with pytest.raises(ValueError, match=f"^{pair[0]} needs a backbone whose last block can be replicated"):
        new(" on ".join(pair))


@functools.cache
def _made(name):
    objective = new(name)
    spread_weights(objective)
    return objective


def made(name):
    """An objective that tests share and no test changes, but for its gradients."""
    objective = _made(name).train()
    objective.zero_grad()
    torch.manual_seed(0)  # whether it was made just now or before
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
def test_other_losses_can_be_given_less_weight(name):
    """The gradient is that of the next token's loss, and half of what the others add to it."""
    objective = made(name)
    if not objective.weights_can_decay:
        return
    loss = objective(random_batch())
    parameters = [parameter for parameter in objective.parameters() if parameter.requires_grad]

    def gradient(factor):
        value = loss.with_auxiliary(factor).value()
        gradients = torch.autograd.grad(value, parameters, retain_graph=True, materialize_grads=True)
        return torch.cat([each.reshape(-1) for each in gradients])

    none, half, whole = (gradient(factor) for factor in (0.0, 0.5, 1.0))
    torch.testing.assert_close(half, (none + whole) / 2)
    assert torch.equal(none, whole) == (set(objective.counts(random_batch())) == {"next_token"})


@every_objective
def test_rows_of_one_token_use_every_parameter_too(name):
    """Processes reduce gradients together, and one of them may read the last token of a corpus alone."""
    objective = made(name)
    loss = objective(collate(Examples.of([np.array([3])], [0]))).value()
    assert loss == 0
    loss.backward()
    assert not [name for name, parameter in objective.named_parameters() if parameter.grad is None]


@every_objective
def test_counts_are_those_of_the_loss(name):
    objective = made(name)
    for batch in (random_batch(), pack(random_batch()), random_batch(prompts=False)):
        counts, loss = objective.checked_counts(batch), objective(batch)
        objective.check_loss(loss)
        parts = loss.parts
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


@every_objective
def test_packed_documents_are_trained_as_if_apart(name):
    # Where in a chunk of belief slots a document begins bears on how it is read, unless a chunk holds all of a row.
    objective = new(name, **({"chunk": 20} if "slots" in name else {}))
    spread_weights(objective)
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
    shares = [
        batch._replace(**{field: getattr(batch, field)[half] for field in ("tokens", "scored", "real")})
        for half in (slice(0, 1), slice(1, None))
    ]
    torch.testing.assert_close(sum(objective(share, counts).value() for share in shares), whole)


def prompted(length):
    """Sequences of ten tokens, of which `length` are given."""
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (4, 10))
    return collate(Examples(tokens, np.full(4, 10), np.full(4, length)))


@every_reading
def test_no_leak_from_the_future(name):
    predictor = made(name).eval().predictor()
    batch = prompted(8)
    changed = batch.tokens.clone()
    changed[:, 6] = (changed[:, 6] + 1) % VOCABULARY
    before, after = predictor.logits(batch), predictor.logits(batch._replace(tokens=changed))
    torch.testing.assert_close(after[:, :6], before[:, :6])
    assert not torch.allclose(after[:, 6], before[:, 6])


@every_reading
def test_answers_are_read_or_not_as_the_predictor_says(name):
    predictor = made(name).eval().predictor()
    batch = prompted(3)
    changed = batch.tokens.clone()
    changed[:, 6] = (changed[:, 6] + 1) % VOCABULARY
    before, after = predictor.logits(batch), predictor.logits(batch._replace(tokens=changed))
    assert torch.allclose(after[:, 6:], before[:, 6:]) != predictor.reads_answers


@every_reading
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
    predictor.release(cursor)
    assert predictor.states(batch).state.shape[:2] == batch.tokens.shape


@every_reading
def test_rows_of_different_lengths_share_a_pass(name):
    """Prompts of their own lengths, rows that read more or less, go back, leave and join."""
    predictor = made(name).eval().predictor()
    batch = prompted(3) if not predictor.reads_answers else prompted(9)
    whole = predictor.logits(batch)
    lengths = np.array([3, 3, 3, 3]) if not predictor.reads_answers else np.array([3, 1, 5, 2])
    cursor, logits = predictor.start(batch.tokens[:, : lengths.max()], lengths)
    everyone = torch.arange(4)
    torch.testing.assert_close(logits, whole[everyone, lengths - 1])
    counts = np.array([2, 0, 1, 3])
    new_tokens = torch.stack([torch.roll(row, -int(start))[:3] for row, start in zip(batch.tokens, lengths)])
    found = predictor.extend(cursor, new_tokens, counts)
    for row, (start, count) in enumerate(zip(lengths, counts)):
        torch.testing.assert_close(found[row, :count], whole[row, start : start + count])
    predictor.rewind(cursor, np.array([1, 0, 0, 2]))
    at = lengths + counts - [1, 0, 0, 2]
    predictor.reorder(cursor, torch.tensor([3, 0, 1]))
    at = np.append(at[[3, 0, 1]], 4 if predictor.reads_answers else 3)
    other, _ = predictor.start(batch.tokens[2:3, : at[3]])
    predictor.join(cursor, other)
    order = torch.tensor([3, 0, 1, 2])
    last = predictor.extend(cursor, batch.tokens[order, at][:, None])[:, 0]
    torch.testing.assert_close(last, whole[order, at])


@every_reading
def test_it_comes_back_to_where_it_was_held(name):
    """From further than any window keeps, whose length is reach and twice its slack."""
    places = 3 + 2 * SLACK + 3 + 40
    objective = new(name, context=places)
    spread_weights(objective)
    predictor = objective.eval().predictor()
    tokens = torch.randint(0, VOCABULARY, (2, places), generator=torch.Generator().manual_seed(0))
    cursor, _ = predictor.start(tokens[:, :3])
    predictor.hold(cursor)
    straight = predictor.extend(predictor.start(tokens[:, :3])[0], tokens[:, 3:8])
    between = 7 * tokens[:, 3:] % VOCABULARY
    for part in (*between[:, :5].split([1, 1, 3], dim=1), *between[:, 5:].split(9, dim=1)):
        predictor.extend(cursor, part)
    predictor.rewind(cursor, places - 3)
    torch.testing.assert_close(predictor.extend(cursor, tokens[:, 3:8]), straight)


@every_objective
def test_weights_survive_the_disk(name, tmp_path):
    objective, other = made(name), new(name, seed=5)
    save_file(dict(objective.state_dict()), tmp_path / "weights.safetensors")
    other.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    batch = random_batch()
    torch.testing.assert_close(other(batch).value(), objective(batch).value())


@able(Drafter)
def test_guesses_have_the_promised_shape_and_leave_the_cursor(name):
    predictor = made(name).eval().predictor()
    tokens = random_batch(prompts=False).tokens[:, :4]
    cursor, logits = predictor.start(tokens)
    first = logits.argmax(-1)
    guesses = predictor.guesses(cursor, first)
    guessed = next(guesses)
    assert guessed.shape == (4, VOCABULARY)
    for other in range(2):
        try:
            assert guesses.send((first + other) % VOCABULARY).shape == (4, VOCABULARY)
        except StopIteration:
            break
    torch.testing.assert_close(next(predictor.guesses(cursor, first)), guessed)
    torch.testing.assert_close(
        predictor.extend(cursor, first[:, None]), predictor.extend(predictor.start(tokens)[0], first[:, None])
    )


@able(Traceable)
def test_what_is_traced_is_the_loss(name):
    predictor = made(name).eval().predictor()
    tokens = prompted(1).tokens
    traced = require(predictor, Traceable).trace(tokens, torch.tensor([2, 5, 7, 8]))
    log_probs = predictor.logits(Batch.plain(tokens)).log_softmax(-1)
    rows, places = torch.arange(4), torch.tensor([2, 5, 7, 8])
    torch.testing.assert_close(traced.losses.detach(), -log_probs[rows, places, tokens[rows, places + 1]])
    assert traced.uses
