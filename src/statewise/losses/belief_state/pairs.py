"""Which prefix-suffix pairs of the Belief State Transformer count, how much, how many there are, and in which blocks
they are computed.

A pair is a gap in a document: tokens p .. s are hidden, the prefix before p and the suffix behind s are known. The next
token is the one at p, the previous token the one at s. A document of T tokens has T (T + 1) / 2 pairs with something
between them. Documents are grouped by length, wherever they stand in a packed row, so that hardly any pair is computed
that does not count; within a group a block of neighbouring prefixes with all suffixes behind them is a slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from statewise.backbones.nn.differentiable_once import eager
from statewise.backbones.nn.masks import document_starts
from statewise.runtime.devices import to_device

PADDED = 1.2
"""Documents share a group if that computes at most this many times the pairs that count ..."""
FEW = 4096
"""... or at most this many pairs in total."""

WASTED = {"cpu": 128, "cuda": 2**14}
"""About half of the pairs that a block may compute although they do not count. More waste is slower than one more
block; a GPU, which starts a block's hundred operations one by one, prefers few large blocks."""

AT_ONCE = 2**20
"""Pairs whose expected weights are added up at a time."""


class Pairs(NamedTuple):
    """Which tokens are targets of which head, under the convention for prompts."""

    tokens: Tensor
    """(B, T) int64: the target in each column."""
    group: Tensor
    """(B, T) int64: number of the document, 0 on padding; a pair lies within one."""
    next_targets: Tensor
    """(B, T) bool: the token in this prefix column is a target of the next-token head."""
    previous_targets: Tensor
    """(B, T) bool: the token in this suffix column is a target of the previous-token head."""
    prefixes: Tensor
    """(B, T) bool: the prefix before this column is used for previous tokens."""


class Sampling(NamedTuple):
    """Which pairs with both sides non-empty are taken. Pairs with an empty side all are, with weight 1."""

    share: float = 1.0
    """Probability of each prefix column to be drawn, with all its suffixes; those drawn weigh 1 / share."""
    max_gap: int | None = None
    """Most hidden tokens of a pair."""
    exponent: float = 0.0
    """A pair with g hidden tokens weighs g to the power of minus this."""

    @property
    def takes_all(self) -> bool:
        """Whether every pair counts once."""
        return self == Sampling()

    def by_gap(self, longest: int) -> np.ndarray:
        """(longest,): weights of interior pairs with 1, 2, ... hidden tokens, before sampling."""
        hidden = np.arange(1, longest + 1, dtype=np.float64)
        return np.where(hidden <= (self.max_gap or longest), hidden**-self.exponent, 0.0)


class Block(NamedTuple):
    """Pairs of `documents`: the prefixes at `places` with the suffixes `suffixes`."""

    documents: slice
    places: slice
    suffixes: slice


