"""Reports the progress of long work to a listener, if there is one; commands show it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass
class Work:
    """Work of known size in progress."""

    what: str
    """Unit of the counts, in the plural."""
    done: int
    total: int


OnProgress = Callable[[list[Work]], None]
"""Called with all work in progress, the outermost first, after every step of one."""


@dataclass(frozen=True)
class _Asked:
    listener: OnProgress
    works: list[Work]


_asked: ContextVar[_Asked | None] = ContextVar("asked", default=None)


@contextmanager
def listening(listener: OnProgress) -> Iterator[None]:
    """Calls `listener` with the progress of work that begins within the block, in this thread or task."""
    token = _asked.set(_Asked(listener, []))
    try:
        yield
    finally:
        _asked.reset(token)


def announced(
    items: Iterable[T], what: str, total: int, size: Callable[[T], int] = lambda one: 1, *, before: int = 0
) -> Iterator[T]:
    """Yields the `items` and reports progress: each item is done when the next one is requested, and counts as `size`
    of the `total`, of which `before` are done already."""
    current = _asked.get()
    if current is None:
        yield from items
        return
    work = Work(what, before, total)
    current.works.append(work)
    try:
        for item in items:
            yield item
            work.done += size(item)
            current.listener(current.works)
    finally:
        current.works.remove(work)
