"""Forward and backward of the two ways of attention by length, and whether `attend` chooses the right one.

python benchmarks/attention.py
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable

import torch
from timing import Bars, in_turn, ratio

from statewise.nn.attention import attend, attend_fused, attend_written_out
from statewise.training import machine

TOKENS, HEADS, WIDTH = 6144, 4, 24


def both_passes(way: Callable[..., torch.Tensor], inputs: list[torch.Tensor], gradient: torch.Tensor) -> None:
    way(*inputs).backward(gradient)


def main() -> None:
    machine.keep_freed_memory()
    print(f"{machine.processor_name()}, {torch.get_num_threads()} threads, {TOKENS} tokens, {HEADS} heads of {WIDTH}")
    bars = Bars()
    dtypes = [torch.float32]
    if machine.choose_precision("auto", "cpu") == "bf16":
        dtypes.append(torch.bfloat16)
    for dtype, length in itertools.product(dtypes, (16, 32, 64, 128, 256, 512, 1024)):
        shape = (TOKENS // length, HEADS, length, WIDTH)
        inputs = [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3)]
        gradient = torch.randn(shape, dtype=dtype)
        ways = {
            name: lambda way=way, inputs=inputs, gradient=gradient: both_passes(way, inputs, gradient)
            for name, way in (("written out", attend_written_out), ("fused", attend_fused), ("chosen", attend))
        }
        seconds = in_turn(ways, rounds=15)
        written, fused = (1000 * statistics.median(seconds[name]) for name in ("written out", "fused"))
        better = "written out" if written < fused else "fused"
        figures = f"written out {written:.1f} ms, fused {fused:.1f} ms; chosen / better"
        what = f"{str(dtype).removeprefix('torch.')} T={length}: {figures}"
        bars.at_most(what, ratio(seconds["chosen"], seconds[better]), 1.5)
    bars.finish()


if __name__ == "__main__":
    main()
