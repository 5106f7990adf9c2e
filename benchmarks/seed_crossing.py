"""What separates seeds that solve a task from seeds that do not: the weights at the start, or the order of the data?

python benchmarks/seed_crossing.py OUT [--length 5] [--inits 1-4] [--orders 1-4] [--hours 24] [--smoke] [FLAGS]
python benchmarks/seed_crossing.py OUT --table

Trains next latents on G(2,4), or G(2,5), each initialisation with each order of data, into OUT/init-I-order-J, one
after the other, until the hours are over; a run that has begun is finished. The same command continues. FLAGS are
those of `statewise train`, as --NAME=VALUE. There are two tables: the share of right paths, and the step at which
three quarters of the branches were first right, for a run that never has them right its last step. Below each stands
the share of the variance that initialisations and orders explain, with a permutation test.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from statewise.config.recipe import Recipe
from statewise.experiments import launch
from statewise.experiments.seeds import parse
from statewise.model.recipes import read_recipe
from statewise.run import Run

FLAGS = ("--objective=next_latent", "--objective.init=fan_in", "--trainer.evaluate_num=500")
GRAPHS = {
    4: ("--objective.horizon=2",),
    5: ("--objective.horizon=3", "--task.length=5", "--task.nodes=11", "--trainer.steps=20000"),
}
"""By length of the arms, what is other than in the recipe `path-star-g2-4`."""
TINY = (
    *("--task.held_out_graphs=10", "--trainer.steps=2", "--trainer.batch_size=4", "--trainer.warmup_steps=1"),
    *("--trainer.evaluate_every=2", "--trainer.evaluate_num=4", "--backbone.layers=1", "--backbone.width=16"),
)
PERMUTATIONS = 10_000
BRANCHES = 0.75
"""Share of the branches that a model has right once it has found how."""
Found = Mapping[tuple[int, int], float]
"""The figure of each run, by initialisation and order."""


@contextmanager
def started_from(seed: int) -> Iterator[None]:
    """Within, runs begin with the weights of this seed; their own seed orders the data."""
    make = launch.make_objective

    def made(recipe: Recipe, *others: Any) -> Any:
        return make(dataclasses.replace(recipe, seed=seed), *others)

    with mock.patch.object(launch, "make_objective", made):
        yield


def folder_of(out: Path, init: int, order: int) -> Path:
    """The folder of a run."""
    return out / f"init-{init}-order-{order}"


def train(out: Path, inits: Sequence[int], orders: Sequence[int], flags: Sequence[str], until: float) -> None:
    """Trains what is not complete, until the time `until`. The diagonal comes first: these are runs of plain seeds."""
    pairs = sorted(itertools.product(inits, orders), key=lambda pair: pair[0] != pair[1])
    for init, order in pairs:
        if time.monotonic() > until:
            print("the hours are over; the same command continues")
            return
        recipe = read_recipe("base: path-star-g2-4", [*flags, f"--seed={order}"])
        with started_from(init):
            launch.train_or_resume(recipe, folder_of(out, init, order))
        print(f"init {init}, order {order}: finished", flush=True)


def read(out: Path, inits: Sequence[int], orders: Sequence[int]) -> tuple[Found, Found]:
    """The share of right paths of each run that is evaluated, and the step from which three quarters of its branches
    were right."""
    paths, steps = {}, {}
    for init, order in itertools.product(inits, orders):
        run = Run(folder_of(out, init, order))
        report = run.report("evaluation") if run.exists() and run.complete() else None
        if report is None:
            continue
        paths[init, order] = float(report["metrics"]["path_accuracy"])
        held_out = [record for record in run.metrics() if record["kind"] == "evaluation"]
        right = [record["step"] for record in held_out if record["branch_accuracy"] >= BRANCHES]
        steps[init, order] = float(right[0] if right else held_out[-1]["step"])
    return paths, steps


def explained(found: Found, axis: int, rng: np.random.Generator) -> tuple[float, float]:
    """The share of the variance between the values of an axis (0: initialisations, 1: orders), and how often
    permuted figures have at least as much (permutation test, with the observed one)."""
    values, groups = np.array([*found.values()]), np.array([pair[axis] for pair in found])
    total = float(((values - values.mean()) ** 2).sum())
    if not total:
        return 0.0, 1.0

    def between(of: np.ndarray) -> float:
        means = [(of[groups == one].mean() - of.mean()) ** 2 * (groups == one).sum() for one in np.unique(groups)]
        return float(np.sum(means)) / total

    observed = between(values)
    as_much = sum(between(rng.permutation(values)) >= observed - 1e-12 for _ in range(PERMUTATIONS))
    return observed, (as_much + 1) / (PERMUTATIONS + 1)


def table(found: Found, inits: Sequence[int], orders: Sequence[int], digits: int) -> str:
    """The figures as Markdown, with so many digits after the point, and what explains them."""
    lines = [f"| init | {' | '.join(f'order {order}' for order in orders)} |", "| ---: |" + " ---: |" * len(orders)]
    for init in inits:
        cells = [f"{found[init, order]:,.{digits}f}" if (init, order) in found else "-" for order in orders]
        lines.append(f"| {init} | {' | '.join(cells)} |")
    for axis, name in enumerate(("initialisation", "order of the data")):
        if len(found) == len(inits) * len(orders) > 1:
            share, p = explained(found, axis, np.random.default_rng(1))
            lines.append(f"\nThe {name} explains {share:.2f} of the variance (permutation test p = {p:.3f}).")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """Trains, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--length", type=int, choices=GRAPHS, default=4, help="nodes of an arm, 4 or 5")
    parser.add_argument("--inits", default="1-4")
    parser.add_argument("--orders", default="1-4")
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--smoke", action="store_true", help="two steps of tiny models")
    parser.add_argument("--table", action="store_true", help="train nothing")
    options, more = parser.parse_known_args(words)
    inits, orders = parse(options.inits), parse(options.orders)
    if options.table and more:
        parser.error(f"--table trains nothing, so {' '.join(more)} says nothing")
    if not options.table:
        flags = [*FLAGS, *GRAPHS[options.length], *(TINY if options.smoke else ()), *more]
        train(options.out, inits, orders, flags, time.monotonic() + 3600 * options.hours)
    paths, steps = read(options.out, inits, orders)
    print(f"Share of right paths:\n\n{table(paths, inits, orders, digits=4)}\n")
    print(f"Steps until {BRANCHES:.0%} of the branches are right:\n\n{table(steps, inits, orders, digits=0)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
