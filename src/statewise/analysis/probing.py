"""What all probes have in common: they ask frozen states, and set the answers beside controls.

Controls are the same probes on a model of the same recipe that was never trained, on the same states with shuffled
labels, and the constant guess at the label that is most frequent in training.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from statewise.analysis.base import Analysis, Curve, Findings, Model, Panel, Role, Subject
from statewise.analysis.beliefs import states_of
from statewise.analysis.probe_fit import UNDEFINED, Answers, FitConfig, Sample, fit_and_answer, log_frequencies
from statewise.tasks.base import Task
from statewise.types import Examples

UNTRAINED = "untrained model"
VALIDATION_SHARE = 0.1
"""Of the training sequences: they choose at which step each probe is kept."""
FEWEST = 10
"""Training sequences without which a probe would mean nothing."""
DRAW, PLACE, SHUFFLE = 7001, 7002, 7003
"""Set the probes' random numbers apart from each other and from those of training."""


@dataclass(frozen=True)
class ProbingConfig(FitConfig):
    """Options of every probe."""

    sequences: int = 1000
    """Held-out sequences on which the probes are tested, if there are so many."""
    training_sequences: int = 10000
    """Sequences from the training side on which they are trained, if there are so many."""
    checkpoints: str | None = None
    """Other checkpoints to look at as well: all, or steps like 100,200."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sequences < 1:
            raise ValueError(f"sequences must be at least 1, not {self.sequences}")
        if self.training_sequences < FEWEST:
            raise ValueError(f"training_sequences must be at least {FEWEST}, not {self.training_sequences}")


@dataclass(frozen=True)
class Questions:
    """What P probes are asked about some examples, at m positions."""

    rows: np.ndarray
    """(m,) which example."""
    places: np.ndarray
    """(m,) the position after which the state is read."""
    labels: np.ndarray
    """(m, P) what each probe should say, or `UNDEFINED`."""
    x: np.ndarray
    """(m, P) under which place of the x axis the answer counts."""


class Probing(Analysis):
    """Reads states, trains probes on them, tests these on other sequences, and draws accuracy along an axis."""

    config: ProbingConfig
    x_name: str
    """What a place of the x axis is, in a word."""
    x_title: str

    def __init__(self, config: ProbingConfig) -> None:
        self.config = config

    @abstractmethod
    def ask(self, task: Task, examples: Examples, rng: np.random.Generator) -> Questions:
        """The questions about `examples`, with P the same at every call. Raises `ValueError` if there are none."""

    @abstractmethod
    def choose(self, train: Questions, answerable: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """(P',) the probes worth training, and notes on those left out. `answerable` (P,): there are labels to train
        and to test it with. Raises `ValueError` if none is left, or one that was asked for is not answerable."""

    def analyze(self, subject: Subject) -> Findings:
        """Metrics: `accuracy`, of the controls too, `cross_entropy`, and accuracy by place. Details: all numbers."""
        task, config = subject.task, self.config
        test, train = task.held_out(config.sequences), draw_training(task, config)
        asked = self.ask(task, test, np.random.default_rng([PLACE, config.seed, 1]))
        trained = self.ask(task, train, np.random.default_rng([PLACE, config.seed, 2]))
        validates = trained.rows >= len(train) - max(1, round(VALIDATION_SHARE * len(train)))
        parts_asked = (asked.labels, trained.labels[validates], trained.labels[~validates])
        answerable = np.logical_and.reduce([(labels != UNDEFINED).any(0) for labels in parts_asked])
        probes, notes = self.choose(trained, answerable)
        names, (known, expected) = number_labels(trained.labels[:, probes], asked.labels[:, probes])

        steps: dict[str, int | None] = {}
        states: dict[str, tuple[Tensor, Tensor]] = {}
        for model in self._models(subject):
            steps[model.label] = model.step
            of_train = states_of(model, train, trained.rows, trained.places)
            of_test = states_of(model, test, asked.rows, asked.places)
            states[model.label] = torch.from_numpy(of_train), torch.from_numpy(of_test)
        models = sorted((label for label in steps if label != UNTRAINED), key=lambda label: steps[label] or 0)
        groups = [*models, UNTRAINED, subject.model.label]  # the last with shuffled labels
        shuffled = known[np.random.default_rng([SHUFFLE, config.seed]).permutation(len(known))]
        labels = torch.from_numpy(np.stack([*[known] * (len(groups) - 1), shuffled]))

        def sample(which: int, rows: np.ndarray, labels: Tensor) -> Sample:
            index = torch.from_numpy(rows)
            chosen = {label: both[which][index].to(subject.device) for label, both in states.items()}
            return Sample([chosen[label] for label in groups], labels[:, index].to(subject.device))

        parts = (
            sample(0, np.flatnonzero(~validates), labels),
            sample(0, np.flatnonzero(validates), labels),
            sample(1, np.arange(len(expected)), torch.from_numpy(expected).expand(len(groups), -1, -1)),
        )
        with torch.autocast(torch.device(subject.device).type, enabled=False):  # of the model, not of its probes
            answers = fit_and_answer(*parts, len(names), config)
        result = Result(asked.x[:, probes], known[~validates], expected, answers, len(names))
        counts = {
            "probe_training_sequences": len(train),
            "probe_training_states": len(known),
            "held_out_sequences": len(test),
            "held_out_states": len(expected),
        }
        return self._findings(models.index(subject.model.label), {name: steps[name] for name in models}, result,
                              counts, notes)  # fmt: skip

    def _models(self, subject: Subject) -> Iterator[Model]:
        """The subject's model, those of the other checkpoints, each step once, and the untrained one: one after
        another, so that never two need be in memory."""
        yield subject.model
        seen = {subject.model.step}
        for model in subject.checkpoints(self.config.checkpoints) if self.config.checkpoints is not None else ():
            if model.step not in seen:
                seen.add(model.step)
                yield model
        yield dataclasses.replace(subject.untrained(), label=UNTRAINED)

    def _findings(
        self, chosen: int, models: dict[str, int | None], result: Result, counts: dict[str, int], notes: list[str]
    ) -> Findings:
        """`models` are the first groups of the result, with their steps; `chosen` is the subject's place in them."""
        x = [float(value) for value in result.axis]
        accuracy, nats = result.by_place(result.answers.right), result.by_place(result.answers.surprise)
        guess, guess_nats = result.constant_guess()
        accuracy, nats = np.vstack([accuracy, guess]), np.vstack([nats, guess_nats])
        metrics = {
            "accuracy": float(accuracy[chosen].mean()),
            "accuracy_untrained": float(accuracy[-3].mean()),
            "accuracy_shuffled": float(accuracy[-2].mean()),
            "accuracy_constant": float(accuracy[-1].mean()),
            "cross_entropy": float(nats[chosen].mean()),
        }
        metrics |= {f"accuracy_{self.x_name}_{value}": float(y) for value, y in zip(result.axis, accuracy[chosen])}
        labels = [*models, UNTRAINED, "shuffled labels", "most frequent label"]
        lines = [
            {"label": label, "step": models.get(label), "accuracy": right.tolist(), "cross_entropy": lost.tolist()}
            for label, right, lost in zip(labels, accuracy, nats)
        ]
        details = {
            **counts,
            "classes": result.classes,
            "axis": self.x_name,
            "x": result.axis.tolist(),
            "labels_tested": result.count.tolist(),
            "lines": lines,
        }
        role: Role = "series" if len(models) > 1 else "line"
        panels = [
            Panel(
                self.x_title,
                title,
                [Curve(label, x, y.tolist(), role if label in models else "control") for label, y in zip(labels, ys)],
                shares=ys is accuracy,
            )
            for title, ys in (("accuracy", accuracy), ("cross-entropy (nats)", nats))
        ]
        if len(models) > 1:
            steps = [float(step or 0) for step in models.values()]
            curves = [
                Curve(f"{self.x_name} {value}", steps, ys.tolist(), "series")
                for value, ys in zip(result.axis, accuracy[: len(models)].T)
            ]
            panels.append(Panel("training step", "accuracy", curves, shares=True))
        return Findings(metrics, panels, details, notes)


@dataclass(frozen=True)
class Result:
    """The answers of G groups of probes, P each, and what they are measured against."""

    x: np.ndarray
    """(n, P) place of the x axis under which each answer counts."""
    known: np.ndarray
    """(m, P) labels in training."""
    expected: np.ndarray
    """(n, P) true labels in the test."""
    answers: Answers
    classes: int

    @property
    def axis(self) -> np.ndarray:
        """(X,) places of the x axis."""
        return np.unique(self.x[self.expected != UNDEFINED])

    @property
    def count(self) -> np.ndarray:
        """(X,) labels tested under each place."""
        defined = self.expected != UNDEFINED
        return np.bincount(np.searchsorted(self.axis, self.x[defined]), minlength=len(self.axis))

    def by_place(self, values: np.ndarray) -> np.ndarray:
        """Means (..., X) of `values` (..., n, P) over the labels that count under each place."""
        defined = self.expected != UNDEFINED
        cells = np.searchsorted(self.axis, self.x[defined])
        flat = values[..., defined].reshape(-1, len(cells))
        sums = np.stack([np.bincount(cells, weights=row, minlength=len(self.axis)) for row in flat])
        return (sums / self.count).reshape(*values.shape[:-2], -1)

    def constant_guess(self) -> tuple[np.ndarray, np.ndarray]:
        """Accuracy and nats (X,) of whoever knows nothing but how frequent each label is in training."""
        log_shares = log_frequencies(torch.from_numpy(self.known)[None], self.classes)[0].numpy()
        each = np.arange(len(log_shares))
        right = self.expected == log_shares.argmax(1)
        nats = -log_shares[each, np.maximum(self.expected, 0)]
        return self.by_place(right), self.by_place(nats)


def draw_training(task: Task, config: ProbingConfig) -> Examples:
    """Examples from the training side, none twice if that is a fixed set. Raises `ValueError` if there are too few."""
    rng = np.random.default_rng([DRAW, config.seed])
    every = task.training()
    if every is None:
        return task.sample(rng, config.training_sequences)
    if len(every) < FEWEST:
        raise ValueError(f"the training set has {len(every)} sequences: a probe needs at least {FEWEST} to learn from")
    return every[rng.permutation(len(every))[: config.training_sequences]]


def number_labels(*arrays: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """The different labels of all `arrays`, and each array with the labels' places among them."""
    names = np.unique(np.concatenate([labels[labels != UNDEFINED] for labels in arrays]))
    numbered = [np.where(labels == UNDEFINED, UNDEFINED, np.searchsorted(names, labels)) for labels in arrays]
    return names, numbered
