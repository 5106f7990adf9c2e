"""How many traces a window of damaged traces needs, to count.

With k too small a right atom is forbidden by damage, with k too large wrong atoms are allowed by rare windows that do
not count; in between the same model is found. So k is doubled until the models get worse. Of those that classify most
traces correctly, up to one standard error fewer, the middle one is taken: what explains a few traces more may fit
damage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from statewise.strips.exact.frame import Work
from statewise.strips.trace_data.random_traces import Traces

SUPPORTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Numbers of traces that a window needs, to be tried in this order."""
WORSE = 3
"""So many worse models in a row, after the best one, end the trials."""

M = TypeVar("M")


@dataclass(frozen=True)
class Fit(Generic[M]):
    """What was learned with one support."""

    support: int
    model: M
    windows: int
    offered: int
    """The number of alternating features or predicates that can be required."""
    cut: tuple[str, ...]
    """What was left undone."""
    accuracy: float
    """Share of the traces classified correctly."""


def check_negatives(traces: Traces) -> None:
    """Raises `ValueError` if no trace is negative."""
    if not sum(traces.labels):
        raise ValueError("without negative traces damage cannot be told from rare actions: give some, or no --noise")


def best_fit(work: Work, what: str, fit: Callable[[int, float], Fit[M]]) -> tuple[Fit[M], dict[str, Any]]:
    """The model of the best support, and for the report the support and the accuracy for each one tried. `fit` takes a
    support and seconds; `what` is learned."""
    fits: list[Fit[M]] = []
    count, clock = len(work.traces), work.clock
    for place, support in enumerate(SUPPORTS):
        if fits and not clock.going_on():
            clock.cut.append(f"trying windows of {support} and more traces")
            break
        if fits and support > count:
            break
        fits.append(fit(support, clock.left() / (len(SUPPORTS) - place)))
        work.say(f"{what}, windows of at least {support} traces: {fits[-1].accuracy:.4f} of the traces right")
        best = max(each.accuracy for each in fits)
        if len(fits) > WORSE and best > fits[0].accuracy and all(each.accuracy < best for each in fits[-WORSE:]):
            break
    chosen = middle(fits, count)
    clock.cut += chosen.cut
    return chosen, {"support": chosen.support, "accuracies": {str(each.support): each.accuracy for each in fits}}


def middle(fits: Sequence[Fit[M]], count: int) -> Fit[M]:
    """Of the fits to `count` traces that explain most of them, up to one standard error fewer, the middle one."""
    best = max(each.accuracy for each in fits)
    error = (best * (1 - best) / count) ** 0.5
    good = [each for each in fits if each.accuracy >= best - error]
    return good[len(good) // 2]
