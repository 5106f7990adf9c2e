"""A folder that exists as a whole or not at all.

Its files are written into `.NAME.writing` beside it, which is then renamed. The leftovers of a killed process are
deleted by the next one, and a folder that it was about to replace is back then.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from statewise import overwriting
from statewise.durable import lock
from statewise.system import sync_folder


@contextlib.contextmanager
def writing(out: Path, files: Sequence[str], temporary: Sequence[str] = ()) -> Iterator[Path]:
    """An empty folder for one writer, which replaces `out` when the block ends without an error; otherwise it is
    deleted. `files`: patterns of all that may be in it, see `statewise.overwriting`; `temporary`: of what other
    packages leave in it when they are killed.

    Raises `BlockingIOError` if another process is writing `out`.
    """
    folder = _sibling(out, "writing")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with lock(_sibling(out, "lock"), f"{out} is being written by another process"):
        old = _sibling(out, "dropped")
        try:
            overwriting.delete(folder, (*files, *temporary))  # left by a process that was killed, as is `old`
            if old.is_dir() and not out.exists():
                os.rename(old, out)
            overwriting.delete(old, files)
            folder.mkdir()
            yield folder
            _publish(folder, out, files)
        finally:
            overwriting.delete(folder, (*files, *temporary))


def _publish(folder: Path, out: Path, files: Sequence[str]) -> None:
    """Renames the finished folder, then deletes the one it replaces, which is back if that fails."""
    old, there = _sibling(out, "dropped"), out.exists()
    if there:
        os.rename(out, old)
    try:
        os.rename(folder, out)
    except BaseException:
        if there:
            os.rename(old, out)
        raise
    sync_folder(out.absolute().parent)
    if there:
        overwriting.delete(old, files)


def _sibling(out: Path, what: str) -> Path:
    return out.absolute().with_name(f".{out.absolute().name}.{what}")
