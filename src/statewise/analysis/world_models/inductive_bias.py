"""Inductive bias probe (Vafa et al. 2025): are new functions, learned from few examples, functions of the true state?

A dataset is a random function of the true state, one of two values for each, and a few prefixes with the values of
their states. A linear classifier of the model's states is fitted to it, and predicts the values after other prefixes.
With a bias towards the true state, prefixes of one state get one value, and values of different states are independent
of each other. The authors fine-tune all weights on each dataset; here the model is frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from statewise.analysis.base import Analysis, Findings, Snapshot, Subject, finite_or_none
from statewise.analysis.beliefs.least_squares import ridge
from statewise.analysis.beliefs.vectors import is_several, states_of
from statewise.analysis.probes.probing import TEST, UNTRAINED, draw_training, prefix_hashes, split_by_prefix
from statewise.analysis.probes.targets import draw_positions, known_states, world_of
from statewise.analysis.world_models.trials import share
from statewise.data_types import Examples
from statewise.decoding.predictor import Predictor
from statewise.reporting.figures import Curve, Panel
from statewise.runtime.bounds import bounded
from statewise.runtime.messages import percent
from statewise.runtime.progress import announced
from statewise.tasks.base import Task, World

OTHER_PREFIXES = "the task holds out no sequences: values are predicted after other prefixes than are labelled"
SIZES = 4
"""Numbers of labelled prefixes of the curves: that of the options, half of it, a quarter, and an eighth."""


@dataclass(frozen=True)
class InductiveBiasConfig:
    """Options of `statewise analyze RUN inductive-bias`."""

    datasets: int = 100
    """Random functions of the state."""
    examples: int = 100
    """Labelled prefixes per dataset. Curves show half of them, a quarter and an eighth, too."""
    sequences: int = 1000
    """Held-out sequences; values are predicted after one prefix of each, unless nothing may follow the prefix that is
    drawn. Equal prefixes count once."""
    training_sequences: int = 2000
    """Sequences of the training set from which datasets are drawn, one prefix of each, likewise."""
    layer: str | None = None
    """Activation in place of the belief state: a name, such as blocks.2.hook_resid_post, or all layers concatenated
    (concat)."""
    seed: int = 1
    """Seed of prefixes and functions."""

    def __post_init__(self) -> None:
        bounded(self, "datasets", "sequences", at_least=1, at_most=10**6)
        bounded(self, "examples", at_least=2, at_most=10**4)
        bounded(self, "training_sequences", at_least=10, at_most=10**7)
        bounded(self, "seed", at_least=0)
        if self.layer is not None and is_several(self.layer):
            raise ValueError(f"layer must be one name, or concat for all layers together, not {self.layer}")


class Bias(NamedTuple):
    """Scores of the predictions of one dataset; NaN where there is no such pair."""

    respects_state: float
    """1 minus twice the share of pairs of one state that get different values (R-IB)."""
    distinguishes_state: float
    """Twice the share of pairs of different states that get different values (D-IB)."""
    distinguishes_state_same_next: float
    """`distinguishes_state` of the pairs with the same legal next tokens."""
    distinguishes_state_other_next: float
    """`distinguishes_state` of the pairs with different legal next tokens."""
    accuracy: float
    """Share of prefixes that get the value of their state."""


TITLES = {
    "respects_state": "respects state (R-IB)",
    "distinguishes_state": "distinguishes state (D-IB)",
    "distinguishes_state_same_next": "D-IB, same next tokens",
}
"""Titles of the panels."""


class InductiveBias(Analysis):
    """Whether predictions respect the true state, and distinguish states, by number of labelled prefixes."""

    Config = InductiveBiasConfig
    config: InductiveBiasConfig

    @override
    def check(self, task: Task, predictor: Callable[[], Predictor]) -> None:
        world_of(task, "inductive-bias")

    def analyze(self, subject: Subject) -> Findings:
        """Metrics: the fields of `Bias`, means over datasets, of the model with standard errors. Predictions that are
        right have 1 in the first four, but for chance; constant ones have 1 in the first and 0, random ones 0 and 1.
        Controls: `..._untrained`, the same model untrained; `..._true_state`, the state as a one-hot vector;
        `..._next_tokens`, the set of legal next tokens as a one-hot vector.

        Raises `ValueError` if the task does not know its state, or if too few prefixes have one."""
        config, task = self.config, subject.task
        world = world_of(task, "inductive-bias")
        sets: dict[bytes, int] = {}
        drawn = draw_training(task, config.seed, config.training_sequences)
        pool = Prefixes.draw(world, drawn, sets, [config.seed, 2])
        test = Prefixes.draw(world, task.held_out(config.sequences), sets, [config.seed, 1])
        notes = []
        if not task.disjoint:
            of_pool, of_test = split_by_prefix(pool.hashes, test.hashes, validation=0)
            pool, test = pool[of_pool != TEST], test[of_test == TEST]
            notes.append(OTHER_PREFIXES)
        test = test[~np.isin(test.hashes, pool.hashes)]  # equal prefixes have equal states
        test = test[np.unique(test.hashes, return_index=True)[1]]
        if len(pool.states) < config.examples:
            raise ValueError(
                f"{len(pool.states):,} prefixes of training sequences have a known state, and tokens that may follow, "
                f"fewer than the {config.examples:,} labelled prefixes of a dataset: set examples lower, or "
                "training_sequences higher"
            )
        pairs = Pairs.of(test)
        if not pairs.counts[0]:
            raise ValueError(
                f"no two of the {len(test.states):,} different held-out prefixes lead to one state: set sequences "
                "higher"
            )
        untrained = subject.untrained()
        features = {
            "": (self._states(subject.snapshot, pool), self._states(subject.snapshot, test)),
            "_untrained": (self._states(untrained, pool), self._states(untrained, test)),
            "_true_state": one_hot(pool.states, test.states),
            "_next_tokens": one_hot(pool.next, test.next),
        }
        sizes = sorted({max(2, config.examples >> halved) for halved in range(SIZES)})
        states, numbers = np.unique(np.concatenate([pool.states, test.states]), return_inverse=True)
        datasets = [self._dataset(number, len(states), numbers, len(pool.states)) for number in range(config.datasets)]
        biases = {
            name: np.array(
                [[pairs.bias(each.predict(*both, size), each.of_test) for each in datasets] for size in sizes]
            )
            for name, both in announced(features.items(), "kinds of features", len(features))
        }
        return findings(biases, sizes, test, pairs, notes)

    def _states(self, snapshot: Snapshot, prefixes: Prefixes) -> np.ndarray:
        return states_of(snapshot, prefixes.examples, prefixes.rows, prefixes.positions, self.config.layer)

    def _dataset(self, number: int, states: int, of_prefixes: np.ndarray, pool: int) -> Dataset:
        """Dataset `number`. `of_prefixes`: the state, below `states`, of each of the `pool`, then of the others."""
        rng = np.random.default_rng([self.config.seed, 3, number])
        values = rng.choice([-1.0, 1.0], states)[of_prefixes]
        labelled = rng.permutation(pool)[: self.config.examples]
        return Dataset(labelled, values[labelled], values[pool:])


@dataclass(frozen=True)
class Prefixes:
    """n prefixes whose true state is known."""

    examples: Examples
    rows: np.ndarray
    """(n,) the example of each prefix."""
    positions: np.ndarray
    """(n,) the position of its last token."""
    states: np.ndarray
    """(n,) int64: the true state after it."""
    next: np.ndarray
    """(n,) int64: a number of the set of tokens that may follow."""

    @classmethod
    def draw(cls, task: World, examples: Examples, sets: dict[bytes, int], seed: list[int]) -> Prefixes:
        """A random prefix of each example with a known state, unless no token may follow it: all complete sequences
        have the same next tokens, none, whatever their state. New sets of tokens are added to `sets`."""
        labels = known_states(task, examples)
        rows, positions = draw_positions(labels >= 0, 1, np.random.default_rng(seed))
        following = [task.legal(examples.tokens[row, : at + 1]) for row, at in zip(rows, positions)]
        go_on = np.array([len(each) > 0 for each in following], bool)
        rows, positions = rows[go_on], positions[go_on]
        names = [each.tobytes() for each in following if len(each)]
        numbers = np.array([sets.setdefault(name, len(sets)) for name in names], np.int64)
        return cls(examples, rows, positions, labels[rows, positions], numbers)

    @property
    def hashes(self) -> np.ndarray:
        """(n,) uint64: hashes of the tokens of each prefix."""
        return prefix_hashes(self.examples, self.rows, self.positions)

    def __getitem__(self, chosen: np.ndarray) -> Prefixes:
        """The `chosen` prefixes, (n,) bool or (m,) int."""
        return Prefixes(self.examples, *(each[chosen] for each in (self.rows, self.positions, self.states, self.next)))


@dataclass(frozen=True)
class Dataset:
    """A random function of the state, with values -1 and 1."""

    labelled: np.ndarray
    """(m,) the prefixes of the pool whose values are given, in random order."""
    values: np.ndarray
    """(m,) their values."""
    of_test: np.ndarray
    """(n,) the values of the held-out prefixes."""

    def predict(self, pool: np.ndarray, test: np.ndarray, size: int) -> np.ndarray:
        """(n,) -1 or 1 after each held-out prefix, from the first `size` labelled ones. `pool`: (N, D) features of the
        pool; `test`: (n, D)."""
        predicted = ridge(pool[self.labelled[:size]], self.values[:size], test)
        return np.where(predicted >= 0, 1.0, -1.0)


@dataclass(frozen=True)
class Pairs:
    """All pairs of n prefixes."""

    groups: list[np.ndarray]
    """(n,) int64 each: equal numbers for prefixes of one state, for those with the same next tokens, and for both."""
    counts: np.ndarray
    """(3,) pairs of one state; of different ones with the same next tokens; of different ones with different ones."""

    @classmethod
    def of(cls, prefixes: Prefixes) -> Pairs:
        """The pairs of `prefixes`."""
        keys = [prefixes.states[:, None], prefixes.next[:, None], np.stack([prefixes.states, prefixes.next], 1)]
        groups = [np.unique(key, axis=0, return_inverse=True)[1].reshape(-1) for key in keys]
        return cls(groups, cls(groups, np.empty(0))._sums(np.ones(len(prefixes.states))))

    def bias(self, predicted: np.ndarray, values: np.ndarray) -> Bias:
        """Scores of predictions (n,), -1 or 1, given the true `values`. The product of two is 1 if they agree, else
        -1."""
        sums = self._sums(predicted)
        with np.errstate(invalid="ignore"):
            one, same, other = sums / self.counts
            apart = 1 - sums[1:].sum() / self.counts[1:].sum()
        return Bias(one, apart, 1 - same, 1 - other, float((predicted == values).mean()))

    def _sums(self, signs: np.ndarray) -> np.ndarray:
        """(3,) sums of the products of pairs, by the kinds of `counts`."""
        states, following, both = ((np.bincount(group, signs) ** 2).sum() for group in self.groups)
        everything, alone = signs.sum() ** 2, len(signs)
        return np.array([states - alone, following - both, everything - states - following + both]) / 2


def one_hot(pool: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One-hot vectors (N, C) and (n, C) of the numbers (N,) and (n,)."""
    known = np.unique(np.concatenate([pool, test]))
    return (pool[:, None] == known).astype(float), (test[:, None] == known).astype(float)


