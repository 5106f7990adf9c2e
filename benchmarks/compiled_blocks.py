"""Training steps with compiled blocks against the same without: each step, and the shortest run that compiles them.

python benchmarks/compiled_blocks.py

`trainer.compile: auto` compiles the blocks of runs with at least `compilation.PAYS_FROM` operations. Such a run must
not take longer than without, the seconds of compiling counted; these are measured with an empty cache, and again with
what the first time has left in it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import torch
from one_step import like_the_trainer, one_step
from timing import Benchmark, parser, ratio

from statewise.config.recipes import recipe_text
from statewise.model.building import make_objective, make_task
from statewise.model.recipes import read_recipe
from statewise.tasks.batches import Stream
from statewise.training.compilation import PAYS_FROM, CompiledBlocks
from statewise.training.optim import make_optimizer

STEPS = {
    "path-star-small": ["next_token", "next_latent", "belief_state"],
    "path-star-g2-4": ["next_token", "next_latent"],
    "city-small": ["next_token", "next_latent"],
    "hmm-rrxor": ["next_token", "next_latent"],
}
"""Objectives by recipe."""


def main(words: Sequence[str] | None = None) -> int:
    bench = Benchmark(parser(__doc__).parse_args(words).smoke)
    precision = like_the_trainer()
    chosen = {"path-star-small": ["next_token"]} if bench.smoke else STEPS
    small = ["--backbone.width=32", "--backbone.layers=1", "--trainer.batch_size=8"] if bench.smoke else []
    for name, objectives in chosen.items():
        for kind in objectives:
            with tempfile.TemporaryDirectory() as cache:
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
                compare(
                    bench, f"{name} {kind}", read_recipe(recipe_text(name), [f"--objective={kind}", *small]), precision
                )
    return bench.exit_code()


def compare(bench: Benchmark, what: str, recipe: Any, precision: str) -> None:
    """Times the steps of a recipe both ways, and judges the shortest run that `auto` compiles."""
    task = make_task(recipe)
    objective = make_objective(recipe, task)
    stream = Stream(task, seed=1, batch_size=recipe.trainer.batch_size)
    batches = [stream.batch(number) for number in range(4)]
    plain = one_step(objective, make_optimizer(objective, recipe.trainer), batches, precision, recipe.trainer.clip)
    backend = "eager" if bench.smoke else "inductor"

    def compiled() -> tuple[CompiledBlocks, float]:
        torch.compiler.reset()
        began = time.perf_counter()
        blocks = CompiledBlocks(objective, backend)
        with blocks.in_place():
            plain()
        return blocks, time.perf_counter() - began

    first = compiled()[1]
    blocks, again = compiled()

    def with_compiled() -> None:
        with blocks.in_place():
            plain()

    seconds = bench.in_turn({"plain": plain, "compiled": with_compiled}, rounds=20)
    before, after = (sorted(each)[len(each) // 2] for each in seconds.values())
    steps = -(-PAYS_FROM // (objective.flops(batches[0]) or PAYS_FROM))
    print(f"{what}: {1e3 * before:.1f} ms, compiled {1e3 * after:.1f} ms; compiling {first:.1f} s, then {again:.1f} s")
    bench.at_least(f"{what}: times as fast", ratio(seconds["plain"], seconds["compiled"]), 0.98)
    bench.at_least(f"{what}: a run of {steps:,.0f} steps", steps * before / (steps * after + first), 1.0)


if __name__ == "__main__":
    sys.exit(main())
