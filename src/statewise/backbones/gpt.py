"""The plain decoder-only transformer: state and readout are the same tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from statewise.backbones.base import Backbone, check_context
from statewise.backbones.capabilities import Branch, Branching, Counted, Followed
from statewise.backbones.nn.attention import rotary_angles
from statewise.backbones.nn.block import Block, BlockConfig, BlockContext
from statewise.backbones.nn.cache import KeyValueCache
from statewise.backbones.nn.hooks import Hookable, HookPoint, block_hook_points
from statewise.backbones.nn.layers import Matrix, TokenEmbedding, init_weights, make_norm
from statewise.backbones.nn.masks import Documents, causal, keys_in_reach
from statewise.backbones.nn.one_token import OneToken, can_be_replaced, store_by_columns
from statewise.batch import Batch, Hidden


@dataclass(frozen=True)
class GPTConfig(BlockConfig):
    """Fields of `backbone: gpt`."""

    tied: bool = True
    """Whether the vocabulary head shares the token embedding's matrix."""


class GPT(Branching, Counted, Followed, Hookable):
    """Pre-norm decoder; `state` and `readout` are the same tensor, after the final norm."""

    Config = GPTConfig

    def __init__(
        self, config: GPTConfig, *, vocabulary: int, context: int, embedding_of: Backbone | None = None
    ) -> None:
        super().__init__()
        assert embedding_of is None or isinstance(embedding_of, GPT)
        self.config = config
        self.width, self.context, self.vocabulary = config.width, context, vocabulary
        self.head_width, self.layers = config.width // config.heads, config.layers
        self.head_init, self.norm_eps = None if config.init == "gpt2" else config.init, config.norm_eps
        shared = None if embedding_of is None else embedding_of.embedding
        self.embedding: TokenEmbedding = TokenEmbedding(vocabulary, config.width, shared)
        self.positions = nn.Embedding(context, config.width) if config.positions == "learned" else None
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = make_norm(config.norm, config.width, config.bias, config.norm_eps)
        self.head = None if config.tied else Matrix(config.width, vocabulary, bias=False)
        init_weights(self, config.init, config.layers)
        self._one_token: OneToken | None = None
        self.register_state_dict_post_hook(_store_by_rows)  # type: ignore[no-untyped-call]
        linears = [part for part in self.blocks.modules() if isinstance(part, nn.Linear)]
        self.block_weights = sum(linear.weight.numel() for linear in linears)

    @override
    def encode(self, batch: Batch) -> Hidden:
        return self.last(self.trunk(batch))

    @override
    def extend(self, tokens: Tensor, cache: KeyValueCache, counts: np.ndarray | None = None) -> Hidden:
        alone = tokens.shape[1] == 1 and counts is None and not self.training
        if self._one_token is None or not alone or not self._one_token.fits(cache):
            return self._extend(tokens, cache, counts)[0]
        check_context(cache, 1, counts, self.context)
        x = self.embed(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.from_numpy(cache.lengths)[:, None])
        x = self._one_token.step(x[:, 0], cache)[:, None]
        return Hidden(state=x, readout=x)

    @override
    def extend_trunk(
        self, tokens: Tensor, cache: KeyValueCache, counts: np.ndarray | None = None
    ) -> tuple[Hidden, Tensor]:
        return self._extend(tokens, cache, counts)

    def _extend(
        self, tokens: Tensor, cache: KeyValueCache, counts: np.ndarray | None = None, by_row: bool = False
    ) -> tuple[Hidden, Tensor]:
        check_context(cache, tokens.shape[1], counts, self.context)
        x, context = self.enter_cached(tokens, cache, counts, by_row)
        x = self._up_to_last(x, context)
        hidden = self.last((x, context))
        cache.advance()
        return hidden, x

    def prepare_one_token(self) -> None:
        """Makes passes without gradients over one token of a single row fast, and those of a few rows faster: the
        matrices are from now on stored by columns, and those in `state_dict()` are copies, by rows. For models on a
        CPU that no longer change; a model that cannot gain stays as it is. See `nn.one_token`."""
        head = self.head_weight()
        parameters = [*self.parameters(), head]
        if self.training or not can_be_replaced(self.config, self.blocks, self.norm, parameters):
            return
        linears = [part.weight for part in self.modules() if isinstance(part, nn.Linear)]
        store_by_columns([head, self.embedding.matrix, *linears])
        blocks = [block for block in self.blocks if isinstance(block, Block)]
        self._one_token = OneToken(self.config, blocks, self.norm, head, self)

    @property
    @override
    def device(self) -> torch.device:
        return self.embedding.matrix.device

    @override
    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        self._one_token = None  # its weights are about to be replaced
        applied: Self = super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        return applied

    @override
    def logits(self, readout: Tensor, *, frozen: bool = False) -> Tensor:
        one, rows = self._one_token, readout.numel() // self.width
        few = one is not None and readout.shape[-1] == self.width and 0 < rows <= one.most
        if one is not None and few and one.fits_head(self.head_weight()):
            found = torch.from_numpy(one.head(readout.reshape(-1 if rows == 1 else (rows, -1)).numpy()))
            return found.view(*readout.shape[:-1], -1)
        return super().logits(readout, frozen=frozen)

    def trunk(self, batch: Batch) -> tuple[Tensor, BlockContext]:
        """The residual stream (B, T, D) that the last block reads, and its context."""
        self.check_length(batch)
        x, context = self.enter(batch.tokens, None if batch.documents is None else Documents(batch.documents))
        return self._up_to_last(x, context), context

    def _up_to_last(self, x: Tensor, context: BlockContext) -> Tensor:
        for block in self.blocks[:-1]:
            x = block(x, context)
        return x

    def enter(self, tokens: Tensor, documents: Documents | None) -> tuple[Tensor, BlockContext]:
        """The first block's input (B, T, D) for whole rows `tokens` (B, T), and its context."""
        whole = torch.arange(tokens.shape[1], device=tokens.device)
        place = whole if documents is None else documents.positions()
        return self._placed(tokens, place, BlockContext(None, documents))

    def enter_cached(
        self, tokens: Tensor, cache: KeyValueCache, counts: np.ndarray | None, by_row: bool = False
    ) -> tuple[Tensor, BlockContext]:
        """Like `enter`, for `tokens` (B, n) after those in the cache; starts its pass. `by_row`: looks up learned
        positions for each row even if all rows have the same."""
        place, context = started_pass(cache, tokens.shape[1], counts, tokens.device)
        return self._placed(tokens, place, context, by_row)

    def _placed(
        self, tokens: Tensor, place: Tensor, context: BlockContext, by_row: bool = False
    ) -> tuple[Tensor, BlockContext]:
        x, place = self.embed(tokens), place.clamp(min=0)
        if self.config.positions == "rope":
            context = context._replace(rotation=rotary_angles(place, self.head_width))
        elif self.positions is not None:
            x = x + self.positions(place.expand_as(tokens) if by_row else place)
        return self.dropout(x), context

    def last(self, trunk: tuple[Tensor, BlockContext]) -> Hidden:
        """The last block and the norm."""
        x, context = trunk
        x = self.norm(self.blocks[-1](x, context))
        return Hidden(state=x, readout=x)

    @override
    def trunk_state(self, trunk: tuple[Tensor, BlockContext]) -> Tensor:
        return trunk[0]

    @property
    @override
    def streams(self) -> tuple[Literal["input", "prediction"], ...]:
        return ("input",)

    @override
    def every_stream(self, tokens: Tensor, cache: KeyValueCache | None = None) -> tuple[Tensor, int]:
        cache = self.make_cache(len(tokens)) if cache is None else cache
        return self._extend(tokens, cache, by_row=True)[0].readout[:, None], 0

    def make_branch(self) -> GPTBranch:
        """A new last block with its norm."""
        return GPTBranch(self.config, self.context)

    def embed(self, tokens: Tensor) -> Tensor:
        """(...) -> (..., D)."""
        embedded: Tensor = self.embedding(tokens)
        return embedded

    def head_weight(self) -> Tensor:
        """The matrix (V, D) of the vocabulary head."""
        return self.embedding.matrix if self.head is None else self.head.weight

    def make_cache(self, rows: int) -> KeyValueCache:
        """An empty cache, with one layer per block."""
        return KeyValueCache(rows, self.layers, most=self.context)

    def flops(self, length: int) -> float:
        """See `Counted.flops`. Position t (from 0) scores t + 1 keys and sums t + 1 values, of total width D; with
        stick-breaking attention t of each."""
        own = self.config.attention == "softmax"
        pairs = length * (length + 1 if own else length - 1) // 2
        return 2.0 * (length * self.block_weights + self.layers * pairs * 2 * self.width)

    def branch_flops(self, length: int) -> float:
        """See `Branching.branch_flops`: all blocks are alike."""
        return self.flops(length) / self.config.layers

    @override
    def hook_points(self) -> dict[str, HookPoint]:
        points = {"hook_embed": HookPoint(self.embedding)}
        for layer, block in enumerate(self.blocks):
            points |= block_hook_points(layer, block, self.config.heads)
        return {**points, "ln_final.hook_out": HookPoint(self.norm)}


