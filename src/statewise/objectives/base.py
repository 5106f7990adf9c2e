"""What an objective is: a batch in, a loss of named parts out, and a predictor for afterwards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from statewise.backbones.base import Backbone, Carrying, Limitable
from statewise.decoding.base import Carrier, Predictor, StateLimiter, Traceable, Traced
from statewise.nn.cache import KeyValueCache
from statewise.nn.uses import recorded_uses
from statewise.types import Batch, Carried, Hidden, Loss

IGNORED = -100
"""Stands among targets where nothing is to be predicted."""


class Objective(nn.Module, ABC):
    """A backbone, the heads that its training needs, and the loss. Built as `cls(config, make_backbone)`.

    Knows nothing of optimisers, files, tasks or decoders. `forward` is the only thing that gets wrapped
    for several processes or for compilation.
    """

    Config: ClassVar[type]
    """Dataclass of its recipe fields."""

    def forward(self, batch: Batch, counts: Mapping[str, Tensor] | None = None) -> Loss:
        """The loss of a batch. `counts` replaces its own when the batch is a share of a larger one."""
        return self.loss(batch, self.counts(batch) if counts is None else counts)

    @abstractmethod
    def loss(self, batch: Batch, counts: Mapping[str, Tensor]) -> Loss:
        """The loss in named parts: sums over `batch`, with `counts` as the parts' terms."""

    @abstractmethod
    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """The parts' counts, from the masks alone: the trainer adds them up over accumulated batches and
        processes before the first forward pass, so that every mean is taken over the whole."""

    @abstractmethod
    def predictor(self) -> Predictor:
        """The inference face, which shares this module's weights."""

    def at(self, share: float) -> None:
        """Called before each training step with the share of the training that is done, from 0 on and below 1; 1: it is
        over. Hands it on to the backbones; see `Backbone.at`."""
        for module in self.modules():
            if isinstance(module, Backbone):
                module.at(share)

    def flops(self, batch: Batch) -> float | None:
        """Floating-point operations that training on `batch`, on the host, needs; None: not known.

        Counted are the matrix products, two operations a multiplication and addition, of the real tokens and within
        documents: forward, and twice as much for the gradients of both factors. Whatever else a step does, such as
        work on padding, makes it slower but does not count.
        """
        return None


def document_lengths(batch: Batch) -> Counter[int]:
    """How many documents of each length a batch on the host holds."""
    if batch.documents is None:
        return Counter(batch.real.sum(1).tolist())
    rows = torch.arange(len(batch.tokens), device=batch.tokens.device)[:, None].expand_as(batch.tokens)
    places = torch.stack((rows[batch.real], batch.documents[batch.real]))
    return Counter(torch.unique_consecutive(places, dim=1, return_counts=True)[1].tolist())


