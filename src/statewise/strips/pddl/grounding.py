"""Grounds a lifted planning task: the reachable actions, with everything that STRIPS lacks compiled away.

Quantifiers are expanded over the objects, static facts simplified away; disjunctions and conditional effects split an
action into several, and negative conditions get complementary atoms `not-...`. Then actions that the h^2 fixpoint rules
out, and atoms that are always or never true, are dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from statewise.strips.model.model import Action, ActionModel, Atoms, bits
from statewise.strips.model.pairs import closed, pairs_of_states, together
from statewise.strips.pddl.instantiation import Instance, bindings, instantiated, reachable_instances
from statewise.strips.pddl.parsing import TRUE, Atom, Condition, Equal, Every, Is, Not, Quantified, Task

Literal = tuple[Atom, bool]
"""A ground atom, and whether it is positive or negated."""
Conjunction = frozenset[Literal]
Distinct = TypeVar("Distinct")
Truth = Callable[[Atom], "bool | None"]
"""Whether a ground atom is always true, never true, or neither (None)."""

MOST_VARIANTS = 10_000
"""The largest number of actions that one ground action may be compiled into."""


@dataclass(frozen=True)
class Ground:
    """A ground problem."""

    model: ActionModel
    initial: Atoms
    goal: Atoms
    always: tuple[str, ...] = ()
    """Atoms that are true in every state, which the model leaves out, sorted."""


@dataclass
class _Variant:
    """A ground action, or one of several that it was compiled into."""

    name: str
    pre: Conjunction
    effects: dict[Atom, bool]


class NotStrips(ValueError):
    """A condition that cannot be compiled. `line` is that of its action or goal; `in_domain` says which file it is
    in."""

    def __init__(self, message: str, line: int, in_domain: bool) -> None:
        super().__init__(message)
        self.line, self.in_domain = line, in_domain


def ground(task: Task, *, any_goal: bool = False) -> Ground:
    """Grounds a task. With `any_goal` a goal that STRIPS cannot express is left out.

    An action with a disjunction or a conditional effect is compiled into several: `schema#1 object`,
    `schema#2 object`, and so on. An atom that an action both adds and deletes is added, as in PDDL. Raises `NotStrips`
    if the goal is not a conjunction of literals, or if an action would be compiled into too many.
    """
    changing = {effect.atom[0] for each in task.operators for effect in each.effects}

    def static(atom: Atom) -> bool | None:
        return None if atom[0] in changing else atom in task.initial

    def allows(condition: Condition, binding: dict[str, str]) -> bool:
        return _possible(task, condition, binding, True, static)

    instances, reached = reachable_instances(task, allows)

    def known(atom: Atom) -> bool | None:
        return static(atom) if atom in reached else False

    variants = [variant for each in instances for variant in _variants(task, each, known)]
    affected = {atom: value for each in variants for atom, value in each.effects.items()}
    added = {atom for each in variants for atom, value in each.effects.items() if value}
    deleted = {atom for each in variants for atom, value in each.effects.items() if not value}
    always = task.initial - deleted

    def constant(atom: Atom) -> bool | None:
        return True if atom in always else None if atom in added or atom in task.initial else False

    kept = []
    for each in variants:
        if all(constant(atom) in (None, value) for atom, value in each.pre):
            each.pre = frozenset(literal for literal in each.pre if constant(literal[0]) is None)
            kept.append(each)
    try:
        wanted = _goal(task, constant)
    except NotStrips:
        if not any_goal:
            raise
        wanted = frozenset()
    goal = {(atom, value) for atom, value in wanted if constant(atom) != value}
    denied = {atom for atom, value in goal.union(*(each.pre for each in kept)) if not value}
    relevant = {atom for atom in affected if constant(atom) is None} | {atom for atom, _ in goal}
    predicate_at = {name: place for place, name in enumerate(task.predicates)}
    object_at = {name: place for place, name in enumerate(task.objects)}
    order = sorted(relevant, key=lambda atom: (predicate_at[atom[0]], *(object_at[name] for name in atom[1:])))
    literals = [(atom, value) for atom in order for value in ((True, False) if atom in denied else (True,))]
    place = {literal: 1 << at for at, literal in enumerate(literals)}
    complement = complements(task.predicates)
    names = [_spelled(atom if value else (complement[atom[0]], *atom[1:])) for atom, value in literals]

    def as_bits(literals: Iterable[Literal]) -> Atoms:
        total = 0
        for literal in literals:
            total |= place.get(literal, 0)
        return total

    def as_action(each: _Variant) -> Action:
        made = each.effects.items()
        return Action(each.name, as_bits(each.pre), as_bits(made), as_bits((atom, not value) for atom, value in made))

    model = ActionModel(tuple(names), tuple(as_action(each) for each in kept))
    start = as_bits((atom, atom in task.initial) for atom in order)
    whole = pruned(Ground(model, start, as_bits(goal)))
    always_true = sorted({_spelled(atom) for atom in task.initial}.difference(whole.model.atoms))
    return Ground(_numbered_variants(whole.model), whole.initial, whole.goal, tuple(always_true))


def pruned(whole: Ground) -> Ground:
    """Drops actions that can never be applied, and atoms that are always or never true.

    Keeps a goal atom that can never be true, so that the problem stays unsolvable.
    """
    model = whole.model
    pairs = closed(pairs_of_states([whole.initial], len(model.atoms)), model.actions)
    actions = tuple(action for action in model.actions if together(pairs, action.pre) is not None)
    deleted = 0
    for action in actions:
        deleted |= action.delete
    kept = []
    for at in range(len(model.atoms)):
        bit = 1 << at
        always = bool(whole.initial & bit) and not deleted & bit
        never = not pairs[at]
        if not always and (not never or whole.goal & bit):
            kept.append(at)
    # renumber the initial state and the goal, too, as condition and effect of an extra action
    carried = Action("", whole.initial, whole.goal, 0)
    moved = ActionModel(model.atoms, (*actions, carried)).with_atoms(kept)
    *rest, last = moved.actions
    return Ground(ActionModel(moved.atoms, tuple(rest)), last.pre, last.add)


def _goal(task: Task, constant: Truth) -> Conjunction:
    """The literals of the goal; constant ones stay, so that an unreachable goal is kept."""
    try:
        parts = list(_disjuncts(task, task.goal, {}, True, lambda atom: None))
    except _TooMany:
        parts = []
    else:
        if not parts:
            raise NotStrips("no state satisfies the goal, which contradicts itself", task.goal_line, False)
    possible = [each for each in parts if all(constant(atom) in (None, value) for atom, value in each)]
    simple = {frozenset(literal for literal in each if constant(literal[0]) is None) for each in possible}
    if len(parts) == 1:
        return parts[0]
    if len(simple) != 1:
        raise NotStrips(
            "the goal is a disjunction (or, imply, exists): it cannot be grounded to STRIPS", task.goal_line, False
        )
    return simple.pop()


class _TooMany(Exception):
    """A condition has too many disjuncts."""


def _disjuncts(
    task: Task, condition: Condition, binding: dict[str, str], value: bool, truth: Truth
) -> set[Conjunction]:
    """The condition, or its negation if `value` is false, as a disjunction of conjunctions of literals; without any
    conjunction it is false. Raises `_TooMany`."""
    if isinstance(condition, Not):
        return _disjuncts(task, condition.part, binding, not value, truth)
    if isinstance(condition, Is):
        atom = instantiated(condition.atom, binding)
        constant = truth(atom)
        if constant is None:
            return {frozenset({(atom, value)})}
        return {frozenset()} if constant == value else set()
    if isinstance(condition, Equal):
        same = binding.get(condition.left, condition.left) == binding.get(condition.right, condition.right)
        return {frozenset()} if same == value else set()
    if isinstance(condition, Quantified):
        parts = [(condition.part, inner) for inner in bindings(task, condition.variables, binding)]
        conjunction = condition.for_all == value
    else:
        parts = [(each, binding) for each in condition.parts]
        conjunction = isinstance(condition, Every) == value
    if not conjunction:
        disjuncts: set[Conjunction] = set()
        for part, inner in parts:
            disjuncts |= _disjuncts(task, part, inner, value, truth)
            if frozenset() in disjuncts:
                return {frozenset()}
        return _limited(disjuncts)
    product: set[Conjunction] = {frozenset()}
    for part, inner in parts:
        more = _disjuncts(task, part, inner, value, truth)
        product = _limited(one | other for one in product for other in more if _consistent(one, other))
        if not product:
            break
    return product


def _limited(elements: Iterable[Distinct]) -> set[Distinct]:
    """The distinct elements. Raises `_TooMany` at once, so that memory stays bounded."""
    kept: set[Distinct] = set()
    for one in elements:
        kept.add(one)
        if len(kept) > MOST_VARIANTS:
            raise _TooMany
    return kept


def _consistent(one: Conjunction, other: Conjunction) -> bool:
    """Whether two consistent conjunctions are consistent together."""
    return not any((atom, not value) in one for atom, value in other)


def _possible(task: Task, condition: Condition, binding: dict[str, str], value: bool, truth: Truth) -> bool:
    """Whether static facts allow the condition, if literals that are not constant count as possible."""
    if isinstance(condition, Not):
        return _possible(task, condition.part, binding, not value, truth)
    if isinstance(condition, Is):
        return truth(instantiated(condition.atom, binding)) in (None, value)
    if isinstance(condition, Equal):
        return (binding.get(condition.left, condition.left) == binding.get(condition.right, condition.right)) == value
    if isinstance(condition, Quantified):
        results = (
            _possible(task, condition.part, inner, value, truth)
            for inner in bindings(task, condition.variables, binding)
        )
        return all(results) if condition.for_all == value else any(results)
    results = (_possible(task, each, binding, value, truth) for each in condition.parts)
    return all(results) if isinstance(condition, Every) == value else any(results)


def _variants(task: Task, instance: Instance, truth: Truth) -> Iterator[_Variant]:
    """The ground actions that an instance is compiled into, numbered: `schema object#0`, `schema object#1`, ..."""
    operator, binding = instance.operator, instance.binding
    name = " ".join((operator.name, *instance.objects))
    try:
        always: set[Literal] = set()
        cases: set[tuple[Conjunction, Conjunction]] = {
            (pre, frozenset()) for pre in _disjuncts(task, operator.precondition, binding, True, truth)
        }
        for effect in operator.effects:
            for inner in bindings(task, effect.variables, binding):
                literal = instantiated(effect.atom, inner), effect.adds
                if effect.condition == TRUE:
                    always.add(literal)
                    continue
                holds = _disjuncts(task, effect.condition, inner, True, truth)
                fails = _disjuncts(task, effect.condition, inner, False, truth)
                cases = _limited(
                    (pre | condition, made | {literal} if is_made else made)
                    for pre, made in cases
                    for is_made, conditions in ((True, holds), (False, fails))
                    for condition in conditions
                    if _consistent(pre, condition)
                )
    except _TooMany:
        raise NotStrips(
            f"the action {name!r} has so many disjunctions or conditional effects that it would become more than "
            f"{MOST_VARIANTS:,} STRIPS actions",
            operator.line,
            True,
        ) from None
    for number, (pre, made) in enumerate(cases):
        effects: dict[Atom, bool] = {}
        for atom, value in always | made:
            effects[atom] = effects.get(atom, False) or value
        yield _Variant(f"{name}#{number}", pre, effects)


def _numbered_variants(model: ActionModel) -> ActionModel:
    """Drops variants with the effects and more preconditions than another; numbers the rest if there are several."""
    by_name: dict[str, dict[tuple[Atoms, Atoms], set[Atoms]]] = {}
    for action in model.actions:
        by_effects = by_name.setdefault(action.name.rpartition("#")[0], {})
        by_effects.setdefault((action.add, action.delete), set()).add(action.pre)
    numbered: list[Action] = []
    for name, by_effects in by_name.items():
        needed = sorted((pre, *effects) for effects, conditions in by_effects.items() for pre in _weakest(conditions))
        schema, _, objects = name.partition(" ")
        for number, variant in enumerate(needed, 1):
            numbered.append(Action(f"{schema}#{number} {objects}".strip() if needed[1:] else name, *variant))
    return ActionModel(model.atoms, tuple(numbered))


def _weakest(conditions: Collection[Atoms]) -> Collection[Atoms]:
    """The conditions without a subset among the others. There may be thousands, most of which have few atoms in common,
    so each one is filed under its rarest atom."""
    if len(conditions) == 1:
        return conditions
    frequency = Counter(atom for one in conditions for atom in bits(one))
    by_rarest: dict[int | None, list[Atoms]] = {}
    for one in sorted(conditions, key=int.bit_count):
        if all(other & ~one for atom in (None, *bits(one)) for other in by_rarest.get(atom, ())):
            by_rarest.setdefault(min(bits(one), key=frequency.__getitem__, default=None), []).append(one)
    return [one for some in by_rarest.values() for one in some]


def complements(predicates: Sequence[str]) -> dict[str, str]:
    """For each predicate the name of its complement, `not-...`, which no other predicate has."""
    complements: dict[str, str] = {}
    used = set(predicates)
    for predicate in predicates:
        name, number = f"not-{predicate}", 1
        while name in used:
            number += 1
            name = f"not-{predicate}-{number}"
        used.add(name)
        complements[predicate] = name
    return complements


def _spelled(atom: Atom) -> str:
    return " ".join(atom)
