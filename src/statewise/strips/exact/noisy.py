"""Learns a ground action model from damaged traces, by SAT over the windows that recur.

A damaged trace shows windows that no undamaged one has, and one of them is enough to forbid a right atom. Damage has no
pattern: such a window recurs in few traces. So only windows that at least k traces imply count (`Windows.supported`).
Features and preconditions are then found as in clean traces (`ground`), except that no negative is explained for its
own sake: a precondition pays for its description, its exceptions included, or explains k negatives. `supports` chooses
k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from statewise.strips.exact.features import MOST, Feature
from statewise.strips.exact.frame import Clock, How, Work, accuracy
from statewise.strips.exact.ground import required, weighed
from statewise.strips.exact.supports import Fit, best_fit, check_negatives
from statewise.strips.exact.windows import Windows, holders_of
from statewise.strips.model.head_arrays import Heads, Judge
from statewise.strips.model.learned import Learned
from statewise.strips.trace_data.random_traces import Traces


def learn_noisy(traces: Traces, **how: Unpack[How]) -> Learned:
    """Learns an action model that explains most of the traces; the others are taken for damaged.

    `report["support"]` is the number of traces that a window needs, `report["accuracies"]` has the accuracy for each
    number tried. What was left undone for lack of time, the same call with the same `folder` continues, from the
    features found. Raises `FileExistsError` if the folder holds anything else,
    `ValueError` without negative traces and without python-sat.
    """
    check_negatives(traces)
    work = Work("exact", traces, how)
    work.claim(resumes=True)
    return fitted(work)


def fitted(
    work: Work, effects: Sequence[Feature] = (), facts: Mapping[str, Any] | None = None, *, before: float = 0.0
) -> Learned:
    """The model of the best support. `effects` are further ones that atoms may have, alternating or not; `facts` and
    `before` are as in `Work.ground`."""
    traces, stop = work.traces, work.clock.stop
    holders, judge = holders_of(traces, work.clock.reading), Judge(traces)

    def fit(support: int, seconds: float) -> Fit[Heads]:
        clock = Clock(seconds, stop)
        windows = Windows.supported(len(traces.actions), holders, support)
        found = work.listed.alternating(None, windows, support=support, seconds=clock.left() / 2, stop=stop)
        if not found.complete and len(found.features) < MOST:
            clock.cut.append("listing the alternating features")
        others = set(effects) - set(found.features)
        able = required(windows, [*found.features, *sorted(others)], clock)
        heads, _ = weighed(traces, able, others, clock, support)
        return Fit(support, heads, len(windows), len(able), tuple(clock.cut), accuracy(heads, judge))

    best, tried = best_fit(work, "ground atoms", fit)
    return work.ground(
        best.model,
        {"windows": best.windows, **tried, "features": best.offered, **(facts or {})},
        before=before + work.listed.seconds,
    )
