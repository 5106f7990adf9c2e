"""Hook points: named activations of a forward pass, accessed through hooks on submodules.

Names follow TransformerLens (`blocks.2.hook_resid_post`). Forward passes contain no code for hooks.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

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
    found: dict[str, HookPoint] = {}
    for stream, label in entering.items():
        for name, point in points.items():
            enters = name.endswith("hook_resid_pre")
            if enters or stream in leaving:
                own = re.sub(r"^(blocks\.\d+|ln_final)", rf"\1.{label}", name)
                found[own] = StreamHookPoint(
                    point.module, point.where, point.heads, block=block, stream=stream, enters=enters
                )
    return found
