"""Detours (Vafa et al. 2024; NextLat, table 1): some of a model's choices are replaced, and it must still arrive.

Each choice is replaced, with a given probability, by another legal token from which the end can still be reached in
time; never where the sequence may end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from typing_extensions import override

from statewise.analysis.base import Analysis, Findings, Subject
from statewise.decoding.predictor import Predictor
from statewise.reporting.figures import Curve, Panel
from statewise.runtime.bounds import bounded
from statewise.runtime.messages import percent
from statewise.tasks.automaton import Automaton, automaton
from statewise.tasks.base import Task
from statewise.tasks.batches import same_prompt_length

Kind = Literal["random", "second", "least"]
REPLACEMENTS = {
    "random": "a random other token",
    "second": "the second most likely token",
    "least": "the least likely token",
}
ROWS = 512
"""Sequences decoded at a time."""


@dataclass(frozen=True)
class DetoursConfig:
    """Options of `statewise analyze RUN detours`."""

    sequences: int = 300
    """Held-out sequences whose prompts are decoded."""
    kinds: str = "random,second,least"
    """Replacements of the model's choice: a random other token, the second most likely one, or the least likely one."""
    probabilities: str = "0,0.1,0.25,0.5,0.75"
    """Probabilities of a replacement."""
    seed: int = 1
    """Seed of the replacements."""

    def __post_init__(self) -> None:
        bounded(self, "sequences", at_least=1)
        bounded(self, "seed", at_least=0)
        for kind in self.listed_kinds:
            if kind not in get_args(Kind):
                raise ValueError(f"kinds are {', '.join(get_args(Kind))}, not {kind!r}")
        try:
            shares = self.listed_probabilities
        except ValueError:
            raise ValueError(f"probabilities must be numbers like 0,0.5,0.75, not {self.probabilities!r}") from None
        if not shares or not all(0 <= share <= 1 for share in shares):
            raise ValueError(f"probabilities must lie between 0 and 1, not {self.probabilities}")

    @property
    def listed_kinds(self) -> list[str]:
        """The kinds as a list."""
        return [kind.strip() for kind in self.kinds.split(",")]

    @property
    def listed_probabilities(self) -> list[float]:
        """The probabilities as a sorted list."""
        return sorted({float(share) for share in self.probabilities.split(",")})


class Detours(Analysis):
    """The share of sequences that reach their end despite detours."""

    Config = DetoursConfig
    config: DetoursConfig

    @override
    def check(self, task: Task, predictor: Callable[[], Predictor]) -> None:
        automaton(task)

    def analyze(self, subject: Subject) -> Findings:
        """Metrics `detours_KIND_PROBABILITY`, and `detours_none`; a curve for each kind; standard errors in details."""
        config, world = self.config, automaton(subject.task)
        examples = subject.task.held_out(config.sequences)
        if subject.task.end is None or not examples.prompt_lengths.all():
            raise ValueError("detours need sequences with a prompt and an end")
        metrics: dict[str, float] = {}
        curves, errors = [], {}
        for kind in config.listed_kinds:
            shares = []
            for probability in config.listed_probabilities:
                name = f"detours_{kind}_{_text(probability)}" if probability else "detours_none"
                if name not in metrics:
                    rng = np.random.default_rng([config.seed, 3])
                    arrived = [
                        ride(subject.snapshot.predictor, world, subject.task.end, prompts, kind, probability, rng)
                        for _, prompts in same_prompt_length(examples, ROWS)
                    ]
                    share = metrics[name] = float(np.concatenate(arrived).mean())
                    errors[name] = math.sqrt(share * (1 - share) / len(examples))
                shares.append(metrics[name])
            curves.append(Curve(kind, config.listed_probabilities, shares))
        panel = Panel("probability of a detour", "share that arrives", curves, shares=True)
        details = {"standard_errors": errors}
        often = _text(config.listed_probabilities[-1])
        main = [name for name in metrics if name == "detours_none" or name == f"detours_random_{often}"]
        notes = ["a detour always leaves a way to the end, so detours may help the sequences of a weak model to arrive"]
        return Findings(
            metrics | {"sequences": len(examples)},
            [panel],
            details,
            notes,
            main=main or list(metrics)[:1],
            verdict=self._verdict(metrics, len(examples)),
        )

    def _verdict(self, metrics: Mapping[str, float], sequences: int) -> str:
        kinds, often = self.config.listed_kinds, self.config.listed_probabilities[-1]
        kind = "random" if "random" in kinds else kinds[0]
        with_none = metrics.get("detours_none")
        alone = "" if with_none is None else f"Without detours {percent(with_none)} of {sequences:,} sequences arrive"
        if not often:
            return f"{alone}."
        arrived = percent(metrics[f"detours_{kind}_{_text(often)}"])
        forced = f"ith {REPLACEMENTS[kind]} in place of the model's choice at {percent(often)} of the steps, {arrived} "
        return f"W{forced}of {sequences:,} sequences arrive." if not alone else f"{alone}; w{forced}do."


def _text(probability: float) -> str:
    """The probability with all digits, so that different ones have different names."""
    return str(probability).removesuffix(".0")


@torch.no_grad()
def ride(
    predictor: Predictor,
    world: Automaton,
    end: int,
    prompts: np.ndarray,
    kind: str,
    probability: float,
    rng: np.random.Generator,
) -> np.ndarray:
    """(n,) bool: whether greedy sequences from `prompts` (n, t), with detours, are legal and reach their end."""
    limit = world.longest - prompts.shape[1]
    states = world.states_after(prompts)
    cursor, logits = predictor.start(torch.from_numpy(prompts))
    for position in range(limit):
        scores = logits.float().cpu().numpy()
        chosen = scores.argmax(axis=1)
        drawn = rng.random((2, len(prompts)))  # drawn for all rows, so that rows do not affect each other
        chosen = _replaced(
            world, end, states, chosen, scores, kind, drawn[0] < probability, drawn[1], limit - position - 1
        )
        arrived = world.tokens_left(states) == 0
        states = np.where(arrived[:, None], states, world.step(states, chosen))
        if (world.tokens_left(states) <= 0).all() or position + 1 == limit:
            break
        logits = predictor.extend(cursor, torch.from_numpy(chosen)[:, None])[:, -1]
    return world.tokens_left(states) == 0


def _replaced(
    world: Automaton,
    end: int,
    states: np.ndarray,
    chosen: np.ndarray,
    scores: np.ndarray,
    kind: str,
    detour: np.ndarray,
    draw: np.ndarray,
    left: int,
) -> np.ndarray:
    """(n,) the tokens `chosen` (n,), replaced in the rows of `detour` by another legal token from which the end is at
    most `left` tokens away. Rows that may end, and those without such a token, are unchanged."""
    allowed = world.allowed(states)
    allowed &= (detour & ~allowed[:, end])[:, None]
    rows, tokens = np.nonzero(allowed)
    needed = world.tokens_left(world.step(states[rows], tokens))
    fits = (needed >= 0) & (needed <= left) & (tokens != chosen[rows])
    others = np.zeros_like(allowed)
    others[rows[fits], tokens[fits]] = True
    count = others.sum(axis=1)
    if kind == "random":
        pick = (draw * count).astype(np.int64)
        other = (others.cumsum(axis=1) <= pick[:, None]).sum(axis=1)
    elif kind == "second":
        other = np.where(others, scores, -np.inf).argmax(axis=1)
    else:
        other = np.where(others, scores, np.inf).argmin(axis=1)
    return np.where(count > 0, other, chosen)
