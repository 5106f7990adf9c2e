"""Two-way maps between the tensors of our models and those of other libraries.

A layout is a list of maps; each is exact in both directions, so one table serves export and import.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

Tensors = Mapping[str, Tensor]


class TensorMap(ABC):
    """Tensors of ours that are the same numbers as tensors of theirs."""

    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names of the other library's tensors."""

    @abstractmethod
    def to_theirs(self, ours: Tensors) -> dict[str, Tensor]:
        """Their tensors from ours."""

    @abstractmethod
    def to_ours(self, theirs: Tensors) -> dict[str, Tensor]:
        """Our tensors from theirs. Raises `ValueError` if ours cannot hold them."""


@dataclass(frozen=True)
class Stacked(TensorMap):
    """The rows of one tensor of ours are those of several of theirs, which have equally many, one after the other."""

    ours: str
    theirs: tuple[str, ...]
    transposed: bool = False
    """Whether their matrices map rows of inputs from the left, so that they are ours transposed."""

    @override
    def names(self) -> tuple[str, ...]:
        return self.theirs

    @override
    def to_theirs(self, ours: Tensors) -> dict[str, Tensor]:
        parts = ours[self.ours].chunk(len(self.theirs))
        return {name: (part.T if self.transposed else part).contiguous() for name, part in zip(self.theirs, parts)}

    @override
    def to_ours(self, theirs: Tensors) -> dict[str, Tensor]:
        parts = [_taken(theirs, name).T if self.transposed else _taken(theirs, name) for name in self.theirs]
        if len({len(part) for part in parts}) > 1:
            raise ValueError(f"{', '.join(self.theirs)} have different numbers of rows, but must have the same")
        return {self.ours: torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()}


@dataclass(frozen=True)
class Zeros(TensorMap):
    """A vector of theirs that ours do not have: zeros."""

    name: str
    size: int

    @override
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @override
    def to_theirs(self, ours: Tensors) -> dict[str, Tensor]:
        return {self.name: next(iter(ours.values())).new_zeros(self.size)}

    def to_ours(self, theirs: Tensors) -> dict[str, Tensor]:
        """See `TensorMap`: nothing, since ours has no such vector."""
        if _taken(theirs, self.name).any():
            raise ValueError(f"{self.name} is not zero, and our model has no such bias")
        return {}


def to_theirs(maps: Iterable[TensorMap], ours: Tensors) -> dict[str, Tensor]:
    """The other library's tensors by name."""
    return {name: tensor for one in maps for name, tensor in one.to_theirs(ours).items()}


def to_ours(maps: Iterable[TensorMap], theirs: Tensors) -> dict[str, Tensor]:
    """Our tensors by name. Raises `ValueError` if tensors are missing or unknown, or not zero where ours have none."""
    maps = list(maps)
    unknown = sorted(set(theirs) - {name for one in maps for name in one.names()})
    if unknown:
        raise ValueError(f"our model has no tensor for {', '.join(unknown[:5])}")
    return {name: tensor for one in maps for name, tensor in one.to_ours(theirs).items()}


def _taken(tensors: Tensors, name: str) -> Tensor:
    if name not in tensors:
        raise ValueError(f"there is no tensor {name}")
    return tensors[name]
