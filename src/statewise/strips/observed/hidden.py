"""Predicates that no state shows, beside those that states show.

A hidden predicate is worth keeping if it forbids actions that the observed predicates allow. At each position of a
trace some ground actions are allowed by the observed predicates, and the hidden one forbids some of these. If c
happened n times where a share r of the allowed places is not forbidden, chance would have kept it there with
probability r^n: this saves n log2(1 / r) bits, which have to pay for the description of the predicate.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from math import log2

from statewise.strips.exact.frame import Clock
from statewise.strips.model.heads import EVIDENCE
from statewise.strips.model.model import Atoms
from statewise.strips.model.schemas import Schema, arguments, ground
from statewise.strips.model.states import Observed


def joined(
    schemas: Mapping[str, Schema], found: Mapping[str, Schema], observed: Observed, clock: Clock
) -> tuple[dict[str, Schema], int]:
    """The schemas with those predicates of `found` that the traces support beside them, named p0, p1, ..., and how many
    these are. Once the time is up, the remaining ones are left out."""
    kept = dict(schemas)
    taken = {literal[0] for schema in schemas.values() for part in schema.parts for literal in part}
    taken |= set(observed.predicates)
    number = 0
    for predicate in sorted({literal[0] for schema in found.values() for part in schema.parts for literal in part}):
        if not clock.has_time():
            clock.cut.append("comparing hidden predicates with the observed ones")
            break
        called = next(name for name in (f"p{place}" for place in count()) if name not in taken)
        more = {
            name: _extended(kept.get(name, Schema()), found.get(name, Schema()), predicate, called)
            for name in {**kept, **found}
        }
        size = sum(literal[0] == called for schema in more.values() for part in schema.parts for literal in part)
        if saved(more, called, observed, clock) >= EVIDENCE * size:
            taken.add(called)
            kept, number = more, number + 1
    return kept, number


def saved(schemas: Mapping[str, Schema], hidden: str, observed: Observed, clock: Clock) -> float:
    """The bits that a hidden predicate saves beside the other ones of the schemas."""
    actions = observed.traces.actions
    model = ground(schemas, actions)
    bit = {atom: 1 << at for at, atom in enumerate(model.atoms)}
    mine = sum(bit[atom] for atom in model.atoms if arguments(atom)[0] == hidden)
    complete = sum(bit[atom] for atom in model.atoms if arguments(atom)[0] in observed.complete)
    of = [arguments(name) for name in actions]
    allowed: dict[str, int] = {}
    free: dict[str, int] = {}
    times: dict[str, int] = {}
    for place in clock.reading(range(len(observed.traces))):
        row, states = observed.traces.valid(place), observed.states[place]
        among = sorted(set(row))
        known_false: Atoms = 0
        for at, action in enumerate(row):
            state = states[at]
            if state is not None:
                known_false = known_false & ~complete | complete & ~_true(state.true, bit)
                for other in among:
                    pre = model.actions[other].pre
                    if not pre & known_false & ~mine:
                        schema = of[other][0]
                        allowed[schema] = allowed.get(schema, 0) + 1
                        free[schema] = free.get(schema, 0) + (not pre & known_false)
                times[of[action][0]] = times.get(of[action][0], 0) + 1
            known_false = known_false & ~model.actions[action].add | model.actions[action].delete
    return sum(n * log2(allowed[schema] / free[schema]) for schema, n in times.items() if free.get(schema))


def _true(atoms: frozenset[str], bit: Mapping[str, int]) -> Atoms:
    return sum(bit[atom] for atom in atoms if atom in bit)


def _extended(schema: Schema, other: Schema, predicate: str, called: str) -> Schema:
    """The schema with the literals of a predicate of another one, under another name."""
    parts = [
        part | {(called, places) for name, places in more if name == predicate}
        for part, more in zip(schema.parts, other.parts)
    ]
    return Schema(*parts, constants=schema.constants, arity=schema.arity)
