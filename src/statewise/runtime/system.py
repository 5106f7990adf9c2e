"""What differs between operating systems."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
"""Option of Linux's `prctl`: the signal that a process gets when its parent ends."""


def sync_folder(folder: Path) -> None:
    """Syncs a folder: the names in it are on disk when this returns."""
    if os.name == "nt":  # Windows opens no folders, and keeps names by itself
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def peak_memory() -> float | None:
    """Peak memory of this process so far, in MiB; None where the system does not report it (Windows)."""
    try:
        import resource
    except ImportError:
        return None
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / (2**20 if sys.platform == "darwin" else 2**10)  # macOS counts bytes, others KiB


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def process_lives(number: int) -> bool:
    """Whether a process with this number exists on this machine; True where the system does not report it (Windows)."""
    if os.name == "nt":  # there, signal 0 would end it
        return True
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def ended_with_parent() -> Callable[[], None] | None:
    """A `preexec_fn` that makes the system terminate a new process (SIGTERM) when its parent is killed; None except on
    Linux."""
    if sys.platform != "linux":
        return None
    parent, prctl = os.getpid(), _prctl()

    def ask() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not by the parent's handler, which a fork inherits
        prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # it has just ended
            os.kill(os.getpid(), signal.SIGTERM)

    return ask


def end_with(parent: int) -> None:
    """Makes the system kill this process when `parent`, the process that started it, ends; at once if it has ended.
    Does nothing except on Linux."""
    if sys.platform == "linux":
        _prctl()(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)


def outlive_parent() -> None:
    """Undoes `end_with`."""
    if sys.platform == "linux":
        _prctl()(PR_SET_PDEATHSIG, 0, 0, 0, 0)


def _prctl() -> Callable[..., int]:
    import ctypes

    function: Callable[..., int] = ctypes.CDLL(None, use_errno=True).prctl
    return function


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kills a process that was started with `start_new_session`, and, where the system has process groups, all that it
    started."""
    if not hasattr(os, "killpg"):
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.killpg(process.pid, signal.SIGKILL)
