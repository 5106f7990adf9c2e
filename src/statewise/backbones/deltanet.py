"""Gated DeltaNet (Yang, Kautz & Hatamizadeh 2024, arXiv 2412.06464): layers whose memory is a matrix per head.

With key k_t, value v_t, strength beta_t and decay alpha_t, a head's memory is

    S_t = S_(t-1) alpha_t (I - beta_t k_t k_t^T) + beta_t v_t k_t^T,    o_t = S_t q_t / sqrt(W),

which replaces what is stored at k_t by v_t. The eigenvalue along k_t is 1 - beta_t. If beta_t may exceed 1 it can be
negative, without which no number of layers computes parity in finite precision (Grazzi et al. 2024, arXiv 2411.12537).
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache as cached
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from statewise.backbones.base import Backbone, check_context
from statewise.backbones.capabilities import Branch, Branching, Counted
from statewise.backbones.nn.block import BlockConfig, FeedForward
from statewise.backbones.nn.cache import SLACK, PlaceStore
from statewise.backbones.nn.hooks import Hookable, HookPoint, block_hook_points
from statewise.backbones.nn.layers import Init, Matrix, RMSNorm, TokenEmbedding, check_init, draw_normal, init_weights
from statewise.batch import Batch, Hidden
from statewise.runtime.bounds import bounded

CHUNK = 16
"""Tokens that the delta rule reads at a time. On a CPU, 8 and 32 are slower for heads of width 16."""
WIDEST = 256
"""Width of the widest heads that flash-linear-attention's kernel reads."""


@dataclass(frozen=True)
class DeltaNetConfig:
    """Fields of `backbone: deltanet`."""

    width: int = 128
    """Width D of the residual stream."""
    heads: int = 4
    """Heads H, each with a memory of D/H x D/H numbers."""
    layers: int = 4
    """Number of blocks L."""
    negative_eigenvalues: bool = True
    """Whether a token's eigenvalue of the memory's update is in [-1, 1], as state tracking needs, or in [0, 1]."""
    decay: bool = True
    """Whether memories decay at a learned rate that depends on the token (Gated DeltaNet), or not at all (DeltaNet)."""
    convolution: int = 4
    """Tokens, its own included, over which queries, keys and values are convolved; 0: no convolution."""
    expansion: float = 8 / 3
    """Hidden width of the feed-forward part (gated SiLU), as a multiple of the width (rounded up to a multiple of
    8)."""
    norm_eps: float = 1e-5
    """Epsilon of every RMSNorm, also in heads that objectives add."""
    dropout: float = 0.0
    """Dropout on the embedded input and on both residual branches."""
    tied: bool = True
    """Whether the vocabulary head shares the token embedding's matrix."""
    init: Init = "gpt2"
    """Initialisation of matrices. `gpt2`: std 0.02, output maps to the residual stream 0.02 / sqrt(2L); `fan_in`: std
    1 / sqrt(inputs), embeddings and vocabulary heads 1 / sqrt(D); a number: the std of all. Convolutions of K tokens
    have 1 / sqrt(K). Heads that objectives add follow the latter two, unless `objective.init` is set."""

    def __post_init__(self) -> None:
        bounded(self, "width", "heads", prefix="backbone.", at_least=1)
        bounded(self, "layers", prefix="backbone.", at_least=1, at_most=10_000)
        bounded(self, "convolution", prefix="backbone.", at_least=0, at_most=64)
        bounded(self, "expansion", prefix="backbone.", above=0)
        bounded(self, "dropout", prefix="backbone.", at_least=0, below=1)
        bounded(self, "norm_eps", prefix="backbone.", above=0, at_most=1)
        check_init(self, "backbone.", "gpt2", "fan_in")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} cannot be divided among {self.heads} heads: choose a multiple")


# The delta rule


class Rule(NamedTuple):
    """What the delta rule reads at T tokens, in float32 or better."""

    query: Tensor
    """(B, H, T, W), of length 1 / sqrt(W)."""
    key: Tensor
    """(B, H, T, W), of length 1."""
    value: Tensor
    """(B, H, T, W)."""
    beta: Tensor
    """(B, H, T), the strength of writing."""
    log_alpha: Tensor
    """(B, H, T) <= 0, the logarithm of the decay."""

    def part(self, first: int, end: int) -> Rule:
        """The tokens from `first` to `end` - 1."""
        return Rule(*(each[:, :, first:end] for each in self))


