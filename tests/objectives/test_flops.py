"""What a step costs, against a counter of the products that a model really does."""

import pytest
import torch
from doubles import CONTEXT, VOCABULARY, pack, random_batch, tiny_gpt, tiny_objective, tiny_recurrent
from torch.utils.flop_counter import FlopCounterMode

from statewise.backbones.capabilities import Carrying
from statewise.data_types import Batch
from statewise.losses.belief_state import pair_loss
from statewise.objectives import OBJECTIVES
from statewise.objectives.base import document_lengths, head_flops

pytestmark = pytest.mark.usefixtures("attention_without_padding")


def counted(call):
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize("fields", [{}, {"mlp": "gelu", "tied": False, "bias": True}, {"layers": 1, "heads": 4}])
def test_a_forward_pass_is_what_a_counter_finds_but_for_what_is_masked(fields):
    backbone = tiny_gpt(**fields)
    for length in (1, 7, CONTEXT):
        found = counted(lambda: backbone.encode(Batch.plain(torch.zeros(1, length, dtype=torch.int64))))  # noqa: B023
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
    [
        {"kl_weight": 0.0},
        {},
        {"head_gradient": True},
        {"kl_weight": 0.0, "ce_weight": 1.0},
        {"kl_weight": 0.0, "ce_weight": 1.0, "head_gradient": True},
    ],
    ids=str,
)
def test_a_step_of_next_latent_prediction_is_what_a_counter_finds(settings):
    """Full rows without prompts, so that nothing is computed for padding; the counter also sees what is masked."""
    objective = tiny_objective("next_latent", horizon=2, **settings)
    batch = full_rows()
    B, T = batch.tokens.shape
    backbone = objective.backbone
    found = counted(lambda: objective(batch).value().backward())
    masked = 3 * B * backbone.layers * 4 * backbone.width * T * (T - 1) / 2
    assert objective.flops(batch) == pytest.approx(found - masked, rel=0.02)


def full_rows():
    """A batch of full rows without prompts, so that nothing is computed for padding."""
    batch = random_batch(prompts=False)
    full = torch.ones_like(batch.real)
    scored = full.clone()
    scored[:, 0] = False
    return batch._replace(real=full, scored=scored, span=(1, full.shape[1]))


@pytest.mark.parametrize("make_backbone", [tiny_gpt, tiny_recurrent])
def test_a_step_of_multi_token_prediction_is_what_a_counter_finds(make_backbone):
    """But for the scores that attention computes and masks, and what a recurrent kernel hides from the counter."""
    objective, batch = tiny_objective("multi_token", make_backbone=make_backbone, horizon=3), full_rows()
    if make_backbone is tiny_recurrent:  # its three more layers, and three heads of one, two, three targets fewer
        (B, T), backbone = batch.tokens.shape, objective.backbone
        plain = 3 * (B * backbone.flops(T) + B * (T - 1) * head_flops(backbone))
        more = 3 * (3 * B * backbone.flops(T) / 2 + B * (3 * (T - 1) - 6) * head_flops(backbone))
        assert objective.flops(batch) == plain + more
        return
    B, T = batch.tokens.shape
    found = counted(lambda: objective(batch).value().backward())
    masked = 3 * B * (objective.backbone.layers + 3) * 4 * objective.backbone.width * T * (T - 1) / 2
    assert objective.flops(batch) == found - masked


@pytest.mark.parametrize("packed", [False, True])
def test_a_step_of_joint_prediction_is_what_a_counter_finds_of_fetch_place_by_place(packed):
    objective = tiny_objective("joint_multi_token", horizon=3)
    batch = random_batch(longest=8)
    batch = pack(batch) if packed else batch
    backbone, fetch = objective.backbone, objective.fetch
    D, documents = backbone.width, batch.document_ids
    total = 0.0
    for length, number in document_lengths(batch).items():
        total += number * backbone.flops(length)
    for b, t in torch.nonzero(batch.real).tolist():
        wanted = [
            place
            for place in range(4)
            if t + place + 1 < batch.tokens.shape[1]
            and batch.scored[b, t + place + 1]
            and documents[b, t + place] == documents[b, t]
        ]
        total += len(wanted) * head_flops(backbone)
        if wanted:
            places = max(wanted) + 1
            whole = counted(lambda: fetch(torch.zeros(1, D), torch.zeros(1, places, D)))  # noqa: B023
            masked = 4 * D * places * (places - 1) / 2
            unasked = [place for place in range(places) if place not in wanted]  # their queries, scores and outputs
            total += whole - masked - sum(2 * 2 * D * D + 4 * D * (place + 1) for place in unasked)
    assert objective.flops(batch) == pytest.approx(3 * total)


