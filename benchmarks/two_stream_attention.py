"""Attention over two streams by blocks, forward and backward, against one dense mask over both.

python benchmarks/two_stream_attention.py

T = 2048, window 64, 4 heads of 64; one document, and four packed in a row. Each way runs in a process of its own with
the allocator settings that `statewise train` makes. What standard causal attention takes is printed beside.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import own_process
import torch
from products import DTYPES
from timing import Benchmark, parser
from torch import Tensor

from statewise.backbones.nn.attention import attend_dense, attend_fused
from statewise.backbones.nn.blockwise import attend_blockwise
from statewise.backbones.nn.masks import INPUT, PREDICTION, Documents, Pattern, Reach
from statewise.training import machine

ROWS, HEADS, WIDTH = 1, 4, 64


def pattern(T: int, documents: Documents | None) -> Pattern:
    return Pattern((INPUT, PREDICTION), Reach(None, T // 32), documents)


def standard(query: Tensor, key: Tensor, value: Tensor, documents: Documents | None) -> Tensor:
    return attend_fused(query[:, :, 0], key[:, :, 0], value[:, :, 0])


WAYS: dict[str, Callable[..., Tensor]] = {
    "dense": lambda *given: attend_dense(*given[:3], pattern(given[0].shape[3], given[3])),
    "blockwise": lambda *given: attend_blockwise(*given[:3], pattern(given[0].shape[3], given[3])),
    "standard": standard,
}


def step(way: str, dtype: str, packed: str, T: int) -> Callable[[], list[Tensor]]:
    torch.manual_seed(0)
    tensors = [torch.randn(ROWS, HEADS, 2, T, WIDTH).to(DTYPES[dtype]).requires_grad_() for _ in range(3)]
    numbers = (torch.arange(T)[None] // (T // 4) + 1).expand(ROWS, -1)

    def call() -> list[Tensor]:
        documents = Documents(numbers) if packed == "packed" else None  # anew: a model makes them for each batch
        out = WAYS[way](*tensors, documents)
        return [out.detach(), *torch.autograd.grad(out, tensors, torch.ones_like(out), allow_unused=True)]

    return call


def measure(*case: Any) -> own_process.Cost:
    machine.keep_freed_memory()
    return own_process.cost(lambda: step(*case), 5, torch.randn(64, 64, requires_grad=True).sum().backward)


def main(words: Sequence[str] | None = None) -> int:
    bench = Benchmark(parser(__doc__).parse_args(words).smoke)
    T = 128 if bench.smoke else 2048
    print(f"{machine.processor_name()}, {torch.get_num_threads()} threads")
    measured = {
        (dtype, packed): own_process.in_turn(
            measure, {way: (way, dtype, packed, T) for way in WAYS}, rounds=3, smoke=bench.smoke
        )
        for dtype, packed in itertools.product(DTYPES, ("one document", "packed"))
    }
    for (dtype, packed), rounds in measured.items():
        for ours, theirs in zip(step("blockwise", dtype, packed, T)(), step("dense", dtype, packed, T)()):
            assert (ours - theirs).norm() < 0.03 * theirs.norm(), "the two ways differ"
        own_process.print_costs(rounds, f"{dtype} {packed:13}")
        slower = own_process.share(rounds, "blockwise", "standard").seconds
        print(f"  {dtype} {packed}: {slower:.2f} times standard causal attention over one stream, one document")
        faster = own_process.share(rounds, "dense", "blockwise").seconds
        memory = own_process.share(rounds, "blockwise", "dense").megabytes
        bench.at_least(f"speed against a dense mask, {dtype}, {packed}", faster, 2)
        bench.at_most(f"extra peak memory against a dense mask, {dtype}, {packed}", memory, 0.4)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
