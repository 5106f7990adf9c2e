"""A progress counter on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable


def counter(what: str) -> Callable[[int, int], None]:
    """A function that shows `count/total what`: on a terminal in one line, elsewhere a line every 10%."""
    shown = -1

    def show(count: int, total: int) -> None:
        nonlocal shown
        if sys.stderr.isatty():
            print(f"\r{count}/{total} {what}", end="" if count < total else "\n", file=sys.stderr, flush=True)
        elif count * 10 // total > shown:
            shown = count * 10 // total
            print(f"{count}/{total} {what}", file=sys.stderr, flush=True)

    return show
