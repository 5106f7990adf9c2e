"""A finite instance that represents all: what pairs of atoms prove there, they prove for any number of objects.

Two ground models whose actions are written `schema object object` and atoms `predicate object object` are *lifted* if
all ground actions of a schema are copies of each other, up to the names of their objects. Every step of the bound of
`pair_proof` mentions the objects of one action and of two atoms, and only asks which of them are equal. So a step in a
larger instance can be renamed, one to one, into an instance with as many objects of each sort as one step can mention,
and all ground actions over them: if the bound proves something there, it does so in every instance, with any number of
objects and any subset of these ground actions. `docs/strips.md` has the proof.

Real states are represented by the pairs of atoms that they can hold, up to renaming. A proof is valid for every initial
state that has no other pair, for the kinds of actions that occur in the given instance, and for objects of its sorts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product

from statewise.strips.model.lifted_model import sorts_of
from statewise.strips.model.model import ActionModel, bits
from statewise.strips.model.schemas import Literal, Schema, arguments
from statewise.strips.verification.pair_proof import Pairs, closed
from statewise.strips.verification.search import Limits

MOST_ACTIONS = 3_000
"""Larger instances are not built."""

Kind = tuple[str, tuple[int, ...]]
"""A schema, and the number of the object at each argument: `drive t a a` is ("drive", (0, 1, 1))."""

Shape = tuple[tuple[tuple[str, tuple[int, ...]], ...], tuple[int, ...]]
"""Atoms up to the names of their objects: each predicate with the numbers of its objects, by first occurrence; and the
sort of each object."""


def shape_of(atoms: Iterable[str], sorts: Mapping[str, int]) -> Shape:
    """The atoms up to renaming."""
    numbers: dict[str, int] = {}
    shape = []
    for atom in atoms:
        predicate, objects = arguments(atom)
        shape.append((predicate, tuple(numbers.setdefault(name, len(numbers)) for name in objects)))
    return tuple(shape), tuple(sorts[name] for name in numbers)


@dataclass(frozen=True)
class CutOff:
    """Two lifted models over the instance that represents all."""

    learned: ActionModel
    reference: ActionModel
    sorts: Mapping[str, int]
    """The sort of each object."""
    given: Mapping[str, int]
    """The sort of each object of the given instance."""

    def pairs(self, seen: Pairs, model: ActionModel, limits: Limits) -> Pairs:
        """The pairs of atoms of the reference that are possible in real states: those `seen` in the given instance, up
        to renaming, and all that the actions make possible from them. `model` is the reference over the given instance.
        Raises `LimitReached`."""
        used = 0
        for action in model.actions:
            used |= action.pre | action.add | action.delete
        shapes = {
            shape_of((model.atoms[one], model.atoms[other]), self.given)
            for one in bits(used)
            for other in bits(seen[one] & used)
        }
        atoms = self.reference.atoms
        mine = [
            sum(1 << other for other, name in enumerate(atoms) if shape_of((atom, name), self.sorts) in shapes)
            for atom in atoms
        ]
        return closed(mine, self.reference.actions, limits)

    def excluded(self, pairs: Pairs) -> list[str]:
        """The pairs of atoms of the reference that are impossible, up to renaming, as text with variables."""
        atoms, found = self.reference.atoms, dict[Shape, tuple[str, ...]]()
        for one, others in enumerate(pairs):
            for other in range(one, len(atoms)):
                if others >> other & 1 or (one != other and not (others and pairs[other])):
                    continue  # possible, or one of them is never true, which is listed once
                both = (atoms[one],) if one == other else (atoms[one], atoms[other])
                found.setdefault(min(shape_of(way, self.sorts) for way in (both, both[::-1])), both)
        return [" and ".join(_with_variables(both)) for both in found.values()]


def cut_off(learned: ActionModel, reference: ActionModel) -> CutOff | None:
    """The instance for two models over the same actions; None if they are not lifted, or it would be too large."""
    words = {*learned.names, *learned.atoms, *reference.atoms}
    if any(" ".join(name.split()) != name or not name for name in words):
        return None  # not words with single spaces between: two names could be read as one
    try:
        _, sorts = sorts_of(learned.names)
    except ValueError:
        return None
    lifted = [found for model in (learned, reference) if (found := _lifted(model)) is not None]
    if not sorts or len(lifted) < 2:
        return None
    kinds = {
        _kind(*arguments(name)): tuple(sorts[each] for each in dict.fromkeys(arguments(name)[1]))
        for name in learned.names
    }
    of_atoms: Counter[int] = Counter()  # the most objects of each sort in one atom
    for schemas in lifted:
        for kind, schema in schemas.items():
            for _, places in schema.pre | schema.add | schema.delete:
                of_atoms |= Counter(kinds[kind][place] for place in set(places))
    of_actions: Counter[int] = Counter()
    for objects in kinds.values():
        of_actions |= Counter(objects)
    names = {
        sort: [f"{sort}.{number}" for number in range(count + 2 * of_atoms[sort])] for sort, count in of_actions.items()
    }
    ground = []
    for kind, objects in kinds.items():
        for chosen in _assignments(objects, names):
            ground.append((kind, chosen, " ".join((kind[0], *(chosen[place] for place in kind[1])))))
            if len(ground) > MOST_ACTIONS:
                return None
    models = [_grounded(schemas, ground) for schemas in lifted]
    return CutOff(models[0], models[1], {name: sort for sort, each in names.items() for name in each}, sorts)


def _kind(schema: str, objects: Sequence[str]) -> Kind:
    numbers: dict[str, int] = {}
    return schema, tuple(numbers.setdefault(name, len(numbers)) for name in objects)


def _lifted(model: ActionModel) -> dict[Kind, Schema] | None:
    """For each kind of ground action its effects, with its objects as numbers; None if two actions of a kind differ, or
    mention an object that is not an argument."""
    found: dict[Kind, Schema] = {}
    for action in model.actions:
        schema, objects = arguments(action.name)
        number = {name: place for place, name in enumerate(dict.fromkeys(objects))}
        parts = []
        for atoms in (action.pre, action.add & ~action.delete, action.delete):
            literals: set[Literal] = set()
            for atom in model.spelled(atoms):
                predicate, named = arguments(atom)
                if not number.keys() >= set(named):
                    return None
                literals.add((predicate, tuple(number[name] for name in named)))
            parts.append(frozenset(literals))
        made = Schema(*parts)
        if found.setdefault(_kind(schema, objects), made) != made:
            return None
    return found


def _assignments(sorts: Sequence[int], names: Mapping[int, Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """All tuples of different objects of these sorts."""
    places = {sort: [place for place, each in enumerate(sorts) if each == sort] for sort in sorts}
    for chosen in product(*(permutations(names[sort], len(mine)) for sort, mine in places.items())):
        objects = [""] * len(sorts)
        for mine, given in zip(places.values(), chosen):
            for place, name in zip(mine, given):
                objects[place] = name
        yield tuple(objects)


def _grounded(schemas: Mapping[Kind, Schema], actions: Iterable[tuple[Kind, tuple[str, ...], str]]) -> ActionModel:
    atoms: dict[str, None] = {}
    effects = {}
    for kind, objects, name in actions:
        schema = schemas[kind]
        parts = [
            [" ".join((predicate, *(objects[place] for place in places))) for predicate, places in sorted(literals)]
            for literals in (schema.pre, schema.add, schema.delete)
        ]
        for part in parts:
            atoms.update(dict.fromkeys(part))
        effects[name] = (parts[0], parts[1], parts[2])
    return ActionModel.of(list(atoms), effects)


def _with_variables(atoms: Sequence[str]) -> list[str]:
    shape, _ = shape_of(atoms, Counter())  # of no sort
    return [" ".join((predicate, *("xyzuvwst"[place % 8] for place in places))) for predicate, places in shape]
