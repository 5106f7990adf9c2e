"""Scores of a model's predictions: nats per token and per unit, and most likely tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from statewise.batch import Batch
    from statewise.decoding.predictor import Predictor


class Scores(NamedTuple):
    """A model's scores of given tokens, on the host."""

    nats: np.ndarray
    """(B, n) float64: negative natural logarithm of each token's probability."""
    choices: np.ndarray
    """(B, n) int64: the most likely tokens."""


def score(logits: Tensor, tokens: Tensor) -> Scores:
    """Scores of `tokens` (B, n) under `logits` (B, n, V). Only (B, n) numbers leave the logits' device."""
    exact = torch.promote_types(logits.dtype, torch.float32)
    own = logits.gather(-1, tokens.to(logits.device)[..., None])[..., 0].to(exact)
    nats = logits.to(exact).logsumexp(-1) - own
    return Scores(nats.cpu().double().numpy(), logits.argmax(-1).cpu().numpy())


def score_batch(predictor: Predictor, batch: Batch, first: int, end: int) -> Scores:
    """Scores of the tokens in columns [first, end) of a batch, first >= 1, with teacher forcing."""
    return score(predictor.logits(batch)[:, first - 1 : end - 1], batch.tokens[:, first:end])


def per_token(nats: float, count: int) -> dict[str, float]:
    """`loss` (nats per token) and `perplexity` of `count` tokens. Raises `ValueError` if it is 0."""
    if not count:
        raise ValueError("there is no token to score")
    return {"loss": nats / count, "perplexity": perplexity(nats / count)}


def per_unit(nats: float, units: Mapping[str, int]) -> dict[str, float]:
    """Loss per unit (nats) for each unit that occurs, such as words, and the conventional figure: bits per byte,
    otherwise perplexity. `nats` is the total."""
    metrics: dict[str, float] = {}
    for unit, count in units.items():
        if count:
            loss = nats / count
            metrics[f"loss_per_{unit}"] = loss
            if unit == "byte":
                metrics["bits_per_byte"] = loss / math.log(2)
            else:
                metrics[f"perplexity_per_{unit}"] = perplexity(loss)
    return metrics


def perplexity(loss: float) -> float:
    """The perplexity of a loss in nats; infinite from 700 nats on."""
    return math.inf if loss >= 700 else math.exp(loss)
