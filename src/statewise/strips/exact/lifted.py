"""Learns action schemas exactly, for instances of any size; positive traces are enough.

For each signature the alternating predicates are listed by SAT over the windows of slots (`slots`, `features`). A
predicate requires all slots that never occurred while it was known to be false: a small instance has many tuples of
objects, so that even rare slots have occasions. It is kept if the traces speak for it, as the pool keeps a head
(`pooling.evidence`); negatives that no kept one catches are covered by the fewest others. If some are left, predicates
of one argument more are tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Unpack

import numpy as np

from statewise.strips.exact.features import MOST, alternating
from statewise.strips.exact.frame import Clock, How, Work
from statewise.strips.exact.ground import check_consistent
from statewise.strips.exact.slots import Signature, signatures, slot_windows
from statewise.strips.exact.windows import Windows, valid_rows
from statewise.strips.head_arrays import Heads, Judge
from statewise.strips.heads import ActionSet
from statewise.strips.lifted import LiftedModel
from statewise.strips.model import bits
from statewise.strips.pooling import EVIDENCE, Candidates, evidence, smallest_cover
from statewise.strips.random_traces import Traces
from statewise.strips.schemas import Literal, Schema, arguments, ground

ARITY = 2
"""Arguments of a predicate, at most, unless negatives need more."""
MOST_ARITY = 3
WEIGHED = 500
"""The number of traces, at most, in which the evidence for predicates is counted."""


@dataclass(frozen=True)
class Predicate:
    """A predicate by the slots that require, add and delete it, as bits."""

    signature: Signature
    pre: ActionSet
    add: ActionSet
    delete: ActionSet

    def size(self) -> int:
        """The number of slots, each counted in each role."""
        return self.pre.bit_count() + self.add.bit_count() + self.delete.bit_count()

    def covers(self, other: Predicate) -> bool:
        """Whether it rejects all that `other` rejects, by their slots alone."""
        return self.signature == other.signature and not (
            other.pre & ~self.pre or other.delete & ~self.delete or self.add & ~other.add
        )

    def mirrored(self) -> set[tuple[ActionSet, ActionSet, ActionSet]]:
        """The same predicate with arguments of one sort in all orders."""
        number = {slot: place for place, slot in enumerate(self.signature.slots)}
        sorts = self.signature.sorts
        found = set()
        for order in permutations(range(len(sorts))):
            if tuple(sorts[at] for at in order) == sorts:
                moved = [number[schema, tuple(places[at] for at in order)] for schema, places in self.signature.slots]
                found.add(tuple(sum(1 << moved[slot] for slot in bits(part))
                                for part in (self.pre, self.add, self.delete)))  # fmt: skip
        return found  # type: ignore[return-value]


def learn_lifted_exact(traces: Traces, *, arity: int = ARITY, **how: Unpack[How]) -> LiftedModel:
    """Learns action schemas from ground traces whose actions are written `schema object object`.

    Predicates have up to `arity` arguments, and more, up to three, if negatives need them. Raises `ValueError` if a
    schema occurs with different numbers of arguments and without python-sat, `Contradiction` if no action model
    explains the traces, `FileExistsError` if the folder holds anything else.
    """
    check_consistent(traces, Windows.of(traces))
    work = Work("exact", traces, how)
    clock = work.clock
    work.claim()
    found: list[Predicate] = []
    counts: dict[int, int] = {}
    chosen: list[Predicate] = []
    accuracy = 0.0
    for wanted in range(MOST_ARITY + 1):
        if wanted > arity and (accuracy == 1 or not sum(traces.labels)):
            break
        if not clock.going_on():
            clock.cut.append(f"predicates of {wanted} arguments")
            break
        new = all_predicates(traces, wanted, clock)
        counts[wanted] = len(new)
        found += new
        work.say(f"{len(new)} alternating predicates of {wanted} arguments")
        if wanted >= arity:
            chosen, accuracy = _chosen(found, traces)
    if not chosen:
        chosen, accuracy = _chosen(found, traces)
    return work.lifted(as_schemas(chosen, traces.actions), {
        "settings": {"arity": arity},
        "offered": len(found),
        "by_arity": counts,
        "predicates": len(chosen),
        "training_accuracy": accuracy,
    })  # fmt: skip


def all_predicates(traces: Traces, arity: int, clock: Clock) -> list[Predicate]:
    """The alternating predicates of `arity` arguments that can reject something, without mirror images, each with all
    that it can be required by."""
    rows = valid_rows(traces)
    found: list[Predicate] = []
    for signature in signatures(traces.actions, arity):
        windows = slot_windows(signature, traces.actions, rows)
        listed = alternating(windows, seconds=clock.left() / 2, stop=clock.stop)
        if not listed.complete:
            clock.cut.append(f"listing predicates of {arity} arguments"
                             + (f": more than {MOST} alternate" if len(listed.features) >= MOST else ""))  # fmt: skip
        seen: set[tuple[ActionSet, ActionSet, ActionSet]] = set()
        for delete, add in listed.features:
            each = Predicate(signature, windows.required(delete, add), add, delete)
            if each.pre and (each.pre, each.add, each.delete) not in seen:
                seen |= each.mirrored()
                found.append(each)
    return found


def _chosen(found: Sequence[Predicate], traces: Traces) -> tuple[list[Predicate], float]:
    """The predicates that the traces speak for, and the fewest others that catch the remaining negatives; and the share
    of the traces that they classify correctly."""
    offered = _candidates(found, traces.actions)
    if not len(offered):
        judge = Judge(traces)
        return [], float(judge.right(np.zeros((0, len(traces)), bool), np.zeros((0, len(traces)), bool)).mean())
    worth = evidence(offered, Judge(traces.only(range(min(WEIGHED, len(traces)))).valid_only()))
    taken = worth >= EVIDENCE
    negative = [place for place, label in enumerate(traces.labels) if label]
    if negative:
        ends = traces.only(negative)
        catches = offered.verdicts(Judge(ends))[1]
        missing = catches.any(0) & ~catches[taken].any(0)
        if missing.any():
            rest = np.flatnonzero(~taken)
            taken[rest[smallest_cover(catches[rest][:, missing], worth[rest], seconds=5.0)[0]]] = True
        accuracy = 1 - float((~catches[taken].any(0)).sum()) / len(traces)
    else:
        accuracy = 1.0
    kept = [found[int(place)] for place in np.flatnonzero(taken)]
    first = {id(each): place for place, each in enumerate(kept)}
    return [each for each in kept
            if not any(other.covers(each) and (not each.covers(other) or first[id(other)] < first[id(each)])
                       for other in kept if other is not each)], accuracy  # fmt: skip


def _candidates(found: Sequence[Predicate], actions: Sequence[str]) -> Candidates:
    """The predicates with their ground heads over the traces' objects."""
    if not found:
        nothing = np.zeros((0, len(actions)), dtype=bool)
        return Candidates(Heads(nothing, nothing, nothing), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64),
                          np.zeros(0, dtype=np.int64))  # fmt: skip
    model = ground(as_schemas(found, actions), actions)
    owner = np.array([int(atom.split()[0].removeprefix("p")) for atom in model.atoms])
    order = np.argsort(owner, kind="stable")
    return Candidates(
        Heads.of_model(model).only(order),
        owner[order],
        np.array([each.size() for each in found]),
        np.array([3 * len(each.signature.slots) for each in found]),
    )


def as_schemas(chosen: Sequence[Predicate], actions: Sequence[str]) -> dict[str, Schema]:
    """The action schemas, with the predicates named p0, p1, ..."""
    sets: dict[str, tuple[set[Literal], set[Literal], set[Literal]]] = {
        arguments(action)[0]: (set(), set(), set()) for action in actions
    }
    for number, each in enumerate(chosen):
        for which, part in enumerate((each.pre, each.add, each.delete)):
            for slot in bits(part):
                schema, places = each.signature.slots[slot]
                sets[schema][which].add((f"p{number}", places))
    return {schema: Schema(*(frozenset(part) for part in parts)) for schema, parts in sets.items()}
