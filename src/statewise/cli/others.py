"""What other packages print while a command runs: warnings and log records, which may quote text of files."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typing_extensions import override

from statewise.runtime.messages import escaped, say


@contextmanager
def others_escaped() -> Iterator[None]:
    """Within, warnings, and log records for which nobody has made a handler, go to standard error as all else there:
    without control characters."""
    before = warnings.formatwarning, logging.lastResort

    def formatted(*given: Any, **named: Any) -> str:
        return escaped(before[0](*given, **named), keep="\n\t")

    warnings.formatwarning, logging.lastResort = formatted, _Last(logging.WARNING)
    try:
        yield
    finally:
        warnings.formatwarning, logging.lastResort = before


class _Last(logging.Handler):
    """Prints log records that no other handler takes."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            say(self.format(record), file=sys.stderr)
        except Exception:
            self.handleError(record)
