"""Architectures of Hugging Face that compute exactly what some of our decoders do.

| norm, positions, MLP | architecture | |
| --- | --- | --- |
| rms, rope, swiglu | Llama | |
| layer, learned, gelu or relu | GPT-2 | its biases are zero without `bias` |
| layer, rope, gelu or relu | Starcoder2 | the biases of its norms are zero without `bias` |
| layer, rope, swiglu, no bias | StableLM | the biases of its norms are zero |

All rotate halves of a head as ours do, so queries and keys keep their order. Defaults of these architectures that
differ from ours (epsilons, bias, activation, tied head, special tokens) are always written out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor
from torch.nn import Module
from typing_extensions import override

from statewise.backbones.gpt import GPT, GPTConfig
from statewise.backbones.two_stream import TwoStream
from statewise.objectives.base import Objective
from statewise.objectives.predictors import CausalPredictor

Tensors = Mapping[str, Tensor]


class TensorMap(ABC):
    """Tensors of ours that are the same numbers as tensors of theirs."""

    @abstractmethod
    def to_theirs(self, ours: Tensors) -> dict[str, Tensor]:
        """The other library's tensors, from ours."""


@dataclass(frozen=True)
class Stacked(TensorMap):
    """The rows of one tensor of ours are those of several of theirs, which have equally many, one after the other."""

    ours: str
    theirs: tuple[str, ...]
    transposed: bool = False
    """Whether their matrices map rows of inputs from the left, so that they are ours transposed."""

    @override
    def to_theirs(self, ours: Tensors) -> dict[str, Tensor]:
        parts = ours[self.ours].chunk(len(self.theirs))
        return {name: (part.T if self.transposed else part).contiguous() for name, part in zip(self.theirs, parts)}


@dataclass(frozen=True)
class Zeros(TensorMap):
    """A vector of theirs that ours do not have: zeros."""

    name: str
    size: int

    @override
    def to_theirs(self, ours: Tensors) -> dict[str, Tensor]:
        return {self.name: next(iter(ours.values())).new_zeros(self.size)}


def to_theirs(maps: Iterable[TensorMap], ours: Tensors) -> dict[str, Tensor]:
    """The other library's tensors by name."""
    return {name: tensor for one in maps for name, tensor in one.to_theirs(ours).items()}


ROPE_BASE = 10000.0
"""Base of the rotary angles; the same number as `nn.attention.ROTARY_BASE`."""


class Layout(ABC):
    """An architecture with its configuration and the names of its tensors."""

    architecture: ClassVar[str]
    """Name of its class in transformers."""
    model_type: ClassVar[str]
    norm: ClassVar[str]
    positions: ClassVar[str]
    mlps: ClassVar[tuple[str, ...]]
    biased: ClassVar[bool] = True
    """Whether the architecture can have biases."""

    def fits(self, config: GPTConfig) -> bool:
        """Whether the architecture represents a decoder with this configuration exactly."""
        kind = config.norm == self.norm and config.positions == self.positions and config.mlp in self.mlps
        return kind and config.attention == "softmax" and (self.biased or not config.bias)

    def config(self, config: GPTConfig, vocabulary: int, context: int) -> dict[str, Any]:
        """The content of config.json, without special tokens."""
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "vocab_size": vocabulary,
            "tie_word_embeddings": config.tied,
            **self.shape(config, context),
        }

    @abstractmethod
    def shape(self, config: GPTConfig, context: int) -> dict[str, Any]:
        """The fields of config.json that describe the blocks."""

    @abstractmethod
    def maps(self, config: GPTConfig) -> Iterator[TensorMap]:
        """Maps between our tensors and those of the architecture."""


class LlamaLike(Layout):
    """An architecture whose tensors have the names of Llama's, but for those of the MLP."""

    mlp_names: ClassVar[tuple[str, ...]] = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    """The matrices of the MLP: those into it, then the one out of it."""

    @override
    def maps(self, config: GPTConfig) -> Iterator[TensorMap]:
        yield Stacked("embedding.weight", ("model.embed_tokens.weight",))
        for layer in range(config.layers):
            ours, theirs = f"blocks.{layer}.", f"model.layers.{layer}."
            yield from _norm(config, f"{ours}attention_norm", f"{theirs}input_layernorm")
            yield from _norm(config, f"{ours}mlp_norm", f"{theirs}post_attention_layernorm")
            for mine, names in {
                "attention.in_proj": tuple(f"self_attn.{which}_proj" for which in "qkv"),
                "attention.out_proj": ("self_attn.o_proj",),
                "mlp.in_proj": self.mlp_names[:-1],
                "mlp.out_proj": self.mlp_names[-1:],
            }.items():
                for kind in ("weight", "bias") if config.bias else ("weight",):
                    yield Stacked(f"{ours}{mine}.{kind}", tuple(f"{theirs}{name}.{kind}" for name in names))
        yield from _norm(config, "norm", "model.norm")
        yield from _head(config)


