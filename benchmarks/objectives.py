"""One training step of every objective relative to GPT, at the TinyStories size of the papers.

python benchmarks/objectives.py

8 layers, 768 wide, 8 heads, T = 256, vocabulary 1000, eight sequences a step. The bars are the ratios of Table 3 of the
next-latent prediction paper (H100, a batch of 256), and 6 for the Belief State Transformer, which takes 19.6 there.
Parameter counts must be those of that table, to the million.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from timing import Bars, in_turn, ratio

from statewise.backbones.base import Backbone
from statewise.backbones.gpt import GPT, GPTConfig
from statewise.config import TrainerConfig
from statewise.data import collate
from statewise.objectives import OBJECTIVES
from statewise.objectives.base import Objective
from statewise.objectives.belief_state import BeliefState
from statewise.training import machine
from statewise.training.optim import make_optimizer
from statewise.types import Examples

T, VOCABULARY, BATCH = 256, 1000, 8
SIZE = GPTConfig(layers=8, width=768, heads=8)


def make_backbone(*, extra_tokens: int = 0, embedding_of: Backbone | None = None, **fields: Any) -> Backbone:
    config = dataclasses.replace(SIZE, **fields)
    return GPT(config, vocabulary=VOCABULARY + extra_tokens, context=T, embedding_of=embedding_of)


def make(name: str, **fields: Any) -> Objective:
    torch.manual_seed(0)
    kind: Any = OBJECTIVES[name]
    objective: Objective = kind(kind.Config(**fields), make_backbone)
    return objective


def millions(objective: Objective) -> int:
    """Trained parameters. Of the Belief State Transformer the two encoders, which is what the table counts."""
    parameters = sum(parameter.numel() for parameter in objective.parameters())
    if isinstance(objective, BeliefState):
        parameters -= sum(parameter.numel() for parameter in objective.head.parameters())
    return round(parameters / 1e6)


def stepper(objective: Objective, precision: str) -> Callable[[], None]:
    optimizer = make_optimizer(objective, TrainerConfig())
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (BATCH, T))
    batch = collate(Examples(tokens, np.full(BATCH, T), np.zeros(BATCH, np.int64)))

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = objective(batch).value()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


CASES: dict[str, tuple[str, dict[str, Any], float | None, int]] = {
    "MTP, d = 1": ("multi_token", {"horizon": 1}, 1.19, 64),
    "MTP, d = 8": ("multi_token", {"horizon": 8}, 2.06, 114),
    "JTP, d = 1": ("joint_multi_token", {"horizon": 1}, 1.12, 60),
    "JTP, d = 8": ("joint_multi_token", {"horizon": 8}, 1.43, 60),
    "NextLat, d = 1": ("next_latent", {"horizon": 1, "dynamics_width": 2048}, 1.14, 66),
    "NextLat, d = 8": ("next_latent", {"horizon": 8, "dynamics_width": 2048}, 1.97, 66),
    "teacherless": ("teacherless", {}, None, 57),
    "BST": ("belief_state", {}, 6.0, 114),
}
"""Objective, fields, bar of the step time, millions of parameters."""


def main() -> None:
    machine.keep_freed_memory()
    precision = machine.choose_precision("auto", "cpu")
    where = f"{machine.processor_name()}, {torch.get_num_threads()} threads"
    print(f"{where}, {precision}, {BATCH} sequences of {T} tokens")
    bars = Bars()
    gpt = make("next_token")
    assert millions(gpt) == 57, millions(gpt)
    plain = stepper(gpt, precision)
    for title, (name, fields, bar, parameters) in CASES.items():
        objective = make(name, **fields)
        found = millions(objective)
        # GPT is timed beside each, so that the drift of a shared machine hits both; one model at a time saves memory.
        seconds = in_turn({"GPT": plain, title: stepper(objective, precision)}, rounds=3, warm_up=1)
        times = statistics.median(seconds[title])
        print(f"  {title:16} {found:4} million parameters (table: {parameters})   {times:6.2f} s a step, "
              f"GPT {statistics.median(seconds['GPT']):.2f} s")  # fmt: skip
        if found != parameters:
            bars.at_most(f"{title}: millions of parameters away from the table", abs(found - parameters), 0)
        if bar is not None:
            bars.at_most(f"{title}: step time against GPT", ratio(seconds[title], seconds["GPT"]), bar)
    bars.finish()


if __name__ == "__main__":
    main()
