"""What only a GPU does, on a CPU: batches go with their plan through Fabric, and autocast sums in fp32."""

import pytest
import torch
from doubles import TINY_BACKBONES, makes_sense, random_batch, tiny_objective, tiny_recurrent
from lightning_fabric.plugins.precision import MixedPrecision
from torch.overrides import TorchFunctionMode

from statewise.backbones.nn.attention import attend_fused
from statewise.backbones.nn.belief_slots import SlotUpdate
from statewise.backbones.nn.masks import Documents
from statewise.losses.belief_state import pair_loss, pairs
from statewise.losses.belief_state.pair_loss import MLPWorker, Worker
from statewise.objectives import OBJECTIVES

HALF = (torch.bfloat16, torch.float16)
IN_FLOAT32 = {
    "cumprod",
    "cumsum",
    "dist",
    "exp",
    "expm1",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_softmax",
    "norm",
    "pow",
    "prod",
    "reciprocal",
    "rsqrt",
    "softmax",
    "softplus",
    "sum",
    "cross_entropy",
    "nll_loss",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "kl_div",
    "cosine_similarity",
    "layer_norm",
    "normalize",
    "binary_cross_entropy_with_logits",
    "__pow__",
    "__rpow__",
    "__rtruediv__",
}
"""What PyTorch's autocast computes in fp32 on CUDA: its documentation, "CUDA Ops that can autocast to float32"."""


class CudaAutocast(TorchFunctionMode):
    """These operations give float32 whatever they are given, unless they write into a tensor."""

    def __init__(self):
        super().__init__()
        self.cast = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if (
            name in IN_FLOAT32
            and kwargs.get("out") is None
            and kwargs.get("dtype") is None
            and torch.is_autocast_enabled("cpu")
        ):
            given = [*args, *kwargs.values()]
            if any(isinstance(one, torch.Tensor) and one.dtype in HALF for one in given):
                self.cast += 1
                args = [float32(one) for one in args]
                kwargs = {key: float32(one) for key, one in kwargs.items()}
        return function(*args, **kwargs)


def float32(value):
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in HALF else value


def cases():
    for backbone in TINY_BACKBONES:
        for name in filter(lambda name: makes_sense(name, backbone), OBJECTIVES):
            yield pytest.param(name, {}, backbone, id=f"{name} on {backbone}")
    for head in ("mlp", "gated"):
        yield pytest.param("belief_state", {"head": head}, "gpt", id=f"belief_state with head {head}")


def take_blocks_of_a_gpu(monkeypatch):
    """Of the pair loss; there they are not listed, either."""
    monkeypatch.setattr(MLPWorker, "group", Worker.group)
    for table in (pair_loss.BLOCK, pairs.WASTED):
        monkeypatch.setitem(table, "cpu", table["cuda"])


def gradients(objective, batch, half=True):
    for parameter in objective.parameters():
        parameter.grad = None
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        loss = objective(batch).value()
        loss.backward()
    return loss.detach(), {name: part.grad for name, part in objective.named_parameters() if part.grad is not None}


@pytest.mark.parametrize(("name", "fields", "backbone"), cases())
def test_an_objective_takes_its_plan_through_fabric_and_sums_in_float32(name, fields, backbone, monkeypatch):
    objective = tiny_objective(name, make_backbone=TINY_BACKBONES[backbone], **fields)
    batch = random_batch()
    batch = batch._replace(plan=objective.plan(batch))
    loss, expected = gradients(objective, batch)
    take_blocks_of_a_gpu(monkeypatch)
    through = MixedPrecision("bf16-mixed", "cpu").convert_input(batch)
    with CudaAutocast() as mode:
        other, found = gradients(objective, through)
    if fields.get("head") == "mlp":  # most others write float32 down themselves
        assert mode.cast > 0
    assert other == pytest.approx(float(loss), rel=0.02)
    assert found.keys() == expected.keys()
    for key, part in found.items():
        assert torch.linalg.vector_norm(part - expected[key]) <= 0.1 * torch.linalg.vector_norm(expected[key]) + 1e-3, (
            key
        )


@pytest.mark.parametrize("head", ["mlp", "gated"])
def test_the_blocks_of_a_gpu_are_exact(head, float64, monkeypatch):
    objective = tiny_objective("belief_state", head=head)
    batch = random_batch()
    loss, expected = gradients(objective, batch, half=False)
    take_blocks_of_a_gpu(monkeypatch)
    other, found = gradients(objective, batch, half=False)
    torch.testing.assert_close(other, loss)
    torch.testing.assert_close(found, expected)


def test_writing_at_places_is_the_same_by_both_operations():
    one, places = torch.randn(6, 7), torch.tensor([[3, 11], [40, 0]])
    other, values = one.clone(), torch.randn(2, 2)
    pair_loss.put(one, places, values)
    other.view(-1).index_put_((places.flatten(),), values.flatten())
    torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert one.view(-1)[11] == values[0, 1]


def test_expected_weights_do_not_depend_on_how_many_rows_are_added_at_a_time(monkeypatch):
    objective = tiny_objective("belief_state", max_gap=3, gap_exponent=0.5)
    batch = random_batch()
    whole = objective.counts(batch)
    monkeypatch.setattr(pairs, "AT_ONCE", 1)
    torch.testing.assert_close(objective.counts(batch), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mask_as_bias_is_the_mask(dtype):
    """In an autocast region, too, where the kernel casts queries and bias alike."""
    documents = Documents(torch.tensor([[1, 1, 1, 2, 2, 3, 3, 3]]))
    query, key, value = torch.randn(3, 1, 2, 8, 16).unbind()
    expected = attend_fused(query, key, value, mask=documents.mask())
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        for given in (torch.float32, dtype):
            found = attend_fused(query, key, value, mask=documents.bias(given))
            torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=2e-2)
    assert documents.bias(dtype) is documents.bias(dtype)


def test_what_is_carried_on_is_not_rounded():
    """Slots and recurrent states are in float32 within an autocast region, whatever the device's rules are."""
    update = SlotUpdate(8, 2, kind="gated", pooling="mean", rate=0.5, learned_rate=False)
    seen = []
    update.cell.register_forward_pre_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    with torch.autocast("cpu", torch.bfloat16):
        state = update(torch.zeros(1, 2, 8), torch.randn(1, 4, 8), None)
    assert seen == [False]
    assert state.dtype == torch.float32
    torch.backends.cudnn.allow_tf32 = True
    tiny_recurrent()
    assert not torch.backends.cudnn.allow_tf32
