"""Reports: what commands print of findings, and what they write into runs."""

from __future__ import annotations

import contextlib
import errno
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statewise.cli.commands import terminal_width
from statewise.runtime.arguments import with_flags
from statewise.runtime.messages import say

if TYPE_CHECKING:
    from statewise.analysis.base import Findings
    from statewise.model.model import Model

NUMBER = re.compile(r"\d+(?:\.\d+)?")


MOST_ON_A_TERMINAL = 14
"""Number of metrics up to which a terminal shows all of them; of more, it shows only the main ones."""


def show_findings(findings: Findings, written: Sequence[Path]) -> None:
    """Prints title, verdict, metrics as `in_order`, notes and written files. On a terminal, sentences are wrapped to
    its width, and of many metrics only the main ones are shown: redirected output has all."""
    from statewise.analysis.base import as_plain
    from statewise.reporting.tables import fitted_notes, metrics_table

    metrics, notes = as_plain(findings.metrics), [*map(with_flags, findings.notes)]
    verdict, names, more = [findings.verdict], in_order(metrics, findings.main), ""
    if sys.stdout.isatty():
        verdict, notes = ([fitted_notes([one], terminal_width()) for one in some] for some in (verdict, notes))
        if len(names) > MOST_ON_A_TERMINAL and findings.main:
            shown = [name for name in names if name in findings.main]
            more, names = f"... and {len(names) - len(shown)} more, which --json prints", shown
    say(*([findings.origin.title] if findings.origin else []), *verdict, sep="\n")
    say(metrics_table({name: metrics[name] for name in names}), *[more] * bool(more), sep="\n")
    say(*notes, *(f"wrote {path}" for path in written), sep="\n")


def in_order(names: Iterable[str], main: Sequence[str]) -> list[str]:
    """The names of metrics, the main ones first. Names that differ in numbers alone are together, by these numbers; of
    the others, those that begin with the name of another metric follow it."""
    every = dict.fromkeys([*main, *names])
    families: dict[str, list[str]] = {}
    for name in every:
        families.setdefault(NUMBER.sub("#", name), []).append(name)
    first: list[str] = []
    others: dict[str, list[str]] = {}
    for family in families.values():
        family.sort(key=lambda name: [float(number) for number in NUMBER.findall(name)])
        if not set(main).isdisjoint(family):
            first += family
            continue
        stem = min((other for other in every if f"{family[0]}_".startswith(f"{other}_")), key=len)
        others.setdefault(stem, []).extend(family)
    return [*first, *(name for stem, group in others.items() for name in sorted(group, key=lambda one: one != stem))]


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
