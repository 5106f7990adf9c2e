"""Backbones that are measured against a standard transformer of their size."""

from __future__ import annotations

from typing import Protocol, Self, runtime_checkable


@runtime_checkable
class HasStandard(Protocol):
    """Fields of a backbone that knows what it is compared with."""

    def standard(self) -> Self | None:
        """The fields of the standard transformer of the same size; None: these are of one."""
