"""Inference with a sharded model in place: each process asks it about rows of its own.

All processes gather a block together, but they need not call the same blocks, nor equally often: answers that they
decode end after different numbers of tokens. So before a process uses a block, all tell each other which block they
need next, gather the first of these in the model's order, and free it at once where it is not the one needed. A process
that has finished goes on gathering for the others. While they call the same blocks, this is one round per block; the
one that is behind catches up, and none waits forever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn

from statewise.training.agreement import joined

NONE = -1
"""A process needs no block any more."""


@contextmanager
def used_in_place(module: nn.Module, device: torch.device) -> Iterator[Callable[[], None]]:
    """Within, each process may call whatever it likes of `module`, which `sharding.shard` has divided among them,
    without gradients. Yields a function that all must call in the end, and before any other communication: it returns
    when all processes have called it. What is not gathered alone is whole all the time."""
    from torch.distributed.fsdp import fully_shard

    blocks: list[Any] = [part for part in module.modules() if getattr(part, "gathered_alone", False)]
    root: Any = module

    def next_round(needed: int) -> int:
        """Gathers one block with all processes; its number, or `NONE` if none of them needs one."""
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
        def gather(block: nn.Module, given: Any) -> None:
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
