"""statewise strips check: say which new traces are certainly valid or invalid."""

from __future__ import annotations

import textwrap
from pathlib import Path

from statewise.cli.commands import terminal_width
from statewise.cli.strips.sources import CONSTANTS
from statewise.runtime.arguments import Parser, at_least
from statewise.runtime.json_files import printable
from statewise.runtime.messages import say


def run(words: list[str]) -> int:
    """Runs the command: 0 no trace is certainly invalid, 1 some are."""
    from statewise.cli.strips.sources import add_ignore_states, read_given

    parser = Parser(
        "strips check",
        "Says for each new trace whether it is valid, invalid, or undecided: valid or invalid if every model that\n"
        "explains the training traces says so. For learned schemas, only models of one kind are considered, which\n"
        "the last line describes. Exit code: 1 if a trace is invalid.\n\n"
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

    from statewise.strips import check, described, read_seen

    seen = read_seen(Path(options.model), options.constants)
    traces = read_given(options.traces, options.ignore_states)
    try:
        checked = check(seen, traces)
    except ValueError as error:
        raise ValueError(f"{options.traces}: {error}") from None
    counts, total = checked.counts(), len(checked.verdicts)
    labelled = checked.against_labels() if sum(checked.traces.labels) else None
    if options.json:
        listed = [
            {"trace": checked.traces.where(place), "outcome": each.outcome, "step": each.step, "why": each.why}
            for place, each in enumerate(checked.verdicts)
        ]
        assumed = seen.assumed if seen.lifted is not None else None
        say(printable({"model": options.model, **counts, "labels": labelled, "assumed": assumed, "verdicts": listed}))
        return int(counts["invalid"] > 0)
    others = [place for place, each in enumerate(checked.verdicts) if each.step is not None]
    for place in others[: options.lines]:
        say(f"{checked.traces.where(place)}: {described(checked, place)}")
    if others[options.lines :]:
        say(f"... and {len(others) - options.lines} more; --lines {len(others)} lists all")
    for outcome, count in counts.items():
        say(f"{outcome:10} {count} of {total}")
    if labelled is not None:
        say(f"labels     {labelled['right']:.4f} of the decided verdicts agree with the labels")
    if seen.constants and options.constants is None:
        more = check(seen.with_constants([]), traces).counts()
        say(f"with --constants none {more['valid']} would be valid and {more['invalid']} invalid")
    if seen.lifted is not None:
        width = terminal_width()
        say(textwrap.fill(f"assumed: schemas with {seen.assumed}", width, subsequent_indent="  "))
    return int(counts["invalid"] > 0)
