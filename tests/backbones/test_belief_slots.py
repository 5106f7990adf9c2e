"""The belief-slot decoder against its definition, its protocols, its cache, and its state on disk."""

import numpy as np
import pytest
import torch
from doubles import CONTEXT, VOCABULARY, spread_weights, tiny_belief_slots, tiny_objective

from statewise.backbones.gpt import GPT, GPTConfig
from statewise.backbones.nn.belief_slots import SlotUpdate
from statewise.data_types import Batch, Examples
from statewise.decoding.base import Request
from statewise.decoding.continuing import Continued
from statewise.decoding.predictor import Carrier, require
from statewise.decoding.sample import Greedy, GreedyConfig
from statewise.tasks.batches import collate

pytestmark = pytest.mark.usefixtures("float64")
CHUNK, SLOTS = 5, 2
KINDS = [(update, pooling) for update in ("ema", "gated") for pooling in ("last", "mean", "attention")]
every_injection = pytest.mark.parametrize("injection", ["normed", "linear"])
every_kind = pytest.mark.parametrize(("update", "pooling"), KINDS)


def model(seed=0, spread=True, **fields):
    torch.manual_seed(seed)
    made = tiny_belief_slots(**{"chunk": CHUNK, "slots": SLOTS, **fields})
    if spread:
        spread_weights(made)
    return made.eval()


def tokens(T=17, B=3, seed=0):
    return torch.randint(VOCABULARY, (B, T), generator=torch.Generator().manual_seed(seed))


def test_rows_that_read_nothing_change_nothing():
    made, row = model(), tokens(T=7, B=2)
    cache = made.make_cache(2)
    first = made.extend(row[:, :4], cache)
    nothing = made.extend(row[:, 4:6], cache, np.zeros(2, int))
    assert [each.shape for each in nothing] == [(2, 2, each.shape[-1]) for each in first]
    assert cache.lengths.tolist() == [4, 4]
    torch.testing.assert_close(made.extend(row[:, 4:], cache).readout, made.encode(Batch.plain(row)).readout[:, 4:])


def test_a_cache_that_forgot_all_of_its_chunk_can_be_joined_and_kept():
    made, row = model(), tokens(T=13, B=1)
    both = [made.make_cache(1) for _ in range(2)]
    for cache in both:
        made.extend(row, cache)
        cache.rewind(cache.groups[0][1].remembered)
    both[0].join(both[1])
    both[0].reorder(torch.tensor([0]))
    assert both[0].keep()["hidden"].shape[1] == 0


def by_definition(made, row, warmup=0, fresh=False):
    """Readouts (T, D) and slots (T, S, D) of a row of one document: h_l + W_l state, with `normed` the slots of length
    sqrt(D) and W_l of directions and gains, and the update behind a chunk."""
    gpt, config = made.gpt, made.config
    state, readouts, slots = made.initial, [], []

    def passed(part, state):
        x = gpt.embed(part)[None]
        from statewise.backbones.nn.attention import rotary_angles
        from statewise.backbones.nn.block import BlockContext

        context = BlockContext(rotary_angles(torch.arange(len(part)), gpt.head_width))
        for layer, block in enumerate(gpt.blocks):
            injection, given = made.injections[layer], state
            if config.injection == "normed":
                given = state / (state**2).mean(-1, keepdim=True).sqrt()
                matrix = torch.diag(injection.gain) @ injection.directions
            else:
                matrix = injection.weight
            x = block(x + matrix @ given.flatten(), context)
        return gpt.norm(x)[0]

    def renewed(state, hidden):
        update = made.update
        if config.pooling == "attention":
            weights = (update.query @ hidden.T / hidden.shape[1] ** 0.5).softmax(-1)
            proposed = update.in_proj(weights @ hidden)
        else:
            pooled = hidden[-1] if config.pooling == "last" else hidden.mean(0)
            proposed = update.in_proj(pooled).view(config.slots, -1)
        if config.update == "gated":
            return update.cell(proposed, state)
        rate = torch.sigmoid(update.rate)[:, None]
        return (1 - rate) * state + rate * proposed

    for part in row.split(config.chunk):
        if fresh:
            state = made.initial
        for _ in range(warmup):
            state = renewed(state, passed(part, state))
        hidden = passed(part, state)
        readouts.append(hidden)
        slots += [state] * len(part)
        state = renewed(state, hidden)
    return torch.cat(readouts), torch.stack(slots)


