"""The next tokens of rows that are decoded together, each chosen as its own request asks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from statewise.decoding.noise import gumbel
from statewise.decoding.sample import Sample, SampleConfig
from statewise.serving.rows import Alternatives, Row


class Choice(NamedTuple):
    """The next token of each row."""

    tokens: list[int]
    log_probabilities: list[float]
    """Under the model; not finite if the model's output is not."""
    alternatives: list[Alternatives]
    """Empty for rows that want none."""


def choose(logits: Tensor, rows: Sequence[Row], vocabulary: int) -> Choice:
    """Chooses from `logits` (B, V), or (B, V + 1) where the model has a closing symbol; they are changed. `vocabulary`:
    V. As `greedy` and `sample` choose, for each row by its own seed and settings."""
    _ban(logits, rows, vocabulary)
    tokens = logits.argmax(-1).cpu()
    sampled: defaultdict[SampleConfig, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        if row.manner.sampling is not None:
            sampled[row.manner.sampling].append(place)
    for config, places in sampled.items():
        kept = Sample(config).cut(logits[places].cpu().double())
        some = [rows[place] for place in places]
        noise = gumbel(
            [row.manner.seed for row in some],
            np.array([row.number for row in some]),
            np.array([row.position for row in some]),
            kept.shape[1],
        )
        tokens[places] = (kept + noise).argmax(-1)
    gained = logits.gather(1, tokens[:, None].to(logits.device))[:, 0] - logits.logsumexp(-1)
    return Choice(tokens.tolist(), gained.tolist(), alternatives(logits, rows))


def alternatives(logits: Tensor, rows: Sequence[Row]) -> list[Alternatives]:
    """The likeliest tokens of each row, as many as it wants."""
    wanted = [row.manner.alternatives or 0 for row in rows]
    if not any(wanted):
        return [[] for _ in rows]
    best, places = logits.log_softmax(-1).topk(min(max(wanted), logits.shape[1]))
    return [
        list(zip(row_tokens[:count], row_best[:count]))
        for row_tokens, row_best, count in zip(places.tolist(), best.tolist(), wanted)
    ]


def _ban(logits: Tensor, rows: Sequence[Row], vocabulary: int) -> None:
    banned = [(place, row.request.banned) for place, row in enumerate(rows) if row.request.banned is not None]
    if logits.shape[1] > vocabulary:
        banned += [(place, vocabulary) for place, row in enumerate(rows) if row.request.closing is None]
    if banned:
        places, tokens = zip(*banned)
        logits[list(places), list(tokens)] = -torch.inf
