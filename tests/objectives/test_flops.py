"""What a step costs, against a counter of the products that a model really does."""

import pytest
import torch
from doubles import CONTEXT, VOCABULARY, pack, random_batch, tiny_gpt, tiny_objective
from torch.utils.flop_counter import FlopCounterMode

from statewise.backbones.base import plain_batch
from statewise.backbones.powers import Carrying
from statewise.objectives import OBJECTIVES
from statewise.objectives.costs import document_lengths, head_flops


def counted(call):
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize("fields", [{}, {"mlp": "gelu", "tied": False, "bias": True}, {"layers": 1, "heads": 4}])
def test_a_forward_pass_is_what_a_counter_finds_but_for_what_is_masked(fields):
    backbone = tiny_gpt(**fields)
    for length in (1, 7, CONTEXT):
        found = counted(lambda: backbone.encode(plain_batch(torch.zeros(1, length, dtype=torch.int64))))  # noqa: B023
        masked = backbone.layers * 4 * backbone.width * length * (length - 1) / 2  # a square of scores is computed
        assert backbone.flops(length) == found - masked
    assert head_flops(backbone) == counted(lambda: backbone.logits(torch.zeros(1, backbone.width)))


def test_documents_are_counted_whether_they_share_a_row_or_not():
    batch = random_batch(longest=8)
    assert document_lengths(pack(batch)) == document_lengths(batch)
    for name in ("next_token", "next_latent"):
        objective = tiny_objective(name, **({"horizon": 3} if name == "next_latent" else {}))
        assert objective.flops(pack(batch)) == pytest.approx(objective.flops(batch))


def test_a_step_of_next_token_prediction_is_three_forward_passes():
    objective, batch = tiny_objective("next_token"), random_batch()
    lengths = batch.real.sum(1).tolist()
    forward = sum(objective.backbone.flops(length) for length in lengths)
    head = 2 * VOCABULARY * objective.backbone.width * int(batch.scored.sum())
    assert objective.flops(batch) == 3 * (forward + head)


@pytest.mark.parametrize(
    "settings",
    [{"kl_weight": 0.0}, {}, {"head_gradient": True}, {"kl_weight": 0.0, "ce_weight": 1.0},
     {"kl_weight": 0.0, "ce_weight": 1.0, "head_gradient": True}],
    ids=str,
)  # fmt: skip
def test_a_step_of_next_latent_prediction_is_what_a_counter_finds(settings):
    """Full rows without prompts, so that nothing is computed for padding; the counter also sees what is masked."""
    objective = tiny_objective("next_latent", horizon=2, **settings)
    batch = random_batch(prompts=False)
    full = torch.ones_like(batch.real)
    scored = full.clone()
    scored[:, 0] = False
    batch = batch._replace(real=full, scored=scored, span=(1, full.shape[1]))
    B, T = batch.tokens.shape
    backbone = objective.backbone
    found = counted(lambda: objective(batch).value().backward())
    masked = 3 * B * backbone.layers * 4 * backbone.width * T * (T - 1) / 2
    assert objective.flops(batch) == pytest.approx(found - masked, rel=0.02)


def test_a_backbone_that_cannot_say_makes_the_objective_silent(monkeypatch):
    batch = random_batch()
    for name in OBJECTIVES:
        assert tiny_objective(name).flops(batch) is None or name in ("next_token", "next_latent", "teacherless")
    objectives = [tiny_objective(name) for name in ("next_token", "next_latent", "teacherless")]
    for objective in objectives:
        assert objective.flops(batch) > 0
        monkeypatch.setattr("statewise.objectives.costs.Counted", Carrying)  # no GPT is one
        assert objective.flops(batch) is None
        monkeypatch.undo()
