"""An action model by atoms: which actions require, add and delete each of them, as in theta."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from statewise.strips.model.model import ActionModel, bits

ActionSet = int
"""A set of actions, as bits."""


@dataclass(frozen=True)
class Head:
    """One atom with the actions that require, add and delete it."""

    name: str
    pre: ActionSet
    add: ActionSet
    delete: ActionSet

    @property
    def touching(self) -> ActionSet:
        """The actions that add or delete the atom: the head's keys."""
        return self.add | self.delete

    @property
    def idle(self) -> bool:
        """Whether the head can reject nothing, because no action deletes or no action requires its atom."""
        return not (self.pre and self.delete)

    def covers(self, other: Head) -> bool:
        """Whether its columns imply that it rejects all that `other` rejects. Sufficient, not necessary."""
        return not (other.pre & ~self.pre or other.delete & ~self.delete or self.add & ~other.add)


def heads(model: ActionModel) -> list[Head]:
    """The model's atoms, each with its actions."""
    columns = [[0, 0, 0] for _ in model.atoms]
    for number, action in enumerate(model.actions):
        for which, atoms in enumerate((action.pre, action.add & ~action.delete, action.delete)):
            for atom in bits(atoms):
                columns[atom][which] |= 1 << number
    return [Head(name, *column) for name, column in zip(model.atoms, columns)]


def uncovered(wanted: Iterable[Head], given: Sequence[Head]) -> list[Head]:
    """The heads of `wanted` that are neither idle nor covered by one of `given`: these need a search."""
    same = {(head.pre, head.add, head.delete) for head in given}
    return [
        head
        for head in wanted
        if not head.idle
        and (head.pre, head.add, head.delete) not in same
        and not any(other.covers(head) for other in given)
    ]
