"""Attention over two streams by blocks, forward and backward, against one dense mask over both.

python benchmarks/two_stream_attention.py

T = 2048, window 64, 4 heads of 64; one document, and four packed in a row. Each way runs in a process of its own with
the allocator settings that `statewise train` makes. What standard causal attention takes is printed beside.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from collections.abc import Callable

import torch
from timing import Bars, in_turn
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


def in_own_process(*words: str) -> tuple[float, float]:
    command = [sys.executable, __file__, "measure", *words]
    seconds, megabytes = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(seconds), float(megabytes)


def measure(*words: str) -> None:
    machine.keep_freed_memory()
    call = step(*words)
    torch.randn(64, 64, requires_grad=True).sum().backward()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = in_turn({"": call}, rounds=5, warm_up=1)[""]
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(statistics.median(times), (after - before) / 1024)


def main() -> None:
    print(f"{machine.processor_name()}, {torch.get_num_threads()} threads")
    bars = Bars()
    cases = [(dtype, packed) for dtype in DTYPES for packed in ("one document", "packed")]
    found = {case: [{way: in_own_process(way, *case) for way in WAYS} for _ in range(3)] for case in cases}
    for dtype, packed in cases:
        for ours, theirs in zip(step("blockwise", dtype, packed)(), step("dense", dtype, packed)()):
            assert (ours - theirs).norm() < 0.03 * theirs.norm(), "the two ways differ"
        rounds = found[dtype, packed]
        for way in WAYS:
            seconds, megabytes = (statistics.median(one[way][place] for one in rounds) for place in (0, 1))
            print(f"  {dtype} {packed:13} {way:10} {1000 * seconds:7.0f} ms {megabytes:7.0f} MB")
        slower = statistics.median(one["blockwise"][0] / one["standard"][0] for one in rounds)
        print(f"  {dtype} {packed}: {slower:.2f} times standard causal attention over one stream, one document")
        faster = statistics.median(one["dense"][0] / one["blockwise"][0] for one in rounds)
        share = statistics.median(one["blockwise"][1] / one["dense"][1] for one in rounds)
        bars.at_least(f"speed against a dense mask, {dtype}, {packed}", faster, 2)
        bars.at_most(f"extra peak memory against a dense mask, {dtype}, {packed}", share, 0.4)
    bars.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        measure(*sys.argv[2:])
    else:
        main()
