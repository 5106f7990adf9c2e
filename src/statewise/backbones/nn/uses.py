"""Records every use of a module's parameters in a forward pass, per stream.

The gradient of parameters *as used at one place* needs no copies: for y = W a it is the outer product of the gradient d
at y with a, so its norm is |d| |a|; for y = w * u it is d * u; for an embedding it is d.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from statewise.backbones.nn.norm import inverse_rms


class Use(NamedTuple):
    """One linear map, norm or embedding, applied to all streams at once."""

    output: Tensor
    """(..., d) with its autograd graph."""
    weight: Tensor
    """Broadcastable to the output: the gradient of the parameters as used by a stream has the norm of
    (d loss / d output) * weight over the last axis."""


@contextmanager
def recorded_uses(module: nn.Module) -> Iterator[list[Use]]:
    """Within this context, appends the uses of `module` to the list. No linear map or embedding outside `module` may
    run in it."""
    uses: list[Use] = []
    hooks = [
        part.register_forward_hook(lambda part, given, output: uses.append(_of_norm(part, given[0], output)))
        for part in module.modules()
        if isinstance(part, nn.RMSNorm | nn.LayerNorm)
    ]
    try:
        with _Recorder(uses):
            yield uses
    finally:
        for hook in hooks:
            hook.remove()


class _Recorder(TorchFunctionMode):
    def __init__(self, uses: list[Use]) -> None:
        super().__init__()
        self.uses = uses

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        output = function(*args, **(kwargs or {}))
        if function is F.linear:
            squared = args[0].detach().square().sum(-1, keepdim=True)
            bias = args[2] if len(args) > 2 else (kwargs or {}).get("bias")
            self.uses.append(Use(output, (squared + (bias is not None)).sqrt()))
        elif function is F.embedding:
            self.uses.append(Use(output, torch.ones((), device=output.device)))
        return output


def _of_norm(part: nn.Module, given: Tensor, output: Tensor) -> Use:
    given = given.detach()
    if isinstance(part, nn.RMSNorm):
        assert part.eps is not None
        return Use(output, given * inverse_rms(given, part.eps))
    assert isinstance(part, nn.LayerNorm)
    unit = F.layer_norm(given, part.normalized_shape, eps=part.eps)
    return Use(output, (unit.square() + 1).sqrt() if part.bias is not None else unit)
