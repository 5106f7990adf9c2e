"""A row's tokens are those that it gets alone, whatever is decoded beside it and whenever it joins."""

import functools
import weakref
from collections import deque
from dataclasses import replace

import numpy as np
import pytest
import torch
from doubles import TINY_BACKBONES, VOCABULARY, MarkovPredictor, spread_weights, tiny_objective
from torch.utils._python_dispatch import TorchDispatchMode

from statewise.data_types import LacksCapability
from statewise.decoding import make_decoder
from statewise.decoding.base import Request
from statewise.decoding.drafts import MeasuredLength
from statewise.decoding.predictor import Drafter
from statewise.decoding.sample import SampleConfig
from statewise.deploy.serving.batch import ContinuousBatch
from statewise.deploy.serving.choosing import Choices, Drafting, may_draft
from statewise.deploy.serving.engine import without_gradients
from statewise.deploy.serving.rows import DecodingOptions, Row, Stops, Written

CONTEXT, END = 24, 3
PROMPTS = [[1], [2, 5, 1, 7], [4, 4], [1, 1, 9, 2, 5, 4, 8, 7, 6, 2, 5], [6, 1, 2, 8, 2, 1, 5], [2, 5, 1, 7]]
PLAIN = DecodingOptions(None, 0, Stops(()), None, False)
MANNERS = [
    PLAIN,
    replace(PLAIN, sampling=SampleConfig(), seed=5),
    replace(PLAIN, sampling=SampleConfig(2.0, 4), seed=2**63 + 7),
    replace(PLAIN, sampling=SampleConfig(0.7, None, 0.9), seed=-3),
]


def predictor_of(objective, make_backbone, **fields):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    made = tiny_objective(objective, make_backbone=make_backbone, backbone={"context": CONTEXT}, **fields)
    spread_weights(made)
    torch.set_default_dtype(before)
    return made.eval().predictor()


@pytest.fixture(scope="module")
def predictors():
    return functools.cache(lambda name: predictor_of("next_token", TINY_BACKBONES[name]))


@pytest.fixture(params=TINY_BACKBONES)
def predictor(request, predictors):
    return predictors(request.param)


two_backbones = pytest.mark.parametrize("predictor", ["gpt", "belief_slots"], indirect=True)
"""What the batch does by itself: one backbone that masks keys, and one that reads rows in groups."""


def row_of(prompt, decoding=PLAIN, number=0, limit=12, context=CONTEXT, **fields):
    request = Request([np.array(prompt, np.int64)], max(1, limit), **{"end": END, "rows": [number], **fields})
    most = min(limit, int(request.limits(context)[0]))
    return Row(
        request,
        request.prompts[0],
        most,
        decoding,
        Written(lambda before, tokens: "".join(f" {token}" for token in tokens), []),
    )


ALONE = weakref.WeakKeyDictionary()
"""Completions of a predictor, by what was asked: tests ask for the same ones."""


def alone(predictor, row):
    """The completion by the decoders of `statewise generate`."""
    made, asked = ALONE.setdefault(predictor, {}), repr((row.request, row.decoding))
    if asked not in made:
        made[asked] = decoded_alone(predictor, row)
    return made[asked]


def decoded_alone(predictor, row):
    sampling = row.decoding.sampling
    fields = {} if sampling is None else {**vars(sampling), "seed": 0}
    decoder = make_decoder("greedy" if sampling is None else "sample", **fields)
    if sampling is not None:
        object.__setattr__(decoder.config, "seed", row.decoding.seed)  # also negative and large ones
    return decoder.decode(predictor, row.request)[0]


def run(predictor, arrivals, most=32, part=64, at_step=lambda step: None, **fields):
    """Decodes rows that arrive over time: `arrivals[i]` before step i."""
    batch, coming, step = ContinuousBatch(predictor, most=most, part=part, **fields), deque(arrivals), 0
    with torch.no_grad():
        while coming or batch.busy:
            if coming:
                batch.waiting.extend(coming.popleft())
            at_step(step)
            batch.admit()
            batch.read_prompts()
            batch.step()
            step += 1
            assert step < 500
    return batch


def check_alone(predictor, rows):
    for row in rows:
        found = alone(predictor, row)
        kept = (
            row.tokens[:-1] if row.request.closing is not None and row.tokens[-1] == row.request.closing else row.tokens
        )
        assert kept == found.tokens.tolist()
        stopped = row.tokens[-1] == row.request.stop
        assert row.finish == ("stop" if stopped else "length")


