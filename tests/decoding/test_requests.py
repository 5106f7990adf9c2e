"""A row's completion depends on its prompt and (seed, row, position), not on the batch; steps add up to completions."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from doubles import TINY_BACKBONES, VOCABULARY, MarkovPredictor, spread_weights, tiny_belief_slots, tiny_objective

from statewise.decoding import make_decoder
from statewise.decoding.base import Request
from statewise.decoding.continuing import Continued
from statewise.decoding.predictor import Carrier, require

CONTEXT = 24
END = 3
PROMPTS = [[1], [2, 5, 1, 7], [4, 4], [1], [6, 1, 2, 8, 2, 1, 5], [2, 5, 1, 7]]


@pytest.fixture(scope="module", params=TINY_BACKBONES)
def predictor(request):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    objective = tiny_objective("next_token", make_backbone=TINY_BACKBONES[request.param], backbone={"context": CONTEXT})
    spread_weights(objective)
    torch.set_default_dtype(before)
    return objective.eval().predictor()


def request(rows, **fields):
    prompts = [np.array(PROMPTS[row]) for row in rows]
    return Request(prompts, **{"limit": 12, "end": END, "rows": list(rows), **fields})


def decoded(predictor, decoder, asked):
    return dict(zip(asked.numbers.tolist(), make_decoder(*decoder[:1], **decoder[1]).decode(predictor, asked)))


DECODERS = [("greedy", {}), ("sample", {"seed": 5}), ("sample", {"seed": 5, "temperature": 2.0, "top_k": 4})]


@pytest.mark.parametrize("decoder", DECODERS, ids=str)
def test_a_row_gets_the_same_alone_beside_others_and_in_any_order(predictor, decoder):
    together = decoded(predictor, decoder, request(range(6)))
    if decoder[0] == "sample":
        assert len({len(found.tokens) for found in together.values()}) > 1, "no row ended before its neighbours"
    for rows in ([4], [0], [5, 2], [3, 1, 0, 5, 4, 2], [1, 4, 3]):
        for row, found in decoded(predictor, decoder, request(rows)).items():
            assert found.tokens.tolist() == together[row].tokens.tolist()
            assert found.log_probability == pytest.approx(together[row].log_probability)


def test_equal_prompts_draw_by_their_row_numbers(predictor):
    drawn = decoded(predictor, ("sample", {"temperature": 3.0}), request(range(6), end=None))
    assert drawn[0].tokens.tolist() != drawn[3].tokens.tolist()
    assert drawn[1].tokens.tolist() != drawn[5].tokens.tolist()


def test_two_requests_draw_what_one_draws(predictor):
    decoder, asked = make_decoder("sample", seed=2, temperature=2.0), request([4], end=None, limit=11)
    whole = decoder.decode(predictor, asked)[0].tokens
    first = decoder.decode(predictor, replace(asked, limit=5))[0].tokens
    longer = [np.concatenate([PROMPTS[4], first])]
    rest = decoder.decode(predictor, replace(asked, prompts=longer, limit=6))[0].tokens
    assert whole.tolist() == [*first, *rest]


def test_a_kept_state_goes_on_with_the_draws_of_its_position():
    torch.manual_seed(0)
    objective = tiny_objective("next_token", make_backbone=tiny_belief_slots)
    spread_weights(objective)
    predictor, decoder = objective.eval().predictor(), make_decoder("sample", seed=2, temperature=2.0)
    asked = Request([np.array(PROMPTS[4])], limit=17)
    continued = Continued(predictor, None)
    (whole,) = decoder.decode(continued, asked)
    begun = Continued(predictor, None)
    (first,) = decoder.decode(begun, replace(asked, limit=6))
    kept = begun.state(len(PROMPTS[4]), first)
    later = Continued(predictor, kept)
    assert later.offset == len(PROMPTS[4]) + 6 - len(kept["pending"])
    pending = replace(asked, prompts=[kept["pending"].numpy()], limit=11, offset=later.offset)
    (rest,) = decoder.decode(later, pending)
    assert whole.tokens.tolist() == [*first.tokens, *rest.tokens]


def test_a_kept_state_goes_on_with_the_drafts_of_its_model():
    torch.manual_seed(0)
    objective = tiny_objective("next_latent", make_backbone=tiny_belief_slots)
    spread_weights(objective)
    asked = require(objective.eval().predictor(), Carrier).under("carried", 0)
    request = Request([np.array(PROMPTS[4])], limit=17)
    (whole,) = make_decoder("greedy").decode(Continued(asked, None), request)
    decoder, begun = make_decoder("speculative", draft=2), Continued(asked, None)
    (first,) = decoder.decode(begun, replace(request, limit=6))
    kept = begun.state(len(PROMPTS[4]), first)
    later = Continued(asked, kept)
    (rest,) = decoder.decode(later, replace(request, prompts=[kept["pending"].numpy()], limit=11, offset=later.offset))
    assert whole.tokens.tolist() == [*first.tokens, *rest.tokens]
    steps = list(decoder.steps(Continued(asked, None), request))
    assert sum(step.offered.sum() for step in steps if step.offered is not None) > 0


def test_draws_differ_from_row_to_row_and_from_position_to_position():
    """With uniform probabilities the draws are the noise itself: all pairs of neighbours are equally frequent."""
    even = MarkovPredictor(torch.full((4, 4), 0.25), context=403)
    asked = Request([np.array([0])] * 100, limit=400)
    drawn = np.array([found.tokens for found in make_decoder("sample", seed=9).decode(even, asked)])
    for one, next_one in ((drawn[:, :-1], drawn[:, 1:]), (drawn[:-1], drawn[1:])):
        pairs = np.bincount((one * 4 + next_one).ravel(), minlength=16) / one.size
        assert np.abs(pairs - 1 / 16).max() < 5 * (1 / 16 / one.size) ** 0.5
    again = np.array([found.tokens for found in make_decoder("sample", seed=10).decode(even, asked)])
    assert 0.2 < (drawn == again).mean() < 0.3


@pytest.mark.parametrize(
    "decoder",
    [
        ("greedy", {}),
        ("sample", {}),
        ("beam", {"beams": 3}),
        ("goal_search", {"rollouts": 4}),
        ("speculative", {"drafter": "prompt_lookup"}),
    ],
    ids=str,
)
def test_steps_add_up_to_completions(decoder):
    objective = tiny_objective("belief_state")
    spread_weights(objective)
    predictor, made = objective.eval().predictor(), make_decoder(decoder[0], **decoder[1])
    asked = request(range(6), limit=6)
    whole = made.decode(predictor, asked)
    rows, totals = [[] for _ in PROMPTS], np.zeros(6)
    for step in made.steps(predictor, asked):
        assert step.tokens.shape == step.log_probabilities.shape
        assert step.tokens.max() < VOCABULARY
        totals += step.log_probabilities.sum(1)
        for row, tokens in zip(rows, step.tokens):
            row += tokens[tokens >= 0].tolist()
    assert rows == [found.tokens.tolist() for found in whole]
    np.testing.assert_allclose(totals, [found.log_probability for found in whole], rtol=1e-5)
