"""What full states show about the schemas of actions.

A literal of a schema names a predicate and, for each of its arguments, an argument of the action or a constant of the
schema. Where two arguments of an action are the same object, several literals name one ground atom: all of these
`images` of an atom are candidates for what happened to it. With objects `o`, in states s before and s' after:

- a literal can be required only if its atom is true in s, at every occurrence;
- it can be added only if its atom is true in s', at every occurrence;
- an atom that becomes true is added by one of its images, one that becomes false is deleted by one;
- an atom that is true in s' and has an image that is deleted has another one that is added, since PDDL adds last.

These conditions are necessary and sufficient for a STRIPS schema to explain the states (Juba, Le and Stern, *Safe
learning of lifted action models*, 2021, for actions without repeated arguments).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from statewise.strips.model.schemas import Literal, arguments
from statewise.strips.model.states import Observed, State

Images = frozenset[Literal]
"""The literals of a schema that name one ground atom."""


@dataclass
class Evidence:
    """What the occurrences of one schema show about literals of complete predicates."""

    occurrences: int = 0
    before: set[Literal] = field(default_factory=set)
    """The literals that are true before every occurrence: those that may be required."""
    after: set[Literal] = field(default_factory=set)
    """The literals that are true after every occurrence: those that may be added."""
    added: set[Images] = field(default_factory=set)
    """Of each of these sets of images one is added."""
    deleted: set[Images] = field(default_factory=set)
    """Of each of these sets one is deleted."""
    true_after: set[Images] = field(default_factory=set)
    """The images of atoms that were true after an occurrence: a deleted one needs an added one beside it."""
    false_before: set[Literal] = field(default_factory=set)
    """Literals that were false before an occurrence and true before or after another one."""
    arity: int = 0
    """The number of arguments of the action."""
    constants: tuple[str, ...] = ()
    """Objects that literals may name though they are no arguments of the action: the places after the arguments."""


class Unexplained(ValueError):
    """No STRIPS schema explains a change of state."""

    def __init__(self, message: str, predicate: str) -> None:
        super().__init__(message)
        self.predicate = predicate


def images(atom: Sequence[str], places: Mapping[str, Sequence[int]]) -> Iterator[Literal]:
    """The literals that name an atom (its predicate, then its objects); `places` are those of each object."""
    predicate, *objects = atom
    for chosen in product(*(places.get(each, ()) for each in objects)):
        yield predicate, chosen


def places_of(objects: Sequence[str], constants: Sequence[str] = ()) -> dict[str, list[int]]:
    """The places of each object of an action, and after these the places of the constants."""
    places: dict[str, list[int]] = {}
    for at, each in enumerate((*objects, *constants)):
        places.setdefault(each, []).append(at)
    return places


class Local:
    """The true atoms of the states of a trace, by their objects."""

    def __init__(self, split: dict[str, tuple[str, ...]], kept: Collection[str]) -> None:
        self.split, self.kept = split, kept
        self.by_object: dict[str, set[str]] = {}
        self.plain: set[str] = set()
        """The atoms without arguments."""
        self.true: frozenset[str] = frozenset()

    def atom(self, name: str) -> tuple[str, ...]:
        """The words of an atom."""
        words = self.split.get(name)
        if words is None:
            words = self.split[name] = tuple(name.split())
        return words

    def move(self, true: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
        """Goes on to a state with these true atoms. Returns the atoms that became true, and those that became false."""
        more, fewer = true - self.true, self.true - true
        for name in fewer:
            words = self.atom(name)
            if words[0] in self.kept:
                for each in words[1:]:
                    self.by_object[each].discard(name)
                self.plain.discard(name)
        for name in more:
            words = self.atom(name)
            if words[0] in self.kept:
                for each in words[1:]:
                    self.by_object.setdefault(each, set()).add(name)
                if len(words) == 1:
                    self.plain.add(name)
        self.true = true
        return more, fewer

    def among(self, objects: Iterable[str]) -> set[str]:
        """The true atoms all of whose objects are among these."""
        named = set(objects)
        found = set(self.plain)
        for each in named:
            for name in self.by_object.get(each, ()):
                if named.issuperset(self.split[name][1:]):
                    found.add(name)
        return found


@dataclass(frozen=True)
class Step:
    """A valid action between two states."""

    trace: int
    at: int
    objects: tuple[str, ...]
    before: State
    after: State


def steps_by_schema(observed: Observed) -> dict[str, list[Step]]:
    """The valid actions with a state on both sides, by schema; a schema without any has an empty list."""
    split = [arguments(name) for name in observed.traces.actions]
    steps: dict[str, list[Step]] = {schema: [] for schema, _ in split}
    for number in range(len(observed.traces)):
        states = observed.states[number]
        for at, action in enumerate(observed.traces.valid(number)):
            before, after = states[at], states[at + 1]
            if before is not None and after is not None:
                schema, objects = split[action]
                steps[schema].append(Step(number, at, objects, before, after))
    return steps


def constants_of(observed: Observed, declared: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """For each schema the objects that its literals may name without having them as arguments: the declared ones, and
    those that the atoms which it changes name at every occurrence where it changes such an atom."""
    actions = [arguments(name) for name in observed.traces.actions]
    found: dict[str, set[str]] = {}
    for number in range(len(observed.traces)):
        states = observed.states[number]
        for at, action in enumerate(observed.traces.valid(number)):
            before, after = states[at], states[at + 1]
            if before is None or after is None:
                continue
            schema, objects = actions[action]
            missing: set[str] = set()
            for name in before.true ^ after.true:
                predicate, *named = name.split()
                if predicate in observed.complete:
                    missing.update(each for each in named if each not in objects)
            if missing - set(declared):
                found[schema] = found[schema] & missing if schema in found else missing
    return {
        schema: tuple(dict.fromkeys((*declared, *sorted(found.get(schema, ())))))
        for schema in {of for of, _ in actions}
    }


def gather(observed: Observed, constants: Mapping[str, Sequence[str]]) -> dict[str, Evidence]:
    """What the full states show about each schema, for complete predicates. `constants` are those of each schema.

    Raises `Unexplained` if an atom changes that no literal of its action names."""
    kept = observed.complete
    split: dict[str, tuple[str, ...]] = {}
    actions = [arguments(name) for name in observed.traces.actions]
    found = {
        schema: Evidence(arity=len(objects), constants=tuple(constants.get(schema, ()))) for schema, objects in actions
    }
    places = [places_of(objects, found[schema].constants) for schema, objects in actions]
    seen: dict[str, set[Literal]] = {schema: set() for schema in found}
    counts: dict[str, dict[Literal, int]] = {schema: {} for schema in found}
    for number in range(len(observed.traces)):
        states, local = observed.states[number], Local(split, kept)
        reached = False
        for at, action in enumerate(observed.traces.valid(number)):
            before, after = states[at], states[at + 1]
            if before is None:
                reached = False
                continue
            if not reached:
                local.move(before.true)
            schema = actions[action][0]
            evidence, where = found[schema], places[action]
            held = {one for name in local.among(where) for one in images(split[name], where)}
            evidence.before = held if not seen[schema] and not evidence.occurrences else evidence.before & held
            for one in held:
                counts[schema][one] = counts[schema].get(one, 0) + 1
            evidence.occurrences += 1
            if after is None:
                reached = False
                continue
            more, fewer = local.move(after.true)
            reached = True
            true: set[Literal] = set()
            for name in local.among(where):
                mine = frozenset(images(split[name], where))
                true |= mine
                if name in more:
                    evidence.added.add(mine)
                evidence.true_after.add(mine)
            evidence.after = true if not seen[schema] and evidence.occurrences == 1 else evidence.after & true
            seen[schema] |= held | true
            for name in fewer:
                words = local.atom(name)
                if words[0] in kept:
                    evidence.deleted.add(frozenset(images(words, where)))
            for kind, changed in (("true", more), ("false", fewer)):
                for name in changed:
                    if split[name][0] in kept and not all(each in where for each in split[name][1:]):
                        raise Unexplained(
                            f"{observed.traces.where(number)}: the atom {name!r} becomes {kind} at action {at + 1}, "
                            f"{observed.traces.actions[action]!r}, which does not name all its objects",
                            split[name][0],
                        )
    for schema, evidence in found.items():
        evidence.false_before = {one for one in seen[schema] if counts[schema].get(one, 0) < evidence.occurrences}
    return found
