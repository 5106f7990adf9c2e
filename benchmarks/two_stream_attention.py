"""Attention over two streams by blocks, forward and backward, against one dense mask over both.

python benchmarks/two_stream_attention.py

T = 2048, window 64, 4 heads of 64; one document, and four packed in a row. Each way runs in a process of its own with
the allocator settings that `statewise train` makes. What standard causal attention takes is printed beside.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import own_process
import torch
from timing import Bars
from torch import Tensor

from statewise.nn.attention import attend_fused
from statewise.nn.blockwise import attend_blockwise
from statewise.nn.stream_attention import attend_dense
from statewise.nn.streams import INPUT, PREDICTION, Reach
from statewise.training import machine

ROWS, HEADS, T, WIDTH, WINDOW = 1, 4, 2048, 64, 64
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
OPTIONS = {"streams": (INPUT, PREDICTION), "reach": Reach(None, WINDOW)}


def standard(query: Tensor, key: Tensor, value: Tensor, documents: Tensor | None) -> Tensor:
    return attend_fused(query[:, :, 0], key[:, :, 0], value[:, :, 0])


WAYS: dict[str, Callable[..., Tensor]] = {
    "dense": lambda *tensors: attend_dense(*tensors[:3], **OPTIONS, documents=tensors[3]),
    "blockwise": lambda *tensors: attend_blockwise(*tensors[:3], **OPTIONS, documents=tensors[3]),
    "standard": standard,
}


def step(way: str, dtype: str, packed: str) -> Callable[[], list[Tensor]]:
    torch.manual_seed(0)
    tensors = [torch.randn(ROWS, HEADS, 2, T, WIDTH).to(DTYPES[dtype]).requires_grad_() for _ in range(3)]
    documents = (torch.arange(T)[None] // (T // 4) + 1).expand(ROWS, -1) if packed == "packed" else None

    def call() -> list[Tensor]:
        out = WAYS[way](*tensors, documents)
        return [out.detach(), *torch.autograd.grad(out, tensors, torch.ones_like(out), allow_unused=True)]

    return call


def main() -> None:
    print(f"{machine.processor_name()}, {torch.get_num_threads()} threads")
    bars = Bars()
    cases = [(dtype, packed) for dtype in DTYPES for packed in ("one document", "packed")]
    measured = {case: own_process.in_turn(__file__, {way: (way, *case) for way in WAYS}, rounds=3) for case in cases}
    for dtype, packed in cases:
        for ours, theirs in zip(step("blockwise", dtype, packed)(), step("dense", dtype, packed)()):
            assert (ours - theirs).norm() < 0.03 * theirs.norm(), "the two ways differ"
        rounds = measured[dtype, packed]
        for way in WAYS:
            cost = own_process.typical(rounds, way)
            print(f"  {dtype} {packed:13} {way:10} {1000 * cost.seconds:7.0f} ms {cost.megabytes:7.0f} MB")
        slower = own_process.share(rounds, "blockwise", "standard").seconds
        print(f"  {dtype} {packed}: {slower:.2f} times standard causal attention over one stream, one document")
        faster = own_process.share(rounds, "dense", "blockwise").seconds
        share = own_process.share(rounds, "blockwise", "dense").megabytes
        bars.at_least(f"speed against a dense mask, {dtype}, {packed}", faster, 2)
        bars.at_most(f"extra peak memory against a dense mask, {dtype}, {packed}", share, 0.4)
    bars.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        machine.keep_freed_memory()
        own_process.print_cost(lambda: step(*sys.argv[2:]), 5)
    else:
        main()
