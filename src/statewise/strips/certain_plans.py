"""Plans whose every step is certain: accepted by every model that explains the training traces.

A step that is a guess is excluded by an atom of its own, which explains the training traces and rejects this step: x
deletes it, the step's action requires it, and all actions add it that were not between them. With this atom the model
is planned with again, until a plan has no guess or there is no plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from statewise.strips.exact.verdicts import Seen
from statewise.strips.model import ActionModel
from statewise.strips.planning import Plan

GUARD = "certain-only "
"""How the names of the added atoms begin."""


class CertainPlan(NamedTuple):
    """A plan and its steps."""

    plan: Plan
    certain: list[bool]
    """For each step whether every model that explains the training traces accepts it after those before."""


def certain_steps(seen: Seen, after: Sequence[str], plan: Plan) -> list[bool]:
    """For each step of the plan whether it is certain after the actions `after`."""
    return seen.certain_steps([*after, *(plan.actions or ())])[len(after) :]


def certain_plan(
    model: ActionModel,
    seen: Seen,
    planned: Callable[[ActionModel, float], Plan],
    *,
    after: Sequence[str] = (),
    timeout: float = 60.0,
) -> CertainPlan:
    """A plan without guesses. `planned` plans with a model within a number of seconds. Its `actions` are None if there
    is no such plan. Raises `ValueError` for learned schemas, and as `planned` does, `PlannerTimeout` too."""
    if seen.lifted is not None:
        raise ValueError("plans of certain steps only need a ground model: learn without --lifted")
    end = time.monotonic() + timeout
    while True:
        found = planned(model, max(0.1, end - time.monotonic()))
        certain = certain_steps(seen, after, found)
        if all(certain):
            return CertainPlan(found, certain)
        model = _guarded(model, seen, [*after, *(found.actions or ())], len(after) + certain.index(False))


def _guarded(model: ActionModel, seen: Seen, names: Sequence[str], step: int) -> ActionModel:
    """The model with an atom that rejects the action at `step`."""
    guard = seen.guard(names, step)
    assert guard is not None
    kept, deleting, requiring = guard
    number = sum(atom.startswith(GUARD) for atom in model.atoms)
    atom = f"{GUARD}{number}"
    effects = {
        action.name: (
            [*model.spelled(action.pre), *([atom] if action.name == requiring else [])],
            [*model.spelled(action.add), *([atom] if action.name not in kept else [])],
            [*model.spelled(action.delete), *([atom] if action.name in deleting else [])],
        )
        for action in model.actions
    }
    return ActionModel.of([*model.atoms, atom], effects)
