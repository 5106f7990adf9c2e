"""What the columns of a file are for: symbols, prompts, cases, order and times."""

from __future__ import annotations

from typing import NamedTuple

from statewise.tasks.own_files.layout import SequenceFile
from statewise.tasks.own_files.sources import Source


class Roles(NamedTuple):
    """What columns are for."""

    symbols: list[str]
    prompts: list[str]
    case: str | None
    order: str | None
    clock: str | None
    """The column of times: that of the order, or one that the format names."""
    never: str | None = None
    """A column that no record may have."""


def roles_of(source: Source, layout: SequenceFile) -> Roles:
    """What the columns of a file are for, by the file and its layout. Raises `ValueError` for columns that do not exist
    or occur twice, and for symbols that cannot be found."""
    case = layout.group or source.case
    order = layout.order
    prompts = [] if layout.prompt_column is None else _listed(source, layout.prompt_column, case is not None)
    never = None
    if layout.column is not None:
        symbols = _listed(source, layout.column, case is not None)
    else:
        target, prompt, never = _found(source, layout, case)
        symbols = [target]
        prompts = prompts or ([prompt] if prompt else [])
    for name in (*symbols, *prompts, case, order):
        if name is None:
            continue
        source.check(name)
        if source.names.count(name) > 1:
            raise ValueError(f"{source.path}: there are {source.names.count(name)} columns {name!r}")
    clock = order or (source.clock if source.clock and source.has(source.clock) else None)
    return Roles(symbols, prompts, case, order, clock, never)


def _listed(source: Source, names: str, several: bool) -> list[str]:
    """The columns of a field that is the name of a column, or, if `several` may be, names with commas between."""
    if source.has(names) or "," not in names:
        return [names]
    parts = [part.strip() for part in names.split(",")]
    if any(map(source.has, parts)):
        if several:
            return parts
        raise ValueError(
            f"{source.path}: several columns make one symbol only in a file with an event per row: set task.group to "
            "the column that names the case"
        )
    return [names]


def _found(source: Source, layout: SequenceFile, case: str | None) -> tuple[str, str | None, str | None]:
    """The column of symbols and that of prompts where `layout` does not name the first, and one that must be empty."""
    columns = list(getattr(source, "first", source.names))
    if source.symbol is not None:
        return source.symbol, None, None
    prompt = layout.prompt_column or "prompt"
    if case is None and "target" in columns and prompt in columns:
        return "target", prompt, None
    for name in (layout.prompt_column, layout.group, layout.order):
        if name is not None:
            source.check(name)
    others = [column for column in columns if column not in (layout.prompt_column, case, layout.order)]
    if len(others) == 1:
        never = prompt if case is None and others == ["target"] and hasattr(source, "first") else None
        return others[0], layout.prompt_column, never
    listed = ", ".join(columns[:10]) + (f", ... ({len(columns):,} in all)" if len(columns) > 10 else "")
    raise ValueError(
        f"{source.path}: which column holds the symbols? Set --task.column to one of {listed}. A file with one event a "
        "row needs --task.group, too: the column that names the case; a file without a header, --task.format text "
        "--task.separator ,"
    )
