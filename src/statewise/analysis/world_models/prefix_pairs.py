"""Sequence compression and distinction (Vafa et al. 2024; NextLat, table 1): what a model predicts after pairs of
prefixes.

Compression: prefixes with the same state must have the same future. For two prefixes that lead to the same true state,
all continuations sampled after the first must be possible after the second: the score is 1 if every token of every
continuation has probability above `floor` there. It ignores whether continuations are valid: a model that ends every
sequence at once scores 1. So the share of valid ones is reported, too.

Distinction: prefixes with different states must have different futures. The boundary of two states in the world is the
set of shortest continuations that are possible after the first and not after the second. *Recall* is the share of it
that the model accepts after the first prefix and rejects after the second. The boundary of the model is a sample of
continuations of the first prefix, each cut where the model rejects it after the second. *Precision* is the share of it
that is possible after the first state and not after the second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from statewise.analysis.base import Analysis, Findings, Subject, finite_or_none
from statewise.analysis.world_models.trials import (
    TrialsConfig,
    by_length,
    count_trials,
    draw_up_to_end,
    floor_notes,
    mean_by,
    probabilities,
    share,
    unscored_notes,
)
from statewise.decoding.predictor import Predictor
from statewise.reporting.figures import Curve, Panel
from statewise.runtime.bounds import bounded
from statewise.runtime.messages import percent
from statewise.tasks.automaton import Automaton, accepted, automaton, completed, distinguishing, most_legal
from statewise.tasks.base import Task


@dataclass(frozen=True)
class CompressionConfig(TrialsConfig):
    """Options of `statewise analyze RUN compression`."""


class Compression(Analysis):
    """The share of pairs of prefixes with the same state that the model treats alike."""

    Config = CompressionConfig
    config: CompressionConfig

    @override
    def check(self, task: Task, predictor: Callable[[], Predictor]) -> None:
        automaton(task)

    def analyze(self, subject: Subject) -> Findings:
        """Metrics `sequence_compression` and `valid_continuations`, the share of sampled continuations that are valid
        to their end, with standard errors, and numbers of trials; both by prefix length as curves. If no continuation
        is valid, a note replaces `sequence_compression`."""
        config, world = self.config, automaton(subject.task)
        pairs = world.draw_pairs(np.random.default_rng([config.seed, 1]), config.trials, same_state=True)
        predictor, end = subject.snapshot.predictor, subject.task.end
        same, valid = np.empty(len(pairs), bool), np.empty(len(pairs))
        for rows in by_length(pairs.first):
            first, second = pairs.first[rows].tokens, pairs.second[rows].tokens
            which, states, tails = draw_up_to_end(predictor, world, first, end, config)
            lowest = np.array([shares.min(initial=1.0) for shares in probabilities(predictor, second, which, tails)])
            same[rows] = (lowest > config.floor).reshape(len(rows), -1).all(axis=1)
            right = completed(world, states, tails)
            valid[rows] = right.reshape(len(rows), -1).mean(axis=1)
        metrics = share("valid_continuations", valid) | count_trials(pairs)
        main, curves = ["valid_continuations"], []
        notes = [*unscored_notes(world), *floor_notes(most_legal(world, pairs.first), config.floor)]
        if valid.any():
            metrics = share("sequence_compression", same) | metrics
            main.insert(0, "sequence_compression")
            verdict = (
                f"The model treats {percent(same.mean())} of {len(pairs):,} pairs of prefixes that lead to one state "
                f"alike; {percent(valid.mean())} of its sampled continuations are valid."
            )
            curves.append(Curve("sequence compression", *mean_by(pairs.first.lengths, same)))
        else:
            verdict = (
                f"None of {len(pairs) * config.samples:,} continuations sampled from the model is valid, so nothing "
                "can be said about compression."
            )
            notes.append(
                f"none of the {len(pairs) * config.samples:,} sampled continuations is valid, so sequence compression "
                f"is meaningless: that {same.mean():.0%} of the pairs are treated alike says nothing about the world"
            )
        of_valid = Curve("valid continuations", *mean_by(pairs.first.lengths, valid))
        x_title = "prefix length (tokens)"
        return Findings(
            metrics,
            [
                Panel(x_title, "share of pairs treated alike", curves, shares=True),
                Panel(x_title, "share of valid continuations", [of_valid], shares=True),
            ],
            {"prefix_tokens": pairs.first.lengths.tolist(), "same": same.tolist(), "valid": valid.tolist()},
            notes,
            main=main,
            verdict=verdict,
        )


@dataclass(frozen=True)
class DistinctionConfig(TrialsConfig):
    """Options of `statewise analyze RUN distinction`."""

    length: int = 5
    """Longest continuations of the world's boundary, in tokens; it bounds recall. Continuations sampled for precision
    run to their end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        bounded(self, "length", at_least=1)


