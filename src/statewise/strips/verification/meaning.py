"""What the atoms of a learned model mean in the states of the true model.

Learned atoms need not be the true ones: two models can accept the same traces with atoms that denote different sets of
states. So a planning problem is not translated atom by atom. For every real state this finds the learned atoms that are
false there after some history (one that ends in the state and leaves them known to be false), and those that are true
after some path from the initial state, where every atom that some history makes false starts false. A goal translates
to all learned atoms that are false in no goal state, provided that they are never all true in another state. Over a
finite domain this translation is exact, or proven not to exist.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from statewise.strips.model.model import ActionModel, Atoms, bits
from statewise.strips.trace_data.domains import Domain

LIMIT = 20_000
"""The largest number of real states, all of which are enumerated."""


@dataclass(frozen=True)
class Meaning:
    """Learned atoms in the real states reachable from an initial one, which comes first."""

    states: Sequence[Atoms]
    false_in: Sequence[Atoms]
    """The learned atoms that are false in each state after some history."""
    true_in: Sequence[Atoms]
    """The learned atoms that are true in each state after some path from the initial state."""
    initial: Atoms
    """The learned atoms that are true at the start."""

    def of(self, goal: Atoms) -> Atoms | None:
        """Learned atoms that are all true only in states where all true atoms of `goal` hold.

        If no set of learned atoms expresses the goal, returns a set that expresses a single goal state, the one nearest
        to the initial state that can be expressed. If no goal state can, returns all learned atoms that are certainly
        true in the nearest goal state: a plan that reaches these must be checked. None if there are no such atoms, or
        if the goal cannot be reached.
        """
        goal_states = [place for place, state in enumerate(self.states) if not goal & ~state]
        elsewhere = {true for state, true in zip(self.states, self.true_in) if goal & ~state}
        if not goal_states:
            return None
        every = self.initial
        for true in self.true_in:
            every |= true
        ever_false = 0
        for place in goal_states:
            ever_false |= self.false_in[place]
        for false in (ever_false, *(self.false_in[place] for place in goal_states)):
            atoms = every & ~false
            if all(atoms & ~true for true in elsewhere):
                return _minimal(atoms, elsewhere)
        return every & ~self.false_in[goal_states[0]] or None


def meaning(learned: ActionModel, domain: Domain, initial: Atoms) -> Meaning | None:
    """The meaning of learned atoms in a domain over the same actions, for plans from the real state `initial`.

    None if more than `LIMIT` states are reachable. Raises `ValueError` if the actions differ.
    """
    true = domain.model.with_actions(learned.names)
    states = true.reachable([initial], limit=LIMIT + 1)
    if len(states) > LIMIT:
        return None
    place = {state: at for at, state in enumerate(states)}
    steps = [[(number, place[true.result(state, number)]) for number in true.applicable(state)] for state in states]
    false_in, true_in = [0] * len(states), [0] * len(states)

    def spread(known: list[Atoms], waiting: list[int], *, of_false: bool) -> None:
        """Propagates to a fixpoint."""
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


def _minimal(atoms: Atoms, elsewhere: Set[Atoms]) -> Atoms:
    """Drops atoms that are not needed: the others are not all true in any state of `elsewhere` either."""
    for each in bits(atoms):
        rest = atoms & ~(1 << each)
        if all(rest & ~true for true in elsewhere):
            atoms = rest
    return atoms
