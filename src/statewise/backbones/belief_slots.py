"""The belief-slot decoder: a GPT that reads chunk after chunk, and a small state that it carries on from each.

Attention ends with the chunk; what is known of earlier ones is S slots of width D. They are added to the residual
before every block, by a map of its own that starts at zero, so that the model starts as the GPT; and they are renewed
from the last hidden states of each chunk. How the state is used at evaluation is a protocol: see `Carrying.under`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from statewise.backbones.base import Backbone, Carrying
from statewise.backbones.gpt import GPT, GPTConfig
from statewise.nn.belief_slots import Injection, Pooling, SlotCache, SlotUpdate
from statewise.nn.cache import KeyValueCache
from statewise.types import Batch, Carried, Hidden


@dataclass(frozen=True)
class BeliefSlotsConfig(GPTConfig):
    """Fields of `backbone: belief_slots`."""

    chunk: int = 128
    """Tokens of a chunk, beyond which nothing but the slots is known."""
    slots: int = 4
    """Slots S of the state, each as wide as the model."""
    update: Literal["ema", "gated"] = "ema"
    """`ema`: the new state is a weighted mean of the old one and what the chunk proposes; `gated`: a GRU cell."""
    pooling: Pooling = "attention"
    """What of a chunk's last hidden states the update reads: the last one, their mean, or what each slot attends to."""
    rate: float = 0.5
    """Weight of what the chunk proposes, with `ema`."""
    learned_rate: bool = True
    """Whether that weight is learned, for each slot."""
    backprop: int | None = None
    """Updates of the state through which a loss reaches back at most; null: all in the row. The row is walked in
    stretches of so many updates: the one behind a stretch is cut off from what went into it, and is trained itself. So
    the chunks that begin a stretch give earlier ones no gradient."""
    warmup: int = 0
    """Passes over a chunk, in training, before the one whose loss counts; the state has then seen what it predicts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("chunk", "slots"):
            if getattr(self, name) < 1:
                raise ValueError(f"backbone.{name} must be at least 1, not {getattr(self, name)}")
        if not 0 < self.rate < 1:
            raise ValueError(f"backbone.rate must lie between 0 and 1, not {self.rate}")
        if self.backprop is not None and self.backprop < 1:
            raise ValueError(f"backbone.backprop must be at least 1, or null for all updates, not {self.backprop}")
        if self.warmup < 0:
            raise ValueError(f"backbone.warmup must not be negative, not {self.warmup}")


class Held(NamedTuple):
    """A state, and whose it is."""

    state: Tensor
    """(B, S, D)."""
    owner: Tensor | None
    """(B,) documents; None: there is one in a row."""

    def of(self, documents: Tensor) -> Tensor:
        """(B, t) bool: the positions that it is of."""
        assert self.owner is not None
        return documents == self.owner[:, None]


class BeliefSlots(Carrying):
    """`readout` is the GPT's; `state` is the same and behind it the slots that the chunk began with, (1 + S) D wide.

    With documents in a row the state is of one document: another begins with the learned initial state.
    """

    Config = BeliefSlotsConfig
    state_predicts = False  # the head reads a part of it

    def __init__(
        self, config: BeliefSlotsConfig, *, vocabulary: int, context: int, embedding_of: Backbone | None = None
    ) -> None:
        super().__init__()
        if config.chunk >= context:
            raise ValueError(
                f"backbone.chunk {config.chunk} is no shorter than a row of {context} tokens, so no state would ever "
                "be carried: set it lower, or the task's context higher"
            )
        self.config = config
        self.chunk, self.slot_count = config.chunk, config.slots
        self.width, self.context, self.vocabulary = config.width, context, vocabulary
        assert embedding_of is None or isinstance(embedding_of, BeliefSlots)
        lender = None if embedding_of is None else embedding_of.gpt
        self.gpt: GPT = GPT(config, vocabulary=vocabulary, context=config.chunk, embedding_of=lender)
        self.injections = nn.ModuleList(Injection(config.width, config.slots) for _ in range(config.layers))
        self.initial = nn.Parameter(torch.randn(config.slots, config.width) * 0.02)
        self.update = SlotUpdate(
            config.width, config.slots, kind=config.update, pooling=config.pooling, rate=config.rate,
            learned_rate=config.learned_rate,
        )  # fmt: skip
        self.protocol: Carried = "carried"
        self.warmup = 0

    @property
    def state_width(self) -> int:
        """See `Backbone.state_width`."""
        return (1 + self.config.slots) * self.width

    def read_off(self, state: Tensor) -> Tensor:
        """See `Backbone.read_off`."""
        return state[..., : self.width]

    def under(self, protocol: Carried, warmup: int) -> BeliefSlots:
        """See `Carrying.under`."""
        other = copy.copy(self)
        other.protocol, other.warmup = protocol, warmup
        return other

    def forward(self, tokens: Tensor, *, documents: Tensor | None = None, cache: KeyValueCache | None = None) -> Hidden:
        """(B, T) -> Hidden of (B, T, (1 + S) D) and (B, T, D). Raises `ValueError` if it outgrows the context."""
        parts = list(self._read(tokens, cache, 0) if cache is not None else self._walk(tokens, documents))
        readout = torch.cat([hidden for hidden, _ in parts], dim=1)
        slots = torch.cat([slots.expand(*hidden.shape[:2], -1) for hidden, slots in parts], dim=1)
        return Hidden(torch.cat([readout, slots.to(readout.dtype)], dim=-1), readout)

    @property
    def notes(self) -> list[str]:
        """See `Backbone.notes`."""
        if not self.config.warmup:
            return []
        return [
            f"backbone.warmup {self.config.warmup}: the losses of training are those of chunks whose state has seen "
            "them, and compare with no other model's; what is held out is read without"
        ]

    def documents_of(self, batch: Batch) -> Tensor | None:
        """See `Backbone.documents_of`: passes over a chunk before it counts end with a state of all of it."""
        passes = self.config.warmup if self.training else self.warmup
        return batch.owners if passes else batch.documents

    def readouts(self, tokens: Tensor, *, documents: Tensor | None = None) -> Tensor:
        """See `Backbone.readouts`."""
        return torch.cat([hidden for hidden, _ in self._walk(tokens, documents)], dim=1)

    def read_prompt(self, tokens: Tensor, cache: KeyValueCache) -> Hidden:
        """See `Backbone.read_prompt`; of a prompt each chunk is warmed up to, where the protocol says so."""
        *_, (hidden, slots) = self._read(tokens, cache, self.warmup)
        readout = hidden[:, -1:]
        return Hidden(torch.cat([readout, slots[:, -1:].to(readout.dtype)], dim=-1), readout)

    def _walk(self, tokens: Tensor, documents: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Chunk by chunk the last hidden states (B, t, D), and the slots (B, 1 or t, S D) that they read."""
        config, (B, T) = self.config, tokens.shape
        if self.context < T:
            raise ValueError(f"a sequence of {T} tokens does not fit the context of {self.context}")
        warmup = config.warmup if self.training else self.warmup
        held = Held(self._begin(B), None if documents is None else documents[:, 0])
        for number, begin in enumerate(range(0, T, config.chunk)):
            chunk = slice(begin, begin + config.chunk)
            part, own = tokens[:, chunk], None if documents is None else documents[:, chunk]
            if number and not self.training and self.protocol != "carried":
                held = held._replace(state=self._begin(B))
            states = [held]
            for _ in range(warmup):  # of the document that the chunk ends in; another one that ends here is not its own
                states = [held, self._renewed(states[-1], self._chunk(part, own, states), own)]
            hidden = self._chunk(part, own, states)
            yield hidden, self._slots(states, own)
            if begin + config.chunk < T:
                held = states[-1]
                if config.backprop is not None and (number + 1) % (config.backprop + 1) == 0:
                    held, hidden = held._replace(state=held.state.detach()), hidden.detach()
                held = self._renewed(held, hidden, own)

    def _read(self, tokens: Tensor, cache: KeyValueCache, warmup: int) -> Iterator[tuple[Tensor, Tensor]]:
        """As `_walk`, of tokens that come after what the cache holds, however many these are; chunks that begin here
        are passed over `warmup` times before."""
        assert isinstance(cache, SlotCache)
        while tokens.shape[1]:
            if not cache.room:
                cache.open(self._next_state(cache, tokens.shape[0]))
                for _ in range(warmup):
                    state = cache.chunks[-1].state
                    hidden = self._chunk(tokens[:, : cache.room], None, [Held(state, None)])
                    cache.chunks[-1] = cache.chunks[-1]._replace(state=self.update(state, hidden, None))
            part, tokens = tokens[:, : cache.room], tokens[:, cache.room :]
            state = cache.chunks[-1].state
            hidden = self._chunk(part, None, [Held(state, None)], cache)
            cache.chunks[-1].hidden.append(hidden)
            yield hidden, state.flatten(1)[:, None]

    def _next_state(self, cache: SlotCache, B: int) -> Tensor:
        """(B, S, D): with which the chunk after those of the cache begins."""
        if not cache.chunks or self.protocol != "carried":
            return self._begin(B)
        state, _, hidden = cache.chunks[-1]
        renewed: Tensor = self.update(state, torch.cat(hidden, dim=1), None)
        return renewed

    def _begin(self, B: int) -> Tensor:
        return self.initial.expand(B, -1, -1)

    def _chunk(
        self, tokens: Tensor, documents: Tensor | None, states: list[Held], cache: SlotCache | None = None
    ) -> Tensor:
        """(B, t) -> the last hidden states (B, t, D). Of several states for one document the last counts."""
        gpt = self.gpt
        start = cache.chunks[-1].keys.length if cache is not None else 0
        x, around = gpt.enter(tokens, start, documents, cache)
        for block, inject in zip(gpt.blocks, self.injections):
            if documents is None:
                added = inject(states[-1].state)[:, None]
            else:
                added = inject(self.initial)
                for held in states:
                    added = torch.where(held.of(documents)[..., None], inject(held.state)[:, None], added)
            x = block(x + added.to(x.dtype), around)
        if cache is not None:
            cache.advance(tokens.shape[1])
        hidden: Tensor = gpt.norm(x)
        return hidden

    def _renewed(self, held: Held, hidden: Tensor, documents: Tensor | None) -> Held:
        """The state behind a chunk: that of the documents which the chunk ends in, padding (0) left aside."""
        if documents is None:
            return Held(self.update(held.state, hidden, None), None)
        assert held.owner is not None
        places = torch.arange(documents.shape[1], device=documents.device)
        last = documents.gather(1, (places * (documents != 0)).amax(1, keepdim=True))[:, 0]
        state = torch.where((last == held.owner)[:, None, None], held.state, self._begin(len(last)))
        return Held(self.update(state, hidden, documents == last[:, None]), last)

    def _slots(self, states: list[Held], documents: Tensor | None) -> Tensor:
        """(B, 1 or t, S D): the slots that each position read."""
        if documents is None:
            return states[-1].state.flatten(1)[:, None]
        found = self.initial.flatten()
        for held in states:
            found = torch.where(held.of(documents)[..., None], held.state.flatten(1)[:, None], found)
        return found

    def all_slots(self, tokens: Tensor, *, cache: KeyValueCache | None = None) -> tuple[Tensor, int]:
        """Raises `ValueError`: what a chunk contributes to the next goes through a state that many positions share."""
        raise ValueError("of belief_slots not every use can be followed: gradient-ratio goes with gpt and two_stream")

    def embed(self, tokens: Tensor) -> Tensor:
        """(...) -> (..., D)."""
        return self.gpt.embed(tokens)

    def head_weight(self) -> Tensor:
        """(V, D)."""
        return self.gpt.head_weight()

    def make_cache(self) -> SlotCache:
        """An empty cache."""
        return SlotCache(self.config.layers, self.config.chunk)

    def keep(self, cache: KeyValueCache) -> dict[str, Tensor]:
        """See `Carrying.keep`."""
        assert isinstance(cache, SlotCache)
        return cache.keep()

    def resume(self, kept: Mapping[str, Tensor]) -> SlotCache:
        """See `Carrying.resume`."""
        config = self.config
        layers, names = config.layers, {"state", "hidden", "length", "chunk"}
        fits = set(kept) == names | {f"keys.{layer}" for layer in range(layers)}
        fits = fits and int(kept["chunk"]) == config.chunk
        if fits:
            heads = 2, len(kept["state"]), config.heads, kept["hidden"].shape[1], config.width // config.heads
            fits = kept["state"].shape[1:] == self.initial.shape and kept["keys.0"].shape == heads
        if not fits:
            raise ValueError(
                f"the state is of a model of another shape: this one has {config.slots} slots of width {config.width}, "
                f"{config.layers} layers of {config.heads} heads, and chunks of {config.chunk} tokens"
            )
        return SlotCache.resume(kept, config.layers, config.chunk)

    def flops(self, length: int) -> float:
        """See `Backbone.flops`; of the update the maps alone."""
        whole, rest = divmod(length, self.config.chunk)
        total = whole * self.gpt.flops(self.config.chunk) + (self.gpt.flops(rest) if rest else 0.0)
        injected = self.config.layers * self.slot_count * self.width**2
        return total + 2.0 * (whole + (rest > 0)) * (injected + self.update.products)
