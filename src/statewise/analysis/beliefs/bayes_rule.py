"""Whether the dynamics that next-latent prediction learns are Bayes' rule in the belief's coordinates.

An affine map from states to exact beliefs is fitted on the states that the backbone computes. Then the backbone reads
one token, and the dynamics network alone continues along the others: its states, mapped, are compared with the exact
beliefs after each token, also beyond the length of training (the recurrence of Teoh et al. 2026, v4, figure 10).

States vary little in some directions. A map that weighs these up fits the backbone a little better, and multiplies any
small deviation of the dynamics there. So of several cut-offs that one is used with which predicted states fit best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from statewise.analysis.base import Analysis, Findings, Subject
from statewise.analysis.beliefs.least_squares import Fit, fit, r2
from statewise.analysis.beliefs.pictures import draw_on, planes
from statewise.analysis.beliefs.vectors import states_of
from statewise.data_types import Examples
from statewise.decoding.predictor import Predictor, StateDynamics, require
from statewise.reporting.figures import Curve, Panel, defined_curve
from statewise.runtime.bounds import bounded
from statewise.runtime.devices import in_float64
from statewise.runtime.messages import explained
from statewise.runtime.progress import announced
from statewise.tasks.base import Believed, Task, believed
from statewise.tasks.batches import blocks, collate

MOST_NUMBERS = 2**28
"""Maximum number of values of the states along all drawn sequences."""
ROWS = 256
"""Sequences read at a time."""
CUTOFFS = (1e-6, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
"""Cut-offs that are tried unless the options give one."""


@dataclass(frozen=True)
class BeliefDynamicsConfig:
    """Options of `statewise analyze RUN belief-dynamics`."""

    length: int | None = None
    """Tokens of the sequences along which the dynamics are rolled; null: twice those of training."""
    sequences: int = 2000
    """Number of these sequences, drawn from the process."""
    words: int = 10_000
    """Maximum number of sequences, as in belief-geometry, to which the map from states to beliefs is fitted, and along
    which the drawing's beliefs are rolled."""
    cutoff: float | None = None
    """Directions of the backbone's states with less than this share of the largest standard deviation are not used by
    the map; null: of several, that with which the map fits the states of the dynamics best, along the sequences to
    which it is fitted."""
    seed: int = 1
    """Seed of the sequences."""

    def __post_init__(self) -> None:
        bounded(self, "length", at_least=2, at_most=10**5)
        bounded(self, "sequences", at_least=2, at_most=10**7)
        bounded(self, "words", at_least=2, at_most=10**6)
        bounded(self, "cutoff", above=0, below=1)
        bounded(self, "seed", at_least=0)


