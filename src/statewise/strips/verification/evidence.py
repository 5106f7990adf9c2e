"""What a trace shows about the atoms of a model: at its beginning, and after it.

An atom that an action requires before anything affects it was true at the beginning. If its first effect comes before
any action requires it, it was probably changed by that effect: false before an add, true before a delete. This is an
assumption, not a proof. Nothing is known about all other atoms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from statewise.strips.model.model import ActionModel, Atoms


@dataclass(frozen=True)
class Evidence:
    """Sets of atoms of a model, from one valid trace."""

    required: Atoms
    """True at the beginning: required before any effect."""
    added: Atoms
    """Added by their first effect, and not required before: assumed to be false at the beginning."""
    deleted: Atoms
    """Deleted by their first effect, and not required before: assumed to be true at the beginning."""
    true: Atoms
    """True after the trace: required or added, and not deleted since."""
    false: Atoms
    """False after the trace."""
    achieved: Atoms
    """The atoms that are true after the trace and were affected: the last effect added them."""


def evidence_of(model: ActionModel, trace: Iterable[int]) -> Evidence:
    """What a trace, given as action numbers, shows, if all its actions are valid."""
    required = added = deleted = true = false = affected = 0
    for number in trace:
        action = model.actions[number]
        add, delete = action.add & ~action.delete, action.delete
        new = ~(affected | required)
        required |= action.pre & ~affected
        new &= ~action.pre
        added |= add & new
        deleted |= delete & new
        affected |= add | delete
        true = (true | action.pre | add) & ~delete
        false = false & ~add | delete
    return Evidence(required, added, deleted, true, false, true & affected)


def accepted(model: ActionModel, names: Sequence[str], what: str) -> list[int]:
    """The numbers of the actions of a trace. Raises `ValueError` for an unknown action, and for one that the model
    rejects; `what` names the trace in the message."""
    numbers = []
    for name in names:
        if name not in model.number:
            raise ValueError(f"{what}: {name!r} is not an action of the model")
        numbers.append(model.number[name])
    at = model.first_rejected(numbers)
    if at is not None:
        missing = model.spelled(model.actions[numbers[at]].pre & model.after(numbers[:at]))
        raise ValueError(
            f"{what}: the model rejects action {at + 1}, {names[at]!r}, which requires {', '.join(missing)}: the model "
            "is wrong, or the trace is not valid"
        )
    return numbers
