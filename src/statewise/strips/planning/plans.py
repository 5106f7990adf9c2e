"""Plans with a learned action model: a planner finds the plan, and independent code checks it.

In a *certain* plan every model that explains the training traces accepts every step (`certain_plan`). A step that is a
guess is excluded by a new atom, which explains the training traces and rejects this step: x deletes it, the action of
the step requires it, and all actions add it that did not happen between them in such a way. Schemas have one such atom
for each tuple of objects. Planning is repeated with these *guards*, until a plan has no guess or there is no plan.
Actions about which nothing is known are left out from the beginning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from statewise.strips.exact.verdicts import Seen
from statewise.strips.model.heads import Head, as_model
from statewise.strips.model.model import Action, ActionModel, Atoms, accepted, bits, evidence_of
from statewise.strips.model.schemas import wrapped
from statewise.strips.pddl.pddl import Problem, validated
from statewise.strips.planning.planner import chosen, find_plan
from statewise.strips.verification.mapping import match_atoms, meaning


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
    """Whether the plan solves the true problem; None without a problem or a plan."""
    mapping: Mapping[str, str]
    """How the problem was translated to learned atoms; empty without a problem. With meanings: the goal, and the
    learned atoms that express it. With names: the atom of the problem for each learned atom."""
    seconds: float
    """Time of the planner in seconds, including its start."""
    planner: str
    goal: tuple[str, ...] = ()
    """The learned atoms that must be true at the end."""
    assumed: tuple[str, ...] = ()
    """Learned atoms that the plan or the goal requires and that nothing shows to be true: they are only not known to be
    false. Empty with a problem."""

    def goal_lines(self, width: int) -> list[str]:
        """The translated problem, the goal and the assumed atoms, if there are any, in lines of at most `width`
        characters."""
        parts = {
            "the problem in learned atoms": [f"{one} = {other}" for one, other in self.mapping.items()],
            "goal": self.goal,
            "assumed to be true, since nothing shows that they are false": self.assumed,
        }
        return [line for what, atoms in parts.items() if atoms for line in wrapped(f"{what}: ", atoms, width, 2)]


def plan(
    learned: ActionModel,
    *,
    goal: Sequence[str] | None = None,
    goal_after: Sequence[str] | None = None,
    goal_possible: str | None = None,
    after: Sequence[str] | None = None,
    problem: Problem | None = None,
    mapping: Mapping[str, str] | str = "auto",
    guards: ActionModel | None = None,
    without: Collection[str] = (),
    planner: str = "auto",
    timeout: float = 60.0,
) -> Plan:
    """Finds actions that reach a goal in a learned model.

    Either `goal` names learned atoms that must be true at the end, and `after` the actions executed so far: atoms known
    false after them are initially false, all others true (Definition 1 of the STRIPS Transformer paper). `goal_after`
    gives the goal by an example, a valid trace: everything that is true after it. `goal_possible` names an action whose
    preconditions are the goal. For both, the plan begins after `after`, or where the example begins, with the atoms
    that the actions show to be true (`model.evidence_of`). Only if these are not enough, unknown atoms are assumed to
    be true, too, except those that the example achieves, and the plan names those that it needs (`Plan.assumed`). Or
    `problem` is a true planning problem over the same actions, whose initial state and goal are translated to learned
    atoms by `mapping`, the atom of the problem for each learned atom. `meanings` uses the meaning of the learned atoms
    in the true states (`mapping.meaning`); `names` matches atoms one to one by the actions that use them
    (`mapping.match_atoms`; an unmatched learned atom is initially true); `auto` uses meanings where possible: if the
    domain has few enough states and learned atoms express the goal. All three use the true model.

    `guards` is another model over the same actions that must also accept every step (`certain_plan`): its atoms are
    true at the start unless `after` deleted them, and are not part of the goal. No plan contains the actions `without`.

    An action of the problem that the learned model lacks has no effects there, so no plan contains it.

    Every plan is checked by simulating it in the learned model; with a problem, also in the true model, and by
    unified-planning's validator if the problem was read from PDDL that it can read. No plan is a result, not an error.
    Raises `ValueError` for unknown names, an example that the model rejects and an unknown or missing planner, and its
    subclasses `UnmatchedGoal` for a goal atom that matches no learned atom and `PlannerTimeout` after `timeout`
    seconds.
    """
    if sum(each is not None for each in (goal, goal_after, goal_possible, problem)) != 1:
        raise ValueError("planning needs one goal: learned atoms, an example, a possible action, or a problem")
    search = _Search(
        chosen(planner), timeout, guards or ActionModel((), learned.with_atoms([]).actions), frozenset(without)
    )
    if problem is None:
        return _planned_for(_task(learned, after, goal, goal_after, goal_possible), search.following(after or ()))
    if after is not None:
        raise ValueError("a problem has its own initial state: `after` needs a goal in learned atoms")
    learned = learned.covering(problem.domain.model.names)
    put = _by_meaning(learned, problem) if mapping in ("auto", "meanings") else None
    if put is None and mapping == "meanings":
        raise UnmatchedGoal("no learned atoms express the goal, or the domain has too many states to decide")
    if put is None:
        names = _names(learned, problem, mapping)
        put = names, *_translated(learned, problem, names)
    names, start, wanted = put
    begun = time.perf_counter()
    numbers = search.covering(learned.names).find(learned, start, wanted)
    seconds = time.perf_counter() - begun
    if numbers is None:
        return Plan(None, None, None, names, seconds, search.planner)
    actions = tuple(learned.names[number] for number in numbers)
    fine = _reaches(learned, start, numbers, wanted)
    truly = problem.solved_by(actions) and (problem.files is None or validated(problem.files, actions) is not False)
    return Plan(actions, fine, truly, names, seconds, search.planner)


@dataclass(frozen=True)
class _Search:
    """The options of a search for plans."""

    planner: str
    timeout: float
    guards: ActionModel
    """A model that must also accept every step."""
    without: frozenset[str] = frozenset()
    """The actions that no plan may contain."""
    known_false: Atoms = 0
    """The atoms of the guards that are false at the start."""

    def following(self, so_far: Sequence[str]) -> _Search:
        """The search with the guards as they are after these actions."""
        numbers = [self.guards.number[name] for name in so_far if name in self.guards.number]
        return replace(self, known_false=self.guards.after(numbers))

    def covering(self, names: Sequence[str]) -> _Search:
        """The search over more actions, in this order."""
        return replace(self, guards=self.guards.covering(names))

    def find(self, model: ActionModel, start: Atoms, goal: Atoms) -> list[int] | None:
        """Calls `find_plan` with the guards."""
        width = len(model.atoms)
        kept = [at for at, name in enumerate(model.names) if name not in self.without]
        both = tuple(
            Action(
                model.names[at],
                *(
                    getattr(model.actions[at], which) | getattr(self.guards.actions[at], which) << width
                    for which in ("pre", "add", "delete")
                ),
            )
            for at in kept
        )
        true_guards = _all_atoms(self.guards) & ~self.known_false
        numbers = find_plan(
            ActionModel((*model.atoms, *self.guards.atoms), both),
            start | true_guards << width,
            goal,
            self.planner,
            self.timeout,
        )
        return None if numbers is None else [kept[number] for number in numbers]


@dataclass(frozen=True)
class _Task:
    """A goal in learned atoms."""

    model: ActionModel
    known: Atoms
    """The atoms known to be true at the start."""
    possible: Atoms
    """The atoms that are not known to be false at the start."""
    goal: Atoms
    achieve: Atoms = 0
    """Atoms of the goal that must be known to be true at the end, whatever is assumed at the start."""
    known_first: bool = True
    """Whether a plan from only the known atoms is preferred."""


def _task(
    model: ActionModel,
    after: Sequence[str] | None,
    goal: Sequence[str] | None,
    goal_after: Sequence[str] | None,
    goal_possible: str | None,
) -> _Task:
    so_far = _numbers(model, after or ())
    known, possible = evidence_of(model, so_far).true, _all_atoms(model) & ~model.after(so_far)
    if goal is not None:
        return _Task(model, known, possible, _named(model, goal), known_first=False)
    if goal_possible is not None:
        (number,) = _numbers(model, [goal_possible])
        return _Task(model, known, possible, model.actions[number].pre)
    example = evidence_of(model, accepted(model, goal_after or (), "the example of the goal"))
    if after is None:
        known, possible = example.required | example.deleted, possible & ~example.added
    return _Task(model, known, possible, example.true, example.achieved)


def _planned_for(task: _Task, search: _Search) -> Plan:
    model, begun = task.model, time.perf_counter()
    numbers = search.find(model, task.known, task.goal) if task.known_first else None
    fine = numbers is not None and _reaches(model, task.known, numbers, task.goal)
    if numbers is None:
        numbers, fine = _assuming(task, search)
    seconds = time.perf_counter() - begun
    goal = tuple(model.spelled(task.goal))
    if numbers is None:
        return Plan(None, None, None, {}, seconds, search.planner, goal)
    true, assumed = task.known, 0
    for number in numbers:
        action = model.actions[number]
        assumed |= action.pre & ~true
        true = (true | action.pre | action.add) & ~action.delete
    assumed |= task.goal & ~true
    names = tuple(model.names[number] for number in numbers)
    return Plan(names, fine, None, {}, seconds, search.planner, goal, tuple(model.spelled(assumed)))


def _assuming(task: _Task, search: _Search) -> tuple[list[int] | None, bool]:
    """A plan that assumes unknown atoms to be true, and whether it is valid. Each atom that must be achieved gets a
    second one, for whether it is known to be true, which the same actions add and delete and no action requires."""
    model, atoms = task.model, len(task.model.atoms)
    doubled = [*range(atoms), *bits(task.achieve)]
    both = model.with_atoms(doubled, [*model.atoms, *(f"{name} (known)" for name in model.spelled(task.achieve))])
    real = _all_atoms(model)
    both = ActionModel(both.atoms, tuple(replace(action, pre=action.pre & real) for action in both.actions))
    start, goal = task.possible, task.goal & ~task.achieve
    for place, atom in enumerate(bits(task.achieve), atoms):
        start |= (task.known >> atom & 1) << place
        goal |= 1 << place
    numbers = search.find(both, start, goal)
    return numbers, numbers is not None and _reaches(both, start, numbers, goal)


def _by_meaning(learned: ActionModel, problem: Problem) -> tuple[dict[str, str], Atoms, Atoms] | None:
    """The translation of the goal, then initial state and goal in learned atoms; None if they cannot express it."""
    translation = meaning(learned, problem.domain, problem.initial)
    wanted = translation.of(problem.goal) if translation is not None else None
    if translation is None or wanted is None:
        return None
    goal = " and ".join(problem.domain.model.spelled(problem.goal))
    return {goal: " and ".join(learned.spelled(wanted)) or "always"}, translation.initial, wanted


def _names(learned: ActionModel, problem: Problem, mapping: Mapping[str, str] | str) -> dict[str, str]:
    """The atom of the problem for each matched learned atom."""
    true = problem.domain.model
    if isinstance(mapping, str):
        if mapping not in ("auto", "names"):
            raise ValueError(
                "the mapping must be auto, meanings, names, or the atom of the problem for each learned atom, not "
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


def _reaches(model: ActionModel, state: Atoms, numbers: Sequence[int], goal: Atoms) -> bool:
    """Whether the actions are applicable in turn and the goal holds at the end."""
    for number in numbers:
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
    return f"; the model has {', '.join(names[:8]) or 'none'}{', ...' if names[8:] else ''}"


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
        result = planned(as_model(list(guards.values()), actions), max(0.1, end - time.monotonic()), unknown)
        certain = certain_steps(seen, after, result)
        if all(certain):
            return CertainPlan(result, certain)
        before = len(guards)
        for step in (at for at, sure in enumerate(certain) if not sure):
            for head in seen.guards([*after, *(result.actions or ())], len(after) + step, actions):
                guards.setdefault(head.parts, replace(head, name=f"guard {len(guards)}"))
        if len(guards) == before:  # something unknown happened before the plan, so no step is certain
            return CertainPlan(Plan(None, None, None, result.mapping, result.seconds, result.planner, result.goal), [])
