"""Speculative decoding gives the completions of plain decoding, whatever was drafted."""

import itertools
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch
from doubles import (
    CONTEXT,
    TINY_BACKBONES,
    MarkovPredictor,
    spread_weights,
    tiny_belief_slots,
    tiny_objective,
    tiny_two_stream,
)
from scipy.stats import chisquare

from statewise.decoding import make_decoder
from statewise.decoding.base import Request
from statewise.decoding.continuing import Continued
from statewise.decoding.drafts import LENGTHS, FrequentTokens, MeasuredLength, PromptLookup
from statewise.decoding.predictor import Drafter
from statewise.decoding.reverse import Reverse
from statewise.decoding.speculative import SpeculativeConfig, TwoPass
from statewise.model.recipes import explaining_missing_capability

END = 3
PROMPTS = [[1], [2, 5, 1, 7], [4, 4], [1], [6, 1, 2, 8, 2, 1, 5], [2, 5, 1, 7, 2, 5, 1]]
PLAIN = [
    ("greedy", {}),
    ("sample", {"seed": 5}),
    ("sample", {"seed": 5, "temperature": 2.0, "top_k": 4, "floor": 0.05}),
]


def of_prompts(rows=range(6), **fields):
    rows = list(rows)
    return Request([np.array(PROMPTS[row]) for row in rows], **{"limit": 14, "end": END, "rows": rows, **fields})


def plainly(plain):
    return make_decoder(plain[0], **plain[1])


def speculative(plain=("greedy", {}), **fields):
    return make_decoder("speculative", **{"temperature": 1.0 if plain[0] == "sample" else 0.0, **plain[1], **fields})


def assert_equal(found, expected):
    assert [one.tokens.tolist() for one in found] == [one.tokens.tolist() for one in expected]
    np.testing.assert_allclose(
        [one.log_probability for one in found], [one.log_probability for one in expected], rtol=1e-9, atol=1e-9
    )


def model(name, make_backbone=TINY_BACKBONES["gpt"], **fields):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    objective = tiny_objective(name, make_backbone=make_backbone, **fields)
    spread_weights(objective)
    torch.set_default_dtype(before)
    return objective.eval().predictor()


class MarkovDrafter(MarkovPredictor, Drafter):
    """Drafts as a Markov chain of other probabilities would; counts its passes and checks that all it reads fits."""

    def __init__(self, transitions, drafts, context=32):
        super().__init__(transitions, context)
        self.drafts, self.passes = drafts.log(), 0

    def guesses(self, cursor, token, among=None):
        while True:
            token = yield self.drafts[token] if among is None else self.drafts[token][:, among]

    def extend(self, cursor, tokens, counts=None):
        self.passes += 1
        logits = super().extend(cursor, tokens, counts)
        assert max(len(row) for row in cursor.rows) <= self.context
        return logits


def test_a_short_list_has_the_likeliest_tokens_so_far():
    frequent = FrequentTokens(2)
    rare, common = torch.tensor([[0.6, 0.3, 0.1, 0.0]]).log(), torch.tensor([[0.0, 0.1, 0.4, 0.5]]).log()
    assert frequent.tokens is None
    found = []
    for places in [rare, *[common] * 7]:
        frequent.record(places.expand(2, 4))
        found.append(sorted(frequent.tokens.tolist()))
    assert found == [[0, 1], [0, 3], [0, 3], *[[2, 3]] * 5]
    few = FrequentTokens(4)
    few.record(rare)
    assert few.tokens is None


def test_drafts_from_a_short_list_are_the_best_of_the_list(drafting):
    cursor, logits = drafting.start(torch.tensor([[1, 2, 3], [4, 5, 6]]))
    first, among = logits.argmax(-1), torch.tensor([7, 2, 4])
    whole, short = drafting.guesses(cursor, first), drafting.guesses(cursor, first, among)
    sent = None
    for _ in range(2):
        every = next(whole) if sent is None else whole.send(sent)
        some = next(short) if sent is None else short.send(sent)
        torch.testing.assert_close(some, every[:, among])
        sent = among[some.argmax(-1)]