class BeliefDynamics(Analysis):
    """R^2 of the belief from states that the dynamics predict, by number of steps and by length."""

    Config = BeliefDynamicsConfig
    config: BeliefDynamicsConfig

    @override
    def check(self, task: Task, predictor: Callable[[], Predictor]) -> None:
        world = believed(task)
        if not world.predicting(np.arange(world.row_length + world.opening - 1)).all():
            raise ValueError(
                "belief-dynamics measures the prediction of every token, and this task asks for some of them only: "
                "belief-geometry measures what it asks for"
            )
        require(predictor(), StateDynamics)

    def analyze(self, subject: Subject) -> Findings:
        """Metrics, over the lengths of training from the second token on: `r2_backbone`, of the beliefs mapped from the
        backbone's states, and `r2_dynamics` from states that the dynamics predict after the first token;
        `r2_dynamics_refitted` by a map fitted to these, which shows whether they hold the belief in another form;
        `r2_beyond` over greater lengths; `step_1_r2`, ... from any state, after 1, ... steps of the dynamics;
        `excess_backbone`, `excess_dynamics` and `excess_beyond`, the divergence of next-token distributions from the
        true ones, in nats; `agreement_dynamics` and `agreement_beyond`, how often the most likely token is a truly most
        likely one."""
        world, config = believed(subject.task), self.config
        predictor, context = subject.snapshot.predictor, subject.task.context
        dynamics = require(predictor, StateDynamics)
        prefixes = world.prefixes(config.words, config.seed)
        at = prefixes.rows, prefixes.columns
        states = states_of(subject.snapshot, prefixes.examples, *at)
        truth = world.beliefs(prefixes.examples)[at]
        rolled = _rolled_states(predictor, dynamics, prefixes.examples)[at]
        cutoffs = CUTOFFS if config.cutoff is None else (config.cutoff,)
        maps = [fit(states, truth, prefixes.weights, cutoff) for cutoff in cutoffs]
        best = int(np.argmax([r2(one(rolled), truth, prefixes.weights) for one in maps]))
        mapped, cutoff = maps[best], cutoffs[best]

        length = config.length or 2 * (context - world.opening)
        numbers = config.sequences * length * states.shape[-1]
        if numbers > MOST_NUMBERS:
            raise ValueError(
                f"{config.sequences:,} sequences of {length:,} tokens have {numbers:,} numbers of states, more than "
                f"{MOST_NUMBERS:,}: set `sequences` or `length` lower"
            )
        # A seed of four numbers, as of held-out sets: those of training batches have three.
        drawn = world.draw(np.random.default_rng([config.seed, 5, 0, 1]), config.sequences, length)
        scores = _Rolled.along(predictor, dynamics, world, drawn, context, mapped)
        metrics = scores.metrics(context)
        steps = self._by_steps(predictor, dynamics, world, drawn, context, mapped)
        metrics |= {f"step_{step + 1}_r2": value for step, value in enumerate(steps)}

        # The cut-off above was chosen for another map, and the first state is the backbone's.
        later = prefixes.columns > 0
        weights = prefixes.weights[later]
        refitted = fit(rolled[later], truth[later], weights, config.cutoff or CUTOFFS[0])(rolled[later])
        metrics["r2_dynamics_refitted"] = r2(refitted, truth[later], weights)
        shown = {
            "true beliefs": truth[later],
            "backbone": mapped(states[later]),
            "dynamics alone": mapped(rolled[later]),
            "dynamics, refitted": refitted,
        }
        drawings = draw_on(planes(world, truth[later], weights), shown)
        ahead = [float(step + 1) for step in range(len(steps))]
        from_any = defined_curve("from any state", ahead, steps)
        panels = [*scores.panels(context), Panel("steps of the dynamics", "R2 of the belief", [from_any], shares=True)]
        details = {
            "length": length,
            "context": context,
            "prefixes": len(truth),
            "exact": prefixes.exact,
            "cutoff": cutoff,
        }
        main = ["r2_dynamics", "r2_backbone", "r2_beyond", "excess_dynamics"]
        main = [key for key in main if key in metrics]
        return Findings(metrics, panels, details, [], drawings, main, verdict=_verdict(metrics, context))

    def _by_steps(
        self, predictor: Predictor, dynamics: StateDynamics, world: Believed, drawn: Examples, context: int, mapped: Fit
    ) -> list[float]:
        """R^2 after 1, 2, ... steps from the backbone's states at all positions of a row."""
        width = min(context, drawn.tokens.shape[1])
        rows = _cut(drawn, width)
        truth = world.beliefs(rows)
        now = _backbone_states(predictor, rows)
        tokens, by_steps = torch.from_numpy(rows.tokens), []
        for step in announced(range(1, width), "steps from any state", width - 1):
            kept = now[:, :-1]
            flat = dynamics.advance(kept.flatten(0, 1), tokens[:, step:].flatten())
            now = flat.view(kept.shape[0], kept.shape[1], -1)
            predicted = mapped(flat.cpu().double().numpy())
            wanted = truth[:, step:].reshape(len(predicted), -1)
            by_steps.append(r2(predicted, wanted, np.ones(len(predicted))))
        return by_steps


