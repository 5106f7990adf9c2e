"""What predictors can do besides predicting the next token."""

import pytest
from doubles import tiny_belief_slots, tiny_gpt, tiny_objective, tiny_recurrent, tiny_two_stream

from statewise.data_types import LacksCapability
from statewise.decoding.predictor import (
    Carrier,
    Drafter,
    Fetcher,
    GoalScorer,
    StateDynamics,
    StateLimiter,
    Traceable,
    require,
)
from statewise.objectives.predictors import HeadPredictor

KINDS = (Carrier, Drafter, Fetcher, GoalScorer, StateDynamics, StateLimiter, Traceable)


def able(predictor):
    return {kind for kind in KINDS if predictor.capability(kind) is not None}


@pytest.mark.parametrize(
    ("make_backbone", "lent"),
    [
        (tiny_gpt, {Traceable}),
        (tiny_two_stream, {Traceable, StateLimiter, Fetcher}),
        (tiny_belief_slots, {Carrier}),
        (tiny_recurrent, set()),
    ],
)
def test_a_predictor_can_do_what_its_backbone_and_its_own_class_can(make_backbone, lent):
    assert able(HeadPredictor(make_backbone())) == lent
    drafting = tiny_objective("next_latent", make_backbone=make_backbone).predictor()
    assert able(drafting) == lent | {Drafter, StateDynamics}
    assert require(drafting, Drafter) is drafting


def test_under_another_protocol_a_predictor_keeps_its_other_capabilities():
    predictor = tiny_objective("next_latent", make_backbone=tiny_belief_slots).predictor()
    other = require(predictor, Carrier).under("same-chunk", 2)
    assert able(other) == able(predictor)
    assert (predictor.backbone.protocol, predictor.backbone.warmup) == ("carried", 0)
    assert (other.backbone.protocol, other.backbone.warmup) == ("same-chunk", 2)


def test_a_predictor_with_a_head_of_its_own_does_not_borrow():
    predictor = tiny_objective("belief_state", make_backbone=tiny_two_stream).predictor()
    assert able(predictor) == {GoalScorer}
    with pytest.raises(
        LacksCapability, match=r"^restricted-state needs a model whose kept state can be limited$"
    ) as raised:
        require(predictor, StateLimiter)
    assert raised.value.capability is StateLimiter
