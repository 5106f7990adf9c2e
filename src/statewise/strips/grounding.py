"""Grounds a lifted planning problem read by unified-planning.

unified-planning compiles away quantifiers, conditional effects and disjunctions; negative conditions are compiled away
here, with complementary atoms `not-...`. Then actions that the h^2 fixpoint rules out, and atoms that are always or
never true, are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from statewise.strips.model import Action, ActionModel, Atoms
from statewise.strips.reachability import possible_actions, reachable_pairs

RAN = "statewise-ran"
"""An effect added to every action during compilation: unified-planning drops actions without effects."""

Literal = tuple[str, bool]
"""A ground atom, and whether it is positive or negated."""


@dataclass(frozen=True)
class Ground:
    """A ground problem."""

    model: ActionModel
    initial: Atoms
    goal: Atoms


@dataclass
class _Variant:
    """A ground action, or one of several that it was compiled into."""

    name: str
    pre: set[Literal]
    effects: dict[str, bool]


def ground(problem: Any, environment: Any) -> Ground:
    """Grounds a `unified_planning` problem whose features have been checked.

    An action with a disjunction or a conditional effect is compiled into several: `schema#1 object`,
    `schema#2 object`, and so on. An atom that an action both adds and deletes is added, as in PDDL. Raises `ValueError`
    if the goal is not a conjunction of literals.
    """
    order = list(_atom_names(problem))
    initial = {_spelled(atom) for atom, value in problem.initial_values.items() if value.is_true()}
    goal = set(_literals(problem.goals))
    variants = list(_variants(problem, environment))
    affected = {atom for each in variants for atom in each.effects}
    static = {atom: atom in initial for atom in order if atom not in affected}
    kept = []
    for each in variants:  # unified-planning simplified static predicates; this simplifies single static atoms
        if all(static.get(atom, value) == value for atom, value in each.pre):
            each.pre = {literal for literal in each.pre if literal[0] not in static}
            kept.append(each)
    goal = {(atom, value) for atom, value in goal if static.get(atom) != value}
    denied = {atom for atom, value in goal.union(*(each.pre for each in kept)) if not value}
    names = [name for atom in order for name in ((atom, f"not-{atom}") if atom in denied else (atom,))]
    place = {name: 1 << at for at, name in enumerate(names)}

    def as_bits(literals: Iterable[Literal]) -> Atoms:
        total = 0
        for atom, value in literals:
            name = atom if value else f"not-{atom}"
            total |= place.get(name, 0)
        return total

    def as_action(each: _Variant) -> Action:
        made = each.effects.items()
        return Action(each.name, as_bits(each.pre), as_bits(made), as_bits((atom, not value) for atom, value in made))

    model = ActionModel(tuple(names), tuple(as_action(each) for each in kept))
    start = as_bits((atom, atom in initial) for atom in order)
    whole = pruned(Ground(model, start, as_bits(goal)))
    return Ground(_numbered_variants(whole.model), whole.initial, whole.goal)


def pruned(whole: Ground) -> Ground:
    """Drops actions that can never be applied, and atoms that are always or never true.

    Keeps a goal atom that can never be true, so that the problem stays unsolvable.
    """
    model = whole.model
    beside = reachable_pairs(model, whole.initial)
    actions = tuple(model.actions[number] for number in possible_actions(model, beside))
    deleted = added = 0
    for action in actions:
        deleted |= action.delete
        added |= action.add
    kept = []
    for at in range(len(model.atoms)):
        bit = 1 << at
        always = bool(whole.initial & bit) and not deleted & bit
        never = not beside[at]
        if not always and (not never or whole.goal & bit):
            kept.append(at)
    # renumber the initial state and the goal, too, as the two effects of an extra action
    carried = Action("", 0, whole.initial, whole.goal)
    moved = ActionModel(model.atoms, (*actions, carried)).with_atoms(kept)
    *rest, last = moved.actions
    return Ground(ActionModel(moved.atoms, tuple(rest)), last.add, last.delete)


def _variants(problem: Any, environment: Any) -> Iterator[_Variant]:
    """Ground actions with literals as preconditions, numbered: `schema object#0`, `schema object#1`, ..."""
    from unified_planning.engines import CompilationKind
    from unified_planning.model import Fluent
    from unified_planning.plans import ActionInstance

    ran = Fluent(RAN, environment.type_manager.BoolType(), environment=environment)
    marked = problem.clone()
    marked.add_fluent(ran, default_initial_value=False)
    for action in marked.actions:
        action.add_effect(ran, True)
    names = []
    compiled = marked
    for kind, compiler in (
        (CompilationKind.QUANTIFIERS_REMOVING, "up_quantifiers_remover"),
        (CompilationKind.GROUNDING, "up_grounder"),
        (CompilationKind.CONDITIONAL_EFFECTS_REMOVING, "up_conditional_effects_remover"),
        (CompilationKind.DISJUNCTIVE_CONDITIONS_REMOVING, "up_disjunctive_conditions_remover"),
    ):
        with environment.factory.Compiler(name=compiler) as engine:
            result = engine.compile(compiled, kind)
        compiled = result.problem
        names.append(result.map_back_action_instance)
    for number, action in enumerate(compiled.actions):
        instance = ActionInstance(action)
        for back in reversed(names):
            instance = back(instance)
            if instance is None:
                break
        if instance is None:
            continue  # an artificial action that unified-planning adds for a goal with a disjunction
        effects: dict[str, bool] = {}
        for effect in action.effects:
            atom, value = _spelled(effect.fluent), effect.value.is_true()
            if atom != RAN:
                effects[atom] = effects.get(atom, False) or value
        name = " ".join((instance.action.name, *map(str, instance.actual_parameters)))
        yield _Variant(f"{name}#{number}", set(_literals(action.preconditions)), effects)


def _numbered_variants(model: ActionModel) -> ActionModel:
    """Drops variants with the effects and more preconditions than another; numbers the rest if there are several."""
    by_name: dict[str, list[Action]] = {}
    for action in model.actions:
        by_name.setdefault(action.name.rpartition("#")[0], []).append(action)
    numbered: list[Action] = []
    for name, group in by_name.items():
        variants = sorted({(each.pre, each.add, each.delete) for each in group})
        needed = [
            one
            for one in variants
            if not any(other != one and other[1:] == one[1:] and not other[0] & ~one[0] for other in variants)
        ]
        schema, _, objects = name.partition(" ")
        for number, variant in enumerate(needed, 1):
            numbered.append(Action(f"{schema}#{number} {objects}".strip() if needed[1:] else name, *variant))
    return ActionModel(model.atoms, tuple(numbered))


def _atom_names(problem: Any) -> Iterator[str]:
    """Every ground atom of the problem, in declaration order."""
    for fluent in problem.fluents:
        if fluent.type.is_bool_type():
            for objects in product(*(list(problem.objects(each.type)) for each in fluent.signature)):
                yield " ".join((fluent.name, *(each.name for each in objects)))


def _literals(conditions: Iterable[Any]) -> Iterator[Literal]:
    """The literals of a conjunction. Raises `ValueError` for anything else."""
    todo = list(conditions)
    while todo:
        each = todo.pop()
        if each.is_and():
            todo.extend(each.args)
        elif each.is_true():
            continue
        elif each.is_fluent_exp():
            yield _spelled(each), True
        elif each.is_not() and each.arg(0).is_fluent_exp():
            yield _spelled(each.arg(0)), False
        else:
            raise ValueError(f"the condition {each} is not a conjunction of atoms and negated atoms")


def _spelled(expression: Any) -> str:
    return " ".join((expression.fluent().name, *map(str, expression.args)))
