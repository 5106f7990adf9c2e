"""How far long work is, told to who has asked: commands show it. Where nobody has, nothing is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass
class Work:
    """Work of known size that goes on."""

    what: str
    """What is counted, in the plural."""
    done: int
    total: int


OnProgress = Callable[[list[Work]], None]
"""Is told of all works that go on, the outermost first, whenever one has got further."""


@dataclass(frozen=True)
class _Asked:
    listener: OnProgress
    works: list[Work]


_asked: ContextVar[_Asked | None] = ContextVar("asked", default=None)


@contextmanager
def listening(listener: OnProgress) -> Iterator[None]:
    """Within it `listener` is told how far works are, those that are begun in this thread or task."""
    token = _asked.set(_Asked(listener, []))
    try:
        yield
    finally:
        _asked.reset(token)


def announced(
    items: Iterable[T], what: str, total: int, size: Callable[[T], int] = lambda one: 1, *, before: int = 0
) -> Iterator[T]:
    """The `items`, each of which is done when the next one is asked for, and then counts as `size` of the `total`, of
    which `before` are done already."""
    asked = _asked.get()
    if asked is None:
        yield from items
        return
    work = Work(what, before, total)
    asked.works.append(work)
    try:
        for item in items:
            yield item
            work.done += size(item)
            asked.listener(asked.works)
    finally:
        asked.works.remove(work)
