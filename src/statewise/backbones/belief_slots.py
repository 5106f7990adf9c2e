"""The belief-slot decoder: a GPT that reads chunk by chunk and carries a small state from each to the next.

Attention is limited to the chunk; the memory of earlier chunks is S slots of width D. Before every block, a map of its
own that starts at zero adds them to the residual stream, so that the model starts as the GPT. After each chunk they are
updated from its last hidden states. How evaluation uses the state is a protocol: see `StateProtocol`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from statewise.backbones.base import Backbone, last_columns
from statewise.backbones.capabilities import AcrossRows, Carrying, Counted, Noted, check_kept
from statewise.backbones.gpt import GPT, GPTConfig
from statewise.backbones.nn.belief_slots import GroupedCache, Lanes, Pooling, SlotCache, SlotUpdate, make_injection
from statewise.backbones.nn.hooks import Hookable, HookPoint
from statewise.backbones.nn.masks import Documents
from statewise.batch import Batch, Continuation, Hidden
from statewise.decoding.carried_state import MOST_PASSES, StateProtocol
from statewise.runtime.bounds import bounded, unset


@dataclass(frozen=True)
class BeliefSlotsConfig(GPTConfig):
    """Fields of `backbone: belief_slots`."""

    chunk: int = 128
    """Tokens per chunk; earlier chunks are known through the slots only."""
    slots: int = 4
    """Slots S of the state, each as wide as the model."""
    injection: Literal["normed", "linear"] = "normed"
    """What a layer adds to the residual stream. `normed`: a linear map of the normalised slots, with random initial
    directions and gains that start at zero; `linear`: a linear map of the slots, which starts at zero."""
    update: Literal["ema", "gated"] = "ema"
    """`ema`: the new state is a weighted mean of the old one and the chunk's proposal; `gated`: a GRU cell."""
    pooling: Pooling = "attention"
    """How the update pools a chunk's last hidden states: the last one, their mean, or attention by each slot."""
    rate: float = 0.5
    """Weight of the chunk's proposal, with `ema`."""
    learned_rate: bool = True
    """Whether that weight is learned, per slot."""
    backprop: int | None = None
    """Updates of the state through which a loss reaches back at most; null: all in the row. The row is processed
    in segments of this many updates; gradients do not cross segment boundaries. The update after a segment is trained,
    but its inputs get no gradient."""
    warmup: int = 0
    """Passes over a chunk, in training, before the one whose loss counts; the state has then seen its targets."""
    across_rows: bool = False
    """Whether a training row that continues a document starts with the state after the previous row, detached as
    between segments of `backprop`; needs `trainer.rows: consecutive`. False: rows start with the learned state."""

    def __post_init__(self) -> None:
        super().__post_init__()
        bounded(self, "chunk", "slots", prefix="backbone.", at_least=1)
        bounded(self, "backprop", prefix="backbone.", at_least=1)
        bounded(self, "rate", prefix="backbone.", above=0, below=1)
        bounded(self, "warmup", prefix="backbone.", at_least=0, at_most=MOST_PASSES)
        if self.update == "gated":
            unset(self, "rate", "learned_rate", prefix="backbone.", reason="is for the update ema: omit it")


class Held(NamedTuple):
    """A state, and the documents that it belongs to."""

    state: Tensor
    """(B, S, D)."""
    owner: Tensor | None
    """(B,) document numbers; None: one document per row."""

    def of(self, documents: Tensor) -> Tensor:
        """(B, t) bool: the positions of its document."""
        assert self.owner is not None
        return documents == self.owner[:, None]


