"""How close a learned PDDL domain is to the true one, by AMLGym's measures.

- *syntactic precision and recall* of an action compare the literals of its preconditions, or of its effects; a mean
  over actions. Without literals they are 1.
- *predictive power*: in given states, of all ground actions, precision and recall of those that are applicable, and of
  the changes that those make which are applicable by both domains; a mean over the actions of the domain.
- *problem solving*: the share of problems for which a planner finds a plan with the learned domain that is valid by the
  true one.

The definitions are those of `amlgym.metrics`; states and domains are read and compared here, which takes seconds
instead of hours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from statewise.strips.model.schemas import Schema
from statewise.strips.pddl.parsing import Atom, Condition, Equal, Every, Is, Not, Operator, Task, parse_task
from statewise.strips.trace_data.trace_files import text_of

State = frozenset[Atom]


@dataclass(frozen=True)
class Plain:
    """An action with a conjunction of literals as condition, over the names of its parameters."""

    parameters: tuple[str, ...]
    types: tuple[frozenset[str], ...]
    pre: frozenset[Atom]
    negative: frozenset[Atom]
    """The atoms that must be false."""
    equal: tuple[tuple[str, str, bool], ...]
    add: frozenset[Atom]
    delete: frozenset[Atom]

    def numbered(self, atoms: Iterable[Atom]) -> frozenset[Atom]:
        """Atoms with the numbers of parameters instead of their names."""
        number = {name: f"?{at}" for at, name in enumerate(self.parameters)}
        return frozenset((atom[0], *(number.get(each, each) for each in atom[1:])) for atom in atoms)


def read_task(domain: str | Path, problem: str | Path) -> Task:
    """A domain with a problem. Raises `ValueError` with file and line."""
    domain, problem = Path(domain), Path(problem)
    return parse_task(domain, text_of(domain), problem, text_of(problem))


def plain_actions(task: Task) -> dict[str, Plain]:
    """The actions of a domain whose conditions are conjunctions of literals. Raises `ValueError` for others."""
    return {each.name: _plain(each) for each in task.operators}


def _plain(operator: Operator) -> Plain:
    pre: set[Atom] = set()
    negative: set[Atom] = set()
    equal: list[tuple[str, str, bool]] = []

    def add(condition: Condition, value: bool) -> None:
        if isinstance(condition, Not):
            add(condition.part, not value)
        elif isinstance(condition, Is):
            (pre if value else negative).add(condition.atom)
        elif isinstance(condition, Equal):
            equal.append((condition.left, condition.right, value))
        elif isinstance(condition, Every) and (value or len(condition.parts) == 1):
            for each in condition.parts:
                add(each, value)
        else:
            raise ValueError(f"the action {operator.name!r} has a condition that is not a conjunction of literals")

    add(operator.precondition, True)
    adds: set[Atom] = set()
    deletes: set[Atom] = set()
    for effect in operator.effects:
        if effect.variables or effect.condition != Every(()):
            raise ValueError(f"the action {operator.name!r} has a conditional effect")
        (adds if effect.adds else deletes).add(effect.atom)
    return Plain(
        tuple(each.name for each in operator.parameters),
        tuple(each.types for each in operator.parameters),
        frozenset(pre),
        frozenset(negative),
        tuple(equal),
        frozenset(adds),
        frozenset(deletes - adds),
    )


def schemas_of_actions(actions: Mapping[str, Plain]) -> dict[str, Schema]:
    """The schemas of actions without negative conditions and constants; others are left out of theirs."""
    schemas = {}
    for name, each in actions.items():
        place = {parameter: at for at, parameter in enumerate(each.parameters)}
        schemas[name] = Schema(
            *(
                frozenset(
                    (atom[0], tuple(place[term] for term in atom[1:])) for atom in part if place.keys() >= set(atom[1:])
                )
                for part in (each.pre, each.add, each.delete)
            )
        )
    return schemas


def syntactic(learned: Mapping[str, Plain], true: Mapping[str, Plain]) -> dict[str, float]:
    """Precision and recall of preconditions, of effects, and of both together; an action that was not learned has no
    literals."""
    sums: dict[str, list[float]] = {}
    for name, theirs in true.items():
        mine = learned.get(name)
        parts: dict[str, tuple[set[object], set[object]]] = {}
        for which, fields in (("pre", ("pre", "negative")), ("effects", ("add", "delete"))):
            found: set[object] = set()
            wanted: set[object] = set()
            for field in fields:
                wanted |= {(field, atom) for atom in theirs.numbered(getattr(theirs, field))}
                if mine is not None:
                    found |= {(field, atom) for atom in mine.numbered(getattr(mine, field))}
            parts[which] = found, wanted
        parts["all"] = ({*parts["pre"][0], *parts["effects"][0]}, {*parts["pre"][1], *parts["effects"][1]})
        for which, (found, wanted) in parts.items():
            same = len(found & wanted)
            sums.setdefault(f"{which}_precision", []).append(same / len(found) if found else 1.0)
            sums.setdefault(f"{which}_recall", []).append(same / len(wanted) if wanted else 1.0)
    return {name: sum(values) / len(values) for name, values in sums.items()}


class _Facts:
    """A state, with tables to look up atoms by some of their arguments."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._tables: dict[tuple[str, tuple[int, ...]], dict[Atom, list[Atom]]] = {}
        self._by_predicate: dict[str, list[Atom]] = {}
        for atom in state:
            self._by_predicate.setdefault(atom[0], []).append(atom)

    def matching(self, predicate: str, bound: tuple[int, ...], values: Atom) -> Sequence[Atom]:
        key = predicate, bound
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = {}
            for atom in self._by_predicate.get(predicate, ()):
                table.setdefault(tuple(atom[at + 1] for at in bound), []).append(atom)
        return table.get(values, ())


