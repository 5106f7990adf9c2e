"""The accuracy of each equation of a solution (Teoh et al. 2026, figure 3a).

A model that does not plan cannot reach the target at the last equation, and writes one that does not hold. So the share
of correct equations by position shows how far ahead it plans.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from statewise.analysis.base import Analysis, Findings, Subject
from statewise.data_types import Completion
from statewise.reporting.figures import Curve, Panel
from statewise.runtime.bounds import bounded
from statewise.runtime.messages import percent


@dataclass(frozen=True)
class EquationsConfig:
    """Options of `statewise analyze RUN equations`."""

    sequences: int = 1000
    """Held-out problems."""

    def __post_init__(self) -> None:
        bounded(self, "sequences", at_least=1)


class Equations(Analysis):
    """Solves held-out problems greedily, and checks each equation independently of those before it."""

    Config = EquationsConfig
    config: EquationsConfig

    def analyze(self, subject: Subject) -> Findings:
        """All scores that the task gives, and its `equation_1_valid`, `equation_2_valid`, ... as a curve."""
        examples, task = subject.task.held_out(self.config.sequences), subject.task
        # Scoring an empty answer shows whether the task has the metric, before problems are solved.
        known = task.score(examples[:1], [Completion(np.empty(0, np.int64), 0.0)])
        names = [name for name in known if re.fullmatch(r"equation_\d+_valid", name)]
        if not names:
            raise ValueError("the answers of this run's task are not equations: it has no metric equation_1_valid")
        metrics = task.score(examples, subject.complete(examples))
        shares = [metrics[name] for name in names]
        curve = Curve(subject.snapshot.label, [float(number) for number in range(1, len(names) + 1)], shares)
        panel = Panel("equation", "share of equations that hold", [curve], shares=True)
        verdict = f"Of {len(examples):,} problems " + (
            f"{percent(metrics[task.headline.metric])} are solved; the first equation holds in {percent(shares[0])}, "
            f"the last in {percent(shares[-1])}."
        )
        return Findings(metrics | {"num": len(examples)}, [panel], verdict=verdict)