@every_injection
@every_kind
def test_it_does_what_its_definition_says(update, pooling, injection):
    made, x = model(update=update, pooling=pooling, injection=injection), tokens()
    state, readout = made.encode(Batch.plain(x))
    assert state.shape == (3, 17, made.state_width)
    torch.testing.assert_close(made.readouts(Batch.plain(x)), readout)
    torch.testing.assert_close(made.state_for_head(state), readout)
    for row in range(3):
        expected, slots = by_definition(made, x[row])
        torch.testing.assert_close(readout[row], expected)
        torch.testing.assert_close(state[row, :, made.width :], slots.flatten(1))
    for protocol, warmup in (("fresh", 0), ("same-chunk", 2)):
        asked = made.under(protocol, warmup)
        expected, _ = by_definition(made, x[1], warmup, fresh=True)
        torch.testing.assert_close(asked.readouts(Batch.plain(x))[1], expected)
    torch.testing.assert_close(made.readouts(Batch.plain(x)), readout)  # the model itself is asked as before


@every_injection
def test_gradients_are_those_of_the_definition(injection):
    made, x = model(pooling="mean", injection=injection), tokens(B=1)
    weights = torch.randn(17, made.width, generator=torch.Generator().manual_seed(3))
    found = torch.autograd.grad((made.readouts(Batch.plain(x))[0] * weights).sum(), list(made.parameters()))
    expected = torch.autograd.grad((by_definition(made, x[0])[0] * weights).sum(), list(made.parameters()))
    for name, one, other in zip(dict(made.named_parameters()), found, expected):
        torch.testing.assert_close(one, other, msg=name)


@every_injection
def test_it_starts_as_the_gpt_of_each_chunk(injection):
    made, x = model(spread=False, injection=injection), tokens()
    gpt = GPT(GPTConfig(width=16, heads=2, layers=2), vocabulary=VOCABULARY, context=CHUNK).eval()
    gpt.load_state_dict(made.gpt.state_dict())
    expected = torch.cat([gpt.encode(Batch.plain(part)).readout for part in x.split(CHUNK, dim=1)], dim=1)
    torch.testing.assert_close(made.readouts(Batch.plain(x)), expected, rtol=0, atol=0)
    packed = torch.tensor([[1] * 7 + [2] * 10] * 3)
    alone = torch.cat(
        [
            gpt.encode(Batch.plain(part, own)).readout
            for part, own in zip(x.split(CHUNK, dim=1), packed.split(CHUNK, dim=1))
        ],
        dim=1,
    )
    torch.testing.assert_close(made.readouts(Batch.plain(x, packed)), alone)