def arrivals_of(**fields):
    """Nine rows with each manner, and by the step those that arrive before it."""
    rows = [
        row_of(prompt, MANNERS[(place + turn) % 4], number=turn, **fields)
        for turn, prompts in enumerate((PROMPTS, PROMPTS[3:]))
        for place, prompt in enumerate(prompts)
    ]
    return rows, [rows[:1], [], rows[1:5], [], rows[5:7], rows[7:]]


@pytest.mark.parametrize("part", [3, 64])
def test_rows_that_join_and_leave_get_what_they_get_alone(predictor, part):
    rows, arrivals = arrivals_of()
    run(predictor, arrivals, most=5, part=part)
    check_alone(predictor, rows)
    assert len({len(row.tokens) for row in rows}) > 1


def test_last_rows_take_the_places_of_those_that_left(predictor):
    moved = []

    class Noting(type(predictor)):
        def reorder(self, cursor, rows):
            moved.append(rows.tolist())
            super().reorder(cursor, rows)

    noting = object.__new__(Noting)
    noting.__dict__.update(predictor.__dict__)
    limits = [12, 2, 12, 2, 12, 12]
    rows = [
        row_of(prompt, limit=limit, end=None, number=place)
        for place, (prompt, limit) in enumerate(zip(PROMPTS, limits))
    ]
    late = row_of(PROMPTS[0], limit=3, end=None)
    run(noting, [rows, [], [], [late]], part=128)
    assert moved[0] == [0, 4, 2, 5]
    check_alone(predictor, [*rows, late])


def with_errors(predictor, size):
    """The same predictor, whose logits are wrong by up to `size` in a way that depends on the number of rows."""

    class Rounding(type(predictor)):
        def _round(self, logits):
            if len(logits) == 1:
                return logits
            generator = torch.Generator().manual_seed(len(logits))
            return logits + size * torch.rand(logits.shape[1:], generator=generator).mul(2).sub(1).double()

        def start(self, *given):
            cursor, logits = super().start(*given)
            return cursor, self._round(logits)

        def extend(self, *given):
            return self._round(super().extend(*given))

    made = object.__new__(Rounding)
    made.__dict__.update(predictor.__dict__)
    return made


@two_backbones
def test_choices_that_hang_on_rounding_are_made_alone(predictor):
    def completions(error):
        rows = [
            row_of(prompt, MANNERS[(place + turn) % 4], number=turn, limit=12, end=None)
            for turn in range(2)
            for place, prompt in enumerate(PROMPTS)
        ]
        batch = run(with_errors(predictor, 0.2), [rows[:1], [], rows[1:9], rows[9:]], part=8, error=error)
        return rows, batch.counts.alone

    rows, alone_count = completions(0.2)
    check_alone(predictor, rows)
    assert 0 < alone_count < sum(len(row.tokens) for row in rows)
    others, none = completions(0.0)
    assert none == 0
    assert [row.tokens for row in others] != [row.tokens for row in rows]


@two_backbones
def test_places_are_limited_and_taken_in_order(predictor):
    rows = [row_of(prompt, limit=4, end=None) for prompt in PROMPTS]
    begun = []

    def note(step):
        assert sum(bool(row.tokens) and not row.ended for row in rows) <= 2
        begun.extend(row for row in rows if row.tokens and row not in begun)

    run(predictor, [rows], most=2, at_step=note)
    assert begun == rows[: len(begun)]
    check_alone(predictor, rows)


@two_backbones
def test_long_prompts_do_not_stop_running_rows(predictor):
    running, long = row_of([1, 2], end=None, limit=20), row_of(PROMPTS[3])
    steps = []
    run(
        predictor,
        [[running], [long]],
        part=2,
        at_step=lambda step: steps.append((len(running.tokens), len(long.tokens))),
    )
    before = [made for made, other in steps[1:] if other == 0]
    assert np.all(np.diff(before) == 1)
    assert before[-1] >= len(PROMPTS[3]) // 2
    check_alone(predictor, [running, long])


@two_backbones
def test_choices_of_one_prompt_are_read_once_and_drawn_apart(predictor):
    first = row_of(PROMPTS[1], MANNERS[2], number=0)
    request = first.request
    rows = [
        first,
        *(
            Row(replace(request, rows=[number]), first.prompt, first.limit, MANNERS[2], first.transcript)
            for number in range(1, 5)
        ),
    ]
    batch = ContinuousBatch(predictor, most=8, part=64)
    batch.waiting.extend(rows)
    assert batch.admit() == rows
    assert batch.reading.tokens.shape == (1, 4)
    run(predictor, [rows])
    assert len({tuple(row.tokens) for row in rows}) > 1
    check_alone(predictor, rows)


