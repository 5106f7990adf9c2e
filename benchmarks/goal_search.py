"""Goal search with its cache and batches against Algorithm 1 as it stands, which reads each prefix anew at every step.

python benchmarks/goal_search.py

A search with 120 roll-outs is timed with the cache, its first 16 without. Compared is the time per generated token;
those that a roll-out takes over from another are not counted. Both ways must find the same first 16 and score them
alike. The weights are drawn, not trained: what is timed hardly depends on them.
"""

from __future__ import annotations

import heapq
import itertools
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from timing import Benchmark, parser, ratio

from statewise.config.recipes import recipe_text
from statewise.data_types import Completion
from statewise.decoding import make_search
from statewise.decoding.base import Request
from statewise.decoding.predictor import GoalScorer, Predictor, require
from statewise.model.model import Model, new_model
from statewise.model.recipes import read_recipe
from statewise.training import machine


@dataclass(frozen=True)
class Size:
    symbols: int
    prompt: int
    generated: int
    goal: int
    rollouts: int
    first: int
    """Roll-outs of the slow way."""
    backbone: tuple[str, ...]


FULL = Size(1000, 50, 80, 50, 120, 16, ("--backbone.width=256", "--backbone.layers=4"))
SMOKE = Size(20, 4, 6, 4, 6, 3, ("--backbone.width=32", "--backbone.layers=1"))


def read_anew(
    predictor: Predictor, prompt: np.ndarray, goal: np.ndarray, end: int | None, size: Size
) -> list[Completion]:
    """The slow way: a queue with all tokens of all steps, one sequence at a time, without a cache."""
    scorer, towards, numbers = require(predictor, GoalScorer), torch.from_numpy(goal), itertools.count()
    queue: list[tuple[float, int, list[int], float]] = [(0.0, next(numbers), [], 0.0)]
    found = []
    for _ in range(size.first):
        cost, _, tokens, total = heapq.heappop(queue)
        while len(tokens) < size.generated:
            _, logits = scorer.start_with_goal(torch.from_numpy(np.array([[*prompt, *tokens]])), towards)
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
        cursor, _ = scorer.start_with_goal(torch.from_numpy(np.array([[*prompt, *tokens]])), towards)
        found.append(Completion(np.array(tokens), total, float(scorer.score_goal(cursor, towards))))
    return found


def untrained(size: Size) -> Model:
    """An untrained model on sequences of the right length."""
    length = size.prompt + size.generated + size.goal - 1  # and the end symbol
    symbols = np.random.default_rng(1).permutation(np.tile(np.arange(size.symbols - 1), 10))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random.txt"
        lines = [symbols[first : first + length] for first in range(0, len(symbols), length)]
        path.write_text("\n".join(" ".join(map(str, line)) for line in lines))
        flags = [f"--task.path={path}", "--objective=belief_state", *size.backbone]
        model = new_model(read_recipe(recipe_text("sequences-small"), flags))
    with torch.no_grad():  # a fresh model finds all tokens equally likely, so that rounding would decide
        for name, weight in model.objective.named_parameters():
            if name.startswith("head.") and weight.dim() == 2:
                weight *= 4
    return model


def main(words: Sequence[str] | None = None) -> int:
    bench = Benchmark(parser(__doc__).parse_args(words).smoke)
    size = SMOKE if bench.smoke else FULL
    machine.keep_freed_memory()
    model = untrained(size)
    predictor, end = model.predictor(), model.task.end
    tokens = np.random.default_rng(2).integers(0, size.symbols - 1, size.prompt + size.goal)
    prompt, goal = tokens[: size.prompt], tokens[size.prompt :]
    between = f"{size.generated} tokens between a prompt of {size.prompt} and a goal of {size.goal}"
    print(f"{machine.processor_name()}: {between}")

    def search(rollouts: int) -> list[Completion]:
        decoder = make_search("goal_search", rollouts=rollouts)
        return decoder.search(predictor, Request([prompt], size.generated, end, goal))

    found: dict[str, list[Completion]] = {}
    ways = {
        f"{size.rollouts} roll-outs with the cache": lambda: found.update(fast=search(size.rollouts)),
        f"{size.first} roll-outs, each prefix anew": lambda: found.update(
            slow=read_anew(predictor, prompt, goal, end, size)
        ),
    }
    with torch.no_grad():
        scores = {tuple(one.tokens.tolist()): one.score for one in search(size.first)}
        seconds = bench.in_turn(ways, rounds=2, warm_up=0)
    assert len(scores) == size.first
    for one in found["slow"]:
        score = scores[tuple(one.tokens.tolist())]
        assert math.isclose(score or 0.0, one.score or 0.0, rel_tol=1e-5), "the two ways must agree"
    per_token = {}
    for (way, times), completions in zip(seconds.items(), (found["fast"], found["slow"])):
        count = generated(completions)
        per_token[way] = [second / count for second in times]
        print(f"  {way:32} {statistics.median(times):8.2f} s for {count} tokens")
    bench.at_least("goal search: speed with the cache", ratio(*reversed(per_token.values())), 10)
    return bench.exit_code()


def generated(completions: list[Completion]) -> int:
    """Steps that their tokens took: one for each different beginning, but for those by which a roll-out began."""
    beginnings = {tuple(one.tokens[:end].tolist()) for one in completions for end in range(1, len(one.tokens) + 1)}
    return len(beginnings) - (len(completions) - 1)


if __name__ == "__main__":
    sys.exit(main())