@pytest.mark.parametrize("pooling", ["last", "mean", "attention"])
def test_the_state_never_leaves_its_document(pooling):
    made, x = model(pooling=pooling), tokens(T=20, B=1)
    documents = torch.tensor([[1] * 7 + [2] * 5 + [3] * 8])
    read = made.readouts(Batch.plain(x, documents))
    for place in range(20):
        changed = x.clone()
        changed[0, place] = (changed[0, place] + 1) % VOCABULARY
        moved = (made.readouts(Batch.plain(changed, documents)) != read).any(-1)[0]
        other = documents[0] != documents[0, place]
        assert not moved[other].any()
        assert not moved[:place].any()
        later = ~other & (torch.arange(20) > (place // CHUNK + 1) * CHUNK - 1)
        if pooling != "last" or place % CHUNK == CHUNK - 1:
            assert moved[later].all(), "what its own document goes on with knows it"
    # A document that begins with a chunk is read as if it were alone.
    packed = torch.tensor([[1] * 10 + [2] * 10])
    torch.testing.assert_close(made.readouts(Batch.plain(x, packed))[:, 10:], made.readouts(Batch.plain(x[:, 10:])))


@pytest.mark.parametrize(
    ("protocol", "warmup", "causal"), [("carried", 0, True), ("fresh", 0, True), ("same-chunk", 1, False)]
)
def test_two_protocols_are_causal_and_the_third_sees_its_targets(protocol, warmup, causal):
    made, x = model().under(protocol, warmup), tokens(B=1)
    read, leaks = made.readouts(Batch.plain(x)), False
    for place in range(17):
        changed = x.clone()
        changed[0, place] = (changed[0, place] + 1) % VOCABULARY
        leaks |= bool((made.readouts(Batch.plain(changed)) != read).any(-1)[0, :place].any())
    assert leaks != causal


def test_a_fresh_state_knows_nothing_of_earlier_chunks_and_a_carried_one_does():
    made, x = model(), tokens(B=1)
    changed = x.clone()
    changed[0, CHUNK - 1] = (changed[0, CHUNK - 1] + 1) % VOCABULARY
    for protocol, knows in (("carried", True), ("fresh", False), ("same-chunk", False)):
        asked = made.under(protocol, 1)
        moved = (asked.readouts(Batch.plain(changed)) != asked.readouts(Batch.plain(x))).any(-1)[0, CHUNK:]
        assert moved.all() if knows else not moved.any()


@pytest.mark.parametrize("reach", [1, 2, None])
def test_losses_reach_back_through_so_many_updates(reach):
    made = model(backprop=reach, update="gated", pooling="mean", context=6 * CHUNK)
    x = tokens(T=CHUNK * 6, B=1)
    for late in range(6):
        embedded = made.gpt.embedding(x).detach().requires_grad_()
        parts = iter(embedded.split(CHUNK, dim=1))
        made.gpt.embed = lambda part, parts=parts: next(parts)
        last = made.readouts(Batch.plain(x))[:, late * CHUNK : (late + 1) * CHUNK]
        gradient = torch.autograd.grad(last.square().sum(), embedded)[0]
        del made.gpt.embed
        reached = [bool(part.abs().max() > 0) for part in gradient.split(CHUNK, dim=1)]
        first = 0 if reach is None else late // (reach + 1) * (reach + 1)
        assert reached == [first <= chunk <= late for chunk in range(6)]


def test_from_zero_a_linear_injection_alone_learns_in_the_first_step():
    """The state is read by a map of zeros: nothing of it has a gradient until that map has made a step."""
    made = model(spread=False, injection="linear")
    made.readouts(Batch.plain(tokens())).square().sum().backward()
    for injection in made.injections:
        assert injection.weight.grad.abs().max() > 0
    assert made.initial.grad.abs().max() == 0
    assert made.update.in_proj.weight.grad.abs().max() == 0


@every_injection
def test_it_learns_what_only_the_state_can_know(injection):
    """The token that fills the first chunk is asked for behind the second, a random one: ln 4 without a state."""
    made = model(spread=False, injection=injection).train()
    optimizer = torch.optim.Adam(made.parameters(), lr=1e-2)
    generator, losses = torch.Generator().manual_seed(0), []
    for _ in range(50):
        x = torch.randint(4, VOCABULARY, (32, 2 * CHUNK), generator=generator)
        asked = torch.randint(4, (32,), generator=generator)
        x[:, :CHUNK] = asked[:, None]
        logits = made.logits(made.readouts(Batch.plain(x))[:, -1])
        loss = torch.nn.functional.cross_entropy(logits, asked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 1.2
    assert max(losses[-10:]) < 0.5


def test_an_update_that_is_cut_off_is_trained_itself():
    made = model(backprop=1, layers=1)
    read = made.readouts(Batch.plain(tokens(T=3 * CHUNK)))
    read[:, 2 * CHUNK :].square().sum().backward()
    assert made.update.in_proj.weight.grad.abs().max() > 0
    assert made.initial.grad is None or made.initial.grad.abs().max() == 0


@every_injection
def test_gradients_reach_every_parameter_through_a_cut(injection):
    made = model(backprop=1, injection=injection)
    made.readouts(Batch.plain(tokens(T=3 * CHUNK))).square().sum().backward()
    for name, parameter in made.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("update", ["ema", "gated"])
@pytest.mark.parametrize("T", [3, CHUNK, 2 * CHUNK + 1])
@pytest.mark.parametrize("warmup", [0, 2])
def test_what_is_used_in_training_does_not_depend_on_the_length_of_rows(update, T, warmup):
    """Else processes whose rows differ in length would wait for each other forever."""
    made = model(update=update, warmup=warmup).train()
    expected = made.readouts(Batch.plain(tokens(T)))
    calls = []
    made.gpt.blocks[0].register_forward_hook(lambda *given: calls.append(given))
    made.sharded = True
    read = made.readouts(Batch.plain(tokens(T)))
    assert len(calls) == -(-CONTEXT // CHUNK) * (1 + warmup)
    assert torch.equal(read, expected)
    read.square().sum().backward()
    for name, parameter in made.named_parameters():
        assert parameter.grad is not None, name


def test_warm_up_in_training_is_of_the_recipe_and_at_test_of_the_protocol():
    made, x = model(warmup=2), tokens(B=1)
    still = by_definition(made, x[0])[0]
    torch.testing.assert_close(made.readouts(Batch.plain(x))[0], still)
    made.train()
    torch.testing.assert_close(made.readouts(Batch.plain(x))[0], by_definition(made, x[0], warmup=2)[0])
    made.eval()
    torch.testing.assert_close(
        made.under("same-chunk", 3).readouts(Batch.plain(x))[0], by_definition(made, x[0], 3, fresh=True)[0]
    )


@pytest.mark.parametrize("pooling", ["last", "mean", "attention"])
def test_padding_is_no_part_of_a_chunk_that_is_passed_over(pooling):
    made, short = model(pooling=pooling), tokens(T=7, B=1)
    batch = collate(Examples.of([tokens(B=1)[0].numpy(), short[0].numpy()], [1, 1]))
    objective = tiny_objective("next_token", make_backbone=lambda **fields: made)
    asked = require(objective.predictor(), Carrier).under("same-chunk", 2)
    alone = by_definition(made, short[0], 2, fresh=True)[0]
    torch.testing.assert_close(asked.states(batch).readout[1, :7], alone)
    packed = batch._replace(documents=batch.document_ids)
    torch.testing.assert_close(asked.states(packed).readout[1, :7], alone)


def test_a_document_that_ends_in_a_warmed_up_chunk_still_has_its_state():
    made, x = model(), tokens(T=12, B=1)
    documents = torch.tensor([[1] * 7 + [2] * 5])
    warm = made.under("carried", 2)
    changed = x.clone()
    changed[0, 0] = (changed[0, 0] + 1) % VOCABULARY
    moved = (warm.readouts(Batch.plain(changed, documents)) != warm.readouts(Batch.plain(x, documents))).any(-1)[0]
    assert moved[5:7].all(), "the tail of the first document knows its beginning"
    assert not moved[7:].any()
    own = made.under("same-chunk", 2).readouts(Batch.plain(x, torch.ones(1, 12, dtype=torch.int64)))
    torch.testing.assert_close(own, made.under("same-chunk", 2).readouts(Batch.plain(x)))


@every_kind
def test_the_rate_is_learned_or_stays(update, pooling):
    fixed = SlotUpdate(4, 3, kind=update, pooling=pooling, rate=0.25, learned_rate=False)
    trained = [name for name, parameter in fixed.named_parameters() if parameter.requires_grad]
    assert "rate" not in trained
    if update == "ema":
        torch.testing.assert_close(fixed.rate.sigmoid(), torch.full((3,), 0.25))
        learned = SlotUpdate(4, 3, kind=update, pooling=pooling, rate=0.25, learned_rate=True)
        assert "rate" in [name for name, parameter in learned.named_parameters() if parameter.requires_grad]


# Cache


@every_kind
def test_read_piece_by_piece_it_is_read_at_once(update, pooling):
    made, x = model(update=update, pooling=pooling), tokens()
    state, readout = made.encode(Batch.plain(x))
    cache, begin = made.make_cache(len(x)), 0
    cache.hold()
    for length in (3, 1, 1, 8, 4):
        part = made.extend(x[:, begin : begin + length], cache)
        torch.testing.assert_close(part.readout, readout[:, begin : begin + length])
        torch.testing.assert_close(part.state, state[:, begin : begin + length])
        begin += length
    assert cache.length == 17
    for back in (1, 2, 9, 5):  # within a chunk, to its edge, over several
        cache.rewind(back)
        again = made.extend(x[:, cache.length : cache.length + back], cache)
        torch.testing.assert_close(again.readout, readout[:, cache.length - back : cache.length])
    cache.rewind(8)
    rows = torch.tensor([2, 0, 0, 1])
    cache.reorder(rows)
    torch.testing.assert_close(made.extend(x[rows, 9:], cache).readout, readout[rows, 9:])
    cache.rewind(17)
    torch.testing.assert_close(made.extend(x[rows], cache).readout, readout[rows])
    with pytest.raises(ValueError, match="cannot go back 18 positions: 17 have been read"):
        cache.rewind(18)


def test_chunks_that_nobody_comes_back_to_are_forgotten():
    made, x = model(), tokens()
    cache = made.make_cache(len(x))
    readout = made.extend(x, cache).readout
    assert len(cache.groups[0][1].chunks) == 2
    with pytest.raises(ValueError, match="cannot go back 8 positions: 7 are remembered"):
        cache.rewind(8)
    cache.rewind(7)
    torch.testing.assert_close(made.extend(x[:, 10:], cache).readout, readout[:, 10:])


def test_reading_goes_on_beyond_the_context_but_a_row_does_not():
    made, long = model(), tokens(T=CONTEXT + 9)
    with pytest.raises(ValueError, match=f"does not fit the context of {CONTEXT}"):
        made.encode(Batch.plain(long))
    cache = made.make_cache(len(long))
    parts = [made.extend(part, cache).readout for part in long.split(7, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1)[0], by_definition(made, long[0])[0])


def test_prompts_are_warmed_up_to_and_what_follows_is_not():
    made, x = model(), tokens(B=1)
    asked = made.under("same-chunk", 2)
    cache = asked.make_cache(len(x))
    last = asked.read_prompt(x[:, :7], cache)
    torch.testing.assert_close(last.readout[0, 0], by_definition(made, x[0, :7], 2, fresh=True)[0][-1])
    on = asked.extend(x[:, 7:], cache).readout[0]
    torch.testing.assert_close(on[3:], by_definition(made, x[0, 10:], fresh=True)[0])


@pytest.mark.parametrize(("protocol", "warmup"), [("carried", 0), ("fresh", 0), ("same-chunk", 2), ("carried", 2)])
def test_prompts_of_several_lengths_are_read_and_warmed_up_as_alone(protocol, warmup):
    asked, x, counts = (
        require(predictor(), Carrier).under(protocol, warmup),
        tokens(T=11, B=3)[:, :11],
        np.array([11, 7, CHUNK]),
    )
    cursor, logits = asked.start(x, counts)
    further = asked.extend(cursor, x[:, :3])
    for row, count in enumerate(counts):
        alone, wanted = asked.start(x[row : row + 1, :count])
        torch.testing.assert_close(logits[row], wanted[0])
        torch.testing.assert_close(further[row], asked.extend(alone, x[row : row + 1, :3])[0])


# A state that is kept


def predictor(**fields):
    objective = tiny_objective("next_token", make_backbone=tiny_belief_slots, backbone={"chunk": CHUNK, **fields})
    spread_weights(objective)
    return objective.eval().predictor()


@pytest.mark.parametrize("cut", [3, 4, 5, 6, 11])
def test_a_generation_goes_on_exactly(cut):
    asked, prompt = predictor(), tokens(T=4, B=1)[:, :4].numpy()
    (whole,) = Greedy(GreedyConfig()).decode(asked, Request(prompt, 18))
    begun = Continued(asked, None)
    (first,) = Greedy(GreedyConfig()).decode(begun, Request(prompt, cut))
    kept = begun.state(4, first)
    going_on = Continued(asked, {name: tensor.clone() for name, tensor in kept.items()})
    pending = kept["pending"][None].numpy()
    (rest,) = Greedy(GreedyConfig()).decode(going_on, Request(pending, 18 - cut))
    assert [*first.tokens, *rest.tokens] == whole.tokens.tolist()
    assert first.log_probability + rest.log_probability == pytest.approx(whole.log_probability, abs=1e-12)
    read = torch.from_numpy(np.concatenate([prompt[0], first.tokens]))[None]
    torch.testing.assert_close(going_on.start(kept["pending"][None])[1], asked.start(read)[1])


def test_a_kept_state_is_taken_by_its_own_shape_alone():
    begun = Continued(predictor(), None)
    (first,) = Greedy(GreedyConfig()).decode(begun, Request(tokens(T=4, B=1).numpy(), 4))
    kept = begun.state(4, first)
    for fields in ({"slots": 3}, {"layers": 3}, {"layers": 1}, {"heads": 4}, {"width": 8}, {"chunk": 2}):
        other = predictor(**fields)
        with pytest.raises(ValueError, match="the state has another shape: this model has"):
            require(other, Carrier).resume(kept)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("state", lambda found: found[:, :1], "has another shape"),
        ("state", lambda found: found.expand(2, -1, -1), "has another shape"),
        ("hidden", lambda found: found[0], "has another shape"),
        ("keys.1", lambda found: found[:1], "has another shape"),
        ("keys.1", lambda found: None, "has another shape"),
        ("more", lambda found: torch.zeros(1), "has another shape"),
        ("chunk", lambda found: found[None], "has another shape"),
        ("keys.0", lambda found: found.half(), "keys.0 is of type float16, not bfloat16 or float64"),
        ("state", lambda found: found.long(), "state is of type int64, not bfloat16 or float64"),
        ("length", lambda found: found.double(), "length is of type float64, not int64"),
        ("hidden", lambda found: found * float("nan"), "hidden contains NaN or infinity"),
        ("length", lambda found: found + 1, "9 tokens cannot have been read in chunks of 5, with 3 in the last"),
        ("length", lambda found: found - 10, "-2 tokens cannot have been read"),
        ("recent", lambda found: found[..., :3], "it lacks the last state, of width 48"),
        ("recent", lambda found: None, "it lacks the last state, of width 48"),
        ("recent", lambda found: found.int(), "recent is of type int32, not"),
        ("pending", lambda found: found.double(), "lacks the tokens that were not read yet"),
        ("pending", lambda found: found[:0], "lacks the tokens that were not read yet"),
        ("pending", lambda found: None, "lacks the tokens that were not read yet"),
        ("pending", lambda found: found + VOCABULARY, f"tokens beyond the vocabulary of {VOCABULARY}"),
        ("pending", lambda found: found - VOCABULARY, f"tokens beyond the vocabulary of {VOCABULARY}"),
    ],
)
def test_a_kept_state_whose_tensors_are_wrong_is_refused(name, change, message):
    asked = predictor()
    begun = Continued(asked, None)
    (first,) = Greedy(GreedyConfig()).decode(begun, Request(tokens(T=4, B=1).numpy(), 5))
    kept = begun.state(4, first)
    assert int(kept["length"]) == 8
    Continued(asked, kept)
    changed = change(kept.get(name))
    damaged = {**kept, name: changed} if changed is not None else {key: kept[key] for key in kept if key != name}
    with pytest.raises(ValueError, match=message):
        Continued(asked, damaged)


@pytest.mark.parametrize(("protocol", "warmup"), [("carried", 0), ("carried", 1), ("fresh", 0), ("same-chunk", 2)])
def test_a_long_text_is_read_chunk_by_chunk_as_a_row_of_any_length_would_be(protocol, warmup):
    made, long = model(), tokens(T=CONTEXT + 9, B=2)
    asked = made.under(protocol, warmup)
    parts = list(asked.encode_chunks(long))
    assert [part.readout.shape[1] for part in parts] == [len(part) for part in long[0].split(CHUNK)]
    found = torch.cat([part.readout for part in parts], dim=1)
    for row in range(2):
        torch.testing.assert_close(found[row], by_definition(made, long[row], warmup, fresh=protocol != "carried")[0])


def test_models_without_a_state_say_so():
    plain = tiny_objective("next_token").eval().predictor()
    assert plain.capability(Carrier) is None
    with pytest.raises(ValueError, match="needs a model that carries one"):
        require(plain, Carrier)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"slots": 0}, "backbone.slots must be at least 1"),
        ({"chunk": 0}, "backbone.chunk must be at least 1"),
        ({"chunk": CONTEXT + 1}, f"backbone.chunk {CONTEXT + 1} is not shorter than a row of {CONTEXT} tokens"),
        ({"chunk": CONTEXT}, f"backbone.chunk {CONTEXT} is not shorter than a row of {CONTEXT} tokens"),
        ({"rate": 1.0}, "backbone.rate must be above 0 and below 1"),
        ({"backprop": 0}, "backbone.backprop must be at least 1"),
        ({"warmup": -1}, "backbone.warmup must be at least 0"),
    ],
)
def test_bad_fields_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        model(**fields)


def test_operations_are_those_of_its_chunks():
    made = model()
    gpt = GPT(GPTConfig(width=16, heads=2, layers=2), vocabulary=VOCABULARY, context=CONTEXT)
    D, maps = 16, 16 * SLOTS * 16 + 2 * 16 * SLOTS * 16  # the update's map, and one into each of two layers
    assert made.flops(2 * CHUNK + 3) == 2 * gpt.flops(CHUNK) + gpt.flops(3) + 2 * 3 * maps
    assert made.flops(CHUNK) == gpt.flops(CHUNK) + 2 * maps
    assert made.width == D
