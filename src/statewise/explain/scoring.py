"""The surprise of every event and case of a user's file, as CSV with the file's columns; drift between two files."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from statewise.explain.cases import case_name, is_gap, own_sequences, with_events
from statewise.explain.surprise import Drift, drift, drift_sentence, read
from statewise.model.model import Model
from statewise.runtime.messages import counted, short
from statewise.tasks.own_files.gaps import gap_symbols
from statewise.tasks.own_files.log import EventLog
from statewise.tasks.own_files.sequences import Sequences, checksum_of

UNKNOWN = "the model does not know this symbol"
AFTER_UNKNOWN = "after a symbol that the model does not know"
BEYOND = "beyond the longest sequence that the model reads"
PROMPT = "the prompt is not scored"
FIRST = "the first event is not scored"
LEFT_OUT = "left out when the file was read"
EVENT_COLUMNS = ("event", "symbol", "surprise", "expected_surprise", "likeliest", "likeliest_probability", "note")
"""What the CSV of events adds to the user's columns."""
CASE_COLUMNS = (
    "case",
    "line",
    "events",
    "scored_events",
    "surprise",
    "expected_surprise",
    "surprise_per_event",
    "most_surprising_event",
    "its_symbol",
    "its_surprise",
    "note",
)
"""Columns of the CSV of cases."""
FORMULA = re.compile(r'(?:^|,)"?(?:[=@\t\r]|[+-](?![0-9.]))')
"""The beginning of a cell that a spreadsheet computes."""
END = "the end of the case"
"""What stands for a symbol where a comparison counts ends."""
NAMED = 5
"""Symbols that are named in a sentence."""


@dataclass(frozen=True)
class Scored:
    """E events of N cases with their surprise in nats; NaN where an event is not scored."""

    log: EventLog
    surprise: np.ndarray
    """(E,) float64."""
    expected: np.ndarray
    """(E,) float64: the expected surprise, the entropy of the prediction."""
    likeliest: np.ndarray
    """(E,) object: the symbol that the model thought likeliest, None where it predicted none."""
    chance: np.ndarray
    """(E,) float64: its probability."""
    notes: np.ndarray
    """(E,) object: why an event is not scored; empty if it is."""
    ends: np.ndarray
    """(N,) float64: the surprise that the case ended where it did; NaN if that is not scored."""
    expected_ends: np.ndarray
    """(N,) float64: the expected surprise there."""

    def per_case(self, of_events: np.ndarray, of_ends: np.ndarray) -> np.ndarray:
        """(N,) sums over a case's scored events and its end."""
        return _sums(np.nan_to_num(of_events), self.log.offsets) + np.nan_to_num(of_ends)

    @property
    def counts(self) -> np.ndarray:
        """(N,) number of scored events of each case, the end included."""
        return _sums(np.isfinite(self.surprise).astype(np.int64), self.log.offsets) + np.isfinite(self.ends)

    @property
    def per_event(self) -> np.ndarray:
        """(N,) nats per scored event of each case; NaN without one."""
        counts = self.counts
        return np.where(counts > 0, self.per_case(self.surprise, self.ends) / np.maximum(counts, 1), np.nan)

    @property
    def mean(self) -> float:
        """Nats per scored event of all cases; NaN without one."""
        total = int(self.counts.sum())
        return float(self.per_case(self.surprise, self.ends).sum() / total) if total else math.nan

    def unknown(self) -> Counter[str]:
        """How often each symbol occurs that the model does not know."""
        where = np.flatnonzero(self.notes == UNKNOWN)
        return Counter(self.log.symbols[code] for code in self.log.codes[where].tolist())


@dataclass(frozen=True)
class SymbolChange:
    """How one symbol contributes to the difference in nats per event between two files."""

    symbol: str
    share: float
    """Share of the scored events of the file."""
    other_share: float
    surprise: float | None
    """Its mean surprise in the file; None if it does not occur."""
    other_surprise: float | None
    contribution: float
    """share * surprise - other_share * other_surprise, in nats per event."""


