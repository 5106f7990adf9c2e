"""A forward pass seen from outside, through hooks: its named activations, and every use of its parameters.

Names of activations follow TransformerLens (`blocks.2.hook_resid_post`). Forward passes contain no code for hooks.

The gradient of parameters *as used at one place* needs no copies of them: for y = W a it is the outer product of the
gradient d at y with a, so its norm is |d| |a|; for y = w * u it is d * u; for an embedding it is d.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from statewise.backbones.nn.layers import inverse_rms

See = Callable[[Tensor], Tensor]
"""Receives an activation (B, t, ...) and returns it, or a replacement."""


class Hookable(ABC):
    """A module whose activations have names."""

    @abstractmethod
    def hook_points(self) -> Mapping[str, HookPoint]:
        """Hook points by name, in the order of a forward pass; for every layer at least `blocks.{l}.hook_resid_pre` and
        `blocks.{l}.hook_resid_post`. If a pass reads a row in parts, it visits each point once per part."""


@dataclass(frozen=True)
class HookPoint:
    """The input or output of a module, (B, t, D)."""

    module: nn.Module
    where: Literal["output", "input", "residual"] = "output"
    """`residual`: its input, which the block also adds to its output, so a replacement affects both."""
    heads: int | None = None
    """Heads into which the last axis is split: (B, t, H, D / H)."""

    def watch(self, see: See) -> list[RemovableHandle]:
        """Calls `see` whenever a forward pass visits this point, until the handles are removed."""

        def output(module: nn.Module, given: tuple[Any, ...], found: Tensor) -> Tensor:
            return self._seen(found, see)

        def given(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
            return self._seen(given[0], see), *given[1:]

        def residual(module: nn.Module, given: tuple[Any, ...]) -> None:
            seen = self._seen(given[0], see)
            if seen is not given[0]:
                given[0].copy_(seen)

        if self.where == "output":
            return [self.module.register_forward_hook(output)]
        return [self.module.register_forward_pre_hook(given if self.where == "input" else residual)]

    def _seen(self, x: Tensor, see: See) -> Tensor:
        if self.heads is None:
            return see(x)
        apart = x.view(*x.shape[:-1], self.heads, -1)
        seen = see(apart)
        return x if seen is apart else seen.flatten(-2)


def block_hook_points(layer: int, block: Any, heads: int) -> dict[str, HookPoint]:
    """The hook points of a `nn.block.Block`, or of a block over streams, whose parts have the same names."""
    return {
        f"blocks.{layer}.hook_resid_pre": HookPoint(block, "input"),
        f"blocks.{layer}.attn.hook_z": HookPoint(block.attention.out_proj, "input", heads),
        f"blocks.{layer}.hook_attn_out": HookPoint(block.attention),
        f"blocks.{layer}.hook_resid_mid": HookPoint(block.mlp_norm, "residual"),
        f"blocks.{layer}.mlp.hook_post": HookPoint(block.mlp.out_proj, "input"),
        f"blocks.{layer}.hook_mlp_out": HookPoint(block.mlp),
        f"blocks.{layer}.hook_resid_post": HookPoint(block),
    }


@dataclass(frozen=True)
class StreamHookPoint(HookPoint):
    """One stream, (B, t, D), of the input or output (B, S, t, D) of a module in a block over streams."""

    block: nn.Module = field(kw_only=True)
    """Called as `block(x, context, asking)`: its input has `context.streams`, its output those of `asking`."""
    stream: int = field(kw_only=True)
    enters: bool = field(kw_only=True)
    """Whether the activation has the streams of the block's input; otherwise those of its output. A pass without this
    stream is skipped."""

    @override
    def watch(self, see: See) -> list[RemovableHandle]:
        present: list[int] = []

        def note(block: nn.Module, given: tuple[Any, ...]) -> None:
            present[:] = given[1].streams if self.enters else given[2]

        def one(x: Tensor) -> Tensor:
            if self.stream not in present:
                return x
            place = present.index(self.stream)
            part = x[:, place]
            seen = see(part)
            if seen is part:
                return x
            x = x.clone()
            x[:, place] = seen
            return x

        return [self.block.register_forward_pre_hook(note), *super().watch(one)]


def stream_hook_points(
    points: Mapping[str, HookPoint], block: nn.Module, entering: Mapping[int, str], leaving: Mapping[int, str]
) -> dict[str, HookPoint]:
    """The `points` of a block over streams, one per stream, named `blocks.{l}.STREAM.hook_...`. `entering` and
    `leaving`: the streams of the block's input and output, with their names."""
    by_name: dict[str, HookPoint] = {}
    for stream, label in entering.items():
        for name, point in points.items():
            enters = name.endswith("hook_resid_pre")
            if enters or stream in leaving:
                own = re.sub(r"^(blocks\.\d+|ln_final)", rf"\1.{label}", name)
                by_name[own] = StreamHookPoint(
                    point.module, point.where, point.heads, block=block, stream=stream, enters=enters
                )
    return by_name


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


def _of_norm(part: nn.Module, inputs: Tensor, output: Tensor) -> Use:
    inputs = inputs.detach()
    if isinstance(part, nn.RMSNorm):
        assert part.eps is not None
        return Use(output, inputs * inverse_rms(inputs, part.eps))
    assert isinstance(part, nn.LayerNorm)
    unit = F.layer_norm(inputs, part.normalized_shape, eps=part.eps)
    return Use(output, (unit.square() + 1).sqrt() if part.bias is not None else unit)