def by_chunks(
    rule: Rule, memory: Tensor | None, segments: Tensor | None = None, chunk: int = CHUNK
) -> tuple[Tensor, Tensor]:
    """The delta rule in matrix products over `chunk` tokens (Yang et al. 2024, arXiv 2406.06484, with decay).

    With G_i = sum of log alpha up to token i of the chunk, S the memory before it as (key, value), and A the part of
    beta_i exp(G_i - G_j) k_i k_j below the diagonal, what the tokens write is U = (I + A)^-1 beta (V - exp(G) K S).

    `memory` (B, H, W, W) before the first token; None: zeros. `segments` (B, T): the memory is zeros wherever the
    number changes; None: nowhere. Returns outputs (B, H, T, W) and the memory after the last token.
    """
    B, H, T, W = rule.key.shape
    chunk = min(chunk, T)
    count = -(-T // chunk)
    more = count * chunk - T  # tokens that write nothing and do not decay
    vectors = (F.pad(each, (0, 0, 0, more)).view(B, H, count, chunk, W) for each in rule[:3])
    query, key, value = vectors
    beta, log_alpha = (F.pad(each, (0, more)).view(B, H, count, chunk) for each in rule[3:])
    seen = torch.ones(chunk, chunk, dtype=torch.bool, device=key.device).tril()
    enters: Tensor | None = None
    if segments is not None:
        padded = torch.cat((segments, segments[:, -1:].expand(B, more)), dim=1).view(B, 1, count, chunk)
        seen = seen & (padded[..., :, None] == padded[..., None, :])
        before = torch.cat((padded[:, :, :1, 0], padded[:, :, :-1, -1]), dim=2)
        enters = padded == before[..., None]
    total = log_alpha.cumsum(-1)
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(~seen, -torch.inf).exp()
    since_start = total.exp() if enters is None else total.exp() * enters
    written = (key @ key.mT * decay * beta[..., None]).tril(-1)
    both = torch.cat((value, key * since_start[..., None]), dim=-1) * beta[..., None]
    # The diagonal is not read: `unitriangular` means ones.
    solved = torch.linalg.solve_triangular(written, both, upper=False, unitriangular=True)
    new, replaced = solved.split(W, dim=-1)
    scores, asking = query @ key.mT * decay, query * since_start[..., None]
    lasting = (key * decay[..., -1, :, None]).mT
    memory = key.new_zeros(B, H, W, W) if memory is None else memory
    outputs = []
    for index in range(count):
        update = new[:, :, index] - replaced[:, :, index] @ memory
        outputs.append(asking[:, :, index] @ memory + scores[:, :, index] @ update)
        memory = since_start[:, :, index, -1, None, None] * memory + lasting[:, :, index] @ update
    return torch.cat(outputs, dim=2)[:, :, :T], memory


def by_tokens(rule: Rule, memory: Tensor) -> tuple[Tensor, Tensor]:
    """The delta rule token by token. Returns outputs (B, H, T, W), and the memory after each token, (B, T, H, W, W)."""
    outputs, memories = [], []
    for token in range(rule.key.shape[2]):
        query, key, value, beta, log_alpha = (each[:, :, token] for each in rule)
        memory = memory * log_alpha.exp()[..., None, None]
        found = (key[..., None, :] @ memory)[..., 0, :]
        memory = memory + key[..., :, None] * (beta[..., None] * (value - found))[..., None, :]
        outputs.append((query[..., None, :] @ memory)[..., 0, :])
        memories.append(memory)
    return torch.stack(outputs, dim=2), torch.stack(memories, dim=1)


@cached
def fused_rule() -> Any:
    """The kernel of flash-linear-attention for whole rows; None: it is not installed."""
    if importlib.util.find_spec("fla") is None:
        return None
    return importlib.import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule


def by_kernel(kernel: Any, rule: Rule, segments: Tensor | None, dtype: torch.dtype) -> Tensor:
    """`by_chunks` from zeros by the kernel, which computes in bf16 or fp16, `dtype`: outputs (B, H, T, W)."""
    B, H, T, W = rule.key.shape
    query, key, value = (each.transpose(1, 2).to(dtype) for each in rule[:3])
    beta, log_alpha = (each.transpose(1, 2) for each in rule[3:])
    parts: tuple[Tensor, ...] = (query, key, value, log_alpha, beta)
    borders = None
    if segments is not None:  # one row of all documents
        first = F.pad(segments[:, 1:] != segments[:, :-1], (1, 0), value=True).flatten().nonzero()[:, 0]
        borders = F.pad(first, (0, 1), value=B * T)
        parts = tuple(each.reshape(1, B * T, *each.shape[2:]) for each in parts)
    output, _ = kernel(*parts, scale=1.0, cu_seqlens=borders)
    heads: Tensor = output.reshape(B, T, H, W).transpose(1, 2)
    return heads.to(rule.key.dtype)


# Layers


class Reading(NamedTuple):
    """What all blocks of a forward pass share."""

    segments: Tensor | None = None
    """(B, T): a number for each document of a row; None: one document per row."""
    cache: PlaceStore | None = None
    """The memory of each layer, and the inputs of its convolution. Without a cache, rows are read from their start."""
    before: Sequence[Tensor | None] = ()
    """What the cache has of each layer's last position."""
    unstored: int = 0
    """Tokens at the beginning of the pass after which nothing is stored, since no row can be rewound to them."""

    @classmethod
    def of_documents(cls, documents: Tensor | None) -> Reading:
        """Whole rows with `documents` (B, T)."""
        if documents is None:
            return cls()
        return cls(F.pad((documents[:, 1:] != documents[:, :-1]).cumsum(1), (1, 0)))

    @classmethod
    def continued(cls, cache: PlaceStore, layers: int, new: int, counts: np.ndarray | None) -> Reading:
        """Starts a pass of the cache over `new` columns, of which row b reads the first `counts[b]`, or all."""
        before = [cache.last(layer) for layer in range(layers)]
        unstored = 0
        if cache.held is None:
            unstored = max(0, (new if counts is None else int(counts.min(initial=new))) - SLACK - 1)
        if unstored:
            cache.skip(unstored)
        cache.begin(new - unstored, None if counts is None else counts - unstored)
        return cls(None, cache, before, unstored)


class Convolution(nn.Module):
    """A causal convolution of each feature by itself, over K tokens, then SiLU."""

    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(tokens, width))
        draw_normal(self.weight, std=tokens**-0.5)

    def forward(self, x: Tensor, before: Tensor, segments: Tensor | None) -> Tensor:
        """`x` (B, T, C) after `before` (B, K - 1, C) -> (B, T, C). Of another segment nothing is read."""
        T, reach = x.shape[1], len(self.weight) - 1
        row, total = torch.cat((before, x), dim=1), x * self.weight[-1]
        if segments is not None:
            segments = F.pad(segments, (reach, 0), value=-1)
        for back in range(1, reach + 1):
            earlier = row[:, reach - back : reach - back + T]
            if segments is not None:
                same = segments[:, reach - back : reach - back + T] == segments[:, reach:]
                earlier = earlier * same[..., None]
            total = total + earlier * self.weight[reach - back]
        return F.silu(total)


