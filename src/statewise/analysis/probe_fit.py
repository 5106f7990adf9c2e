"""Many small classifiers on frozen states, trained at once.

Probes of G groups (a model each, or a control) answer P questions each: G x P networks that share nothing but the
order of the data, in one batched product a layer. A sum of losses has the gradient of each in that one's own weights,
and Adam works element by element, so that every probe ends as if it had been trained alone.

A probe begins as the constant guess, each label as likely as it is frequent, and is kept as it was at its best on rows
that it does not learn from: where these are many, one whose states tell nothing stays with that guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

UNDEFINED = -100
"""Label of a question that has no answer: it counts for nothing."""
CHECKS = 20
"""Times that the probes are tried on the validation rows."""
LARGEST = 2**26
"""Logits of one step, at most: more groups than that allows are trained one after another."""


@dataclass(frozen=True)
class FitConfig:
    """How probes are trained."""

    probe: Literal["mlp", "linear"] = "mlp"
    """A network with one hidden layer, or a linear map."""
    hidden: int = 128
    """Width of the hidden layer."""
    steps: int = 1000
    """Steps of Adam."""
    batch_size: int = 256
    """States a step."""
    learning_rate: float = 1e-2
    """Of Adam; falls linearly to zero."""
    seed: int = 0
    """Decides examples, initial weights and the order of the data."""

    def __post_init__(self) -> None:
        for name in ("hidden", "steps", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be positive, not {self.learning_rate}")
        if self.seed < 0:
            raise ValueError(f"seed must not be negative, not {self.seed}")


@dataclass(frozen=True)
class Sample:
    """States and what probes shall say of them."""

    states: list[Tensor]
    """(n, D) for each of the G groups; they may share one."""
    labels: Tensor
    """(G, n, P) int64 classes, or `UNDEFINED`."""


@dataclass(frozen=True)
class Answers:
    """What trained probes said of a sample."""

    right: np.ndarray
    """(G, n, P) bool: the most likely class was the label."""
    surprise: np.ndarray
    """(G, n, P) float64: minus the log-probability of the label, in nats; 0 where it is undefined."""


def fit_and_answer(train: Sample, validation: Sample, test: Sample, classes: int, config: FitConfig) -> Answers:
    """Trains probes on `train`, keeps each at its best on `validation`, and asks them about `test`."""
    P = train.labels.shape[2]
    at_once = max(1, LARGEST // (P * config.batch_size * classes))
    right, surprise = [], []
    for start in range(0, len(train.states), at_once):
        groups = slice(start, start + at_once)
        some = [Sample(sample.states[groups], sample.labels[groups]) for sample in (train, validation, test)]
        probes = Probes(some[0], classes, config)
        probes.fit(some[0], some[1], order(len(train.states[0]), config), config)
        nats, hits = probes.answer(some[2])
        right.append(hits.cpu().numpy())
        surprise.append(nats.double().cpu().numpy())
    return Answers(np.concatenate(right), np.concatenate(surprise))


def order(n: int, config: FitConfig) -> list[np.ndarray]:
    """The rows of each step's batch: n rows are walked again and again, each time in a new order."""
    rng = np.random.default_rng([config.seed, n])
    size = min(config.batch_size, n)
    walks = -(-config.steps * size // n)
    rows = np.concatenate([rng.permutation(n) for _ in range(walks)])
    return [rows[step * size : (step + 1) * size] for step in range(config.steps)]


def log_frequencies(labels: Tensor, classes: int) -> Tensor:
    """(G, n, P) labels -> (G, P, C): log of each one's share, counted once more than it occurs: none is impossible."""
    asked = torch.where(labels == UNDEFINED, classes, labels).transpose(1, 2)
    counts = torch.ones(*asked.shape[:2], classes + 1, dtype=torch.float64, device=labels.device)
    counts.scatter_add_(2, asked, torch.ones_like(asked, dtype=torch.float64))
    counts = counts[..., :classes]
    return (counts / counts.sum(-1, keepdim=True)).log()


class Probes:
    """G x P probes from states of D numbers to C classes. States are standardised as the training rows ask for."""

    def __init__(self, train: Sample, classes: int, config: FitConfig) -> None:
        G, (D, P), like = len(train.states), (train.states[0].shape[1], train.labels.shape[2]), train.states[0]
        self.mean = torch.stack([states.mean(0) for states in train.states])
        spread = torch.stack([states.std(0, correction=0) for states in train.states])
        self.spread = torch.where(spread > 0, spread, 1.0)
        generator = torch.Generator().manual_seed(config.seed)

        def of_every_group(weights: Tensor) -> Tensor:
            # Groups begin with the same weights, so that what differs in the end comes from the states.
            weights = weights.expand(G, *weights.shape).clone().to(like.device, like.dtype)
            return weights.requires_grad_()

        self.weights: list[Tensor] = []
        inner = D
        if config.probe == "mlp":
            inner = config.hidden
            drawn = [torch.randn(D, inner, generator=generator) * D**-0.5 for _ in range(P)]
            self.weights += [of_every_group(torch.stack(drawn)), of_every_group(torch.zeros(P, inner))]
        guess = log_frequencies(train.labels, classes).to(like.device, like.dtype)
        self.weights += [of_every_group(torch.zeros(P, inner, classes)), guess.requires_grad_()]

    def logits(self, states: list[Tensor]) -> Tensor:
        """(n, D) for each group -> (G, P, n, C)."""
        x = (torch.stack(states) - self.mean[:, None]) / self.spread[:, None]
        inner = x[:, None].expand(-1, self.weights[0].shape[1], -1, -1)
        *first, matrix, bias = self.weights
        if first:
            inner = torch.relu(affine(inner, *first))
        return affine(inner, matrix, bias)

    def fit(self, train: Sample, validation: Sample, batches: list[np.ndarray], config: FitConfig) -> None:
        """Trains on `batches` of rows, and ends with the weights that were best on the validation rows."""
        adam = torch.optim.Adam(self.weights, lr=config.learning_rate, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: 1 - step / len(batches))
        lowest = self.answer(validation)[0].sum(1)
        best = [weights.detach().clone() for weights in self.weights]
        for number, batch in enumerate(batches, 1):
            rows = torch.from_numpy(batch).to(self.mean.device)
            labels = train.labels[:, rows].transpose(1, 2)
            losses = cross_entropy(self.logits([states[rows] for states in train.states]), labels)
            adam.zero_grad()
            # The rows of a batch that have a label are few for some questions: a mean over them, question by question.
            total = (losses.sum(2) / (labels != UNDEFINED).sum(2).clamp(min=1)).sum()
            total.backward()  # type: ignore[no-untyped-call]
            adam.step()
            schedule.step()
            if number % max(1, len(batches) // CHECKS) == 0 or number == len(batches):
                found = self.answer(validation)[0].sum(1)  # the mean would order them alike
                better = found < lowest
                lowest = torch.where(better, found, lowest)
                for kept, weights in zip(best, self.weights):
                    chosen = better.view(*better.shape, *[1] * (weights.dim() - 2))
                    kept.copy_(torch.where(chosen, weights.detach(), kept))
        self.weights = best

    @torch.no_grad()
    def answer(self, sample: Sample) -> tuple[Tensor, Tensor]:
        """(G, n, P) nats of each label, and whether it was the most likely class."""
        nats, hits = [], []
        for start in range(0, len(sample.states[0]), 256):
            labels = sample.labels[:, start : start + 256].transpose(1, 2)
            logits = self.logits([states[start : start + 256] for states in sample.states])
            nats.append(cross_entropy(logits, labels).transpose(1, 2))
            hits.append((logits.argmax(-1) == labels).transpose(1, 2))
        return torch.cat(nats, 1), torch.cat(hits, 1)


def affine(x: Tensor, matrix: Tensor, bias: Tensor) -> Tensor:
    """(G, P, n, D), (G, P, D, C), (G, P, C) -> (G, P, n, C)."""
    flat = torch.baddbmm(bias.flatten(0, 1)[:, None], x.flatten(0, 1), matrix.flatten(0, 1))
    return flat.view(*x.shape[:3], -1)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """(G, P, n) nats of `labels` (G, P, n) under `logits` (G, P, n, C); 0 where undefined."""
    flat = F.cross_entropy(logits.flatten(0, 2), labels.flatten(), ignore_index=UNDEFINED, reduction="none")
    return flat.view(labels.shape)
