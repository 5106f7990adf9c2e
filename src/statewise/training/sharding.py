"""Parameters, gradients and optimiser state divided among processes: fully sharded data parallelism (Rajbhandari et al.
2020, ZeRO stage 3; Zhao et al. 2023), by PyTorch's `fully_shard` under Fabric's `ModelParallelStrategy`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from statewise.training.config import TrainerConfig

if TYPE_CHECKING:
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
    from torch.distributed.tensor import DTensor

TIMEOUT = timedelta(hours=24)
"""How long processes wait for each other: in an evaluation, one may be much slower than the others."""


def strategy(config: TrainerConfig, device: str, precision: str) -> ModelParallelStrategy:
    """The strategy of `trainer.shard: full | node`. `device`: its type; `precision`: fp32 or bf16. Raises `ValueError`
    for a PyTorch in which a sharded model cannot be evaluated in place."""
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule

    if not hasattr(FSDPModule, "reset_iter_state"):
        raise ValueError(f"trainer.shard needs PyTorch 2.13 or later, and this is {torch.__version__}")

    def parallelise(module: nn.Module, mesh: Any) -> nn.Module:
        if config.shard == "node":
            names = ("replicate", "shard")
            return shard(module, init_device_mesh(device, (config.nodes, config.devices), mesh_dim_names=names),
                         precision, config.compile)  # fmt: skip
        return shard(module, mesh["data_parallel"], precision, config.compile)

    return ModelParallelStrategy(
        parallelise, data_parallel_size=config.devices * config.nodes, tensor_parallel_size=1, timeout=TIMEOUT
    )


def shard(module: nn.Module, mesh: Any, precision: str, compiled: bool) -> nn.Module:
    """Replaces the parameters by DTensors, in place. Modules that are `gathered_alone` are gathered for their own
    forward and backward pass; the rest is gathered from the forward pass of `module` to the end of its backward pass,
    since objectives use embeddings and heads at any time.

    In bf16, modules that are gathered alone are gathered in bf16, as autocast would cast their weights anyway, and
    their gradients are summed in float32; the rest is gathered in float32.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    lower = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    policy = lower if precision == "bf16" else MixedPrecisionPolicy()
    for part in module.modules():
        if getattr(part, "gathered_alone", False):
            if compiled:
                part.compile()
            fully_shard(part, mesh=mesh, mp_policy=policy)
    fully_shard(module, mesh=mesh)
    return module


def refuse_frozen(module: nn.Module) -> None:
    """Raises `ValueError` if some parameters are not trained. Checkpoints leave those out and store their digest, which
    no process could compute from its shards."""
    if not all(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(
            "trainer.shard: a model with frozen parameters, such as one with LoRA, cannot be sharded: leave it out"
        )


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, or all shards of a DTensor together: every process must call this in the same order."""
    return cast("DTensor", tensor).full_tensor() if _is_sharded(tensor) else tensor


def _is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor. Asked without importing that class, which takes a second: to load a model needs none."""
    return hasattr(tensor, "full_tensor")


def gathered(tensors: Mapping[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """The tensors as whole ones on the host if `keep`, otherwise nothing. Gathers one at a time, so that a device holds
    no more than one besides its shards. Every process must call this."""
    found = {}
    for name, tensor in tensors.items():
        complete = whole(tensor.detach())
        if keep:
            found[name] = complete.cpu()
    return found


def like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """`tensor`, whole, with the layout of `parameter`: the shard of this process if that is a DTensor. Every process
    has the whole tensor, so that none is sent. A scalar becomes a tensor of one element if the parameter is one: some
    were scalars in earlier versions."""
    if tensor.dim() == 0 and parameter.shape == (1,):
        tensor = tensor[None]
    if _is_sharded(parameter) and tensor.shape == parameter.shape:
        from torch.distributed.tensor import distribute_tensor

        layout = cast("DTensor", parameter)
        return distribute_tensor(tensor.to(layout.device), layout.device_mesh, layout.placements, src_data_rank=None)
    return tensor
