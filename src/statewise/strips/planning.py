"""Plans with a learned action model: a planner finds the plan, and independent code checks it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from statewise.strips.mapping import match_atoms
from statewise.strips.meaning import meaning
from statewise.strips.model import ActionModel, Atoms, bits
from statewise.strips.pddl import Problem, validated
from statewise.strips.planner import chosen, find_plan


class UnmatchedGoal(ValueError):
    """The goal has an atom that matches no learned atom."""


@dataclass(frozen=True)
class Plan:
    """The result of planning."""

    actions: tuple[str, ...] | None
    """Names of the actions, in order; None if there is no plan in the learned model."""
    valid_in_model: bool | None
    """Whether the learned model accepts every action and the goal holds at the end; None without a plan."""
    valid_in_problem: bool | None
    """The same in the true problem; None without a problem or a plan."""
    mapping: Mapping[str, str]
    """How the problem was translated to learned atoms; empty without one. With meanings: the goal, and the learned
    atoms that express it. With names: the problem's atom for each learned atom."""
    seconds: float
    """Time of the planner, including its start."""
    planner: str


def plan(
    learned: ActionModel,
    *,
    goal: Sequence[str] | None = None,
    after: Sequence[str] | None = None,
    problem: Problem | None = None,
    mapping: Mapping[str, str] | str = "auto",
    planner: str = "auto",
    timeout: float = 60.0,
) -> Plan:
    """Finds actions that reach a goal in a learned model.

    Either `goal` names learned atoms that must be true at the end, and `after` the actions executed so far: atoms known
    false after them are initially false, all others true (Definition 1 of the STRIPS Transformer paper). Or `problem`
    is a true planning problem over the same actions, whose initial state and goal are translated to learned atoms by
    `mapping`, the problem's atom for each learned atom. `meanings` uses the meaning of the learned atoms in the true
    states (`meaning.meaning`); `names` matches atoms one to one by the actions that use them (`mapping.match_atoms`; an
    unmatched learned atom is initially true); `auto` uses meanings where possible: if the domain has few enough states
    and learned atoms express the goal. All three use the true model.

    An action of the problem that the learned model lacks has no effects there, and so is in no plan.

    Every plan is checked by simulating it in the learned model; with a problem, also in the true model, and by
    unified-planning's validator if the problem was read from PDDL that it can read. No plan is a result, not an error.
    Raises `ValueError` for unknown names and an unknown or missing planner, and its subclasses `UnmatchedGoal` for a
    goal atom that matches no learned atom and `PlannerTimeout` after `timeout` seconds.
    """
    if (goal is None) == (problem is None):
        raise ValueError("planning needs either a goal in learned atoms or a problem")
    used = chosen(planner)
    names: dict[str, str] = {}
    if problem is not None:
        if after is not None:
            raise ValueError("a problem has its own initial state: `after` goes with a goal in learned atoms")
        learned = learned.covering(problem.domain.model.names)
        put = _by_meaning(learned, problem) if mapping in ("auto", "meanings") else None
        if put is None and mapping == "meanings":
            raise UnmatchedGoal("no learned atoms express the goal, or the domain has too many states to decide")
        if put is None:
            names = _names(learned, problem, mapping)
            put = names, *_translated(learned, problem, names)
        names, start, wanted = put
    else:
        assert goal is not None
        known_false = learned.after(_numbers(learned, after or ()))
        start, wanted = _all_atoms(learned) & ~known_false, _named(learned, goal)
    begun = time.perf_counter()
    found = find_plan(learned, start, wanted, used, timeout)
    seconds = time.perf_counter() - begun
    if found is None:
        return Plan(None, None, None, names, seconds, used)
    actions = tuple(learned.names[number] for number in found)
    fine = _reaches(learned, start, found, wanted)
    truly: bool | None = None
    if problem is not None:
        truly = problem.solved_by(actions) and (problem.files is None or validated(problem.files, actions) is not False)
    return Plan(actions, fine, truly, names, seconds, used)


def _by_meaning(learned: ActionModel, problem: Problem) -> tuple[dict[str, str], Atoms, Atoms] | None:
    """The goal's translation, then initial state and goal in learned atoms; None if they cannot express the goal."""
    found = meaning(learned, problem.domain, problem.initial)
    wanted = found.of(problem.goal) if found is not None else None
    if found is None or wanted is None:
        return None
    goal = " and ".join(problem.domain.model.spelled(problem.goal))
    return {goal: " and ".join(learned.spelled(wanted)) or "always"}, found.initial, wanted


def _names(learned: ActionModel, problem: Problem, mapping: Mapping[str, str] | str) -> dict[str, str]:
    """The problem's atom for each matched learned atom."""
    true = problem.domain.model
    if isinstance(mapping, str):
        if mapping not in ("auto", "names"):
            raise ValueError(
                "the mapping must be auto, meanings, names, or the problem's atom for each learned atom, not "
                + repr(mapping)
            )
        return match_atoms(learned, true).as_names()
    _named(learned, mapping)
    _named(true, mapping.values())
    if len(set(mapping.values())) < len(mapping):
        raise ValueError("the mapping assigns one atom of the problem to two learned atoms")
    return dict(mapping)


def _translated(learned: ActionModel, problem: Problem, names: Mapping[str, str]) -> tuple[Atoms, Atoms]:
    """Initial state and goal of the problem in learned atoms."""
    true = problem.domain.model
    place = {name: at for at, name in enumerate(true.atoms)}
    stands_for = {at: place[names[name]] for at, name in enumerate(learned.atoms) if name in names}
    missing = [true.atoms[at] for at in bits(problem.goal) if at not in stands_for.values()]
    if missing:
        raise UnmatchedGoal(f"no learned atom matches the goal atom {missing[0]!r}: the goal cannot be translated")
    start = _all_atoms(learned)
    goal = 0
    for mine, theirs in stands_for.items():
        if not problem.initial >> theirs & 1:
            start &= ~(1 << mine)
        if problem.goal >> theirs & 1:
            goal |= 1 << mine
    return start, goal


def _reaches(model: ActionModel, state: Atoms, found: Sequence[int], goal: Atoms) -> bool:
    """Whether the actions are applicable in turn and the goal holds at the end."""
    for number in found:
        if model.actions[number].pre & ~state:
            return False
        state = model.result(state, number)
    return not goal & ~state


def _all_atoms(model: ActionModel) -> Atoms:
    return (1 << len(model.atoms)) - 1


def _named(model: ActionModel, names: Iterable[str]) -> Atoms:
    place = {name: 1 << at for at, name in enumerate(model.atoms)}
    total = 0
    for name in names:
        if name not in place:
            raise ValueError(f"{name!r} is not an atom of the model{_some(model.atoms)}")
        total |= place[name]
    return total


def _numbers(model: ActionModel, names: Sequence[str]) -> list[int]:
    for name in names:
        if name not in model.number:
            raise ValueError(f"{name!r} is not an action of the model{_some(model.names)}")
    return [model.number[name] for name in names]


def _some(names: Sequence[str]) -> str:
    return f"; there are {', '.join(names[:8])}{', ...' if names[8:] else ''}"
