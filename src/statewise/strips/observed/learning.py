"""Learns action schemas from traces with observed states.

Each observed predicate is learned by itself: of a complete one, what its atoms show decides its effects and bounds its
preconditions (`bounds`). Predicates that no state shows are found from the actions alone (`exact.lifted`), unless the
states are said to be full, and kept if they forbid more than the observed ones do. If some atoms are wrong and some
actions misread, votes decide (`noisy`), and hidden predicates are not looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from statewise.runtime.messages import counted
from statewise.strips.exact.frame import SECONDS, Clock, Listed, Options, Work
from statewise.strips.exact.lifted import learn_lifted_exact
from statewise.strips.model.schemas import LiftedModel, Literal, Schema, arguments, with_variables
from statewise.strips.model.states import Observed, State
from statewise.strips.observed.bounds import Bounds, Contradiction, Literals, SchemaBounds, bounded, schema_of
from statewise.strips.observed.evidence import Unexplained, constants_of, gather
from statewise.strips.observed.hidden import joined
from statewise.strips.observed.noisy import CONFIDENCE, noisy_bounds
from statewise.strips.observed.partial import PARTS, PartBounds, partly_bounded

__all__ = ["Names", "learn_observed"]


class Names(NamedTuple):
    """What a domain declares."""

    constants: Sequence[str] = ()
    """Objects that actions may name without having them as arguments."""
    fits: Callable[[str, Literal], bool] = lambda schema, literal: True
    """Whether the types of a schema's arguments fit those of a predicate."""
    predicates: Sequence[str] = ()


def learn_observed(
    observed: Observed,
    *,
    hidden: bool = True,
    names: Names | None = None,
    noisy: bool = False,
    noise: float | None = None,
    seconds: float = SECONDS,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[str], None] = lambda text: None,
    listed: Listed | None = None,
) -> LiftedModel:
    """Learns schemas from traces whose actions are written `schema object object`, with observed states.

    `hidden`: also look for predicates that no state shows. `noisy`: some atoms are wrong and some actions misread;
    `noise` is the largest share of each, estimated without it. The other options are those of `frame.Options`.
    `report["bounds"]` says of each literal that is not excluded whether it is certain or only possible; of noisy states
    all of this is right with a probability of `report["states"]["confidence"]`. Raises `ValueError` if no STRIPS model
    explains the states of a complete predicate that is not noisy, if a schema or predicate occurs with different
    numbers of arguments, and for a share of noise outside [0, 0.4]."""
    names = names or Names()
    options: Options = {"seconds": seconds, "stop": stop, "progress": progress}
    if listed is not None:
        options["listed"] = listed
    work = Work("states", observed.traces, **options)
    arity = _arities(observed)
    noise_facts: dict[str, Any] = {}
    if noisy:
        hidden = False
        bounds, rate = noisy_bounds(observed, work.clock, noise=noise, constants=names.constants, fits=names.fits)
        noise_facts = {"noise": round(rate, 4), "confidence": CONFIDENCE}
    else:
        bounds, observed = bounds_of(observed, names, work.clock, lenient=hidden)
    schemas = {schema: bounds[schema].chosen if schema in bounds else Schema() for schema in arity}
    shown = len({literal[0] for schema in schemas.values() for part in schema.parts for literal in part})
    more = 0
    facts: dict[str, Any] = {}
    if hidden:
        left: Options = {**options, "seconds": work.clock.left()}
        found = learn_lifted_exact(observed.traces, **left)
        work.clock.cut += found.report["unfinished"]
        schemas, more = joined(schemas, found.schemas, observed, work.clock)
        if more:
            facts = {key: found.report[key] for key in ("open", "assumed", "few_objects")}
    facts["states"] = {
        "observed": observed.count,
        "complete": sorted(observed.complete),
        "partial": sorted(set(observed.predicates) - observed.complete),
        "hidden": more,
        **noise_facts,
    }
    facts["bounds"] = {schema: _as_plain(each, arity[schema]) for schema, each in bounds.items()}
    facts["never_valid_schemas"] = sorted(set(arity) - set(bounds))
    return work.lifted(schemas, {**facts, "predicates": shown + more})


