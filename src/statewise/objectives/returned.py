"""Checks of what an objective returns: one of another package may return something else than the interface asks for."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from statewise.data_types import Loss, Part
from statewise.decoding.predictor import Predictor


def check_counts(objective: object, counts: Any) -> dict[str, Tensor]:
    """`counts` of an objective. Raises `ValueError` unless they are tensors by name, () or (m,)."""
    if not isinstance(counts, dict):
        raise _error(objective, "counts", "a dict of tensors by the names of the loss's parts", counts)
    for name, count in counts.items():
        if not isinstance(count, Tensor) or count.ndim > 1:
            raise _error(objective, "counts", f"for {name!r} a tensor () or (m,)", count)
    return cast("dict[str, Tensor]", counts)


def check_loss(objective: object, loss: Any) -> Loss:
    """The loss of an objective. Raises `ValueError` unless it is a `Loss` of parts whose sums and counts fit, and has a
    gradient where gradients are recorded."""
    if not isinstance(loss, Loss) or not isinstance(loss.parts, dict) or not loss.parts:
        instead = "one without parts" if isinstance(loss, Loss) else None
        raise _error(objective, "loss", "a statewise.data_types.Loss with one part or more", loss, instead)
    for name, part in loss.parts.items():
        if not isinstance(part, Part) or not isinstance(part.total, Tensor) or not isinstance(part.terms, Tensor):
            raise _error(objective, "loss", f"as {name!r} a Part of two tensors and a weight", part)
        if part.total.ndim > 1 or part.terms.shape not in (part.total.shape, torch.Size()):
            shapes = f"sums {tuple(part.total.shape)} and counts {tuple(part.terms.shape)}"
            raise _error(objective, "loss", f"as {name!r} sums and counts, both () or (m,)", part, shapes)
    if torch.is_grad_enabled() and not any(part.total.requires_grad for part in loss.parts.values()):
        raise _error(objective, "loss", "a part with a gradient", loss, "parts that are all detached from the weights")
    return loss


def check_predictor(objective: object, predictor: Any) -> Predictor:
    """The predictor of an objective. Raises `ValueError` unless it is one."""
    if not isinstance(predictor, Predictor):
        raise _error(objective, "predictor", "a statewise.decoding.predictor.Predictor", predictor)
    return predictor


def _error(objective: object, method: str, wanted: str, found: Any, instead: str | None = None) -> ValueError:
    kind = type(objective)
    shape = f" {tuple(found.shape)}" if isinstance(found, Tensor) else ""
    instead = instead or ("None" if found is None else f"{type(found).__name__}{shape}")
    return ValueError(
        f"objective {kind.__module__}:{kind.__qualname__}: {method}() must return {wanted}, not {instead} "
        "(docs/adding-an-objective.md)"
    )
