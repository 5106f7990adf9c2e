"""Bounds on the schemas that partly observed states allow, one predicate at a time.

Between two actions that name an atom, nothing changes it. So a trace is, for each atom, a sequence of stretches with
one value each, and of the actions between them; each observed value belongs to a stretch. For an action whose literals
`images` name the atom, with value w before and v after it:

- w is true if an image is required;
- v is true if an image is added; v is true and w is false only then;
- w is true and v is false only if an image is deleted; and if one is deleted, v is true only if one is added.

These clauses over literals and values hold of a STRIPS schema iff it explains what was observed. A SAT solver decides
of each literal whether it can be so and whether it can be otherwise: no decided verdict is wrong if what was observed
is right. The chosen schema changes the least, and requires what was true at some occurrence and may be required.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

from statewise.strips.exact.features import solver
from statewise.strips.exact.frame import Clock
from statewise.strips.model.schemas import Literal, arguments
from statewise.strips.model.states import Observed
from statewise.strips.observed.bounds import Bounds, Contradiction, Literals

PRE, ADD, DELETE = range(3)
PARTS = (PRE, ADD, DELETE)
Key = tuple[str, Literal]
"""A schema and one of its literals."""


class PartBounds:
    """Bounds on the literals of one predicate, and the chosen ones, by schema and part."""

    def __init__(self) -> None:
        self.certain: dict[tuple[str, int], set[Literal]] = {}
        self.possible: dict[tuple[str, int], set[Literal]] = {}
        self.chosen: dict[tuple[str, int], set[Literal]] = {}
        self.excluded: dict[str, set[Literal]] = {}
        """The literals that are certainly not deleted, by schema."""

    def bounds(self, schema: str, part: int) -> Bounds:
        """The bounds of a part of a schema."""
        return Bounds(frozenset(self.certain.get((schema, part), ())), frozenset(self.possible.get((schema, part), ())))

    def kept(self, schema: str) -> Literals:
        """The literals of a schema that are certainly not deleted."""
        return frozenset(self.excluded.get(schema, ()))

    def chosen_of(self, schema: str, part: int) -> Literals:
        """The chosen literals of a part of a schema."""
        return frozenset(self.chosen.get((schema, part), ()))


class _Encoding:
    """The clauses of one predicate."""

    def __init__(self) -> None:
        self.clauses: set[tuple[int, ...]] = set()
        self.literals: dict[Key, int] = {}
        """The first of the three variables of each literal."""
        self.variables = 0
        self.before: dict[Key, set[int]] = {}
        """The value variables before the occurrences of each literal."""
        self.known_before: dict[Key, list[int]] = {}
        """How often the atom of a literal was known to be false, and true, before it."""
        self.support: dict[int, float] = {}
        """For each variable of an effect how often an atom of it changed so, shared among its images."""

    def new(self) -> int:
        self.variables += 1
        return self.variables

    def of(self, key: Key, part: int) -> int:
        """The variable that says that a literal is in a part of its schema."""
        first = self.literals.get(key)
        if first is None:
            first = self.literals[key] = self.variables + 1
            self.variables += 3
            self.clauses.add((-first - ADD, -first - DELETE))
        return first + part

    def occurs(self, keys: Sequence[Key], before: int | bool, after: int | bool) -> None:
        """Adds what one action says about one atom. Values are known, or variables."""
        pre, add, delete = ([self.of(key, part) for key in keys] for part in PARTS)
        for one in pre:
            self._add([-one], (before, True))
        for one in add:
            self._add([-one], (after, True))
        self._add(add, (after, False), (before, True))
        self._add(delete, (before, False), (after, True))
        for one in delete:
            self._add([-one, *add], (after, False))
        if isinstance(before, bool) and isinstance(after, bool) and before != after:
            for one in add if after else delete:
                self.support[one] = self.support.get(one, 0.0) + 1 / len(keys)
        for key in keys:
            if isinstance(before, bool):
                self.known_before.setdefault(key, [0, 0])[before] += 1
            else:
                self.before.setdefault(key, set()).add(before)

    def _add(self, literals: list[int], *values: tuple[int | bool, bool]) -> None:
        """A clause of these literals and of values that are true or false as said."""
        clause = set(literals)
        for value, wanted in values:
            if isinstance(value, bool):
                if value == wanted:
                    return
            else:
                clause.add(value if wanted else -value)
        if not any(-one in clause for one in clause):
            self.clauses.add(tuple(sorted(clause)))


def partly_bounded(
    observed: Observed,
    predicate: str,
    arity: int,
    clock: Clock,
    constants: Sequence[str] = (),
    fits: Callable[[str, Literal], bool] = lambda schema, literal: True,
) -> PartBounds:
    """The bounds of a predicate. Once the time is up, what is not decided yet counts as possible. Raises
    `Contradiction` if no STRIPS model explains what was observed, `ValueError` without python-sat."""
    encoding = _Encoding()
    actions = [arguments(name) for name in observed.traces.actions]
    literals = _literals(actions, predicate, arity, len(constants), fits)
    named: list[dict[tuple[str, ...], list[Key]]] = []
    for schema, objects in actions:
        terms = (*objects, *constants)
        of_atom: dict[tuple[str, ...], list[Key]] = {}
        for literal in literals[schema]:
            of_atom.setdefault(tuple(terms[at] for at in literal[1]), []).append((schema, literal))
        named.append(of_atom)
    for place in range(len(observed.traces)):
        _read(observed, place, predicate, named, encoding)
    return _decided(encoding, clock, predicate)


def _literals(
    actions: Sequence[tuple[str, tuple[str, ...]]],
    predicate: str,
    arity: int,
    constants: int,
    fits: Callable[[str, Literal], bool],
) -> dict[str, list[Literal]]:
    """The literals of each schema with a predicate, whose types fit; not those that name only constants."""
    found: dict[str, list[Literal]] = {}
    for schema, objects in actions:
        if schema not in found:
            count = len(objects) + constants
            every = ((predicate, places) for places in product(range(count), repeat=arity))
            found[schema] = [each for each in every if fits(schema, each)]
    return found


def _read(
    observed: Observed,
    place: int,
    predicate: str,
    named: Sequence[Mapping[tuple[str, ...], list[Key]]],
    encoding: _Encoding,
) -> None:
    """Adds the clauses of a trace."""
    complete = predicate in observed.complete
    row, states = observed.traces.valid(place), observed.states[place]
    touched: dict[tuple[str, ...], list[int]] = {}
    for at, action in enumerate(row):
        for atom in named[action]:
            touched.setdefault(atom, []).append(at)
    values = _values(observed, place, predicate, len(row))
    for atom in values:
        touched.setdefault(atom, [])
    present = [states[at] is not None for at in range(len(row) + 1)]
    for atom, steps in touched.items():
        seen = values.get(atom, {})
        stretches: list[int | bool] = []
        first = 0
        for last in [*steps, len(row)]:
            known = {seen[at] for at in range(first, last + 1) if at in seen}
            if complete and any(present[at] and at not in seen for at in range(first, last + 1)):
                known.add(False)
            if len(known) > 1:
                raise Contradiction(
                    f"{observed.traces.where(place)}: the atom {' '.join((predicate, *atom))!r} changes between states "
                    f"{first + 1} and {last + 1}, where no action names all its objects",
                    predicate,
                )
            stretches.append(known.pop() if known else encoding.new())
            first = last + 1
        for number, at in enumerate(steps):
            encoding.occurs(named[row[at]][atom], stretches[number], stretches[number + 1])


def _values(observed: Observed, place: int, predicate: str, count: int) -> dict[tuple[str, ...], dict[int, bool]]:
    """The observed values of the atoms of a predicate, by the number of the state."""
    values: dict[tuple[str, ...], dict[int, bool]] = {}
    begin = predicate + " "
    for at in range(count + 1):
        state = observed.states[place][at]
        for part, value in ((state.true, True), (state.false, False)) if state is not None else ():
            for name in part:
                if name == predicate or name.startswith(begin):
                    values.setdefault(tuple(name.split()[1:]), {})[at] = value
    return values


def _decided(encoding: _Encoding, clock: Clock, predicate: str) -> PartBounds:
    """The verdict on each literal, and a choice."""
    found = PartBounds()
    with solver([list(clause) for clause in encoding.clauses]) as sat:
        if not sat.solve():
            raise Contradiction("its observed values contradict each other", predicate)
        model = _true(sat.get_model())
        _, fixed = sat.propagate()
        always = set(fixed)
        out_of_time = False
        for number, (key, part, variable) in enumerate(_variables(encoding)):
            where = key[0], part
            can_be, can_lack = variable in model, variable not in model
            if variable not in always and -variable not in always:
                if number % 16 == 0 and not clock.has_time():
                    out_of_time = True
                if out_of_time:
                    can_be = can_lack = True
                elif can_be:
                    can_lack = bool(sat.solve(assumptions=[-variable]))
                else:
                    can_be = bool(sat.solve(assumptions=[variable]))
            if not can_be and part == DELETE:
                found.excluded.setdefault(key[0], set()).add(key[1])
            if can_be:
                found.possible.setdefault(where, set()).add(key[1])
                if not can_lack:
                    found.certain.setdefault(where, set()).add(key[1])
        _choose(encoding, found, sat)
    return found


def _variables(encoding: _Encoding) -> Iterator[tuple[Key, int, int]]:
    for key, first in encoding.literals.items():
        for part in PARTS:
            yield key, part, first + part


def _true(model: Sequence[int]) -> set[int]:
    return {one for one in model if one > 0}


def _choose(encoding: _Encoding, found: PartBounds, sat: object) -> None:
    """Chooses the fewest effects, one after the other left out where possible, and then what may be required."""
    solve, propagate = sat.solve, sat.propagate  # type: ignore[attr-defined]
    assumed: list[int] = []
    open_effects = []
    for key, part, variable in _variables(encoding):
        where = key[0], part
        if part == PRE:
            continue
        if key[1] in found.certain.get(where, ()):
            found.chosen.setdefault(where, set()).add(key[1])
        elif key[1] in found.possible.get(where, ()):
            open_effects.append((key, part, variable))
        else:
            continue
    for key, part, variable in sorted(open_effects, key=lambda each: (encoding.support.get(each[2], 0.0), each)):
        if solve(assumptions=[*assumed, -variable]):
            assumed.append(-variable)
        else:
            assumed.append(variable)
            found.chosen.setdefault((key[0], part), set()).add(key[1])
    _, known = propagate(assumptions=assumed)
    values = set(known)
    for key, part, variable in _variables(encoding):
        if part != PRE or key[1] not in found.possible.get((key[0], PRE), ()):
            continue
        seen_true = encoding.known_before.get(key, [0, 0])[True] + len(encoding.before.get(key, set()) & values)
        if seen_true and solve(assumptions=[*assumed, variable]):
            assumed.append(variable)
            found.chosen.setdefault((key[0], PRE), set()).add(key[1])
