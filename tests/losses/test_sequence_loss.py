"""The losses for training loops of others: equal to the objectives', however scored, with PyTorch alone."""

import subprocess
import sys

import pytest
import torch
from doubles import VOCABULARY, pack, random_batch, tiny_objective

from statewise import losses
from statewise.losses.sequence_loss import documents_of


class Sharded(torch.Tensor):
    """As a parameter between the passes of a sharded module."""

    device_mesh = None


BLOCKED = """
import sys
from importlib.machinery import PathFinder
class NothingElse:
    '''Finds no package but PyTorch and what it needs itself.'''
    own = {"torch", "statewise"}
    of_torch = {"filelock", "fsspec", "functorch", "jinja2", "markupsafe", "mpmath", "networkx", "sympy",
                "torchgen", "typing_extensions"}
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in self.own | self.of_torch | sys.stdlib_module_names or top[0] == "_":
            return PathFinder.find_spec(name, path, target)
sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not PathFinder] + [NothingElse()]
import torch
import statewise.losses as losses
hidden = torch.randn(2, 9, 8, requires_grad=True)
tokens = torch.randint(5, (2, 9))
weight = torch.randn(5, 8, requires_grad=True)
for loss in (losses.NextLatentLoss(8, 2), losses.TokenOrderLoss(8, 5), losses.SemanticTubeLoss(),
             losses.JointMultiTokenLoss(8), losses.FutureSummaryLoss(8, 5)):
    loss(hidden, tokens, head_weight=weight, embedding=weight).loss.backward()
print(*sorted(name for name in sys.modules if name.startswith("statewise") and name.count(".") == 1))
"""


def kinds(width: int, vocabulary: int) -> dict:
    """Each loss, with the name and the fields of the objective that computes the same."""
    return {
        "next_token": (losses.NextTokenLoss(), {}),
        "next_latent": (losses.NextLatentLoss(width, 3, ce_weight=0.5), {"horizon": 3, "ce_weight": 0.5}),
        "joint_multi_token": (losses.JointMultiTokenLoss(width, 2), {"horizon": 2}),
        "token_order": (losses.TokenOrderLoss(width, vocabulary, 4), {"window": 4}),
        "future_summary": (losses.FutureSummaryLoss(width, vocabulary, 5), {"summary": "bag", "window": 5}),
        "semantic_tube": (losses.SemanticTubeLoss(0.3), {"tube_weight": 0.3}),
    }


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", kinds(16, VOCABULARY))
def test_a_loss_is_the_one_of_its_objective(name, packed):
    loss, fields = kinds(16, VOCABULARY)[name]
    objective, batch = tiny_objective(name, **fields), random_batch()
    batch = pack(batch) if packed else batch
    loss.load_state_dict({key: tensor for key, tensor in objective.state_dict().items() if "backbone" not in key})
    expected = objective(batch).value()
    wanted = torch.autograd.grad(expected, list(objective.parameters()), allow_unused=True)
    backbone = objective.backbone
    out = loss(
        backbone.encode(batch).readout,
        batch.tokens,
        head_weight=backbone.head_weight(),
        embedding=backbone.embed,
        documents=batch.document_ids,
        scored=batch.scored,
    )
    torch.testing.assert_close(out.loss, expected)
    assert set(out.parts) == set(objective(batch).parts)
    out.loss.backward()
    trained = dict(objective.named_parameters()) | dict(loss.named_parameters())
    for (key, _), gradient in zip(objective.named_parameters(), wanted):
        if gradient is not None:
            torch.testing.assert_close(trained[key].grad, gradient, msg=lambda message, key=key: f"{key}: {message}")


@pytest.mark.usefixtures("float64")
def test_further_heads_read_the_state_that_is_given():
    torch.manual_seed(1)
    loss = losses.MultiTokenLoss(lambda: torch.nn.Linear(12, 8), 2)
    hidden, trunk, weight = torch.randn(2, 7, 8), torch.randn(2, 7, 12), torch.randn(5, 8)
    tokens = torch.randint(5, (2, 7))
    out = loss(hidden, tokens, head_weight=weight, embedding=weight, state=trunk)
    ahead = []
    for steps, branch in enumerate(loss.branches, 1):
        logits = (branch(trunk) @ weight.T)[:, : 6 - steps].log_softmax(-1)
        ahead.append(-logits.gather(-1, tokens[:, steps + 1 :, None]).mean())
    torch.testing.assert_close(out.parts["ahead"], sum(ahead) / 2)
    copies = losses.MultiTokenLoss(branch := torch.nn.Linear(12, 8), 2).branches
    assert len({id(each.weight) for each in (branch, *copies)}) == 3
    assert all(torch.equal(each.weight, branch.weight) for each in copies)


