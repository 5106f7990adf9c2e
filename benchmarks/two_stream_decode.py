"""Decoding with the two-stream transformer against a standard one: tokens a second, and peak memory.

python benchmarks/two_stream_decode.py [PREFILL DECODE]

The width of the paper's XS (512, 8 heads, vocabulary 50,304), 8 layers, window 64, 16 sequences, prompts of 3,840
tokens and 64 more (the paper: 1,024 and 3,072, which take long on a CPU). Each in a process of its own, in turns; some
minutes.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import own_process
import torch
from timing import Benchmark, parser

from statewise.backbones.two_stream import TwoStream, TwoStreamConfig
from statewise.objectives.predictors import HeadPredictor
from statewise.training import machine

ROUNDS = 2


@dataclass(frozen=True)
class Size:
    backbone: TwoStreamConfig
    vocabulary: int
    rows: int
    prefill: int
    decode: int


FULL = Size(TwoStreamConfig(layers=8, heads=8, width=512, vocabulary_multiple=128), 50257, 16, 3840, 64)
SMOKE = Size(TwoStreamConfig(layers=2, heads=2, width=32), 100, 2, 80, 4)


@dataclass(frozen=True)
class Found:
    prefill: float
    """Seconds."""
    decode: float
    """Seconds."""
    peak: float
    """MB of the whole process."""


def measure(variant: str, size: Size) -> Found:
    torch.manual_seed(0)
    config = replace(size.backbone, variant=variant)
    backbone = TwoStream(config, vocabulary=size.vocabulary, context=size.prefill + size.decode)
    predictor = HeadPredictor(backbone.eval())
    prompts = torch.randint(0, size.vocabulary, (size.rows, size.prefill))
    precision = machine.choose_precision("auto", "cpu")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        warm, logits = predictor.start(prompts[:, :2])
        predictor.extend(warm, logits.argmax(-1)[:, None])
        began = time.perf_counter()
        cursor, logits = predictor.start(prompts)
        read = time.perf_counter()
        for _ in range(size.decode):
            logits = predictor.extend(cursor, logits.argmax(-1)[:, None])[:, -1]
        ended = time.perf_counter()
    return Found(read - began, ended - read, own_process.peak())


def main(words: Sequence[str] | None = None) -> int:
    command = parser(__doc__)
    command.add_argument("prefill", nargs="?", type=int, help="tokens of a prompt")
    command.add_argument("decode", nargs="?", type=int, help="tokens to generate of each sequence")
    given = command.parse_args(words)
    bench = Benchmark(given.smoke)
    size = SMOKE if bench.smoke else FULL
    size = replace(size, prefill=given.prefill or size.prefill, decode=given.decode or size.decode)
    print(f"{machine.processor_name()}, {torch.get_num_threads()} threads, {machine.choose_precision('auto', 'cpu')}")
    rounds = []
    for _ in range(1 if bench.smoke else ROUNDS):
        rounds.append({})
        for variant in ("standard", "sps"):
            found = measure(variant, size) if bench.smoke else own_process.call(measure, variant, size)
            rounds[-1][variant] = found
            print(
                f"  {variant:9} prompts {found.prefill:6.1f} s, {size.rows * size.decode / found.decode:7.1f} tokens "
                f"a second, {found.peak:6.0f} MB",
                flush=True,
            )
    speed = statistics.median(found["standard"].decode / found["sps"].decode for found in rounds)
    bench.at_least("tokens a second of sps against standard", speed, 0.9)
    memory = statistics.median(found["sps"].peak / found["standard"].peak for found in rounds)
    bench.at_most("peak memory of sps against standard", memory, 1.03)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
