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

from statewise.analysis.base import Analysis, Findings, Snapshot, Subject
from statewise.analysis.beliefs.controls import (
    FOLDS,
    STATE,
    Known,
    by_length,
    controls,
    crowded,
    label,
    measured,
    verdict,
)
from statewise.analysis.beliefs.least_squares import fit, r2
from statewise.analysis.beliefs.nonlinear import mlp_r2
from statewise.analysis.beliefs.pictures import Plane, draw_on, planes
from statewise.analysis.beliefs.vectors import ALL, CONCAT, LAYERS, layer_widths, places_by_block, states_of
from statewise.data_types import Examples
from statewise.decoding.predictor import Predictor
from statewise.reporting.figures import Curve, Drawing, Panel, defined_curve, over_steps
from statewise.runtime.bounds import bounded
from statewise.runtime.devices import in_float64
from statewise.runtime.messages import LacksCapability
from statewise.tasks.base import Believed, Prefixes, Task, believed

FROZEN, VARIED = 10, 200
"""Sequences of the other factors, and for each the sequences of one factor, from which its subspace is found."""
FEW = 4
"""Fewer checkpoints than these show little of training."""
SPREAD = 0.95
"""Share of the variance for which components are counted."""
LAST = 1 / 3
"""Share of a training sequence at its end, where states keep less of the belief (docs/results/beliefs.md)."""
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
    probe: Literal["linear", "mlp"] = "linear"
    """mlp: besides the affine map also a network with one hidden layer, from the last state."""
    seed: int = 1
    """Seed of shuffles, folds, samples and networks."""

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
        `r2_next_token`; with `probe` mlp `r2_mlp`, `r2_mlp_held_out`, `r2_mlp_untrained` and
        `r2_mlp_untrained_held_out`, by networks;
        `r2_constrained`, `r2_constrained_NAME`, `r2_constrained_untrained`, ...: the same of what a
        sum over tokens can know (`Believed.constrained_beliefs`);
        `distances_r2` and `next_token_distances_r2`, squared correlations of distances between predicted beliefs with
        those between true ones, and between next-token distributions; `excess`, the exact divergence from the true
        prediction, after the prefixes after which training asks for one; `r2_between`: of a decision process, the R^2
        of the belief after actions, before their observations. Of several factors: see `_factors`."""
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
        known = Known.of(world, prefixes, config.weighting, config.cutoff)
        own = self._features(subject.snapshot, prefixes)
        rng = np.random.default_rng(config.seed)
        folds = rng.integers(FOLDS, size=len(known.weights))
        # The prefix <bos> alone is like no other and has much weight: predicting it from others shows nothing.
        folds[prefixes.columns < world.opening] = -1
        metrics, maps = measured(own, known, folds)
        details: dict[str, Any] = {}
        untrained = self._features(dataclasses.replace(subject.untrained(), label="untrained model"), prefixes)
        of_untrained = known.fit(untrained[STATE])(untrained[STATE])
        metrics |= {label("r2_untrained", name): known.r2_of(features) for name, features in untrained.items()}
        if config.probe == "mlp":
            for key, features in (("r2_mlp", own[STATE]), ("r2_mlp_untrained", untrained[STATE])):
                found = mlp_r2(features, known.beliefs, known.weights, folds, config.seed)
                metrics |= {key: found[0], f"{key}_held_out": found[1]}
        without_model, notes = controls(own, known, prefixes, folds, rng)
        read_most = int(prefixes.columns.max()) + 1 - world.opening
        if read_most > row * (1 - LAST):
            notes.insert(
                0,
                f"prefixes of up to {read_most:,} tokens reach into the last third of the training sequences "
                f"({row:,} tokens), where training asks states about few later tokens, so they may keep less of the "
                f"belief. Train with {world.longer(2 * read_most)} or more, or measure with `longest` {row // 2}",
            )
        notes[:0] = [
            f"{problem}. Measure longer prefixes (`longest`) of a model that is trained on sequences of at least twice "
            f"their length ({world.longer(2 * read_most + 2)})"
            for problem in crowded(without_model, own, known, read_most)
        ]
        metrics |= without_model
        compared = {f"untrained_{name}": features for name, features in untrained.items()}
        metrics |= self._constrained(
            {**own, **compared}, known, world.constrained_beliefs(prefixes.examples)[prefixes.rows, prefixes.columns]
        )
        between = ~world.compared(read.columns)
        if between.any():
            others = read.chosen(between)
            states = states_of(subject.snapshot, others.examples, others.rows, others.columns)
            metrics["r2_between"] = Known.of(world, others, config.weighting, config.cutoff).r2_of(states)
        asked = read.chosen(world.predicting(read.columns))  # not after the last token of training, for example
        parts = _excess(subject.snapshot, world, asked), asked.weights, asked.columns
        metrics["excess"] = float(np.average(parts[0], weights=parts[1]))
        of_lengths = by_length(maps[STATE](own[STATE]), known, prefixes.columns, world.opening)
        panels = [*self._panels(own, metrics), _by_length(of_lengths), _by_position(*parts)]
        drawn_on = planes(world, known.beliefs, known.weights)
        shown = {"true beliefs": known.beliefs, "last state": maps[STATE](own[STATE])}
        shown |= {"all layers": maps[CONCAT](own[CONCAT])} if CONCAT in own else {}
        shown["untrained"] = of_untrained
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
        details |= {"prefixes": len(known.weights), "exact": prefixes.exact, "layers": list(own), "longest": read_most}
        main = ["r2", "r2_concat", "r2_held_out", "r2_mlp_held_out", "excess", "r2_untrained", "r2_next_token"]
        main = [name for name in main if name in metrics]
        return Findings(metrics, panels, details, notes, drawings, main, verdict=verdict(metrics))

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
                    f"{error}; with `layers` null the last state alone is read", error.capability
                ) from None
            every = states_of(snapshot, examples, rows, columns, pattern)
            by_name = dict(zip(widths, np.split(every, np.cumsum(list(widths.values()))[:-1], axis=1)))
            if len(by_name) > 1:
                by_name[CONCAT] = every
        by_name[STATE] = states_of(snapshot, examples, rows, columns)
        return by_name

    def _constrained(self, own: dict[str, np.ndarray], known: Known, truth: np.ndarray) -> dict[str, float]:
        """R^2 of constrained beliefs `truth` (m, C), from each layer and from the belief itself."""
        metrics = {}
        for name, features in {**own, "belief": known.beliefs}.items():
            predicted = fit(features, truth, known.weights, self.config.cutoff)(features)
            key = f"r2_constrained_{name}".removesuffix(f"_{STATE}")
            metrics[key] = r2(predicted, truth, known.weights)
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
        self, subject: Subject, prefixes: Prefixes, known: Known, drawn_on: list[Plane]
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
        known: Known,
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
        for key, snapshot in (("overlap", subject.snapshot), ("overlap_untrained", subject.untrained())):
            spaces = [_directions(snapshot, parts) for parts in varied]
            pairs = [(one, other) for one in range(len(spaces)) for other in range(one)]
            overlaps = [overlap(spaces[one][: many[one]], spaces[other][: many[other]]) for one, other in pairs]
            metrics[key] = float(np.mean(overlaps))
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


def _across(labels: Mapping[str, str], metrics: Mapping[str, float], ends: list[float]) -> list[Curve]:
    """A line from end to end for each metric that exists, by label."""
    return [Curve(label, ends, [metrics[key]] * 2, "control") for label, key in labels.items() if key in metrics]


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


def _by_length(values: Mapping[int, float]) -> Panel:
    """R^2 of the belief from the last state within the prefixes of each length."""
    curve = defined_curve("last state", [float(length) for length in values], list(values.values()))
    return Panel("tokens read", "R2 of the belief", [curve], shares=True)


def _by_position(excess: np.ndarray, weights: np.ndarray, columns: np.ndarray) -> Panel:
    """The excess by number of tokens read."""
    mass = np.bincount(columns, weights=weights)
    read = np.flatnonzero(mass)
    means = np.bincount(columns, weights=weights * excess)[read] / mass[read]
    return Panel("tokens read", "excess (nats per token)", [Curve("model", (read + 1.0).tolist(), means.tolist())])
