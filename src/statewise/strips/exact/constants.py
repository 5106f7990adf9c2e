"""Preconditions on constants: objects that an action requires without having them as arguments.

`put_on_tray s t` of the domain childsnack requires `(at t kitchen)`. Such a literal has a predicate that was found
already, a constant at one of its places, and arguments of the action at the others. It may be required if its atom was
never known to be false before an action of the schema, and it is required if what it rejects in addition to all other
preconditions is worth its description (`preconditions` has the code), as heads in a pool are (`heads.evidence`).

Which objects are constants has to be said: in one instance any object may be special, by facts that never change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from math import log2
from typing import NamedTuple

import numpy as np

from statewise.strips.exact.elementary import with_complements
from statewise.strips.exact.frame import Clock
from statewise.strips.exact.preconditions import bits_to_code, known_false
from statewise.strips.exact.predicates import Predicate, ground_entries, grounded
from statewise.strips.model.heads import EVIDENCE
from statewise.strips.model.schemas import Schema, arguments, sorts_of
from statewise.strips.model.traces import Traces

WEIGHING = "weighing preconditions on constants"
POSITIONS = 5_000
"""The most positions of the traces at which preconditions are weighed, drawn at random."""
BLOCK = 1024


class OnConstant(NamedTuple):
    """A precondition of a schema that names a constant."""

    schema: str
    predicate: int
    """The number of the predicate."""
    terms: tuple[int | str, ...]
    """At each place of the predicate an argument of the schema, or the constant."""


def required_constants(
    predicates: Sequence[Predicate], constants: Sequence[str], traces: Traces, clock: Clock
) -> list[OnConstant]:
    """The preconditions on `constants` that the valid actions of the traces support beside the predicates; none of
    them rejects a valid trace. Fewer if there is no time left."""
    traces = traces.valid_only()
    if not constants or not any(each.signature.sorts for each in predicates) or not clock.has_time():
        return []
    places = _Positions(predicates, constants, traces, clock)
    chosen: list[OnConstant] = []
    while clock.has_time():
        best = places.best()
        if best is None or not clock.has_time():
            break
        if places.sound(best):
            chosen.append(best)
        places.take(best)
    if not clock.has_time():
        clock.cut.append(WEIGHING)
    return chosen


def with_constants(
    schemas: Mapping[str, Schema], required: Sequence[OnConstant], actions: Sequence[str]
) -> dict[str, Schema]:
    """The schemas of `actions`, whose predicates are named p0, p1, ..., with these preconditions."""
    more = dict(schemas)
    width = {schema: len(objects) for schema, objects in map(arguments, actions)}
    for schema, predicate, terms in required:
        of = more[schema]
        constant = next(each for each in terms if isinstance(each, str))
        constants = of.constants if constant in of.constants else (*of.constants, constant)
        places = tuple(each if isinstance(each, int) else width[schema] + constants.index(constant) for each in terms)
        pre = of.pre | {(f"p{predicate}", places)}
        more[schema] = replace(of, pre=pre, constants=constants, arity=width[schema])
    return more


class _Positions:
    """Which ground atoms are known to be false, and which actions are allowed, at positions of the traces."""

    def __init__(self, predicates: Sequence[Predicate], constants: Sequence[str], traces: Traces, clock: Clock) -> None:
        self.traces, self.clock = traces, clock
        self.arguments = [arguments(name) for name in traces.actions]
        self.predicates = with_complements(predicates)
        heads, _ = grounded(self.predicates, traces.actions)
        self.effects = heads.delete.T, heads.add.T
        self.number: dict[tuple[int, tuple[str, ...]], int] = {}
        for entry in ground_entries(self.predicates, traces.actions):
            objects = self.arguments[entry.action][1]
            slot = self.predicates[entry.owner].signature.slots[entry.slot]
            self.number[entry.owner, tuple(objects[at] for at in slot[1])] = entry.head
        act, _, known = known_false(traces, *self.effects, clock.has_time)
        if len(act) > POSITIONS:
            kept = np.sort(np.random.default_rng(0).choice(len(act), POSITIONS, replace=False))
            act, known = act[kept], known[kept]
        self.count = len(heads)
        self.act, self.known = act, known
        self.required = [np.flatnonzero(heads.pre[:, a]).tolist() for a in range(len(traces.actions))]
        """The atoms that each action requires."""
        self.of_schema: dict[str, list[int]] = {}
        for number, (schema, _) in enumerate(self.arguments):
            self.of_schema.setdefault(schema, []).append(number)
        self.parameters, objects_of = sorts_of(traces.actions)
        self.objects: dict[int, list[str]] = {}
        """The constants of each sort."""
        for name in sorted(set(constants) & objects_of.keys()):
            self.objects.setdefault(objects_of[name], []).append(name)
        self.refused: set[OnConstant] = set()

    def best(self) -> OnConstant | None:
        """The precondition that saves most, if it saves enough; None also if there is no time left."""
        beyond, happened, allowed = self._counts()
        if beyond is None:
            return None
        found: list[tuple[float, OnConstant]] = []
        count = 0
        occurs = np.bincount(self.act, minlength=len(self.arguments))
        for schema, actions in self.of_schema.items():
            k, n = float(occurs[actions].sum()), float(allowed[actions].sum())
            if not k:
                continue
            for predicate, each in enumerate(self.predicates):
                sorts = each.signature.sorts
                for at, sort in enumerate(sorts):
                    rest = [place for place in range(len(sorts)) if place != at]
                    width = len(self.arguments[actions[0]][1])
                    for chosen in permutations(range(width), len(rest)):
                        if any(self.parameters[schema, one] != sorts[place] for one, place in zip(chosen, rest)):
                            continue
                        for constant in self.objects.get(sort, ()):
                            terms: list[int | str] = [constant] * len(sorts)
                            for one, place in zip(chosen, rest):
                                terms[place] = one
                            literal = OnConstant(schema, predicate, tuple(terms))
                            count += 1
                            pairs = [(head, a) for a in actions if (head := self._head(literal, a)) is not None]
                            if not pairs or literal in self.refused:
                                continue
                            one, other = np.array(pairs).T
                            rejects = float(beyond[one, other].sum())
                            if rejects and not happened[one, other].any():
                                saved = bits_to_code(k, n) - bits_to_code(k, n - rejects)
                                found.append((float(saved), literal))
        if not found:
            return None
        saved_most, best = max(found, key=lambda each: (each[0], each[1].schema, -each[1].predicate))
        price = log2(max(2, count)) + log2(max(2, len(self.act))) / 2
        return best if saved_most >= EVIDENCE * price else None

    def take(self, literal: OnConstant) -> None:
        """Adds a precondition to those that are weighed against, or refuses it if it is not sound."""
        self.refused.add(literal)
        if not self.sound(literal):
            return
        for a in self.of_schema[literal.schema]:
            head = self._head(literal, a)
            if head is not None:
                self.required[a].append(head)

    def sound(self, literal: OnConstant) -> bool:
        """Whether its atoms are never known to be false before an action of its schema, in all traces."""
        head_of = {a: self._head(literal, a) for a in self.of_schema[literal.schema]}
        heads = sorted({each for each in head_of.values() if each is not None})
        delete, add = (effect[:, heads] for effect in self.effects)
        act, _, known = known_false(self.traces, delete, add)
        false = np.unpackbits(known, axis=1, count=len(heads)).astype(bool)
        return not any(false[act == a, heads.index(head)].any() for a, head in head_of.items() if head is not None)

    def _head(self, literal: OnConstant, action: int) -> int | None:
        """The number of the atom of a literal; None if nothing affects it, so that it is never known to be false."""
        objects = self.arguments[action][1]
        named = tuple(each if isinstance(each, str) else objects[each] for each in literal.terms)
        return self.number.get((literal.predicate, named))

    def _counts(self) -> tuple[np.ndarray | None, np.ndarray, np.ndarray]:
        """[H, A] at how many positions an atom is known to be false and an action is allowed, and before how many
        occurrences of the action it is; and [A] at how many positions each action is allowed. None without time."""
        size = self.count, len(self.arguments)
        beyond, happened = np.zeros(size, dtype=np.float32), np.zeros(size, dtype=np.float32)
        allowed = np.zeros(size[1])
        pairs = [(a, head) for a, of in enumerate(self.required) for head in of]
        action, head = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        first = np.flatnonzero(np.r_[True, np.diff(action) > 0]) if len(action) else action
        for begin in range(0, len(self.act), BLOCK):
            if not self.clock.has_time():
                return None, happened, allowed
            false = np.unpackbits(self.known[begin : begin + BLOCK], axis=1, count=size[0]).astype(bool)
            free = np.ones((len(false), size[1]), dtype=bool)
            if len(action):
                free[:, action[first]] = ~np.logical_or.reduceat(false[:, head], first, axis=1)
            as_numbers = false.astype(np.float32).T
            beyond += as_numbers @ free.astype(np.float32)
            np.add.at(happened.T, self.act[begin : begin + BLOCK], as_numbers.T)
            allowed += free.sum(0)
        return beyond, happened, allowed