@dataclass
class Boundary:
    """Continuations in the boundaries of all trials: trial, length, and whether it is right."""

    trial: list[int]
    length: list[int]
    right: list[bool]

    def add(self, trial: int, length: int, right: bool) -> None:
        """Adds a continuation."""
        self.trial.append(trial)
        self.length.append(length)
        self.right.append(right)

    def by_trial(self, trials: int) -> np.ndarray:
        """(trials,) the share of each trial's boundary that is right; NaN if it is empty."""
        trial, right = np.array(self.trial, np.int64), np.array(self.right, float)
        count = np.bincount(trial, minlength=trials)
        with np.errstate(invalid="ignore"):
            shares: np.ndarray = np.bincount(trial, weights=right, minlength=trials) / count
        return shares


def _verdict(metrics: Mapping[str, float], pairs: int) -> str:
    precision, recall = (metrics.get(f"distinction_{name}") for name in ("precision", "recall"))
    text = f"Of {pairs:,} pairs of prefixes that lead to different states, the model distinguishes "
    text += (
        "none by any continuation"
        if precision is None
        else (f"pairs by continuations of which {percent(precision)} truly do (precision)")
    )
    if recall is None:
        return f"{text}; no continuation truly distinguishes them."
    return f"{text}; of those that truly do, it finds {percent(recall)} (recall)."


class Distinction(Analysis):
    """Precision and recall of the model's boundaries."""

    Config = DistinctionConfig
    config: DistinctionConfig

    @override
    def check(self, task: Task, predictor: Callable[[], Predictor]) -> None:
        automaton(task)

    def analyze(self, subject: Subject) -> Findings:
        """Metrics `distinction_precision` and `distinction_recall`, means over the trials with a boundary, with
        standard errors and the number of those trials; `..._empty_as_1` counts trials without one as 1, as the authors
        do."""
        config, world = self.config, automaton(subject.task)
        pairs = world.draw_pairs(np.random.default_rng([config.seed, 2]), config.trials, same_state=False)
        of_model, of_world = Boundary([], [], []), Boundary([], [], [])
        for rows in by_length(pairs.first):
            prefixes = pairs.first[rows].tokens, pairs.second[rows].tokens
            self._of_model(subject.snapshot.predictor, subject.task.end, world, prefixes, rows, of_model)
            self._of_world(subject.snapshot.predictor, world, prefixes, rows, of_world)
        metrics: dict[str, float] = {}
        curves, details, main = [], {}, []
        notes = [*unscored_notes(world), *floor_notes(most_legal(world, pairs.first), config.floor)]
        for name, boundary, whose in (("precision", of_model, "the model"), ("recall", of_world, "the world")):
            trials = boundary.by_trial(len(pairs))
            known = trials[~np.isnan(trials)]
            if len(known):
                metrics |= share(f"distinction_{name}", known)
                main.append(f"distinction_{name}")
            else:
                notes.append(f"{whose} distinguishes none of these pairs of states: {name} is undefined")
            metrics |= {
                f"distinction_{name}_empty_as_1": float(np.nan_to_num(trials, nan=1.0).mean()),
                f"distinction_{name}_trials": len(known),
            }
            curves.append(Curve(name, *mean_by(np.array(boundary.length), np.array(boundary.right))))
            details[name] = finite_or_none(trials)
        panel = Panel("continuation length (tokens)", "share of continuations", curves, shares=True)
        return Findings(
            metrics | count_trials(pairs), [panel], details, notes, main=main, verdict=_verdict(metrics, len(pairs))
        )

    def _of_model(
        self,
        predictor: Predictor,
        end: int | None,
        world: Automaton,
        prefixes: tuple[np.ndarray, np.ndarray],
        rows: np.ndarray,
        boundary_of_model: Boundary,
    ) -> None:
        which, _, tails = draw_up_to_end(predictor, world, prefixes[0], end, self.config)
        first, second = (world.states_after(side) for side in prefixes)
        cut: set[tuple[int, tuple[int, ...]]] = set()
        for row, tail, shares in zip(which.tolist(), tails, probabilities(predictor, prefixes[1], which, tails)):
            rejected = np.flatnonzero(shares <= self.config.floor)
            if len(rejected):
                cut.add((row, tuple(tail[: rejected[0] + 1].tolist())))
        for row, words in sorted(cut):
            tokens, pair = np.array([words]), slice(row, row + 1)
            right = accepted(world, first[pair], tokens).all() and not accepted(world, second[pair], tokens).all()
            boundary_of_model.add(int(rows[row]), len(words), bool(right))

    def _of_world(
        self,
        predictor: Predictor,
        world: Automaton,
        prefixes: tuple[np.ndarray, np.ndarray],
        rows: np.ndarray,
        boundary_of_world: Boundary,
    ) -> None:
        first, second = (world.states_after(side) for side in prefixes)
        longest = min(self.config.length, world.longest - prefixes[0].shape[1])
        boundaries = [distinguishing(world, *pair, longest) for pair in zip(first, second)]
        tails = [tail for boundary in boundaries for tail in boundary]
        which = np.repeat(np.arange(len(rows)), [len(boundary) for boundary in boundaries])
        accepts, rejects = (
            np.array([(shares > self.config.floor).all() for shares in probabilities(predictor, side, which, tails)])
            for side in prefixes
        )
        for row, tail, right in zip(which.tolist(), tails, (accepts & ~rejects).tolist() if len(tails) else ()):
            boundary_of_world.add(int(rows[row]), len(tail), right)
