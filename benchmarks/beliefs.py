"""Known beliefs: batches against the trainer's step, all words of Mess3, and belief-geometry of one run.

python benchmarks/beliefs.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from statistics import median

import numpy as np
import torch
from timing import Benchmark, parser, ratio
from torch.optim import AdamW

from statewise.analysis import make_analysis
from statewise.beliefs.reachable import levels
from statewise.beliefs.sources import process
from statewise.config.recipes import recipe_text
from statewise.data_types import Batch
from statewise.model.model import Model, new_model
from statewise.model.recipes import read_recipe
from statewise.tasks.batches import Stream
from statewise.tasks.hmm import Hmm, HmmConfig

BATCH = 64


def main(words: Sequence[str] | None = None) -> int:
    bench = Benchmark(parser(__doc__).parse_args(words).smoke)
    torch.set_num_threads(1)
    for name in ("hmm-rrxor", "hmm-bloch", "hmm-factored"):
        model = new_model(read_recipe(recipe_text(name)))
        stream = Stream(model.task, seed=1, batch_size=BATCH)
        optimiser = AdamW(model.objective.parameters(), lr=1e-3)
        numbers = iter(range(10**6))
        ready = stream.batch(next(numbers))

        def step(model: Model = model, optimiser: AdamW = optimiser, ready: Batch = ready) -> None:
            optimiser.zero_grad()
            model.objective(ready).value().backward()
            optimiser.step()

        def draw(stream: Stream = stream, numbers: Iterator[int] = numbers) -> None:
            stream.batch(next(numbers))

        found = bench.in_turn({"draw": draw, "step": step}, 40)
        print(f"{name}: batch {median(found['draw']) * 1e3:.2f} ms, step {median(found['step']) * 1e3:.1f} ms")
        bench.at_least(f"{name}: a batch of {BATCH}, times as fast as a step", ratio(found["step"], found["draw"]), 20)
    length = 4 if bench.smoke else 10

    def all_words() -> None:
        task = Hmm(HmmConfig(length=length))
        found = task.prefixes(3**length, 1)
        assert found.exact
        assert np.isfinite(task.beliefs(found.examples)).all()
        assert len([level.entropy for level in levels(process("mess3"), length, 3**length)]) == length + 1

    listed = bench.in_turn({"words": all_words}, 3, 1)
    bench.at_most(f"beliefs and floors of all {3**length:,} words of Mess3, seconds", min(listed["words"]), 2)
    torch.set_num_threads(2)
    flags = ["--task.length=4"] if bench.smoke else []
    model = new_model(read_recipe(recipe_text("hmm-mess3"), flags))
    analysis = make_analysis("belief-geometry")
    whole = bench.in_turn({"geometry": lambda: model.analyze(analysis)}, 2, 0)
    bench.at_most("belief-geometry of Mess3, seconds", min(whole["geometry"]), 10)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
