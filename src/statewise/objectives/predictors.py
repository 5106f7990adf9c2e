"""Predictors of models that consist of a backbone and a next-token head on its output."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from statewise.backbones.base import Backbone, last_columns
from statewise.backbones.capabilities import Carrying, Fetching, Followed, Limitable, check_kept
from statewise.backbones.nn.cache import Cache
from statewise.batch import Batch, Hidden
from statewise.decoding.predictor import Capability, Carrier, Fetcher, Kind, Predictor, StateLimiter, Traceable, Traced
from statewise.losses.targets import to_float32
from statewise.losses.vocabulary_head import product_dtype

if TYPE_CHECKING:
    from statewise.decoding.carried_state import StateProtocol

if TYPE_CHECKING:
    from statewise.backbones.nn.cache import Cache
    from statewise.decoding.carried_state import StateProtocol


@dataclass
class CausalCursor:
    """The cursor of a `CausalPredictor`."""

    cache: Cache
    recent: Tensor
    """(B, m, E) states of the tokens read last, in the columns in which they were read."""
    known: np.ndarray
    """(B,) the number of leading columns of `recent` that are valid for each row."""

    def state(self) -> Tensor:
        """(B, E) state after the last token read. Raises `ValueError` after a rewind beyond the last call that read."""
        if (self.known < 1).any():
            raise ValueError("the state is no longer available after this rewind: read one token again")
        return self._last()

    def remember(self, recent: Tensor, counts: np.ndarray | None) -> None:
        """Stores `recent` (B, n, E), the states of the tokens just read, `counts[b]` of row b; None: all."""
        B, n = recent.shape[:2]
        if counts is None and n:
            self.recent, self.known = recent, np.full(B, n)
            return
        known = np.full(B, n) if counts is None else counts
        idle = known == 0
        if idle.any() and len(self.known):  # rows that read nothing keep their state
            recent, before = recent.clone(), self._last().to(recent.dtype)
            rows = torch.from_numpy(np.flatnonzero(idle)).to(recent.device)
            recent[rows, 0] = before[rows]
            known = np.where(idle, np.minimum(self.known, 1), known)
        self.recent, self.known = recent, known

    def take_back(self, positions: int | np.ndarray) -> None:
        """Forgets the states of the last `positions`."""
        self.known = np.maximum(0, self.known - positions)

    def reorder(self, rows: Tensor) -> None:
        """Replaces row b by the former row `rows[b]`."""
        self.cache.reorder(rows)
        self.recent = self.recent.index_select(0, rows)
        self.known = self.known[rows.cpu().numpy()]

    def join(self, other: Self) -> None:
        """Appends the rows of `other`."""
        self.cache.join(other.cache)
        self.recent = torch.cat([self._last(), other._last()])[:, None]
        self.known = np.minimum(np.concatenate([self.known, other.known]), 1)

    def _last(self) -> Tensor:
        columns = np.maximum(self.known, 1) - 1
        if (columns == columns[:1]).all():
            return self.recent[:, int(columns[0]) if len(columns) else 0]
        column = torch.from_numpy(columns).to(self.recent.device)
        return self.recent[torch.arange(len(column), device=column.device), column]


class CausalPredictor(Predictor):
    """Inference of all models that consist of a backbone and a next-token head on its output."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self.vocabulary, self.context = backbone.vocabulary, backbone.context

    @property
    def device(self) -> torch.device:
        """The device of the weights, to which inputs are moved."""
        return self.backbone.device

    def new_cursor(self, rows: int) -> CausalCursor:
        """A cursor that has read nothing."""
        return CausalCursor(self.backbone.make_cache(rows), torch.empty(0), np.zeros(0, np.int64))

    @torch.no_grad()
    @override
    def start(self, prompts: Tensor, counts: np.ndarray | None = None) -> tuple[CausalCursor, Tensor]:
        cursor = self.new_cursor(len(prompts))
        return cursor, self.first_logits(cursor, prompts, counts)

    @override
    def extend(self, cursor: CausalCursor, tokens: Tensor, counts: np.ndarray | None = None) -> Tensor:
        return self.extend_with_states(cursor, tokens, counts)[1]

    @torch.no_grad()
    def extend_with_states(
        self, cursor: CausalCursor, tokens: Tensor, counts: np.ndarray | None = None
    ) -> tuple[Hidden, Tensor]:
        """`extend`, with the backbone's output for `tokens` before the logits."""
        tokens, counts = tokens.to(self.device), uneven(tokens, counts)
        hidden = self.read(cursor, tokens, counts)
        cursor.remember(self.kept(hidden, tokens), counts)
        return hidden, to_float32(self.next_logits(hidden, tokens, cursor))

    def first_logits(self, cursor: CausalCursor, prompts: Tensor, counts: np.ndarray | None) -> Tensor:
        """(B, V): logits after the last token of each of `prompts` (B, T), read by a new cursor."""
        prompts, counts = prompts.to(self.device), uneven(prompts, counts)
        hidden = self.read_last(cursor, prompts, counts)
        last = prompts[:, -1:]
        if counts is not None:
            last = last_columns(prompts, counts)
        cursor.remember(self.kept(hidden, last), None)
        return to_float32(self.next_logits(hidden, last, cursor))[:, -1]

    def read(self, cursor: CausalCursor, tokens: Tensor, counts: np.ndarray | None) -> Hidden:
        """The backbone's output for further `tokens` (B, n)."""
        return self.backbone.extend(tokens, cursor.cache, counts)

    def read_last(self, cursor: CausalCursor, prompts: Tensor, counts: np.ndarray | None) -> Hidden:
        """The backbone's output after the last token of each of `prompts` (B, T), (B, 1, ...)."""
        return self.backbone.read_prompt(prompts, cursor.cache, counts)

    def kept(self, hidden: Hidden, tokens: Tensor) -> Tensor:
        """(B, n, E): what the cursor keeps of the last tokens read, from the backbone's output for `tokens` (B, n)."""
        return hidden.state

    def next_logits(self, hidden: Hidden, tokens: Tensor, cursor: CausalCursor | None = None) -> Tensor:
        """(B, T, V): the next token's logits from the backbone's output for `tokens` (B, T), the last tokens of the
        cursor's sequences, if there is a cursor."""
        return self.backbone.logits(hidden.readout)

    @override
    def rewind(self, cursor: CausalCursor, positions: int | np.ndarray) -> None:
        cursor.cache.rewind(positions)
        cursor.take_back(positions)

    @override
    def hold(self, cursor: CausalCursor) -> None:
        cursor.cache.hold()

    @override
    def release(self, cursor: CausalCursor) -> None:
        cursor.cache.release()

    @override
    def reorder(self, cursor: CausalCursor, rows: Tensor) -> None:
        cursor.reorder(rows.to(self.device))

    @override
    def join(self, cursor: CausalCursor, other: CausalCursor) -> None:
        cursor.join(other)

    @torch.no_grad()
    @override
    def states(self, batch: Batch) -> Hidden:
        return self.backbone.encode(batch.to(self.device))

    @torch.no_grad()
    @override
    def logits(self, batch: Batch) -> Tensor:
        return self.logits_with_states(batch)[1]

    @torch.no_grad()
    def logits_with_states(self, batch: Batch) -> tuple[Hidden, Tensor]:
        """The results of `states` and `logits`, from one pass."""
        hidden = self.states(batch)
        return hidden, to_float32(self.next_logits(hidden, batch.tokens.to(self.device)))


