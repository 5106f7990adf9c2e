"""Which learned atom is which atom of a reference model: learned atoms have no names of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from statewise.strips.model import ActionModel

KINDS = ("pre", "add", "delete")
CLEAR = 0.7
"""Overlap from which on a learned atom gets the reference atom's name: below it the name would say what is not so."""


@dataclass(frozen=True)
class Match:
    """A one-to-one matching of learned atoms to reference atoms."""

    learned: tuple[str, ...]
    """Names of all learned atoms."""
    reference: tuple[str, ...]
    """Names of all reference atoms."""
    pairs: tuple[tuple[int, int], ...]
    """Numbers of matched atoms, (learned, reference), in the order of the learned ones."""
    scores: tuple[float, ...]
    """The overlap of each pair, above 0, at most 1."""

    @property
    def unmatched_learned(self) -> tuple[int, ...]:
        """Numbers of the learned atoms that resemble no reference atom that was left for them."""
        matched = {mine for mine, _ in self.pairs}
        return tuple(at for at in range(len(self.learned)) if at not in matched)

    @property
    def unmatched_reference(self) -> tuple[int, ...]:
        """Numbers of the reference atoms that no learned atom was matched to."""
        matched = {theirs for _, theirs in self.pairs}
        return tuple(at for at in range(len(self.reference)) if at not in matched)

    def as_names(self, overlap: float = 0.0) -> dict[str, str]:
        """The reference atom's name for each learned atom's name that was matched with at least so much overlap."""
        return {
            self.learned[mine]: self.reference[theirs]
            for (mine, theirs), score in zip(self.pairs, self.scores)
            if score >= overlap
        }

    def as_text(self) -> str:
        """A line for each atom: pairs with their overlap, then what is unmatched on either side."""

        def lines() -> Iterator[str]:
            for (mine, theirs), score in zip(self.pairs, self.scores):
                yield f"{self.learned[mine]} = {self.reference[theirs]} ({score:.2f})"
            for mine in self.unmatched_learned:
                yield f"{self.learned[mine]} = nothing in the reference"
            for theirs in self.unmatched_reference:
                yield f"nothing learned = {self.reference[theirs]}"

        return "\n".join(lines())


def as_table(model: ActionModel) -> np.ndarray:
    """The model as booleans: [|F|, |A|, 3], the last axis being pre, add, delete."""
    table = np.zeros((len(model.atoms), len(model.actions), len(KINDS)), bool)
    for number, action in enumerate(model.actions):
        for kind, atoms in enumerate((action.pre, action.add, action.delete)):
            for atom in range(len(model.atoms)):
                table[atom, number, kind] = atoms >> atom & 1
    return table


def match_atoms(learned: ActionModel, reference: ActionModel) -> Match:
    """The matching with the largest sum of overlaps (the Hungarian method).

    An atom is the set of places, action x (pre, add, delete), where it occurs; the overlap of two atoms is the F1 score
    of these sets, 2 |both| / (|one| + |other|). Atoms without any overlap stay unmatched. Actions are matched by name:
    raises `ValueError` unless both models have the same.
    """
    from scipy.optimize import linear_sum_assignment

    mine, theirs = (
        as_table(model).reshape(len(model.atoms), -1).astype(np.float64)
        for model in (learned.with_actions(reference.names), reference)
    )
    overlap = 2 * mine @ theirs.T / np.maximum(mine.sum(1)[:, None] + theirs.sum(1)[None], 1)
    rows, columns = linear_sum_assignment(overlap, maximize=True)
    found = [(int(row), int(column)) for row, column in zip(rows, columns) if overlap[row, column] > 0]
    return Match(
        learned.atoms, reference.atoms, tuple(found), tuple(float(overlap[row, column]) for row, column in found)
    )


def renamed(learned: ActionModel, match: Match) -> ActionModel:
    """The learned model with the names of the reference atoms that are clearly the same (an overlap of `CLEAR`).

    Any other atom keeps its name, or is called `p0`, `p1`, ... where a matched one has that name now. `match` must
    be one of this model's atoms; raises `ValueError` otherwise.
    """
    if match.learned != learned.atoms:
        raise ValueError("the matching is of another model: its learned atoms are not those of this one")
    names = match.as_names(CLEAR)
    taken = {*match.reference, *learned.atoms}  # nor a name that meant another atom before
    used = set(names.values())
    chosen = []
    for name in learned.atoms:
        new = names.get(name, name)
        if name not in names and new in used:
            new = next(free for free in map("p{}".format, range(len(taken) + 1)) if free not in taken)
            taken.add(new)
        used.add(new)
        chosen.append(new)
    return ActionModel(tuple(chosen), learned.actions)