@pytest.mark.usefixtures("float64")
def test_labels_and_position_ids_say_what_scored_and_documents_say():
    torch.manual_seed(0)
    tokens, hidden, weight = torch.randint(5, (2, 8)), torch.randn(2, 8, 6), torch.randn(5, 6)
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 0, 1]])
    documents = torch.tensor([[1, 1, 1, 2, 2, 2, 2, 2], [1, 1, 1, 1, 1, 1, 2, 2]])
    assert torch.equal(documents_of(positions), documents)
    scored = torch.rand(2, 8) < 0.7
    loss = losses.NextLatentLoss(6, 2)
    one = loss(hidden, tokens, head_weight=weight, embedding=weight, documents=documents, scored=scored)
    labels = torch.where(scored, tokens, -100)
    other = loss(hidden, tokens, head_weight=weight, embedding=weight, position_ids=positions, labels=labels)
    torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("float64")
def test_accumulated_batches_are_one_batch():
    torch.manual_seed(0)
    tokens, hidden, weight = torch.randint(5, (4, 8)), torch.randn(4, 8, 6, requires_grad=True), torch.randn(5, 6)
    loss = losses.NextLatentLoss(6, 2)
    whole = loss(hidden, tokens, head_weight=weight, embedding=weight).loss
    (wanted,) = torch.autograd.grad(whole, hidden)
    total = torch.zeros(())
    for rows in (slice(0, 1), slice(1, 4)):
        total = total + loss(hidden[rows], tokens[rows], head_weight=weight, embedding=weight, num_items=28).loss
    torch.testing.assert_close(total, whole)
    torch.testing.assert_close(torch.autograd.grad(total, hidden)[0], wanted)


def test_pytorch_is_the_only_package_that_is_needed():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", BLOCKED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rooms = {name.removeprefix("statewise.") for name in done.stdout.split()}
    assert rooms <= {"backbones", "batch", "config", "losses", "runtime"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tokens": torch.zeros(2, 5, dtype=torch.long)}, "hidden has the shape"),
        ({"scored": torch.ones(2, 3, dtype=torch.bool)}, "scored has the shape"),
        ({"documents": torch.ones(2, 4), "position_ids": torch.ones(2, 4)}, "not both"),
        ({"labels": torch.ones(2, 4), "scored": torch.ones(2, 4)}, "not both"),
        ({"head_weight": torch.ones(5, 7)}, "head_weight has the shape"),
        ({"embedding": 3}, "embedding must be"),
        ({"state": torch.zeros(2, 5, 6)}, "state has the shape"),
        ({"label_smoothing": float("nan")}, "label_smoothing must be"),
        ({"head_weight": Sharded(torch.ones(5, 6))}, "head_weight is sharded"),
        ({"head_weight": torch.nn.Linear(6, 5)}, "head_weight must be the matrix"),
        ({"tokens": torch.zeros(2, 4)}, "tokens must be whole numbers"),
        ({"labels": torch.ones(2, 4, dtype=torch.long)}, "not shifted"),
        ({"num_items": float("nan")}, "num_items must be a number of tokens"),
        ({"num_items": torch.ones(2)}, "num_items must be one number"),
    ],
)
def test_what_does_not_fit_is_refused(given, message):
    fields = {
        "tokens": torch.zeros(2, 4, dtype=torch.long),
        "head_weight": torch.ones(5, 6),
        "embedding": torch.ones(5, 6),
    }
    fields |= given
    with pytest.raises(ValueError, match=message):
        losses.NextTokenLoss()(torch.zeros(2, 4, 6), fields.pop("tokens"), **fields)