@two_backbones
def test_a_cancelled_row_leaves_and_changes_nothing_for_others(predictor):
    rows = [row_of(prompt, MANNERS[1], end=None) for prompt in PROMPTS[:4]]

    def cancel(step):
        if step == 3:
            rows[1].cancelled = rows[2].cancelled = True

    run(predictor, [rows], at_step=cancel)
    assert rows[1].finish is None
    assert len(rows[1].tokens) < 12
    check_alone(predictor, [rows[0], rows[3]])


def test_scores_of_prompts_are_those_of_a_whole_pass(predictor):
    decoding = replace(PLAIN, alternatives=3, echo=True)
    rows = [row_of(prompt, decoding, limit=limit) for prompt, limit in zip(PROMPTS, [0, 1, 3, 2, 0, 1])]
    run(predictor, [rows[:2], rows[2:]], part=12)
    for row, prompt in zip(rows, PROMPTS):
        tokens = torch.tensor([[*prompt, *row.tokens]])
        cursor, logits = predictor.start(tokens[:, :1])
        after = predictor.extend(cursor, tokens[:, 1:]) if tokens.shape[1] > 1 else logits[:, None][:, :0]
        expected = torch.cat([logits[:, None], after], 1)[0].log_softmax(-1)
        assert row.shown[0].log_probability is None
        shown = [*prompt, *[token for token in row.tokens if token != END]]
        assert [one.token for one in row.shown] == shown
        for place, one in enumerate(row.shown[1:]):
            assert one.log_probability == pytest.approx(float(expected[place, one.token]))
            best, ids = expected[place].topk(3)
            assert [token for token, _ in one.alternatives] == ids.tolist()
            assert [value for _, value in one.alternatives] == pytest.approx(best.tolist())
        assert row.finish is not None
        assert len(row.tokens) <= row.limit


@pytest.mark.parametrize("min_gap", [1, 2])
def test_rows_with_goals_run_beside_rows_without(min_gap):
    predictor = predictor_of("belief_state", TINY_BACKBONES["gpt"], min_gap=min_gap)
    assert (predictor.closing is not None) == (min_gap == 1)
    rows = []
    for number, prompt in enumerate([*PROMPTS, []]):
        goal = None if number in (0, 3) else np.array([7, number + 1, END], np.int64)
        closing = None if goal is None else predictor.closing
        rows.append(row_of(prompt, MANNERS[number % 4], goal=goal, closing=closing, limit=9))
    run(predictor, [rows[:3], rows[3:]])
    check_alone(predictor, rows)
    if min_gap == 1:
        assert any(row.tokens[-1] == VOCABULARY for row in rows) or all(row.finish == "length" for row in rows)


def test_log_probabilities_are_the_models_where_a_token_is_no_choice():
    """The end token of rows with a goal has a probability, the closing symbol of rows that cannot close has none."""
    predictor = predictor_of("belief_state", TINY_BACKBONES["gpt"], min_gap=1)
    decoding, end = replace(PLAIN, alternatives=VOCABULARY), 2
    rows = [
        row_of(PROMPTS[0], decoding, goal=np.array([7, end]), end=end, limit=4),
        row_of(PROMPTS[1], decoding, exact=True, end=end, limit=4),
    ]
    run(predictor, [rows])
    left = []
    for row in rows:
        assert len(row.shown) == 4
        total = sum(one.log_probability for one in row.shown)
        assert total == pytest.approx(alone(predictor, row).log_probability)
        for one in row.shown:
            others = {token: value for token, value in one.alternatives if value > -np.inf}
            assert others[one.token] == pytest.approx(one.log_probability)
            assert end not in others
            left.append(1 - sum(map(np.exp, others.values())))
    assert max(left) > 0.1  # the probability of the end


@pytest.mark.parametrize("objective", ["next_latent", "teacherless", "multi_token"])
def test_other_predictors_serve_as_well(objective):
    predictor = predictor_of(objective, TINY_BACKBONES["gpt"])
    rows = [row_of(prompt, MANNERS[place % 4], limit=6) for place, prompt in enumerate(PROMPTS)]
    run(predictor, [rows[:4], [], rows[4:]], part=4)
    check_alone(predictor, rows)


