"""A step of Muon: matrices of one shape together, against PyTorch's, which takes one at a time and always in bf16.

python benchmarks/muon.py

And whole training steps of three recipes with either. What is gained depends on whether the processor multiplies fast
in bf16, so one bar is a share of a limit: what the products alone take.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from one_step import like_the_trainer, one_step
from timing import Benchmark, parser, ratio

from statewise.config.recipes import recipe_text
from statewise.model.building import make_objective, make_task
from statewise.model.recipes import read_recipe
from statewise.tasks.batches import Stream
from statewise.training.optim import Muon, MuonWithAdamW, make_optimizer

SIZES = {"3 layers of 64": (3, 64), "4 layers of 256": (4, 256)}
SMOKE = {"1 layer of 16": (1, 16), "2 layers of 16": (2, 16)}
RECIPES = ["path-star-g2-4", "countdown-small", "city-small"]
TINY = ["--backbone.width=16", "--backbone.heads=2", "--trainer.batch_size=2"]


def shapes(layers: int, width: int) -> list[tuple[int, int]]:
    """(outputs, inputs) of the matrices of a GPT: attention, and SwiGLU of 8/3 of the width in steps of 16."""
    inner = -(-8 * width // 3 // 16) * 16
    return layers * [(3 * width, width), (width, width), (2 * inner, width), (width, inner)]


def with_gradients(found: Sequence[tuple[int, int]]) -> list[torch.nn.Parameter]:
    """Random matrices, each with a random gradient."""
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in found]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return parameters


def products(found: Sequence[tuple[int, int]], kind: torch.dtype) -> Callable[[], None]:
    """The matrix products of five iterations, matrices of one shape together, and nothing else."""
    stacks = []
    for (rows, columns), count in Counter(found).items():
        x = torch.randn(count, min(rows, columns), max(rows, columns), dtype=kind)
        stacks.append((x, torch.randn(count, x.shape[1], x.shape[1], dtype=kind)))

    def call() -> None:
        for x, gram in stacks:
            for _ in range(5):
                torch.bmm(x, x.mT)
                torch.bmm(gram, gram)
                torch.bmm(gram, x)

    return call


def ways(found: Sequence[tuple[int, int]], kind: torch.dtype) -> dict[str, Callable[[], object]]:
    """A step of random matrices by PyTorch's Muon and by ours, and the products alone."""
    theirs, ours = with_gradients(found), with_gradients(found)
    return {
        "pytorch": torch.optim.Muon(theirs, 1e-3, adjust_lr_fn="match_rms_adamw").step,
        "ours": Muon(ours, 1e-3, 0.1).step,
        "products": products(found, kind),
    }


def stepper(name: str, flags: Sequence[str], precision: str, pytorchs: bool) -> Callable[[], None]:
    """A call that does one training step of a recipe, by PyTorch's Muon or by ours."""
    recipe = read_recipe(recipe_text(name), [*flags, "--trainer.optimizer=muon"])
    task = make_task(recipe)
    objective = make_objective(recipe, task)
    optimizer = make_optimizer(objective, recipe.trainer)
    if pytorchs:
        group = optimizer.muon.param_groups[0]
        one = torch.optim.Muon(group["params"], group["lr"], group["weight_decay"], adjust_lr_fn="match_rms_adamw")
        optimizer = MuonWithAdamW(one, optimizer.adamw)
    stream = Stream(task, seed=1, batch_size=recipe.trainer.batch_size)
    return one_step(objective, optimizer, [stream.batch(number) for number in range(4)], precision, recipe.trainer.clip)


def main(words: Sequence[str] | None = None) -> int:
    bench = Benchmark(parser(__doc__).parse_args(words).smoke)
    precision = like_the_trainer()
    for title, (layers, width) in (SMOKE if bench.smoke else SIZES).items():
        found = shapes(layers, width)
        kind = torch.bfloat16 if precision == "bf16" else torch.float32
        seconds = bench.in_turn(ways(found, kind), rounds=20 if width < 256 else 7)
        medians = ", ".join(f"{name} {1e3 * statistics.median(times):.1f} ms" for name, times in seconds.items())
        print(f"  {title}, {len(found)} matrices: {medians}")
        bench.at_least(f"{title}: times as fast as PyTorch's", ratio(seconds["pytorch"], seconds["ours"]), 1.0)
        bench.at_least(f"{title}: share of the products", ratio(seconds["products"], seconds["ours"]), 0.4)
    for name in RECIPES[:1] if bench.smoke else RECIPES:
        flags = TINY if bench.smoke else []
        seconds = bench.in_turn(
            {way: stepper(name, flags, precision, way == "pytorch") for way in ("pytorch", "ours")}, rounds=6, warm_up=2
        )
        medians = ", ".join(f"{way} {1e3 * statistics.median(times):.0f} ms" for way, times in seconds.items())
        print(f"  a whole step of {name}: {medians}")
        bench.at_least(f"{name}: whole step, times as fast", ratio(seconds["pytorch"], seconds["ours"]), 0.97)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
