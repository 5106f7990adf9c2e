"""Reports that commands write into the run, besides printing them."""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statewise.runtime.messages import say

if TYPE_CHECKING:
    from statewise.model.model import Model


def keep_report(model: Model, name: str, content: Mapping[str, Any]) -> tuple[dict[str, Any], Path | None]:
    """Writes a report into the run of a loaded model: its checkpoint's step, then `content`. Returns the report and its
    path; None if the run is read-only."""
    assert model.run is not None
    assert model.checkpoint is not None
    report, written = {"checkpoint": model.checkpoint.step, **content}, None
    with if_writable():
        written = model.run.write_report(name, report)
    return report, written


@contextlib.contextmanager
def if_writable() -> Iterator[None]:
    """Within, a read-only run is no error: a message says that no report was written."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        say(f"no report was written: {error.filename}: {error.strerror}", file=sys.stderr)
