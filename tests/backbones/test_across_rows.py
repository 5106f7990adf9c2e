"""A state carried from row to row in training, against one long row and against its definition."""

import numpy as np
import pytest
import torch
from doubles import VOCABULARY, CutStream, spread_weights, tiny_belief_slots, tiny_objective
from torch.utils.checkpoint import checkpoint

from statewise.backbones.nn.attention import rotary_angles
from statewise.backbones.nn.block import BlockContext
from statewise.data_types import Batch
from statewise.objectives import OBJECTIVES
from statewise.tasks.batches import Stream

pytestmark = pytest.mark.usefixtures("float64")
CHUNK, ROW, END = 4, 12, CutStream.end
STEPS, LANES = 4, 2
LENGTHS = [*(5, 19, 12), *(1, 35, 2, 2, 20), *(40, 9)]
"""Of documents: ends inside rows, inside chunks and at the end of a row; documents of several rows."""
KINDS = [
    (update, pooling, 2 * ((row + column) % 2))
    for row, update in enumerate(("ema", "gated"))
    for column, pooling in enumerate(("last", "mean", "attention"))
]
"""All pairs of an update, a pooling and a warm-up."""


def model(**fields):
    torch.manual_seed(0)
    made = tiny_belief_slots(**{"chunk": CHUNK, "across_rows": True, **fields})
    spread_weights(made)
    return made.train()


def stream(row=ROW, seed=0, lanes=LANES):
    rng = np.random.default_rng(5)
    tokens = np.concatenate([[*rng.integers(1, VOCABULARY, length - 1), END] for length in LENGTHS])
    tokens = tokens[: len(tokens) // row * row]  # the long row has no room for a shorter one
    return Stream(CutStream(tokens, row), seed=seed, batch_size=lanes, rows="consecutive")


def lanes_of(read, steps=STEPS):
    """Of each lane its tokens (steps x row) and their documents, numbered through; straight from the corpus."""
    tokens, row, found = read.task.tokens, read.task.context, []
    first = read.batch(0).tokens
    rows = len(read.examples)
    for lane in range(read.batch_size):
        (begin,) = (at for at in range(rows) if np.array_equal(tokens[at * row : (at + 1) * row], first[lane]))
        places = (begin + np.arange(steps)[:, None]) % rows * row + np.arange(row)
        places = places.flatten()
        opens = (places == 0) | (tokens[places - 1] == END)
        opens[0] = True
        found.append((tokens[places], np.cumsum(opens)))
    return [torch.from_numpy(np.stack(parts)) for parts in zip(*found)]


def test_the_corpus_has_every_kind_of_boundary():
    _, documents = lanes_of(stream())
    cuts = documents.unflatten(1, (STEPS, ROW))
    goes_on = cuts[:, 1:, 0] == cuts[:, :-1, -1]
    assert goes_on.any(), "a document that goes on in the next row"
    assert not goes_on.all(), "a row that ends with a document"
    assert ((cuts[..., 1:] != cuts[..., :-1]).any(-1)).any(), "a document that ends inside a row"


@pytest.mark.parametrize(("update", "pooling", "warmup"), KINDS)
def test_rows_are_one_long_row_that_is_cut_off_at_their_ends(update, pooling, warmup):
    """Losses and gradients. A row has three chunks, so the long one is cut behind every second update."""
    kind = {"update": update, "pooling": pooling, "warmup": warmup}
    whole = tiny_objective(
        "next_token", make_backbone=lambda **_: model(context=STEPS * ROW, backprop=2, across_rows=False, **kind)
    )
    made = model(context=ROW, **kind)
    parts = tiny_objective("next_token", make_backbone=lambda **_: made)
    made.open_lanes(LANES)
    read, losses, scored = stream(), [], []
    for step in range(STEPS):
        batch = read.batch(step)
        loss = parts(batch).parts["next_token"].total
        loss.backward()
        made.advance_lanes()
        losses.append(loss.detach())
        scored.append(batch.scored)
    tokens, documents = lanes_of(read)
    mask = torch.cat(scored, dim=1)
    long = Batch(tokens, mask, torch.ones_like(mask), documents, (1, STEPS * ROW))
    loss = whole(long).parts["next_token"].total
    loss.backward()
    torch.testing.assert_close(sum(losses), loss.detach())
    for (name, one), other in zip(parts.named_parameters(), whole.parameters()):
        torch.testing.assert_close(one.grad, other.grad, msg=name)
    assert made.update.in_proj.weight.grad.abs().max() > 0


def slowly(made, tokens, documents, row):
    """Readouts (T, D) of a lane, one document of a chunk at a time; at the end of a row the state's update is cut off
    from what it reads."""

    def passed(part, state):
        angles = rotary_angles(torch.arange(len(part)), made.gpt.head_width)
        x, context = made.gpt.embed(part)[None], BlockContext(angles)
        for block, inject in zip(made.gpt.blocks, made.injections):
            x = block(x + inject(state), context)
        return made.gpt.norm(x)[0]

    def renewed(state, hidden):
        return made.update(state[None], hidden[None], None)[0]

    state, owner, readouts = made.initial, None, []
    for part, own in zip(tokens.split(row), documents.split(row)):
        for few, whose in zip(part.split(made.chunk), own.split(made.chunk)):
            for document in whose.unique_consecutive():
                hidden = passed(few[whose == document], state if document == owner else made.initial)
                readouts.append(hidden)
            goes_on = whose[-1] == owner
            before = state if goes_on else made.initial
            state, owner = renewed(before, hidden), whose[-1]
        state = renewed(before.detach() if goes_on else before, hidden.detach())
    return torch.cat(readouts)


@pytest.mark.parametrize("row", [7, 10, 12])
@pytest.mark.parametrize(("update", "pooling"), [("ema", "attention"), ("gated", "mean"), ("gated", "last")])
def test_rows_that_end_within_a_chunk_do_what_the_definition_says(row, update, pooling):
    made = model(update=update, pooling=pooling, context=row)
    made.open_lanes(LANES)
    read = stream(row)
    found = []
    for step in range(STEPS):
        found.append(made.readouts(read.batch(step)))
        made.advance_lanes()
    found = torch.cat(found, dim=1)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(3))
    expected = torch.stack([slowly(made, *lane, row) for lane in zip(*lanes_of(read))])
    torch.testing.assert_close(found, expected)
    parameters = list(made.parameters())
    grads = [torch.autograd.grad((each * weights).sum(), parameters) for each in (found, expected)]
    for one, other in zip(*grads):
        torch.testing.assert_close(one, other)


