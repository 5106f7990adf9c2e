"""The operations on a disk, as tests follow, stop and copy them."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CHANGING = ("os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "os.truncate")
UNNAMED = getattr(os, "O_TMPFILE", -1)
"""The flags of a file without a name, which newer versions of filelock try first and need not get."""
_watched: list[tuple[int, str, Callable[[str, str], None]]] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watched:
        return
    thread, folder, call = _watched[-1]
    flags = arguments[2] if event == "open" and isinstance(arguments[2], int) else 0
    writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and flags & UNNAMED != UNNAMED
    if (writes or event in CHANGING) and thread == threading.get_ident() and str(arguments[0]).startswith(folder):
        with _unwatched():
            call(event, str(arguments[0]))


@functools.cache
def _install() -> None:
    """For as long as the process lives, which has many more events; so not before a test needs it."""
    sys.addaudithook(_hook)


@contextlib.contextmanager
def _unwatched() -> Iterator[None]:
    kept = _watched.pop()
    try:
        yield
    finally:
        _watched.append(kept)


@contextlib.contextmanager
def watched(folder: Path, call: Callable[[str, str], None]) -> Iterator[None]:
    """Within, `call(operation, path)` is called before each operation of this thread that changes what is in the
    folder; what it raises, the operation raises."""
    _install()
    _watched.append((threading.get_ident(), str(folder), call))
    try:
        yield
    finally:
        _watched.pop()


def full(path: str | None = None) -> OSError:
    """What a full disk says; of some operations with the `path`."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def in_thread(work: Callable[[], Any]) -> Any:
    """What `work` returns or raises in another thread, which has no part in the claims of this one."""
    found: list[Any] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return found[0]


def tree(folder: Path) -> dict[str, bytes | None]:
    """All that is in a folder: files with their content."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}
