"""Commands whose best result so far is worth keeping when the user presses Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from statewise.runtime.messages import say


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """A function that is true once Ctrl-C was pressed; a second Ctrl-C ends the program as usual."""
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
