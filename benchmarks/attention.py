"""Forward and backward of the two ways of attention by length, and whether `attend` chooses the right one.

python benchmarks/attention.py
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Callable, Sequence

import torch
from products import DTYPES, precisions
from timing import Benchmark, parser, ratio

from statewise.backbones.nn.attention import attend, attend_fused, attend_written_out
from statewise.training import machine

HEADS, WIDTH = 4, 24


def both_passes(way: Callable[..., torch.Tensor], inputs: list[torch.Tensor], gradient: torch.Tensor) -> None:
    way(*inputs).backward(gradient)


def main(words: Sequence[str] | None = None) -> int:
    given = parser(__doc__, quick=True).parse_args(words)
    bench = Benchmark(given.smoke, given.quick)
    tokens, lengths = (128, (16, 128)) if bench.smoke else (6144, (16, 32, 64, 128, 256, 512, 1024))
    lengths = lengths[::3] if bench.quick else lengths
    machine.keep_freed_memory()
    print(f"{tokens} tokens, {HEADS} heads of {WIDTH}")
    for precision, length in itertools.product(precisions(), lengths):
        shape, dtype = (tokens // length, HEADS, length, WIDTH), DTYPES[precision]
        inputs = [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3)]
        gradient = torch.randn(shape, dtype=dtype)
        ways = {
            name: lambda way=way, inputs=inputs, gradient=gradient: both_passes(way, inputs, gradient)
            for name, way in (("written out", attend_written_out), ("fused", attend_fused), ("chosen", attend))
        }
        seconds = bench.in_turn(ways, rounds=15)
        written, fused = (1000 * statistics.median(seconds[name]) for name in ("written out", "fused"))
        better = "written out" if written < fused else "fused"
        figures = f"written out {written:.1f} ms, fused {fused:.1f} ms; chosen / better"
        what = f"{precision} T={length}: {figures}"
        bench.at_most(what, ratio(seconds["chosen"], seconds[better]), 1.5, f"{min(written, fused):.1f} ms")
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
