"""Initialisation of weights: the choices of `backbone.init` and `objective.init`."""

from __future__ import annotations

from torch import Tensor, nn

from statewise.backbones.nn.layers import TokenEmbedding
from statewise.runtime.bounds import bounded

Init = float | str
"""The name of a rule, or the standard deviation of all matrices."""


def check_init(owner: object, prefix: str, *rules: str, optional: bool = False) -> None:
    """Raises `ValueError` unless the field `init` of `owner` is one of `rules` or a number above 0 and at most 1; with
    `optional` it may be None. `prefix` precedes its name in the message."""
    given = owner.init  # type: ignore[attr-defined]
    if isinstance(given, (int, float)):
        bounded(owner, "init", prefix=prefix, above=0, at_most=1, reason="it is the standard deviation of all matrices")
    elif given not in rules and not (optional and given is None):
        names = ", ".join(rules)
        raise ValueError(f"{prefix}init must be {names} or a standard deviation such as 0.02, not {given!r}")


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
