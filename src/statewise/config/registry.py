"""Registries of the parts that can be chosen by name, ours and those of other packages.

A name is one of ours, one that an installed package registers as an entry point, or `module:Class`. Classes are
imported on first use, so that listing them costs nothing.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from statewise.config.recipe import unknown

__all__ = ["Table", "origin"]

Part = TypeVar("Part")


class Table(Generic[Part]):
    """Maps names to subclasses of `base` (`"module:Class"`). Iterating yields our own names, those of the rows
    `name: ("module:Class", "description in one line")`.

    Other packages register theirs in the entry point group `statewise.GROUP`.
    """

    def __init__(self, kind: str, group: str, base: str, rows: dict[str, tuple[str, str]]) -> None:
        self.kind, self.group, self.base, self.rows = kind, f"statewise.{group}", base, rows

    def __getitem__(self, name: str) -> type[Part]:
        """Raises `ValueError` for an unknown name, and for an external class that is not a valid part."""
        target = self.target(name)
        if name in self.rows:
            return _import(target)
        package = f" ({origin(self.announced()[name][0])})" if ":" not in name else ""
        return self._external(target, f"{self.kind} {name}{package}")

    def target(self, name: str) -> str:
        """The class of a name, as `module:Class`. Raises `ValueError` for a name that is unknown or ambiguous."""
        if name in self.rows:
            return self.rows[name][0]
        if ":" in name:
            return name
        announced = self.announced().get(name)
        if not announced:
            message = unknown(self.kind, name, [*self, *self.announced()])
            about = [row for row in self if re.search(rf"\b{re.escape(name)}\b", self.describe(row), re.IGNORECASE)]
            hint = f". {name} is in the description of {', '.join(f'{row} ({self.describe(row)})' for row in about)}"
            raise ValueError(f"{message}{hint * bool(about)}. Names from other packages need these packages installed")
        if len(announced) > 1:
            raise ValueError(
                f"the {self.kind} {name} is registered by {' and by '.join(map(origin, announced))}: choose one by its "
                f"class, {' or '.join(point.value for point in announced)}"
            )
        return announced[0].value

    def name_of(self, part: type[Part]) -> str:
        """The name of a class: ours, that of the package which registers it, or `module:Class`."""
        target = f"{part.__module__}:{part.__qualname__}"
        ours = {row: name for name, (row, _) in self.rows.items()}
        return ours.get(target) or next(
            (name for name, points in self.announced().items() if points[0].value == target), target
        )

    def __contains__(self, name: str) -> bool:
        """Whether the name is one of ours."""
        return name in self.rows

    def __iter__(self) -> Iterator[str]:
        """Our own names."""
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def describe(self, name: str) -> str:
        """One line about a name: its description, or the class and package that registered it."""
        if name in self.rows:
            return self.rows[name][1]
        return " or ".join(f"{point.value}, from {origin(point)}" for point in self.announced()[name])

    def announced(self) -> dict[str, list[EntryPoint]]:
        """Entry points of installed packages by name, without our own names; nothing is imported."""
        entries: dict[str, list[EntryPoint]] = {}
        for point in sorted(entry_points(group=self.group), key=lambda point: point.name):
            if point.name not in self.rows:
                entries.setdefault(point.name, []).append(point)
        return entries

    def _external(self, target: str, what: str) -> type[Part]:
        """Imports the class `target`. Raises `ValueError` if it is not a valid part for this table."""
        if not re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", target):
            raise ValueError(f"{what}: a class is named module:Class, not {target!r}")
        try:
            part = _import(target)
        except ModuleNotFoundError as error:
            hint = ""
            if error.name and target.startswith(error.name):
                hint = ": is it installed, or its folder in the environment variable PYTHONPATH?"
            raise ValueError(f"{what}: there is no module {error.name}{hint}") from error
        except (Exception, SystemExit) as error:  # an external module may raise anything
            raise ValueError(f"{what} cannot be imported: {type(error).__name__}: {error}") from error
        if not (isinstance(part, type) and issubclass(part, _import(self.base))):
            raise ValueError(f"{what} is not a valid {self.kind}: it must subclass {self.base.replace(':', '.')}")
        config = getattr(part, "Config", None)
        if not dataclasses.is_dataclass(config):
            raise ValueError(f"{what} has no dataclass Config, which defines its fields")
        lacking = sorted(getattr(part, "__abstractmethods__", ()))
        if lacking:
            raise ValueError(f"{what} is not complete: it lacks {', '.join(lacking)} of {self.base.replace(':', '.')}")
        if any(field.name == "name" for field in dataclasses.fields(config)):
            raise ValueError(f"{what}: a field of its Config is called name, which names the class itself: rename it")
        return part


def origin(point: EntryPoint) -> str:
    """The package of an entry point, with its version."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value


def _import(target: str) -> Any:
    module, _, attribute = target.partition(":")
    value: Any = importlib.import_module(module)
    for name in attribute.split("."):
        value = getattr(value, name)
    return value
