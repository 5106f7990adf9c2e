"""Layers: norms, token embeddings, linear maps whose matrix is used by itself; and the initialisation of all weights,
the choices of `backbone.init` and `objective.init`.

RMSNorm has a hand-written backward pass: on a CPU autograd takes nearly twice as long.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from statewise.backbones.nn.differentiable_once import differentiable_once
from statewise.runtime.bounds import bounded


class _RootMeanSquare(torch.autograd.Function):
    """x * w / sqrt(mean(x^2) + eps) over the last dimension."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """(..., D), (D,) -> (..., D)."""
        inverse = inverse_rms(x, eps)
        unit = x * inverse
        ctx.save_for_backward(unit, inverse, weight)
        return unit * weight

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        """With n = x / rms and g the weighted gradient: dx = (g - n mean(g n)) / rms, dw = sum(gradient n)."""
        unit, inverse, weight = ctx.saved_tensors
        weighted = gradient * unit
        for_weight = weighted.reshape(-1, weighted.shape[-1]).sum(0)
        along = weighted.mul_(weight).mean(-1, keepdim=True)
        for_input = (gradient * weight).addcmul_(unit, along, value=-1).mul_(inverse)
        return for_input, for_weight, None


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """(..., D) -> (..., 1): 1 / sqrt(mean(x^2) + eps)."""
    square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
    return square.div_(x.shape[-1]).add_(eps).rsqrt_()


class RMSNorm(nn.RMSNorm):
    """Root-mean-square normalisation (Zhang & Sennrich 2019)."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D), in x's precision."""
        assert self.eps is not None
        weight = at_least_as_precise(self.weight, x)
        if x.device.type != "cpu" or x.dtype != weight.dtype or not torch.is_grad_enabled():
            # Elsewhere PyTorch has a fused kernel, and without gradients it is faster.
            return F.rms_norm(x, list(self.normalized_shape), weight, self.eps)
        normed: Tensor = _RootMeanSquare.apply(x, weight, self.eps)  # type: ignore[no-untyped-call]
        return normed


class LayerNorm(nn.LayerNorm):
    """Layer normalisation (Ba et al. 2016)."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D), in x's precision."""
        weight, bias = (None if part is None else at_least_as_precise(part, x) for part in (self.weight, self.bias))
        return F.layer_norm(x, list(self.normalized_shape), weight, bias, self.eps)


def at_least_as_precise(part: Tensor, x: Tensor) -> Tensor:
    """`part` in the precision of `x` if that is higher: blocks of a sharded model may be gathered in bf16, which
    kernels for float32 do not accept."""
    return part.to(torch.promote_types(part.dtype, x.dtype))


def make_norm(kind: Literal["rms", "layer"], width: int, bias: bool, eps: float) -> nn.Module:
    """RMSNorm, or LayerNorm with or without bias, over the last `width` values; `eps` is added to their mean square,
    or to their variance."""
    return RMSNorm(width, eps=eps) if kind == "rms" else LayerNorm(width, eps=eps, bias=bias)


class TokenEmbedding(nn.Module):
    """A matrix with a row for each token id: its own, or the matrix of another embedding, for a second model."""

    def __init__(self, rows: int, width: int, shared: TokenEmbedding | None = None) -> None:
        super().__init__()
        # Not registered as a submodule, which would list its matrix among the parameters a second time.
        self._shared = (shared,)
        self.weight: nn.Parameter | None = None
        if shared is None:
            self.weight = nn.Parameter(torch.randn(rows, width))

    @property
    def matrix(self) -> Tensor:
        """The embedding (rows, D), a row for each token id."""
        (shared,) = self._shared
        if shared is not None:
            return shared.matrix
        assert self.weight is not None
        return self.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """(...) token ids -> (..., D)."""
        return F.embedding(tokens, self.matrix)


class Matrix(nn.Linear):
    """A linear map of which other code reads the weight, in parts or as the vocabulary head.

    It has a type of its own because dynamic quantisation replaces `nn.Linear` by modules without this weight.
    """


Init = float | str
"""The name of a rule, or the standard deviation of all matrices."""


def check_init(owner: object, prefix: str, *rules: str, optional: bool = False) -> None:
    """Raises `ValueError` unless the field `init` of `owner` is one of `rules` or a number above 0 and at most 1; with
    `optional` it may be None. `prefix` precedes its name in the message."""
    rule = owner.init  # type: ignore[attr-defined]
    if isinstance(rule, (int, float)):
        bounded(owner, "init", prefix=prefix, above=0, at_most=1, reason="it is the standard deviation of all matrices")
    elif rule not in rules and not (optional and rule is None):
        names = ", ".join(rules)
        raise ValueError(f"{prefix}init must be {names} or a standard deviation such as 0.02, not {rule!r}")


def std_of(init: Init, inputs: int) -> float:
    """Standard deviation of a matrix with so many inputs: 0.02 for `gpt2`, 1 / sqrt(inputs) for `fan_in`."""
    if isinstance(init, str):
        return 0.02 if init == "gpt2" else inputs**-0.5
    return init


def draw_normal(weight: Tensor, std: float) -> None:
    """Draws a weight from a normal distribution of mean 0; one without memory (device `meta`) stays without values."""
    if not weight.is_meta:  # to draw nothing, PyTorch would first load its compiler, for seconds
        nn.init.normal_(weight, std=std)


def init_weights(module: nn.Module, init: Init, layers: int | None = None) -> None:
    """Initialises the linear maps, embeddings and recurrent cells of `module` from normal distributions of mean 0, and
    their biases to 0. The standard deviation is

    - `gpt2`: 0.02, and with `layers` L, 0.02 / sqrt(2L) for output maps to the residual stream, which are those named
      `out_proj` (Radford et al. 2019).
    - `fan_in`: 1 / sqrt(n) for a matrix with n inputs, including output maps to the residual stream. An embedding of
      width D has 1 / sqrt(D), as the vocabulary head that may share its matrix.
    - a number: that number for all matrices, including embeddings and heads.
    """
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear):
            std = std_of(init, part.in_features)
            if init == "gpt2" and layers is not None and name.endswith("out_proj"):
                std /= (2 * layers) ** 0.5
            draw_normal(part.weight, std=std)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, nn.Embedding | TokenEmbedding) and part.weight is not None:  # None: a shared matrix
            draw_normal(part.weight, std=std_of(init, part.weight.shape[1]))
        elif isinstance(part, nn.RNNBase | nn.RNNCellBase):
            for parameter in part.parameters(recurse=False):
                if parameter.dim() == 2:
                    draw_normal(parameter, std=std_of(init, parameter.shape[1]))
                else:
                    nn.init.zeros_(parameter)
