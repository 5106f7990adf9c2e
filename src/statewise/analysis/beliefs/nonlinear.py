"""A network of one hidden layer from states to beliefs, for what an affine map does not find."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from statewise.analysis.beliefs.least_squares import CUTOFF, r2

HIDDEN, STEPS, ROWS, RATE = 128, 1000, 256, 1e-2
"""Width of the hidden layer, steps of Adam, prefixes per step, and the first learning rate. It falls linearly to 0."""


# An analysis runs under the precision of the run, whose casts of weights are kept.
@torch.autocast("cpu", enabled=False)  # type: ignore[untyped-decorator]
def mlp_r2(
    features: np.ndarray, targets: np.ndarray, weights: np.ndarray, folds: np.ndarray, seed: int
) -> tuple[float, float]:
    """R^2 of targets (m, C) from features (m, D) by a network fitted to all rows, and by networks fitted to all but the
    fold that they predict. `weights` (m,): the shares with which rows are drawn and counted; `folds` (m,)
    int, rows with a negative one are not scored in the second. The same seed gives the same networks. Raises
    `ValueError` if one fold has all the weight."""
    scored = np.unique(folds[folds >= 0])
    left_out = [np.full(len(folds), False), *(folds == fold for fold in scored)]
    rng, G = np.random.default_rng(seed), len(left_out)
    rows = np.stack([_drawn(rng, np.where(out, 0.0, weights)) for out in left_out], 1)  # (STEPS, G, ROWS)
    centre, spread = weights @ features / weights.sum(), features.std(0)
    spread = np.where(spread > CUTOFF * spread.max(), spread, np.inf)
    x = torch.from_numpy((features - centre) / spread).float()
    y = torch.from_numpy(targets - weights @ targets / weights.sum()).float()
    generator = torch.Generator().manual_seed(seed)
    D, C = x.shape[1], y.shape[1]
    first = (torch.randn(D, HIDDEN, generator=generator) * D**-0.5).expand(G, -1, -1).clone().requires_grad_()
    second = torch.zeros(G, HIDDEN, C, requires_grad=True)
    biases = [torch.zeros(G, 1, width, requires_grad=True) for width in (HIDDEN, C)]

    def predict(states: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(biases[1], F.relu(torch.baddbmm(biases[0], states, first)), second)

    adam = torch.optim.Adam([first, second, *biases], lr=RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: 1 - step / STEPS)
    for drawn in torch.from_numpy(rows):
        adam.zero_grad()
        ((predict(x[drawn]) - y[drawn]) ** 2).mean((1, 2)).sum().backward()  # type: ignore[no-untyped-call]
        adam.step()
        schedule.step()
    with torch.no_grad():
        predicted = predict(x.expand(G, -1, -1)).numpy().astype(np.float64)
    others, known = np.zeros_like(predicted[0]), folds >= 0
    for group, out in enumerate(left_out[1:], 1):
        others[out] = predicted[group][out]
    truth = y.numpy().astype(np.float64)
    return r2(predicted[0], truth, weights), r2(others[known], truth[known], weights[known])


def _drawn(rng: np.random.Generator, weights: np.ndarray) -> np.ndarray:
    """(STEPS, ROWS) rows, drawn by their weights."""
    return rng.choice(len(weights), (STEPS, ROWS), p=weights / weights.sum())
