"""Learns action schemas exactly, for instances of any size; positive traces are enough.

For each signature the alternating predicates are listed by SAT over the windows of slots (`predicates`, `features`). A
predicate is required by all slots that never occurred while it was known to be false: a small instance has many tuples
of objects, so that even rare slots have occasions. It is kept if the traces support it, as heads are in a pool
(`heads.evidence`). Predicates that need not alternate are kept if the traces support what they reject in addition
(`elementary`). Negative traces that no kept predicate catches are covered by the fewest others, of both kinds. If some
remain, predicates with one more argument are tried. Preconditions on the given constants are added at the end
(`constants`). The report says what the traces leave open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Unpack

import numpy as np

from statewise.runtime.messages import counted
from statewise.strips.exact.constants import required_constants, with_constants
from statewise.strips.exact.elementary import Question, chosen_elementary, elementary, merged, weigh
from statewise.strips.exact.features import MOST
from statewise.strips.exact.frame import READING, Clock, Listed, Options, Work
from statewise.strips.exact.ground import check_consistent
from statewise.strips.exact.predicates import (
    Predicate,
    Signature,
    as_schemas,
    distinct_predicates,
    grounded,
    signatures,
    slot_windows,
    without_covered,
)
from statewise.strips.exact.verdicts import kind_of_schemas
from statewise.strips.exact.windows import Windows, valid_rows
from statewise.strips.model.heads import EVIDENCE, Candidates, Judge, evidence, smallest_cover
from statewise.strips.model.schemas import LiftedModel, objects_by_sort
from statewise.strips.model.traces import Trace, Traces

ARITY = 2
"""The most arguments of a predicate, unless negative traces need more."""
MOST_ARITY = 3
AT_ONCE = 100
"""The number of predicates that are weighed at once."""
ENOUGH = 3
"""With fewer objects of a sort, "the other object" may explain what is not true in larger instances."""
WEIGHED = 500
"""The most traces in which the evidence for predicates is counted."""


def learn_lifted_exact(
    traces: Traces, *, arity: int = ARITY, constants: Sequence[str] = (), **options: Unpack[Options]
) -> LiftedModel:
    """Learns action schemas from ground traces whose actions are written `schema object object`.

    Predicates have up to `arity` arguments, or up to three if negative traces need them. `constants` are objects that
    actions may require without having them as arguments. Raises `ValueError` if a
    schema occurs with different numbers of arguments and without python-sat, and `Contradiction` if no action model
    explains the traces.
    """
    work = Work("exact", traces, **options)
    clock = work.clock
    rows = valid_rows(traces)
    if sum(traces.labels):
        check_consistent(traces, Windows.of_rows(len(traces.actions), clock.reading(rows, 0.2)))
    windows: dict[Signature, Windows] = {}
    offered: list[Predicate] = []
    counts: dict[int, int] = {}
    best: _Chosen | None = None
    for wanted in range(MOST_ARITY + 1):
        if wanted > arity and best is not None and (best.accuracy == 1 or not sum(traces.labels)):
            break
        if not clock.has_time():
            clock.cut.append(f"predicates of {counted(wanted, 'argument')}")
            break
        more_windows, predicates = predicates_of_arity(wanted, traces, rows, work)
        counts[wanted] = len(predicates)
        offered += predicates
        windows |= more_windows
        if wanted >= arity:
            best = _chosen(offered, windows, traces, clock)
    if best is None:
        best = _chosen(offered, windows, traces, clock)
    on_constants = required_constants(best.predicates, constants, traces, clock)
    # predicates of some traces may reject others, so the accuracy is computed unless all were read
    known = not on_constants and READING not in clock.cut
    accuracy = {"training_accuracy": best.accuracy} if known else {}
    return work.lifted(
        with_constants(as_schemas(best.predicates, traces.actions), on_constants, traces.actions),
        {
            "settings": {"arity": arity},
            "offered": len(offered),
            "by_arity": counts,
            "on_constants": len(on_constants),
            "predicates": len(best.predicates),
            "not_alternating": best.elementary,
            **accuracy,
            "open": [question._asdict() for question in best.questions],
            "assumed": assumed(traces, max(counts, default=arity)),
            "few_objects": few_objects(traces.actions),
        },
    )


def assumed(traces: Traces, arity: int) -> str:
    """What the schemas assume beyond the traces, which do not show the states in which they begin."""
    begins = len({row[0] for row in traces.valid_only().rows})
    absent = "never happened" if not sum(traces.labels) else "never happened, or explains the negative ones,"
    these, begin = ("this", "begins") if len(traces) == 1 else ("these", "begin")
    with_what = f"{begins:,} different actions" if begins > 1 else "one action"
    return (
        f"what the model forbids {absent} in {these} {counted(len(traces), 'trace')}, which {begin} with "
        f"{with_what}. If traces do not begin in all kinds of states, such as every level of a resource, it may happen "
        f"in other states. Schemas have {kind_of_schemas(arity)}"
    )


def few_objects(actions: Sequence[str]) -> list[list[str]]:
    """The sorts of objects with fewer than `ENOUGH`."""
    return [names for names in objects_by_sort(actions) if len(names) < ENOUGH]


def windows_of_slots(
    actions: Sequence[str], rows: Sequence[Trace], arity: int, clock: Clock
) -> dict[Signature, Windows]:
    """For each signature of `arity` arguments the windows of its slots in the valid traces `rows`."""
    return {each: slot_windows(each, actions, clock.reading(rows, 0.2)) for each in signatures(actions, arity)}


def all_predicates(
    windows_of: Mapping[Signature, Windows], clock: Clock, listed: Listed, what: str, support: int = 1
) -> list[Predicate]:
    """The alternating predicates that can reject something, without mirror images, each with all slots that can require
    it. The features are added to `listed`. `what` says in messages what was not finished; `support` is the number of
    traces that imply each window."""
    predicates: list[Predicate] = []
    has_time = clock.with_grace()
    for signature, windows in windows_of.items():
        features, complete = listed.alternating(
            signature, windows, support=support, seconds=clock.left() / 2, stop=clock.stop
        )
        if len(features) >= MOST and not complete:
            clock.too_many.append(f"{what}: more than {MOST} alternate")
        elif not complete:
            clock.cut.append(what)
        predicates += distinct_predicates(signature, windows, features, has_time)
    return predicates


def predicates_of_arity(
    arity: int, traces: Traces, rows: Sequence[Trace], work: Work
) -> tuple[dict[Signature, Windows], list[Predicate]]:
    """The windows of the slots in the valid traces `rows` for each signature of `arity` arguments, and their
    alternating predicates."""
    windows = windows_of_slots(traces.actions, rows, arity, work.clock)
    named = counted(arity, "argument")
    predicates = all_predicates(windows, work.clock, work.listed, f"listing predicates of {named}")
    work.say(f"{counted(len(predicates), 'alternating predicate')} of {named}")
    return windows, predicates


class _Chosen(NamedTuple):
    predicates: list[Predicate]
    elementary: int
    """The number of predicates that need not alternate."""
    accuracy: float
    """The share of the traces that the predicates classify correctly."""
    questions: list[Question]


def _chosen(
    offered: Sequence[Predicate], windows: Mapping[Signature, Windows], traces: Traces, clock: Clock
) -> _Chosen:
    """The predicates that the traces support, alternating ones first; and the fewest others that catch the remaining
    negative traces."""
    some = traces.only(range(min(WEIGHED, len(traces))))
    offered, worth = _weighed(offered, some, clock)
    chosen = [each for each, value in zip(offered, worth) if value >= EVIDENCE]
    more, weighed = chosen_elementary(chosen, elementary(windows, clock), some, clock)
    chosen += more
    judge = Judge(traces.only([place for place, label in enumerate(traces.labels) if label]))
    missing = ~_catches(chosen, traces.actions, judge).any(0)
    if missing.any():
        rest = [each for each, value in zip(offered, worth) if value < EVIDENCE] + weighed.offered
        value = np.concatenate([worth[worth < EVIDENCE], weighed.worth])
        catches = _catches(rest, traces.actions, judge)[:, missing]
        able = catches.any(0)
        if able.any():
            cover = [
                rest[place] for place in smallest_cover(catches[:, able], value, seconds=min(5.0, clock.left()))[0]
            ]
            chosen += cover
            more += [each for each in cover if each not in offered]
            weighed = weigh(chosen, [each for each in weighed.offered if each not in cover], some, clock)
    missed = float((~_catches(chosen, traces.actions, judge).any(0)).sum())
    kept = [each for each in chosen if each not in more] + merged(more)
    return _Chosen(
        without_covered(kept), len(merged(more)), 1 - missed / len(traces), weighed.questions(traces.actions)
    )


def _weighed(offered: Sequence[Predicate], traces: Traces, clock: Clock) -> tuple[Sequence[Predicate], np.ndarray]:
    """The predicates that there is time to weigh, with the evidence for them."""
    judge, has_time = Judge(traces.valid_only()), clock.with_grace()
    worth = [np.zeros(0)]
    for first in range(0, len(offered), AT_ONCE):
        if not has_time():
            clock.cut.append("weighing predicates")
            return offered[:first], np.concatenate(worth)
        worth.append(evidence(candidates_of(offered[first : first + AT_ONCE], traces.actions), judge))
    return offered, np.concatenate(worth)


def _catches(predicates: Sequence[Predicate], actions: Sequence[str], judge: Judge) -> np.ndarray:
    """[P, N] whether each predicate rejects the last action of each negative trace."""
    if not predicates or not len(judge.labels):  # nothing to ground, which may take longer than all else
        return np.zeros((len(predicates), len(judge.labels)), dtype=bool)
    blocks = [
        candidates_of(predicates[first : first + AT_ONCE], actions).verdicts(judge)[1]
        for first in range(0, len(predicates), AT_ONCE)
    ]
    return np.concatenate(blocks)


def candidates_of(predicates: Sequence[Predicate], actions: Sequence[str]) -> Candidates:
    """The predicates with their ground heads over the traces' objects."""
    heads, owner = grounded(predicates, actions)
    return Candidates(
        heads,
        owner,
        np.array([each.size() for each in predicates]),
        np.array([3 * len(each.signature.slots) for each in predicates]),
    )