def test_losses_of_another_size_or_type_than_the_model_are_refused():
    for make, name in [
        (lambda size: losses.NextLatentLoss(size), "width"),
        (lambda size: losses.JointMultiTokenLoss(size), "width"),
        (lambda size: losses.TokenOrderLoss(4, size), "vocabulary"),
        (lambda size: losses.FutureSummaryLoss(size, 4), "width"),
        (lambda size: losses.BeliefStatePair(None, None, width=size, vocabulary=5), "width"),
    ]:
        for size in (0, -1, "3", 2.5, True, 10**12):
            with pytest.raises(ValueError, match=f"^{name} must be a whole number from 1"):
                make(size)
    with pytest.raises(ValueError, match="branch must be a module"):
        losses.MultiTokenLoss(None)
    with pytest.raises(ValueError, match="begin must be a token id, not -1"):
        losses.BeliefStatePair(None, None, width=8, vocabulary=5, begin=-1)
    tokens, weight = torch.zeros(2, 4, dtype=torch.long), torch.ones(5, 6)
    given = {"head_weight": weight, "embedding": weight}
    with pytest.raises(ValueError, match="made with width 8, and hidden states have 6"):
        losses.NextLatentLoss(8)(torch.zeros(2, 4, 6), tokens, **given)
    coarse = {name: tensor.bfloat16() for name, tensor in given.items()}
    for loss in (losses.NextLatentLoss(6), losses.JointMultiTokenLoss(6)):
        with pytest.raises(ValueError, match=r"parameters of the loss torch.float32.*loss.to\(torch.bfloat16\)"):
            loss(torch.zeros(2, 4, 6).bfloat16(), tokens, **coarse)


def test_documents_may_have_any_numbers():
    torch.manual_seed(0)
    loss, tokens = losses.TokenOrderLoss(16, VOCABULARY, 4), torch.randint(VOCABULARY, (3, 6))
    weight, hidden = torch.randn(VOCABULARY, 16), torch.randn(3, 6, 16)
    documents = torch.tensor([[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 1, 1], [1, 2, 2, 3, 3, 3]])
    found = [
        loss(hidden, tokens, head_weight=weight, embedding=weight, documents=one).loss
        for one in (documents, torch.where(documents > 0, 7 * documents - 20, 0))
    ]
    assert torch.equal(*found)


@pytest.mark.parametrize("name", kinds(16, VOCABULARY))
def test_batches_without_anything_to_predict_have_a_finite_loss_and_rows_of_no_tokens_none(name):
    torch.manual_seed(0)
    loss, _ = kinds(16, VOCABULARY)[name]
    weight, tokens = torch.randn(VOCABULARY, 16), torch.randint(VOCABULARY, (3, 6), dtype=torch.int32)
    given = {"head_weight": weight, "embedding": weight}
    for rows, options in ((0, {}), (3, {"labels": torch.full_like(tokens, -100), "num_items": 0}), (3, {})):
        out = loss(torch.randn(rows, 6, 16, requires_grad=True), tokens[:rows], **given, **options)
        out.loss.backward()
        assert out.loss.isfinite()
        assert all(one.grad is None or one.grad.isfinite().all() for one in loss.parameters())
    with pytest.raises(ValueError, match="rows of no tokens"):
        loss(torch.randn(2, 0, 16), tokens[:2, :0], **given)


def test_messages_name_the_argument():
    with pytest.raises(ValueError, match=r"^horizon must be at least 1"):
        losses.NextLatentLoss(8, 0)
    with pytest.raises(ValueError, match=r"^window must be at least 2"):
        losses.FutureSummaryLoss(8, 5, 1)
    with pytest.raises(ValueError, match=r"^horizon must be a whole number, not 1.5"):
        losses.NextLatentLoss(8, 1.5)
    with pytest.raises(ValueError, match=r"^dynamics_norm must be \"rms\" or \"layer\", not \"batch\""):
        losses.NextLatentLoss(8, dynamics_norm="batch")
    with pytest.raises(ValueError, match=r"^tube_weight must be a number, not true"):
        losses.SemanticTubeLoss(True)
    with pytest.raises(ValueError, match=r"^init must be a number or text, not null"):
        losses.FutureSummaryLoss(8, 5, init=None)
    with pytest.raises(ValueError, match=r"^norm_eps must be a number"):
        losses.NextLatentLoss(8, norm_eps="small")
