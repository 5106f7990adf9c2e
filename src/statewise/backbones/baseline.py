"""Backbones that are compared with a standard transformer of the same size."""

from __future__ import annotations

from typing import Protocol, Self, runtime_checkable


@runtime_checkable
class HasStandard(Protocol):
    """Fields of a backbone that has a standard counterpart."""

    def standard(self) -> Self | None:
        """The fields of the standard transformer of the same size; None if this is one."""