class Llama(LlamaLike):
    """RMSNorm, rotary positions, gated SiLU (Touvron et al. 2023)."""

    architecture, model_type = "LlamaForCausalLM", "llama"
    norm, positions, mlps = "rms", "rope", ("swiglu",)

    @override
    def shape(self, config: GPTConfig, context: int) -> dict[str, Any]:
        return {
            **_llama_like(config, context),
            "head_dim": config.width // config.heads,
            "hidden_act": "silu",
            "rms_norm_eps": config.norm_eps,
            "attention_bias": config.bias,
            "mlp_bias": config.bias,
            "pretraining_tp": 1,
        }


class StableLM(LlamaLike):
    """LayerNorm, rotary positions, gated SiLU (Bellagente et al. 2024)."""

    architecture, model_type = "StableLmForCausalLM", "stablelm"
    norm, positions, mlps, biased = "layer", "rope", ("swiglu",), False

    @override
    def shape(self, config: GPTConfig, context: int) -> dict[str, Any]:
        return {
            **_llama_like(config, context, rotary=1.0),
            "hidden_act": "silu",
            "layer_norm_eps": config.norm_eps,
            "use_qkv_bias": False,
            "qk_layernorm": False,
            "use_parallel_residual": False,
            "hidden_dropout": config.dropout,
        }


class Starcoder2(LlamaLike):
    """LayerNorm, rotary positions, GELU or ReLU (Lozhkov et al. 2024)."""

    architecture, model_type = "Starcoder2ForCausalLM", "starcoder2"
    norm, positions, mlps = "layer", "rope", ("gelu", "relu")
    mlp_names = ("mlp.c_fc", "mlp.c_proj")

    @override
    def shape(self, config: GPTConfig, context: int) -> dict[str, Any]:
        return {
            **_llama_like(config, context),
            "hidden_act": config.mlp,
            "norm_epsilon": config.norm_eps,
            "use_bias": config.bias,
            "sliding_window": None,
            "residual_dropout": config.dropout,
            "embedding_dropout": config.dropout,
        }


class GPT2(Layout):
    """LayerNorm, learned positions, GELU or ReLU (Radford et al. 2019)."""

    architecture, model_type = "GPT2LMHeadModel", "gpt2"
    norm, positions, mlps = "layer", "learned", ("gelu", "relu")

    def shape(self, config: GPTConfig, context: int) -> dict[str, Any]:
        """See `Layout`. `gelu` is the exact one; the architecture's default is an approximation by a tanh."""
        return {
            "n_embd": config.width,
            "n_layer": config.layers,
            "n_head": config.heads,
            "n_inner": config.hidden_width,
            "n_positions": context,
            "activation_function": config.mlp,
            "layer_norm_epsilon": config.norm_eps,
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "reorder_and_upcast_attn": False,
            **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), config.dropout),
        }

    @override
    def maps(self, config: GPTConfig) -> Iterator[TensorMap]:
        yield Stacked("embedding.weight", ("transformer.wte.weight",))
        yield Stacked("positions.weight", ("transformer.wpe.weight",))
        D, inner = config.width, config.hidden_width
        for layer in range(config.layers):
            ours, theirs = f"blocks.{layer}.", f"transformer.h.{layer}."
            yield from _norm(config, f"{ours}attention_norm", f"{theirs}ln_1")
            yield from _norm(config, f"{ours}mlp_norm", f"{theirs}ln_2")
            for mine, name, outputs in (
                ("attention.in_proj", "attn.c_attn", 3 * D),
                ("attention.out_proj", "attn.c_proj", D),
                ("mlp.in_proj", "mlp.c_fc", inner),
                ("mlp.out_proj", "mlp.c_proj", D),
            ):
                yield Stacked(f"{ours}{mine}.weight", (f"{theirs}{name}.weight",), transposed=True)
                if config.bias:
                    yield Stacked(f"{ours}{mine}.bias", (f"{theirs}{name}.bias",))
                else:
                    yield Zeros(f"{theirs}{name}.bias", outputs)
        yield from _norm(config, "norm", "transformer.ln_f")
        yield from _head(config)


