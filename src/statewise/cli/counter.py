"""How far a long piece of work is, on the error stream."""

from __future__ import annotations

import sys
from collections.abc import Callable


def counter(what: str) -> Callable[[int, int], None]:
    """Shows how many of how many there are: on a terminal one line that changes, elsewhere a line every tenth."""
    shown = -1

    def show(count: int, total: int) -> None:
        nonlocal shown
        if sys.stderr.isatty():
            print(f"\r{count}/{total} {what}", end="" if count < total else "\n", file=sys.stderr, flush=True)
        elif count * 10 // total > shown:
            shown = count * 10 // total
            print(f"{count}/{total} {what}", file=sys.stderr, flush=True)

    return show
