"""Greedy decoding of G(2,20) with the cache against reading the whole sequence again for every token.

python benchmarks/decoding.py
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence

import numpy as np
import torch
from timing import Benchmark, parser, ratio

from statewise.config.recipes import recipe_text
from statewise.decoding import make_decoder
from statewise.decoding.base import Request
from statewise.decoding.predictor import Predictor
from statewise.model.model import new_model
from statewise.model.recipes import read_recipe
from statewise.training import machine


def read_again(predictor: Predictor, prompts: np.ndarray, limit: int) -> np.ndarray:
    """The slow way: a fresh start for each token."""
    tokens = torch.from_numpy(prompts)
    for _ in range(limit):
        _, logits = predictor.start(tokens)
        tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], 1)
    return tokens[:, prompts.shape[1] :].numpy()


def main(words: Sequence[str] | None = None) -> int:
    given = parser(__doc__, quick=True).parse_args(words)
    bench = Benchmark(given.smoke, given.quick)
    machine.keep_freed_memory()
    graphs = 4 if bench.smoke else 64 if bench.quick else 256
    flags = ["--task.degree=2", "--task.length=20", "--task.nodes=50", f"--task.held_out_graphs={graphs}"]
    model = new_model(read_recipe(recipe_text("path-star-small"), flags))
    predictor, decoder = model.predictor(), make_decoder("greedy")
    examples = model.task.held_out()
    prompts, limit = examples.tokens[:, : examples.prompt_lengths[0]], 5 if bench.smoke else 20
    print(f"{machine.processor_name()}: {len(prompts)} prompts of {prompts.shape[1]} tokens, {limit} tokens each")
    for precision in ("fp32", machine.choose_precision("auto", "cpu")):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            ways = {
                "with the cache": lambda: decoder.decode(predictor, Request(prompts, limit)),
                "whole sequence again": lambda: read_again(predictor, prompts, limit),
            }
            if precision == "fp32":
                fast = np.stack([completion.tokens for completion in ways["with the cache"]()])
                assert (fast == ways["whole sequence again"]()).all(), "the two ways must agree"
            seconds = bench.in_turn(ways, rounds=5, warm_up=1)
        for way, times in seconds.items():
            print(f"  {precision} {way:25} {statistics.median(times):8.2f} s")
        bench.at_least(f"{precision}: speed with the cache", ratio(*reversed(seconds.values())), 3.0)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
