"""The common part of all probes: trains them on frozen states, and compares them with controls.

Controls are the same probes on an untrained model of the same recipe, the same probes with shuffled labels, and the
constant guess of the most frequent training label.
"""

from __future__ import annotations

import dataclasses
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from statewise.analysis.base import Analysis, Findings, Snapshot, Subject
from statewise.analysis.beliefs.vectors import is_several, layer_widths, states_of
from statewise.analysis.probes.fit import UNDEFINED, Answers, FitConfig, Sample, fit_and_answer, log_frequencies
from statewise.data_types import Examples
from statewise.reporting.figures import Curve, Panel, Role, over_steps
from statewise.runtime.bounds import bounded
from statewise.runtime.messages import counted, percent
from statewise.tasks.base import Task
from statewise.tasks.holding_out import hash_prefixes
from statewise.tasks.permutation import shuffled

UNTRAINED = "untrained model"
VALIDATION_SHARE = 0.1
"""Share of the training sequences used for validation, which selects the step at which each probe is kept."""
FEW = 30
"""A note mentions accuracies on fewer labels."""
FEWEST = 10
"""Minimum number of training sequences."""
TEST, VALIDATION, TRAINING = 0, 1, 2
TEST_SHARE = 0.25
"""Share of the distinct prefixes on which probes are tested."""
FEWEST_PREFIXES = 40
"""Minimum number of distinct prefixes if they are split."""
OTHER_PREFIXES = (
    "the task holds out no sequences: probes are tested on states after other prefixes than they are trained on, and "
    "only on labels that occur after these"
)
ALL_KNOWN = (
    "nearly all held-out states follow prefixes that training sequences have, too: probes are tested on states after "
    "other prefixes than they are trained on, and only on labels that occur after these"
)
TOO_FEW = (
    "the sequences have few different prefixes, all trained on: probes can know all states that they are tested on"
)
DRAW, POSITION, SHUFFLE = 7001, 7002, 7003
"""Keys that make the probes' random numbers independent of each other and of training."""


