"""Which atoms can be true together, and which actions can ever be applied: the h^2 fixpoint on bit masks.

Over-approximates the pairs of atoms that some action sequence makes true together (Haslum and Geffner, *Admissible
heuristics for optimal planning*, 2000; its unit-cost fixpoint, with every finite value counted as possible). What it
rules out is impossible; what it keeps may be impossible, too.
"""

from __future__ import annotations

from statewise.strips.model.model import ActionModel, Atoms, bits


def reachable_pairs(model: ActionModel, *start_true: Atoms) -> list[Atoms]:
    """For each atom p the atoms that may be true together with it, as bits; 0 if p itself can never be true.

    Bit p of entry p is 1 if p can be true. `start_true` are the initial states, each the set of atoms that are true, or
    may be true together, in it. The result, |F| entries of |F| bits, is symmetric and sound: a pair that it lacks is
    true in no reachable state.
    """
    beside = [0] * len(model.atoms)
    for state in start_true:
        for atom in bits(state):
            beside[atom] |= state
    users: list[list[int]] = [[] for _ in model.atoms]
    free = []
    for number, action in enumerate(model.actions):
        for atom in bits(action.pre):
            users[atom].append(number)
        if not action.pre:
            free.append(number)
    due = set(range(len(model.actions)))
    while due:
        now, due = sorted(due), set()  # only actions whose preconditions' rows have grown can give something new
        for number in now:
            action = model.actions[number]
            holds = compatible(beside, action.pre)
            if holds is None:
                continue
            added = action.add & ~action.delete
            after = added | holds & ~action.delete
            if not all(beside[atom] for atom in bits(added)):
                due.update(free)  # actions without preconditions may now happen beside an atom that is new
            for atom in bits(added):
                news = after & ~beside[atom]
                if news:
                    beside[atom] |= news
                    due.update(users[atom])
                    for other in bits(news):
                        beside[other] |= 1 << atom
                        due.update(users[other])
    return beside


def compatible(beside: list[Atoms], atoms: Atoms) -> Atoms | None:
    """The atoms that may be true together with each of `atoms`, including these; None if they cannot all be true.

    `beside` is the result of `reachable_pairs`.
    """
    if not atoms:
        return sum(1 << place for place, others in enumerate(beside) if others)
    rows = (beside[atom] for atom in bits(atoms))
    holds = next(rows)
    for row in rows:
        holds &= row
    return None if atoms & ~holds else holds


def possible_actions(model: ActionModel, beside: list[Atoms]) -> list[int]:
    """Numbers of the actions that `reachable_pairs` does not rule out."""
    return [place for place, action in enumerate(model.actions) if compatible(beside, action.pre) is not None]
