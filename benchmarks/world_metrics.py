"""All metrics of world models of one small run: as they are, many sequences at a time, against one at a time.

python benchmarks/world_metrics.py
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from unittest import mock

import torch
from timing import Benchmark, parser

from statewise.analysis import make_analysis
from statewise.analysis.base import Findings, Snapshot, Subject
from statewise.config.recipe import Recipe
from statewise.config.recipes import recipe_text
from statewise.decoding import make_decoder
from statewise.evaluation.evaluate import evaluate
from statewise.model.model import Model, new_model
from statewise.model.recipes import read_recipe
from statewise.tasks.batches import Stream


def parts(trials: int, samples: int, sequences: int) -> dict[str, dict[str, object]]:
    """The analyses and their settings."""
    return {
        "compression": {"trials": trials, "samples": samples},
        "distinction": {"trials": trials, "samples": samples},
        "detours": {"sequences": sequences, "probabilities": "0.75", "kinds": "random"},
        "map": {"sequences": sequences},
    }


TINY = ["--backbone.width=16", "--backbone.heads=2", "--backbone.layers=1", "--task.held_out_rides=10"]


def trained(steps: int, smoke: bool) -> Model:
    """Trained so far that answers end and continuations are not all alike."""
    recipe: Recipe = read_recipe(recipe_text("city-small"), TINY if smoke else [])
    model = new_model(recipe)
    stream = Stream(model.task, seed=1, batch_size=8 if smoke else 64)
    optimiser = torch.optim.AdamW(model.objective.parameters(), lr=2e-3)
    for number in range(steps):
        loss = model.objective(stream.batch(number)).value()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model


def main(words: Sequence[str] | None = None) -> int:
    bench = Benchmark(parser(__doc__).parse_args(words).smoke)
    steps, sequences, analyses = (1, 2, parts(2, 2, 2)) if bench.smoke else (150, 60, parts(16, 10, 60))
    torch.set_num_threads(1)
    model = trained(steps, bench.smoke)
    predictor, task = model.predictor(), model.task

    def nothing(*given: object) -> object:
        raise AssertionError("these analyses look at one model alone")

    subject = Subject(task, Snapshot("model", predictor), nothing, nothing, nothing)  # type: ignore[arg-type]
    examples = task.held_out(sequences)

    def evaluation(block: int) -> dict[str, float]:
        return evaluate(task, predictor, make_decoder("greedy"), examples, block=block).metrics

    def analysis(name: str) -> Callable[[int], dict[str, float]]:
        def run(rows: int) -> dict[str, float]:
            with ExitStack() as patches:
                for module in ("trials", "detours", "map"):
                    where = importlib.import_module(f"statewise.analysis.world_models.{module}")
                    patches.enter_context(mock.patch.object(where, "ROWS", rows))
                found: Findings = make_analysis(name, **analyses[name]).analyze(subject)
            return found.metrics

        return run

    totals = [0.0, 0.0]
    for name, work in {"evaluation": evaluation, **{name: analysis(name) for name in analyses}}.items():
        seconds = []
        for rows in (512, 1):
            started = time.perf_counter()
            work(rows)
            seconds.append(time.perf_counter() - started)
        totals = [total + second for total, second in zip(totals, seconds)]
        print(f"  {name:12} {seconds[0]:6.1f} s at once, {seconds[1]:6.1f} s one at a time", flush=True)
    bench.at_least("the whole table: times as fast as one sequence at a time", totals[1] / totals[0], 5)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