LAYOUTS: tuple[Layout, ...] = (Llama(), GPT2(), Starcoder2(), StableLM())


def layout_of(config: GPTConfig) -> Layout | None:
    """The layout that represents a decoder exactly, if one does."""
    return next((layout for layout in LAYOUTS if layout.fits(config)), None)


def _llama_like(config: GPTConfig, context: int, rotary: float | None = None) -> dict[str, Any]:
    """`rotary`: the share of a head that is rotated, where the architecture has that field. Version 4 of transformers
    and others read the base of rotary positions at the top level, version 5 reads it in `rope_parameters`."""
    share = {} if rotary is None else {"partial_rotary_factor": rotary}
    return {
        "hidden_size": config.width,
        "intermediate_size": config.hidden_width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.heads,
        "max_position_embeddings": context,
        "attention_dropout": config.dropout,
        "rope_theta": ROPE_BASE,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_BASE, **share},
        **share,
    }


def _norm(config: GPTConfig, ours: str, theirs: str) -> Iterator[TensorMap]:
    yield Stacked(f"{ours}.weight", (f"{theirs}.weight",))
    if config.norm == "layer":
        yield Stacked(f"{ours}.bias", (f"{theirs}.bias",)) if config.bias else Zeros(f"{theirs}.bias", config.width)


def _head(config: GPTConfig) -> Iterator[TensorMap]:
    if not config.tied:
        yield Stacked("head.weight", ("lm_head.weight",))


class NotPlain(ValueError):
    """No architecture of other libraries represents the model; the message says why."""


class Plain(NamedTuple):
    """A model as a decoder of an existing architecture."""

    layout: Layout
    config: GPTConfig
    context: int
    vocabulary: int
    tensors: dict[str, Tensor]
    """The weights under the names of the architecture, in float32."""
    beside: dict[str, Tensor]
    """Other trained tensors, under our names: latent dynamics, further heads."""


def plain(objective: Objective) -> Plain:
    """The model for inference as a decoder of an existing architecture, exactly. Raises `NotPlain`."""
    predictor = objective.eval().predictor()
    kind = type(objective).__name__
    if not isinstance(predictor, CausalPredictor):
        raise NotPlain(f"{kind} predicts by an interface of its own")
    if type(predictor).next_logits is not CausalPredictor.next_logits:
        raise NotPlain(f"{kind} does not predict by a matrix on the output of its backbone")
    backbone = predictor.backbone
    standard = type(backbone) is TwoStream and backbone.config.variant == "standard"
    if not (type(backbone) is GPT or standard):
        variant = f" of variant {backbone.config.variant}" if isinstance(backbone, TwoStream) else ""
        raise NotPlain(f"{type(backbone).__name__}{variant} is not a plain decoder")
    assert isinstance(backbone, (GPT, TwoStream))
    config = backbone.config
    layout = layout_of(config)
    if config.attention != "softmax":
        raise NotPlain(f"no architecture of other libraries has attention {config.attention}")
    if layout is None:
        bias = " and bias" * config.bias
        raise NotPlain(
            f"no architecture has norm {config.norm}, positions {config.positions}, mlp {config.mlp}{bias} together"
        )
    ours, beside = split_weights(objective, backbone)
    ours["embedding.weight"] = ours["embedding.weight"][: backbone.vocabulary]  # without the row of <predict>
    return Plain(layout, config, backbone.context, backbone.vocabulary, to_theirs(layout.maps(config), ours), beside)


def split_weights(objective: Objective, backbone: Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """On the CPU: the weights of the backbone under its own names, and all others under those of the
    objective."""
    (prefix,) = [f"{name}." for name, module in objective.named_modules() if module is backbone]
    every = {name: tensor.detach().cpu() for name, tensor in objective.state_dict().items()}
    beside = {name: tensor for name, tensor in every.items() if not name.startswith(prefix)}
    return {name.removeprefix(prefix): every[name] for name in every if name not in beside}, beside
