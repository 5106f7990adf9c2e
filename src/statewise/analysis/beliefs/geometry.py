"""Whether a linear map finds the exact belief in the states of a model (Shai et al. 2024).

An affine map is fitted by least squares from the activations after each prefix to the belief after it, with prefixes
weighted by their probability. The same is done with controls, since much of a belief can be read off simpler things: an
untrained model, shuffled beliefs, the last tokens as one-hot vectors, the true distribution of the next token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from typing_extensions import override

from statewise.analysis.base import Analysis, Findings, Snapshot, Subject, explained
from statewise.analysis.beliefs.beliefs import ALL, CONCAT, LAYERS, layer_widths, places_by_block, states_of
from statewise.analysis.beliefs.least_squares import Fit, fit, held_out_r2, r2
from statewise.analysis.beliefs.pictures import Plane, draw_on, equal_beliefs, planes
from statewise.data_types import Examples, LacksCapability
from statewise.decoding.predictor import Predictor
from statewise.reporting.figures import Curve, Drawing, Panel, defined_curve, over_steps
from statewise.runtime.bounds import bounded
from statewise.runtime.devices import in_float64
from statewise.tasks.base import Believed, Prefixes, Task, believed

FOLDS, SHUFFLES, HISTORY, FROZEN, VARIED = 5, 10, 4, 10, 200
"""Folds of `r2_held_out`; permutations of the beliefs; longest history with a figure of its own; sequences of the other
factors, and for each the sequences of one factor, from which its subspace is found."""
DISTANCES = 1500
"""Maximum number of distinct beliefs whose distances are compared pair by pair."""
FEW = 4
"""Fewer checkpoints than these show little of training."""
SPREAD = 0.95
"""Share of the variance for which components are counted."""
CROWDED = 0.75
"""A fit that explains this share of shuffled beliefs has too few prefixes for its columns to show anything."""
LAST = 1 / 3
"""Share of a training sequence at its end, where states keep less of the belief (docs/results/beliefs.md)."""
STATE = "state"
CONTROLS = {"next-token distribution": "r2_next_token", "all tokens": "r2_history_all"}
"""Controls without a model: the label of the line across a plot, and the metric."""


@dataclass(frozen=True)
class BeliefGeometryConfig:
    """Options of `statewise analyze RUN belief-geometry`."""

    layers: str | None = "all"
    """Activations beside the last state: `all` residual streams after a block, a name or a pattern (`*`: any text); all
    of them concatenated are fitted too. null: the last state alone."""
    checkpoints: str | None = None
    """Further checkpoints: all, or steps like 100,200."""
    longest: int | None = None
    """Tokens of the longest prefix; null: half of a training sequence. Training asks states near the end of a sequence
    about few later tokens, so they keep less of the belief: figures that include them understate what the others
    keep."""
    words: int = 10_000
    """Maximum number of sequences. All prefixes up to the length for which they suffice are used, with their exact
    probabilities; if they do not suffice for half of `longest`, a sample of sequences of that length."""
    weighting: Literal["probability", "equal"] = "probability"
    """Weight of a prefix in fits and figures, except the excess: its probability, or the same for all prefixes, as in
    Shai et al. 2024, where rare words decide."""
    cutoff: float = 1e-6
    """Directions of the activations with less than this share of the largest standard deviation are not used."""
    seed: int = 1
    """Seed of shuffles, folds and samples."""

    def __post_init__(self) -> None:
        bounded(self, "longest", at_least=1)
        bounded(self, "words", at_least=2, at_most=10**6)
        bounded(self, "cutoff", above=0, below=1)
        bounded(self, "seed", at_least=0)


class BeliefGeometry(Analysis):
    """R^2 of the belief from the last state, from each layer, from all layers, and from controls."""

    Config = BeliefGeometryConfig
    config: BeliefGeometryConfig

    @override
    def check(self, task: Task, predictor: Callable[[], Predictor]) -> None:
        believed(task)

    def analyze(self, subject: Subject) -> Findings:
        """Metrics `r2`, `mse` (mean over coordinates) and `distance` (Euclidean, mean) of the last state; `r2_NAME`,
        `mse_NAME` and `distance_NAME` of every layer, and `..._concat` of all; `..._held_out` from other prefixes; the
        controls `r2_untrained`, `r2_shuffled`, `r2_history_1`, ..., `r2_history_all`, `r2_history_all_held_out`,
        `r2_next_token`; `r2_constrained`, `r2_constrained_NAME`, `r2_constrained_untrained`, ...: the same of what a
        sum over tokens can know (`Believed.constrained_beliefs`);
        `distances_r2` and `next_token_distances_r2`, squared correlations of distances between predicted beliefs with
        those between true ones, and between next-token distributions; `excess`, the exact divergence from the true
        prediction, after the prefixes after which training asks for one. Of several factors: see `_factors`."""
        world, config = believed(subject.task), self.config
        row, longest = world.row_length, config.longest or max(1, world.row_length // 2)
        if longest > row:
            raise ValueError(f"longest must be at most {row:,}, the tokens of a training sequence, not {longest:,}")
        read = world.prefixes(config.words, config.seed, longest)
        prefixes = read.chosen(world.compared(read.columns))
        if config.weighting == "equal" and not prefixes.exact:
            raise ValueError(
                f"weighting equal counts each prefix once, but there are too many to list with words {config.words:,}: "
                "set words higher, or weighting probability"
            )
        known = _Known.of(world, prefixes, config.weighting)
        own = self._features(subject.snapshot, prefixes)
        rng = np.random.default_rng(config.seed)
        folds = rng.integers(FOLDS, size=len(known.weights))
        # The prefix <bos> alone is like no other and has much weight: predicting it from others shows nothing.
        folds[prefixes.columns < world.opening] = -1
        metrics: dict[str, float] = {}
        details: dict[str, Any] = {}
        maps: dict[str, Fit] = {}
        for name, features in own.items():
            maps[name] = fit(features, known.beliefs, known.weights, config.cutoff)
            predicted = maps[name](features)
            label = "r2" if name == STATE else f"r2_{name}"
            metrics[label] = r2(predicted, known.beliefs, known.weights)
            errors = known.errors(predicted)
            if name in (STATE, CONCAT):
                held_out = held_out_r2(features, known.beliefs, known.weights, config.cutoff, folds)
                metrics[f"{label}_held_out"] = held_out
                errors |= known.correlations(predicted)
            metrics |= {key if name == STATE else f"{key}_{name}": value for key, value in errors.items()}
        untrained = self._features(dataclasses.replace(subject.untrained(), label="untrained model"), prefixes)
        fitted = {}
        for name, features in untrained.items():
            fitted[name] = fit(features, known.beliefs, known.weights, config.cutoff)(features)
            label = "untrained" if name == STATE else f"untrained_{name}"
            metrics[f"r2_{label}"] = r2(fitted[name], known.beliefs, known.weights)
        controls, notes = self._controls(own, known, prefixes, folds, rng)
        measured = int(prefixes.columns.max()) + 1 - world.opening
        if measured > row * (1 - LAST):
            notes.insert(
                0,
                f"prefixes of up to {measured:,} tokens reach into the last third of the training sequences "
                f"({row:,} tokens), where training asks states about few later tokens, so they may keep less of the "
                f"belief. Train with --task.length {2 * measured} or more, or measure with --longest {row // 2}",
            )
        for name, key, label in (
            (CONCAT, f"r2_shuffled_{CONCAT}", "all layers together"),
            (STATE, "r2_shuffled", "the last state"),
        ):
            if controls.get(key, 0.0) > CROWDED:
                notes.insert(
                    0,
                    f"{len(known.weights):,} prefixes of up to {measured:,} tokens are too few for the "
                    f"{own[name].shape[1] + 1:,} columns of a map from {label}, which explains "
                    f"{explained(controls[key])} of shuffled beliefs. Measure longer prefixes (--longest) of a model "
                    "that is trained on sequences of at least twice their length (--task.length)",
                )
        metrics |= controls
        compared = {f"untrained_{name}": features for name, features in untrained.items()}
        metrics |= self._constrained({**own, **compared}, known)
        asked = read.chosen(world.predicting(read.columns))  # not after the last token of training, for example
        parts = _excess(subject.snapshot, world, asked), asked.weights, asked.columns
        metrics["excess"] = float(np.average(parts[0], weights=parts[1]))
        by_length = _by_length(maps[STATE](own[STATE]), known, prefixes, world.opening)
        panels = [*self._panels(own, metrics), by_length, _by_position(*parts)]
        drawn_on = planes(world, known.beliefs, known.weights)
        shown = {"true beliefs": known.beliefs, "last state": maps[STATE](own[STATE])}
        shown |= {"all layers": maps[CONCAT](own[CONCAT])} if CONCAT in own else {}
        shown["untrained"] = fitted[STATE]
        drawings = draw_on(drawn_on, shown)
        sampled = f"a sample of {len(prefixes.examples):,} sequences: there are too many words to list them all"
        notes = notes if prefixes.exact else [sampled, *notes]
        if config.checkpoints is not None:
            steps, strip = self._over_training(subject, prefixes, known, drawn_on)
            first, last = min(steps.curves[0].x), max(steps.curves[0].x)
            ends = [first, last] if first < last else [first - 1, last + 1]
            labels = {"untrained": "r2_untrained", **CONTROLS, "shuffled beliefs": "r2_shuffled"}
            across = _across(labels, metrics, ends)
            panels.append(dataclasses.replace(steps, curves=[*steps.curves, *across]))
            drawings += strip
            details["checkpoints"] = [dataclasses.asdict(curve) for curve in steps.curves]
            count = len(steps.curves[0].x)
            panels[-1] = over_steps(panels[-1])
            if count < FEW and config.checkpoints == ALL:
                kept = f"the run kept {count} checkpoint{'s' * (count != 1)}"
                notes = [f"{kept}: for more of its training, train with --trainer.keep 0,log:10", *notes]
        if len(world.widths) > 1:
            of_factors, panel = self._factors(subject, world, own[STATE], known, maps[STATE](own[STATE]), rng)
            metrics |= of_factors
            panels.append(panel)
        details |= {"prefixes": len(known.weights), "exact": prefixes.exact, "layers": list(own), "longest": measured}
        main = ["r2", "r2_concat", "r2_held_out", "excess", "r2_untrained", "r2_next_token"]
        main = [name for name in main if name in metrics]
        return Findings(metrics, panels, details, notes, drawings, main, verdict=_verdict(metrics))

    def _features(self, snapshot: Snapshot, prefixes: Prefixes) -> dict[str, np.ndarray]:
        """Features (m, D) by name: layers, all of them concatenated, and the last state."""
        examples, rows, columns, layers = prefixes.examples, prefixes.rows, prefixes.columns, self.config.layers
        by_name = {}
        if layers is not None:
            pattern = LAYERS if layers == ALL else layers
            try:
                widths = layer_widths(snapshot, examples[:1], pattern)
            except LacksCapability as error:
                raise LacksCapability(
                    f"{error}; with --layers null the last state alone is read", error.capability
                ) from None
            every = states_of(snapshot, examples, rows, columns, pattern)
            by_name = dict(zip(widths, np.split(every, np.cumsum(list(widths.values()))[:-1], axis=1)))
            if len(by_name) > 1:
                by_name[CONCAT] = every
        by_name[STATE] = states_of(snapshot, examples, rows, columns)
        return by_name

    def _controls(
        self, own: dict[str, np.ndarray], known: _Known, prefixes: Prefixes, folds: np.ndarray, rng: np.random.Generator
    ) -> tuple[dict[str, float], list[str]]:
        """R^2 with shuffled beliefs, and from controls without a model; notes on what is left out."""
        cutoff, metrics, notes = self.config.cutoff, {}, []
        orders = [rng.permutation(len(known.weights)) for _ in range(SHUFFLES)]
        shuffled = np.stack([known.beliefs[order] for order in orders], 1).reshape(len(known.weights), -1)
        for name in (STATE, CONCAT):
            if name in own:
                predicted = fit(own[name], shuffled, known.weights, cutoff)(own[name])
                label = "r2_shuffled" if name == STATE else f"r2_shuffled_{name}"
                metrics[label] = r2(predicted, shuffled, known.weights)
        longest, V = int(prefixes.columns.max()) + 1, _symbols(prefixes)
        for count in sorted({*range(1, min(HISTORY, longest) + 1), longest}):
            label = "all" if count == longest else str(count)
            if count * V > len(known.weights) / 2:
                notes.append(
                    f"r2_history_{label} is left out: a map from the last {count:,} tokens as one-hot vectors has "
                    f"{count * V:,} columns, too many for {len(known.weights):,} prefixes"
                )
                continue
            features = history(prefixes, count)
            predicted = fit(features, known.beliefs, known.weights, cutoff)(features)
            metrics[f"r2_history_{label}"] = r2(predicted, known.beliefs, known.weights)
            if count == longest:
                held_out = held_out_r2(features, known.beliefs, known.weights, cutoff, folds)
                metrics["r2_history_all_held_out"] = held_out
        predicted = fit(known.next_tokens, known.beliefs, known.weights, cutoff)(known.next_tokens)
        return {**metrics, "r2_next_token": r2(predicted, known.beliefs, known.weights)}, notes

    def _constrained(self, own: dict[str, np.ndarray], known: _Known) -> dict[str, float]:
        """R^2 of constrained beliefs, from each layer and from the belief itself."""
        metrics = {}
        for name, features in {**own, "belief": known.beliefs}.items():
            predicted = fit(features, known.constrained, known.weights, self.config.cutoff)(features)
            label = f"r2_constrained_{name}".removesuffix(f"_{STATE}")
            metrics[label] = r2(predicted, known.constrained, known.weights)
        return metrics

    def _panels(self, own: dict[str, np.ndarray], metrics: dict[str, float]) -> list[Panel]:
        """R^2 over layers, after them the last state and all layers together, with controls as lines across: shuffled
        beliefs from all layers have a point of their own, as the more features there are the more they fit."""
        names = [name for name in own if name not in (STATE, CONCAT)]
        together = [CONCAT] if CONCAT in own else []
        x = [float(place + 1) for place in range(len(names) + 1 + len(together))]
        ends = [x[0], x[-1]] if len(x) > 1 else [0.5, 1.5]

        def of_layers(label: str, key: str) -> Curve:
            return Curve(
                label, x, [metrics[f"{key}_{name}".removesuffix(f"_{STATE}")] for name in [*names, STATE, *together]]
            )

        curves = [of_layers("trained", "r2"), of_layers("untrained", "r2_untrained")]
        curves += _across(CONTROLS, metrics, ends)
        before, shuffled = x[: len(x) - len(together)], metrics["r2_shuffled"]
        at_all = [metrics[f"r2_shuffled_{name}"] for name in together]
        curves.append(Curve("shuffled beliefs", x, [*[shuffled] * len(before), *at_all], "control"))
        constrained = [of_layers("trained", "r2_constrained"), of_layers("untrained", "r2_constrained_untrained")]
        constrained += _across({"true belief": "r2_constrained_belief"}, metrics, ends)
        title = f"layer ({len(names) + 1}: last state" + (f", {len(names) + 2}: all layers)" if together else ")")
        return [
            Panel(title, "R2 of the belief", curves, shares=True),
            Panel(title, "R2 of constrained beliefs", constrained, shares=True),
        ]

    def _over_training(
        self, subject: Subject, prefixes: Prefixes, known: _Known, drawn_on: list[Plane]
    ) -> tuple[Panel, list[Drawing]]:
        """R^2 of the last state and all layers by training step, and of each step a drawing on each plane."""
        steps: list[float] = []
        by_name: dict[str, list[float]] = {}
        strips: list[list[Drawing]] = [[] for _ in drawn_on]
        for snapshot in subject.each_step(self.config.checkpoints):
            steps.append(float(snapshot.step or 0))
            for name, features in self._features(snapshot, prefixes).items():
                made = fit(features, known.beliefs, known.weights, self.config.cutoff)
                by_name.setdefault(name, []).append(r2(made(features), known.beliefs, known.weights))
                if name == STATE:
                    beliefs = made(features)
                    for strip, plane in zip(strips, drawn_on):
                        title = f"step {snapshot.step}: R2 {plane.r2(beliefs):.3f}"
                        strip.append(plane.draw(title, beliefs, step=snapshot.step or 0))
        labels = {STATE: "last state", CONCAT: "all layers"}
        layers = [name for name in by_name if name not in labels]
        words = {name: f"layer {place}" for place, name in enumerate(layers, 1)} | labels
        order = np.argsort(steps)
        curves = [
            Curve(
                words[name],
                np.array(steps)[order].tolist(),
                np.array(values)[order].tolist(),
                "line" if name in labels else "series",
            )
            for name, values in by_name.items()
        ]
        return Panel("training step", "R2 of the belief", curves, shares=True), [
            strip[place] for strip in strips for place in order
        ]

    def _factors(
        self,
        subject: Subject,
        world: Believed,
        states: np.ndarray,
        known: _Known,
        predicted: np.ndarray,
        rng: np.random.Generator,
    ) -> tuple[dict[str, float], Panel]:
        """`r2_factor_1`, ...; `components`, how many principal components hold 95% of the states' variance, beside
        `dimensions_factored` and `dimensions_joint`, which beliefs about each factor and about all together have; and
        `overlap`, the mean overlap of the factors' subspaces (0 orthogonal, 1 equal), with that of an untrained
        model."""
        metrics, ends = {}, np.cumsum(world.widths)
        for place, end in enumerate(ends):
            columns = slice(end - world.widths[place], end)
            metrics[f"r2_factor_{place + 1}"] = r2(predicted[:, columns], known.beliefs[:, columns], known.weights)
        share = np.sqrt(known.weights)[:, None]
        values = np.linalg.svd((states - known.weights @ states) * share, compute_uv=False) ** 2
        cumulated = np.cumsum(values) / values.sum()
        metrics |= {
            "components": int(np.searchsorted(cumulated, SPREAD)) + 1,
            "dimensions_factored": sum(world.dimensions),
            "dimensions_joint": world.joint_states - 1,
        }
        many = world.dimensions
        varied = [[world.vary(rng, place, VARIED) for _ in range(FROZEN)] for place in range(len(world.widths))]
        for label, snapshot in (("overlap", subject.snapshot), ("overlap_untrained", subject.untrained())):
            spaces = [_directions(snapshot, parts) for parts in varied]
            pairs = [(one, other) for one in range(len(spaces)) for other in range(one)]
            overlaps = [overlap(spaces[one][: many[one]], spaces[other][: many[other]]) for one, other in pairs]
            metrics[label] = float(np.mean(overlaps))
        x = [float(rank + 1) for rank in range(len(cumulated))]
        limits = [
            Curve(label, [metrics[key]] * 2, [0.0, 1.0], "control")
            for label, key in (
                ("dimensions, factored", "dimensions_factored"),
                ("dimensions, joint", "dimensions_joint"),
            )
            if metrics[key] <= x[-1]
        ]
        curves = [Curve("last state", x, cumulated.tolist()), *limits]
        return metrics, Panel("principal components", "share of the variance", curves, shares=True)


@dataclass(frozen=True)
class _Known:
    """The truth after each of m prefixes."""

    beliefs: np.ndarray
    """(m, C) exact beliefs."""
    constrained: np.ndarray
    """(m, C) constrained beliefs (`Believed.constrained_beliefs`)."""
    next_tokens: np.ndarray
    """(m, V) probabilities of the next token."""
    weights: np.ndarray
    """(m,) weights of the prefixes, with sum 1."""

    @classmethod
    def of(cls, world: Believed, prefixes: Prefixes, weighting: str = "probability") -> _Known:
        at = prefixes.rows, prefixes.columns
        examples = prefixes.examples
        constrained = world.constrained_beliefs(examples)[at]
        weights = prefixes.weights
        weights = np.full_like(weights, 1 / len(weights)) if weighting == "equal" else weights
        return cls(world.beliefs(examples)[at], constrained, world.next_tokens(examples)[at], weights)

    def errors(self, predicted: np.ndarray) -> dict[str, float]:
        """Errors of predicted beliefs."""
        apart = predicted - self.beliefs
        return {
            "mse": float(self.weights @ (apart**2).mean(1)),
            "distance": float(self.weights @ np.linalg.norm(apart, axis=1)),
        }

    def correlations(self, predicted: np.ndarray) -> dict[str, float]:
        """Squared correlations of distances between predicted beliefs with distances between true ones."""
        squared = {}
        first, which = equal_beliefs(self.beliefs)
        mass = np.bincount(which, weights=self.weights)

        def means(values: np.ndarray) -> np.ndarray:  # of equal beliefs
            return np.stack([np.bincount(which, weights=self.weights * axis) / mass for axis in values.T], 1)

        centres = means(predicted)
        kept = np.unique(np.linspace(0, len(first) - 1, min(DISTANCES, len(first))).round().astype(np.int64))
        if len(kept) > 2:
            from scipy.spatial.distance import pdist

            of_centres = pdist(centres[kept])
            # Beliefs concern each factor; with noise, equal beliefs can have different next tokens.
            of_tokens = means(self.next_tokens)
            for name, true in (("distances_r2", self.beliefs[first]), ("next_token_distances_r2", of_tokens)):
                of_true = pdist(true[kept])
                if of_true.std() > 0 and of_centres.std() > 0:
                    squared[name] = float(np.corrcoef(of_centres, of_true)[0, 1] ** 2)
        return squared


def _verdict(metrics: Mapping[str, float]) -> str:
    if metrics["r2_shuffled"] > CROWDED:
        return (
            f"Too few prefixes: a map from the last state explains {explained(metrics['r2'])} of the variance of the "
            f"exact belief ({explained(metrics['r2_held_out'])} after prefixes left out of the fit), but of shuffled "
            f"beliefs {explained(metrics['r2_shuffled'])}, too, so the fit shows nothing."
        )
    return (
        f"The last state explains {explained(metrics['r2'])} of the variance of the exact belief "
        f"({explained(metrics['r2_held_out'])} after prefixes left out of the fit); the last state of an untrained "
        f"model explains {explained(metrics['r2_untrained'])}, the exact next-token probabilities alone "
        f"{explained(metrics['r2_next_token'])}."
    )


def _across(labels: Mapping[str, str], metrics: Mapping[str, float], ends: list[float]) -> list[Curve]:
    """A line from end to end for each metric that exists, by label."""
    return [Curve(label, ends, [metrics[key]] * 2, "control") for label, key in labels.items() if key in metrics]


def history(prefixes: Prefixes, count: int) -> np.ndarray:
    """(m, count * V): the last `count` tokens of each prefix as one-hot vectors, zeros where there are fewer."""
    tokens, V = prefixes.examples.tokens, _symbols(prefixes)
    one_hot = np.zeros((len(prefixes.rows), count, V))
    for back in range(count):
        there = np.flatnonzero(prefixes.columns >= back)
        one_hot[there, back, tokens[prefixes.rows[there], prefixes.columns[there] - back]] = 1
    return one_hot.reshape(len(one_hot), -1)


def _symbols(prefixes: Prefixes) -> int:
    """V: tokens up to the last one that occurs."""
    return int(prefixes.examples.tokens.max()) + 1


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    """The mean squared cosine of the principal angles of two subspaces, spanned by orthonormal rows: (a, D) and (b, D),
    with min(a, b) angles."""
    return float(((one @ other.T) ** 2).sum() / min(len(one), len(other)))


def _directions(snapshot: Snapshot, parts: list[Examples]) -> np.ndarray:
    """(k, D): principal directions of the last states of sequences, centred at every position of each part."""
    apart = []
    for examples in parts:
        rows, columns = np.nonzero(np.ones(examples.tokens.shape, bool))
        states = states_of(snapshot, examples, rows, columns).reshape(*examples.tokens.shape, -1)
        apart.append((states - states.mean(0)).reshape(-1, states.shape[-1]))
    centred = np.concatenate(apart)
    directions: np.ndarray = np.linalg.eigh(centred.T.astype(np.float64) @ centred)[1].T[::-1]
    return directions


@torch.no_grad()
def _excess(snapshot: Snapshot, world: Believed, prefixes: Prefixes) -> np.ndarray:
    """(m,): the divergence of the model's next-token distribution from the true one, in nats."""
    next_tokens = world.next_tokens(prefixes.examples)[prefixes.rows, prefixes.columns]
    excess = np.empty(len(prefixes.rows))
    for batch, here, line in places_by_block(prefixes.examples, prefixes.rows, 256):
        log_probs = in_float64(snapshot.predictor.logits(batch)).log_softmax(-1).cpu().numpy()
        true = next_tokens[here]
        own = log_probs[line, prefixes.columns[here]]
        excess[here] = (true * (np.log(np.where(true > 0, true, 1)) - np.where(true > 0, own, 0))).sum(1)
    return excess


def _by_length(predicted: np.ndarray, known: _Known, prefixes: Prefixes, opening: int) -> Panel:
    """R^2 of the belief from the last state within the prefixes of each length, by the map fitted to all of them. A
    length at which all beliefs are equal has no R^2 and is left out."""
    lengths = range(1, int(prefixes.columns.max()) + 2 - opening)
    places = [prefixes.columns == length + opening - 1 for length in lengths]
    values = [r2(predicted[here], known.beliefs[here], known.weights[here]) for here in places]
    curve = defined_curve("last state", [float(length) for length in lengths], values)
    return Panel("tokens read", "R2 of the belief", [curve], shares=True)


def _by_position(excess: np.ndarray, weights: np.ndarray, columns: np.ndarray) -> Panel:
    """The excess by number of tokens read."""
    mass = np.bincount(columns, weights=weights)
    read = np.flatnonzero(mass)
    means = np.bincount(columns, weights=weights * excess)[read] / mass[read]
    return Panel("tokens read", "excess (nats per token)", [Curve("model", (read + 1.0).tolist(), means.tolist())])