@two_backbones
def test_a_row_whose_logits_are_not_finite_fails_alone(predictor):
    rows = [row_of(prompt, end=None, limit=4) for prompt in PROMPTS[:3]]

    class Broken(type(predictor)):
        calls = 0

        def extend(self, cursor, tokens, counts=None):
            logits = super().extend(cursor, tokens, counts).clone()
            self.calls += 1
            if self.calls == 2:
                logits[1] = torch.nan
            return logits

    broken = object.__new__(Broken)
    broken.__dict__.update(predictor.__dict__)
    batch = ContinuousBatch(broken, most=8, part=64)
    batch.waiting.extend(rows)
    with torch.no_grad():
        while batch.busy:
            batch.admit()
            batch.read_prompts()
            batch.step()
    assert [row.cancelled for row in rows] == [False, True, False]
    check_alone(predictor, [rows[0], rows[2]])


# Drafts


class MarkovDrafter(MarkovPredictor, Drafter):
    """Drafts as a Markov chain of other probabilities would."""

    def __init__(self, transitions, drafts, context=CONTEXT):
        super().__init__(transitions, context)
        self.drafts, self.passes = drafts.log(), 0

    def guesses(self, cursor, token, among=None):
        while True:
            token = yield self.drafts[token]

    def extend(self, cursor, tokens, counts=None):
        self.passes += 1
        logits = super().extend(cursor, tokens, counts)
        assert max(len(row) for row in cursor.rows) <= self.context
        return logits


