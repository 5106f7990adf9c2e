"""Which ground actions of a lifted task are reachable when deletes and negative conditions are ignored.

Facts are derived as by a logic program (Helmert, *Concise finite-domain representations for PDDL planning tasks*,
2009): an operator is a rule from the atoms that its precondition requires to the atoms that it adds. Each new fact is
joined with the facts so far, through hash tables by the arguments that are already bound; so no parameter is
enumerated that an atom determines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from statewise.strips.pddl.parsing import Atom, Condition, Equal, Every, Is, Not, Operator, Some, Task, Variable

MOST = 1_000_000
"""The largest number of ground actions."""

Arguments = tuple[str, ...]
Allows = Callable[[Condition, dict[str, str]], bool]
"""Tests whether static facts by themselves allow a condition, given its variables."""


@dataclass(frozen=True)
class Instance:
    """An operator with an object for each parameter."""

    operator: Operator
    objects: Arguments

    @property
    def binding(self) -> dict[str, str]:
        """The object of each parameter."""
        return {each.name: name for each, name in zip(self.operator.parameters, self.objects)}


@dataclass
class _Step:
    """Binds more parameters: those of an atom that matches a known fact, or one parameter to any of its objects."""

    predicate: str | None
    positions: tuple[int, ...]
    """The arguments of the atom that are bound before: the key of the table."""
    key: tuple[int | str, ...]
    """The numbers of the parameters, or the constants, at these positions."""
    binds: tuple[tuple[int, int], ...]
    """Position and parameter of each argument that this step binds."""
    parameter: int = -1
    """The parameter to bind, for a step without a predicate."""
    unequal: tuple[tuple[int | str, int | str], ...] = ()
    """Terms that are bound after this step and must differ."""
    equal: tuple[tuple[int | str, int | str], ...] = ()


def reachable_instances(task: Task, allows: Allows) -> tuple[list[Instance], set[Atom]]:
    """The reachable ground actions, in order of operators and objects, and the reachable atoms.

    Raises `ValueError` if there are more than `MOST` actions.
    """
    return _Join(task, allows).run()


class _Join:
    """Facts, their tables, and the facts that are not joined yet."""

    def __init__(self, task: Task, allows: Allows) -> None:
        self.task, self.allows = task, allows
        self.static = set(task.predicates) - {effect.atom[0] for each in task.operators for effect in each.effects}
        self.tables: dict[tuple[str, tuple[int, ...]], dict[Arguments, list[Arguments]]] = {}
        self.by_predicate: dict[str, list[tuple[tuple[int, ...], dict[Arguments, list[Arguments]]]]] = {}
        self.triggers: dict[str, list[_Rule]] = {}
        self.rules = [_Rule(self, each) for each in task.operators]
        self.reached: set[Atom] = set(task.initial)
        self.waiting: deque[Atom] = deque()
        self.found: dict[Instance, None] = {}

    def run(self) -> tuple[list[Instance], set[Atom]]:
        for fact in sorted(self.reached):
            if fact[0] in self.static:
                self._file(fact)
            else:
                self.waiting.append(fact)
        for rule in self.rules:
            if not rule.fluents:
                for objects in rule.matches(None, None):
                    self._add(rule.operator, objects)
        while self.waiting:
            fact = self.waiting.popleft()
            self._file(fact)
            for rule in self.triggers.get(fact[0], ()):
                for place, atom in enumerate(rule.fluents):
                    if atom[0] == fact[0]:
                        for objects in rule.matches(place, fact[1:]):
                            self._add(rule.operator, objects)
        operators = {each.name: place for place, each in enumerate(self.task.operators)}
        objects_at = {name: place for place, name in enumerate(self.task.objects)}
        ordered = sorted(
            self.found, key=lambda each: (operators[each.operator.name], *(objects_at[name] for name in each.objects))
        )
        return ordered, self.reached

    def table(self, predicate: str, positions: tuple[int, ...]) -> dict[Arguments, list[Arguments]]:
        """The facts of a predicate by their arguments at some positions; filled while facts are filed."""
        key = predicate, positions
        if key not in self.tables:
            self.tables[key] = {}
            self.by_predicate.setdefault(predicate, []).append((positions, self.tables[key]))
        return self.tables[key]

    def _file(self, fact: Atom) -> None:
        arguments = fact[1:]
        for positions, table in self.by_predicate.get(fact[0], ()):
            table.setdefault(tuple(arguments[at] for at in positions), []).append(arguments)

    def _add(self, operator: Operator, objects: Arguments) -> None:
        instance = Instance(operator, objects)
        if instance in self.found:
            return
        binding = instance.binding
        if not self.allows(operator.precondition, binding):
            return
        if len(self.found) >= MOST:
            raise ValueError(f"the problem has more than {MOST:,} ground actions: choose a smaller one")
        self.found[instance] = None
        for effect in operator.effects:
            if not effect.adds:
                continue
            for inner in bindings(self.task, effect.variables, binding):
                if effect.condition == Every(()) or self.allows(effect.condition, inner):
                    fact = instantiated(effect.atom, inner)
                    if fact not in self.reached:
                        self.reached.add(fact)
                        self.waiting.append(fact)


class _Rule:
    """The joins of an operator: one for each fluent atom that it requires, which begins there, or a single one."""

    def __init__(self, join: _Join, operator: Operator) -> None:
        self.join, self.operator = join, operator
        self.number = {each.name: place for place, each in enumerate(operator.parameters)}
        self.allowed = [set(join.task.of_types(each.types)) for each in operator.parameters]
        self.choices = [join.task.of_types(each.types) for each in operator.parameters]
        required = list(dict.fromkeys(_required(operator.precondition)))
        atoms = [each.atom for each in required if isinstance(each, Is)]
        self.statics = [atom for atom in atoms if atom[0] in join.static]
        self.fluents = [atom for atom in atoms if atom[0] not in join.static]
        pairs = [(each.part, False) if isinstance(each, Not) else (each, True) for each in required]
        self.pairs = [
            (self._term(each.left), self._term(each.right), wanted) for each, wanted in pairs if isinstance(each, Equal)
        ]
        self.plans = {place: self._plan(place) for place in (range(len(self.fluents)) if self.fluents else [None])}
        for predicate in dict.fromkeys(atom[0] for atom in self.fluents):
            join.triggers.setdefault(predicate, []).append(self)

    def _term(self, term: str) -> int | str:
        return self.number.get(term, term)

    def _plan(self, begin: int | None) -> list[_Step]:
        """The steps after the fluent atom `begin`: the next atom is always that with the fewest unbound parameters."""
        bound: set[int] = set()
        left = list(self.statics) + [atom for place, atom in enumerate(self.fluents) if place != begin]
        steps: list[_Step] = [self._step(self.fluents[begin], bound)] if begin is not None else []

        def cost(atom: Atom) -> tuple[bool, int, bool]:
            terms = [self._term(each) for each in atom[1:]]
            known = [each for each in terms if isinstance(each, str) or each in bound]
            return not known and bool(terms), len(terms) - len(known), atom[0] not in self.join.static

        while left or len(bound) < len(self.allowed):
            if left:
                chosen = min(left, key=cost)
                left.remove(chosen)
                steps.append(self._step(chosen, bound))
            else:
                parameter = min(set(range(len(self.allowed))) - bound)
                bound.add(parameter)
                steps.append(self._with_tests(_Step(None, (), (), (), parameter), {parameter}, bound))
        return steps

    def _step(self, atom: Atom, bound: set[int]) -> _Step:
        positions, key, binds, same = [], [], {}, []
        for at, term in enumerate(map(self._term, atom[1:])):
            if isinstance(term, str) or term in bound:
                positions.append(at)
                key.append(term)
            elif term in binds:
                same.append((at, term))
            else:
                binds[term] = at
        bound |= set(binds)
        made = _Step(
            atom[0], tuple(positions), tuple(key), (*((at, parameter) for parameter, at in binds.items()), *same)
        )
        self.join.table(atom[0], made.positions)
        return self._with_tests(made, set(binds), bound)

    def _with_tests(self, step: _Step, new: set[int], bound: set[int]) -> _Step:
        def ready(left: int | str, right: int | str) -> bool:
            parameters = {each for each in (left, right) if isinstance(each, int)}
            return parameters <= bound and bool(parameters & new)

        step.equal = tuple((left, right) for left, right, wanted in self.pairs if wanted and ready(left, right))
        step.unequal = tuple((left, right) for left, right, wanted in self.pairs if not wanted and ready(left, right))
        return step

    def matches(self, begin: int | None, fact: Arguments | None) -> Iterator[Arguments]:
        """The possible objects of the parameters; with `begin`, those for which that fluent atom is the fact."""
        steps = self.plans[begin]
        values: list[str | None] = [None] * len(self.allowed)
        if fact is None:
            yield from self._extend(steps, 0, values)
            return
        first = steps[0]
        if all(fact[at] == term for at, term in zip(first.positions, first.key)) and self._bind(first, fact, values):
            yield from self._extend(steps, 1, values)

    def _extend(self, steps: Sequence[_Step], depth: int, values: list[str | None]) -> Iterator[Arguments]:
        if depth == len(steps):
            yield tuple(values)  # type: ignore[arg-type]  # the last step has bound the last parameter
            return
        step = steps[depth]
        if step.predicate is None:
            for name in self.choices[step.parameter]:
                values[step.parameter] = name
                if self._passes(step, values):
                    yield from self._extend(steps, depth + 1, values)
            values[step.parameter] = None
            return
        key = tuple([each if isinstance(each, str) else values[each] for each in step.key])
        facts = self.join.tables[step.predicate, step.positions].get(key, ())  # type: ignore[arg-type]
        for fact in tuple(facts):  # a caller may add facts meanwhile
            if self._bind(step, fact, values):
                yield from self._extend(steps, depth + 1, values)
            for _, parameter in step.binds:
                values[parameter] = None

    def _bind(self, step: _Step, fact: Arguments, values: list[str | None]) -> bool:
        for at, parameter in step.binds:
            name = fact[at]
            if values[parameter] is None:
                if name not in self.allowed[parameter]:
                    return False
                values[parameter] = name
            elif values[parameter] != name:
                return False
        return self._passes(step, values)

    def _passes(self, step: _Step, values: list[str | None]) -> bool:
        def value(term: int | str) -> str | None:
            return term if isinstance(term, str) else values[term]

        return all(value(left) != value(right) for left, right in step.unequal) and all(
            value(left) == value(right) for left, right in step.equal
        )


def _required(condition: Condition) -> Iterator[Is | Equal | Not]:
    """Atoms, equalities and inequalities without which the condition is false."""
    if isinstance(condition, Every):
        for each in condition.parts:
            yield from _required(each)
    elif isinstance(condition, Some) and len(condition.parts) == 1:
        yield from _required(condition.parts[0])
    elif isinstance(condition, Not):
        inner = condition.part
        if isinstance(inner, Not):
            yield from _required(inner.part)
        elif isinstance(inner, Some):
            for each in inner.parts:
                yield from _required(Not(each))
        elif isinstance(inner, Equal):
            yield condition
    elif isinstance(condition, (Is, Equal)):
        yield condition


def bindings(task: Task, variables: Sequence[Variable], binding: dict[str, str]) -> Iterator[dict[str, str]]:
    """The binding with each choice of objects for the quantified variables."""
    if not variables:
        yield binding
        return
    names = [each.name for each in variables]
    for chosen in product(*(task.of_types(each.types) for each in variables)):
        yield {**binding, **dict(zip(names, chosen))}


def instantiated(atom: Atom, binding: dict[str, str]) -> Atom:
    """The ground atom with the objects of `binding` in place of variables."""
    return (atom[0], *(binding.get(term, term) for term in atom[1:]))
