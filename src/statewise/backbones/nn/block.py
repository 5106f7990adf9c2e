"""A family of transformer blocks, with the choices in which the papers differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from statewise.backbones.nn.attention import attend, split_heads
from statewise.backbones.nn.cache import KeyValueCache
from statewise.backbones.nn.layers import Init, check_init, make_norm
from statewise.backbones.nn.masks import Documents
from statewise.backbones.nn.stick_breaking import attend_sticks
from statewise.runtime.bounds import bounded


@dataclass(frozen=True)
class BlockConfig:
    """The shape of a block; every field is a field of the recipes' `backbone`."""

    width: int = 128
    """Width D of the residual stream."""
    heads: int = 4
    """Attention heads; the width is divided evenly among them."""
    layers: int = 4
    """Number of blocks L."""
    norm: Literal["rms", "layer"] = "rms"
    """Normalisation: RMSNorm, or LayerNorm."""
    norm_eps: float = 1e-5
    """Epsilon of every norm, also in heads that objectives add."""
    positions: Literal["rope", "learned", "none"] = "rope"
    """Rotary positions in every attention, a learned vector added to each input, or none."""
    mlp: Literal["swiglu", "gelu", "relu"] = "swiglu"
    """Feed-forward part: gated SiLU (three matrices), or two matrices around GELU or ReLU."""
    expansion: float = 8 / 3
    """Hidden width of the feed-forward part, as a multiple of the width (rounded up to a multiple of 8)."""
    bias: bool = False
    """Whether linear maps and LayerNorms have biases."""
    dropout: float = 0.0
    """Dropout on the embedded input, on attention weights and on both residual branches."""
    attention: Literal["softmax", "stick_breaking"] = "softmax"
    """Weights of attention. softmax: of the scores; stick_breaking: from the query back, each earlier key takes the
    share sigmoid(score) of what is left of a stick of length 1, so the order of keys counts even without positions."""
    init: Init = "gpt2"
    """Initialisation of weights; biases start at 0. `gpt2`: std 0.02, output maps to the residual stream
    0.02 / sqrt(2L); `fan_in`: std 1 / sqrt(inputs), embeddings and vocabulary heads 1 / sqrt(D); a number: the std of
    all matrices. Heads that objectives add follow the latter two, unless `objective.init` is set."""

    def __post_init__(self) -> None:
        bounded(self, "width", "heads", prefix="backbone.", at_least=1)
        bounded(self, "layers", prefix="backbone.", at_least=1, at_most=10_000)
        bounded(self, "expansion", prefix="backbone.", above=0)
        bounded(self, "dropout", prefix="backbone.", at_least=0, below=1)
        bounded(self, "norm_eps", prefix="backbone.", above=0, at_most=1)
        check_init(self, "backbone.", "gpt2", "fan_in")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} cannot be divided among {self.heads} heads: choose a multiple")
        if self.positions == "rope" and self.width // self.heads % 2:
            raise ValueError(f"rotary positions need an even head width, not {self.width // self.heads}")

    @property
    def hidden_width(self) -> int:
        """Width inside the feed-forward part."""
        return -(-round(self.width * self.expansion) // 8) * 8


class BlockContext(NamedTuple):
    """What all blocks of a forward pass share."""

    rotation: tuple[Tensor, Tensor] | None
    """The result of `attention.rotary_angles`, (T, W) or (B, 1, T, W) each; None: no rotation, since positions
    were added to the input or the backbone has no positions."""
    documents: Documents | None = None
    """The documents packed in the rows; None: one per row."""
    cache: KeyValueCache | None = None
    mask: Tensor | None = None
    """(B, 1, T, K) bool over the keys that the cache returns; None: all keys up to the query's position are read."""


class SelfAttention(nn.Module):
    """Multi-head self-attention with one matrix for queries, keys and values."""

    def __init__(self, config: BlockConfig, layer: int) -> None:
        super().__init__()
        self.heads, self.layer, self.dropout = config.heads, layer, config.dropout
        self.attend = attend_sticks if config.attention == "stick_breaking" else attend
        self.in_proj = nn.Linear(config.width, 3 * config.width, bias=config.bias)
        self.out_proj = nn.Linear(config.width, config.width, bias=config.bias)

    def forward(self, x: Tensor, context: BlockContext) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        B, T, D = x.shape
        query, key, value = split_heads(self.in_proj(x), 3, self.heads, turned=2, rotation=context.rotation)
        if context.cache is not None:
            key, value = context.cache.append_keys(self.layer, key, value)
        dropout = self.dropout if self.training else 0.0
        seen = self.attend(query, key, value, mask=context.mask, documents=context.documents, dropout=dropout)
        return self.out_proj(seen.transpose(1, 2).reshape(B, T, D))


class FeedForward(nn.Module):
    """The position-wise part of a block."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.kind = config.mlp
        inner = 2 * config.hidden_width if config.mlp == "swiglu" else config.hidden_width
        self.in_proj = nn.Linear(config.width, inner, bias=config.bias)
        self.out_proj = nn.Linear(config.hidden_width, config.width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.out_proj(self.activated(self.kind, self.in_proj(x)))

    @staticmethod
    def activated(kind: Literal["swiglu", "gelu", "relu"], x: Tensor) -> Tensor:
        """The nonlinearity: (..., I) -> (..., I), or with `swiglu` (..., 2 I) -> (..., I)."""
        if kind == "swiglu":
            gate, x = x.chunk(2, dim=-1)
            return F.silu(gate) * x
        return F.gelu(x) if kind == "gelu" else F.relu(x)


class Block(nn.Module):
    """Pre-norm transformer block."""

    gathered_alone: ClassVar[bool] = True
    """The block is used only by calling it, so `training.sharding.shard` may gather its parameters by themselves."""

    def __init__(self, config: BlockConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = make_norm(config.norm, config.width, config.bias, config.norm_eps)
        self.attention = SelfAttention(config, layer)
        self.mlp_norm = make_norm(config.norm, config.width, config.bias, config.norm_eps)
        self.mlp = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, context: BlockContext) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        x = x + self.dropout(self.attention(self.attention_norm(x), context))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))