class Group(NamedTuple):
    """Pairs of n documents of about the same length: r prefixes and S suffixes of each."""

    prefix: Tensor
    """(n, r) int64: rows of `Layout.prefix_rows`."""
    suffix: Tensor
    """(n, S) int64: rows of `Layout.suffix_rows`."""
    place: Tensor
    """(n, r) int64: the suffix place whose hidden token is the next one; later ones have longer gaps."""
    next_tokens: Tensor
    """(n, r) int64."""
    previous_tokens: Tensor
    """(n, S) int64."""
    next_targets: Tensor
    """(n, r) bool; False on padding, as the following."""
    prefixes: Tensor
    """(n, r) bool."""
    previous_targets: Tensor
    """(n, S) bool."""
    suffixes: Tensor
    """(n, S) bool."""
    by_gap: Tensor | None
    """(G,) weights of pairs with 1, 2, ..., G hidden tokens, 0 beyond; None: all 1."""
    bounds: np.ndarray
    """(2, r): least and largest place of each prefix column, on the host."""

    def to(self, device: torch.device) -> Group:
        """The group on a device."""
        return Group._make(to_device(part, device) if isinstance(part, Tensor) else part for part in self)

    def weights(self, block: Block, outputs: int) -> Tensor:
        """(b, r, S, K): how much each pair counts for the next and for the previous token; K = `outputs`."""
        documents, places, suffixes = block
        place = self.place[documents, places, None]
        gap = torch.arange(suffixes.start, suffixes.stop, device=place.device) - place
        counted = gap >= 0
        following = counted & self.next_targets[documents, places, None] & self.suffixes[documents, None, suffixes]
        weights = [following]
        if outputs == 2:
            previous = self.prefixes[documents, places, None] & self.previous_targets[documents, None, suffixes]
            weights.append(counted & previous)
        masks = torch.stack(weights, dim=-1)
        if self.by_gap is None:
            return masks
        longest = len(self.by_gap)
        factors = self.by_gap[gap.clamp(0, longest - 1)] * (gap < longest)
        return masks * factors[..., None]

    def blocks(self, size: int, wasted: int = WASTED["cpu"]) -> Iterator[Block]:
        """All pairs, about `size` at a time; the first prefixes of a block waste a small triangle, of about half of
        `wasted` pairs."""
        n, r = self.prefix.shape
        place = 0
        while place < r:
            first, end = self._reach(place, r)
            if first >= end:
                return
            width = end - first if self.by_gap is None else min(end - first, len(self.by_gap))
            most = max(1, round((wasted / n) ** 0.5))
            prefixes = min(max(1, size // (n * width)), most, r - place)
            places = slice(place, place + prefixes)
            suffixes = slice(*self._reach(place, places.stop))
            several = max(1, min(n, size // (prefixes * max(1, suffixes.stop - suffixes.start))))
            if suffixes.start < suffixes.stop:
                for start in range(0, n, several):
                    yield Block(slice(start, min(start + several, n)), places, suffixes)
            place += prefixes

    def tiles(self, states: int) -> Iterator[Block]:
        """All pairs, in blocks with about `states` prefixes and suffixes, as few as that allows."""
        n, r = self.prefix.shape
        several = max(1, min(n, states // (r + self.suffix.shape[1])))
        side = max(1, states // 2)
        for start in range(0, n, several):
            for place in range(0, r, side):
                places = slice(place, min(place + side, r))
                first, end = self._reach(place, places.stop)
                for suffix in range(first, end, side):
                    yield Block(slice(start, min(start + several, n)), places, slice(suffix, min(suffix + side, end)))

    def strips(self, block: Block, parts: int) -> Iterator[tuple[slice, slice]]:
        """A block in `parts` parts of its prefixes, each with those of its suffixes that they have pairs with; as
        slices of the block."""
        first, end = block.places.start, block.places.stop
        size = -(-(end - first) // parts)
        for place in range(first, end, size):
            stop = min(place + size, end)
            low, high = self._reach(place, stop)
            columns = slice(max(low, block.suffixes.start), min(high, block.suffixes.stop))
            if columns.start < columns.stop:
                shift = block.suffixes.start
                yield slice(place - first, stop - first), slice(columns.start - shift, columns.stop - shift)

    def _reach(self, place: int, stop: int) -> tuple[int, int]:
        """[first, end) of the suffixes that the prefixes place .. stop - 1 have pairs with."""
        S = self.suffix.shape[1]
        first = max(0, int(self.bounds[0, place:stop].min()))
        if self.by_gap is None:
            return first, S
        return first, min(S, int(self.bounds[1, place:stop].max()) + len(self.by_gap))


class Layout(NamedTuple):
    """The states that pairs need, and the pairs."""

    prefix_rows: Tensor
    """(U,) int64: 0 for the empty prefix, 1 + b T + t for the prefix that ends with token t of row b."""
    suffix_rows: Tensor
    """(W,) int64: 0 for the empty suffix, 1 + b T + t for the suffix that begins with token t of row b."""
    groups: list[Group]

    def to(self, device: torch.device) -> Layout:
        """The layout on a device."""
        rows = to_device(self.prefix_rows, device), to_device(self.suffix_rows, device)
        return Layout(*rows, [group.to(device) for group in self.groups])


class _Stretches(NamedTuple):
    """The columns whose prefixes, and those whose suffixes, form pairs, for each of m documents."""

    row: np.ndarray
    start: np.ndarray
    """First column of the document."""
    stop: np.ndarray
    """Column behind the document."""
    prefix_start: np.ndarray
    prefix_stop: np.ndarray
    suffix_start: np.ndarray
    suffix_stop: np.ndarray

    def where(self, kept: np.ndarray) -> _Stretches:
        return _Stretches(*(part[kept] for part in self))


@eager  # depends on the batch's documents, on the host
def layout(pairs: Pairs, sampling: Sampling, closing: int | None) -> Layout:
    """The pairs of a batch. `closing`: the symbol of pairs with nothing between them, which are added; None: they are
    not. Draws from torch's generator of the CPU if `sampling.share` is below 1."""
    device = pairs.tokens.device
    host = _Host(*(part.cpu().numpy() for part in pairs))
    documents = host.documents()
    groups: list[_Arrays] = []
    if sampling.takes_all:
        groups += host.arrays(documents, None, 1.0)
    else:
        last = documents.stop - 1
        groups += host.arrays(documents._replace(suffix_start=last), None, 1.0)  # empty suffixes
        begins = documents.where(documents.prefix_start == documents.start)
        groups += host.arrays(
            begins._replace(prefix_stop=begins.start + 1, suffix_stop=begins.stop - 1), None, 1.0
        )  # empty prefixes
        interior = documents._replace(
            prefix_start=np.maximum(documents.prefix_start, documents.start + 1), suffix_stop=last
        )
        groups += host.arrays(interior, sampling, sampling.share)
    if closing is not None:
        groups += host.closed(closing)
    prefix_rows, suffix_rows = (
        np.unique(np.concatenate([np.zeros(1, np.int64), *(getattr(group, name).ravel() for group in groups)]))
        for name in ("prefix", "suffix")
    )
    return Layout(
        to_device(torch.from_numpy(prefix_rows), device),
        to_device(torch.from_numpy(suffix_rows), device),
        [group.on(device, prefix_rows, suffix_rows) for group in groups],
    )


def expected_weights(pairs: Pairs, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Expected total weight of the pairs with something between them, for the next and for the previous token."""
    group = pairs.group
    T = group.shape[1]
    real = group > 0
    column = torch.arange(T, device=group.device).expand_as(group)
    first = torch.where(document_starts(group), column, 0).cummax(1).values
    last = torch.where(closes(group), column, T - 1).flip(1).cummin(1).values.flip(1)
    if sampling.takes_all:
        running = pairs.prefixes.long().cumsum(1)
        before = (running - pairs.prefixes.long()).gather(1, first)
        following = ((last - column + 1) * (pairs.next_targets & real)).sum()
        return following, ((running - before) * (pairs.previous_targets & real)).sum()
    by_gap = to_device(torch.from_numpy(sampling.by_gap(T)), group.device)
    gap = column[0][None, :] - column[0][:, None]
    table = by_gap[gap.clamp(min=0)]
    totals = [by_gap.new_zeros(()) for _ in range(2)]
    several = max(1, AT_ONCE // T**2)
    for start in range(0, len(group), several):
        some = slice(start, start + several)
        inside = (gap >= 0) & (group[some, :, None] == group[some, None, :]) & real[some, :, None]
        empty = (first[some] == column[some])[:, :, None] | (last[some] == column[some])[:, None, :]
        weights = torch.where(empty, 1.0, table) * inside
        totals[0] += (weights * pairs.next_targets[some, :, None]).sum()
        totals[1] += (weights * pairs.prefixes[some, :, None] * pairs.previous_targets[some, None, :]).sum()
    return totals[0], totals[1]


def closes(group: Tensor) -> Tensor:
    """(B, T) bool: nothing of the same document follows."""
    last = torch.ones_like(group, dtype=torch.bool)
    last[:, :-1] = group[:, 1:] != group[:, :-1]
    return last


@dataclass(frozen=True)
class _Arrays:
    """A `Group` on the host; `prefix` and `suffix` number all states."""

    prefix: np.ndarray
    suffix: np.ndarray
    place: np.ndarray
    next_tokens: np.ndarray
    previous_tokens: np.ndarray
    next_targets: np.ndarray
    prefixes: np.ndarray
    previous_targets: np.ndarray
    suffixes: np.ndarray
    by_gap: np.ndarray | None

    def on(self, device: torch.device, prefix_rows: np.ndarray, suffix_rows: np.ndarray) -> Group:
        """The group, its states numbered by their place among the rows that are used."""

        def moved(value: np.ndarray) -> Tensor:
            return to_device(torch.from_numpy(value), device)

        # Padding has no say in which suffixes a block needs.
        counted = self.next_targets | self.prefixes
        S = self.suffix.shape[1]
        bounds = np.stack((np.where(counted, self.place, S).min(0), np.where(counted, self.place, -S).max(0)))
        return Group(
            prefix=moved(np.searchsorted(prefix_rows, self.prefix)),
            suffix=moved(np.searchsorted(suffix_rows, self.suffix)),
            place=moved(self.place),
            next_tokens=moved(self.next_tokens),
            previous_tokens=moved(self.previous_tokens),
            next_targets=moved(self.next_targets),
            prefixes=moved(self.prefixes),
            previous_targets=moved(self.previous_targets),
            suffixes=moved(self.suffixes),
            by_gap=None if self.by_gap is None else moved(self.by_gap),
            bounds=bounds,
        )


class _Host(NamedTuple):
    """`Pairs` as NumPy arrays."""

    tokens: np.ndarray
    group: np.ndarray
    next_targets: np.ndarray
    previous_targets: np.ndarray
    prefixes: np.ndarray

    def documents(self) -> _Stretches:
        """All documents, with all the columns that pairs use; documents without pairs are left out."""
        group, T = self.group, self.group.shape[1]
        changes = np.diff(group, axis=1, prepend=-1, append=-1) != 0
        row, edges = np.nonzero(changes)
        pairs_of_edges = row[:-1] == row[1:]
        row, start, stop = row[:-1][pairs_of_edges], edges[:-1][pairs_of_edges], edges[1:][pairs_of_edges]
        kept = group[row, start] > 0
        row, start, stop = row[kept], start[kept], stop[kept]
        as_prefix, as_suffix = self.next_targets | self.prefixes, self.next_targets | self.previous_targets
        prefix_start, suffix_start = (
            np.maximum(_next_true(mask, T)[row, start], start) for mask in (as_prefix, as_suffix)
        )
        stretches = _Stretches(row, start, stop, prefix_start, stop, suffix_start, stop)
        return stretches.where((prefix_start < stop) & (suffix_start < stop))

    def arrays(self, stretches: _Stretches, sampling: Sampling | None, share: float) -> list[_Arrays]:
        """Pairs of these stretches, in groups of documents of about the same length."""
        stretches = stretches._replace(suffix_start=np.maximum(stretches.suffix_start, stretches.prefix_start))
        stretches = stretches.where(
            (stretches.prefix_start < stretches.prefix_stop) & (stretches.suffix_start < stretches.suffix_stop)
        )
        P = stretches.suffix_stop - stretches.prefix_start
        S = stretches.suffix_stop - stretches.suffix_start
        return [self._group(stretches.where(members), sampling, share) for members in similar(P, S) if len(members)]

    def _group(self, stretches: _Stretches, sampling: Sampling | None, share: float) -> _Arrays:
        row, start, stop = stretches.row[:, None], stretches.start[:, None], stretches.stop[:, None]
        T = self.tokens.shape[1]
        end = stretches.suffix_stop[:, None]
        P, S = (int((end[:, 0] - begin).max()) for begin in (stretches.prefix_start, stretches.suffix_start))
        columns = end - P + np.arange(P)  # right-aligned: gaps are then the same distance in every document
        used = (columns >= stretches.prefix_start[:, None]) & (columns < stretches.prefix_stop[:, None])
        if share < 1:
            used = drawn(used, share)
        if share < 1 or (stretches.prefix_stop < stretches.suffix_stop).any():
            order = np.argsort(~used, axis=1, kind="stable")[:, : max(1, int(used.sum(1).max()))]
            columns, used = np.take_along_axis(columns, order, 1), np.take_along_axis(used, order, 1)
        columns = np.where(used, columns, start)
        hidden = end - S + np.arange(S)
        suffixes = hidden >= stretches.suffix_start[:, None]
        hidden = np.where(suffixes, hidden, start)
        by_gap = None
        if sampling is not None:
            by_gap = sampling.by_gap(P) / share
            by_gap = by_gap[: np.flatnonzero(by_gap)[-1] + 1]
        return _Arrays(
            prefix=np.where(columns == start, 0, row * T + columns),
            suffix=np.where(hidden == stop - 1, 0, row * T + hidden + 2),
            place=columns - (end - S),
            next_tokens=self.tokens[row, columns],
            previous_tokens=self.tokens[row, hidden],
            next_targets=used & self.next_targets[row, columns],
            prefixes=used & self.prefixes[row, columns],
            previous_targets=suffixes & self.previous_targets[row, hidden],
            suffixes=suffixes,
            by_gap=by_gap,
        )

    def closed(self, symbol: int) -> list[_Arrays]:
        """The pairs with nothing between them. Each column that counts has one: the prefix ends before the column, and
        the suffix begins with it. Each such document has one more at its end: the whole document, and the empty
        suffix."""
        T = self.tokens.shape[1]
        following, previous = self.next_targets, self.previous_targets & self.prefixes
        opens = np.diff(self.group, axis=1, prepend=-1) != 0
        last = np.diff(self.group, axis=1, append=-1) != 0
        arrays = []
        for counted, ending in ((following | previous, False), ((following | previous) & last, True)):
            row, column = np.nonzero(counted)
            if not len(row):
                continue
            own = row * T + column + 1
            prefix = own if ending else np.where(opens[row, column], 0, own - 1)
            suffix = np.zeros_like(own) if ending else own
            target = np.full((len(row), 1), symbol)
            arrays.append(
                _Arrays(
                    prefix=prefix[:, None],
                    suffix=suffix[:, None],
                    place=np.zeros_like(target),
                    next_tokens=target,
                    previous_tokens=target,
                    next_targets=following[row, column, None],
                    prefixes=previous[row, column, None],
                    previous_targets=previous[row, column, None],
                    suffixes=np.ones_like(target, bool),
                    by_gap=None,
                )
            )
        return arrays


def similar(P: np.ndarray, S: np.ndarray) -> Iterator[np.ndarray]:
    """Numbers of documents with P prefixes and S suffixes each, in groups that waste few pairs on padding."""
    order = np.lexsort((P, S))[::-1]
    members: list[int] = []
    exact = widest = 0
    for number in order.tolist():
        p, s = int(P[number]), int(S[number])
        whole = _triangle(max(widest, p), int(S[members[0]]) if members else s) * (len(members) + 1)
        if members and whole > max(FEW, PADDED * (exact + _triangle(p, s))):
            yield np.array(members)
            members, exact, widest = [], 0, 0
        members.append(number)
        exact, widest = exact + _triangle(p, s), max(widest, p)
    yield np.array(members, np.int64)


def _triangle(prefixes: int, suffixes: int) -> int:
    """Pairs of a document whose prefixes begin so many columns before its end, and whose suffixes so many."""
    return suffixes * (suffixes + 1) // 2 + max(0, prefixes - suffixes) * suffixes


def drawn(used: np.ndarray, share: float) -> np.ndarray:
    """(n, P) bool: some of the used columns of each document, each with probability `share`: evenly spaced from a
    random offset (systematic sampling), so that each document gets its share of columns, to within one."""
    number = np.cumsum(used, axis=1) - used
    offset = torch.rand(len(used), 1, dtype=torch.float64).numpy()
    return used & (np.floor((number + 1) * share + offset) > np.floor(number * share + offset))


def _next_true(mask: np.ndarray, missing: int) -> np.ndarray:
    """(B, T): the first column from each on where `mask` holds; `missing` if it holds nowhere later."""
    column = np.where(mask, np.arange(mask.shape[1]), missing)
    return np.minimum.accumulate(column[:, ::-1], axis=1)[:, ::-1]


class PairNumbers(NamedTuple):
    """How much the text head computes for a batch; for sampled pairs the expected numbers."""

    prefixes: int
    """Different prefix states in pairs, the empty one included."""
    suffixes: int
    """Different suffix states in pairs, the empty one included."""
    pairs: float
    """Pairs that count for a head, once each."""
    next_tokens: float
    """Pairs that count for the next token."""
    previous_tokens: float
    """Pairs that count for the previous token."""


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
    used_pairs = number(every, first, last, T)
    if not sampling.takes_all:
        interior = (~opens, first + 1, last - 1)
        used_pairs += sampling.share * number(*interior, sampling.max_gap or T) - number(*interior, T)
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
            parts = (following, previous & prefixes, following & previous & prefixes)
            used_pairs += [(part & mask).sum() for part in parts]
    different = [len(np.unique(np.concatenate([[0], *used]))) for used in (used_prefixes, used_suffixes)]
    for_next, for_previous, for_both = used_pairs.tolist()
    return PairNumbers(different[0], different[1], for_next + for_previous - for_both, for_next, for_previous)
