"""Processes that a run starts by itself, one per device: none outlives the first, and which has ended is said.

Fabric starts them, and watches over them from the first one: when one ends with an error, it kills all at once.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from statewise.runtime import launchers as processes
from statewise.runtime import system
from statewise.runtime.messages import say

FIRST = "STATEWISE_FIRST_PROCESS"
"""The environment variable that tells them the number of the process that has started them."""
OBSERVER = "child-process-observer"
"""The name of Fabric's thread."""
GRACE_SECONDS = 30
"""For a process that misses another to say so, and to end by itself: with NCCL it may wait for the other instead."""


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """To be entered for Fabric's launch, in the first process and in those that it starts."""
    if processes.started() is None and processes.rank() > 0 and FIRST in os.environ:
        system.end_with(int(os.environ[FIRST]))
    os.environ[FIRST] = str(os.getpid())
    try:
        yield
    finally:
        del os.environ[FIRST]
    for thread in threading.enumerate():
        if thread.name == OBSERVER and hasattr(thread, "_terminate_all"):
            _be_patient(thread)


def done() -> None:
    """From here on no process waits for another: each may end after the first."""
    system.outlive_parent()


def _be_patient(observer: Any) -> None:
    kill, children = observer._terminate_all, list(observer._child_processes)

    def speak_then_kill() -> None:
        time.sleep(GRACE_SECONDS)
        for rank, child in enumerate(children, 1):
            if child.returncode:
                say(f"statewise: process {rank} of this run ended with code {child.returncode}", file=sys.stderr)
        kill()

    observer._terminate_all = speak_then_kill
