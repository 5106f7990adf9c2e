"""Histories of a POMDP: actions and observations in turn, the observations scored; the belief about its state is known.

Nothing is held out, as in the task `hmm`. As many beliefs are the same after different histories, and only past tokens
choose an action, the belief after a history is exact whatever the policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from typing_extensions import override

from statewise.beliefs.pomdp import Acted, Policy, Pomdp, pomdp
from statewise.beliefs.pomdp_files import SHAPE, as_json, of_content, read_pomdp
from statewise.data_types import Examples
from statewise.runtime.bounds import bounded
from statewise.runtime.messages import short
from statewise.tasks.base import Kept, kept_json
from statewise.tasks.hmm import ProcessTask

FILE = "problem.json"


@dataclass(frozen=True)
class PomdpConfig:
    """Fields of `task: pomdp`."""

    problem: str = "tiger"
    """The problem: tiger, grid."""
    path: str | None = None
    """A file in Cassandra's .pomdp format, or JSON, with your own problem, instead of `problem`."""
    policy: str = "random"
    """What chooses actions: `random`; `qmdp`, the best action if the state were known from the next step on; or one
    probability for each action, such as `0.8,0.1,0.1`."""
    explore: float = 0.1
    """Probability that an action is random in place of one of `qmdp`."""
    steps: int = 12
    """Actions of a sequence; an observation follows each."""
    bos: bool = True
    """Whether a sequence begins with the additional token <bos>."""
    held_out_sequences: int = 2000
    """Size of the fixed test set."""
    data_seed: int = 0
    """Seed of the fixed test set."""

    def __post_init__(self) -> None:
        bounded(self, "steps", prefix="task.", at_least=1, at_most=50_000)
        bounded(self, "explore", prefix="task.", at_least=0, at_most=1)
        bounded(self, "held_out_sequences", prefix="task.", at_least=1, at_most=10**8)
        bounded(self, "data_seed", prefix="task.", at_least=0)


class PomdpTask(ProcessTask):
    """The text of a sequence is the names of its actions and observations, separated by spaces. Beliefs are about the
    state of the world; states are compared with those after observations."""

    Config = PomdpConfig
    config: PomdpConfig
    process: Acted

    def __init__(self, config: PomdpConfig, kept: Kept | None = None) -> None:
        self.config = config
        self._problem_json: bytes | None = None
        if config.path is None:
            problem = pomdp(config.problem)
        else:
            if kept is not None:
                problem = of_content(kept_json(kept, FILE, SHAPE), f"task/{FILE} of this run")
            else:
                problem = read_pomdp(Path(config.path))
            self._problem_json = as_json(problem)
        policy = self._policy(problem)
        self.process = problem.process(policy, config.explore if config.policy == "qmdp" else 0.0)
        self._prepare(config.path or config.problem, 2 * config.steps, config.bos)
        states = len(problem.state_names)
        self.widths, self.dimensions, self.joint_states = [states], [states - 1], states
        if len(problem.observation_names) < 2:
            raise ValueError(f"{self.what}: the problem has only one observation: there is nothing to predict")

    def _policy(self, problem: Pomdp) -> Policy | Sequence[float] | None:
        text = self.config.policy
        if text == "random":
            return None
        if text == "qmdp":
            return problem.qmdp()
        try:
            return [float(share) for share in text.split(",")]
        except ValueError:
            raise ValueError(
                f"task.policy must be random, qmdp, or one probability for each of the "
                f"{len(problem.action_names)} actions, such as 0.8,0.1,0.1, not {short(text)}"
            ) from None

    def files(self) -> dict[str, bytes]:
        """The problem, if it is the user's own."""
        return {} if self._problem_json is None else {FILE: self._problem_json}

    @override
    def _with_scored(self, examples: Examples) -> Examples:
        """Observations are scored."""
        seen = (examples.tokens >= self.process.actions) & (examples.tokens < self.process.vocabulary)
        there = np.arange(examples.tokens.shape[1]) < examples.lengths[:, None]
        return replace(examples, scored=seen & there)

    @override
    def predicting(self, columns: np.ndarray) -> np.ndarray:
        """Actions are followed by observations."""
        read = columns - self.opening
        predicting: np.ndarray = (read >= 0) & (read % 2 == 0) & (read < self.row_length)
        return predicting

    @override
    def compared(self, columns: np.ndarray) -> np.ndarray:
        compared: np.ndarray = (columns - self.opening) % 2 == 1
        return compared

    @override
    def foretold(self, examples: Examples) -> np.ndarray:
        """The distribution of the next observation after each action."""
        return self.process.foretold(self._walk(examples)[0])

    @override
    def longer(self, tokens: int) -> str:
        return f"--task.steps {-(-tokens // 2)}"

    @override
    def baselines(self, examples: Examples) -> dict[str, dict[str, float]]:
        """`exact belief`: the best prediction of observations; `last action`: that from the action alone, as if it were
        the first."""
        metrics = self._scores(examples, self.next_tokens(examples)[:, :-1], "exact belief")
        first, _ = self.process.update(
            np.tile(self.process.start, (self.process.actions, 1)), np.arange(self.process.actions)
        )
        after = np.concatenate([self.process.next_tokens(first), np.zeros((len(self.vocab), self.process.vocabulary))])
        return metrics | self._scores(examples, after[examples.tokens[:, :-1]], "last action")