def findings(
    biases: Mapping[str, np.ndarray], sizes: list[int], test: Prefixes, pairs: Pairs, notes: list[str]
) -> Findings:
    """The findings from `biases`: an array (sizes, datasets, fields of `Bias`) for the model and for each control."""
    metrics: dict[str, float] = {}
    for name, values in biases.items():
        for place, figure in enumerate(Bias._fields):
            if np.isfinite(values[-1, :, place]).all():
                of_one = share(f"{figure}{name}", values[-1, :, place])
                metrics |= {key: value for key, value in of_one.items() if not name or key == f"{figure}{name}"}
    metrics |= {"prefixes": len(test.states), "states": len(np.unique(test.states))}
    notes = notes + [
        f"no two held-out prefixes of different states have {words} next tokens"
        for words, count in zip(("the same legal", "different legal"), pairs.counts[1:])
        if not count
    ]
    labels = {"": "model", "_untrained": UNTRAINED, "_true_state": "true state", "_next_tokens": "legal next tokens"}
    x, means = [float(size) for size in sizes], {name: values.mean(1) for name, values in biases.items()}
    panels = [
        Panel(
            "labelled prefixes",
            title,
            [
                Curve(labels[name], x, values[:, Bias._fields.index(figure)].tolist(), "control" if name else "line")
                for name, values in means.items()
            ],
        )
        for figure, title in TITLES.items()
        if figure in metrics
    ]
    details = {
        "labelled": sizes,
        "fields": list(Bias._fields),
        "pairs": dict(zip(("one state", "same next tokens", "other next tokens"), pairs.counts.tolist())),
        "means": {labels[name]: finite_or_none(values) for name, values in means.items()},
    }
    main = [figure for figure in Bias._fields if figure in metrics]
    verdict = (
        f"From {sizes[-1]:,} labelled prefixes, {percent(metrics['accuracy'])} of {len(test.states):,} others get the "
        f"value of their state; from an untrained model {percent(metrics['accuracy_untrained'])}, from the legal next "
        f"tokens {percent(metrics['accuracy_next_tokens'])}, from the true state itself "
        f"{percent(metrics['accuracy_true_state'])}."
    )
    return Findings(metrics, panels, details, notes, main=main, verdict=verdict)