class DeltaLayer(nn.Module):
    """Projections, the convolution, the delta rule, and a gated norm of what it gives. From the convolution to the
    norm it computes in float32 or better."""

    def __init__(self, config: DeltaNetConfig, layer: int) -> None:
        super().__init__()
        self.config, self.layer = config, layer
        D, H = config.width, config.heads
        self.in_proj = nn.Linear(D, 4 * D, bias=False)
        """Queries, keys, values, and the gate of the output."""
        self.write_proj = nn.Linear(D, H, bias=False)
        self.convolution = Convolution(3 * D, config.convolution) if config.convolution else None
        if config.decay:
            self.decay_proj = nn.Linear(D, H, bias=False)
            # Rates A softplus(dt) from 0.001 to 1.6 for the heads, in the range of Mamba-2 and Gated DeltaNet.
            places = [head / max(1, H - 1) for head in range(H)]
            self.log_rate = nn.Parameter(torch.tensor([math.log(1 + 15 * place) for place in places]))
            self.step = nn.Parameter(torch.tensor([math.log(math.expm1(10 ** (2 * place - 3))) for place in places]))
        self.norm = RMSNorm(D // H, eps=config.norm_eps)
        self.out_proj = nn.Linear(D, D, bias=False)

    def forward(self, x: Tensor, reading: Reading) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        B, T, D = x.shape
        projected, write = self.in_proj(x), self.write_proj(x)
        waiting = self.decay_proj(x) if self.config.decay else None
        half = projected.dtype if projected.is_cuda and projected.dtype in (torch.bfloat16, torch.float16) else None
        with torch.autocast(x.device.type, enabled=False):
            exact = torch.promote_types(x.dtype, torch.float32)
            inputs, gate = projected.to(exact).split((3 * D, D), dim=-1)
            memory, window = self._before(inputs, reading)
            if self.convolution is not None:
                mixed = self.convolution(inputs, window, reading.segments)
            else:
                mixed = F.silu(inputs)
            rule = self._rule(mixed, write.to(exact), None if waiting is None else waiting.to(exact))
            narrow = D // self.config.heads <= WIDEST
            kernel = fused_rule() if half is not None and reading.cache is None and narrow else None
            if kernel is not None and half is not None:
                heads = by_kernel(kernel, rule, reading.segments, half)
            elif reading.cache is None:
                heads, _ = by_chunks(rule, None, reading.segments)
            else:
                heads = self._stored(rule, memory, torch.cat((window, inputs), dim=1), reading)
            gated = self.norm(heads.transpose(1, 2)).reshape(B, T, D) * F.silu(gate)
        return self.out_proj(gated.to(x.dtype))

    def _before(self, inputs: Tensor, reading: Reading) -> tuple[Tensor, Tensor]:
        """The memory (B, H, W, W), and the convolution's last K - 1 inputs (B, K - 1, 3D), before the first token."""
        B, _, width = inputs.shape
        H, W, reach = self.config.heads, self.config.width // self.config.heads, max(0, self.config.convolution - 1)
        last = reading.before[self.layer] if reading.cache is not None else None
        if last is None:
            return inputs.new_zeros(B, H, W, W), inputs.new_zeros(B, reach, width)
        memory, window = torch.split(last[0, :, 0].to(inputs.dtype), [H * W * W, reach * width], dim=-1)
        return memory.view(B, H, W, W), window.view(B, reach, width)

    def _rule(self, mixed: Tensor, write: Tensor, waiting: Tensor | None) -> Rule:
        B, T, _ = mixed.shape
        H, W = self.config.heads, self.config.width // self.config.heads
        query, key, value = mixed.view(B, T, 3, H, W).permute(2, 0, 3, 1, 4)
        beta = write.sigmoid().transpose(1, 2) * (2 if self.config.negative_eigenvalues else 1)
        log_alpha = torch.zeros_like(beta)
        if waiting is not None:
            log_alpha = -(self.log_rate.to(beta).exp() * F.softplus(waiting + self.step)).transpose(1, 2)
        return Rule(_unit(query) * W**-0.5, _unit(key), value, beta, log_alpha)

    def _stored(self, rule: Rule, memory: Tensor, row: Tensor, reading: Reading) -> Tensor:
        """Outputs (B, H, T, W) after `memory`. Stores what the next token needs of each: the memory after it, and its
        part of `row`, the convolution's inputs from K - 1 tokens before the first."""
        assert reading.cache is not None
        T = rule.key.shape[2]
        parts, reach, stored = [], row.shape[1] - T, T - reading.unstored
        if reading.unstored:
            output, memory = by_chunks(rule.part(0, reading.unstored), memory)
            parts.append(output)
        output, memories = by_tokens(rule.part(reading.unstored, T), memory)
        parts.append(output)
        columns = [memories.flatten(2)]
        columns += [row[:, reading.unstored + 1 + back :][:, :stored] for back in range(reach)]
        reading.cache.append(self.layer, (torch.cat(columns, dim=-1)[:, None],))
        return torch.cat(parts, dim=2)


def _unit(x: Tensor) -> Tensor:
    """Vectors of length 1 along the last axis; those shorter than 0.001 stay short."""
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


class Block(nn.Module):
    """Pre-norm: the delta rule, then a feed-forward part."""

    gathered_alone: ClassVar[bool] = True
    """It is used by calling it only; see `training.sharding.shard`."""

    def __init__(self, config: DeltaNetConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width, eps=config.norm_eps)
        self.attention = DeltaLayer(config, layer)
        self.mlp_norm = RMSNorm(config.width, eps=config.norm_eps)
        self.mlp = FeedForward(BlockConfig(config.width, 1, expansion=config.expansion, positions="learned"))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, reading: Reading) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        x = x + self.dropout(self.attention(self.attention_norm(x), reading))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class DeltaNet(Branching, Counted, Hookable):
    """`state` and `readout` are the same tensor, after the final norm. Later positions read the memories, which are
    D/H times as wide in each layer and are not part of the state."""

    Config = DeltaNetConfig

    def __init__(
        self, config: DeltaNetConfig, *, vocabulary: int, context: int, embedding_of: Backbone | None = None
    ) -> None:
        super().__init__()
        assert embedding_of is None or isinstance(embedding_of, DeltaNet)
        self.config = config
        self.width, self.context, self.vocabulary = config.width, context, vocabulary
        self.head_init, self.norm_eps = None if config.init == "gpt2" else config.init, config.norm_eps
        shared = None if embedding_of is None else embedding_of.embedding
        self.embedding: TokenEmbedding = TokenEmbedding(vocabulary, config.width, shared)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks: Sequence[Block] = nn.ModuleList(Block(config, layer) for layer in range(config.layers))  # type: ignore[assignment]
        self.norm = RMSNorm(config.width, eps=config.norm_eps)
        self.head = None if config.tied else Matrix(config.width, vocabulary, bias=False)
        init_weights(self, config.init, config.layers)
        self.last_block_weights = sum(
            part.weight.numel() for part in self.blocks[-1].modules() if isinstance(part, nn.Linear)
        )

    @override
    def encode(self, batch: Batch) -> Hidden:
        return self.last(self.trunk(batch))

    @override
    def trunk(self, batch: Batch) -> tuple[Tensor, Reading]:
        """The residual stream (B, T, D) that the last block reads, and what blocks share."""
        self.check_length(batch)
        reading = Reading.of_documents(batch.documents)
        return self._up_to_last(batch.tokens, reading), reading

    def _up_to_last(self, tokens: Tensor, reading: Reading) -> Tensor:
        x: Tensor = self.dropout(self.embed(tokens))
        for block in self.blocks[:-1]:
            x = block(x, reading)
        return x

    @override
    def last(self, trunk: tuple[Tensor, Reading]) -> Hidden:
        x = self.norm(self.blocks[-1](*trunk))
        return Hidden(state=x, readout=x)

    @override
    def trunk_state(self, trunk: tuple[Tensor, Reading]) -> Tensor:
        return trunk[0]

    @override
    def make_branch(self) -> DeltaNetBranch:
        return DeltaNetBranch(self.config)

    @override
    def extend(self, tokens: Tensor, cache: PlaceStore, counts: np.ndarray | None = None) -> Hidden:
        return self.extend_trunk(tokens, cache, counts)[0]

    @override
    def extend_trunk(
        self, tokens: Tensor, cache: PlaceStore, counts: np.ndarray | None = None
    ) -> tuple[Hidden, Tensor]:
        check_context(cache, tokens.shape[1], counts, self.context)
        reading = Reading.continued(cache, self.config.layers, tokens.shape[1], counts)
        x = self._up_to_last(tokens, reading)
        hidden = self.last((x, reading))
        cache.advance()
        return hidden, x

    @override
    def embed(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.embedding(tokens)
        return embedded

    @override
    def head_weight(self) -> Tensor:
        return self.embedding.matrix if self.head is None else self.head.weight

    @override
    def make_cache(self, rows: int) -> PlaceStore:
        """An empty cache, of constant size except for positions since `hold`."""
        return PlaceStore(rows, layers=self.config.layers, span=1)

    @override
    def flops(self, length: int) -> float:
        """See `Counted.flops`. Every token reads the memory by key and by query and writes to it, W x W per head."""
        return self.config.layers * self.branch_flops(length)

    @override
    def branch_flops(self, length: int) -> float:
        return 2.0 * length * (self.last_block_weights + 3 * self.width**2 // self.config.heads)

    @override
    def hook_points(self) -> dict[str, HookPoint]:
        points = {"hook_embed": HookPoint(self.embedding)}
        for layer, block in enumerate(self.blocks):
            points |= block_hook_points(layer, block, self.config.heads)
        return {**points, "ln_final.hook_out": HookPoint(self.norm)}


class DeltaNetBranch(Branch):
    """Another last block and norm for the trunk of a Gated DeltaNet."""

    def __init__(self, config: DeltaNetConfig) -> None:
        super().__init__()
        self.block = Block(config, 0)
        self.norm = RMSNorm(config.width, eps=config.norm_eps)
        init_weights(self, config.init, config.layers)

    @override
    def forward(self, trunk: tuple[Tensor, Reading]) -> Tensor:
        """Maps the result of `DeltaNet.trunk` to (B, T, D)."""
        state: Tensor = self.norm(self.block(*trunk))
        return state

    @override
    def make_cache(self, rows: int) -> PlaceStore:
        return PlaceStore(rows, layers=1, span=1)

    @override
    def extend(self, x: Tensor, cache: PlaceStore, counts: np.ndarray | None = None) -> Tensor:
        state = self((x, Reading.continued(cache, 1, x.shape[1], counts)))
        cache.advance()
        return state
