"""Proofs by pairs of atoms, without enumerating states: bounds on the length of a trace on which two models differ.

A trace that a head rejects and a model accepts is `a w c` (see `search`). For every pair of atoms this
over-approximates whether both can be true together after `a` and a number of further actions (`model.pairs`). If the
pairs of preconditions never become possible for any action `c`, there is no such trace: induction over `w` excludes the
pairs that stay impossible. There are two kinds of atoms: those of the real state, true or false, and those of the
accepting model, which are *fine* unless they are known to be false (Definition 1). Without real states there are only
the latter.

What pairs of atoms prove in a certain finite instance (`cut_off`), they prove for any number of objects. Two ground
models whose actions are written `schema object object` and atoms `predicate object object` are *lifted* if all ground
actions of a schema are copies of each other, up to the names of their objects. Every step of the bound mentions the
objects of one action and of two atoms, and only asks which of them are equal. So a step in a larger instance can be
renamed, one to one, into an instance with as many objects of each sort as one step can mention, and all ground actions
over them: if the bound proves something there, it does so in every instance, with any number of objects and any subset
of these ground actions. `docs/strips.md` has the proof. Real states are represented by the pairs of atoms that they can
hold, up to renaming. A proof is valid for every initial state that has no other pair, for the kinds of actions that
occur in the given instance, and for objects of its sorts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, permutations, product

from statewise.strips.model.heads import Head
from statewise.strips.model.model import Action, ActionModel, Atoms, bits
from statewise.strips.model.pairs import Pairs, add_pairs, closed, ever_true, together
from statewise.strips.model.schemas import Literal, Schema, applied, arguments, ground_model, sorts_of
from statewise.strips.verification.search import Limits


def spread(pairs: Pairs, actions: Iterable[Action], limits: Limits) -> Iterator[None]:
    """Adds to `pairs` those that one more action can make possible; yields after each action that added some. Raises
    `LimitReached`."""
    split = [(list(bits(each.pre)), each.pre, list(bits(each.add)), each) for each in actions]
    while True:
        limits.look_at_the_clock()
        before, possible = list(pairs), ever_true(pairs)
        for required, pre, added, action in split:
            holds = possible
            for atom in required:
                holds &= before[atom]
            if pre & ~holds:
                continue
            beside = (holds | action.add) & ~action.delete
            for atom in added:
                add_pairs(pairs, atom, beside)
        if pairs == before:
            return
        yield


def after(pairs: Pairs, action: Action) -> Pairs | None:
    """The pairs that are possible right after the action; None if it is impossible."""
    holds = together(pairs, action.pre)
    if holds is None:
        return None
    added, kept = action.add, holds & ~action.delete & ~action.add
    return [
        (kept | added) if added >> atom & 1 else (pairs[atom] & kept | added) if kept >> atom & 1 else 0
        for atom in range(len(pairs))
    ]


class PairBound:
    """Bounds the length of the traces that a model accepts and a head of another model rejects.

    With `real`, the true model and the pairs of its atoms that are possible in real states, only traces count whose
    actions, except the last, are applicable in turn from a real state; with `last_is_done` the last one must be
    applicable, too. All models have the same actions in the same order.
    """

    def __init__(
        self, accepting: ActionModel, real: tuple[ActionModel, Pairs] | None, limits: Limits, *, last_is_done: bool
    ) -> None:
        self.limits = limits
        true, base = real if real is not None else (accepting.with_atoms([]), [])
        shift, fine = len(true.atoms), (1 << len(accepting.atoms)) - 1
        self.actions = [
            Action(
                one.name, state.pre | one.pre << shift, state.add | one.add << shift, state.delete | one.delete << shift
            )
            for state, one in zip(true.actions, accepting.actions)
        ]
        states = ever_true(base)
        self.pairs: Pairs = [
            *(others | fine << shift if others else 0 for others in base),
            *([states | fine << shift] * len(accepting.atoms)),
        ]
        """The pairs that are possible before `a`, where every atom of the accepting model is fine."""
        self.last = [
            action.pre if last_is_done else one.pre << shift for action, one in zip(self.actions, accepting.actions)
        ]
        """The atoms that each action requires as the last one, `c`."""

    def shortest(self, head: Head) -> int | None:
        """A lower bound on the number of actions; None if there is no such trace. Raises `LimitReached`."""
        between = [action for number, action in enumerate(self.actions) if not head.touching >> number & 1]
        goals = {self.last[number] for number in bits(head.pre)}
        all_begins = (after(self.pairs, self.actions[number]) for number in bits(head.delete))
        begins = [pairs for pairs in all_begins if pairs is not None]
        if not begins:
            return None
        bound = self._first(_union(begins), between, goals)
        if bound is None or len(begins) == 1:
            return bound
        return min((each for begin in begins if (each := self._first(begin, between, goals)) is not None), default=None)

    def _first(self, pairs: Pairs, actions: Sequence[Action], goals: Iterable[Atoms]) -> int | None:
        for length, _ in enumerate(chain([None], spread(pairs, actions, self.limits)), 2):
            if any(together(pairs, goal) is not None for goal in goals):
                return length
        return None


def _union(several: Sequence[Pairs]) -> Pairs:
    total = [0] * len(several[0])
    for pairs in several:
        total = [one | other for one, other in zip(total, pairs)]
    return total


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
        return closed(mine, self.reference.actions, limits.look_at_the_clock)

    def excluded(self, pairs: Pairs) -> list[str]:
        """The pairs of atoms of the reference that are impossible, up to renaming, as text with variables."""
        atoms, excluded = self.reference.atoms, dict[Shape, tuple[str, ...]]()
        for one, others in enumerate(pairs):
            for other in range(one, len(atoms)):
                if others >> other & 1 or (one != other and not (others and pairs[other])):
                    continue  # possible, or one of them is never true, which is listed once
                both = (atoms[one],) if one == other else (atoms[one], atoms[other])
                excluded.setdefault(min(shape_of(way, self.sorts) for way in (both, both[::-1])), both)
        return [" and ".join(_with_variables(both)) for both in excluded.values()]


def cut_off(learned: ActionModel, reference: ActionModel) -> CutOff | None:
    """The instance for two models over the same actions; None if they are not lifted, or it would be too large."""
    words = {*learned.names, *learned.atoms, *reference.atoms}
    if any(" ".join(name.split()) != name or not name for name in words):
        return None  # not words with single spaces between: two names could be read as one
    try:
        _, sorts = sorts_of(learned.names)
    except ValueError:
        return None
    lifted = [schemas for model in (learned, reference) if (schemas := _lifted(model)) is not None]
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
    actions = []
    for kind, objects in kinds.items():
        for chosen in _assignments(objects, names):
            actions.append((applied(kind, chosen), kind, chosen))
            if len(actions) > MOST_ACTIONS:
                return None
    models = [ground_model((name, schemas[kind], chosen) for name, kind, chosen in actions) for schemas in lifted]
    return CutOff(models[0], models[1], {name: sort for sort, each in names.items() for name in each}, sorts)


def _kind(schema: str, objects: Sequence[str]) -> Kind:
    numbers: dict[str, int] = {}
    return schema, tuple(numbers.setdefault(name, len(numbers)) for name in objects)


def _lifted(model: ActionModel) -> dict[Kind, Schema] | None:
    """For each kind of ground action its effects, with its objects as numbers; None if two actions of a kind differ, or
    mention an object that is not an argument."""
    by_kind: dict[Kind, Schema] = {}
    for action in model.actions:
        schema, objects = arguments(action.name)
        number = {name: place for place, name in enumerate(dict.fromkeys(objects))}
        parts = []
        for atoms in action.parts:
            literals: set[Literal] = set()
            for atom in model.spelled(atoms):
                predicate, named = arguments(atom)
                if not number.keys() >= set(named):
                    return None
                literals.add((predicate, tuple(number[name] for name in named)))
            parts.append(frozenset(literals))
        made = Schema(*parts)
        if by_kind.setdefault(_kind(schema, objects), made) != made:
            return None
    return by_kind


def _assignments(sorts: Sequence[int], names: Mapping[int, Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """All tuples of different objects of these sorts."""
    places = {sort: [place for place, each in enumerate(sorts) if each == sort] for sort in sorts}
    for chosen in product(*(permutations(names[sort], len(mine)) for sort, mine in places.items())):
        objects = [""] * len(sorts)
        for mine, names_of_sort in zip(places.values(), chosen):
            for place, name in zip(mine, names_of_sort):
                objects[place] = name
        yield tuple(objects)


def _with_variables(atoms: Sequence[str]) -> list[str]:
    shape, _ = shape_of(atoms, Counter())  # of no sort
    return [" ".join((predicate, *("xyzuvwst"[place % 8] for place in places))) for predicate, places in shape]
