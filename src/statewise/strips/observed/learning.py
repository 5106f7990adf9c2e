"""Learns action schemas from traces with observed states.

Each observed predicate is learned by itself: of a complete one, what its atoms show decides its effects and bounds its
preconditions (`bounds`). Predicates that no state shows are found from the actions alone (`exact.lifted`), unless the
states are said to be full, and kept if they forbid more than the observed ones do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Unpack

from statewise.runtime.messages import counted
from statewise.strips.exact.frame import Options, Work
from statewise.strips.exact.lifted import learn_lifted_exact
from statewise.strips.model.schemas import LiftedModel, Literal, Schema, arguments, with_variables
from statewise.strips.model.states import Observed
from statewise.strips.observed.bounds import Bounds, Contradiction, SchemaBounds, bounded
from statewise.strips.observed.evidence import Unexplained, constants_of, gather
from statewise.strips.observed.hidden import joined

__all__ = ["Names", "learn_observed"]


class Names(NamedTuple):
    """What a domain declares."""

    constants: Sequence[str] = ()
    """Objects that actions may name without having them as arguments."""
    fits: Callable[[str, Literal], bool] = lambda schema, literal: True
    """Whether the types of a schema's arguments fit those of a predicate."""
    predicates: Sequence[str] = ()


def learn_observed(
    observed: Observed, *, hidden: bool = True, names: Names | None = None, **options: Unpack[Options]
) -> LiftedModel:
    """Learns schemas from traces whose actions are written `schema object object`, with observed states.

    `hidden`: also look for predicates that no state shows. `report["bounds"]` says of each literal that is not excluded
    whether it is certain or only possible. Raises `ValueError` if no STRIPS model explains the states of a complete
    predicate, or if a schema or predicate occurs with different numbers of arguments."""
    names = names or Names()
    work = Work("states", observed.traces, options)
    arity = _arities(observed)
    bounds = bounds_of(observed, names)
    schemas = {schema: bounds[schema].chosen if schema in bounds else Schema() for schema in arity}
    shown = len({literal[0] for schema in schemas.values() for part in schema.parts for literal in part})
    more = 0
    facts: dict[str, Any] = {}
    if hidden:
        found = learn_lifted_exact(observed.traces, **{**options, "seconds": work.clock.left()})
        work.clock.cut += found.report["unfinished"]
        schemas, more = joined(schemas, found.schemas, observed, work.clock)
        if more:
            facts = {key: found.report[key] for key in ("open", "assumed", "few_objects")}
    facts["states"] = {
        "observed": observed.count,
        "complete": sorted(observed.complete),
        "partial": sorted(set(observed.predicates) - observed.complete),
        "hidden": more,
    }
    facts["bounds"] = {schema: _as_plain(each, arity[schema]) for schema, each in bounds.items()}
    facts["never_valid_schemas"] = sorted(set(arity) - set(bounds))
    return work.lifted(schemas, {**facts, "predicates": shown + more})


def bounds_of(observed: Observed, names: Names | None = None) -> dict[str, SchemaBounds]:
    """The bounds of each schema that was valid between two states. Raises `ValueError` if no STRIPS model explains the
    states of a complete predicate."""
    names = names or Names()
    bounds = {}
    try:
        constants = constants_of(observed, names.constants)
        for schema, evidence in gather(observed, constants).items():
            if evidence.occurrences:
                bounds[schema] = bounded(evidence, partial(names.fits, schema))
    except (Unexplained, Contradiction) as error:
        raise ValueError(
            f"no STRIPS model explains the states of {error.predicate!r}: {error}. If states list only some of the "
            "true atoms, read them as such (--states some); if they are wrong, ignore them (--states none)"
        ) from None
    return bounds


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
    return {
        which: {
            "certain": sorted(with_variables(one, arity, constants) for one in part.certain),
            "possible": sorted(with_variables(one, arity, constants) for one in part.possible - part.certain),
        }
        for which, part in parts.items()
    }
