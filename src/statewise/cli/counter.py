"""Progress of commands on stderr, and Ctrl-C for commands whose best result so far is worth keeping."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from statewise.runtime.messages import say, say_in_place
from statewise.runtime.progress import Work, listening

SILENT_SECONDS = 2.0
"""Work that takes no longer shows no progress."""
REDRAWN_SECONDS = 0.2
LINE_SECONDS = 30.0
"""Seconds between lines if stderr is not a terminal."""


@contextmanager
def shown_progress() -> Iterator[None]:
    """Shows the progress of work inside the context that takes longer than `SILENT_SECONDS`: on a terminal in one line,
    which is cleared at the end; elsewhere in a line every `LINE_SECONDS`."""
    terminal = sys.stderr.isatty()
    due = time.monotonic() + (SILENT_SECONDS if terminal else LINE_SECONDS)
    drawn = False

    def show(works: list[Work]) -> None:
        nonlocal due, drawn
        if time.monotonic() < due:
            return
        text = ", ".join(f"{work.done:,}/{work.total:,} {work.what}" for work in works if work.total > 1)
        if terminal:
            say_in_place(text)
        elif text:
            say(text, file=sys.stderr, flush=True)
        drawn = terminal
        due = time.monotonic() + (REDRAWN_SECONDS if terminal else LINE_SECONDS)

    try:
        with listening(show):
            yield
    finally:
        if drawn:
            say_in_place("")


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """A function that returns whether Ctrl-C was pressed; a second Ctrl-C ends the program as usual."""
    pressed = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()
        say("\nstopping with the best model so far; Ctrl-C again: stop at once", file=sys.stderr)

    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield pressed.is_set
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)
