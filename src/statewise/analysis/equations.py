"""At which equation a model goes wrong (Teoh et al. 2026, figure 3a).

A model that does not plan notices only at the last equation that it cannot reach the target, and writes one that does
not hold. So the share of equations that hold, one after another, says how far ahead it looked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from statewise.analysis.base import Analysis, Curve, Findings, Panel, Subject
from statewise.types import Completion


@dataclass(frozen=True)
class EquationsConfig:
    """Options of `statewise analyze RUN equations`."""

    sequences: int = 1000
    """Held-out problems that are solved."""

    def __post_init__(self) -> None:
        if self.sequences < 1:
            raise ValueError(f"sequences must be at least 1, not {self.sequences}")


class Equations(Analysis):
    """Solves held-out problems greedily and looks at each equation by itself, whatever stands before it."""

    Config = EquationsConfig

    def __init__(self, config: EquationsConfig) -> None:
        self.config = config

    def analyze(self, subject: Subject) -> Findings:
        """All scores that the task gives, and its `equation_1_valid`, `equation_2_valid`, ... as a curve."""
        examples, task = subject.task.held_out(self.config.sequences), subject.task
        # An empty answer has every metric that an answer has: whether the task fits is known before it is solved.
        known = task.score(examples[:1], [Completion(np.empty(0, np.int64), 0.0)])
        names = [name for name in known if re.fullmatch(r"equation_\d+_valid", name)]
        if not names:
            raise ValueError("the answers of this run's task are no equations: those of the task countdown are")
        metrics = task.score(examples, subject.complete(examples))
        shares = [metrics[name] for name in names]
        curve = Curve(subject.model.label, [float(place) for place in range(1, len(names) + 1)], shares)
        return Findings(metrics | {"num": len(examples)}, [Panel("equation", "share that holds", [curve], shares=True)])