def _store_by_rows(model: nn.Module, tensors: dict[str, Any], prefix: str, metadata: object) -> None:
    """Copies the matrices of a state dict that `prepare_one_token` stored by columns, since safetensors writes none
    such; a tensor under two names stays one. Parameters themselves (`keep_vars`) stay."""
    copies: dict[int, Tensor] = {}
    for name, value in tensors.items():
        detached = isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
        if name.startswith(prefix) and detached and not value.is_contiguous():
            tensors[name] = copies.setdefault(value.data_ptr(), value.contiguous())


class GPTBranch(Branch):
    """Another last block and norm for a GPT's trunk."""

    def __init__(self, config: GPTConfig, context: int) -> None:
        super().__init__()
        self.config, self.context = config, context
        self.block = Block(config, 0)
        self.norm = make_norm(config.norm, config.width, config.bias, config.norm_eps)
        init_weights(self, config.init, config.layers)

    def forward(self, trunk: tuple[Tensor, BlockContext]) -> Tensor:
        """Maps the result of `GPT.trunk` to (B, T, D)."""
        x, context = trunk
        return self.norm(self.block(x, context))

    @override
    def make_cache(self, rows: int) -> KeyValueCache:
        return KeyValueCache(rows, 1, most=self.context)

    @override
    def extend(self, x: Tensor, cache: KeyValueCache, counts: np.ndarray | None = None) -> Tensor:
        place, context = started_pass(cache, x.shape[1], counts, x.device)
        if self.config.positions == "rope":
            rotation = rotary_angles(place.clamp(min=0), self.config.width // self.config.heads)
            context = context._replace(rotation=rotation)
        state = self((x, context))
        cache.advance()
        return state


def started_pass(
    cache: KeyValueCache, new: int, counts: np.ndarray | None, device: torch.device
) -> tuple[Tensor, BlockContext]:
    """Starts a pass of `new` columns (`PlaceStore.begin`). Returns their places, (new,) or (B, new), -1: none, and the
    blocks' context without the rotation."""
    cache.begin(new, counts)
    keys = cache.key_places(device)
    place, mask = keys[..., keys.shape[-1] - new :], None
    if keys.dim() == 2:
        mask = keys_in_reach(place, keys)[:, None]
    elif 1 < new < len(keys):  # once here, instead of once in every layer
        mask = causal(new, len(keys), device)[None, None]
    return place, BlockContext(None, None, cache, mask)