def test_drafts_in_bfloat16_are_nearly_those_in_float32():
    predictor = tiny_objective("next_latent", make_backbone=TINY_BACKBONES["gpt"]).eval().predictor()
    prompts = torch.tensor([[1, 2, 3]])
    with torch.autocast("cpu", torch.bfloat16):
        cursor, logits = predictor.start(prompts)
        found = next(predictor.guesses(cursor, logits.argmax(-1)))
        short = next(predictor.guesses(cursor, logits.argmax(-1), torch.tensor([1, 3])))
        assert found.dtype == torch.float32
        assert torch.is_autocast_enabled("cpu")
    torch.testing.assert_close(short, found[:, [1, 3]])
    exact, _ = predictor.start(prompts)
    torch.testing.assert_close(found, next(predictor.guesses(exact, logits.argmax(-1))), atol=0.02, rtol=0.05)


def chain(seed, n=5):
    weights = torch.rand(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 2
    return weights / weights.sum(1, keepdim=True)


TRUE = chain(0)
OPPOSED = 1 / TRUE / (1 / TRUE).sum(1, keepdim=True)
ENDING = torch.eye(5, dtype=torch.float64)[END].expand(5, 5)
DRAFTERS = {"exact": TRUE, "good": 0.8 * TRUE + 0.2 * chain(1), "bad": chain(2), "opposed": OPPOSED, "ending": ENDING}

MODELS = {
    **{f"next_latent on {name}": ("next_latent", made, {}) for name, made in TINY_BACKBONES.items()},
    **{f"joint on {name}": ("joint_multi_token", made, {"horizon": 3}) for name, made in TINY_BACKBONES.items()},
    "multi_token on gpt": ("multi_token", TINY_BACKBONES["gpt"], {"horizon": 3}),
    "multi_token on gru": ("multi_token", TINY_BACKBONES["recurrent"], {"horizon": 3}),
    "multi_token on lstm": ("multi_token", partial(TINY_BACKBONES["recurrent"], cell="lstm"), {"horizon": 3}),
    "latent_multi_token, learned positions": (
        "latent_multi_token",
        partial(TINY_BACKBONES["gpt"], positions="learned"),
        {"horizon": 2},
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def drafting(request):
    name, make_backbone, fields = MODELS[request.param]
    predictor = model(name, make_backbone, **fields)
    assert isinstance(predictor, Drafter)
    return predictor


@pytest.fixture(scope="module")
def plain_texts(drafting):
    """What plain decoding gives, once for each way of it."""
    return cache(lambda number: plainly(PLAIN[number]).decode(drafting, of_prompts()))


FIELDS = [
    {"draft": 1},
    {"draft": 9},
    {"confidence": 0.1, "draft_vocabulary": 3},
    {"draft": "auto"},
    {"drafter": "prompt_lookup"},
]


@pytest.mark.parametrize("column", range(len(FIELDS)), ids=[str(fields) for fields in FIELDS])
def test_the_text_is_that_of_plain_decoding(request, drafting, plain_texts, column):
    """Each model with all settings of drafts; each of these with all ways to choose, from one model to the next."""
    number = (list(MODELS).index(request.node.callspec.params["drafting"]) + column) % len(PLAIN)
    found = speculative(PLAIN[number], **FIELDS[column]).decode(drafting, of_prompts())
    assert_equal(found, plain_texts(number))


@pytest.mark.parametrize("plain", PLAIN, ids=str)
def test_two_passes_without_a_cache_give_the_same_text(plain):
    predictor = model("next_latent")
    fields = {"temperature": 1.0 if plain[0] == "sample" else 0.0, **plain[1]}
    for row, draft in ((1, 0), (1, 3), (4, 1), (5, 4)):
        decoder = TwoPass(SpeculativeConfig(draft=draft, **fields))
        assert_equal(decoder.decode(predictor, of_prompts([row])), plainly(plain).decode(predictor, of_prompts([row])))
    steps = list(TwoPass(SpeculativeConfig(draft=3)).steps(MarkovDrafter(TRUE, TRUE), Request([np.array([0])], 11)))
    assert [int(step.tokens.size) for step in steps] == [1, 4, 1, 4, 1]
    with pytest.raises(ValueError, match="one prompt and no goal"):
        next(decoder.steps(predictor, of_prompts()))
    with pytest.raises(ValueError, match="fixed length"):
        TwoPass(SpeculativeConfig(draft="auto"))
    for ignored in ({"confidence": 0.5}, {"draft_vocabulary": 3}):
        with pytest.raises(ValueError, match="is not for two passes per cycle"):
            TwoPass(SpeculativeConfig(**ignored))


@pytest.mark.parametrize("plain", PLAIN, ids=str)
@pytest.mark.parametrize("which", DRAFTERS)
def test_no_drafter_changes_the_text(which, plain):
    predictor, prompts = MarkovDrafter(TRUE, DRAFTERS[which]), [[0], [1, 2, 4], [2, 2], [4, 0, 1, 2], [0]]
    extras = itertools.cycle([{"confidence": 0.3}, {"draft_vocabulary": 2}])
    for fields in ({}, {"end": END}, {"end": END, "exact": True}, {"limit": 100, "offset": 7}, {"limit": 1}):
        asked = Request([np.array(one) for one in prompts], **{"limit": 9, **fields})
        expected = plainly(plain).decode(predictor, asked)
        for draft in (1, 3, 31):
            assert_equal(speculative(plain, draft=draft).decode(predictor, asked), expected)
        assert_equal(speculative(plain, **next(extras)).decode(predictor, asked), expected)


CUTS = [{"temperature": 0.7, "top_k": 3}, {"temperature": 1.5, "top_p": 0.8}, {"temperature": 1.0, "floor": 0.15}]


@pytest.mark.parametrize(
    ("which", "cut"),
    [
        *((which, {"temperature": 1.0}) for which in DRAFTERS),
        *((which, cut) for which in ("good", "bad") for cut in CUTS),
    ],
    ids=str,
)
def test_completions_have_the_models_distribution(which, cut):
    n, length, first = 3000, 3, 0
    asked = Request(np.full((n, 1), first), length)
    found = make_decoder("speculative", draft=2, seed=11, **cut).decode(MarkovDrafter(TRUE, DRAFTERS[which]), asked)
    logits = TRUE.log() / cut["temperature"]
    probabilities = logits.softmax(-1).numpy()
    order = np.argsort(-probabilities, axis=1)
    ranked = np.take_along_axis(probabilities, order, 1)
    kept = np.cumsum(ranked, 1) - ranked < cut.get("top_p", 1.0)
    kept &= (ranked >= cut.get("floor", 0.0)) | (np.arange(5) == 0)
    kept &= np.arange(5) < cut.get("top_k", 5)
    exact = np.zeros_like(probabilities)
    np.put_along_axis(exact, order, np.where(kept, ranked, 0.0), 1)
    exact /= exact.sum(1, keepdims=True)
    expected = n * np.einsum("a,ab,bc->abc", exact[first], exact, exact).ravel()
    counts = np.bincount([np.ravel_multi_index(one.tokens, (5, 5, 5)) for one in found], minlength=125)
    assert not counts[expected == 0].any()
    rare = (expected > 0) & (expected < 5)
    pairs = [(counts[expected >= 5], expected[expected >= 5]), (counts[rare].sum(), expected[rare].sum())]
    observed, wanted = (np.append(*(pair[side] for pair in pairs)) for side in (0, 1))
    assert chisquare(observed[wanted > 0], wanted[wanted > 0]).pvalue > 1e-3


def test_a_good_drafter_saves_passes_and_steps_count_what_was_accepted():
    passes, shares = {}, {}
    for which in DRAFTERS:
        predictor = MarkovDrafter(TRUE, DRAFTERS[which], context=300)
        steps = list(speculative(("sample", {"seed": 1}), draft=3).steps(predictor, Request([np.array([0])], 200)))
        assert sum((step.tokens >= 0).sum() for step in steps) == 200
        assert all(step.drafted <= step.offered for step in steps)
        # Each pass gives its accepted tokens and one more.
        assert all((step.tokens >= 0).sum() == step.drafted + 1 for step in steps)
        passes[which] = predictor.passes
        shares[which] = sum(int(step.drafted[0]) for step in steps) / sum(int(step.offered[0]) for step in steps)
    assert passes["exact"] == 50  # 1 + 50 * 4 - 1 tokens
    assert shares["exact"] == 1.0
    assert passes["exact"] < passes["good"] < passes["bad"] < passes["ending"] + 30
    assert shares["good"] > 0.6 > shares["bad"] > shares["opposed"]


@pytest.mark.parametrize("two_pass", [False, True])
def test_drafts_behind_an_accepted_end_token_are_not_counted(two_pass):
    """The chain is 0 1 2 3 4, drafted as it is: 4 ends it; what is drafted behind it was never up for acceptance."""
    cycle = torch.eye(5).roll(1, 1)
    predictor = MarkovDrafter(cycle, cycle, context=40)
    asked = Request([np.array([0])], 20, 4)
    config = SpeculativeConfig(draft=8)
    made = TwoPass(config) if two_pass else make_decoder("speculative", draft=8)
    steps = list(made.steps(predictor, asked))
    assert sum(int((step.tokens >= 0).sum()) for step in steps) == 4
    assert [int(step.offered[0]) for step in steps] == [int(step.drafted[0]) for step in steps]
    assert max(int(step.offered[0]) for step in steps) > 1


def test_drafts_that_share_the_noise_are_accepted_as_often_as_promised():
    """At least (1 - d) / (1 + d), d the total variation distance; independent draws would agree less often."""
    predictor = MarkovDrafter(TRUE, DRAFTERS["good"], context=3000)
    steps = list(speculative(("sample", {"seed": 1}), draft=1).steps(predictor, Request([np.array([0])], 2500)))
    tried = [step for step in steps if step.offered[0]]
    share = np.mean([step.drafted[0] for step in tried])
    distance = float((TRUE - DRAFTERS["good"]).abs().sum(1).max() / 2)
    independent = float((TRUE * DRAFTERS["good"]).sum(1).max())
    assert share > (1 - distance) / (1 + distance) - 0.02
    assert share > independent + 0.1


def test_a_draft_ends_where_the_model_is_not_confident():
    drafts = torch.tensor([[0.0, 0.9, 0.1], [0.0, 0.1, 0.9], [0.5, 0.2, 0.3]], dtype=torch.float64)
    predictor = MarkovDrafter(drafts, drafts)
    offered = {}
    for confidence in (0.0, 0.4, 0.5, 0.85, 0.95):
        asked = Request([np.array([2])], 20)
        first, second, *_ = speculative(draft=5, confidence=confidence).steps(predictor, asked)
        assert first.tokens.tolist() == [[0]]
        offered[confidence] = int(second.offered[0])
    # After 0: 1 with .9, 2 with .81, 0 with .405, 1 with .3645.
    assert offered == {0.0: 5, 0.4: 3, 0.5: 2, 0.85: 1, 0.95: 0}


def test_rows_of_a_batch_are_as_alone(request, drafting):
    """Greedy and drawn by turns, from one model to the next."""
    number = list(MODELS).index(request.node.callspec.params["drafting"])
    decoder = speculative(PLAIN[number % 2], draft=3)
    together = dict(zip(range(6), decoder.decode(drafting, of_prompts())))
    for rows in ([4], [5, 2], [3, 1, 0, 5, 4, 2]):
        assert_equal(decoder.decode(drafting, of_prompts(rows)), [together[row] for row in rows])


@pytest.mark.parametrize("make", [tiny_two_stream, tiny_belief_slots, TINY_BACKBONES["recurrent"]])
def test_drafts_may_be_longer_than_what_a_model_keeps(make):
    predictor = model("next_token", lambda **more: make(**{**more, "context": 70}))
    asked = of_prompts([1, 3, 5], end=None, limit=50)
    decoder = speculative(draft=45, drafter="prompt_lookup")
    assert_equal(decoder.decode(predictor, asked), plainly(PLAIN[0]).decode(predictor, asked))


@pytest.mark.parametrize("name", ["next_token", "belief_state", "teacherless", "recurrent"])
@pytest.mark.parametrize("plain", PLAIN[:2], ids=str)
def test_prompt_lookup_drafts_for_any_model(name, plain):
    make = TINY_BACKBONES["recurrent" if name == "recurrent" else "gpt"]
    predictor = model("next_token" if name == "recurrent" else name, make)
    decoder = speculative(plain, drafter="prompt_lookup", draft=5)
    assert_equal(decoder.decode(predictor, of_prompts()), plainly(plain).decode(predictor, of_prompts()))


@pytest.mark.parametrize("plain", PLAIN[:2], ids=str)
def test_goals_gaps_and_the_other_direction(plain):
    predictor = model("belief_state", min_gap=1)
    decoder = speculative(plain, drafter="prompt_lookup", draft=3)
    for fields in ({}, {"closing": predictor.closing}):
        asked = of_prompts(goal=np.array([4, 2]), **fields)
        assert_equal(decoder.decode(predictor, asked), plainly(plain).decode(predictor, asked))
        assert_equal(Reverse(decoder).decode(predictor, asked), Reverse(plainly(plain)).decode(predictor, asked))


def test_what_followed_before_is_drafted():
    lookup = PromptLookup(2, 3)
    lookup.follow(0, [1, 2, 3, 9, 5, 2, 3, 8, 7, 1, 2, 3])
    assert lookup.continuation(0, 4) == [9, 5, 2, 3]  # the longest run counts, not the latest
    lookup.follow(0, [8])
    assert lookup.continuation(0, 2) == [7, 1]
    lookup.follow(1, [4, 6, 4, 6])
    assert lookup.continuation(1, 5) == [4, 6, 4, 6, 4]  # a repetition goes on
    lookup.follow(1, [0])
    assert lookup.continuation(1, 5) == []


@pytest.mark.parametrize("plain", [PLAIN[0], ("sample", {"seed": 2, "temperature": 2.0})], ids=str)
def test_a_kept_state_goes_on_as_plain_decoding(plain):
    predictor = model("next_token", lambda **more: tiny_belief_slots(**{"chunk": 3, **more}))
    decoder = speculative(plain, draft=5, drafter="prompt_lookup")
    asked = Request([np.array(PROMPTS[4])], 16)
    (whole,) = plainly(plain).decode(Continued(predictor, None), asked)
    for first_limit in (1, 4, 5, 6, 9):
        begun = Continued(predictor, None)
        (first,) = decoder.decode(begun, replace(asked, limit=first_limit))
        kept = begun.state(len(PROMPTS[4]), first)
        later = Continued(predictor, kept)
        pending = kept["pending"].numpy()
        (rest,) = decoder.decode(later, Request([pending], 16 - first_limit, offset=later.offset))
        assert whole.tokens.tolist() == [*first.tokens, *rest.tokens]


def test_the_fastest_length_is_found():
    def chosen(share, seconds, cycles=2000, seed=0):  # `share`: accepted at each place, or a function of the length
        rng, length = np.random.default_rng(seed), MeasuredLength(100)
        asked = []
        for _ in range(cycles):
            asked.append(length.next())
            likely = share(asked[-1]) if callable(share) else share
            accepted = np.logical_and.accumulate(rng.random((2, asked[-1])) < likely, axis=1).sum(1)
            length.record(asked[-1], [asked[-1]] * 2, accepted.tolist(), seconds(asked[-1]))
        return np.bincount(asked, minlength=LENGTHS[-1] + 1)

    flat, steep = (lambda k: 1 + 0.05 * k), (lambda k: 1 + 0.6 * k)
    never = chosen(0.0, flat)
    assert never[0] > 1940
    assert never[7:].sum() == 0
    assert chosen(0.95, flat)[15] > 1900
    assert chosen(0.5, steep)[0] > 1900
    assert chosen(0.7, flat)[3:8].sum() > 1900
    only_first = np.array([0.9] + [0.0] * (LENGTHS[-1] - 1))
    assert chosen(lambda k: only_first[:k], steep)[1] > 1900
    for seed in range(20):  # what the first cycles happen to accept does not decide
        assert chosen(lambda k: np.full(k, 0.5), lambda k: 1 + 0.2 * k, 400, seed)[0] < 100


def test_short_answers_are_measured_too():
    """Their limits cut every draft; places that a limit cut off say nothing of what is accepted."""
    for share, best in ((0.0, 0), (0.9, 15)):
        rng, length, asked = np.random.default_rng(0), MeasuredLength(100), []
        for _ in range(300):
            asked.append(length.next())
            most = min(asked[-1], 2)
            accepted = np.logical_and.accumulate(rng.random((1, most)) < share, axis=1).sum(1)
            length.record(asked[-1], [most], accepted.tolist(), 1 + 0.05 * most)
        assert asked[100:].count(best) > 190
        assert not any(length.offered[2:])
    before = {key: list(times) for key, times in length.seconds.items()}
    length.record(7, [0], [0], 9.0)
    assert before == {key: list(times) for key, times in length.seconds.items()}


def test_a_further_request_goes_on_with_what_was_measured(monkeypatch):
    monkeypatch.setattr(MeasuredLength, "rate", lambda self, length: -abs(length - 3))
    predictor, other = (MarkovDrafter(TRUE, TRUE, context=200) for _ in range(2))
    decoder = speculative(draft="auto")

    def offered(predictor, rows):
        steps = decoder.steps(predictor, Request([np.array([0])] * rows, 60))
        return [int(step.offered.max()) for step in steps][1:]

    assert offered(predictor, 1)[:7] == [0, 0, 0, 3, 3, 3, 3]
    assert not {0, 1} & {*offered(predictor, 1)[:-1]}
    assert offered(predictor, 2)[0] == offered(other, 1)[0] == 0  # another batch size or model has other costs


def test_the_measured_length_stays_within_the_context():
    predictor = MarkovDrafter(TRUE, TRUE, context=6)
    asked = Request([np.array([0])], 100)
    assert_equal(speculative(draft="auto").decode(predictor, asked), plainly(PLAIN[0]).decode(predictor, asked))


def test_a_model_that_cannot_draft_is_refused_with_those_that_can():
    having = "joint_multi_token and next_latent, or the objectives multi_token and latent_multi_token on deltanet, gpt"
    with pytest.raises(ValueError, match=f"prompt_lookup, any model.*{having}"), explaining_missing_capability():
        speculative().decode(model("next_token"), of_prompts())


@pytest.mark.parametrize("plain", PLAIN, ids=str)
def test_without_drafts_any_model_decodes_plainly(plain):
    for predictor in (
        model("next_token"),
        model("next_latent", TINY_BACKBONES["belief_slots"]),
        MarkovDrafter(TRUE, TRUE),
    ):
        asked = of_prompts([0]) if isinstance(predictor, MarkovDrafter) else of_prompts()
        assert_equal(speculative(plain, draft=0).decode(predictor, asked), plainly(plain).decode(predictor, asked))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"draft": CONTEXT},
            f"a draft of {CONTEXT} tokens does not fit the context of {CONTEXT}: set `draft` to at most",
        ),
        ({"draft": -1}, "draft must be at least 0, not -1"),
        ({"draft": "always"}, "draft"),
        ({"drafter": "oracle"}, "drafter"),
        ({"confidence": 1.5}, "confidence must be at least 0 and at most 1"),
        ({"ngram": 0}, "ngram must be at least 1"),
        ({"temperature": -0.5}, "temperature must be at least 0, not -0.5"),
        ({"temperature": 1, "top_k": 0}, "top_k must be at least 1"),
        ({"drafter": "prompt_lookup", "confidence": 0.5}, "confidence is for drafts of the model itself"),
        ({"drafter": "prompt_lookup", "draft_vocabulary": 4}, "draft_vocabulary is for drafts of the model itself"),
        ({"ngram": 2}, "ngram is for prompt lookup"),
        *(
            ({name: value}, f"{name} is for sampling: omit it, or set temperature above 0")
            for name, value in (("top_k", 3), ("top_p", 0.5), ("floor", 0.1), ("seed", 7))
        ),
    ],
)
def test_wrong_settings_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        make_decoder("speculative", **fields).decode(model("next_latent"), of_prompts())
