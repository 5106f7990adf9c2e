"""How learned atoms, which have no names of their own, correspond to the atoms of a true model.

`match_atoms` matches them one to one by the actions that use them. But learned atoms need not be the true ones: two
models can accept the same traces with atoms that denote different sets of states. So `meaning` translates a planning
problem by states, not by atoms. For every real state it finds the learned atoms that are false there after some history
(one that ends in the state and leaves them known to be false), and those that are true after some path from the initial
state, where every atom that some history makes false starts false. A goal translates to all learned atoms that are
false in no goal state, provided that they are never all true in another state. Over a finite domain this translation is
exact, or proven not to exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

import numpy as np

from statewise.strips.model.model import ActionModel, Atoms, bits
from statewise.strips.trace_data.domains import Domain

KINDS = ("pre", "add", "delete")
CLEAR = 0.7
"""The smallest overlap at which a learned atom gets the name of the reference atom: below, the name would mislead."""


@dataclass(frozen=True)
class Match:
    """A one-to-one matching of learned atoms to reference atoms."""

    learned: tuple[str, ...]
    """Names of all learned atoms."""
    reference: tuple[str, ...]
    """Names of all reference atoms."""
    pairs: tuple[tuple[int, int], ...]
    """Numbers of matched atoms, (learned, reference), sorted by learned atom."""
    scores: tuple[float, ...]
    """The overlap of each pair, in (0, 1]."""

    @property
    def unmatched_learned(self) -> tuple[int, ...]:
        """Numbers of the learned atoms without a reference atom."""
        matched = {mine for mine, _ in self.pairs}
        return tuple(at for at in range(len(self.learned)) if at not in matched)

    @property
    def unmatched_reference(self) -> tuple[int, ...]:
        """Numbers of the reference atoms without a learned atom."""
        matched = {theirs for _, theirs in self.pairs}
        return tuple(at for at in range(len(self.reference)) if at not in matched)

    def as_names(self, overlap: float = 0.0) -> dict[str, str]:
        """Maps learned names to reference names, for pairs with at least this overlap."""
        return {
            self.learned[mine]: self.reference[theirs]
            for (mine, theirs), score in zip(self.pairs, self.scores)
            if score >= overlap
        }

    def as_text(self) -> str:
        """One line for each atom: pairs with their overlap, then the unmatched atoms of both models."""

        def lines() -> Iterator[str]:
            for (mine, theirs), score in zip(self.pairs, self.scores):
                yield f"{self.learned[mine]} = {self.reference[theirs]} ({score:.2f})"
            for mine in self.unmatched_learned:
                yield f"{self.learned[mine]} = nothing in the reference"
            for theirs in self.unmatched_reference:
                yield f"nothing learned = {self.reference[theirs]}"

        return "\n".join(lines())


def as_table(model: ActionModel) -> np.ndarray:
    """The model as booleans [|F|, |A|, 3]; the last axis is pre, add, delete."""
    table = np.zeros((len(model.atoms), len(model.actions), len(KINDS)), bool)
    for number, action in enumerate(model.actions):
        for kind, atoms in enumerate(action.parts):
            for atom in range(len(model.atoms)):
                table[atom, number, kind] = atoms >> atom & 1
    return table


def match_atoms(learned: ActionModel, reference: ActionModel) -> Match:
    """The matching with the largest sum of overlaps (the Hungarian method).

    An atom is the set of entries, action x (pre, add, delete), where it occurs; the overlap of two atoms is the F1
    score of these sets, 2 |both| / (|one| + |other|). Atoms without any overlap stay unmatched. Actions are matched by
    name; an action that the learned model lacks has no entries. Raises `ValueError` if the reference lacks an action of
    the learned model.
    """
    from scipy.optimize import linear_sum_assignment

    mine, theirs = (
        as_table(model).reshape(len(model.atoms), len(model.actions) * len(KINDS)).astype(np.float64)
        for model in (learned.covering(reference.names), reference)
    )
    overlap = 2 * mine @ theirs.T / np.maximum(mine.sum(1)[:, None] + theirs.sum(1)[None], 1)
    rows, columns = linear_sum_assignment(overlap, maximize=True)
    pairs = [(int(row), int(column)) for row, column in zip(rows, columns) if overlap[row, column] > 0]
    return Match(
        learned.atoms, reference.atoms, tuple(pairs), tuple(float(overlap[row, column]) for row, column in pairs)
    )


def renamed(learned: ActionModel, match: Match) -> ActionModel:
    """Renames learned atoms to the reference atoms that they match with an overlap of at least `CLEAR`.

    Any other atom keeps its name, or is called `p0`, `p1`, ... where a matched one now has that name. Raises
    `ValueError` unless `match` was computed for this model.
    """
    if match.learned != learned.atoms:
        raise ValueError("the matching belongs to another model: its learned atoms differ from this model's")
    names = match.as_names(CLEAR)
    reserved = {*match.reference, *learned.atoms}  # names of other atoms are not reused either
    used = set(names.values())
    chosen = []
    for name in learned.atoms:
        new = names.get(name, name)
        if name not in names and new in used:
            new = next(free for free in map("p{}".format, range(len(reserved) + 1)) if free not in reserved)
            reserved.add(new)
        used.add(new)
        chosen.append(new)
    return ActionModel(tuple(chosen), learned.actions)


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
