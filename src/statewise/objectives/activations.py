"""Activations by name: what a backbone computes on the way, read or replaced through hooks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from statewise.backbones.base import Backbone
from statewise.backbones.nn.hooks import Hookable, HookPoint, See
from statewise.batch import Batch
from statewise.config.recipe import unknown
from statewise.decoding.predictor import Predictor
from statewise.objectives.predictors import CausalPredictor
from statewise.runtime.messages import LacksCapability, check_texts, cut

LAYERS = "blocks.*.hook_resid_post"
"""The residual stream after every block."""


def backbone_of(predictor: Predictor) -> Backbone:
    """The backbone that `predictor` reads with. Raises `LacksCapability` if it reads with something else."""
    if not isinstance(predictor, CausalPredictor):
        raise LacksCapability("activations by name need a model that predicts from a backbone", CausalPredictor)
    return predictor.backbone


def hook_points(backbone: Backbone) -> Mapping[str, HookPoint]:
    """The backbone's hook points by name. Raises `LacksCapability` if it names none, `ValueError` if it is compiled."""
    if any(hasattr(part, "_orig_mod") or part._compiled_call_impl is not None for part in backbone.modules()):
        raise ValueError("a compiled model does not run its hooks: read and patch one that is not compiled")
    if not isinstance(backbone, Hookable):
        raise LacksCapability("activations by name need a backbone that names them", Hookable)
    return backbone.hook_points()


def choose(names: Sequence[str], points: Mapping[str, HookPoint]) -> list[str]:
    """The names of `points` that match one of `names`, each a name or a pattern (`*`: any text), in the order of
    `points`. Raises `ValueError` for a name or pattern without a match, with the names there are, and `TypeError` if
    `names` is not a list of text."""
    check_texts(names, "names", "activations")
    for name in names:
        if not any(fnmatchcase(known, name) for known in points):
            layers = len({known.split(".")[1] for known in points if known.startswith("blocks.")})
            patterns = list(dict.fromkeys(re.sub(r"^blocks\.\d+\.", "blocks.*.", known) for known in points))
            block = re.match(r"blocks\.(\d+)\.", name)
            if block and int(block[1]) >= layers:
                raise ValueError(f"{cut(name)}: there are blocks 0 to {layers - 1}, and no block {cut(block[1])}")
            raise ValueError(f"{unknown('activation', name, patterns)} (blocks 0 to {layers - 1})")
    return [known for known in points if any(fnmatchcase(known, name) for name in names)]


@torch.no_grad()
def read(backbone: Backbone, batch: Batch, names: Sequence[str]) -> dict[str, Tensor]:
    """The chosen activations of a batch, (B, T, ...) each, undefined on padding; see `choose`."""
    points = hook_points(backbone)
    parts: dict[str, list[Tensor]] = {name: [] for name in choose(names, points)}

    def keep(name: str) -> See:
        def see(x: Tensor) -> Tensor:
            parts[name].append(x)
            return x

        return see

    with watched([(points[name], keep(name)) for name in parts]):
        backbone.encode(batch.to(next(backbone.parameters()).device))
    return {name: torch.cat(values, dim=1) for name, values in parts.items()}


@contextmanager
def watched(seen: Iterable[tuple[HookPoint, See]]) -> Iterator[None]:
    """Within this context, watches the hook points, in this order; see `HookPoint.watch`."""
    with ExitStack() as stack:
        for point, see in seen:
            for handle in point.watch(see):
                stack.callback(handle.remove)
        yield


@contextmanager
def patched(backbone: Backbone, changes: Mapping[str, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """Within this context, every pass continues with `changes[name](activation)` in place of the activation
    (B, t, ...), for all names that fit. If a row is read in parts, as in generation, each part is changed separately.

    Raises `ValueError` for unknown names, and in a pass for a function that returns another shape.
    """
    points = hook_points(backbone)

    def change(name: str, function: Callable[[Tensor], Tensor]) -> See:
        def see(x: Tensor) -> Tensor:
            changed = function(x.clone())  # other names may be of the same tensor
            if not isinstance(changed, Tensor) or changed.shape != x.shape:
                what = tuple(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
                raise ValueError(f"the patch of {name} must return a tensor {tuple(x.shape)}, not {what}")
            return changed.to(x)

        return see

    chosen = [
        (points[name], change(name, function)) for key, function in changes.items() for name in choose([key], points)
    ]
    with watched(chosen):
        yield
