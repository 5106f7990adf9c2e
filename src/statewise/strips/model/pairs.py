"""Which atoms may be true together, and which actions may ever be applied: the h^2 fixpoint on bit masks.

It over-approximates the pairs of atoms that some action sequence makes true together (Haslum and Geffner, *Admissible
heuristics for optimal planning*, 2000; its unit-cost fixpoint, with every finite value counted as possible). A pair
that it lacks is true in no reachable state; a pair that it has may be impossible, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from statewise.strips.model.model import Action, Atoms, bits

Pairs = list[Atoms]
"""The atoms that may be true together with each atom, as bits; 0 if it can never be true. Symmetric."""


def pairs_of_states(states: Iterable[Atoms], atoms: int) -> Pairs:
    """The pairs of atoms that are true together in one of the states."""
    pairs = [0] * atoms
    for state in states:
        for atom in bits(state):
            pairs[atom] |= state
    return pairs


def add_pairs(pairs: Pairs, atom: Atoms, others: Atoms) -> Atoms:
    """Adds the pairs of an atom, given by its number, with each of `others`; returns those of `others` that are new."""
    new = others & ~pairs[atom]
    pairs[atom] |= new
    for other in bits(new):
        pairs[other] |= 1 << atom
    return new


def closed(pairs: Pairs, actions: Iterable[Action], check_time: Callable[[], None] = lambda: None) -> Pairs:
    """The pairs that any number of actions can make possible, beginning with `pairs`. `check_time` is called
    often, and may raise an exception."""
    pairs, actions = list(pairs), list(actions)
    users: list[list[int]] = [[] for _ in pairs]
    free = [number for number, action in enumerate(actions) if not action.pre]
    for number, action in enumerate(actions):
        for atom in bits(action.pre):
            users[atom].append(number)
    due = set(range(len(actions)))
    while due:
        check_time()
        now, due = sorted(due), set()  # only actions whose preconditions' rows have grown can give something new
        for number in now:
            action = actions[number]
            holds = together(pairs, action.pre)
            if holds is None:
                continue
            if not all(pairs[atom] for atom in bits(action.add)):
                due.update(free)  # actions without preconditions may now happen beside an atom that is new
            for atom in bits(action.add):
                new = add_pairs(pairs, atom, action.add | holds & ~action.delete)
                for changed in (atom, *bits(new)) if new else ():
                    due.update(users[changed])
    return pairs


def together(pairs: Pairs, atoms: Atoms) -> Atoms | None:
    """The atoms that may be true together with each of `atoms`, including these; None if they cannot all be true."""
    if not atoms:
        return ever_true(pairs)
    holds = -1
    for atom in bits(atoms):
        holds &= pairs[atom]
    return None if atoms & ~holds else holds


def ever_true(pairs: Pairs) -> Atoms:
    """The atoms that may be true."""
    return sum(1 << atom for atom, others in enumerate(pairs) if others)
