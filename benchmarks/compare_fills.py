"""Are the middles of one model better than those of another, for the same stories?

python benchmarks/compare_fills.py REFEREE --first A-1.jsonl A-2.jsonl --second B-1.jsonl B-2.jsonl

The files are those of `statewise fill`, one for each seed, of the same stories. A referee run gives the log-likelihood
of each ending, and of its first five tokens, in nats per token. Printed are both means and the mean difference, with
its 95% interval by a bootstrap that draws seeds and stories.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from statewise.evaluation.infilling import Filled, read_fills, referee
from statewise.model.model import Model, load_model

SCORES = {"goal_nats": "the ending", "join_nats": "its first five tokens", "repetition": "repetition in the middle"}
RESAMPLES = 10_000


def scores(model: Model, fills: Sequence[Filled]) -> dict[str, np.ndarray]:
    """(stories,) of each score."""
    with model.asking() as predictor:
        each = [referee(predictor, model.task, [one]).metrics for one in fills]
    return {name: np.array([metrics[name] for metrics in each]) for name in SCORES}


def interval(first: np.ndarray, second: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """The 95% interval of mean(first) - mean(second), each (seeds, stories) of the same stories. Seeds of each side are
    drawn by themselves, stories are the same on both."""
    differences = np.empty(RESAMPLES)
    for number in range(RESAMPLES):
        stories = rng.integers(first.shape[1], size=first.shape[1])
        drawn = [side[rng.integers(len(side), size=len(side))][:, stories].mean() for side in (first, second)]
        differences[number] = drawn[0] - drawn[1]
    low, high = np.quantile(differences, [0.025, 0.975])
    return float(low), float(high)


def read(paths: Sequence[Path], prompts: list[str] | None = None) -> list[list[Filled]]:
    """The fills of each file. Raises `ValueError` unless all are of the same stories."""
    files = [read_fills(path) for path in paths]
    prompts = prompts or [one.prompt for one in files[0]]
    for path, fills in zip(paths, files):
        if [one.prompt for one in fills] != prompts:
            raise ValueError(f"{path}: these are other stories than those of {paths[0]}")
    return files


def main(words: list[str] | None = None) -> int:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("referee", type=Path)
    parser.add_argument("--first", type=Path, nargs="+", required=True)
    parser.add_argument("--second", type=Path, nargs="+", required=True)
    options = parser.parse_args(words)
    model = load_model(options.referee)
    first = read(options.first)
    second = read(options.second, [one.prompt for one in first[0]])
    sides = [[scores(model, fills) for fills in files] for files in (first, second)]
    rng = np.random.default_rng(0)
    print(f"{len(first[0])} stories; {len(first)} and {len(second)} seeds; nats per token, higher is better")
    for name, about in SCORES.items():
        a, b = (np.stack([one[name] for one in side]) for side in sides)
        low, high = interval(a, b, rng)
        print(
            f"{about}: {a.mean():.3f}, {b.mean():.3f}; difference {a.mean() - b.mean():+.3f} [{low:+.3f}, {high:+.3f}]"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
