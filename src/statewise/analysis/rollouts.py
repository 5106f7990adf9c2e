"""Learned dynamics rolled out along true tokens: the states that they reach, and the answers that are read off these.

Rollout drift: after each step the state is compared with that of the backbone at the position (Teoh et al. 2026: the
parts of their loss by step, and how many drafts are accepted).

Dynamics accuracy: the dynamics as a recurrent network. The backbone reads a few tokens, the dynamics the others.
Answers are read off their states and compared with those of the backbone on the same sequences, also on longer ones
than were trained (Teoh et al. 2026, v4, figure 10: products of permutations).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F
from typing_extensions import override

from statewise.analysis.base import Analysis, Findings, Subject
from statewise.batch import Batch
from statewise.data_types import Examples
from statewise.decoding.predictor import Predictor, StateDynamics, require
from statewise.reporting.figures import Curve, Panel
from statewise.runtime.bounds import bounded
from statewise.runtime.messages import percent, short
from statewise.tasks.base import Task
from statewise.tasks.batches import blocks, collate, rows_at_once

DRIFT_ROWS = 16
"""Sequences read at a time."""


@dataclass(frozen=True)
class RolloutDriftConfig:
    """Options of `statewise analyze RUN rollout-drift`."""

    steps: int = 8
    """Maximum number of steps of the dynamics."""
    sequences: int = 64
    """Held-out sequences."""

    def __post_init__(self) -> None:
        bounded(self, "steps", "sequences", at_least=1)


class RolloutDrift(Analysis):
    """Distance, divergence, norm and accepted drafts of rolled-out states, by number of steps."""

    Config = RolloutDriftConfig
    config: RolloutDriftConfig

    @override
    def check(self, task: Task, predictor: Callable[[], Predictor]) -> None:
        require(predictor(), StateDynamics)

    def analyze(self, subject: Subject) -> Findings:
        """Metrics after k steps, means over all positions of a document: `step_k_latent`, smooth L1 per element to the
        backbone's state; `step_k_kl`, the divergence of the next-token distribution from the backbone's, in nats;
        `step_k_norm`, the Euclidean norm of the state; `step_k_greedy` and `step_k_sampled`, the probability that a
        token drafted from the state is accepted by greedy speculative decoding, and by speculative sampling at
        temperature 1 (Leviathan et al. 2023: the sum of the smaller probabilities), if all tokens before it were."""
        predictor = subject.snapshot.predictor
        dynamics = require(predictor, StateDynamics)
        sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * (self.config.steps + 1))
        counts = [0] * (self.config.steps + 1)
        examples = subject.task.held_out(self.config.sequences)
        few = rows_at_once(examples.tokens.shape[1], predictor.vocabulary, DRIFT_ROWS)
        for _, part in blocks(examples, few):
            _add(predictor, dynamics, collate(part), self.config.steps, sums, counts)
        reached = [step for step in range(1, self.config.steps + 1) if counts[step]]
        if not reached:
            raise ValueError("the held-out sequences have one token each: dynamics need at least two")
        means = {
            name: {step: by_step[step] / counts[step] for step in range(len(counts)) if counts[step]}
            for name, by_step in sums.items()
        }
        metrics = {f"step_{step}_{name}": means[name][step] for name in MEASURES for step in reached}
        metrics["state_norm"] = means["norm"][0]
        x = [float(step) for step in reached]

        def curve(name: str, label: str) -> Curve:
            return Curve(label, x, [means[name][step] for step in reached])

        norm = [0.0, *x]
        panels = [
            Panel("steps of the dynamics", "smooth L1 per element", [curve("latent", "rolled-out states")]),
            Panel("steps of the dynamics", "KL (nats)", [curve("kl", "rolled-out states")]),
            Panel(
                "steps of the dynamics",
                "norm of the state",
                [
                    Curve("rolled-out states", norm, [means["norm"][int(step)] for step in norm]),
                    Curve("the backbone's", norm, [means["norm"][0]] * len(norm), "control"),
                ],
            ),
            Panel(
                "steps of the dynamics",
                "drafted tokens accepted",
                [curve("greedy", "greedy"), curve("sampled", "temperature 1")],
                shares=True,
            ),
        ]
        far = reached[-1]
        verdict = (
            "Greedy decoding would accept the token drafted from the dynamics' state after 1 step at "
            f"{percent(metrics['step_1_greedy'])} of the positions"
            + (f", after {far:,} steps at {percent(metrics[f'step_{far}_greedy'])}" if far > 1 else "")
            + "; it always accepts the token of the backbone's own state."
        )
        return Findings(
            metrics, panels, verdict=verdict, main=["step_1_greedy", f"step_{reached[-1]}_greedy", "step_1_kl"]
        )


MEASURES = ("latent", "kl", "norm", "greedy", "sampled")
"""Names of the measures of each step."""


@torch.no_grad()
def _add(
    predictor: Predictor,
    dynamics: StateDynamics,
    batch: Batch,
    steps: int,
    sums: dict[str, list[float]],
    counts: list[int],
) -> None:
    """Adds the measures of a batch to `sums`, by name and step, and the numbers of positions to `counts`."""
    states, predicted = predictor.states(batch).state, predictor.logits(batch).log_softmax(-1)
    batch = batch.to(states.device)
    real = batch.real
    sums["norm"][0] += float(states.float().norm(dim=-1)[real].sum())
    counts[0] += int(real.sum())
    rolled, documents = states, batch.documents
    for step in range(1, min(steps, states.shape[1] - 1) + 1):
        before = rolled[:, :-1]
        rolled = dynamics.advance(before.flatten(0, 1), batch.tokens[:, step:].flatten()).view_as(before)
        whole = real[:, :-step] & real[:, step:]
        if documents is not None:
            whole &= documents[:, :-step] == documents[:, step:]
        ahead, true, wanted = rolled[whole], states[:, step:][whole], predicted[:, step:][whole]
        drafted = dynamics.read_states(ahead).log_softmax(-1)
        measures = {
            "latent": F.smooth_l1_loss(ahead.float(), true.float(), reduction="none").mean(-1),
            "kl": (wanted.exp() * (wanted - drafted)).sum(-1),
            "norm": ahead.float().norm(dim=-1),
            "greedy": drafted.argmax(-1) == wanted.argmax(-1),
            "sampled": torch.minimum(drafted, wanted).exp().sum(-1),
        }
        for name, values in measures.items():
            sums[name][step] += float(values.sum())
        counts[step] += len(ahead)


ROWS = 256
"""Sequences read at a time."""
POINTS = 32
"""Maximum number of points of a curve: neighbouring numbers of tokens are pooled."""


@dataclass(frozen=True)
class DynamicsAccuracyConfig:
    """Options of `statewise analyze RUN dynamics-accuracy`."""

    by: str | None = None
    """Another test set of the task, an option of `evaluate` and its value, such as `length=64,128` or `reveals=0.02`;
    null: twice the length of the test set's longest sequence, four times, and so on up to the model's context, where
    the task has test sets by length."""
    sequences: int = 1000
    """Maximum number of held-out sequences of the test set, and of each other length."""
    read: int = 1
    """Tokens that the backbone reads; the dynamics read the others."""

    def __post_init__(self) -> None:
        bounded(self, "sequences", at_least=1, at_most=10**7)
        bounded(self, "read", at_least=1, at_most=10**6)
        if self.by is not None and not all(part.strip() for part in self.by.partition("=")):
            raise ValueError(
                f"by must be an option of a test set and its value, such as length=64,128, not {short(self.by)}"
            )


class DynamicsAccuracy(Analysis):
    """Accuracy of scored tokens by the number of tokens before them, of the dynamics and of the backbone."""

    Config = DynamicsAccuracyConfig
    config: DynamicsAccuracyConfig

    @override
    def check(self, task: Task, predictor: Callable[[], Predictor]) -> None:
        require(predictor(), StateDynamics)

    def analyze(self, subject: Subject) -> Findings:
        """Metrics, over the scored tokens before which the dynamics have read at least one token: `dynamics` and
        `backbone`, the share of the test set's where the most likely token is the true one; `dynamics_other` and
        `backbone_other`, of the other test set, or of longer sequences; of several lengths also `dynamics_length_64`
        and so on. The backbone has read all tokens before, the dynamics start from its state after the first `read`
        ones."""
        predictor, task = subject.snapshot.predictor, subject.task
        dynamics = require(predictor, StateDynamics)
        trained = task.held_out(self.config.sequences)
        if trained.documents is not None:
            raise ValueError(
                "rows of this task hold several documents, and dynamics are rolled along one sequence per row"
            )
        read, vocabulary, longest = self.config.read, len(task.vocab), int(trained.lengths.max())
        own = _answers(predictor, dynamics, trained, vocabulary, read)
        others = {
            length: _answers(predictor, dynamics, examples, vocabulary, read)
            for length, examples in self._others(task, trained)
        }
        if not len(own.before):
            raise ValueError(
                f"no scored token of the test set, whose sequences have at most {longest} tokens, comes after the "
                f"dynamics' first: set read, {self.config.read}, lower"
            )
        metrics = _shares("", [own])
        if others:
            metrics |= _shares("_other", list(others.values()))
        if len(others) > 1:
            for length, answers in others.items():
                metrics |= _shares(f"_length_{length}", [answers])
        counts = {
            "test set": len(own.before),
            **{str(length): len(answers.before) for length, answers in others.items()},
        }
        details = {"read": read, "by": self.config.by, "longest": longest, "answers": counts}
        marked = longest if any(length > longest for length in others) else None
        panel = _panel(_Answers.joined([own, *others.values()]), marked, task.chance.get("accuracy"))
        main: list[str] = [
            key for key in ("dynamics", "dynamics_other", "backbone", "backbone_other") if key in metrics
        ]
        verdict = self._verdict(metrics, sorted(others), task.chance.get("accuracy"))
        return Findings(metrics, [panel], details, main=main, verdict=verdict)

    def _verdict(self, metrics: Mapping[str, float], others: Sequence[int], chance: float | None) -> str:
        text = (
            f"On the test set the dynamics alone get {percent(metrics['dynamics'])} right, the backbone "
            f"{percent(metrics['backbone'])}"
        )
        if "dynamics_other" in metrics:
            which = (
                f"with {self.config.by}" if self.config.by else f"of {' and '.join(f'{n:,}' for n in others)} tokens"
            )
            text += (
                f"; on sequences {which} {percent(metrics['dynamics_other'])} and {percent(metrics['backbone_other'])}"
            )
        return f"{text}{'' if chance is None else f'; chance is {percent(chance)}'}."

    def _others(self, task: Task, trained: Examples) -> Iterator[tuple[int, Examples]]:
        """Other test sets by length. Raises `ValueError` if the task lacks the requested one."""
        if self.config.by is not None:
            option, _, value = (part.strip() for part in self.config.by.partition("="))
            examples = task.held_out_by(option, value, self.config.sequences)
            for length in np.unique(examples.lengths):
                yield int(length), examples[np.flatnonzero(examples.lengths == length)]
        elif "length" in task.other_held_out:
            length = 2 * int(trained.lengths.max())
            while length <= task.context:
                yield length, task.held_out_by("length", str(length), self.config.sequences)
                length *= 2


@dataclass(frozen=True)
class _Answers:
    """Scored tokens of several sequences."""

    before: np.ndarray
    """(n,) number of tokens before each."""
    right: dict[str, np.ndarray]
    """(n,) bool: whether the most likely token is the true one; `dynamics` and `backbone`."""

    @classmethod
    def joined(cls, parts: Sequence[_Answers]) -> _Answers:
        """The tokens of one or more parts together."""
        return cls(
            np.concatenate([part.before for part in parts]),
            {name: np.concatenate([part.right[name] for part in parts]) for name in parts[0].right},
        )


def _answers(predictor: Predictor, dynamics: StateDynamics, examples: Examples, vocabulary: int, read: int) -> _Answers:
    rows = rows_at_once(examples.tokens.shape[1], vocabulary, ROWS)
    return _Answers.joined([_of_batch(predictor, dynamics, collate(part), read) for _, part in blocks(examples, rows)])


@torch.no_grad()
def _of_batch(predictor: Predictor, dynamics: StateDynamics, batch: Batch, read: int) -> _Answers:
    """The scored tokens of a batch after the dynamics' first step, the columns one after another."""
    logits = predictor.logits(batch)
    tokens, scored = batch.tokens.to(logits.device), batch.scored
    before: list[np.ndarray] = [np.empty(0, np.int64)]
    right: dict[str, list[np.ndarray]] = {name: [np.empty(0, bool)] for name in ("dynamics", "backbone")}
    if read < batch.span[1] - 1:
        state = predictor.states(batch).state[:, read - 1]
        for place in range(read, batch.span[1] - 1):
            state = dynamics.advance(state, tokens[:, place])
            rows = scored[:, place + 1].nonzero()[:, 0].to(logits.device)
            if not len(rows):
                continue
            wanted = tokens[rows, place + 1]
            predicted = {"dynamics": dynamics.read_states(state[rows]), "backbone": logits[rows, place]}
            before.append(np.full(len(rows), place + 1))
            for name, values in predicted.items():
                right[name].append((values.argmax(-1) == wanted).cpu().numpy())
    return _Answers(np.concatenate(before), {name: np.concatenate(values) for name, values in right.items()})


def _shares(suffix: str, parts: Sequence[_Answers]) -> dict[str, float]:
    answers = _Answers.joined(parts)
    return {f"{name}{suffix}": float(right.mean()) for name, right in answers.right.items() if len(right)}


def _panel(answers: _Answers, trained: int | None, chance: float | None) -> Panel:
    """Accuracy by number of tokens before the answer; beyond `POINTS` numbers, neighbours are pooled. `trained`:
    the longest sequence of training, where longer ones follow."""
    least, most = int(answers.before.min()), int(answers.before.max())
    width = -(-(most - least + 1) // POINTS)
    pool = (answers.before - least) // width
    kept = np.unique(pool)
    x = [float(answers.before[pool == one].mean()) for one in kept]
    curves = [
        Curve(name, x, [float(right[pool == one].mean()) for one in kept])
        for name, right in (("dynamics alone", answers.right["dynamics"]), ("backbone", answers.right["backbone"]))
    ]
    ends = [float(least), float(most)]
    if trained is not None:
        curves.append(Curve("length of training", [float(trained)] * 2, [0.0, 1.0], "control"))
    if chance is not None:
        curves.append(Curve("chance", ends, [chance] * 2, "control"))
    return Panel("tokens read", "accuracy", curves, shares=True)
