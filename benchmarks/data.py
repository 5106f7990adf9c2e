"""The path-star generator against the trainer: how many times as fast examples are made as they are used.

python benchmarks/data.py
"""

from __future__ import annotations

import statistics

from timing import Bars, in_turn, ratio
from train_step import stepper

from statewise.data import Stream
from statewise.experiment import make_task, read_recipe
from statewise.recipes import recipe_text
from statewise.training import machine


def main() -> None:
    machine.keep_freed_memory()
    precision = machine.choose_precision("auto", "cpu")
    bars = Bars()
    for flags in ([], ["--task.degree=5", "--task.length=5", "--task.nodes=50"]):
        recipe = read_recipe(recipe_text("path-star-small"), flags)
        stream = Stream(make_task(recipe), seed=1, batch_size=recipe.trainer.batch_size)
        numbers = iter(range(10**9))
        ways = {
            "training step": stepper(*flags, precision=precision),
            "batch": lambda stream=stream, numbers=numbers: stream.batch(next(numbers)),
        }
        seconds = in_turn(ways, rounds=30)
        name = f"G({recipe.task.config.degree},{recipe.task.config.length}), {recipe.trainer.batch_size} graphs"
        for way, times in seconds.items():
            print(f"  {name}: {way:20} {1000 * statistics.median(times):8.2f} ms")
        bars.at_least(f"{name}: made / used", ratio(seconds["training step"], seconds["batch"]), 20)
    bars.finish()


if __name__ == "__main__":
    main()