def score(model: Model, log: EventLog) -> Scored:
    """The surprise of every event of a log. A case is read up to the first symbol that the model does not know, and as
    far as the model's longest sequence; what follows is not scored, nor is the end of such a case.

    Raises `LacksCapability` if the model's task is not `sequences`, and `ValueError` if it can read no event.
    """
    with model.asking() as predictor:
        task = own_sequences(model.task)
        cut, kept, notes = _readable(task, log)
        encoded = task.encoded(cut)
        rows = encoded.rows
        if not len(rows.tokens):
            file = getattr(log.table, "path", None)
            where = "" if file is None else f"{file}: "
            raise ValueError(f"{where}the model knows none of the symbols with which the cases begin")
        reading = read(predictor, rows[:])
    E, N = len(log.codes), len(log)
    surprise, expected, chance = np.full(E, np.nan), np.full(E, np.nan), np.full(E, np.nan)
    likeliest = np.full(E, None, object)
    ends, expected_ends = np.full(N, np.nan), np.full(N, np.nan)
    row = np.repeat(np.arange(len(rows)), rows.lengths)
    column = rows.columns()
    scored = reading.scored[row, column]
    nats, entropy = reading.nats[row, column], reading.entropy[row, column]
    symbol = encoded.events >= 0
    here = scored & symbol
    event = kept[encoded.events[here]]
    # Of several tokens of an event, such as its duration and its symbol, the surprises add up.
    surprise[event], expected[event] = 0.0, 0.0
    np.add.at(surprise, event, nats[here])
    np.add.at(expected, event, entropy[here])
    named = here & ~is_gap(task, rows.tokens)
    event = kept[encoded.events[named]]
    chance[event] = reading.chance[row, column][named]
    likeliest[event] = np.array(task.vocab.symbols, object)[reading.chosen[row, column][named]]
    ending = scored & ~symbol
    ends[row[ending]], expected_ends[row[ending]] = nats[ending], entropy[ending]
    silent = (notes == "") & ~np.isfinite(surprise)
    of_prompt = _places(log) < np.repeat(log.prompts, log.lengths)
    notes[silent & of_prompt], notes[silent & ~of_prompt] = PROMPT, FIRST
    return Scored(log, surprise, expected, likeliest, chance, notes, ends, expected_ends)


def _readable(task: Sequences, log: EventLog) -> tuple[EventLog, np.ndarray, np.ndarray]:
    """The log as far as the model can read it; (E',) the events of the whole log that are in it; and (E,) notes on why
    others are not."""
    gaps = set(gap_symbols(task.config.gaps))
    readable = set(task.vocab.ids) - gaps - {task.config.end}
    known = np.array([symbol in readable for symbol in log.symbols], bool)
    lengths = log.lengths
    case = np.repeat(np.arange(len(log)), lengths)
    place = _places(log)
    unknown = ~known[log.codes]
    # How many unknown symbols stand before each event, in its case.
    before = np.cumsum(unknown) - unknown
    after = before > np.repeat(before[log.offsets[:-1][lengths > 0]], lengths[lengths > 0])
    tokens = place + 1
    if gaps:  # each event after the first that is not of the prompt has one before it
        tokens = tokens + np.maximum(place - np.repeat(log.prompts, lengths), 0)
    beyond = tokens >= task.context
    notes = np.full(len(log.codes), "", object)
    notes[beyond], notes[after], notes[unknown & ~after & ~beyond] = BEYOND, AFTER_UNKNOWN, UNKNOWN
    kept = np.flatnonzero(notes == "")
    counts = np.bincount(case[kept], minlength=len(log))
    cut = dataclasses.replace(
        with_events(log, kept, counts),
        prompts=np.minimum(log.prompts, counts),
        unfinished=log.unfinished | (counts < lengths),
    )
    return cut, kept, notes


