"""What only a GPU does, on a CPU: batches go with their plan through Fabric, and autocast sums in fp32."""

import pytest
import torch
from doubles import TINY_BACKBONES, random_batch, tiny_objective
from lightning_fabric.plugins.precision import MixedPrecision
from torch.overrides import TorchFunctionMode

from statewise.objectives import OBJECTIVES, pair_workers, pairs
from statewise.objectives.pair_workers import MLPWorker, Worker
from statewise.types import LacksPower

HALF = (torch.bfloat16, torch.float16)
IN_FLOAT32 = frozenset(
    [
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
    ]
)
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
        for name in OBJECTIVES:
            yield pytest.param(name, {}, backbone, id=f"{name} on {backbone}")
    for head in ("mlp", "gated"):
        yield pytest.param("belief_state", {"head": head}, "gpt", id=f"belief_state with head {head}")


def take_blocks_of_a_gpu(monkeypatch):
    """Of the pair loss; there they are not listed, either."""
    monkeypatch.setattr(MLPWorker, "group", Worker.group)
    for table in (pair_workers.BLOCK, pairs.WASTED):
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
    try:
        objective = tiny_objective(name, make_backbone=TINY_BACKBONES[backbone], **fields)
    except LacksPower:
        pytest.skip("a pair that makes no sense")
    batch = random_batch()
    batch = batch._replace(plan=objective.plan(batch))
    loss, expected = gradients(objective, batch)
    take_blocks_of_a_gpu(monkeypatch)
    through = MixedPrecision("bf16-mixed", "cpu").convert_input(batch)
    with CudaAutocast() as mode:
        other, found = gradients(objective, through)
    assert mode.cast > 0 or fields.get("head") != "mlp"  # most write float32 down themselves
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
