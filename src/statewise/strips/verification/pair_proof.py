"""A lower bound on the length of a trace on which two models differ, by pairs of atoms, without enumerating states.

A trace that a head rejects and a model accepts is `a w c` (see `search`). For every pair of atoms this
over-approximates whether both can be true together after `a` and a number of further actions: the h^2 bound of planning
(Haslum and Geffner, *Admissible heuristics for optimal planning*, 2000). If the pairs of preconditions never become
possible for any action `c`, there is no such trace: induction over `w` excludes the pairs that stay impossible.

There are two kinds of atoms: those of the real state, true or false, and those of the accepting model, which are *fine*
unless they are known to be false (Definition 1). Without real states there are only the latter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from statewise.strips.model.heads import Head
from statewise.strips.model.model import Action, ActionModel, Atoms, bits
from statewise.strips.verification.search import Limits

Pairs = list[Atoms]
"""The atoms that may be true together with each atom, as bits; 0 if it can never be true. Symmetric."""


def pairs_of_states(states: Iterable[Atoms], atoms: int) -> Pairs:
    """The pairs of atoms that are true together in one of the states."""
    pairs = [0] * atoms
    for state in states:
        for atom in bits(state):
            pairs[atom] |= state
    return pairs


def spread(pairs: Pairs, actions: Iterable[Action], limits: Limits) -> Iterator[None]:
    """Adds to `pairs` those that one more action can make possible; yields after each action that added some. Raises
    `LimitReached`."""
    split = [(list(bits(each.pre)), each.pre, list(bits(each.add & ~each.delete)), each) for each in actions]
    while True:
        limits.look_at_the_clock()
        before, possible = list(pairs), _possible(pairs)
        for required, pre, added, action in split:
            holds = possible
            for atom in required:
                holds &= before[atom]
            if pre & ~holds:
                continue
            beside = (holds | action.add) & ~action.delete
            for atom in added:
                more = beside & ~pairs[atom]
                if more:
                    pairs[atom] |= more
                    for other in bits(more):
                        pairs[other] |= 1 << atom
        if pairs == before:
            return
        yield


def closed(pairs: Pairs, actions: Iterable[Action], limits: Limits) -> Pairs:
    """The pairs that any number of actions can make possible, beginning with `pairs`. Raises `LimitReached`."""
    reached = list(pairs)
    for _ in spread(reached, actions, limits):
        pass
    return reached


def together(pairs: Pairs, atoms: Atoms) -> Atoms | None:
    """The atoms that may be true together with each of `atoms`; None if these cannot all be true."""
    holds = _possible(pairs)
    for atom in bits(atoms):
        holds &= pairs[atom]
    return None if atoms & ~holds else holds


def after(pairs: Pairs, action: Action) -> Pairs | None:
    """The pairs that are possible right after the action; None if it is impossible."""
    holds = together(pairs, action.pre)
    if holds is None:
        return None
    added, kept = action.add & ~action.delete, holds & ~action.delete & ~action.add
    return [
        (kept | added) if added >> atom & 1 else (pairs[atom] & kept | added) if kept >> atom & 1 else 0
        for atom in range(len(pairs))
    ]


def _possible(pairs: Pairs) -> Atoms:
    return sum(1 << atom for atom, others in enumerate(pairs) if others)


class PairBound:
    """Bounds the length of the traces that a model accepts and a head of another model rejects.

    With `real`, the true model and the pairs of its atoms that are possible in real states, only traces count whose
    actions, except the last, are applicable in turn from a real state; with `last_is_done` the last one must be
    applicable, too. All models have the same actions in the same order.
    """

    def __init__(
        self, accepting: ActionModel, real: tuple[ActionModel, Pairs] | None, limits: Limits, *, last_is_done: bool
    ) -> None:
        self.limits = limits
        true, base = real if real is not None else (accepting.with_atoms([]), [])
        shift, fine = len(true.atoms), (1 << len(accepting.atoms)) - 1
        self.actions = [
            Action(
                one.name,
                state.pre | one.pre << shift,
                state.add & ~state.delete | (one.add & ~one.delete) << shift,
                state.delete | one.delete << shift,
            )
            for state, one in zip(true.actions, accepting.actions)
        ]
        states = _possible(base)
        self.pairs: Pairs = [
            *(others | fine << shift if others else 0 for others in base),
            *([states | fine << shift] * len(accepting.atoms)),
        ]
        """The pairs that are possible before `a`, where every atom of the accepting model is fine."""
        self.last = [
            action.pre if last_is_done else one.pre << shift for action, one in zip(self.actions, accepting.actions)
        ]
        """The atoms that each action requires as the last one, `c`."""

    def shortest(self, head: Head) -> int | None:
        """A lower bound on the number of actions; None if there is no such trace. Raises `LimitReached`."""
        between = [action for number, action in enumerate(self.actions) if not head.touching >> number & 1]
        goals = {self.last[number] for number in bits(head.pre)}
        all_begins = (after(self.pairs, self.actions[number]) for number in bits(head.delete))
        begins = [pairs for pairs in all_begins if pairs is not None]
        if not begins:
            return None
        bound = self._first(_union(begins), between, goals)
        if bound is None or len(begins) == 1:
            return bound
        return min((each for begin in begins if (each := self._first(begin, between, goals)) is not None), default=None)

    def _first(self, pairs: Pairs, actions: Sequence[Action], goals: Iterable[Atoms]) -> int | None:
        for length, _ in enumerate(chain([None], spread(pairs, actions, self.limits)), 2):
            if any(together(pairs, goal) is not None for goal in goals):
                return length
        return None


def _union(several: Sequence[Pairs]) -> Pairs:
    total = [0] * len(several[0])
    for pairs in several:
        total = [one | other for one, other in zip(total, pairs)]
    return total
