"""Goal search with its cache and batches against Algorithm 1 as it stands, which reads each prefix anew at every step.

python benchmarks/goal_search.py

Both ways do the same work, the first 24 roll-outs, and must find the same candidates and scores; a search of the usual
size, 120, is timed beside them. The weights are drawn, not trained: what is timed hardly depends on them.
"""

from __future__ import annotations

import heapq
import itertools
import math
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch
from timing import Bars, in_turn, ratio

from statewise.decoding.base import Predictor, goal_scorer
from statewise.experiment import Experiment, make_search, read_recipe
from statewise.recipes import recipe_text
from statewise.training import machine
from statewise.types import Completion

SYMBOLS, PROMPT, GENERATED, GOAL, ROLLOUTS = 1000, 50, 80, 50, 24


def read_anew(predictor: Predictor, prompt: np.ndarray, goal: np.ndarray, end: int | None) -> list[Completion]:
    """The slow way: a queue with all tokens of all steps, one sequence at a time, without a cache."""
    scorer, towards, numbers = goal_scorer(predictor), torch.from_numpy(goal), itertools.count()
    queue: list[tuple[float, int, list[int], float]] = [(0.0, next(numbers), [], 0.0)]
    found = []
    for _ in range(ROLLOUTS):
        cost, _, tokens, total = heapq.heappop(queue)
        while len(tokens) < GENERATED:
            _, logits = scorer.start_towards(torch.from_numpy(np.array([[*prompt, *tokens]])), towards)
            log_probs = logits[0].log_softmax(-1)
            if end is not None:
                log_probs[end] = -math.inf
            greedy = int(log_probs.argmax())
            values = log_probs.tolist()
            for token, value in enumerate(values):
                if token != greedy and value > -math.inf:
                    entry = (cost + values[greedy] - value, next(numbers), [*tokens, token], total + value)
                    heapq.heappush(queue, entry)
            tokens, total = [*tokens, greedy], total + values[greedy]
        cursor, _ = scorer.start_towards(torch.from_numpy(np.array([[*prompt, *tokens]])), towards)
        found.append(Completion(np.array(tokens), total, float(scorer.score_goal(cursor, towards))))
    return found


def model() -> Experiment:
    """An untrained model on sequences of the right length."""
    length = PROMPT + GENERATED + GOAL - 1  # and the end symbol
    symbols = np.random.default_rng(1).permutation(np.tile(np.arange(SYMBOLS - 1), 10))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random.txt"
        lines = [symbols[first : first + length] for first in range(0, len(symbols), length)]
        path.write_text("\n".join(" ".join(map(str, line)) for line in lines))
        flags = [f"--task.path={path}", "--objective=belief_state", "--backbone.width=256", "--backbone.layers=4"]
        experiment = Experiment.build(read_recipe(recipe_text("sequences-small"), flags))
    with torch.no_grad():  # a fresh model finds all tokens equally likely, so that rounding would decide
        for name, weight in experiment.objective.named_parameters():
            if name.startswith("head.") and weight.dim() == 2:
                weight *= 4
    return experiment


def main() -> None:
    machine.keep_freed_memory()
    experiment = model()
    predictor, end = experiment.predictor(), experiment.task.end
    tokens = np.random.default_rng(2).integers(0, SYMBOLS - 1, PROMPT + GOAL)
    prompt, goal = tokens[:PROMPT], tokens[PROMPT:]
    print(f"{machine.processor_name()}: {GENERATED} tokens between a prompt of {PROMPT} and a goal of {GOAL}")
    found: dict[str, dict[tuple[int, ...], float]] = {}

    def search(rollouts: int) -> list[Completion]:
        decoder = make_search("goal_search", rollouts=rollouts)
        return decoder.search(predictor, prompt, limit=GENERATED, end=end, goal=goal)

    def keep(way: str, completions: list[Completion]) -> None:
        found[way] = {tuple(one.tokens.tolist()): one.score or 0.0 for one in completions}

    ways = {
        f"{ROLLOUTS} with the cache": lambda: keep("fast", search(ROLLOUTS)),
        f"{ROLLOUTS}, each prefix anew": lambda: keep("slow", read_anew(predictor, prompt, goal, end)),
        "120 with the cache": lambda: search(120),
    }
    with torch.no_grad():
        search(ROLLOUTS)  # the first call of all pays for buffers
        seconds = in_turn(ways, rounds=1, warm_up=0)
    assert found["fast"].keys() == found["slow"].keys(), "the two ways must find the same candidates"
    for one, score in found["slow"].items():
        assert math.isclose(found["fast"][one], score, rel_tol=1e-5), "the two ways must score alike"
    for way, times in seconds.items():
        print(f"  {way:24} {statistics.median(times):8.2f} s")
    fast, slow, _ = seconds.values()
    bars = Bars()
    bars.at_least(f"goal search, {ROLLOUTS} roll-outs: speed with the cache", ratio(slow, fast), 10)
    bars.finish()


if __name__ == "__main__":
    main()
