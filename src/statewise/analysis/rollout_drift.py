"""How learned dynamics drift from the states that the backbone computes, the further they are rolled out.

The dynamics go on from the backbone's state along the true tokens, and after each step their state is compared with the
backbone's at that position (Teoh et al. 2026: the parts of their loss by step, and how many drafts are accepted).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F
from typing_extensions import override

from statewise.analysis.base import Analysis, Findings, Subject, percent
from statewise.data_types import Batch
from statewise.decoding.predictor import Predictor, StateDynamics, require
from statewise.reporting.figures import Curve, Panel
from statewise.runtime.bounds import bounded
from statewise.tasks.base import Task
from statewise.tasks.batches import blocks, collate, rows_at_once

ROWS = 16
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
        few = rows_at_once(examples.tokens.shape[1], predictor.vocabulary, ROWS)
        for _, part in blocks(examples, few):
            _add(predictor, dynamics, collate(part), self.config.steps, sums, counts)
        reached = [step for step in range(1, self.config.steps + 1) if counts[step]]
        if not reached:
            raise ValueError("the held-out sequences have one token each: dynamics need at least two")
        means = {
            name: {step: found[step] / counts[step] for step in range(len(counts)) if counts[step]}
            for name, found in sums.items()
        }
        metrics = {f"step_{step}_{name}": means[name][step] for name in NAMES for step in reached}
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


NAMES = ("latent", "kl", "norm", "greedy", "sampled")
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
        found = {
            "latent": F.smooth_l1_loss(ahead.float(), true.float(), reduction="none").mean(-1),
            "kl": (wanted.exp() * (wanted - drafted)).sum(-1),
            "norm": ahead.float().norm(dim=-1),
            "greedy": drafted.argmax(-1) == wanted.argmax(-1),
            "sampled": torch.minimum(drafted, wanted).exp().sum(-1),
        }
        for name, values in found.items():
            sums[name][step] += float(values.sum())
        counts[step] += len(ahead)
