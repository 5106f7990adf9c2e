"""Durations between the events of a sequence, as symbols."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from statewise.tasks.own_files.log import EventLog

UNITS = (
    (86400 * 365.25, "years"),
    (86400, "days"),
    (3600, "hours"),
    (60, "minutes"),
    (1, "seconds"),
    (1e-3, "ms"),
    (1e-6, "us"),
    (1e-9, "ns"),
)


def gap_symbols(bins: int) -> list[str]:
    """The symbols of `bins` bins, the shortest durations first."""
    return [f"<gap {number}>" for number in range(1, bins + 1)]


def durations(log: EventLog) -> np.ndarray:
    """(E,) float64 duration before each event, in seconds, or in the numbers that order events where they are no times;
    NaN before the first event of a sequence and in prompts. Raises `ValueError`, without the file's name, if the log
    has neither."""
    if log.times is not None:
        found = np.diff(log.times, prepend=log.times[:1]) / 1e9
    elif log.steps is not None:
        found = np.diff(log.steps, prepend=log.steps[:1])
    else:
        raise ValueError("task.gaps needs an event log with times or numbers in the column task.order")
    place = np.arange(len(found)) - np.repeat(log.offsets[:-1], log.lengths)
    found[place <= np.repeat(log.prompts, log.lengths)] = np.nan
    return found


def edges_of(found: np.ndarray, bins: int) -> list[float]:
    """At most `bins` - 1 rising edges between bins that hold about equally many of the durations; NaN counts for
    nothing. A duration of an edge belongs to the bin above."""
    real = found[~np.isnan(found)]
    if not len(real):
        return []
    quantiles = np.quantile(real, np.arange(1, bins) / bins, method="higher")
    return [float(edge) for edge in np.unique(quantiles) if edge > real.min()]


def described(edges: Sequence[float], in_seconds: bool) -> str:
    """The bins, for the user."""
    if not edges:
        return "<gap 1>: all durations"
    texts = [duration(edge) if in_seconds else f"{edge:,g}" for edge in edges]
    parts = [f"<gap 1>: below {texts[0]}"]
    parts += [f"<gap {number}>: below {text}" for number, text in enumerate(texts[1:], 2)]
    return ", ".join([*parts, f"<gap {len(texts) + 1}>: {texts[-1]} or more"])


def duration(seconds: float) -> str:
    """A duration in words, such as `2.5 hours`."""
    size, unit = next(((size, unit) for size, unit in UNITS if abs(seconds) >= size), UNITS[4])
    return f"{seconds / size:.3g} {unit}"
