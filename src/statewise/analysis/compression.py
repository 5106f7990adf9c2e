"""Sequence compression (Vafa et al. 2024; NextLat, table 1): two pasts that come to the same must have one future.

Two prefixes lead to one true state. Continuations drawn after the first must all be possible after the second: score 1
if every token of every continuation has more than `floor` probability there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from statewise.analysis.base import Analysis, Curve, Findings, Panel, Subject
from statewise.analysis.following import by_length, draw, probabilities
from statewise.analysis.trials import TrialsConfig, count_trials, mean_by, share
from statewise.tasks.automaton import automaton


@dataclass(frozen=True)
class CompressionConfig(TrialsConfig):
    """Options of `statewise analyze RUN compression`."""


class Compression(Analysis):
    """The share of pairs of prefixes to one state that the model treats as one."""

    Config = CompressionConfig

    def __init__(self, config: CompressionConfig) -> None:
        self.config = config

    def analyze(self, subject: Subject) -> Findings:
        """Metrics `sequence_compression` and its standard error, and trials asked and made; by prefix length as a
        curve."""
        config, world = self.config, automaton(subject.task)
        pairs = world.draw_pairs(np.random.default_rng([config.seed, 1]), config.trials, alike=True)
        predictor, end = subject.model.predictor, subject.task.end
        same = np.empty(len(pairs), bool)
        for rows in by_length(pairs.first):
            first, second = pairs.first[rows].tokens, pairs.second[rows].tokens
            limit = world.longest - first.shape[1]
            drawn = draw(predictor, first, config.samples, limit=limit, end=end, floor=config.floor, seed=config.seed)
            tails = [tail for of_one in drawn for tail in of_one]
            which = np.repeat(np.arange(len(rows)), config.samples)
            lowest = np.array([given.min() for given in probabilities(predictor, second, which, tails)])
            same[rows] = (lowest > config.floor).reshape(len(rows), -1).all(axis=1)
        lengths, means = mean_by(pairs.first.lengths, same)
        curve = Curve("sequence compression", lengths, means)
        return Findings(
            share("sequence_compression", same) | count_trials(pairs),
            [Panel("tokens of the prefixes", "share of pairs", [curve], shares=True)],
            {"prefix_tokens": pairs.first.lengths.tolist(), "same": same.tolist()},
            main=["sequence_compression"],
        )
