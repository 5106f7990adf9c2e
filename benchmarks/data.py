"""How fast batches are made: of path-star graphs against a training step on the CPU, and of rows packed with taxi rides
against the wait of a step whose device is busy meanwhile, as a GPU would be.

python benchmarks/data.py
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import closing

from timing import Benchmark, parser, ratio
from train_step import flags_of, stepper

from statewise.config.recipes import recipe_text
from statewise.model.building import make_task
from statewise.model.recipes import read_recipe
from statewise.objectives.base import document_lengths
from statewise.tasks.batches import Stream
from statewise.training import machine
from statewise.training.trainer import prefetch


def main(words: Sequence[str] | None = None) -> int:
    given = parser(__doc__, quick=True).parse_args(words)
    bench = Benchmark(given.smoke, given.quick)
    machine.keep_freed_memory()
    precision = machine.choose_precision("auto", "cpu")
    for task in ([], ["--task.degree=5", "--task.length=5", "--task.nodes=50"]):
        flags = [*flags_of(bench), *task]
        recipe = read_recipe(recipe_text("path-star-small"), flags)
        stream = Stream(make_task(recipe), seed=1, batch_size=recipe.trainer.batch_size)
        numbers = iter(range(10**9))
        ways = {
            "training step": stepper(*flags, precision=precision),
            "batch": lambda stream=stream, numbers=numbers: stream.batch(next(numbers)),
        }
        seconds = bench.in_turn(ways, rounds=30)
        name = f"G({recipe.task.config.degree},{recipe.task.config.length}), {recipe.trainer.batch_size} graphs"
        for way, times in seconds.items():
            print(f"  {name}: {way:20} {1000 * statistics.median(times):8.2f} ms")
        bench.at_least(f"{name}: made / used", ratio(seconds["training step"], seconds["batch"]), 20)
    packed_rows(bench)
    return bench.exit_code()


def packed_rows(bench: Benchmark) -> None:
    """What a step waits for its batch and the count of its documents, with and without prefetching."""
    size = 4 if bench.smoke else 256
    recipe = read_recipe(recipe_text("city-small"), ["--task.row=256", f"--trainer.batch_size={size}"])
    stream = Stream(make_task(recipe), seed=1, batch_size=size)
    drawn = stream.batch(0)

    def make(number: int) -> object:
        return document_lengths(stream.batch(number))

    with closing(prefetch(make, itertools.count())) as made:
        ways = {
            "wait for prefetched": lambda: next(made),
            "device busy": lambda: time.sleep(0.01 if bench.smoke else 0.3),  # long enough to make the next
            "make": lambda: make(1),
            "count documents": lambda: document_lengths(drawn),
        }
        seconds = bench.in_turn(ways, rounds=20)
    name = f"{size} rows of 256 tokens packed with rides"
    for way, times in seconds.items():
        print(f"  {name}: {way:30} {1000 * statistics.median(times):8.2f} ms")
    bench.at_most(f"{name}: wait / make", ratio(seconds["wait for prefetched"], seconds["make"]), 0.1)
    bench.at_most(f"{name}: count / make", ratio(seconds["count documents"], seconds["make"]), 0.2)


if __name__ == "__main__":
    sys.exit(main())
