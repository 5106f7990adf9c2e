"""One training step of path-star-small: default settings against fp32 with the fused attention; NextLat against GPT.

python benchmarks/train_step.py

What bf16 gains depends on the processor. So its bar is a share of what bare matrix products of the model's sizes gain
by bf16 in the same run.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from one_step import one_step
from products import rates
from timing import Benchmark, parser, ratio

from statewise.backbones.nn import block
from statewise.backbones.nn.attention import attend_fused
from statewise.config.recipes import recipe_text
from statewise.model.building import make_objective, make_task
from statewise.model.recipes import read_recipe
from statewise.tasks.batches import Stream
from statewise.training import machine
from statewise.training.optim import make_optimizer


def flags_of(bench: Benchmark) -> list[str]:
    """What a smoke run changes of the recipe."""
    return ["--backbone.width=32", "--trainer.batch_size=8"] if bench.smoke else []


def stepper(*flags: str, precision: str, fused_attention: bool = False) -> Callable[[], None]:
    """A call that does one training step."""
    recipe = read_recipe(recipe_text("path-star-small"), flags)
    task = make_task(recipe)
    objective = make_objective(recipe, task)
    stream = Stream(task, seed=1, batch_size=recipe.trainer.batch_size)
    batches = [stream.batch(number) for number in range(4)]
    step = one_step(objective, make_optimizer(objective, recipe.trainer), batches, precision, recipe.trainer.clip)

    def step_fused() -> None:
        with mock.patch.object(block, "attend", fused):
            step()

    return step_fused if fused_attention else step


def fused(*given: torch.Tensor, documents: torch.Tensor | None = None, **more: Any) -> torch.Tensor:
    """`attend` by the fused kernel alone, on rows that hold one document each."""
    assert documents is None, "these rows are not packed"
    return attend_fused(*given, **more)


def main(words: Sequence[str] | None = None) -> int:
    given = parser(__doc__, quick=True).parse_args(words)
    bench = Benchmark(given.smoke, given.quick)
    flags = flags_of(bench)
    machine.keep_freed_memory()
    chosen = machine.choose_precision("auto", "cpu")
    print(f"{machine.processor_name()}, {torch.get_num_threads()} threads, precision auto = {chosen}")
    latent = "--objective=next_latent"
    ways = {
        "GPT, default": stepper(*flags, precision=chosen),
        "GPT, fp32, fused attention": stepper(*flags, precision="fp32", fused_attention=True),
        "GPT, default precision, fused attention": stepper(*flags, precision=chosen, fused_attention=True),
        "NextLat, horizon 1": stepper(*flags, latent, "--objective.horizon=1", precision=chosen),
        "NextLat, horizon 2": stepper(*flags, latent, "--objective.horizon=2", precision=chosen),
        "NextLat, horizon 8": stepper(*flags, latent, "--objective.horizon=8", precision=chosen),
    }
    seconds = bench.in_turn(ways, rounds=40)
    for name, times in seconds.items():
        print(f"  {name:45} {1000 * statistics.median(times):7.1f} ms")
    default = seconds["GPT, default"]
    if chosen == "bf16":
        faster = ratio(seconds["GPT, fp32, fused attention"], default)
        backbone = read_recipe(recipe_text("path-star-small"), flags).backbone.config
        rate = rates(128 if bench.smoke else 8192, backbone.width, 4 * backbone.width, ("fp32", "bf16"))
        limit = rate["bf16"] / rate["fp32"]
        print(f"  default against fp32 with fused attention: {faster:.2f} x; bare products: {limit:.2f} x")
        what = "gain of the default, as a share of the gain of bare products"
        bench.at_least(what, faster / limit, 0.75, f"{limit:.2f} x")
    else:
        print("  this processor is not fast at bf16: no bar for the default against fp32")
    bench.at_most("step time, NextLat horizon 1 against GPT", ratio(seconds["NextLat, horizon 1"], default), 1.15)
    bench.at_most("step time, NextLat horizon 8 against GPT", ratio(seconds["NextLat, horizon 8"], default), 2.0)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