def uneven(tokens: Tensor, counts: np.ndarray | None) -> np.ndarray | None:
    """`counts`, or None if all rows read all of `tokens` (B, n). Raises `ValueError` if their shapes do not match."""
    if counts is None:
        return None
    counts = np.asarray(counts, np.int64)
    if counts.shape != (len(tokens),) or (counts < 0).any() or (counts > tokens.shape[1]).any():
        raise ValueError(f"counts {counts.tolist()} do not fit tokens of shape {tuple(tokens.shape)}")
    return None if (counts == tokens.shape[1]).all() else counts


class DraftHead:
    """The vocabulary head of drafts: all of it, or copies of the rows of a short list of tokens."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self._among: Tensor | None = None
        self._rows: Tensor | None = None  # of the head's matrix

    def __call__(self, readout: Tensor, among: Tensor | None) -> Tensor:
        """(B, D) -> (B, V) logits, or (B, K) those of the tokens `among` (K,). The rows are copied once for each list,
        so a list must not be changed."""
        if among is None:
            return to_float32(self.backbone.logits(readout))
        if self._rows is None or among is not self._among or self._rows.dtype != product_dtype(readout):
            weight = self.backbone.head_weight().detach()
            rows = weight.index_select(0, among.to(weight.device))
            self._among, self._rows = among, rows.to(product_dtype(readout))
        return to_float32(F.linear(readout, self._rows))


@contextmanager
def guessing(state: Tensor, weight: Tensor) -> Iterator[None]:
    """Within this context no gradients are computed, and products of `state` (B, E) with matrices like `weight` are in
    float32 if the matrices are stored in it and there is one row on a CPU: bfloat16 is no faster there, and several
    times slower for small matrices."""
    one_row = len(state) == 1 and weight.device.type == "cpu" and weight.dtype == torch.float32
    cast = one_row and torch.is_autocast_enabled("cpu")
    with torch.no_grad():
        if not cast:
            yield
            return
        torch.set_autocast_enabled("cpu", False)  # a context of PyTorch's costs as much as a small product
        try:
            yield
        finally:
            torch.set_autocast_enabled("cpu", True)


class HeadPredictor(CausalPredictor):
    """A predictor whose vocabulary head reads the backbone's readout, so that it can do what its backbone can."""

    @override
    def capability(self, kind: type[Kind]) -> Kind | None:
        own = super().capability(kind)
        if own is not None:
            return own
        return next((lent for lent in self._lent() if isinstance(lent, kind)), None)

    def _lent(self) -> Iterator[Capability]:
        """What the backbone makes possible."""
        if isinstance(self.backbone, Carrying):
            yield BackboneCarrier(self, self.backbone)
        if isinstance(self.backbone, Followed):
            yield BackboneTracer(self.backbone)
        if isinstance(self.backbone, Limitable):
            yield BackboneLimiter(self.backbone)
        if isinstance(self.backbone, Fetching):
            yield BackboneFetcher(self.backbone)