def of_states(objective, batch):
    """Forward passes of both encoders over the documents, and over the empty prefix and suffix."""
    flops = objective.prefix_encoder.flops
    return sum(flops(length) * number for length, number in document_lengths(batch).items()) + flops(1)


def test_a_step_of_the_belief_state_transformer_is_what_a_counter_finds(monkeypatch):
    monkeypatch.setitem(pair_loss.BLOCK, "cpu", 1)  # no block then computes a pair that does not count
    objective, batch = tiny_objective("belief_state", head="mlp", head_width=8), full_rows()
    B, T = batch.tokens.shape
    backbone = objective.prefix_encoder
    found = counted(lambda: objective(batch).value().backward())
    masked = 2 * 3 * B * backbone.layers * 4 * backbone.width * T * (T - 1) / 2
    pairs = B * T * (T + 1) // 2
    in_place = objective.head.flops(0, 0, pairs, 2 * pairs)  # gradients of the head's matrices: `addmm_` is not counted
    assert objective.flops(batch) == found - masked + in_place


@pytest.mark.parametrize(
    "fields",
    [{"head": "mlp"}, {"head": "gated"}, {"head": "mixture", "experts": 3}, {"head": "mixture", "expert_width": 5}],
    ids=str,
)
@pytest.mark.parametrize("backward", [True, False])
def test_a_text_head_takes_what_a_counter_finds_of_one_state_and_one_pair(fields, backward):
    objective = tiny_objective("belief_state", backward=backward, **fields)
    head, state = objective.head, torch.zeros(objective.prefix_encoder.width)
    assert head.flops(1, 0, 0, 0) == counted(lambda: head.project_prefix(state))
    assert head.flops(0, 1, 0, 0) == counted(lambda: head.project_suffix(state))
    if fields["head"] == "mixture":  # the products of a pair are those of `MixtureWorker`, not of `logits`
        assert head.flops(0, 0, 1, 2) == (2 * 2 * head.experts * head.vocabulary if backward else 0)
        return
    pair = head.project_prefix(state), head.project_suffix(state)
    assert head.flops(0, 0, 1, 2) == counted(lambda: head.logits(*pair))
    assert head.flops(0, 0, 1, 1) == counted(lambda: head.logits(*pair, 1))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "fields", [{}, {"head": "mlp"}, {"previous_weight": 0.0}, {"pairs": "answer"}, {"min_gap": 1}], ids=str
)
def test_the_targets_of_a_step_are_those_that_are_counted(packed, fields):
    objective, batch = tiny_objective("belief_state", **fields), random_batch(longest=8)
    batch = pack(batch) if packed else batch
    counts = sum(int(count) for count in objective.counts(batch).values())
    head, asked = objective.head, []

    def noted(prefixes, suffixes, pairs, targets):
        asked.append((prefixes, suffixes, pairs, targets))
        return type(head).flops(head, prefixes, suffixes, pairs, targets)

    head.flops = noted
    found = objective.flops(batch)
    ((prefixes, suffixes, pairs, targets),) = asked
    assert targets == counts
    assert counts / 2 <= pairs <= counts
    assert max(prefixes, suffixes) <= 1 + int(batch.real.sum())
    assert found == 3 * (2 * of_states(objective, batch) + type(head).flops(head, *asked[0]))


def test_without_a_backward_encoder_pairs_of_a_prefix_are_one():
    objective, batch = tiny_objective("belief_state", backward=False), full_rows()
    prefixes = (batch.tokens.shape[1] - 1) * len(batch.tokens) + 1
    head = objective.head
    expected = of_states(objective, batch) + head.flops(prefixes, 0, prefixes, 2 * prefixes)
    assert objective.flops(batch) == 3 * expected


def test_a_backbone_that_cannot_say_makes_the_objective_silent(monkeypatch):
    batch = random_batch()
    for objective in [tiny_objective(name) for name in OBJECTIVES]:
        assert objective.flops(batch) > 0
        monkeypatch.setattr("statewise.objectives.base.Counted", Carrying)  # no GPT is one
        assert objective.flops(batch) is None
        monkeypatch.undo()
