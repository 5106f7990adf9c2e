"""Matches learned atoms, which have no names of their own, to the atoms of a reference model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from statewise.strips.model.model import ActionModel

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
        for kind, atoms in enumerate((action.pre, action.add, action.delete)):
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
    found = [(int(row), int(column)) for row, column in zip(rows, columns) if overlap[row, column] > 0]
    return Match(
        learned.atoms, reference.atoms, tuple(found), tuple(float(overlap[row, column]) for row, column in found)
    )


def renamed(learned: ActionModel, match: Match) -> ActionModel:
    """Renames learned atoms to the reference atoms that they match with an overlap of at least `CLEAR`.

    Any other atom keeps its name, or is called `p0`, `p1`, ... where a matched one now has that name. Raises
    `ValueError` unless `match` was computed for this model.
    """
    if match.learned != learned.atoms:
        raise ValueError("the matching belongs to another model: its learned atoms differ from this model's")
    names = match.as_names(CLEAR)
    taken = {*match.reference, *learned.atoms}  # names of other atoms are not reused either
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
