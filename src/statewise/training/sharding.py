"""Parameters, gradients and optimiser state divided among processes: fully sharded data parallelism (Rajbhandari et al.
2020, ZeRO stage 3; Zhao et al. 2023), by PyTorch's `fully_shard` under Fabric's `ModelParallelStrategy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from statewise.training.agreement import joined
from statewise.training.stored import Piece, Stored, read

if TYPE_CHECKING:
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
    from torch.distributed.tensor import DTensor

    from statewise.config.trainer import TrainerConfig


TIMEOUT = timedelta(hours=24)
"""How long processes wait for each other: in an evaluation, one may be much slower than the others."""
NONE = -1
"""Stands for a block of a process that needs none any more."""


def strategy(config: TrainerConfig, device: str, precision: str) -> ModelParallelStrategy:
    """Fabric's strategy for `trainer.shard: full | node`. `device`: the type of the devices; `precision`: fp32 or bf16.
    Raises `ValueError` for a PyTorch in which a sharded model cannot be evaluated in place."""
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule

    if not hasattr(FSDPModule, "reset_iter_state"):
        raise ValueError(f"trainer.shard needs PyTorch 2.13 or later, and this is {torch.__version__}")

    def parallelise(module: nn.Module, mesh: Any) -> nn.Module:
        if config.shard == "node":
            names = ("replicate", "shard")
            return shard(
                module,
                init_device_mesh(device, (config.nodes, config.devices), mesh_dim_names=names),
                precision,
                config.compile is True,
            )
        return shard(module, mesh["data_parallel"], precision, config.compile is True)

    return ModelParallelStrategy(
        parallelise, data_parallel_size=config.devices * config.nodes, tensor_parallel_size=1, timeout=TIMEOUT
    )


def shard(module: nn.Module, mesh: Any, precision: str, compiled: bool) -> nn.Module:
    """Replaces the parameters by DTensors, in place. Modules that are `gathered_alone` are gathered for their own
    forward and backward pass; the rest is gathered from the forward pass of `module` to the end of its backward pass,
    since objectives use embeddings and heads at any time. Modules with an attribute `sharded` get True, so that they
    call what is gathered alone equally often in all processes.

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
        if hasattr(part, "sharded"):
            cast("Any", part).sharded = True
    fully_shard(module, mesh=mesh)
    return module


