"""What the atoms of a learned model mean in the states of a true one.

Learned atoms need not be the true ones: two models can judge all traces alike with atoms that stand for other sets of
states. So a planning problem is not carried over atom by atom. For every real state it is found out which learned atoms
are false there after some history (one that ends in the state and left them known to be false), and which are true
after some way from the initial state, in which those atoms are false that any history makes false. A goal is then said
by all learned atoms that are false in no state where it holds, provided that no other state can have them all; over the
states of a finite domain this is exact, or it is found impossible.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from statewise.strips.domains import Domain
from statewise.strips.model import ActionModel, Atoms, bits

LIMIT = 20_000
"""Real states at most: meanings are found by going through all of them."""


@dataclass(frozen=True)
class Meaning:
    """Learned atoms in the real states that can be reached from an initial one, which comes first."""

    states: Sequence[Atoms]
    false_in: Sequence[Atoms]
    """For each state the learned atoms that are false in it after some history."""
    true_in: Sequence[Atoms]
    """For each state the learned atoms that are true in it after some way from the initial state."""
    initial: Atoms
    """The learned atoms that are true at the start."""

    def of(self, goal: Atoms) -> Atoms | None:
        """Learned atoms that together are true only where all true atoms of `goal` hold.

        If they cannot say the goal as such, they say one of the states where it holds, of those that can be said the
        nearest to the initial one. If that cannot be proven of any, all that is sure to be true in the nearest: a plan
        that reaches it must be checked. None if the goal cannot be reached.
        """
        there = [place for place, state in enumerate(self.states) if not goal & ~state]
        elsewhere = {true for state, true in zip(self.states, self.true_in) if goal & ~state}
        if not there:
            return None
        every = self.initial
        for true in self.true_in:
            every |= true
        ever_false = 0
        for place in there:
            ever_false |= self.false_in[place]
        for false in (ever_false, *(self.false_in[place] for place in there)):
            said = every & ~false
            if all(said & ~true for true in elsewhere):
                return _fewest(said, elsewhere)
        return every & ~self.false_in[there[0]]


def meaning(learned: ActionModel, domain: Domain, initial: Atoms) -> Meaning | None:
    """What learned atoms mean in a domain over the same actions, for a plan that begins in the real state `initial`.

    None if more than `LIMIT` states can be reached. Raises `ValueError` if the actions differ.
    """
    true = domain.model.with_actions(learned.names)
    states = true.reachable([initial], limit=LIMIT + 1)
    if len(states) > LIMIT:
        return None
    place = {state: at for at, state in enumerate(states)}
    steps = [[(number, place[true.result(state, number)]) for number in true.applicable(state)] for state in states]
    false_in, true_in = [0] * len(states), [0] * len(states)

    def spread(known: list[Atoms], waiting: list[int], *, of_false: bool) -> None:
        """Until nothing more can be known of any state."""
        seen = set(waiting)
        while waiting:
            at = waiting.pop()
            seen.discard(at)
            for number, after in steps[at]:
                action = learned.actions[number]
                gained, lost = (action.delete, action.add) if of_false else (action.add, action.delete)
                more = known[after] | known[at] & ~lost | gained
                if more != known[after]:
                    known[after] = more
                    if after not in seen:
                        seen.add(after)
                        waiting.append(after)

    spread(false_in, list(range(len(states))), of_false=True)
    start = ((1 << len(learned.atoms)) - 1) & ~false_in[0]
    true_in[0] = start
    spread(true_in, list(range(len(states))), of_false=False)
    return Meaning(states, false_in, true_in, start)


def _fewest(said: Atoms, elsewhere: Set[Atoms]) -> Atoms:
    """Leaves out atoms that say nothing more: without them, too, no state elsewhere has them all."""
    for each in bits(said):
        rest = said & ~(1 << each)
        if all(rest & ~true for true in elsewhere):
            said = rest
    return said
