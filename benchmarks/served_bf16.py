"""A step of the server's thread with a model in bf16: weights cast once, against weights cast in each step.

python benchmarks/served_bf16.py

8 layers of width 512, one row and eight, after prompts of 32 tokens. Each step has an autocast region of its own, as in
`serving.engine`; what differs is what surrounds all steps: `without_gradients`, or PyTorch's inference mode.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from timing import Benchmark, parser

from statewise.backbones.gpt import GPT, GPTConfig
from statewise.deploy.serving.engine import without_gradients
from statewise.objectives.predictors import HeadPredictor

WAYS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "cast in each step": torch.inference_mode,
    "cast once": without_gradients,
}


def main(words: Sequence[str] | None = None) -> int:
    bench = Benchmark(parser(__doc__).parse_args(words).smoke)
    torch.manual_seed(0)
    config = GPTConfig(layers=1, width=32, heads=2) if bench.smoke else GPTConfig(layers=8, width=512, heads=8)
    vocabulary, steps, rounds = (100, 3, 1) if bench.smoke else (4096, 40, 5)
    predictor = HeadPredictor(GPT(config, vocabulary=vocabulary, context=128).eval())

    def step_ms(rows: int, surroundings: Callable[[], AbstractContextManager[Any]]) -> float:
        with surroundings():
            cursor, logits = predictor.start(torch.randint(0, vocabulary, (rows, 32)))
            token, times = logits.argmax(-1).view(rows, 1), []
            for _ in range(steps):
                began = time.perf_counter()
                with torch.autocast("cpu", torch.bfloat16):
                    predictor.extend(cursor, token)
                times.append(1000 * (time.perf_counter() - began))
        return statistics.median(times)

    for rows in (1, 8):
        found: dict[str, list[float]] = {name: [] for name in WAYS}
        for _ in range(rounds):  # in turn
            for name, surroundings in WAYS.items():
                found[name].append(step_ms(rows, surroundings))
        slow, fast = (statistics.median(times) for times in found.values())
        print(f"  {rows} rows: {slow:.1f} ms a step cast in each, {fast:.1f} ms cast once")
        bench.at_least(f"speed of casting once, {rows} rows", slow / fast, 1.2)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