def refuse_frozen(module: nn.Module) -> None:
    """Raises `ValueError` if some parameters are frozen. Checkpoints store only a digest of those, which no process
    could compute from its shards."""
    if not all(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(
            "trainer.shard: a model with frozen parameters, such as one with LoRA, cannot be sharded: leave it out"
        )


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, or a DTensor with all its shards. All processes must call this in the same order."""
    return cast("DTensor", tensor).full_tensor() if is_sharded(tensor) else tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor. Does not import that class, which takes a second."""
    return hasattr(tensor, "full_tensor")


def own_rows(tensor: Tensor) -> tuple[int, int]:
    """The rows [first, end) of a DTensor of `shard` that this process holds."""
    layout = cast("DTensor", tensor)
    axis = _axis(layout)
    size, number = layout.device_mesh.size(axis), layout.device_mesh.get_local_rank(axis)
    rows = -(-tensor.shape[0] // size)
    return min(number * rows, tensor.shape[0]), min((number + 1) * rows, tensor.shape[0])


def writer(module: nn.Module) -> tuple[int, int] | None:
    """The number of this process among those that write shards of `module`, and how many these are; None: another
    machine writes the same shard."""
    layout = next(cast("DTensor", p) for p in module.parameters() if is_sharded(p))
    axis, mesh = _axis(layout), layout.device_mesh
    if any(mesh.get_local_rank(other) for other in range(mesh.ndim) if other != axis):
        return None
    return mesh.get_local_rank(axis), mesh.size(axis)


def _axis(layout: DTensor) -> int:
    """The axis of its mesh along which a DTensor is divided."""
    return next(axis for axis, place in enumerate(layout.placements) if place.is_shard())


def pieces(tensors: Mapping[str, Tensor], first: bool) -> dict[str, Piece | Tensor]:
    """What this process writes of some tensors, on the host: its rows of DTensors, and in the `first` process all other
    tensors."""
    parts: dict[str, Piece | Tensor] = {}
    for name, tensor in tensors.items():
        if is_sharded(tensor):
            local = cast("DTensor", tensor.detach()).to_local().cpu()
            parts[name] = Piece(local, own_rows(tensor)[0], tensor.shape[0])
        elif first:
            parts[name] = tensor.detach().cpu()
    return parts


def not_finite(module: nn.Module) -> list[str]:
    """Names of the trained parameters whose values in this process are not all finite."""
    trained = {name: parameter.detach() for name, parameter in module.named_parameters() if parameter.requires_grad}
    if not trained:
        return []
    own = [cast("DTensor", one).to_local() if is_sharded(one) else one for one in trained.values()]
    finite = torch.stack([one.isfinite().all() for one in own]).tolist()  # together: each would wait for the device
    return [name for name, fine in zip(trained, finite, strict=True) if not fine]


def like(tensor: Tensor | Stored, parameter: Tensor) -> Tensor:
    """The whole `tensor`, or this process's shard of it if `parameter` is a DTensor. Every process reads its own rows,
    so that no process sends any."""
    if is_sharded(parameter) and tuple(tensor.shape) == tuple(parameter.shape):
        from torch.distributed.tensor import DTensor

        layout, (first, end) = cast("DTensor", parameter), own_rows(parameter)
        return DTensor.from_local(
            tensor[first:end].to(layout.device),
            layout.device_mesh,
            layout.placements,
            shape=layout.shape,
            stride=layout.stride(),
            run_check=False,
        )
    return read(tensor)


@contextmanager
def used_in_place(module: nn.Module, device: torch.device) -> Iterator[Callable[[], None]]:
    """Within, each process may call any method of a `module` that `shard` has divided, on rows of its own and without
    gradients. Yields a function that all must call in the end, and before any other communication: it returns when all
    processes have called it. Parameters that are not gathered alone stay gathered.

    All processes gather a block together, but they need not call the same blocks, nor equally often: answers that they
    decode end after different numbers of tokens. So before a process uses a block, all tell each other which block they
    need next, gather the first of these in the model's order, and free it at once where it is not the one needed. A
    process that has finished continues to gather for the others. While they call the same blocks, this is one round per
    block; a process that is behind catches up, and none waits forever.
    """
    from torch.distributed.fsdp import fully_shard

    from statewise.training.compilation import blocks_of

    blocks: list[Any] = blocks_of(module)
    root: Any = module

    def next_round(needed: int) -> int:
        """Gathers one block with all processes. Returns its number, or `NONE` if no process needs a block."""
        everyones: list[int] = joined(torch.tensor([needed], device=device)).tolist()
        told = [number for number in everyones if number != NONE]
        if not told:
            return NONE
        blocks[min(told)].unshard()
        if min(told) != needed:
            blocks[min(told)].reshard()
        return min(told)

    def gathering(number: int) -> Callable[[nn.Module, Any], None]:
        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def gather(block: nn.Module, inputs: Any) -> None:
            while next_round(number) != number:
                pass

        return gather

    def finish() -> None:
        while next_round(NONE) != NONE:
            pass

    # Before the hooks of `fully_shard`, which then find the block gathered, and free it after use.
    hooks = [block.register_forward_pre_hook(gathering(place), prepend=True) for place, block in enumerate(blocks)]
    cast("Any", fully_shard).state(root)._lazy_init()  # otherwise the first block that is called would be the root
    root.unshard()
    try:
        yield finish
    finally:
        for hook in hooks:
            hook.remove()
        root.reset_iter_state()  # frees what is gathered, and the order of the calls: backward passes gather by it
