"""One training step of path-star-small: default settings against fp32 with the fused attention; NextLat against GPT.

python benchmarks/train_step.py
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from unittest import mock

import torch
from timing import Bars, in_turn, ratio

from statewise.data import Stream
from statewise.experiment import make_objective, make_task, read_recipe
from statewise.nn import block
from statewise.nn.attention import attend_fused
from statewise.recipes import recipe_text
from statewise.training import machine
from statewise.training.optim import make_optimizer


def stepper(*flags: str, precision: str, fused_attention: bool = False) -> Callable[[], None]:
    """A call that does one training step."""
    recipe = read_recipe(recipe_text("path-star-small"), flags)
    task = make_task(recipe)
    objective = make_objective(recipe, task)
    optimizer = make_optimizer(objective, recipe.trainer)
    stream = Stream(task, seed=1, batch_size=recipe.trainer.batch_size)
    batches = [stream.batch(number) for number in range(4)]
    number = 0

    def step() -> None:
        nonlocal number
        number += 1
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = objective(batches[number % 4]).value()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(objective.parameters(), recipe.trainer.clip)
        optimizer.step()
        optimizer.zero_grad()

    def step_fused() -> None:
        with mock.patch.object(block, "attend", attend_fused):
            step()

    return step_fused if fused_attention else step


def main() -> None:
    machine.keep_freed_memory()
    chosen = machine.choose_precision("auto", "cpu")
    print(f"{machine.processor_name()}, {torch.get_num_threads()} threads, precision auto = {chosen}")
    latent = "--objective=next_latent"
    ways = {
        "GPT, default": stepper(precision=chosen),
        "GPT, fp32, fused attention": stepper(precision="fp32", fused_attention=True),
        "GPT, default precision, fused attention": stepper(precision=chosen, fused_attention=True),
        "NextLat, horizon 1": stepper(latent, "--objective.horizon=1", precision=chosen),
        "NextLat, horizon 2": stepper(latent, "--objective.horizon=2", precision=chosen),
        "NextLat, horizon 8": stepper(latent, "--objective.horizon=8", precision=chosen),
    }
    seconds = in_turn(ways, rounds=40)
    for name, times in seconds.items():
        print(f"  {name:45} {1000 * statistics.median(times):7.1f} ms")
    default = seconds["GPT, default"]
    bars = Bars()
    if chosen == "bf16":
        bars.at_least("steps/s, default against fp32 with fused attention",
                      ratio(seconds["GPT, fp32, fused attention"], default), 2.0)  # fmt: skip
    else:
        print("  this processor is not fast at bf16: no bar for the default against fp32")
    bars.at_most("step time, NextLat horizon 1 against GPT", ratio(seconds["NextLat, horizon 1"], default), 1.15)
    bars.at_most("step time, NextLat horizon 8 against GPT", ratio(seconds["NextLat, horizon 8"], default), 2.0)
    bars.finish()


if __name__ == "__main__":
    main()