def chain(seed):
    weights = torch.rand(10, 10, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 3
    return weights / weights.sum(1, keepdim=True)


TRUE = chain(0)
DRAFTS = {
    "exact": TRUE,
    "good": 0.9 * TRUE + 0.1 * chain(1),
    "bad": chain(2),
    "opposed": 1 / TRUE / (1 / TRUE).sum(1, keepdim=True),
    "ending": torch.eye(10, dtype=torch.float64)[END].expand(10, 10),
}


def drafting(predictor, length, source="model"):
    return Drafting(predictor, length, source, 64)


@pytest.mark.parametrize("which", DRAFTS)
def test_no_drafter_changes_a_text(which):
    predictor = MarkovDrafter(TRUE, DRAFTS[which])
    for length, fields in (
        (1, {}),
        (3, {"limit": 40}),
        (CONTEXT - 1, {"exact": True}),
        ("auto", {"limit": 1}),
        ("auto", {}),
    ):
        rows, arrivals = arrivals_of(**fields)
        run(predictor, arrivals, most=5, part=6, drafting=drafting(predictor, length))
        check_alone(predictor, rows)


def test_drafts_save_passes_and_are_counted():
    passes = {}
    for which in DRAFTS:
        predictor = MarkovDrafter(TRUE, DRAFTS[which])
        rows = [row_of([number], MANNERS[1], number=number, limit=21, end=None) for number in range(3)]
        batch = run(predictor, [rows], drafting=drafting(predictor, 3))
        assert sum(len(row.tokens) for row in rows) == 63
        assert 0 <= batch.counts.accepted <= batch.counts.drafted
        passes[which] = predictor.passes, batch.counts.accepted
    assert passes["exact"] == (5, 45)  # 1 + 5 * 4 tokens of each row
    assert passes["good"][1] > passes["bad"][1]
    assert passes["good"][0] < passes["ending"][0] <= 20


@pytest.mark.parametrize(
    ("objective", "backbone", "fields", "length"),
    [
        ("next_latent", "gpt", {}, 3),
        ("next_latent", "recurrent", {}, "auto"),
        ("multi_token", "gpt", {"horizon": 3}, "auto"),
        ("multi_token", "recurrent", {"horizon": 3}, 3),
        ("joint_multi_token", "two_stream", {"horizon": 3}, "auto"),
        ("joint_multi_token", "belief_slots", {"horizon": 3}, 3),
    ],
)
def test_rows_of_models_that_draft_get_what_they_get_alone(objective, backbone, fields, length):
    predictor = predictor_of(objective, TINY_BACKBONES[backbone], **fields)
    rows, arrivals = arrivals_of()
    batch = run(predictor, arrivals, most=5, part=8, drafting=drafting(predictor, length))
    assert batch.counts.drafted or length == "auto"
    check_alone(predictor, rows)


def test_prompt_lookup_drafts_for_any_model(predictor):
    rows, arrivals = arrivals_of(end=None)
    batch = run(predictor, arrivals, most=5, part=8, drafting=drafting(predictor, 5, "prompt_lookup"))
    assert 0 < batch.counts.accepted < batch.counts.drafted
    check_alone(predictor, rows)


def test_drafts_before_goals_and_closing_symbols():
    predictor = predictor_of("belief_state", TINY_BACKBONES["gpt"], min_gap=1)
    rows = []
    for number, prompt in enumerate([*PROMPTS, []]):
        goal = None if number in (0, 3) else np.array([7, number + 1, END], np.int64)
        closing = None if goal is None else predictor.closing
        rows.append(row_of(prompt, MANNERS[number % 4], goal=goal, closing=closing, limit=9))
    run(predictor, [rows[:3], rows[3:]], drafting=drafting(predictor, 3, "prompt_lookup"))
    check_alone(predictor, rows)


def test_a_client_that_leaves_while_tokens_are_drafted_changes_nothing_for_others():
    class Leaving(MarkovDrafter):
        leaves = None

        def extend(self, cursor, tokens, counts=None):
            if self.passes == 1:
                self.leaves.cancelled = True
            return super().extend(cursor, tokens, counts)

    for length in (0, 4):
        predictor = Leaving(TRUE, DRAFTS["good"])
        rows = [row_of(prompt, MANNERS[1], end=None) for prompt in PROMPTS[:4]]
        predictor.leaves = rows[1]
        run(predictor, [rows], drafting=drafting(predictor, length))
        assert len(rows[1].tokens) < 12
        check_alone(predictor, [rows[0], *rows[2:]])


def test_drafts_do_not_decide_where_rounding_might():
    exact = MarkovDrafter(TRUE, DRAFTS["good"])
    rows, arrivals = arrivals_of(end=None)
    batch = run(with_errors(exact, 0.2), arrivals, error=0.2, drafting=drafting(exact, 3))
    assert batch.counts.alone
    assert batch.counts.accepted
    check_alone(exact, rows)


def test_how_many_to_draft_is_measured_by_the_number_of_rows_and_bounded(monkeypatch):
    monkeypatch.setattr(MeasuredLength, "rate", lambda self, length: -abs(length - (3 if self is few else 0)))
    predictor = MarkovDrafter(TRUE, TRUE, context=200)
    made = drafting(predictor, "auto")
    few = made.length_of(1)
    assert few is made.length_of(1)
    assert few is not made.length_of(2)
    assert few.lengths == [0, 1, 3, 7, 15]
    assert made.length_of(12).lengths == [0, 1, 3]  # 12 * 5 tokens fit a part of 64
    assert made.length_of(64).lengths == [0]
    rows = [row_of([number], end=None, limit=100, context=200) for number in range(1)]
    drafted = run(predictor, [rows], drafting=made).counts.drafted
    assert drafted > 50


def test_drafts_must_fit_the_context_and_need_a_model_that_can():
    predictor = MarkovDrafter(TRUE, TRUE)
    with pytest.raises(ValueError, match=f"a draft of {CONTEXT} tokens does not fit .* at most {CONTEXT - 1}"):
        drafting(predictor, CONTEXT)
    plain = MarkovPredictor(TRUE, CONTEXT)
    assert may_draft(predictor, "model")
    assert may_draft(plain, "prompt_lookup")
    assert not may_draft(plain, "model")
    with pytest.raises(LacksCapability):
        drafting(plain, 1)


def test_weights_are_cast_once_for_all_steps():
    """Each step of the engine has an autocast region of its own."""

    class Casts(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.of_weights = 0

        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            self.of_weights += operation is torch.ops.aten._to_copy.default and args[0].shape == layer.weight.shape
            return operation(*args, **(kwargs or {}))

    layer, counts = torch.nn.Linear(8, 24), {}
    for outer in (torch.no_grad, without_gradients):
        with outer(), Casts() as seen:
            for _ in range(3):
                with torch.autocast("cpu", torch.bfloat16):
                    found = layer(torch.randn(2, 8))
            counts[outer] = seen.of_weights
            assert not found.requires_grad
    assert counts == {torch.no_grad: 3, without_gradients: 1}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("best", [4.0, 4.0 + 1e-4, np.nan])
def test_a_single_row_chooses_as_it_does_beside_another(best, exact):
    logits = torch.randn(2, 1, VOCABULARY, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits[:, 0, [5, 7]] = torch.tensor([4.0, best], dtype=torch.float64)
    logits[:, 0, END] = 5.0 if exact else -5.0
    rows = [row_of([1], exact=exact), row_of([2], exact=exact)]
    for error, close in ((1e-5, best == 4.0), (1e-3, True)):
        both = Choices(rows, VOCABULARY).check(logits.clone(), error)
        alone = Choices(rows[:1], VOCABULARY).check(logits[:1].clone(), error)
        if np.isnan(best):
            assert np.isnan([both.log_probabilities[0, 0], alone.log_probabilities[0, 0]]).all()
            continue
        assert alone.close[0, 0] == both.close[0, 0] == close
        assert alone.at(0, 0)[0] == both.at(0, 0)[0]
        assert alone.at(0, 0)[1] == pytest.approx(both.at(0, 0)[1], abs=1e-12)
