"""All metrics of world models of one small run: as they are, many sequences at a time, against one at a time.

python benchmarks/world_metrics.py
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable

import torch
from timing import Bars

from statewise.analysis.base import Findings, Model, Subject
from statewise.config import Recipe
from statewise.data import Stream
from statewise.evaluation import evaluate
from statewise.experiment import Experiment, make_analysis, make_decoder, read_recipe
from statewise.recipes import recipe_text

STEPS = 150
"""Training, so that answers end and continuations are not all alike."""
PARTS: dict[str, dict[str, object]] = {
    "compression": {"trials": 16, "samples": 10},
    "distinction": {"trials": 16, "samples": 10},
    "detours": {"sequences": 60, "probabilities": "0.75", "kinds": "random"},
    "map": {"sequences": 60},
}


def trained() -> Experiment:
    recipe: Recipe = read_recipe(recipe_text("city-small"))
    experiment = Experiment.build(recipe)
    stream = Stream(experiment.task, seed=1, batch_size=64)
    optimiser = torch.optim.AdamW(experiment.objective.parameters(), lr=2e-3)
    for number in range(STEPS):
        loss = experiment.objective(stream.batch(number)).value()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return experiment


def main() -> None:
    torch.set_num_threads(1)
    bars, experiment = Bars(), trained()
    predictor, task = experiment.predictor(), experiment.task

    def nothing(*given: object) -> object:
        raise AssertionError("these analyses look at one model alone")

    subject = Subject(task, Model("model", predictor), nothing, nothing, nothing)  # type: ignore[arg-type]
    examples = task.held_out(60)

    def evaluation(block: int) -> dict[str, float]:
        return evaluate(task, predictor, make_decoder("greedy"), examples, block=block).metrics

    def analysis(name: str) -> Callable[[int], dict[str, float]]:
        def run(rows: int) -> dict[str, float]:
            for module in ("following", "detours", "map"):
                importlib.import_module(f"statewise.analysis.{module}").ROWS = rows
            found: Findings = make_analysis(name, **PARTS[name]).analyze(subject)
            return found.metrics

        return run

    totals = [0.0, 0.0]
    for name, work in {"evaluation": evaluation, **{name: analysis(name) for name in PARTS}}.items():
        seconds = []
        for rows in (512, 1):
            started = time.perf_counter()
            work(rows)
            seconds.append(time.perf_counter() - started)
        totals = [total + second for total, second in zip(totals, seconds)]
        print(f"  {name:12} {seconds[0]:6.1f} s at once, {seconds[1]:6.1f} s one at a time", flush=True)
    bars.at_least("the whole table: times as fast as one sequence at a time", totals[1] / totals[0], 5)
    bars.finish()


if __name__ == "__main__":
    main()
