"""statewise strips check: say which new traces are certainly valid or invalid."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from statewise.cli.commands import terminal_width
from statewise.cli.strips.sources import CONSTANTS
from statewise.runtime.arguments import Parser, at_least
from statewise.runtime.json_files import printable
from statewise.runtime.messages import say

if TYPE_CHECKING:
    from statewise.strips import Checked


def run(words: list[str]) -> int:
    """Runs the command: 0 no trace is certainly invalid, 1 some are."""
    from statewise.cli.strips.sources import add_ignore_states, read_given

    parser = Parser(
        "strips check",
        "Says for each new trace whether it is valid, invalid, or undecided: valid or invalid if every model that\n"
        "explains the training traces says so. For learned schemas, only models of one kind are considered, which\n"
        "the last line describes. Traces with observed states are checked by what the training states decided, if the\n"
        "model was learned from states. Exit code: 1 if a trace is invalid.\n\n"
        "  statewise strips check learned/ new.csv\n"
        "  statewise strips check learned/ new.csv --constants none  # decides more\n"
        "  statewise strips check learned/ new.csv --json",
    )
    parser.add_argument("model", metavar="DIR", help="a learned folder")
    parser.add_argument("traces", metavar="FILE", help="traces or plans; labels are only compared with the verdicts")
    add_ignore_states(parser)
    parser.add_argument("--constants", metavar="NAMES", help=CONSTANTS)
    parser.add_argument(
        "--lines", type=at_least(0), default=20, help="the most traces to list, among those not valid (default: 20)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead, with all verdicts")
    options = parser.parse_args(words)

    from statewise.strips import check, read_seen, read_state_bounds

    bounds = None if options.ignore_states else read_state_bounds(options.model)
    if bounds is not None:
        from statewise.cli.strips.sources import read_with_states
        from statewise.strips import check_states

        observed = read_with_states(options.traces, "auto")
        if observed.count:
            if options.constants is not None:
                raise ValueError("--constants is for traces without states: omit it, or add --ignore-states")
            checked = check_states(bounds, observed)
            assumed = bounds.assumed
            if options.json:
                return _as_json(checked, options.model, assumed)
            counts = _listed(checked, options.lines)
            say(textwrap.fill(f"assumed: {assumed}", terminal_width(), subsequent_indent="  "))
            return int(counts["invalid"] > 0)
    seen = read_seen(Path(options.model), options.constants)
    traces = read_given(options.traces, options.ignore_states)
    try:
        checked = check(seen, traces)
    except ValueError as error:
        raise ValueError(f"{options.traces}: {error}") from None
    if options.json:
        return _as_json(checked, options.model, seen.assumed if seen.lifted is not None else None)
    counts = _listed(checked, options.lines)
    if seen.constants and options.constants is None:
        more = check(seen.with_constants([]), traces).counts()
        say(f"with --constants none {more['valid']} would be valid and {more['invalid']} invalid")
    if seen.lifted is not None:
        width = terminal_width()
        say(textwrap.fill(f"assumed: schemas with {seen.assumed}", width, subsequent_indent="  "))
    return int(counts["invalid"] > 0)


def _listed(checked: Checked, lines: int) -> dict[str, int]:
    """Prints the verdicts that are not valid, and how many there are of each kind."""
    from statewise.strips import described

    others = [place for place, each in enumerate(checked.verdicts) if each.step is not None]
    for place in others[:lines]:
        say(f"{checked.traces.where(place)}: {described(checked, place)}")
    if others[lines:]:
        say(f"... and {len(others) - lines} more; --lines {len(others)} lists all")
    counts = checked.counts()
    for outcome, count in counts.items():
        say(f"{outcome:10} {count} of {len(checked.verdicts)}")
    if sum(checked.traces.labels):
        say(f"labels     {checked.against_labels()['right']:.4f} of the decided verdicts agree with the labels")
    return counts


def _as_json(checked: Checked, model: str, assumed: str | None) -> int:
    """Prints all verdicts as JSON, and returns the exit code."""
    counts = checked.counts()
    listed = [
        {"trace": checked.traces.where(place), "outcome": each.outcome, "step": each.step, "why": each.why}
        for place, each in enumerate(checked.verdicts)
    ]
    labels = checked.against_labels() if sum(checked.traces.labels) else None
    say(printable({"model": model, **counts, "labels": labels, "assumed": assumed, "verdicts": listed}))
    return int(counts["invalid"] > 0)
