"""What a model lets follow a prefix: continuations drawn from it, and the probabilities that it gives to given ones."""

from __future__ import annotations

import numpy as np
import torch

from statewise.data import rows_at_once
from statewise.decoding.base import Predictor
from statewise.decoding.sample import Sample, SampleConfig
from statewise.types import Examples

ROWS = 1024
"""Continuations handled at a time, fewer where their logits would be too many."""


def by_length(prefixes: Examples) -> list[np.ndarray]:
    """Row numbers of prefixes of one length each: decoding needs no padding then."""
    return [np.flatnonzero(prefixes.lengths == length) for length in np.unique(prefixes.lengths)]


def draw(
    predictor: Predictor, prefixes: np.ndarray, count: int, *, limit: int, end: int | None, floor: float, seed: int
) -> list[list[np.ndarray]]:
    """`count` continuations of each of `prefixes` (n, t), of at most `limit` tokens, from the model's distribution
    without the tokens whose probability is below `floor`."""
    repeated = np.repeat(prefixes, count, axis=0)
    found = []
    for start in range(0, len(repeated), ROWS):
        own = np.random.SeedSequence([seed, prefixes.shape[1], start])  # no two blocks, nor lengths, draw alike
        decoder = Sample(SampleConfig(floor=floor, seed=int(own.generate_state(1)[0])))
        found += decoder.decode(predictor, repeated[start : start + ROWS], limit=limit, end=end)
    tails = [completion.tokens for completion in found]
    return [tails[row : row + count] for row in range(0, len(tails), count)]


@torch.no_grad()
def probabilities(
    predictor: Predictor, prefixes: np.ndarray, which: np.ndarray, tails: list[np.ndarray]
) -> list[np.ndarray]:
    """The probability of each token of each of the r `tails` (m,), behind the prefix `which` (r,) of `prefixes` (n, t)
    and the tail's tokens before it. The prefixes are read once for each block of tails."""
    if not tails:
        return []
    rows = np.zeros((len(tails), max(map(len, tails))), np.int64)
    for row, tail in enumerate(tails):
        rows[row, : len(tail)] = tail
    block = rows_at_once(rows.shape[1], predictor.vocabulary, ROWS)
    found = np.empty(rows.shape)
    for start in range(0, len(rows), block):
        part = torch.from_numpy(rows[start : start + block])
        needed, own = np.unique(which[start : start + block], return_inverse=True)
        cursor, first = predictor.start(torch.from_numpy(prefixes[needed]))
        order = torch.from_numpy(own)
        predictor.reorder(cursor, order)
        logits = first[order.to(first.device)][:, None]
        if part.shape[1] > 1:
            logits = torch.cat([logits, predictor.extend(cursor, part[:, :-1])], dim=1)
        shares = logits.softmax(-1).gather(-1, part.to(logits.device)[:, :, None])[:, :, 0]
        found[start : start + block] = shares.cpu().numpy()
    return [found[row, : len(tail)] for row, tail in enumerate(tails)]