class BackboneTracer(Traceable):
    """Traces gradients through a backbone that can be followed."""

    def __init__(self, backbone: Followed) -> None:
        self.backbone = backbone

    @property
    @override
    def streams(self) -> tuple[Literal["input", "prediction"], ...]:
        return self.backbone.streams

    @override
    def trace(self, tokens: Tensor, places: Tensor, source: int = 0) -> Traced:
        from statewise.backbones.nn.hooks import recorded_uses  # for this analysis alone: training needs no hooks

        device = self.backbone.device
        tokens, places = tokens.to(device), places.to(device)
        rows = torch.arange(len(tokens), device=device)
        cache = None
        if source:
            cache = self.backbone.make_cache(1)
            with torch.no_grad():
                self.backbone.extend(tokens[:1, :source], cache)
            cache.reorder(torch.zeros_like(rows))
        with torch.enable_grad():
            with recorded_uses(self.backbone) as uses:
                streams, readout = self.backbone.every_stream(tokens[:, source:], cache)
            logits = to_float32(self.backbone.logits(streams[rows, readout, places - source]))
            return Traced(F.cross_entropy(logits, tokens[rows, places + 1], reduction="none"), uses)


class BackboneLimiter(StateLimiter):
    """Limits the memory of a backbone."""

    def __init__(self, backbone: Limitable) -> None:
        self.backbone = backbone

    @override
    def limited(self, places: int) -> HeadPredictor:
        return HeadPredictor(self.backbone.limited(places))


class BackboneFetcher(Fetcher):
    """Reports how a backbone's predictions attend to the inputs of their own positions."""

    def __init__(self, backbone: Fetching) -> None:
        self.backbone = backbone

    @property
    @override
    def streams(self) -> tuple[Literal["input", "prediction"], ...]:
        return self.backbone.streams

    @torch.no_grad()
    @override
    def fetches(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.backbone.fetches(batch.to(self.backbone.device))


class BackboneCarrier(Carrier):
    """Keeps, restores and changes the state that a backbone carries from chunk to chunk."""

    def __init__(self, predictor: HeadPredictor, backbone: Carrying) -> None:
        self.predictor, self.backbone = predictor, backbone
        self.chunk, self.slot_count = backbone.chunk, backbone.slot_count

    def under(self, protocol: StateProtocol, warmup: int) -> HeadPredictor:
        """See `Carrier.under`. The predictor keeps its other capabilities."""
        other = copy.copy(self.predictor)
        other.backbone = self.backbone.under(protocol, warmup)
        return other

    @torch.no_grad()
    @override
    def chunk_logits(self, tokens: Tensor) -> Iterator[Tensor]:
        tokens = tokens.to(self.predictor.device)
        for part, hidden in zip(torch.split(tokens, self.chunk, dim=1), self.backbone.encode_chunks(tokens)):
            yield to_float32(self.predictor.next_logits(hidden, part))

    @override
    def keep(self, cursor: CausalCursor) -> dict[str, Tensor]:
        return {**self.backbone.keep(cursor.cache), "recent": cursor.state()[:, None]}

    @override
    def resume(self, kept: Mapping[str, Tensor]) -> CausalCursor:
        moved = {name: tensor.to(self.predictor.device) for name, tensor in kept.items()}
        recent = moved.pop("recent", torch.empty(0))
        cache = self.backbone.resume(moved)
        if recent.shape != (1, 1, self.backbone.state_width):
            raise ValueError(f"a damaged state: it lacks the last state, of width {self.backbone.state_width}")
        check_kept("recent", recent, next(self.backbone.parameters()).dtype)
        return CausalCursor(cache, recent, np.ones(len(recent), np.int64))
