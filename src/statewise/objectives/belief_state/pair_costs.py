"""How many prefix-suffix pairs a step of the Belief State Transformer takes, counted without listing them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from statewise.objectives.belief_state.pairs import Pairs, Sampling


class PairNumbers(NamedTuple):
    """What the text head computes of a batch; of sampled pairs the expected number."""

    prefixes: int
    """Different prefix states in pairs, the empty one included."""
    suffixes: int
    """Different suffix states in pairs, the empty one included."""
    pairs: float
    """Pairs that count for a head, once each."""
    next_tokens: float
    """Those that count for the next token."""
    previous_tokens: float
    """Those that count for the previous token."""


def pair_numbers(pairs: Pairs, sampling: Sampling, closed: bool) -> PairNumbers:
    """The numbers of a batch on the host. `closed`: with the pairs that have nothing between them."""
    group, following, previous, prefixes = (
        getattr(pairs, name).numpy() for name in ("group", "next_targets", "previous_targets", "prefixes")
    )
    following, previous, prefixes = (mask & (group > 0) for mask in (following, previous, prefixes))
    B, T = group.shape
    column = np.broadcast_to(np.arange(T), (B, T))
    opens, ends = np.diff(group, axis=1, prepend=-1) != 0, np.diff(group, axis=1, append=-1) != 0
    first = np.maximum.accumulate(np.where(opens, column, 0), axis=1)
    last = np.minimum.accumulate(np.where(ends, column, T - 1)[:, ::-1], axis=1)[:, ::-1]

    def within(mask: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """(B, T): how many columns low .. high of the same row are in `mask`."""
        total = np.pad(mask.cumsum(axis=1), ((0, 0), (1, 0)))
        counted = np.take_along_axis(total, high + 1, 1) - np.take_along_axis(total, np.minimum(low, high + 1), 1)
        return np.maximum(counted, 0)

    def number(own: np.ndarray, from_: np.ndarray, to: np.ndarray, longest: int) -> np.ndarray:
        """(3,): pairs with at most `longest` hidden tokens that count for the next token, the previous one, and both.
        Prefix columns are in `own`, from `from_` of their document on; suffix columns go up to `to`."""
        furthest = np.minimum(to, column + longest - 1)
        nearest = np.maximum(from_, column - longest + 1)
        later = within(np.ones_like(own), column, furthest) * own
        earlier = within(prefixes & own, nearest, column) * (column <= to)
        both = within(previous, column, furthest) * own
        return np.array(
            [(later * following).sum(), (earlier * previous).sum(), (both * (following & prefixes)).sum()], np.float64
        )

    every = np.ones_like(following)
    taken = number(every, first, last, T)
    if not sampling.takes_all:
        interior = (~opens, first + 1, last - 1)
        taken += sampling.share * number(*interior, sampling.max_gap or T) - number(*interior, T)
    # States are numbered as in `pairs.Layout`: 0 is the empty one, 1 + b T + t ends, or begins, with token t of row b.
    own = 1 + np.arange(B)[:, None] * T + column
    as_prefix = following | (prefixes & (within(previous, column, last) > 0))
    as_suffix = (within(following, first, column) > 0) | (previous & (within(prefixes, first, column) > 0))
    used_prefixes = [np.where(opens, 0, own - 1)[as_prefix]]
    used_suffixes = [np.where(ends, 0, own + 1)[as_suffix & (group > 0)]]
    if closed:
        meeting = following | (previous & prefixes)
        used_prefixes += [np.where(opens, 0, own - 1)[meeting], own[meeting & ends]]
        used_suffixes.append(own[meeting])
        for mask in (every, ends):
            taken += [(part & mask).sum() for part in (following, previous & prefixes, following & previous & prefixes)]
    different = [len(np.unique(np.concatenate([[0], *used]))) for used in (used_prefixes, used_suffixes)]
    return PairNumbers(
        different[0], different[1], float(taken[0] + taken[1] - taken[2]), float(taken[0]), float(taken[1])
    )
