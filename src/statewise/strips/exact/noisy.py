"""Learns a ground action model from damaged traces, by SAT over the windows that recur.

A damaged trace shows windows that no undamaged one has, and one of them is enough to forbid a right atom. Damage has no
pattern: such a window recurs in few traces. So only windows that at least k traces imply count (`Windows.supported`).
Features and preconditions are then found as in clean traces (`ground`), except that no negative is explained for its
own sake: a precondition pays for its description, its exceptions included, or explains k negatives.

With k too small a right atom is forbidden by damage, with k too large wrong atoms are allowed by rare windows that do
not count; in between the same model is found. So k is doubled until the models get worse. Of those that classify most
traces correctly, up to one standard error fewer, the middle one is taken: what explains a few traces more may fit
damage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from statewise.strips.exact.features import MOST, Feature, alternating
from statewise.strips.exact.frame import Clock, How, Work, accuracy
from statewise.strips.exact.ground import required, weighed
from statewise.strips.exact.windows import Holders, Windows, holders_of
from statewise.strips.head_arrays import Heads, Judge
from statewise.strips.learned import Learned
from statewise.strips.random_traces import Traces

SUPPORTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Numbers of traces that a window needs, to be tried in this order."""
WORSE = 3
"""So many worse models in a row, after the best one, end the trials."""


@dataclass(frozen=True)
class Fit:
    """What was learned with one support."""

    support: int
    heads: Heads
    windows: int
    features: int
    cut: tuple[str, ...]
    """What was left undone."""
    accuracy: float
    """Share of the traces classified correctly."""


def learn_noisy(traces: Traces, **how: Unpack[How]) -> Learned:
    """Learns an action model that explains most of the traces; the others are taken for damaged.

    `report["support"]` is the number of traces that a window needs, `report["accuracies"]` has the accuracy for each
    number tried. An interrupted run starts over. Raises `FileExistsError` if the folder holds anything else,
    `ValueError` without negative traces and without python-sat.
    """
    check_negatives(traces)
    work = Work("exact", traces, how)
    work.claim()
    return fitted(work)


def check_negatives(traces: Traces) -> None:
    """Raises `ValueError` if no trace is negative."""
    if not sum(traces.labels):
        raise ValueError("without negative traces damage cannot be told from rare actions: give some, or no --noise")


def fitted(
    work: Work, effects: Sequence[Feature] = (), facts: Mapping[str, Any] | None = None, *, before: float = 0.0
) -> Learned:
    """The model of the best support. `effects` are further ones that atoms may have, alternating or not; `facts` and
    `before` are as in `Work.ground`."""
    fits = _fits(work.traces, effects, work.clock, work.say)
    best = max(fit.accuracy for fit in fits)
    error = (best * (1 - best) / len(work.traces)) ** 0.5
    good = [fit for fit in fits if fit.accuracy >= best - error]
    fit = good[len(good) // 2]
    work.clock.cut += fit.cut
    return work.ground(fit.heads, {
        "windows": fit.windows,
        "support": fit.support,
        "accuracies": {str(each.support): each.accuracy for each in fits},
        "features": fit.features,
        **(facts or {}),
    }, before=before)  # fmt: skip


def _fits(traces: Traces, effects: Sequence[Feature], clock: Clock, progress: Callable[[str], None]) -> list[Fit]:
    """A model for each support, until they get worse."""
    holders, judge = holders_of(traces, clock.reading), Judge(traces)
    fits: list[Fit] = []
    for place, support in enumerate(SUPPORTS):
        if fits and not clock.going_on():
            clock.cut.append(f"trying windows of {support} and more traces")
            break
        if fits and support > len(traces):
            break
        share = Clock(clock.left() / (len(SUPPORTS) - place), clock.stop)
        fits.append(_fit(traces, effects, holders, judge, support, share))
        progress(f"windows of at least {support} traces: {fits[-1].accuracy:.4f} of the traces right")
        best = max(fit.accuracy for fit in fits)
        if len(fits) > WORSE and best > fits[0].accuracy and all(fit.accuracy < best for fit in fits[-WORSE:]):
            break
    return fits


def _fit(traces: Traces, effects: Sequence[Feature], holders: Holders, judge: Judge, support: int, clock: Clock) -> Fit:
    windows = Windows.supported(len(traces.actions), holders, support)
    found = alternating(windows, seconds=clock.left() / 2, stop=clock.stop)
    if not found.complete and len(found.features) < MOST:
        clock.cut.append("listing the alternating features")
    others = set(effects) - set(found.features)
    able = required(windows, [*found.features, *sorted(others)], clock)
    heads, _ = weighed(traces, able, others, clock, support)
    return Fit(support, heads, len(windows), len(able), tuple(clock.cut), accuracy(heads, judge))
