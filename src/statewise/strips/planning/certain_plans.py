"""Plans whose every step is certain: accepted by every model that explains the training traces.

A step that is a guess is excluded by a new atom, which explains the training traces and rejects this step: x deletes
it, the action of the step requires it, and all actions add it that did not happen between them in such a way. Schemas
have one such atom for each tuple of objects. Planning is repeated with these *guards*, until a plan has no guess or
there is no plan. Actions about which nothing is known are left out from the beginning."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from statewise.strips.exact.verdicts import Seen
from statewise.strips.model.heads import Head
from statewise.strips.model.model import Action, ActionModel
from statewise.strips.planning.plans import Plan


class CertainPlan(NamedTuple):
    """A plan and its steps."""

    plan: Plan
    certain: list[bool]
    """For each step, whether every model that explains the training traces accepts it after the steps before."""


def certain_steps(seen: Seen, after: Sequence[str], plan: Plan) -> list[bool]:
    """For each step of the plan, whether it is certain after the actions `after`."""
    return seen.certain_steps([*after, *(plan.actions or ())])[len(after) :]


def certain_plan(
    actions: Sequence[str],
    seen: Seen,
    planned: Callable[[ActionModel, float, Collection[str]], Plan],
    *,
    after: Sequence[str] = (),
    timeout: float = 60.0,
) -> CertainPlan:
    """A plan over `actions` without guesses. `planned` makes a plan with guards (a model over the same actions, at
    first without atoms) in a number of seconds and without some of the actions (`plans.plan`). The `actions` of the
    plan are None if there is no such plan. Raises what `planned` raises, such as `PlannerTimeout`."""
    end = time.monotonic() + timeout
    unknown = frozenset(name for name in actions if not seen.fits(name))
    guards: dict[tuple[int, int, int], Head] = {}
    while True:
        found = planned(_as_model(list(guards.values()), actions), max(0.1, end - time.monotonic()), unknown)
        certain = certain_steps(seen, after, found)
        if all(certain):
            return CertainPlan(found, certain)
        before = len(guards)
        for step in (at for at, sure in enumerate(certain) if not sure):
            for head in seen.guards([*after, *(found.actions or ())], len(after) + step, actions):
                guards[head.pre, head.add, head.delete] = head
        if len(guards) == before:  # something unknown happened before the plan, so no step is certain
            return CertainPlan(Plan(None, None, None, found.mapping, found.seconds, found.planner, found.goal), [])


def _as_model(heads: Sequence[Head], actions: Sequence[str]) -> ActionModel:
    """The heads as a model over the actions."""

    def of(action: int, which: str) -> int:
        return sum((getattr(head, which) >> action & 1) << place for place, head in enumerate(heads))

    made = (Action(name, *(of(at, which) for which in ("pre", "add", "delete"))) for at, name in enumerate(actions))
    return ActionModel(tuple(f"guard {place}" for place in range(len(heads))), tuple(made))