def bounds_of(
    observed: Observed, names: Names | None = None, clock: Clock | None = None, *, lenient: bool = False
) -> tuple[dict[str, SchemaBounds], Observed]:
    """The bounds of each schema that was valid in some trace, and the traces as they were read.

    Predicates that are complete in all states are decided by `evidence`, the others by `partial`. With `lenient`, a
    complete predicate whose states no STRIPS model explains counts as incomplete: states list only some of its true
    atoms. Raises `ValueError` if no STRIPS model explains the states of a predicate."""
    names, clock = names or Names(), clock or Clock(SECONDS)
    whole = all(state is not None for place in range(len(observed.traces)) for state in _between(observed, place))
    while True:
        try:
            full = observed.complete if whole else frozenset[str]()
            return _bounded(observed, full, names, clock), observed
        except (Unexplained, Contradiction) as error:
            if lenient and error.predicate in observed.complete:
                observed = observed.with_complete(observed.complete - {error.predicate})
                continue
            raise ValueError(
                f"no STRIPS model explains the states of {error.predicate!r}: {error}. If states list only some of the "
                "true atoms, read them as such (--states some); if some are wrong, say so (--noise auto), or ignore "
                "them (--states none)"
            ) from None


def _between(observed: Observed, place: int) -> Sequence[State | None]:
    """The states before and after the valid actions of a trace."""
    return observed.states[place][: len(observed.traces.valid(place)) + 1]


def _bounded(observed: Observed, full: frozenset[str], names: Names, clock: Clock) -> dict[str, SchemaBounds]:
    """The bounds of each schema; the predicates `full` are complete in all states."""
    read = observed.with_complete(full)
    happened = {
        arguments(observed.traces.actions[at])[0]
        for place in range(len(observed.traces))
        for at in observed.traces.valid(place)
    }
    constants = constants_of(read, names.constants)
    bounds = {
        schema: bounded(evidence, partial(names.fits, schema))
        for schema, evidence in gather(read, constants).items()
        if schema in happened
    }
    arity = _arities(observed)
    for predicate, count in observed.predicates.items():
        if predicate not in full:
            parts = partly_bounded(observed, predicate, count, clock, names.constants, names.fits)
            for schema, before in bounds.items():
                bounds[schema] = _together(before, parts, schema, arity[schema], names.constants)
    return bounds


def _together(
    before: SchemaBounds, parts: PartBounds, schema: str, arity: int, constants: Sequence[str]
) -> SchemaBounds:
    """The bounds of a schema with those of one more predicate."""
    bounds = [
        Bounds(one.certain | other.certain, one.possible | other.possible)
        for one, other in zip((before.pre, before.add, before.delete), (parts.bounds(schema, part) for part in PARTS))
    ]
    named = before.constants or tuple(constants)
    chosen = [
        _widened(part, before.chosen, arity, named) | parts.chosen_of(schema, which)
        for which, part in zip(PARTS, before.chosen.parts)
    ]
    pre, add, delete = bounds
    made = schema_of(chosen[0], chosen[1], chosen[2], arity, named)
    return SchemaBounds(pre, add, delete, made, named, before.kept | parts.kept(schema))


def _widened(part: Literals, schema: Schema, arity: int, named: Sequence[str]) -> Literals:
    """Literals of a schema, whose constants are some of the objects `named`, with the numbers of all of these."""
    new = {arity + at: arity + named.index(name) for at, name in enumerate(schema.constants)}
    return frozenset((predicate, tuple(new.get(at, at) for at in places)) for predicate, places in part)


def _arities(observed: Observed) -> dict[str, int]:
    """The number of arguments of each schema. Raises `ValueError` if one occurs with different numbers."""
    arity: dict[str, int] = {}
    for name in observed.traces.actions:
        schema, objects = arguments(name)
        if arity.setdefault(schema, len(objects)) != len(objects):
            raise ValueError(
                f"the schema {schema!r} occurs with {arity[schema]} and with {counted(len(objects), 'argument')}, "
                f"as in {name!r}: rename one of them"
            )
    return arity


def _as_plain(bounds: SchemaBounds, arity: int) -> dict[str, dict[str, list[str]]]:
    """Bounds as plain data for the report: literals as text."""
    constants = bounds.constants
    parts: Mapping[str, Bounds] = {"pre": bounds.pre, "add": bounds.add, "delete": bounds.delete}

    def plain(literals: Literals) -> list[str]:
        return sorted(with_variables(one, arity, constants) for one in literals)

    found = {
        which: {"certain": plain(part.certain), "possible": plain(part.possible - part.certain)}
        for which, part in parts.items()
    }
    found["delete"]["excluded"] = plain(bounds.kept)
    return found
