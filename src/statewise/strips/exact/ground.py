"""Learns a ground action model exactly: by SAT over the seen windows, without training.

1. The minimal seen windows are read off the valid traces (`windows`).
2. All alternating features are listed (`features`); for each negative trace that none of them catches, the smallest
   feature that does is added, of a wider kind if necessary.
3. Each feature gets the preconditions that are worth their description (`preconditions`).
4. Atoms that the others imply are dropped (`containment.prune`), which keeps the language.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Unpack

import numpy as np

from statewise.runtime.messages import counted
from statewise.strips.exact.features import KINDS, MOST, Feature, Pricer, TimeUp
from statewise.strips.exact.frame import Clock, Options, Work
from statewise.strips.exact.preconditions import EVIDENCE, Occasions, alternation_evidence, as_heads, preconditions
from statewise.strips.exact.windows import Windows, valid_rows
from statewise.strips.model.heads import Heads
from statewise.strips.model.learned import Learned
from statewise.strips.model.model import bits
from statewise.strips.model.traces import Trace, Traces


class Contradiction(ValueError):
    """No action model explains the traces."""


def learn_exact(traces: Traces, **options: Unpack[Options]) -> Learned:
    """Learns an action model that accepts every valid trace and rejects every negative one.

    Negative traces are not needed: without them preconditions follow from what never happened. Raises `Contradiction`
    if no action model explains the traces, and `ValueError` without python-sat.
    """
    work = Work("exact", traces, **options)
    clock = work.clock
    windows = Windows.of_rows(len(traces.actions), clock.reading(valid_rows(traces)))
    negatives = distinct_negatives(traces)
    check_consistent(traces, windows)
    work.say(f"{len(windows)} minimal windows")
    listed = work.listed.alternating(None, windows, seconds=clock.left() / 3, stop=clock.stop)
    if not listed.complete and len(listed.features) < MOST:
        clock.cut.append("listing the alternating features")
    work.say(f"{len(listed.features)} alternating features" + ("" if listed.complete else ", not all"))
    able = required(windows, listed.features, clock)
    priced = price(windows, negatives, able, clock, complete=listed.complete)
    wider = {each for kind in KINDS[1:] for each in priced[kind]}
    heads, worth = weighed(traces, able, wider, clock)
    work.say(f"{len(heads)} atoms")
    return work.ground(
        heads,
        {
            "windows": len(windows),
            "features": len(listed.features),
            "all_features": listed.complete,
            "priced": {kind: len(some) for kind, some in priced.items()},
            "supported": int((worth >= EVIDENCE).sum()),
        },
        before=work.listed.seconds,
    )


def required(windows: Windows, features: Sequence[Feature], clock: Clock) -> dict[Feature, int]:
    """For each feature the actions that can require it. Even without time left, some features are tested, so that there
    is a model."""
    able: dict[Feature, int] = {}
    has_time = clock.with_grace()
    for feature in features:
        if not has_time():
            clock.cut.append("testing preconditions")
            break
        able[feature] = windows.required(*feature)
    return able


def weighed(
    traces: Traces, able: Mapping[Feature, int], wider: Collection[Feature], clock: Clock, support: int = 1
) -> tuple[Heads, np.ndarray]:
    """The atoms of these effects with the preconditions that are worth their description, of those that they can have,
    and the worth of each effect that can be required. The effects in `wider` need not alternate."""
    features = [each for each in able if able[each]]
    occasions = Occasions.at(traces, features, clock.with_grace())
    swapped = Occasions.at(traces, [Feature(each.add, each.delete) for each in features], clock.with_grace())
    worth = alternation_evidence(features, occasions, swapped)
    sure = [
        each.delete & able[each] if value >= EVIDENCE and each not in wider else 0
        for each, value in zip(features, worth)
    ]
    chosen = preconditions([able[each] for each in features], sure, occasions, support=support, has_time=clock.has_time)
    if not clock.has_time():
        clock.cut.append("weighing preconditions")
    return as_heads(features, chosen, len(traces.actions)), worth


def distinct_negatives(traces: Traces) -> list[Trace]:
    """The negative traces, shortest first."""
    return sorted({row for row, label in zip(traces.rows, traces.labels) if label}, key=lambda row: (len(row), row))


def check_consistent(traces: Traces, windows: Windows) -> None:
    """Raises `Contradiction` if no action model explains the traces: a negative trace ends in an action that every
    model of the valid actions accepts, or has no action before it. The message says where the first such traces
    begin."""
    unexplained = {row for row in distinct_negatives(traces) if not windows.new(row)}
    if not unexplained:
        return
    if all(len(row) == 1 for row in unexplained):
        alone = [
            traces.where(place)
            for place, (row, label) in enumerate(zip(traces.rows, traces.labels))
            if label and len(row) == 1
        ]
        raise Contradiction(
            f"no model explains {counted(len(alone), 'negative trace')} of a single action ({_listed(alone)}): a first "
            "action cannot be rejected, since the initial state is unknown (Definition 1). Leave such traces out, "
            "correct the labels, or learn with `noise` auto"
        )
    labelled = list(zip(traces.rows, traces.labels))
    places = [place for place, (row, label) in enumerate(labelled) if label and row in unexplained]
    row = traces.rows[places[0]]
    twins = [place for place, (other, label) in enumerate(labelled) if other[: len(other) - label][: len(row)] == row]
    end, count = traces.actions[row[-1]], len(places)
    why = (
        f"{traces.where(twins[0])} begins with the same actions, all valid"
        if twins
        else "a first action cannot be rejected, since the initial state is unknown (Definition 1)"
        if len(row) == 1
        else f"what happened in the valid traces implies that {end!r} is valid there"
    )
    raise Contradiction(
        f"the traces contradict each other: {count} negative {'traces end' if count > 1 else 'trace ends'} in an "
        f"action that the valid ones show to be valid ({_listed([traces.where(place) for place in places])}). "
        f"For {traces.where(places[0])}: {why}. Correct the labels, or learn with `noise` auto"
    )


def price(
    windows: Windows, negatives: Sequence[Trace], able: dict[Feature, int], clock: Clock, *, complete: bool
) -> dict[str, list[Feature]]:
    """For each negative trace that no feature of `able` catches, a smallest feature that does, of the narrowest kind
    that has one. Adds them to `able`, with the actions that can require them. Searches no alternating ones if all of
    these are known (`complete`)."""
    by_kind: dict[str, list[Feature]] = {kind: [] for kind in KINDS}
    pricers: dict[str, Pricer] = {}
    by_end: dict[int, list[Feature]] = {}
    for feature, required in able.items():
        for c in bits(required):
            by_end.setdefault(c, []).append(feature)
    for row in negatives:
        if any(catches(row, each) for each in by_end.get(row[-1], ())):
            continue
        if not clock.has_time():
            clock.cut.append("explaining all negative traces")
            break
        for kind in KINDS[complete:]:
            if kind not in pricers:
                pricers[kind] = Pricer(windows, kind)
            try:
                smallest = pricers[kind].smallest(row, has_time=clock.has_time)
            except TimeUp:
                break
            if smallest is not None:
                by_kind[kind].append(smallest)
                able[smallest] = windows.required(*smallest)
                for c in bits(able[smallest]):
                    by_end.setdefault(c, []).append(smallest)
                break
    return by_kind


def catches(row: Trace, feature: Feature) -> bool:
    """Whether the atom is known to be false before the last action."""
    for action in reversed(row[:-1]):
        if (feature.delete | feature.add) >> action & 1:
            return bool(feature.delete >> action & 1)
    return False


def _listed(places: Sequence[str]) -> str:
    return ", ".join(places[:5]) + (f" and {len(places) - 5} more" if len(places) > 5 else "")
