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
"""Of Linux's `prctl`: which signal a process gets when its parent ends."""


def sync_folder(folder: Path) -> None:
    """Names that were given in a folder are on disk when this returns."""
    if os.name == "nt":  # Windows opens no folders, and keeps names by itself
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def peak_memory() -> float | None:
    """Most memory that this process has had so far, in MiB; None where the system does not tell (Windows)."""
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
    """Whether there is a process of this number on this machine; where the system does not tell (Windows), True."""
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
    """What a new process is to call, as `preexec_fn`, so that it is asked to end (SIGTERM) when the process that
    started it is killed; None where the system has no such thing (it is Linux that has)."""
    if sys.platform != "linux":
        return None
    parent, prctl = os.getpid(), _prctl()

    def ask() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not by the parent's handler, which a fork inherits
        prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # it has ended meanwhile
            os.kill(os.getpid(), signal.SIGTERM)

    return ask


def end_with(parent: int) -> None:
    """This process is killed when `parent`, the process that started it, ends, and now if it has ended. Where the
    system has no such thing (it is Linux that has), it goes on."""
    if sys.platform == "linux":
        _prctl()(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)


def outlive_parent() -> None:
    """Takes `end_with` back."""
    if sys.platform == "linux":
        _prctl()(PR_SET_PDEATHSIG, 0, 0, 0, 0)


def _prctl() -> Callable[..., int]:
    import ctypes

    found: Callable[..., int] = ctypes.CDLL(None, use_errno=True).prctl
    return found


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kills a process that was started with `start_new_session`, and where the system knows groups all that it
    started."""
    if not hasattr(os, "killpg"):
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.killpg(process.pid, signal.SIGKILL)