@dataclass(frozen=True)
class _Rolled:
    """Scores of backbone and dynamics along n sequences of T tokens, by position."""

    r2: dict[str, list[float]]
    """R^2 of the belief after each position, of the backbone as far as it reads, and of the dynamics."""
    excess: dict[str, list[float]]
    """Divergence of the next-token distribution, in nats."""
    agreement: dict[str, list[float]]
    """Share of most likely tokens that are truly most likely."""
    pooled: dict[str, float]
    """R^2 over several positions: `backbone` and `dynamics` from the second on, and `beyond`."""

    @classmethod
    def along(
        cls, predictor: Predictor, dynamics: StateDynamics, world: Believed, drawn: Examples, context: int, mapped: Fit
    ) -> _Rolled:
        """Scores of backbone and dynamics along the same sequences."""
        truth, ahead = world.beliefs(drawn), world.next_tokens(drawn)
        short = _cut(drawn, min(context, drawn.tokens.shape[1]))
        states = {"backbone": _backbone_states(predictor, short), "dynamics": _roll(dynamics, predictor, drawn)}
        logits = {"backbone": _backbone_logits(predictor, short)}
        # Before the dynamics' first step, their state is the backbone's.
        read = [dynamics.read_states(model_states) for model_states in states["dynamics"].unbind(1)[1:]]
        logits["dynamics"] = torch.stack([logits["backbone"][:, 0], *read], 1)
        scores: dict[str, dict[str, list[float]]] = {"r2": {}, "excess": {}, "agreement": {}}
        ones = np.ones(len(truth))
        predicted = {}
        for name, model_states in states.items():
            kept = model_states.cpu().double().numpy()
            predicted[name] = np.stack([mapped(kept[:, place]) for place in range(kept.shape[1])], 1)
            for key in scores:
                scores[key][name] = []
            for place in range(kept.shape[1]):
                log_probs = in_float64(logits[name][:, place]).log_softmax(-1).cpu().numpy()
                true = ahead[:, place]
                gap = np.log(np.where(true > 0, true, 1)) - np.where(true > 0, log_probs, 0)
                best = np.take_along_axis(true, log_probs.argmax(1)[:, None], 1)[:, 0]
                scores["r2"][name].append(r2(predicted[name][:, place], truth[:, place], ones))
                scores["excess"][name].append(float((true * gap).sum(1).mean()))
                scores["agreement"][name].append(float((best > true.max(1) - 1e-6).mean()))
        pooled = {}
        trained, beyond = slice(1, context), slice(context, None)
        parts = {"backbone": ("backbone", trained), "dynamics": ("dynamics", trained), "beyond": ("dynamics", beyond)}
        for name, (model, part) in parts.items():
            wanted = truth[:, part].reshape(-1, truth.shape[2])
            if len(wanted):
                mean = predicted[model][:, part].reshape(len(wanted), -1)
                pooled[name] = r2(mean, wanted, np.ones(len(wanted)))
        return cls(**scores, pooled=pooled)

    def metrics(self, context: int) -> dict[str, float]:
        """Means over the positions of training and beyond. The last position of training, after which nothing was
        predicted, counts in neither; means over no position are left out."""
        metrics = {f"r2_{name}": value for name, value in self.pooled.items()}
        excess, agreement = self.excess["dynamics"], self.agreement["dynamics"]
        if context > 2:
            trained = slice(1, context - 1)
            metrics["excess_backbone"] = float(np.mean(self.excess["backbone"][trained]))
            metrics["excess_dynamics"] = float(np.mean(excess[trained]))
            metrics["agreement_dynamics"] = float(np.mean(agreement[trained]))
        if len(excess) > context:
            metrics["excess_beyond"] = float(np.mean(excess[context:]))
            metrics["agreement_beyond"] = float(np.mean(agreement[context:]))
        return metrics

    def panels(self, context: int) -> list[Panel]:
        """Panels by number of tokens read."""
        panels = []
        for values, title, shares in (
            (self.r2, "R2 of the belief", True),
            (self.excess, "excess (nats per token)", False),
            (self.agreement, "share of best tokens", True),
        ):
            read = [float(place + 1) for place in range(max(len(scores) for scores in values.values()))]
            curves = [defined_curve(name, read, scores) for name, scores in values.items()]
            heights = [0.0, 1.0] if shares else [0.0, max(max(curve.y) for curve in curves)]
            curves.append(Curve("length of training", [float(context)] * 2, heights, "control"))
            panels.append(Panel("tokens read", title, curves, shares=shares))
        return panels


def _verdict(metrics: Mapping[str, float], context: int) -> str:
    beyond = metrics.get("r2_beyond")
    return (
        f"Rolled on from the first token, the dynamics alone explain {explained(metrics['r2_dynamics'])} of the "
        f"variance of the exact belief within the {context:,} tokens of training"
        + ("" if beyond is None else f" and {explained(beyond)} beyond them")
        + f"; the backbone, which reads every token, explains {explained(metrics['r2_backbone'])}."
    )


def _cut(examples: Examples, width: int) -> Examples:
    """The first `width` tokens of every row."""
    return replace(examples, tokens=examples.tokens[:, :width], lengths=np.minimum(examples.lengths, width))


@torch.no_grad()
def _backbone_states(predictor: Predictor, examples: Examples) -> Tensor:
    """The backbone's states, (n, T, E), of sequences of equal length."""
    return torch.cat([predictor.states(collate(part)).state.float() for _, part in blocks(examples, ROWS)])


@torch.no_grad()
def _backbone_logits(predictor: Predictor, examples: Examples) -> Tensor:
    """The backbone's logits, (n, T, V), of sequences of equal length."""
    return torch.cat([predictor.logits(collate(part)).float() for _, part in blocks(examples, ROWS)])


@torch.no_grad()
def _roll(dynamics: StateDynamics, predictor: Predictor, examples: Examples) -> Tensor:
    """(n, T, E): the backbone's state after the first token, and those that the dynamics predict after the others."""
    states = [_backbone_states(predictor, _cut(examples, 1))[:, 0]]
    columns = torch.from_numpy(examples.tokens).T[1:]
    for column in announced(columns, "steps of the dynamics", len(columns)):
        states.append(dynamics.advance(states[-1], column).float())
    return torch.stack(states, 1)


def _rolled_states(predictor: Predictor, dynamics: StateDynamics, examples: Examples) -> np.ndarray:
    """(n, T, E): as `_roll`, in NumPy."""
    states: np.ndarray = _roll(dynamics, predictor, examples).cpu().numpy()
    return states