def begun(**fields):
    """A model that has read a row of each lane, and the stream."""
    made, read = model(context=ROW, **fields), stream()
    made.open_lanes(LANES)
    made.readouts(read.batch(0))
    made.advance_lanes()
    return made, read


def test_every_pass_of_a_step_begins_with_what_the_step_before_left():
    made, read = begun()
    batch = read.batch(1)
    assert batch.continuation.follows.any()
    once = made.readouts(batch)
    alone = made.readouts(batch._replace(continuation=None))
    moved = (once != alone).any(-1).any(-1)
    assert moved.tolist() == batch.continuation.follows.tolist(), "a row that follows reads the state, no other does"
    with torch.no_grad():  # norms round otherwise there
        torch.testing.assert_close(made.readouts(batch), once, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(made.encode(batch).readout, once, rtol=0, atol=0)
    made.advance_lanes()
    assert not torch.equal(made.readouts(batch), once), "in the next step it is another state"


def test_evaluation_neither_reads_nor_moves_what_lanes_keep():
    made, read = begun()
    before = {name: tensor.clone() for name, tensor in made.kept_lanes().items()}
    made.eval()
    batch = read.batch(1)
    torch.testing.assert_close(made.readouts(batch), made.readouts(batch._replace(continuation=None)))
    made.advance_lanes()
    for name, tensor in made.kept_lanes().items():
        assert torch.equal(tensor, before[name])
    assert not any("lanes" in name for name in made.state_dict())


def test_parts_of_a_batch_have_their_own_lanes():
    made, read = begun()
    whole = made.readouts(read.batch(1))
    made.advance_lanes()
    expected = {name: tensor.clone() for name, tensor in made.kept_lanes().items()}
    other, _ = begun()
    parts = [other.readouts(part) for part in read.batches(1, LANES)]
    other.advance_lanes()
    torch.testing.assert_close(torch.cat(parts), whole)
    for name, tensor in other.kept_lanes().items():
        torch.testing.assert_close(tensor, expected[name])


def test_a_pass_that_is_computed_again_for_its_gradient_reads_the_same():
    made, read = begun()
    batch = read.batch(1)

    def gradients(loss):
        return torch.autograd.grad(loss, list(made.parameters()))

    plain = gradients(made.readouts(batch).square().sum())
    again = gradients(checkpoint(lambda given: made.readouts(given).square().sum(), batch, use_reentrant=False))
    for one, other in zip(plain, again):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.slow
def test_compiled_it_keeps_the_same():
    plain, read = begun()
    made, _ = begun()
    compiled = torch.compile(made.readouts, backend="aot_eager")
    for step in range(1, STEPS):
        batch = read.batch(step)
        torch.testing.assert_close(compiled(batch), plain.readouts(batch))
        made.advance_lanes()
        plain.advance_lanes()
        for name, tensor in made.kept_lanes().items():
            torch.testing.assert_close(tensor, plain.kept_lanes()[name])


def test_what_lanes_keep_is_taken_up_and_held_to_its_shape():
    made, read = begun()
    kept = {name: tensor.clone() for name, tensor in made.kept_lanes().items()}
    other = model(context=ROW)
    other.open_lanes(LANES)
    other.load_lanes(kept)
    for step in (1, 2):
        batch = read.batch(step)
        torch.testing.assert_close(other.readouts(batch), made.readouts(batch), rtol=0, atol=0)
        made.advance_lanes()
        other.advance_lanes()
    for changed, message in (
        ({**kept, "state": kept["state"][:1]}, "has shapes"),
        ({"state": kept["state"]}, "has shapes"),
        ({**kept, "owner": kept["owner"].double()}, "owner is of type float64, not int64"),
        ({**kept, "hidden": kept["hidden"] * float("nan")}, "hidden contains NaN or infinity"),
    ):
        with pytest.raises(ValueError, match=message):
            other.load_lanes(changed)


@pytest.mark.parametrize(
    "name", [name for name in OBJECTIVES if not name.endswith("multi_token") or name.startswith("joint")]
)
def test_every_objective_reads_on(name):
    objective = tiny_objective(
        name, make_backbone=lambda **fields: tiny_belief_slots(chunk=CHUNK, context=ROW, across_rows=True, **fields)
    )
    spread_weights(objective)
    carrying = objective.train().backbones_across_rows()
    assert carrying
    read = stream()
    for backbone in carrying.values():
        backbone.open_lanes(LANES)
    objective(read.batch(0)).value().backward()
    for backbone in carrying.values():
        backbone.advance_lanes()
    batch = read.batch(1)
    torch.manual_seed(0)
    loss = objective(batch).value()
    torch.manual_seed(0)
    alone = objective(batch._replace(continuation=None)).value()
    assert loss.isfinite()
    assert loss != alone
    if name == "belief_state":  # what is read from its end has no row before it
        torch.testing.assert_close(
            objective.suffix_states(batch), objective.suffix_states(batch._replace(continuation=None))
        )
