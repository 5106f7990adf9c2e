"""Checks new traces against what was seen in training: valid, invalid, or undecided."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statewise.runtime.messages import counted
from statewise.strips.exact.verdicts import Seen, Verdict
from statewise.strips.model.learned import SEEN_FILE
from statewise.strips.model.schemas import arguments
from statewise.strips.model.traces import Traces


@dataclass(frozen=True)
class Checked:
    """The verdicts on traces."""

    traces: Traces
    verdicts: list[Verdict]

    def counts(self) -> dict[str, int]:
        """The number of traces for each outcome."""
        counted_outcomes = Counter(each.outcome for each in self.verdicts)
        return {outcome: counted_outcomes[outcome] for outcome in ("valid", "invalid", "undecided")}

    def against_labels(self) -> dict[str, float]:
        """`decided`: the share of the traces with a decided verdict, also for the positive and for the negative ones;
        `right`: the share of the decided verdicts that the labels confirm. A negative trace is confirmed if the verdict
        is invalid at its last action. Shares are 1 if there are no traces."""
        decided = [each.outcome != "undecided" for each in self.verdicts]
        labelled = list(zip(self.traces.rows, self.traces.labels, self.verdicts))
        right = [
            each.outcome == "invalid" and each.step == len(row) - 1 if label else each.outcome == "valid"
            for row, label, each in labelled
            if each.outcome != "undecided"
        ]
        of = {label: [one for one, other in zip(decided, self.traces.labels) if other == label] for label in (0, 1)}
        return {
            "decided": _share(decided),
            "decided_positives": _share(of[0]),
            "decided_negatives": _share(of[1]),
            "right": _share(right),
        }


def check(seen: Seen, traces: Traces) -> Checked:
    """The verdict on each trace, by what was seen in training; labels are ignored. Raises `ValueError` if an action has
    another number of arguments than its schema had in training."""
    for place, row in enumerate(traces.rows):
        for name in (traces.actions[at] for at in row):
            schema, objects = arguments(name)
            learned = seen.numbers.get(schema, len(objects))
            if learned != len(objects):
                raise ValueError(
                    f"{traces.where(place)}: {name!r} has {counted(len(objects), 'argument')}, but "
                    f"{schema!r} was learned with {learned}"
                )
    return Checked(traces, [seen.verdict([traces.actions[at] for at in row]) for row in traces.rows])


def read_seen(folder: str | Path, constants: str | None = None) -> Seen:
    """What a learned folder's training traces show. `constants` are the objects that may be constants, separated by
    commas, or `none`; without it any object may be a constant. Raises `ValueError` if the folder lacks what its
    traces show, and for constants that are not objects of the traces."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} {'is a file' if folder.exists() else 'does not exist'}: give a learned folder")
    seen = Seen.load(folder)
    if seen is None:
        raise ValueError(
            f"{folder} has no {SEEN_FILE}: either it is no folder of `strips learn` or `strips extract`, or the traces "
            "or answers contradicted each other or left arguments out, so that nothing is certain"
        )
    if constants is None:
        return seen
    names = [] if constants == "none" else [name.strip() for name in constants.split(",")]
    try:
        return seen.with_constants(names)
    except ValueError as error:
        raise ValueError(f"`constants` {constants}: {error}") from None


def described(checked: Checked, place: int) -> str:
    """A verdict in words."""
    verdict, row = checked.verdicts[place], checked.traces.rows[place]
    if verdict.step is None:
        return "valid"
    what = f"action {verdict.step + 1}, {checked.traces.actions[row[verdict.step]]}"
    why = f": {verdict.why}" if verdict.why is not None else ""
    return f"invalid by {what}" if verdict.outcome == "invalid" else f"undecided from {what}{why}"


def _share(of: list[Any]) -> float:
    return sum(of) / len(of) if of else 1.0
