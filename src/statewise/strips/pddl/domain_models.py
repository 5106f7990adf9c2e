"""Action models of PDDL domains without a problem: over given ground actions, or over a few objects of each type.

Only conjunctions of literals can be read so. What else a domain may have needs objects to be compiled away (`pddl`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import product, takewhile
from pathlib import Path
from typing import NoReturn

from statewise.strips.model.model import MOST_ACTIONS, ActionModel
from statewise.strips.model.schemas import arguments
from statewise.strips.pddl.grounding import complements
from statewise.strips.pddl.parsing import Atom, Condition, Equal, Every, Is, Not, Operator, Task, parse_task
from statewise.strips.pddl.pddl import OTHER_NAMES
from statewise.strips.trace_data.trace_files import text_of

NO_PROBLEM = "(define (problem none) (:domain none) (:init) (:goal (and)))"
FEW = 3
"""Objects of each type, or as many as an action can have."""


class _Domain:
    """A domain whose actions are conjunctions of literals. Raises `ValueError` with file and line for others."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.task: Task = parse_task(path, text_of(path), Path("none"), NO_PROBLEM)
            self.operators = {each.name: each for each in self.task.operators}
            self.literals = {each.name: list(self._literals(each, each.precondition)) for each in self.task.operators}
        except RecursionError:
            raise ValueError(f"{path}: nested too deeply to be read") from None
        for operator in self.task.operators:
            if any(each.variables or each.condition != Every(()) for each in operator.effects):
                self._fail(operator, "an effect with a condition or a quantifier")
        self.there = _names_there(text_of(path), {each.name for each in self.task.operators if not each.parameters})
        self.here = {there: here for here, there in self.there.items()}
        self.complement = complements(self.task.predicates)
        self.negated = {
            literal.atom[0]
            for each in self.literals.values()
            for literal, value in each
            if isinstance(literal, Is) and not value
        }

    def _literals(self, of: Operator, condition: Condition, value: bool = True) -> Iterator[tuple[Is | Equal, bool]]:
        if isinstance(condition, Not):
            yield from self._literals(of, condition.part, not value)
        elif isinstance(condition, Every) and (value or len(condition.parts) == 1):
            for each in condition.parts:
                yield from self._literals(of, each, value)
        elif isinstance(condition, Is) or (isinstance(condition, Equal) and not value):
            yield condition, value
        else:
            self._fail(of, "a disjunction, a quantifier or an equality as condition")

    def _fail(self, of: Operator, what: str) -> NoReturn:
        raise ValueError(
            f"{self.path}:{of.line}: the action {of.name!r} has {what}, which needs objects to be compiled away: "
            "give a problem, too, as DOMAIN.pddl,PROBLEM.pddl"
        )

    def model(self, actions: Sequence[str]) -> ActionModel:
        """The model over those of the actions whose schema the domain has."""
        effects: dict[str, tuple[list[str], list[str], list[str]]] = {}
        for name in actions:
            schema, objects = arguments(self.here.get(name, name))
            operator = self.operators.get(schema)
            if operator is None:
                continue
            if len(objects) != len(operator.parameters):
                raise ValueError(
                    f"{self.path}:{operator.line}: {schema!r} has {len(operator.parameters)} parameters, and the "
                    f"action {name!r} {len(objects)} objects"
                )
            binding = {each.name: one for each, one in zip(operator.parameters, objects)}
            effects[name] = self._parts(operator, name, binding)
        atoms = dict.fromkeys(atom for parts in effects.values() for part in parts for atom in part)
        return ActionModel.of(list(atoms), effects)

    def _parts(self, operator: Operator, name: str, binding: dict[str, str]) -> tuple[list[str], list[str], list[str]]:
        def spelled(atom: Atom, value: bool) -> str:
            predicate = atom[0] if value else self.complement[atom[0]]
            return " ".join((predicate, *(binding.get(each, each) for each in atom[1:])))

        pre = []
        for literal, value in self.literals[operator.name]:
            if isinstance(literal, Is):
                pre.append(spelled(literal.atom, value))
            elif binding.get(literal.left, literal.left) == binding.get(literal.right, literal.right):
                raise ValueError(
                    f"{self.path}:{operator.line}: {name!r} is no action of this domain, which requires that "
                    f"{literal.left} and {literal.right} differ"
                )
        add = {spelled(each.atom, True): each.atom for each in operator.effects if each.adds}
        delete = {spelled(each.atom, True): each.atom for each in operator.effects if not each.adds}
        delete = {name: atom for name, atom in delete.items() if name not in add}  # as in PDDL
        opposite = [
            [spelled(atom, False) for atom in each.values() if atom[0] in self.negated] for each in (delete, add)
        ]
        return pre, [*add, *opposite[0]], [*delete, *opposite[1]]

    def actions(self) -> list[str]:
        """All ground actions over a few objects of each type of a parameter."""
        wanted: Counter[str] = Counter()
        for operator in self.task.operators:
            wanted |= Counter(each for parameter in operator.parameters for each in parameter.types)
        names = {type_: [f"{type_}{at + 1}" for at in range(max(FEW, count))] for type_, count in wanted.items()}
        declared = " ".join(f"{' '.join(some)} - {type_}" for type_, some in names.items())
        problem = NO_PROBLEM.replace("(:init)", f"(:objects {declared}) (:init)")
        task = parse_task(self.path, text_of(self.path), Path("none"), problem)
        actions = []
        for operator in task.operators:
            different = [each for each, _ in self.literals[operator.name] if isinstance(each, Equal)]
            for chosen in product(*(task.of_types(each.types) for each in operator.parameters)):
                binding = {each.name: one for each, one in zip(operator.parameters, chosen)}
                if all(binding.get(each.left, each.left) != binding.get(each.right, each.right) for each in different):
                    actions.append(" ".join((self.there.get(operator.name, operator.name), *chosen)))
                if len(actions) > MOST_ACTIONS:
                    raise ValueError(f"{self.path}: more than {MOST_ACTIONS:,} ground actions: give a problem, too")
        return actions


def _names_there(text: str, actions: Collection[str]) -> dict[str, str]:
    """The names of ground actions in the model from which `write_pddl` wrote a domain, as far as they differ."""
    lines = text.splitlines()
    if lines[:1] != [OTHER_NAMES]:
        return {}
    pairs = (line.removeprefix("; ").partition(" = ") for line in takewhile(lambda line: line[:1] == ";", lines[1:]))
    return {here: there for here, _, there in pairs if here in actions and there}


def model_of_domain(path: str | Path, actions: Sequence[str]) -> ActionModel:
    """The action model of a PDDL domain over `actions`, each written `schema object object` in lower case.

    A negative precondition becomes an atom `not-predicate object`, which effects on the predicate change the other way
    round. Actions whose schema the domain lacks are left out. Types are not checked, since the objects of actions have
    none. Ground actions of a file of `write_pddl` have the names of its model. Raises `ValueError`, with file and line,
    for malformed PDDL, for disjunctions, quantifiers, conditional effects and equality, and for an action with another
    number of objects, or with equal ones that must differ."""
    return _Domain(Path(path)).model(actions)


def actions_of_domain(path: str | Path) -> list[str]:
    """All ground actions of a PDDL domain over its constants and at least three objects of each type that a parameter
    has. Raises what `model_of_domain` raises."""
    return _Domain(Path(path)).actions()