def _places(log: EventLog) -> np.ndarray:
    """(E,) the place of each event in its case, from 0."""
    return np.arange(len(log.codes)) - np.repeat(log.offsets[:-1], log.lengths)


def _sums(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """(N,) sums of (E,) values over the events of each case."""
    totals = np.concatenate([np.zeros(1, values.dtype), np.cumsum(values)])
    return totals[offsets[1:]] - totals[offsets[:-1]]


def known_file(task: Sequences, path: Path) -> str:
    """A sentence on a file that is, or was, the one of `task.path`; empty for another file. Raises `ValueError` if it
    cannot be read."""
    before, now = task.sums.get(str(task.paths[0])), checksum_of(path)
    if now == before:
        return f"{path} is the file of the run: most of its cases were trained on, and surprise less than new ones"
    if path.resolve() == task.paths[0]:
        return f"{path} has changed since the run began: what it holds now is scored"
    return ""


def compare(one: Scored, other: Scored) -> tuple[Drift, list[SymbolChange]]:
    """Whether the cases of one file surprise the model more than those of another, and the symbols that contribute to
    the difference, the largest contribution first. Raises `ValueError` for too few cases."""
    found = drift(one.per_event, other.per_event)
    sides = [_by_symbol(side) for side in (one, other)]
    totals = [max(1, sum(count for count, _ in side.values())) for side in sides]
    changes = []
    for symbol in dict.fromkeys([*sides[0], *sides[1]]):
        (count, nats), (other_count, other_nats) = (side.get(symbol, (0, 0.0)) for side in sides)
        changes.append(
            SymbolChange(
                symbol,
                count / totals[0],
                other_count / totals[1],
                nats / count if count else None,
                other_nats / other_count if other_count else None,
                nats / totals[0] - other_nats / totals[1],
            )
        )
    changes.sort(key=lambda change: -abs(change.contribution))
    return found, changes


def _by_symbol(scored: Scored) -> dict[str, tuple[int, float]]:
    """Scored events and their nats of each symbol, and those of ends."""
    there = np.isfinite(scored.surprise)
    codes = scored.log.codes[there]
    counts = np.bincount(codes, minlength=len(scored.log.symbols)).tolist()
    nats = np.bincount(codes, scored.surprise[there], len(scored.log.symbols)).tolist()
    found = {symbol: (count, total) for symbol, count, total in zip(scored.log.symbols, counts, nats) if count}
    ends = scored.ends[np.isfinite(scored.ends)]
    return {**found, END: (len(ends), float(ends.sum()))} if len(ends) else found


# What users see


def sentences(scored: Scored, file: str) -> list[str]:
    """How surprising a file is, and what could not be scored."""
    counts, unknown = scored.counts, scored.unknown()
    lines = [
        f"{file}: {counted(len(scored.log), 'case')}, {counted(len(scored.log.codes), 'event')}; {scored.mean:.3f} "
        f"nats per scored event ({counted(int(counts.sum()), 'event')} and ends)"
    ]
    if unknown:
        named = ", ".join(f"{short(symbol)} ({count:,})" for symbol, count in unknown.most_common(NAMED))
        more = f", and {len(unknown) - NAMED:,} others" if len(unknown) > NAMED else ""
        affected = len(np.unique(np.searchsorted(scored.log.offsets, np.flatnonzero(scored.notes == UNKNOWN), "right")))
        lines.append(
            f"{counted(len(unknown), 'symbol')} that the model does not know: {named}{more}; "
            f"{counted(affected, 'case')} not scored from there on"
        )
    if beyond := int((scored.notes == BEYOND).sum()):
        lines.append(f"{counted(beyond, 'event')} not scored: {BEYOND}")
    return lines


def drift_lines(found: Drift, changes: list[SymbolChange], file: str, other: str) -> list[str]:
    """A drift in words, with the symbols that contribute most if there is one."""
    lines = [drift_sentence(found, file, other)]
    if found.drifts:
        for change in changes[:NAMED]:
            mean, other_mean = (
                "-" if value is None else f"{value:.2f}" for value in (change.surprise, change.other_surprise)
            )
            lines.append(
                f"  {change.contribution:+.3f} nats per event by {short(change.symbol)}: {change.share:.1%} of the "
                f"events, {mean} nats each; in {other} {change.other_share:.1%}, {other_mean}"
            )
    return lines


def events_csv(scored: Scored) -> Iterator[str]:
    """Lines of CSV: every record of the user's file with its own columns and those of `EVENT_COLUMNS`, in the order of
    the file. A record that holds a whole sequence has a line for each event; one that was left out has empty ones. A
    file without columns has the column `line`. Added columns whose names the file has already begin with `model_`.
    Raises `ValueError` if the file has changed."""
    log = scored.log
    names = list(log.table.names)
    own = names or ["line"]
    yield _line([*own, *(f"model_{name}" if name in own else name for name in EVENT_COLUMNS)])
    order = np.argsort(log.rows, kind="stable")
    bounds = np.searchsorted(log.rows[order], np.arange(log.rows.max(initial=-1) + 2))
    case = np.repeat(np.arange(len(log)), log.lengths)
    places = (_places(log) + 1).tolist()

    def added(event: int) -> list[Any]:
        likely = scored.likeliest[event]
        return [
            places[event],
            log.symbols[log.codes[event]],
            _number(scored.surprise[event]),
            _number(scored.expected[event]),
            "" if likely is None else likely,
            _number(scored.chance[event]),
            scored.notes[event],
        ]

    if not names:
        for event in range(len(log.codes)):
            yield _line([int(log.lines[case[event]]), *added(event)])
        return
    for number, record in enumerate(log.table.records()):
        events = order[bounds[number] : bounds[number + 1]].tolist() if number < len(bounds) - 1 else []
        for event in events:
            yield _line([*record, *added(event)])
        if not events:
            yield _line([*record, *([""] * (len(EVENT_COLUMNS) - 1)), LEFT_OUT])


def cases_csv(scored: Scored) -> Iterator[str]:
    """Lines of CSV: every case with the columns `CASE_COLUMNS`, in the order of the log."""
    log, counts, per_event = scored.log, scored.counts, scored.per_event
    totals = scored.per_case(scored.surprise, scored.ends)
    expected = scored.per_case(scored.expected, scored.expected_ends)
    yield _line(CASE_COLUMNS)
    for number in range(len(log)):
        first, last = int(log.offsets[number]), int(log.offsets[number + 1])
        surprise = scored.surprise[first:last]
        most: list[Any] = ["", "", ""]
        if np.isfinite(surprise).any():
            place = int(np.nanargmax(surprise))
            most = [place + 1, log.symbols[log.codes[first + place]], _number(surprise[place])]
        why = next((note for note in scored.notes[first:last] if note in (UNKNOWN, BEYOND)), "")
        there = counts[number] > 0
        yield _line(
            [
                case_name(log, number),
                int(log.lines[number]),
                last - first,
                int(counts[number]),
                _number(totals[number]) if there else "",
                _number(expected[number]) if there else "",
                _number(per_event[number]),
                *most,
                why,
            ]
        )


def _number(value: float) -> str:
    """A number in a cell; empty for NaN."""
    return "" if math.isnan(value) else f"{value:.6g}"


def _line(cells: Any) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def is_formula(row: str) -> bool:
    """Whether a cell in a line of CSV begins like a formula, which spreadsheets compute; numbers do not."""
    return FORMULA.search(row) is not None


def most_surprising(scored: Scored, most: int) -> list[tuple[str, float, float]]:
    """The cases with the most nats beyond what was expected: name, nats, expected nats."""
    totals = scored.per_case(scored.surprise, scored.ends)
    expected = scored.per_case(scored.expected, scored.expected_ends)
    order = np.argsort(expected - totals, kind="stable")[:most]
    return [
        (case_name(scored.log, number), float(totals[number]), float(expected[number])) for number in order.tolist()
    ]