def applicable(action: Plain, facts: _Facts, task: Task, most: int = 200_000) -> set[tuple[str, ...]]:
    """The objects with which an action is applicable in a state. Raises `ValueError` beyond `most`."""
    found: set[tuple[str, ...]] = set()
    objects = {name: set(task.of_types(types)) for name, types in zip(action.parameters, action.types)}

    def extend(binding: dict[str, str], left: list[Atom]) -> Iterator[dict[str, str]]:
        if left:
            atom = max(left, key=lambda each: (sum(term in binding or term[0] != "?" for term in each[1:]), each))
            rest = [each for each in left if each is not atom]
            values = [binding.get(term, term if term[0] != "?" else None) for term in atom[1:]]
            bound = tuple(at for at, value in enumerate(values) if value is not None)
            for match in facts.matching(atom[0], bound, tuple(value for value in values if value is not None)):
                more = dict(binding)
                if all(
                    value in objects[term] and more.setdefault(term, value) == value
                    for term, value, known in zip(atom[1:], match[1:], values)
                    if known is None
                ):
                    yield from extend(more, rest)
            return
        free = [name for name in action.parameters if name not in binding]
        if free:
            for value in objects[free[0]]:
                yield from extend({**binding, free[0]: value}, [])
            return
        yield binding

    for binding in extend({}, sorted(action.pre)):
        if any((binding.get(a, a) == binding.get(b, b)) != value for a, b, value in action.equal):
            continue
        if any(_bound(atom, binding) in facts.state for atom in action.negative):
            continue
        found.add(tuple(binding[name] for name in action.parameters))
        if len(found) > most:
            raise ValueError(f"more than {most:,} ground actions are applicable in a state")
    return found


def _bound(atom: Atom, binding: Mapping[str, str]) -> Atom:
    return (atom[0], *(binding.get(term, term) for term in atom[1:]))


def _changes(action: Plain, objects: Sequence[str], state: State) -> set[tuple[bool, Atom]]:
    binding = dict(zip(action.parameters, objects))
    add = {_bound(atom, binding) for atom in action.add}
    delete = {_bound(atom, binding) for atom in action.delete} - add
    return {(True, atom) for atom in add - state} | {(False, atom) for atom in delete & state}


def predictive(
    learned: Mapping[str, Plain], true: Mapping[str, Plain], task: Task, states: Sequence[State]
) -> dict[str, dict[str, tuple[int, int, int]]]:
    """Counts (both, only learned, only true) of applicable ground actions and of changes for each action, over the
    states of one problem, for `shares`."""
    counts: dict[str, dict[str, tuple[int, int, int]]] = {"applicable": {}, "changes": {}}

    def count(which: str, name: str, mine: set[object], theirs: set[object]) -> None:
        both, more, fewer = counts[which].get(name, (0, 0, 0))
        counts[which][name] = (both + len(mine & theirs), more + len(mine - theirs), fewer + len(theirs - mine))

    for state in states:
        facts = _Facts(state)
        for name, theirs in true.items():
            wanted = applicable(theirs, facts, task)
            mine = learned.get(name)
            found = applicable(mine, facts, task) if mine is not None else set()
            count("applicable", name, {*found}, {*wanted})
            if mine is None:
                continue
            for objects in found & wanted:
                count("changes", name, {*_changes(mine, objects, state)}, {*_changes(theirs, objects, state)})
    return counts


def shares(counts: Iterable[dict[str, dict[str, tuple[int, int, int]]]]) -> dict[str, float]:
    """Mean precision and recall over actions of what `predictive` counted in several problems; without any 1."""
    total: dict[str, dict[str, list[int]]] = {}
    for each in counts:
        for which, by_name in each.items():
            for name, numbers in by_name.items():
                mine = total.setdefault(which, {}).setdefault(name, [0, 0, 0])
                for at, number in enumerate(numbers):
                    mine[at] += number
    found = {}
    for which, sums in total.items():
        for what, other in (("precision", 1), ("recall", 2)):
            values = [each[0] / (each[0] + each[other]) if each[0] + each[other] else 1.0 for each in sums.values()]
            found[f"{which}_{what}"] = sum(values) / len(values) if values else 1.0
    return found
