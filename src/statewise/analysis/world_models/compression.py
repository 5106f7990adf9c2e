"""Sequence compression (Vafa et al. 2024; NextLat, table 1): prefixes with the same state must have the same future.

For two prefixes that lead to the same true state, all continuations sampled after the first must be possible after the
second: the score is 1 if every token of every continuation has probability above `floor` there. It ignores whether
continuations are valid: a model that ends every sequence at once scores 1. So the share of valid ones is reported, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from statewise.analysis.base import Analysis, Findings, Subject, percent
from statewise.analysis.world_models.continuations import by_length, draw_up_to_end, probabilities
from statewise.analysis.world_models.trials import (
    TrialsConfig,
    count_trials,
    floor_notes,
    mean_by,
    share,
    unscored_notes,
)
from statewise.decoding.predictor import Predictor
from statewise.reporting.figures import Curve, Panel
from statewise.tasks.automaton import automaton, completed, most_legal
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