class BeliefSlots(Carrying, AcrossRows, Counted, Noted, Hookable):
    """`readout` is the GPT's; `state` is the readout followed by the slots at the chunk's start, (1 + S) D wide.

    With packed documents, the state belongs to one document; each document starts with the learned initial state.
    """

    Config = BeliefSlotsConfig

    def __init__(
        self, config: BeliefSlotsConfig, *, vocabulary: int, context: int, embedding_of: Backbone | None = None
    ) -> None:
        super().__init__()
        if config.chunk >= context:
            raise ValueError(
                f"backbone.chunk {config.chunk} is not shorter than a row of {context} tokens, so no state would ever "
                "be carried: set it lower, or the task's context higher"
            )
        self.config = config
        self.chunk, self.slot_count = config.chunk, config.slots
        self.width, self.context, self.vocabulary = config.width, context, vocabulary
        self.head_init, self.norm_eps = None if config.init == "gpt2" else config.init, config.norm_eps
        assert embedding_of is None or isinstance(embedding_of, BeliefSlots)
        shared = None if embedding_of is None else embedding_of.gpt
        self.gpt: GPT = GPT(config, vocabulary=vocabulary, context=config.chunk, embedding_of=shared)
        self.injections = nn.ModuleList(
            make_injection(config.injection, config.width, config.slots, config.init) for _ in range(config.layers)
        )
        self.initial = nn.Parameter(torch.randn(config.slots, config.width) * 0.02)
        self.update = SlotUpdate(
            config.width,
            config.slots,
            kind=config.update,
            pooling=config.pooling,
            rate=config.rate,
            learned_rate=config.learned_rate,
            init=config.init,
        )
        self.protocol: StateProtocol = "carried"
        self.warmup = 0
        self.lanes: Lanes | None = None
        self.sharded = False
        """Set by `training.sharding.shard`: processes gather each block together, so all must call it equally often."""

    @property
    @override
    def state_width(self) -> int:
        return (1 + self.config.slots) * self.width

    @override
    def under(self, protocol: StateProtocol, warmup: int) -> BeliefSlots:
        other = copy.copy(self)
        other.protocol, other.warmup = protocol, warmup
        return other

    def encode(self, batch: Batch) -> Hidden:
        """See `Backbone.encode`; `state` is (B, T, (1 + S) D)."""
        return _hidden(self._walk(batch))

    @override
    def readouts(self, batch: Batch) -> Tensor:
        return torch.cat([hidden for hidden, _ in self._walk(batch)], dim=1)

    def extend(self, tokens: Tensor, cache: GroupedCache, counts: np.ndarray | None = None) -> Hidden:
        """See `Backbone.extend`; rows of different length are read in groups of equal length. Sequences may have any
        length, as attention is limited to a chunk."""
        return self._extend(tokens, cache, counts, 0)

    @override
    def encode_chunks(self, tokens: Tensor) -> Iterator[Hidden]:
        cache = self.make_cache(len(tokens))
        for part in torch.split(tokens, self.chunk, dim=1):
            yield self._extend(part, cache, None, self.warmup)

    def _extend(self, tokens: Tensor, cache: GroupedCache, counts: np.ndarray | None, warmup: int) -> Hidden:
        counted = np.full(len(tokens), tokens.shape[1]) if counts is None else counts
        hidden: Hidden | None = None
        for rows, own, count in cache.split(counted):
            if not count:
                continue
            if len(rows) == len(tokens) and count == tokens.shape[1]:
                hidden = _hidden(self._read(tokens, own, warmup))
                continue
            index = torch.from_numpy(rows).to(tokens.device)
            part = _hidden(self._read(tokens[index, :count], own, warmup))
            if hidden is None:
                hidden = Hidden(*(each.new_zeros(*tokens.shape, each.shape[-1]) for each in part))
            for whole, each in zip(hidden, part):
                whole[index, :count] = each
        cache.advance(counted)
        if hidden is None:  # no row reads anything
            weight = self.head_weight()
            hidden = Hidden(*(weight.new_zeros(*tokens.shape, width) for width in (self.state_width, self.width)))
        return hidden

    @override
    def notes(self, steps: int) -> list[str]:
        if not self.config.warmup:
            return []
        return [
            f"backbone.warmup {self.config.warmup}: training losses are computed on chunks that the state has already "
            "seen, so they cannot be compared with other models; held-out data are read without warm-up"
        ]

    def read_prompt(self, tokens: Tensor, cache: GroupedCache, counts: np.ndarray | None = None) -> Hidden:
        """See `Backbone.read_prompt`; each chunk of a prompt gets the protocol's warm-up passes."""
        counted = np.full(len(tokens), tokens.shape[1]) if counts is None else counts
        hidden = self._extend(tokens, cache, counts, self.warmup)
        return Hidden(*(last_columns(each, counted) for each in hidden))

    def _walk(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
        """Chunk by chunk the last hidden states (B, t, D), and the slots (B, 1 or t, S D) that they read."""
        config, tokens, (B, T) = self.config, batch.tokens, batch.tokens.shape
        rows = batch.continuation if self.training and config.across_rows else None
        self.check_length(batch)
        warmup = config.warmup if self.training else self.warmup
        # Warm-up passes end with a state of the whole chunk, and lanes keep a row's last chunk, so padding must be
        # distinguished from tokens.
        documents = batch.document_ids if warmup or rows is not None else batch.documents
        held = Held(self._begin(B), None if documents is None else documents[:, 0])
        if rows is not None:
            held = self._after_previous_row(rows, held)
        for number, begin in enumerate(range(0, T, config.chunk)):
            chunk = slice(begin, begin + config.chunk)
            part, own = tokens[:, chunk], None if documents is None else documents[:, chunk]
            if number and not self.training and self.protocol != "carried":
                held = held._replace(state=self._begin(B))
            states = [held]
            for _ in range(warmup):  # for the document at the chunk's end only
                states = [held, self._renewed(states[-1], self._chunk(part, own, states), own)]
            hidden = self._chunk(part, own, states)
            if self.training and begin + config.chunk >= T:
                hidden = self._using_all(number + 1, warmup, states[-1], hidden, own)
            yield hidden, self._slots(states, own)
            held = states[-1]
            if begin + config.chunk < T:
                if config.backprop is not None and (number + 1) % (config.backprop + 1) == 0:
                    held, hidden = held._replace(state=held.state.detach()), hidden.detach()
                held = self._renewed(held, hidden, own)
            elif rows is not None:
                self._keep(rows.lane, held, hidden, own)

    def _using_all(self, chunks: int, warmup: int, held: Held, hidden: Tensor, documents: Tensor | None) -> Tensor:
        """The last hidden states of a row's last chunk, unchanged. Processes reduce gradients together, so what they
        use of the model must not depend on the length of their rows. Hence with weight zero, rows of one chunk use the
        update, and if the blocks are sharded, rows of any length call these as often as the longest would."""
        if chunks == 1:
            hidden = hidden + 0 * self._renewed(held, hidden, documents).state.sum()
        if self.sharded:
            token = torch.zeros(1, 1, dtype=torch.int64, device=hidden.device)
            for _ in range((-(-self.context // self.chunk) - chunks) * (1 + warmup)):
                hidden = hidden + 0 * self._chunk(token, None, [Held(self._begin(1), None)]).sum()
        return hidden

    def _after_previous_row(self, rows: Continuation, held: Held) -> Held:
        """`held`, with the state after the lane's previous row where the row continues it. The lane keeps the inputs of
        this update, so that it uses the current weights and gets a gradient, like updates within a row."""
        assert self.lanes is not None, "open_lanes comes before training"
        kept = self.lanes.read(rows.lane)
        carried = self._renewed(Held(kept["state"], kept["owner"]), kept["hidden"], kept["documents"])
        return held._replace(state=torch.where(rows.follows[:, None, None], carried.state, held.state))

    def _keep(self, lane: Tensor, held: Held, hidden: Tensor, documents: Tensor | None) -> None:
        """Keeps the inputs of the update after a row's last chunk."""
        assert self.lanes is not None
        assert documents is not None
        assert held.owner is not None
        missing = self.chunk - hidden.shape[1]
        self.lanes.write(
            lane,
            state=held.state,
            owner=held.owner,
            hidden=F.pad(hidden, (0, 0, 0, missing)),
            documents=F.pad(documents, (0, missing)),
        )

    def _read(self, tokens: Tensor, cache: SlotCache, warmup: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Like `_walk`, for any number of tokens after those in the cache; chunks that start here get `warmup` passes
        first."""
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
            cache.length += part.shape[1]
            yield hidden, state.flatten(1)[:, None]

    def _next_state(self, cache: SlotCache, B: int) -> Tensor:
        """(B, S, D): the initial state of the next chunk after the cache."""
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
        """(B, t) -> the last hidden states (B, t, D). If several states belong to a document, uses the last."""
        gpt = self.gpt
        if cache is not None:
            x, context = gpt.enter_cached(tokens, cache.chunks[-1].keys, None)
        else:
            x, context = gpt.enter(tokens, None if documents is None else Documents(documents))
        for block, inject in zip(gpt.blocks, self.injections):
            if documents is None:
                added = inject(states[-1].state)[:, None]
            else:
                added = inject(self.initial)
                for held in states:
                    added = torch.where(held.of(documents)[..., None], inject(held.state)[:, None], added)
            x = block(x + added.to(x.dtype), context)
        if cache is not None:
            cache.chunks[-1].keys.advance()
        hidden: Tensor = gpt.norm(x)
        return hidden

    def _renewed(self, held: Held, hidden: Tensor, documents: Tensor | None) -> Held:
        """The state after a chunk, for the documents at its end, ignoring padding (0)."""
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
        slots = self.initial.flatten()
        for held in states:
            slots = torch.where(held.of(documents)[..., None], held.state.flatten(1)[:, None], slots)
        return slots

    def embed(self, tokens: Tensor) -> Tensor:
        """(...) -> (..., D)."""
        return self.gpt.embed(tokens)

    def head_weight(self) -> Tensor:
        """(V, D)."""
        return self.gpt.head_weight()

    def make_cache(self, rows: int) -> GroupedCache:
        """An empty cache."""
        return GroupedCache(rows, self.config.layers, self.config.chunk)

    @override
    def keep(self, cache: GroupedCache) -> dict[str, Tensor]:
        return cache.keep()

    @override
    def resume(self, kept: Mapping[str, Tensor]) -> GroupedCache:
        config = self.config
        read = kept["hidden"].shape[1] if "hidden" in kept and kept["hidden"].dim() > 1 else 0
        both = 2, 1, config.heads, read, config.width // config.heads
        shapes = {"state": (1, *self.initial.shape), "hidden": (1, read, config.width), "length": (), "chunk": ()}
        shapes |= {f"keys.{layer}": both for layer in range(config.layers)}
        if {name: tuple(tensor.shape) for name, tensor in kept.items()} != shapes or kept["chunk"] != config.chunk:
            raise ValueError(
                f"the state has another shape: this model has {config.slots} slots of width {config.width}, "
                f"{config.layers} layers of {config.heads} heads, and chunks of {config.chunk} tokens"
            )
        for name, tensor in kept.items():
            check_kept(name, tensor, torch.int64 if name in ("length", "chunk") else self.initial.dtype)
        length = int(kept["length"])
        if read > config.chunk or length < read or (length - read) % config.chunk:
            raise ValueError(
                f"a damaged state: {length} tokens cannot have been read in chunks of {config.chunk}, with {read} in "
                "the last"
            )
        return GroupedCache.resume(kept, config.layers, config.chunk)

    @property
    @override
    def across_rows(self) -> bool:
        return self.config.across_rows

    @override
    def open_lanes(self, lanes: int) -> None:
        # Not `initial.new_zeros`, whose tensors are sharded if `initial` is.
        new = partial(torch.zeros, dtype=self.initial.dtype, device=self.initial.device)
        self.lanes = Lanes(
            state=new(lanes, *self.initial.shape),
            owner=new(lanes, dtype=torch.int64),
            hidden=new(lanes, self.chunk, self.width),
            documents=new(lanes, self.chunk, dtype=torch.int64),
        )

    @override
    def advance_lanes(self) -> None:
        assert self.lanes is not None
        self.lanes.advance()

    @override
    def kept_lanes(self) -> Mapping[str, Tensor]:
        assert self.lanes is not None
        return self.lanes.kept

    @override
    def load_lanes(self, kept: Mapping[str, Tensor]) -> None:
        assert self.lanes is not None
        for name, tensor in kept.items():
            whole = name in ("owner", "documents")
            check_kept(name, tensor, torch.int64 if whole else self.initial.dtype)
        self.lanes.load(kept)

    def flops(self, length: int) -> float:
        """See `Counted.flops`; counts only the linear maps of the update."""
        whole, rest = divmod(length, self.config.chunk)
        total = whole * self.gpt.flops(self.config.chunk) + (self.gpt.flops(rest) if rest else 0.0)
        injected = self.config.layers * self.slot_count * self.width**2
        return total + 2.0 * (whole + (rest > 0)) * (injected + self.update.products)

    def hook_points(self) -> dict[str, HookPoint]:
        """See `Hookable`: those of the GPT; block inputs include the slots. Rows are read chunk by chunk."""
        return self.gpt.hook_points()


def _hidden(parts: Iterator[tuple[Tensor, Tensor]]) -> Hidden:
    """`Hidden` from the parts that `_walk` and `_read` yield."""
    read = list(parts)
    readout = torch.cat([hidden for hidden, _ in read], dim=1)
    slots = torch.cat([slots.expand(*hidden.shape[:2], -1) for hidden, slots in read], dim=1)
    return Hidden(torch.cat([readout, slots.to(readout.dtype)], dim=-1), readout)
