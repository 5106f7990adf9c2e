"""Which terms of the state are arguments that a log leaves out, and the log with these arguments.

An object of an atom that an action changes, and that the action does not name, is an argument for certain. A term that
only preconditions need is an argument if what it forbids is worth its description (as hidden predicates are judged,
`observed.hidden`). The terms that a definition needs are arguments, too, so that PDDL can express it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import log2
from typing import Any

from statewise.runtime.messages import counted
from statewise.strips.implicit.terms import Definition, Facts, Objects, Search, Sorts, Term
from statewise.strips.model.heads import EVIDENCE
from statewise.strips.model.schemas import Literal, arguments
from statewise.strips.model.states import Observed, State
from statewise.strips.model.traces import Traces

MOST_PLACES = 3_000
"""The most pairs of a state and arguments in which is counted what a term forbids."""


@dataclass(frozen=True)
class Argument:
    """An argument that a log leaves out."""

    definition: Definition
    """What determines it: queries over the arguments before it that have one answer in common."""
    why: str
    """`effect`, if an atom that the action changes names it; `definition`, if another argument needs it;
    `precondition`, if only preconditions name it."""

    def as_text(self, number: int) -> str:
        """The definition in words; this is the argument `number`, from 0."""
        return " and ".join(query.as_text(number) for query in self.definition)


@dataclass
class Explicit:
    """A log with all arguments."""

    observed: Observed
    """Stretches of the log in which all arguments are known, as traces of their own: what follows a state in which an
    argument is unknown is another trace."""
    shown: dict[str, int]
    """The number of arguments that the log names, of each schema."""
    left_out: dict[str, list[Argument]]
    """The arguments of each schema that the log leaves out; in `observed` they follow the others."""
    unresolved: int = 0
    """The number of actions that were left out, since the state before them is not known, or does not determine their
    arguments."""
    unseen: list[str] = field(default_factory=list)
    """Schemas that never occur after an observed state: nothing is known about their arguments."""

    def report(self) -> dict[str, Any]:
        """The arguments as plain data."""
        return {
            "shown": self.shown,
            "arguments": {
                schema: [
                    {
                        "definition": each.as_text(self.shown[schema] + at),
                        "queries": [[query.predicate, list(query.places), query.negated] for query in each.definition],
                        "needed_by": each.why,
                    }
                    for at, each in enumerate(some)
                ]
                for schema, some in self.left_out.items()
            },
            "unresolved": self.unresolved,
            "unseen": self.unseen,
        }


@dataclass(frozen=True)
class _Occurrence:
    """An action after an observed state."""

    trace: int
    objects: tuple[str, ...]
    before: Facts
    changed: frozenset[str]
    """The objects of the atoms that change, which the action does not name."""
    named_changed: frozenset[str]
    """The objects of the atoms that change, which the action names."""
    example: str
    """One of these atoms."""
    properties: Mapping[str, tuple[int, frozenset[tuple[str, ...]], frozenset[tuple[str, ...]]]]
    """The number of arguments of each predicate of one or two, and the objects of which it is true before, and after;
    empty where that is not known."""


def with_arguments(
    observed: Observed, has_time: Callable[[], bool] = lambda: True, say: Callable[[str], None] = lambda text: None
) -> Explicit:
    """Finds the arguments that the actions of a log leave out, from its states.

    Only valid actions are read, and only predicates whose states are complete. Raises `ValueError` if no predicate is,
    if a schema occurs with different numbers of arguments, and if an action changes an atom of an object that it
    neither names nor determines."""
    if not observed.complete:
        raise ValueError(
            "implicit arguments are read off states that list all true atoms of their predicates: give such states "
            "(--states full or auto)"
        )
    observed = observed.valid_only()
    shown = _shown(observed.traces)
    predicates = {name: count for name, count in observed.predicates.items() if name in observed.complete}
    sorts = _sorts(observed)
    facts = facts_of(observed)
    occurrences = _occurrences(observed, facts, shown)
    found: dict[str, list[Argument]] = {}
    for number, (schema, some) in enumerate(occurrences.items(), 1):
        say(f"arguments of {schema}: schema {number} of {len(occurrences)}, {counted(len(some), 'occurrence')}")
        search = Search(
            schema, shown[schema], predicates, sorts, [each.before for each in some], [each.objects for each in some],
            has_time,
        )  # fmt: skip
        terms = search.run() if some else search.terms
        chosen = _chosen(terms, shown[schema], some, schema)
        found[schema] = _with_preconditions(terms, chosen, some, facts, predicates, shown[schema])
    return _explicit(observed, facts, shown, found, [schema for schema, some in occurrences.items() if not some])


def _shown(traces: Traces) -> dict[str, int]:
    """The number of arguments that the log names, of each schema."""
    shown: dict[str, int] = {}
    example: dict[str, str] = {}
    for name in traces.actions:
        schema, objects = arguments(name)
        if shown.setdefault(schema, len(objects)) != len(objects):
            raise ValueError(
                f"{name!r} has {counted(len(objects), 'argument')}, but {example[schema]!r} has "
                f"{shown[schema]}: a log must leave out the same arguments of a schema everywhere"
            )
        example.setdefault(schema, name)
    return shown


def _sorts(observed: Observed) -> Sorts:
    places: dict[tuple[tuple[str, str, int], str], None] = {}
    for name in observed.traces.actions:
        schema, objects = arguments(name)
        places.update({(("action", schema, at), one): None for at, one in enumerate(objects)})
    for name in {name for states in observed.states for state in states if state for name in state.true}:
        predicate, objects = arguments(name)
        places.update({(("atom", predicate, at), one): None for at, one in enumerate(objects)})
    return Sorts(places)


def facts_of(observed: Observed) -> list[list[Facts | None]]:
    """The states of each trace, with the objects that the trace names, for queries; atoms of complete predicates."""
    split: dict[str, tuple[str, ...]] = {}
    sorts = _sorts(observed)
    columns = [(name, at) for name, arity in observed.predicates.items() for at in range(arity)]
    found = []
    for row, states in zip(observed.traces.rows, observed.states):
        true = {
            state: [name for name in state.true if name.split()[0] in observed.complete] for state in states if state
        }
        named = {one for at in row for one in arguments(observed.traces.actions[at])[1]}
        named |= {one for state in true for name in state.true for one in arguments(name)[1]}
        objects: dict[tuple[str, int], Objects] = {
            each: frozenset(one for one in named if sorts.of[one] == sorts.of.get(("atom", *each))) for each in columns
        }
        facts = {state: Facts(State(frozenset(names)), objects, split) for state, names in true.items()}
        found.append([None if state is None else facts[state] for state in states])
    return found


def _occurrences(
    observed: Observed, facts: Sequence[Sequence[Facts | None]], shown: Mapping[str, int]
) -> dict[str, list[_Occurrence]]:
    found: dict[str, list[_Occurrence]] = {schema: [] for schema in shown}
    small = {name: n for name, n in observed.predicates.items() if n in (1, 2) and name in observed.complete}
    for place, row in enumerate(observed.traces.rows):
        for at, action in enumerate(row):
            before = facts[place][at]
            if before is None:
                continue
            schema, objects = arguments(observed.traces.actions[action])
            one, other = observed.states[place][at], observed.states[place][at + 1]
            changed: frozenset[str] = frozenset()
            named_changed: frozenset[str] = frozenset()
            example, properties = "", {}
            if one is not None and other is not None:
                atoms = [name for name in one.true ^ other.true if name.split()[0] in observed.complete]
                all_changed = frozenset(each for name in atoms for each in arguments(name)[1])
                changed, named_changed = all_changed - {*objects}, all_changed & {*objects}
                example = min((name for name in atoms if changed.intersection(arguments(name)[1])), default="")
                true, after = ([name.split() for name in state.true] for state in (one, other))
                properties = {
                    name: (
                        count,
                        frozenset(tuple(rest) for head, *rest in true if head == name),
                        frozenset(tuple(rest) for head, *rest in after if head == name),
                    )
                    for name, count in small.items()
                }
            found[schema].append(_Occurrence(place, objects, before, changed, named_changed, example, properties))
    return found


def _chosen(terms: Sequence[Term], arity: int, occurrences: Sequence[_Occurrence], schema: str) -> dict[int, str]:
    """The terms that effects need, with those that define them: the fewest that name all objects that change."""
    # What a named argument changes at some occurrences and not at others is changed by way of another term, if any is.
    contradictions = [_contradictions(term, occurrences, at if at < arity else None) for at, term in enumerate(terms)]
    certain = [term for term, count in zip(terms[:arity], contradictions) if not count]
    doubtful = [each.named_changed - {term.values[place] for term in certain} for place, each in enumerate(occurrences)]
    needed = [each.changed | more for each, more in zip(occurrences, doubtful)]
    missing = [set(each) for each in needed]
    chosen: list[int] = []
    while any(missing):
        scores = [
            (
                sum(
                    value in lacking and not (contradictions[at] and value in more)
                    for value, lacking, more in zip(term.values, missing, doubtful)
                ),
                -contradictions[at],
                sum(value in changed for value, changed in zip(term.values, needed)),
                -at,
            )
            for at, term in enumerate(terms)
        ]
        best = max(scores[arity:], default=(0, 0, 0, 0))
        if not best[0]:
            break
        chosen.append(-best[3])
        for lacking, value in zip(missing, terms[chosen[-1]].values):
            lacking.discard(value)
    for lacking, more in zip(missing, doubtful):
        lacking -= more
    changing = [each for each in occurrences if each.changed]
    common = frozenset.intersection(*(each.changed for each in changing)) if changing else frozenset()
    for lacking, each in zip(missing, occurrences):
        if lacking - common:  # objects of all changes can be constants of the schema
            what = " ".join((schema, *each.objects))
            raise ValueError(
                f"{what!r} changes the atom {each.example!r}, but neither the action nor the state before it "
                f"determines {min(lacking - common)!r}: an implicit argument must be the only object for which an "
                "observed atom is true. Give states with more predicates, or actions with more arguments"
            )
    reached = [{terms[other].values[place] for other in chosen} for place in range(len(occurrences))]
    for at in reversed(chosen):
        rest = [other for other in chosen if other != at]
        if all(
            (named & reachable) - lacking <= {terms[other].values[place] for other in rest}
            for place, (lacking, named, reachable) in enumerate(zip(missing, needed, reached))
        ):
            chosen = rest
    return _closed(terms, arity, dict.fromkeys(chosen, "effect"))


def _contradictions(term: Term, occurrences: Sequence[_Occurrence], named: int | None) -> int:
    """The number of atoms, of the object alone or with one that the action names, that change at some occurrences
    and, from the same value, not at others: such an object is not what the action changes. `named`: the argument that
    the term is, if the action names it.

    Where another argument is the same object, a change may be that argument's, and an atom that stays true may be
    deleted by one and added by the other."""
    seen: dict[tuple[str, int], set[tuple[bool, bool, bool]]] = {}
    for value, each in zip(term.values, occurrences):
        others = [one for at, one in enumerate(each.objects) if at != named]
        for name, (count, before, after) in each.properties.items():
            pairs = [(value,)] if count == 1 else [pair for one in others for pair in ((value, one), (one, value))]
            for number, objects in enumerate(pairs):
                change = (objects in before, objects in after, value in others)
                seen.setdefault((name, number), set()).add(change)
    added = [
        (False, True, False) in some and any(not was and not now for was, now, _ in some) for some in seen.values()
    ]
    return sum(added) + sum({(True, False, False), (True, True, False)} <= some for some in seen.values())


def _closed(terms: Sequence[Term], arity: int, chosen: Mapping[int, str]) -> dict[int, str]:
    """The terms with those that their definitions need, in an order in which each definition names earlier ones."""
    have = set(range(arity))
    ordered: dict[int, str] = {}
    waiting = dict(chosen)
    while waiting:
        ready = [at for at in sorted(waiting) if any(_uses(each) <= have for each in terms[at].definitions)]
        if ready:
            ordered[ready[0]] = waiting.pop(ready[0])
            have.add(ready[0])
        else:  # the first one lacks only terms that nothing needs yet
            lacking = min((_uses(each) - have for each in terms[min(waiting)].definitions), key=len)
            waiting.update(dict.fromkeys(lacking, "definition"))
    return ordered


def _uses(definition: Definition) -> set[int]:
    return {use for query in definition for use in query.uses}


def _definition(terms: Sequence[Term], at: int, have: set[int]) -> Definition:
    """The first definition that names only terms that are there."""
    return next(each for each in terms[at].definitions if _uses(each) <= have)


def _as_arguments(terms: Sequence[Term], arity: int, chosen: Mapping[int, str]) -> list[Argument]:
    """The terms as arguments, numbered after those that the log names."""
    new = {at: at for at in range(arity)}
    made = []
    for at, why in chosen.items():
        definition = tuple(
            query._replace(places=tuple(new[use] if use >= 0 else use for use in query.places))
            for query in _definition(terms, at, set(new))
        )
        new[at] = len(new)
        made.append(Argument(definition, why))
    return made


def _with_preconditions(
    terms: Sequence[Term],
    chosen: dict[int, str],
    occurrences: Sequence[_Occurrence],
    facts: Sequence[Sequence[Facts | None]],
    predicates: Mapping[str, int],
    arity: int,
) -> list[Argument]:
    """The arguments of a schema: the chosen terms, and those that preconditions need."""
    others = [at for at in range(arity, len(terms)) if at not in chosen]
    if others and occurrences:
        places = places_of(facts, [(each.trace, each.objects) for each in occurrences])
        for at in others:
            more = _closed(terms, arity, {**chosen, at: "precondition"})
            if at in chosen or len(more) == len(chosen):
                continue
            before = _literals(terms, [*range(arity), *chosen], occurrences, predicates)
            after = _literals(terms, [*range(arity), *more], occurrences, predicates)
            allowed = allowed_of(places, _as_arguments(terms, arity, chosen), before)
            free = allowed_of(allowed, _as_arguments(terms, arity, more), after)
            if free and len(free) < len(allowed):
                saved = len(occurrences) * log2(len(allowed) / len(free))
                size = len(after) - len(before) + len(more) - len(chosen)
                if saved >= EVIDENCE * size + log2(len(others)):  # one of many saves some bits by chance
                    chosen = more
    return _as_arguments(terms, arity, chosen)


Place = tuple[Facts, tuple[str, ...]]


def places_of(
    facts: Sequence[Sequence[Facts | None]], occurrences: Sequence[tuple[int, tuple[str, ...]]]
) -> list[Place]:
    """The states of each trace with the arguments that a log names of a schema in this trace; some, if there are many.
    `occurrences`: the number of the trace, and the arguments."""
    of_trace: dict[int, dict[tuple[str, ...], None]] = {}
    for trace, objects in occurrences:
        of_trace.setdefault(trace, {})[objects] = None
    found = [
        (state, objects) for trace, some in of_trace.items() for state in facts[trace] if state for objects in some
    ]
    return found[:: max(1, -(-len(found) // MOST_PLACES))]


def _literals(
    terms: Sequence[Term], kept: Sequence[int], occurrences: Sequence[_Occurrence], predicates: Mapping[str, int]
) -> list[Literal]:
    """The atoms over these terms that are true before every occurrence, with terms numbered as in `kept`."""
    found = []
    for predicate, arity in predicates.items():
        for places in product(range(len(kept)), repeat=arity):
            if all(
                tuple(terms[kept[at]].values[number] for at in places) in each.before.true(predicate)
                for number, each in enumerate(occurrences)
            ):
                found.append((predicate, places))
    return found


def allowed_of(places: Sequence[Place], some: Sequence[Argument], literals: Collection[Literal]) -> list[Place]:
    """The places where the arguments are determined, and the atoms true."""
    kept = []
    for facts, objects in places:
        values = resolved(facts, objects, some)
        if values is not None and all(
            tuple(values[at] for at in of) in facts.true(predicate) for predicate, of in literals
        ):
            kept.append((facts, objects))
    return kept


def resolved(facts: Facts, objects: Sequence[str], some: Sequence[Argument]) -> tuple[str, ...] | None:
    """All arguments of an action in a state, those that the log names first; None if the state does not determine
    them."""
    values = [*objects]
    for each in some:
        value = facts.value(each.definition, values)
        if value is None:
            return None
        values.append(value)
    return tuple(values)


def _explicit(
    observed: Observed,
    facts: Sequence[Sequence[Facts | None]],
    shown: dict[str, int],
    found: dict[str, list[Argument]],
    unseen: list[str],
) -> Explicit:
    """The log with all arguments, cut where they are not known."""
    traces = observed.traces
    rows: list[list[str]] = []
    states: list[list[State | None]] = []
    origin: list[int] = []
    unresolved = 0
    for place, row in enumerate(traces.rows):
        begun = False
        for at, action in enumerate(row):
            schema, objects = arguments(traces.actions[action])
            before = facts[place][at]
            some = found[schema]
            values = objects if not some and schema not in unseen else None
            if some and before is not None:
                values = resolved(before, objects, some)
            if values is None:
                unresolved += 1
                begun = False
                continue
            if not begun:
                rows.append([])
                states.append([observed.states[place][at]])
                origin.append(place)
                begun = True
            rows[-1].append(" ".join((schema, *values)))
            states[-1].append(observed.states[place][at + 1])
    names = tuple(sorted({name for each in rows for name in each}))
    number = {name: at for at, name in enumerate(names)}
    explicit = Traces(
        names,
        tuple(tuple(number[name] for name in each) for each in rows),
        (0,) * len(rows),
        tuple(traces.lines[at] for at in origin) if traces.lines else (),
        tuple(traces.files[at] for at in origin) if traces.files else (),
    )
    if not rows:
        raise ValueError("no state determines the arguments of an action: give states before the actions")
    return Explicit(
        Observed(explicit, tuple(map(tuple, states)), observed.complete), shown, found, unresolved, sorted(unseen)
    )