def backbone_flops(backbone: Backbone, batch: Batch) -> float | None:
    """What one forward pass of a batch needs, without a head; None: not known."""
    costs = [(backbone.flops(length), number) for length, number in document_lengths(batch).items()]
    known = [cost * number for cost, number in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


def token_flops(backbone: Backbone, batch: Batch) -> float | None:
    """`Objective.flops` of one pass and the head at every scored token; None: not known."""
    body = backbone_flops(backbone, batch)
    return None if body is None else 3 * (body + backbone.head_flops() * int(batch.scored.sum()))


def precise(tensor: Tensor) -> Tensor:
    """The tensor in float32, or as it is if it is more precise: for logits, before a softmax over many."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def token_targets(batch: Batch) -> Tensor:
    """(B, end - first) int64: the scored tokens, and `IGNORED` where none is."""
    tokens, scored = batch.targets
    return torch.where(scored, tokens, IGNORED)


def token_loss(log_probs: Tensor, batch: Batch) -> Tensor:
    """Scalar: summed cross-entropy in nats of the scored tokens, from `log_probs` (B, end - first, V). An objective
    that needs the log-probabilities for nothing else asks `head_loss`, which does not keep them."""
    targets = token_targets(batch).flatten()
    return F.nll_loss(log_probs.flatten(0, 1), targets, ignore_index=IGNORED, reduction="sum")


def reached_columns(batch: Batch, steps: int) -> tuple[int, int]:
    """Positions [start, stop) that lie `steps` behind a position and whose next token may be scored: what looks
    `steps` ahead starts at columns start - steps .. stop - steps and predicts the tokens start + 1 .. stop + 1."""
    first, end = batch.span
    start = max(first - 1, steps)
    return start, max(start, end - 1)


def predicts(batch: Batch, steps: int) -> Tensor:
    """(B, stop - start) bool over `reached_columns`: both ends are in one document, the next token is scored."""
    start, stop = reached_columns(batch, steps)
    scored = batch.scored[:, start + 1 : stop + 1]
    if batch.documents is None:
        return scored
    return scored & (batch.documents[:, start:stop] == batch.documents[:, start - steps : stop - steps])


@dataclass(frozen=True)
class AheadConfig:
    """Fields of the objectives that predict further tokens besides the next one."""

    horizon: int = 1
    """Tokens K predicted beyond the next one."""
    ahead_weight: float = 1.0
    """Factor of their mean loss."""

    def __post_init__(self) -> None:
        if self.horizon < 1:
            raise ValueError(f"horizon must be at least 1, not {self.horizon}")
        if not self.ahead_weight > 0:
            raise ValueError("ahead_weight must be positive; without it this is the objective next_token")


def ahead_counts(batch: Batch, horizon: int) -> dict[str, Tensor]:
    """Counts of the parts `next_token`, scored tokens, and `ahead`, (horizon,): those that each further prediction has
    a position for."""
    ahead = [predicts(batch, steps).sum() for steps in range(1, horizon + 1)]
    return {"next_token": batch.scored.sum(), "ahead": torch.stack(ahead)}


def ahead_targets(batch: Batch, steps: int) -> Tensor:
    """(B, stop - start) int64 over `reached_columns`: the tokens that are predicted `steps` beyond the next one, and
    `IGNORED` where none is."""
    start, stop = reached_columns(batch, steps)
    return torch.where(predicts(batch, steps), batch.tokens[:, start + 1 : stop + 1], IGNORED)


@dataclass
class CausalCursor:
    """Where a `CausalPredictor` stands."""

    cache: KeyValueCache
    recent: Tensor
    """(B, m, D) states of the m tokens read last."""

    def state(self) -> Tensor:
        """(B, D) state after the last token read. Raises `ValueError` after going back beyond the last reading."""
        if self.recent.shape[1] == 0:
            raise ValueError("the state went with the tokens that were taken back: read one token again")
        return self.recent[:, -1]


class CausalPredictor(Predictor):
    """Inference of every model that is a backbone and something that reads the next token off its output."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self.vocabulary, self.context = backbone.vocabulary, backbone.context

    @property
    def device(self) -> torch.device:
        """Where the weights are; inputs are moved there."""
        return next(self.backbone.parameters()).device

    @torch.no_grad()
    def start(self, prompts: Tensor) -> tuple[CausalCursor, Tensor]:
        """See `Predictor.start`."""
        cursor = CausalCursor(self.backbone.make_cache(), prompts.new_empty(0, 0))
        return cursor, self._read_prompt(cursor, prompts)

    @torch.no_grad()
    def extend(self, cursor: CausalCursor, tokens: Tensor) -> Tensor:
        """See `Predictor.extend`."""
        return self._read(cursor, tokens)

    def _read_prompt(self, cursor: CausalCursor, prompts: Tensor) -> Tensor:
        """(B, V): logits after all of `prompts` (B, T)."""
        prompts = prompts.to(self.device)
        return self._logits_at(cursor, self.backbone.read_prompt(prompts, cursor.cache), prompts[:, -1:])[:, -1]

    def _read(self, cursor: CausalCursor, tokens: Tensor) -> Tensor:
        """(B, T, V): logits after each of `tokens` (B, T)."""
        tokens = tokens.to(self.device)
        return self._logits_at(cursor, self.backbone(tokens, cache=cursor.cache), tokens)

    def _logits_at(self, cursor: CausalCursor, hidden: Hidden, tokens: Tensor) -> Tensor:
        cursor.recent = hidden.state
        return precise(self.next_logits(hidden, tokens, cursor))

    def next_logits(self, hidden: Hidden, tokens: Tensor, cursor: CausalCursor | None = None) -> Tensor:
        """(B, T, V): the next token's logits from the backbone's output for `tokens` (B, T), which the cursor's
        sequences end with, if there is one."""
        return self.backbone.logits(hidden.readout)

    def rewind(self, cursor: CausalCursor, positions: int) -> None:
        """See `Predictor.rewind`."""
        cursor.cache.rewind(positions)
        cursor.recent = cursor.recent[:, : max(0, cursor.recent.shape[1] - positions)]

    def hold(self, cursor: CausalCursor) -> None:
        """See `Predictor.hold`."""
        cursor.cache.hold()

    def reorder(self, cursor: CausalCursor, rows: Tensor) -> None:
        """See `Predictor.reorder`."""
        rows = rows.to(self.device)
        cursor.cache.reorder(rows)
        cursor.recent = cursor.recent.index_select(0, rows)

    @torch.no_grad()
    def states(self, batch: Batch) -> Hidden:
        """See `Predictor.states`."""
        documents = self.backbone.documents_of(batch)
        documents = None if documents is None else documents.to(self.device)
        hidden: Hidden = self.backbone(batch.tokens.to(self.device), documents=documents)
        return hidden

    @torch.no_grad()
    def logits(self, batch: Batch) -> Tensor:
        """See `Predictor.logits`."""
        return precise(self.next_logits(self.states(batch), batch.tokens.to(self.device)))


class HeadPredictor(CausalPredictor, Traceable):
    """A backbone and its own vocabulary head, nothing between."""

    @property
    def slots(self) -> tuple[str, ...]:
        """See `Traceable.slots`."""
        return self.backbone.slots

    def trace(self, tokens: Tensor, places: Tensor, source: int = 0) -> Traced:
        """See `Traceable.trace`."""
        tokens, places = tokens.to(self.device), places.to(self.device)
        rows = torch.arange(len(tokens), device=self.device)
        cache = None
        if source:
            cache = self.backbone.make_cache()
            with torch.no_grad():
                self.backbone(tokens[:1, :source], cache=cache)
            cache.reorder(torch.zeros_like(rows))
        with torch.enable_grad():
            with recorded_uses(self.backbone) as uses:
                slots, readout = self.backbone.all_slots(tokens[:, source:], cache=cache)
            logits = precise(self.backbone.logits(slots[rows, readout, places - source]))
            return Traced(F.cross_entropy(logits, tokens[rows, places + 1], reduction="none"), uses)


class LimitablePredictor(HeadPredictor, StateLimiter):
    """One around a backbone whose memory can be cut short."""

    def limited(self, places: int) -> HeadPredictor:
        """See `StateLimiter.limited`."""
        assert isinstance(self.backbone, Limitable)
        return HeadPredictor(self.backbone.limited(places))


class CarryingPredictor(HeadPredictor, Carrier):
    """One around a backbone that carries a state from chunk to chunk."""

    def __init__(self, backbone: Carrying) -> None:
        super().__init__(backbone)
        self.carrying = backbone
        self.chunk, self.slot_count = backbone.chunk, backbone.slot_count

    def under(self, protocol: Carried, warmup: int) -> CarryingPredictor:
        """See `Carrier.under`."""
        return CarryingPredictor(self.carrying.under(protocol, warmup))

    def keep(self, cursor: CausalCursor) -> dict[str, Tensor]:
        """See `Carrier.keep`."""
        return {**self.carrying.keep(cursor.cache), "recent": cursor.recent[:, -1:]}

    def resume(self, kept: Mapping[str, Tensor]) -> CausalCursor:
        """See `Carrier.resume`."""
        moved = {name: tensor.to(self.device) for name, tensor in kept.items()}
        recent = moved.pop("recent")
        return CausalCursor(self.carrying.resume(moved), recent)


def head_predictor(backbone: Backbone) -> HeadPredictor:
    """A predictor that reads the next token off the backbone's readout, with the powers that the backbone lends it."""
    if isinstance(backbone, Carrying):
        return CarryingPredictor(backbone)
    return LimitablePredictor(backbone) if isinstance(backbone, Limitable) else HeadPredictor(backbone)
