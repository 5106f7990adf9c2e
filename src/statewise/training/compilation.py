"""What of a model `trainer.compile` compiles, and the blocks that are compiled while it trains."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

if TYPE_CHECKING:
    from statewise.batch import Batch
    from statewise.config.trainer import TrainerConfig
    from statewise.objectives.base import Objective

Compiled = Literal["nothing", "blocks", "whole"]

PAYS_FROM = 1e14
"""Operations of a whole run from which compiling the blocks pays on a CPU (`benchmarks/compiled_blocks.py`): about ten
minutes of two cores."""


def what_to_compile(
    config: TrainerConfig, objective: Objective, first: list[Batch], steps: int, device: str
) -> Compiled:
    """What training with this configuration compiles; `first`: this process's share of the first batch.

    `trainer.compile: auto` compiles the blocks of a model that trains on one CPU process for at least `PAYS_FROM`
    operations. Time does not count, so the same recipe is compiled, or not, on each machine of a kind: its numbers
    depend on that up to rounding.
    """
    if config.compile != "auto":
        return "whole" if config.compile else "nothing"
    costs = [objective.flops(batch) for batch in first]
    known = [cost for cost in costs if cost is not None]
    alone = device == "cpu" and config.processes == 1 and not objective.backbones_across_rows()
    long = bool(known) and len(known) == len(costs) and steps * sum(known) >= PAYS_FROM
    return "blocks" if alone and long and blocks_of(objective) and has_compiler() else "nothing"


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """The blocks that are used only by calling them; they share their code, so it is compiled once for each shape."""
    return [part for part in module.modules() if getattr(part, "gathered_alone", False)]


def has_compiler() -> bool:
    """Whether PyTorch finds a C++ compiler for its kernels on a CPU."""
    from torch._inductor import cpp_builder, exc

    try:
        return bool(cpp_builder.get_cpp_compiler())
    except exc.InvalidCxxCompiler:
        return False


class CompiledBlocks:
    """Compiled versions of a model's blocks, in the place of the blocks only where training calls them: evaluations,
    whose rows have many lengths, would compile again and again."""

    def __init__(self, module: nn.Module, backend: str = "inductor") -> None:
        self.blocks = blocks_of(module)
        self.compiled: list[Callable[..., Any]] = [
            torch.compile(block.forward, backend=backend) for block in self.blocks
        ]

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Within, the blocks are the compiled ones."""
        for block, compiled in zip(self.blocks, self.compiled):
            block.forward = compiled
        try:
            yield
        finally:
            for block in self.blocks:
                del block.forward  # the method of the class is there again
