"""Trains many probes (small classifiers on frozen states) at once.

For each of G groups (a model or a control) there are P probes: G x P networks that share only the order of the data,
computed by one batched product per layer. The losses are summed and Adam is element-wise, so that every probe is
trained as if alone.

A probe starts as the constant guess by label frequencies, and its weights with the lowest validation loss are kept:
with enough validation data, a probe of uninformative states stays at that guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from statewise.runtime.bounds import bounded
from statewise.runtime.progress import announced

UNDEFINED = -100
"""Label of entries to ignore."""
CHECKS = 20
"""Number of validations during training."""
LARGEST = 2**26
"""Maximum number of logits per step: groups beyond it are trained one after another."""


@dataclass(frozen=True)
class FitConfig:
    """How probes are trained."""

    probe: Literal["mlp", "linear"] = "mlp"
    """One hidden layer, or linear."""
    hidden: int = 128
    """Width of the hidden layer."""
    steps: int = 1000
    """Steps of Adam."""
    batch_size: int = 256
    """States per step."""
    learning_rate: float = 1e-2
    """Learning rate of Adam, which decays linearly to zero."""
    seed: int = 0
    """Decides examples, initial weights and the order of the data."""

    def __post_init__(self) -> None:
        bounded(self, "hidden", "steps", "batch_size", at_least=1)
        bounded(self, "learning_rate", above=0)
        bounded(self, "seed", at_least=0)


@dataclass(frozen=True)
class Sample:
    """States with the labels to predict."""

    states: list[Tensor]
    """(n, D) for each of the G groups; groups may share a tensor."""
    labels: Tensor
    """(G, n, P) int64 classes, or `UNDEFINED`."""


@dataclass(frozen=True)
class Answers:
    """Predictions of trained probes."""

    right: np.ndarray
    """(G, n, P) bool: the most likely class is the label."""
    surprise: np.ndarray
    """(G, n, P) float64: negative log-likelihood of the label in nats; 0 where it is undefined."""


def fit_and_answer(train: Sample, validation: Sample, test: Sample, classes: int, config: FitConfig) -> Answers:
    """Trains probes on `train`, selects each by `validation`, and evaluates them on `test`."""
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
        surprise.append(nats.cpu().double().numpy())
    return Answers(np.concatenate(right), np.concatenate(surprise))


def order(n: int, config: FitConfig) -> list[np.ndarray]:
    """The rows of each step's batch: epochs over n rows, each in a new order."""
    rng = np.random.default_rng([config.seed, n])
    size = min(config.batch_size, n)
    epochs = -(-config.steps * size // n)
    rows = np.concatenate([rng.permutation(n) for _ in range(epochs)])
    return [rows[step * size : (step + 1) * size] for step in range(config.steps)]


def log_frequencies(labels: Tensor, classes: int) -> Tensor:
    """(G, n, P) labels -> (G, P, C): log-frequencies of the classes with add-one smoothing, on the host."""
    labels = labels.cpu()  # some devices have no float64
    known = torch.where(labels == UNDEFINED, classes, labels).transpose(1, 2)
    counts = torch.ones(*known.shape[:2], classes + 1, dtype=torch.float64)
    counts.scatter_add_(2, known, torch.ones_like(known, dtype=torch.float64))
    counts = counts[..., :classes]
    return (counts / counts.sum(-1, keepdim=True)).log()


class Probes:
    """G x P probes from states of width D to C classes. States are standardised by the training rows."""

    def __init__(self, train: Sample, classes: int, config: FitConfig) -> None:
        G, (D, P), like = len(train.states), (train.states[0].shape[1], train.labels.shape[2]), train.states[0]
        self.mean = torch.stack([states.mean(0) for states in train.states])
        spread = torch.stack([states.std(0, correction=0) for states in train.states])
        self.spread = torch.where(spread > 0, spread, 1.0)
        generator = torch.Generator().manual_seed(config.seed)

        def of_every_group(weights: Tensor) -> Tensor:
            # Groups start with the same weights, so that differences in the end are due to the states.
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
        """Trains on `batches` of rows, and keeps the weights with the lowest validation loss."""
        adam = torch.optim.Adam(self.weights, lr=config.learning_rate, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: 1 - step / len(batches))
        lowest = self.answer(validation)[0].sum(1)
        best = [weights.detach().clone() for weights in self.weights]
        for number, batch in enumerate(announced(batches, "steps of probes", len(batches)), 1):
            rows = torch.from_numpy(batch).to(self.mean.device)
            labels = train.labels[:, rows].transpose(1, 2)
            losses = cross_entropy(self.logits([states[rows] for states in train.states]), labels)
            adam.zero_grad()
            # Some probes have few labels in a batch: the mean is taken over those, probe by probe.
            total = (losses.sum(2) / (labels != UNDEFINED).sum(2).clamp(min=1)).sum()
            total.backward()  # type: ignore[no-untyped-call]
            adam.step()
            schedule.step()
            if number % max(1, len(batches) // CHECKS) == 0 or number == len(batches):
                losses_now = self.answer(validation)[0].sum(1)  # orders them as the mean does
                better = losses_now < lowest
                lowest = torch.where(better, losses_now, lowest)
                for kept, weights in zip(best, self.weights):
                    chosen = better.view(*better.shape, *[1] * (weights.dim() - 2))
                    kept.copy_(torch.where(chosen, weights.detach(), kept))
        self.weights = best

    @torch.no_grad()
    def answer(self, sample: Sample) -> tuple[Tensor, Tensor]:
        """(G, n, P): nats of each label, and whether it is the most likely class."""
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