@dataclass(frozen=True)
class ProbingConfig(FitConfig):
    """Options of every probe."""

    sequences: int = 1000
    """Maximum number of held-out sequences on which probes are tested."""
    training_sequences: int = 10000
    """Maximum number of sequences from the training set on which probes are trained."""
    checkpoints: str | None = None
    """Further checkpoints to probe: all, or steps like 100,200."""
    layer: str | None = None
    """Activation to probe instead of the belief state: a name, such as blocks.2.hook_resid_post; each name that matches
    a pattern (`*`: any text); each layer separately (all); or all layers concatenated (concat)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        bounded(self, "sequences", at_least=1)
        bounded(self, "training_sequences", at_least=FEWEST, at_most=10**7)


@dataclass(frozen=True)
class LabelledStates:
    """The m states to probe, with the labels of P probes."""

    rows: np.ndarray
    """(m,) the example of each state."""
    positions: np.ndarray
    """(m,) the position after which it is read."""
    labels: np.ndarray
    """(m, P) the label that each probe is to predict, or `UNDEFINED`."""
    x: np.ndarray
    """(m, P) the x value of each answer."""

    def __getitem__(self, chosen: np.ndarray) -> LabelledStates:
        """The `chosen` states, (m,) bool."""
        return LabelledStates(self.rows[chosen], self.positions[chosen], self.labels[chosen], self.x[chosen])


@dataclass(frozen=True)
class ProbeLabels:
    """The labels for training and testing probes, for all models and layers."""

    x: np.ndarray
    """(n, P) the x value of each answer."""
    known: np.ndarray
    """(m, P) training labels, those for validation included."""
    expected: np.ndarray
    """(n, P) test labels."""
    validates: np.ndarray
    """(m,) whether a training label is for validation."""
    classes: int
    counts: dict[str, int]
    """Numbers of sequences and of states, for the report."""
    notes: list[str]


States = dict[str, tuple[Tensor, Tensor]]
"""Training and test states of each snapshot, by its label."""


class Probing(Analysis):
    """Trains probes on states, tests them on held-out sequences, and plots accuracy along an axis."""

    config: ProbingConfig
    x_name: str
    """Name of an x value, in one word."""
    x_title: str
    target: str
    """What probes predict, in the plural and with its article."""
    of_prefix = True
    """Whether the prefix alone determines the label, so that a probe trained on the same prefix knows it."""

    @abstractmethod
    def labelled_states(self, task: Task, examples: Examples, rng: np.random.Generator) -> LabelledStates:
        """The states of `examples` to probe; P is the same in every call. Raises `ValueError` if it has
        no state to probe."""

    @abstractmethod
    def choose(self, train: LabelledStates, answerable: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """(P',) the probes to train, and notes on those left out. `answerable` (P,): there are labels for training,
        validation and test. Raises `ValueError` if no probe is left, or a requested one is not answerable."""

    def analyze(self, subject: Subject) -> Findings:
        """Metrics: `accuracy`, also of the controls, `cross_entropy`, and accuracy by x value. For several layers:
        `accuracy_LAYER`, and `accuracy_untrained_LAYER` of the untrained model."""
        task, config, layer = subject.task, self.config, self.config.layer
        widths = {}
        if layer is not None and is_several(layer):
            widths = layer_widths(subject.snapshot, task.held_out(1), layer)
        test, train = task.held_out(config.sequences), draw_training(task, config.seed, config.training_sequences)
        test_states = self.labelled_states(task, test, np.random.default_rng([POSITION, config.seed, 1]))
        train_states = self.labelled_states(task, train, np.random.default_rng([POSITION, config.seed, 2]))
        validates = train_states.rows >= len(train) - max(1, round(VALIDATION_SHARE * len(train)))
        split_notes: list[str] = []
        if len(test_states.rows):
            test_states, train_states, validates, split_notes = self._split(
                task, test, test_states, train, train_states, validates
            )
        labels_by_part = (test_states.labels, train_states.labels[validates], train_states.labels[~validates])
        answerable = np.logical_and.reduce([(labels != UNDEFINED).any(0) for labels in labels_by_part])
        probes, notes = self.choose(train_states, answerable)
        notes = [*notes, *split_notes]
        names, (known, expected) = number_labels(train_states.labels[:, probes], test_states.labels[:, probes])
        counts = {
            "probe_training_sequences": len(train),
            "probe_training_states": len(known),
            "held_out_sequences": len(test),
            "held_out_states": len(expected),
        }
        target = ProbeLabels(test_states.x[:, probes], known, expected, validates, len(names), counts, notes)

        steps: dict[str, int | None] = {}
        states: States = {}
        for snapshot in self._snapshots(subject):  # each is read once, for all layers
            steps[snapshot.label] = snapshot.step
            of_train = states_of(snapshot, train, train_states.rows, train_states.positions, layer)
            of_test = states_of(snapshot, test, test_states.rows, test_states.positions, layer)
            states[snapshot.label] = torch.from_numpy(of_train), torch.from_numpy(of_test)
        if not widths:
            return self._probe(subject, target, steps, states)
        by_name, first = {}, 0
        for name, width in widths.items():
            columns = slice(first, first + width)
            mine = {label: (of_train[:, columns], of_test[:, columns]) for label, (of_train, of_test) in states.items()}
            by_name[name] = self._probe(subject, target, steps, mine)
            first += width
        return by_layer(by_name)

    def _split(
        self,
        task: Task,
        test: Examples,
        test_states: LabelledStates,
        train: Examples,
        train_states: LabelledStates,
        validates: np.ndarray,
    ) -> tuple[LabelledStates, LabelledStates, np.ndarray, list[str]]:
        """States for test and for training, which of the latter are for validation, and notes. Where labels are
        `of_prefix`, no state for test or validation follows a prefix that is trained on."""
        if not task.disjoint:
            return *self._by_prefix(test, test_states, train, train_states), [OTHER_PREFIXES]
        if not self.of_prefix:
            return test_states, train_states, validates, []
        hashes = prefix_hashes(train, train_states.rows, train_states.positions)
        known = np.isin(prefix_hashes(test, test_states.rows, test_states.positions), hashes)
        if len(known) - known.sum() < FEW:
            if len(np.unique(hashes)) < FEWEST_PREFIXES:
                return test_states, train_states, validates, [TOO_FEW]
            return *self._by_prefix(test, test_states, train, train_states), [ALL_KNOWN]
        kept = ~validates | ~np.isin(hashes, hashes[~validates])
        left_out = (
            f"{known.sum():,} of {len(known):,} held-out states are left out: sequences that are trained on have the "
            "same beginnings, so that probes would know these states"
        )
        return test_states[~known], train_states[kept], validates[kept], [left_out] if known.any() else []

    def _by_prefix(
        self, test: Examples, test_states: LabelledStates, train: Examples, train_states: LabelledStates
    ) -> tuple[LabelledStates, LabelledStates, np.ndarray]:
        """States after prefixes for test, states after other prefixes, and which of the latter are for validation.
        Test labels that no training prefix has are left out: rare states are those of a single prefix."""
        tested, other = split_by_prefix(
            prefix_hashes(test, test_states.rows, test_states.positions),
            prefix_hashes(train, train_states.rows, train_states.positions),
            validation=VALIDATION_SHARE,
        )
        if not (tested == TEST).any():
            raise ValueError("no held-out state is left to test probes on: set `sequences` higher")
        test_states, train_states, fitted_states = (
            test_states[tested == TEST],
            train_states[other != TEST],
            train_states[other == TRAINING],
        )
        seen = [np.isin(labels, known) for labels, known in zip(test_states.labels.T, fitted_states.labels.T)]
        test_states = dataclasses.replace(
            test_states, labels=np.where(np.stack(seen, 1), test_states.labels, UNDEFINED)
        )
        return test_states, train_states, other[other != TEST] == VALIDATION

    def _probe(self, subject: Subject, target: ProbeLabels, steps: dict[str, int | None], states: States) -> Findings:
        """Trains and tests the probes of all snapshots, given by label; `steps` are those of their checkpoints."""
        models = sorted((label for label in steps if label != UNTRAINED), key=lambda label: steps[label] or 0)
        groups = [*models, UNTRAINED, subject.snapshot.label]  # the last with shuffled labels
        known, expected, validates = target.known, target.expected, target.validates
        shuffled = known[np.random.default_rng([SHUFFLE, self.config.seed]).permutation(len(known))]
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
        with torch.autocast(torch.device(subject.device).type, enabled=False):  # probes train in float32
            answers = fit_and_answer(*parts, target.classes, self.config)
        result = ProbeResult(target.x, known[~validates], expected, answers, target.classes)
        return self._findings(
            models.index(subject.snapshot.label),
            {name: steps[name] for name in models},
            result,
            target.counts,
            target.notes,
        )

    def _snapshots(self, subject: Subject) -> Iterator[Snapshot]:
        """The subject's snapshot, those of the other checkpoints, each step once, and the untrained one."""
        yield from subject.each_step(self.config.checkpoints)
        yield dataclasses.replace(subject.untrained(), label=UNTRAINED)

    def _findings(
        self, chosen: int, models: dict[str, int | None], result: ProbeResult, counts: dict[str, int], notes: list[str]
    ) -> Findings:
        """`models` are the first groups of the result, with their steps; `chosen` is the subject's place in them.
        Metrics are means over the x values (offsets, positions), which count alike however many labels each has."""
        x = [float(value) for value in result.axis]
        accuracy, nats = result.by_x(result.answers.right), result.by_x(result.answers.surprise)
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
            "probed": labels[chosen],
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
            panels.append(over_steps(Panel("training step", "accuracy", curves, shares=True)))
        few = result.axis[result.count < FEW]
        if len(few):
            least, most = result.count[result.count < FEW].min(), result.count[result.count < FEW].max()
            tested = (
                f"tested on {least} to {most} labels" if least < most else f"tested on {counted(int(most), 'label')}"
            )
            notes = [
                *notes,
                f"{self.x_name} {', '.join(map(str, few))}: {tested} only, so chance has a large part in it",
            ]
        verdict = (
            f"Probes of the states get {percent(metrics['accuracy'])} of {self.target} right; probes of an untrained "
            f"model's states get {percent(metrics['accuracy_untrained'])}, and the most frequent label is right for "
            f"{percent(metrics['accuracy_constant'])}."
        )
        return Findings(metrics, panels, details, notes, verdict=verdict)


@dataclass(frozen=True)
class ProbeResult:
    """The answers of G groups of P probes, with their labels."""

    x: np.ndarray
    """(n, P) the x value of each answer."""
    known: np.ndarray
    """(m, P) training labels."""
    expected: np.ndarray
    """(n, P) test labels."""
    answers: Answers
    classes: int

    @property
    def axis(self) -> np.ndarray:
        """(X,) the distinct x values."""
        return np.unique(self.x[self.expected != UNDEFINED])

    @property
    def count(self) -> np.ndarray:
        """(X,) number of test labels per x value."""
        defined = self.expected != UNDEFINED
        return np.bincount(np.searchsorted(self.axis, self.x[defined]), minlength=len(self.axis))

    def by_x(self, values: np.ndarray) -> np.ndarray:
        """Means (..., X) of `values` (..., n, P) over the labels of each x value."""
        defined = self.expected != UNDEFINED
        cells = np.searchsorted(self.axis, self.x[defined])
        flat = values[..., defined].reshape(-1, len(cells))
        sums = np.stack([np.bincount(cells, weights=row, minlength=len(self.axis)) for row in flat])
        return (sums / self.count).reshape(*values.shape[:-2], -1)

    def constant_guess(self) -> tuple[np.ndarray, np.ndarray]:
        """Accuracy and nats, (X,) each, of predicting by the frequencies of training labels alone."""
        log_shares = log_frequencies(torch.from_numpy(self.known)[None], self.classes)[0].numpy()
        each = np.arange(len(log_shares))
        right = self.expected == log_shares.argmax(1)
        nats = -log_shares[each, np.maximum(self.expected, 0)]
        return self.by_x(right), self.by_x(nats)


def draw_training(task: Task, seed: int, count: int) -> Examples:
    """At most `count` training examples, without repetition if the training set is fixed. Raises `ValueError` if there
    are too few."""
    key, every = [DRAW, seed], task.training()
    if every is None:
        return task.sample(np.random.default_rng(key), count)
    if len(every) < FEWEST:
        raise ValueError(f"the training set has {len(every)} sequences: a probe needs at least {FEWEST}")
    return every[shuffled(len(every), key)[np.arange(min(len(every), count))]]


def number_labels(*arrays: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """The distinct labels of all `arrays`, and each array as indices into them."""
    names = np.unique(np.concatenate([labels[labels != UNDEFINED] for labels in arrays]))
    numbered = [np.where(labels == UNDEFINED, UNDEFINED, np.searchsorted(names, labels)) for labels in arrays]
    return names, numbered


def split_by_prefix(*hashes: np.ndarray, validation: float) -> list[np.ndarray]:
    """The part of each prefix, for each array of prefix hashes: `TEST`, `VALIDATION` or `TRAINING`; equal prefixes are
    in the same part. `validation`: the share of validation among the prefixes that are not tested. Raises `ValueError`
    if there are fewer than `FEWEST_PREFIXES`."""
    # The order of the hashes has nothing to do with the prefixes, so each part is a random choice of them.
    distinct = np.unique(np.concatenate(hashes))
    if len(distinct) < FEWEST_PREFIXES:
        raise ValueError(
            f"the sequences have {len(distinct)} different prefixes to probe: a probe needs at least "
            f"{FEWEST_PREFIXES}, as this task holds out no sequences, so that prefixes are divided between training "
            "and test. Set `sequences` and `training_sequences` higher, or train on longer sequences"
        )
    tested = round(TEST_SHARE * len(distinct))
    last = tested + max(1, round(validation * (len(distinct) - tested)))
    return [np.searchsorted([tested, last], np.searchsorted(distinct, each), side="right") for each in hashes]


def prefix_hashes(examples: Examples, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """(m,) uint64: a hash of the tokens of sequence rows[i] up to position positions[i]."""
    return hash_prefixes(examples.tokens)[rows, positions]


def by_layer(by_name: Mapping[str, Findings]) -> Findings:
    """Combines the findings of `Probing` on each activation, given by name. Pictures number layers from 1.

    Metrics: `accuracy_NAME` and `accuracy_untrained_NAME`. Panels: accuracy over layers, of models and controls; and
    accuracy along the probes' own axis, one curve per name. Names that differ in more than the layer's number, such as
    those of two streams, get separate curves.
    """
    accuracy = {f"accuracy_{name}": one.metrics["accuracy"] for name, one in by_name.items()}
    untrained = {f"accuracy_untrained_{name}": one.metrics["accuracy_untrained"] for name, one in by_name.items()}
    families: dict[str, list[str]] = {}
    for name in by_name:
        families.setdefault(re.sub(r"\d+", "*", name), []).append(name)
    over_layers = []
    for family, names in families.items():
        layers = [float(_layer(name)) for name in names]
        for number, curve in enumerate(by_name[names[0]].panels[0].curves):
            label = curve.label if len(families) == 1 else f"{curve.label}, {family}"
            means = [float(np.mean(by_name[name].panels[0].curves[number].y)) for name in names]
            over_layers.append(Curve(label, layers, means, curve.role))
    best = max(by_name, key=lambda name: by_name[name].metrics["accuracy"])
    first, along = next(iter(by_name.values())).panels[0], []
    several = len(families) > 1 or any(len({*map(_layer, names)}) < len(names) for names in families.values())
    for name, one in by_name.items():
        (probed,) = (curve for curve in one.panels[0].curves if curve.label == one.details["probed"])
        along.append(Curve(name if several else f"layer {_layer(name)}", probed.x, probed.y, "series"))
    return Findings(
        accuracy | untrained,
        [Panel("layer", "accuracy", over_layers, shares=True), Panel(first.x_title, "accuracy", along, shares=True)],
        {"layers": {name: one.details for name, one in by_name.items()}},
        list(dict.fromkeys(note for one in by_name.values() for note in one.notes)),
        main=list(accuracy),
        verdict=(
            f"Of {len(by_name):,} layers, probes read most from {best}: {percent(by_name[best].metrics['accuracy'])} "
            f"right; from the same layer of an untrained model {percent(by_name[best].metrics['accuracy_untrained'])}."
        ),
    )


def _layer(name: str) -> int:
    """The number of an activation's layer, the first of which is 1; 0 if it has none, as the embedding."""
    number = re.search(r"\d+", name)
    return int(number[0]) + 1 if number else 0
