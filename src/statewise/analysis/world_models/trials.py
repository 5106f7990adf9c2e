"""The common part of analyses by trials: options, numbers of trials, sampled continuations and their probabilities,
means and standard errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from statewise.data_types import Examples
from statewise.decoding.base import Request
from statewise.decoding.predictor import Predictor
from statewise.decoding.sample import Sample, SampleConfig
from statewise.runtime.bounds import bounded
from statewise.runtime.progress import announced
from statewise.tasks.automaton import Automaton, Pairs, up_to_end
from statewise.tasks.batches import rows_at_once


@dataclass(frozen=True)
class TrialsConfig:
    """Options of analyses that compare pairs of prefixes."""

    trials: int = 200
    """Pairs of prefixes to draw."""
    samples: int = 30
    """Continuations sampled from the model after the first prefix of a pair."""
    floor: float = 0.01
    """The model accepts tokens with a larger probability."""
    seed: int = 1
    """Seed of pairs and samples."""

    def __post_init__(self) -> None:
        bounded(self, "trials", "samples", at_least=1, at_most=10**6)
        bounded(self, "floor", above=0, below=1)
        bounded(self, "seed", at_least=0)


def share(name: str, values: np.ndarray) -> dict[str, float]:
    """The mean of `values` (n,) and its standard error; one value has no standard error."""
    mean = {name: float(values.mean())}
    if len(values) < 2:
        return mean
    return {**mean, f"{name}_standard_error": float(values.std(ddof=1)) / math.sqrt(len(values))}


def floor_notes(most_legal: int, floor: float) -> list[str]:
    """A note if `most_legal` tokens are legal in some state, so that all may have a probability below `floor`."""
    if most_legal * floor <= 1:
        return []
    return [
        f"up to {most_legal} tokens are legal in a state, so even a model of the true probabilities may give none of "
        f"them more than `floor` {floor:g}, and then counts as rejecting them: set it below {1 / most_legal:.2g}"
    ]


def unscored_notes(world: Automaton) -> list[str]:
    """A note on tasks whose training does not score every choice."""
    if world.every_choice_scored:
        return []
    return [
        "training on this task scores answers alone: a model that tracks the state without an error need not know "
        "which other tokens are legal, so these figures can be low where its states are right; ask world-probe or "
        "inductive-bias"
    ]


def count_trials(pairs: Pairs) -> dict[str, float]:
    """Numbers of trials requested and made."""
    return {"trials_asked": pairs.requested, "trials_made": len(pairs)}


MOST_MEANS = 12
"""Maximum number of points of a curve of means."""


def mean_by(keys: np.ndarray, values: np.ndarray) -> tuple[list[float], list[float]]:
    """The mean of `values` (n,) for each of `keys` (n,), or with more than `MOST_MEANS` distinct keys, in as many bins
    of equal size at the mean of their keys."""
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order].astype(float), values[order].astype(float)
    different = np.unique(keys)
    if len(different) <= MOST_MEANS:
        groups = [np.flatnonzero(keys == key) for key in different]
    else:
        groups = np.array_split(np.arange(len(keys)), MOST_MEANS)
    return [float(keys[group].mean()) for group in groups], [float(values[group].mean()) for group in groups]


ROWS = 1024
"""Continuations processed at a time, fewer if their logits would be too large."""


def by_length(prefixes: Examples) -> list[np.ndarray]:
    """Rows grouped by the length of their prefix, so that decoding needs no padding."""
    return [np.flatnonzero(prefixes.lengths == length) for length in np.unique(prefixes.lengths)]


def draw(
    predictor: Predictor, prefixes: np.ndarray, count: int, *, limit: int, end: int | None, floor: float, seed: int
) -> list[list[np.ndarray]]:
    """Samples `count` continuations of each of `prefixes` (n, t), of at most `limit` tokens, without tokens whose
    probability is below `floor`."""
    repeated = np.repeat(prefixes, count, axis=0)
    own = np.random.SeedSequence([seed, prefixes.shape[1]])  # different noise for each length
    decoder = Sample(SampleConfig(floor=floor, seed=int(own.generate_state(1)[0])))
    completions = []
    for start in announced(range(0, len(repeated), ROWS), "batches of continuations", -(-len(repeated) // ROWS)):
        part = repeated[start : start + ROWS]
        completions += decoder.decode(predictor, Request(part, limit, end, rows=range(start, start + len(part))))
    tails = [completion.tokens for completion in completions]
    return [tails[row : row + count] for row in range(0, len(tails), count)]


def draw_up_to_end(
    predictor: Predictor, world: Automaton, prefixes: np.ndarray, end: int | None, config: TrialsConfig
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """`config.samples` continuations of each of `prefixes` (n, t), cut where the world ends: for each of all r, the
    number of its prefix (r,), the true state after that, and the continuation."""
    limit = world.longest - prefixes.shape[1]
    drawn = draw(predictor, prefixes, config.samples, limit=limit, end=end, floor=config.floor, seed=config.seed)
    which = np.repeat(np.arange(len(prefixes)), config.samples)
    states = world.states_after(prefixes)[which]
    return which, states, up_to_end(world, states, [tail for of_one in drawn for tail in of_one])


@torch.no_grad()
def probabilities(
    predictor: Predictor, prefixes: np.ndarray, which: np.ndarray, tails: list[np.ndarray]
) -> list[np.ndarray]:
    """The probability of each token of each of the r `tails` (m,), given prefix `which` (r,) of `prefixes` (n, t) and
    the tail's earlier tokens. Prefixes are read once per block of tails."""
    if not tails:
        return []
    rows = np.zeros((len(tails), max(map(len, tails))), np.int64)
    for row, tail in enumerate(tails):
        rows[row, : len(tail)] = tail
    block = rows_at_once(rows.shape[1], predictor.vocabulary, ROWS)
    by_token = np.empty(rows.shape)
    for start in range(0, len(rows), block):
        part = torch.from_numpy(rows[start : start + block])
        needed, own = np.unique(which[start : start + block], return_inverse=True)
        cursor, first = predictor.start(torch.from_numpy(prefixes[needed]))
        order = torch.from_numpy(own)
        predictor.reorder(cursor, order)
        logits = first[order.to(first.device)][:, None]
        if part.shape[1] > 1:
            logits = torch.cat([logits, predictor.extend(cursor, part[:, :-1])], dim=1)
        shares = logits.softmax(-1).gather(-1, part.to(logits.device)[:, :, None])[:, :, 0]
        by_token[start : start + block] = shares.cpu().numpy()
    return [by_token[row, : len(tail)] for row, tail in enumerate(tails)]
