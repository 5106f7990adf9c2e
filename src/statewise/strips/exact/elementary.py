"""Elementary predicates: atoms that need not alternate, and what the traces leave open.

A predicate rejects an action iff it was deleted and not added since. So it rejects what its *elementary* predicates
reject together: one for each slot x that deletes it and each slot c that requires it, with the same additions. An
elementary predicate accepts the valid traces iff its additions meet every seen window of (x, c); the strictest ones
have a minimal set of additions. A domain has tens of them, so that all can be weighed, whether they alternate or not.

Most reject nothing that the predicates already chosen allow. One is chosen if what it rejects in addition is worth its
description (`preconditions` has the code): at the places of the traces where the chosen predicates allow an action of
the schema of c, it never happened where the elementary predicate forbids it. If this saves fewer bits than describing
the predicate costs, the traces leave open whether c may follow x there: a *question*.

A predicate is known to be true if its complement is known to be false. Without this, places near the beginning of a
trace, where little is known, would support predicates that say nothing new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb, log2
from typing import NamedTuple

import numpy as np

from statewise.strips.exact.frame import Clock
from statewise.strips.exact.preconditions import bits_to_code
from statewise.strips.exact.predicates import Predicate, Signature, Slot, grounded
from statewise.strips.exact.windows import Windows
from statewise.strips.model.heads import ActionSet
from statewise.strips.model.model import bits
from statewise.strips.model.schemas import arguments
from statewise.strips.model.traces import Traces

WEIGHING = "weighing predicates that need not alternate"
AT_ONCE = 300
"""The number of predicates that are weighed at once."""
MOST_SETS = 100
"""While the sets of additions of a pair of slots are searched, only this many are kept: the smallest."""


class Question(NamedTuple):
    """A question that the traces leave open: whether an action may follow another."""

    action: str
    """The action, with x1, x2, ... for the arguments that matter, and ? for the others."""
    after: str
    """The action before it."""
    without: tuple[str, ...]
    """The actions that do not occur in between."""
    places: int
    """The number of places in the traces where the schemas allow the action and it did not happen."""
    expected: float
    """How often it would have happened there, at the rate at which the schema occurs where it is allowed."""


@dataclass(frozen=True)
class Weighed:
    """Elementary predicates, and what they would add to the chosen predicates."""

    offered: list[Predicate]
    places: np.ndarray
    """[E] the number of places and actions that each one rejects though the others allow them."""
    expected: np.ndarray
    """[E] how often these actions would have happened if they were allowed."""
    worth: np.ndarray
    """[E] the bits that each one saves, in units of its description."""

    def questions(self, actions: Sequence[str]) -> list[Question]:
        """The open questions, one for each pair of schemas, those with most evidence first."""
        widths = {schema: len(objects) for schema, objects in map(arguments, actions)}
        questions: dict[tuple[str, str], Question] = {}
        for place in np.argsort(-self.worth, kind="stable"):
            each = self.offered[place]
            x, c = (each.signature.slots[next(bits(part))] for part in (each.delete, each.pre))
            if self.expected[place] > 0 and (x[0], c[0]) not in questions:
                questions[x[0], c[0]] = Question(
                    _spelled(c, widths),
                    _spelled(x, widths),
                    tuple(_spelled(each.signature.slots[slot], widths) for slot in bits(each.add)),
                    int(self.places[place]),
                    round(float(self.expected[place]), 2),
                )
        return list(questions.values())


def elementary(windows: Mapping[Signature, Windows], clock: Clock) -> list[Predicate]:
    """The strictest elementary predicates with few additions that accept all valid traces; fewer if there is no time
    left."""
    predicates: list[Predicate] = []
    for signature, seen in windows.items():
        for x in range(len(signature.slots)):
            for c in range(len(signature.slots)):
                if not clock.has_time():
                    clock.cut.append("listing predicates that need not alternate")
                    return predicates
                predicates += [
                    Predicate(signature, 1 << c, add, 1 << x)
                    for add in smallest_meeting(seen.minimal.get((x, c), ()), x)
                ]
    return predicates


def smallest_meeting(windows: Sequence[ActionSet], x: int, most: int = MOST_SETS) -> list[ActionSet]:
    """The minimal sets without `x` that meet every window; the smallest ones if there are more than `most`."""
    sets = [0]
    for window in sorted(windows, key=int.bit_count):
        able = window & ~(1 << x)
        longer = {each | 1 << slot for each in sets if not each & window for slot in bits(able)}
        kept = [each for each in sets if each & window]
        sets = kept + [each for each in longer if not any(other & each == other for other in kept)]
        sets = sorted(sets, key=lambda each: (each.bit_count(), each))[:most]
    return sets


def chosen_elementary(
    chosen: Sequence[Predicate], offered: Sequence[Predicate], traces: Traces, clock: Clock
) -> tuple[list[Predicate], Weighed]:
    """The elementary predicates of `offered` that are worth their description in addition to those `chosen` and to each
    other; and the remaining ones that reject anything more, weighed in addition to all of these. Fewer are chosen if
    there is no time left.

    If one is chosen, those with the same additions that were worth it in addition to `chosen` alone are chosen, too: an
    action that deletes an atom may always follow another that deletes it."""
    worthy: list[Predicate] = []
    left = [each for each in offered if not any(other.covers(each) for other in chosen)]
    begin = weighed = weigh(chosen, left, traces, clock)
    while len(weighed.offered) and weighed.worth.max() >= 1 and clock.has_time():
        # among equals the one with most arguments: what was seen of one object says less about the others
        best = max(
            range(len(weighed.offered)), key=lambda at: (weighed.worth[at], len(weighed.offered[at].signature.sorts))
        )
        left = list(weighed.offered)
        worthy.append(left.pop(best))
        weighed = weigh([*chosen, *worthy], left, traces, clock)
    same = {(each.signature, each.add) for each in worthy}
    worthy += [
        each
        for each, worth in zip(begin.offered, begin.worth)
        if worth >= 1 and (each.signature, each.add) in same and each not in worthy
    ]
    return worthy, weighed


def weigh(chosen: Sequence[Predicate], offered: Sequence[Predicate], traces: Traces, clock: Clock) -> Weighed:
    """What the predicates of `offered`, each required by one slot, reject in addition to those `chosen`; without those
    that reject nothing more, and without those for which there is no time."""
    actions = traces.actions
    numbers, lengths, labels = traces.padded()
    acting = [np.flatnonzero(lengths - labels > at) for at in range(numbers.shape[1])]
    steps = [(going, numbers[going, at]) for at, going in enumerate(acting)]
    occurs, allowed, rejected = np.zeros(len(actions)), np.zeros(len(actions)), []
    beyond = np.zeros(len(offered))
    walk = _Walk(with_complements(chosen), actions, len(numbers)) if clock.has_time() else None
    for going, act in steps:
        if walk is None or not clock.has_time():
            clock.cut += [WEIGHING] * bool(offered)
            return Weighed([], np.zeros(0), np.zeros(0), np.zeros(0))
        rejected.append(walk.rejected(going))
        allowed += (~rejected[-1]).sum(0)
        occurs += np.bincount(act, minlength=len(actions))
        walk.step(going, act)
    for first in range(0, len(offered), AT_ONCE):
        some = offered[first : first + AT_ONCE]
        walk = _Walk(some, actions, len(numbers)) if clock.has_time() else None
        for (going, act), excluded in zip(steps, rejected):
            if walk is None or not clock.has_time():
                clock.cut.append(WEIGHING)
                beyond[first:] = 0
                offered = offered[:first]
                break
            more = walk.state[going][:, walk.head] & ~excluded[:, walk.action]
            beyond[first : first + len(some)] += np.bincount(walk.owner, more.sum(0), minlength=len(some))
            walk.step(going, act)
        if WEIGHING in clock.cut:
            break
    able = [int(place) for place in np.flatnonzero(beyond)]
    rejects = beyond[able]
    of_schema: dict[str, list[int]] = {}
    for number, action in enumerate(actions):
        of_schema.setdefault(arguments(action)[0], []).append(number)
    wanted = [of_schema[offered[place].signature.slots[next(bits(offered[place].pre))][0]] for place in able]
    k, n = (np.array([of[some].sum() for some in wanted]) for of in (occurs, allowed))
    saved = bits_to_code(k, n) - bits_to_code(k, n - rejects)
    pairs = sum(len(each.slots) ** 2 for each in {each.signature for each in offered})
    cost = np.array([description(offered[place], pairs) for place in able]) + log2(max(2.0, occurs.sum())) / 2
    return Weighed([offered[place] for place in able], rejects, rejects * k / np.maximum(n, 1), saved / cost)


def with_complements(predicates: Sequence[Predicate]) -> list[Predicate]:
    """The predicates, each also deleted by the slots that require its complement: these show that it is false. Slots
    that require both show nothing: nothing has changed the atoms of the objects with which they happened."""
    by_effect: dict[tuple[Signature, ActionSet, ActionSet], ActionSet] = {}
    for each in predicates:
        for pre, add, delete in each.mirrored():
            key = each.signature, add, delete
            by_effect[key] = by_effect.get(key, 0) | pre
    return [
        replace(
            each,
            delete=each.delete
            | by_effect.get((each.signature, each.delete, each.add), 0)
            & ~(each.add | by_effect[each.signature, each.add, each.delete]),
        )
        for each in predicates
    ]


def merged(predicates: Sequence[Predicate]) -> list[Predicate]:
    """Fewer predicates that reject the same as these elementary ones: those with the same additions that are required
    by the same slots are joined."""
    required: dict[tuple[Signature, ActionSet, ActionSet], ActionSet] = {}
    for each in predicates:
        key = each.signature, each.add, each.delete
        required[key] = required.get(key, 0) | each.pre
    deleted: dict[tuple[Signature, ActionSet, ActionSet], ActionSet] = {}
    for (signature, add, delete), pre in required.items():
        deleted[signature, add, pre] = deleted.get((signature, add, pre), 0) | delete
    return [Predicate(signature, pre, add, delete) for (signature, add, pre), delete in deleted.items()]


def description(each: Predicate, pairs: int) -> float:
    """Bits that name one of `pairs` pairs of slots, and a set of additions of its size."""
    slots = len(each.signature.slots)
    return log2(pairs) + log2(slots + 1) + log2(comb(slots, each.add.bit_count()))


def _spelled(slot: Slot, widths: Mapping[str, int]) -> str:
    """A slot as an action: x1, x2, ... for the arguments of the predicate, ? for the others."""
    schema, places = slot
    by_place = {at: f"x{number + 1}" for number, at in enumerate(places)}
    return " ".join((schema, *(by_place.get(at, "?") for at in range(widths[schema]))))


class _Walk:
    """Follows predicates through the traces, one action after the other."""

    def __init__(self, predicates: Sequence[Predicate], actions: Sequence[str], traces: int) -> None:
        heads, owner = grounded(predicates, actions)
        self._changed, self._delete = (heads.add | heads.delete).T.copy(), heads.delete.T.copy()
        self.state = np.zeros((traces, len(heads)), dtype=bool)
        """[N, H] the heads known to be false."""
        self.action, self.head = np.nonzero(heads.pre.T)
        """[P] the preconditions, in order of their actions: an action and a head that it requires."""
        self.owner = owner[self.head]
        """[P] the predicate of that head."""

    def rejected(self, going: np.ndarray) -> np.ndarray:
        """[n, A] the actions that are rejected now in each of the traces `going`."""
        rejected = np.zeros((len(going), len(self._changed)), dtype=bool)
        if len(self.action):
            first = np.flatnonzero(np.r_[True, np.diff(self.action) > 0])
            false = self.state[going][:, self.head]
            rejected[:, self.action[first]] = np.logical_or.reduceat(false, first, axis=1)
        return rejected

    def step(self, going: np.ndarray, act: np.ndarray) -> None:
        """In each of the traces `going` an action happens."""
        self.state[going] = self.state[going] & ~self._changed[act] | self._delete[act]
