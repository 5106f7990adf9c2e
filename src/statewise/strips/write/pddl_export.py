"""Writes learned models as PDDL, ground or as a lifted domain, and a trace as a problem. Needs the extra `planning`.

Types are the sorts of arguments (`model.schemas`). A learner without negative preconditions learns *the hand is full*
in addition to *the hand is empty*: two predicates with opposite effects are complements, and one is written as the
negation of the other. Predicates with equal effects are written as one.

A trace does not show its initial state. The initial atoms of the problem are those that the trace requires before
anything affects them, and by assumption those that their first effect deletes (`model.evidence_of`); the file says
which atoms are known, which are assumed, and which are neither. The latter are assumed to be false, so a plan cannot
rely on them. But this assumption is not safe if the negation of the atom is a precondition. So if the trace leaves
atoms unknown, complements are written as one predicate only if the traces show which one is exclusive: two atoms that
differ in one argument are never both true. A car is at one port, and not at all others; where nothing is known, it is
not there.

For planners without negative preconditions a predicate `not-p` can be written for each p whose negation is required:
every effect on p has the opposite effect on it, and it is initially true where p is not (Gazen and Knoblock, *Combining
the expressivity of UCPOP with the efficiency of Graphplan*, 1997). Arguments that must differ are then an ordinary
predicate, too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from pathlib import Path

from statewise.runtime.durable import write_atomically
from statewise.strips.model.model import ActionModel, Atoms, accepted, bits, evidence_of
from statewise.strips.model.schemas import ANY_SORT, Literal, ModelSignature, Schema, arguments, ground, signature
from statewise.strips.pddl.pddl import OTHER_NAMES, Problem, quiet_environment, safe_names, write_pddl
from statewise.strips.trace_data.domains import Domain
from statewise.strips.verification.mapping import CLEAR, match_atoms, renamed

MOST_OTHERS = 100
"""The most further traces that are read: more do not show better which complement is exclusive."""


@dataclass(frozen=True)
class Folded:
    """A predicate that is written as another one, or as its negation."""

    into: str
    places: tuple[int, ...]
    """The argument at each place of the other predicate."""
    same: bool
    """Whether it is the same as the other predicate; otherwise it is its complement."""


@dataclass(frozen=True)
class Exported:
    """What was written."""

    predicates: tuple[str, ...]
    """The names of the predicates in the file."""
    folded: Mapping[str, str]
    """The condition that replaces each learned predicate that is not in the file."""
    schemas: int
    known: tuple[str, ...] = ()
    """Initial literals that the trace requires."""
    assumed: tuple[str, ...] = ()
    """Initial literals that follow from the first effect on their atoms, if that changed them."""
    unknown: tuple[str, ...] = ()
    """Atoms about which the trace shows nothing at its beginning: assumed to be false."""


def export_lifted(
    schemas: Mapping[str, Schema],
    actions: Sequence[str],
    path: Path,
    *,
    trace: Sequence[str] | None = None,
    others: Sequence[Sequence[str]] = (),
    problem_path: Path | None = None,
    reference: ActionModel | None = None,
    source: str = "the trace",
    positive_preconditions: bool = False,
) -> Exported:
    """Writes a typed domain, and with a valid `trace`, over any objects, a problem to `problem_path`.

    `actions` are the ground actions of training; `others` are more valid traces, which help to find exclusive
    complements; `reference` is a model over the same actions whose atoms give names to matching predicates; `source` is
    the name of the trace in the comment of the problem. With `positive_preconditions` no condition is negated and no
    objects are compared, in the domain and in the goal. Raises `ValueError` if a trace does not fit the schemas, if
    they reject `trace`, and without the extra.
    """
    quiet_environment()  # raises if the extra is missing
    known = signature(schemas, actions)
    folds = complements(schemas, known)
    seen: _Seen | None = None
    if trace is not None:
        objects = known.objects_of(trace)
        model = ground(schemas, known.actions_over(objects))
        numbers = accepted(model, trace, source)
        shown = _Shown(schemas, [trace, *others[:MOST_OTHERS]])
        folds = complements(schemas, known, shown.share, shown.exclusive)
        seen = _seen(model, numbers, objects, folds)
        while unfit := seen.contradicted | seen.undecided(folds, shown.exclusive):
            folds = {name: fold for name, fold in folds.items() if name not in unfit}
            seen = _seen(model, numbers, objects, folds)
    names = _matched_names(schemas, reference) if reference is not None else {}
    spelling = _Spelling(known, folds, names, seen.objects if seen is not None else {}, constants_of(schemas))
    if positive_preconditions:
        spelling.without_negations(schemas, seen)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, spelling.domain(schemas).encode())
    if seen is None or trace is None:
        return spelling.exported(len(schemas))
    target = problem_path or path.with_name(
        "problem.pddl" if path.name == "domain.pddl" else f"{path.stem}-problem.pddl"
    )
    write_atomically(target, spelling.problem(seen, f"{source}, {len(trace)} actions").encode())
    return spelling.exported(len(schemas), seen)


def constants_of(schemas: Mapping[str, Schema]) -> list[str]:
    """The constants of schemas, sorted."""
    return sorted({name for schema in schemas.values() for name in schema.constants})


def _matched_names(schemas: Mapping[str, Schema], reference: ActionModel) -> dict[str, str]:
    """For each predicate the name that most of its clearly matching ground atoms have in the reference."""
    match = match_atoms(ground(schemas, reference.names), reference)
    votes: dict[str, Counter[str]] = {}
    for mine, theirs in match.as_names(CLEAR).items():
        votes.setdefault(arguments(mine)[0], Counter())[arguments(theirs)[0]] += 1
    return {name: counts.most_common(1)[0][0] for name, counts in votes.items()}


def complements(
    schemas: Mapping[str, Schema],
    known: ModelSignature,
    share: Mapping[str, float] | None = None,
    exclusive: Collection[str] = (),
) -> dict[str, Folded]:
    """For each predicate that another one can replace, that other one. An exclusive one of two complements is kept, or
    the one that is true for a smaller share of time, or that more preconditions use."""
    uses = {name: (set[tuple[str, Literal]](), set[tuple[str, Literal]](), 0) for name in known.predicates}
    for name, schema in schemas.items():
        for predicate, (add, delete, count) in uses.items():
            add |= {(name, literal) for literal in schema.add if literal[0] == predicate}
            delete |= {(name, literal) for literal in schema.delete if literal[0] == predicate}
            uses[predicate] = add, delete, count + sum(literal[0] == predicate for literal in schema.pre)
    share = share or {}
    # stable: the first of two equal ones is kept
    order = sorted(uses, key=lambda name: (name not in exclusive, share.get(name, 1), -uses[name][2]))
    folds: dict[str, Folded] = {}
    for kept, other in combinations(order, 2):
        if kept in folds or other in folds or not (uses[other][0] and uses[other][1]):
            continue
        sorts = known.predicates[kept]
        for places in permutations(range(len(sorts))):
            if tuple(sorts[place] for place in places) != known.predicates[other]:
                continue
            add, delete = (
                {(name, (other, tuple(at[place] for place in places))) for name, (_, at) in part}
                for part in uses[kept][:2]
            )
            if uses[other][:2] in ((add, delete), (delete, add)):
                folds[other] = Folded(
                    kept, tuple(places.index(place) for place in range(len(places))), uses[other][:2] == (add, delete)
                )
                break
    return folds


@dataclass(frozen=True)
class _Seen:
    """What a trace shows about the atoms that are written."""

    objects: Mapping[str, int]
    known: tuple[tuple[str, bool], ...]
    assumed: tuple[tuple[str, bool], ...]
    unknown: tuple[str, ...]
    goal: tuple[tuple[str, bool], ...]
    contradicted: frozenset[str]
    """Folded predicates that are not complements: the trace requires an atom to be true and false at once."""

    def undecided(self, folds: Mapping[str, Folded], exclusive: Collection[str]) -> frozenset[str]:
        """Folded complements of predicates with unknown atoms, unless traces show that most atoms are false."""
        unknown = {arguments(atom)[0] for atom in self.unknown}
        return frozenset(
            name for name, fold in folds.items() if not fold.same and fold.into in unknown - set(exclusive)
        )


def _seen(model: ActionModel, numbers: Sequence[int], objects: Mapping[str, int], folds: Mapping[str, Folded]) -> _Seen:
    evidence = evidence_of(model, numbers)
    written = [_folded(atom, folds) for atom in model.atoms]

    def values(atoms: Atoms, value: bool) -> Iterable[tuple[str, bool]]:
        return ((name, same == value) for at, (name, same) in enumerate(written) if atoms >> at & 1)

    known = dict.fromkeys(values(evidence.required, True))
    sure = {name for name, _ in known}
    assumed = {
        name: value
        for name, value in (*values(evidence.deleted, True), *values(evidence.added, False))
        if name not in sure
    }
    both = {name for name, value in known if (name, not value) in known}
    contradicted = {arguments(atom)[0] for atom, (name, _) in zip(model.atoms, written) if name in both}
    every = dict.fromkeys(name for name, _ in written)
    return _Seen(
        objects,
        tuple(known),
        tuple(assumed.items()),
        tuple(name for name in every if name not in sure and name not in assumed),
        tuple(dict.fromkeys(values(evidence.true, True))),
        frozenset(contradicted & folds.keys()),
    )


class _Shown:
    """How often the atoms of each predicate are true in the traces."""

    def __init__(self, schemas: Mapping[str, Schema], traces: Sequence[Sequence[str]]) -> None:
        model = ground(schemas, list(dict.fromkeys(name for trace in traces for name in trace)))
        atoms = [arguments(atom) for atom in model.atoms]
        times, true_times = Counter[str](), Counter[str]()
        together: dict[tuple[str, int], list[int]] = {}
        for trace in traces:
            numbers = [model.number[name] for name in trace]
            evidence = evidence_of(model, numbers)
            shown, true = evidence.required | evidence.added | evidence.deleted, evidence.required | evidence.deleted
            for number in numbers:
                true = model.result(true, number)
                alike: Counter[tuple[str, int, tuple[str, ...], bool]] = Counter()
                for at in bits(shown):
                    (name, objects), value = atoms[at], bool(true >> at & 1)
                    times[name] += 1
                    true_times[name] += value
                    alike.update(
                        (name, place, objects[:place] + objects[place + 1 :], value) for place in range(len(objects))
                    )
                for (name, place, _, value), count in alike.items():
                    most = together.setdefault((name, place), [0, 0])
                    most[value] = max(most[value], count)
        self.share = {name: true_times[name] / count for name, count in times.items()}
        """The share of the time during which the atoms of each predicate are true."""
        self.exclusive = {name for (name, _), (false, true) in together.items() if true == 1 and false > 1}
        """Predicates with an argument in which two true atoms never differ, though two false ones do."""


def _folded(atom: str, folds: Mapping[str, Folded]) -> tuple[str, bool]:
    """The atom that is written for an atom, and whether it is the same or the complement."""
    predicate, objects = arguments(atom)
    fold = folds.get(predicate)
    if fold is None:
        return atom, True
    return " ".join((fold.into, *(objects[place] for place in fold.places))), fold.same


class _Spelling:
    """The text of the files."""

    def __init__(
        self,
        known: ModelSignature,
        folds: Mapping[str, Folded],
        names: Mapping[str, str],
        objects: Mapping[str, int],
        constants: Sequence[str] = (),
    ) -> None:
        self.known, self.folds, self.constants = known, folds, constants
        used = {"learned", "either"}
        kept = [name for name in known.predicates if name not in folds]
        sorts = sorted({*known.objects.values(), *(sort for each in known.parameters.values() for sort in each)})

        def safe(originals: Iterable[str], shown: Mapping[str, str] | None = None) -> dict[str, str]:
            each = list(originals)
            return dict(zip(each, safe_names([(shown or {}).get(name, name) for name in each], used)))

        # in this order, so that actions in plans keep their names, and predicates are renamed
        self.objects = safe({**objects, **dict.fromkeys(constants)})
        safe(name for name in known.objects if name not in self.objects)
        self.schemas = safe(known.parameters)
        self.predicates = safe(kept, names)
        self.types = dict(zip(sorts, safe_names([_type_name(sort, known.objects) for sort in sorts], used)))
        if any(ANY_SORT in each for each in known.predicates.values()) or not known.objects.keys() >= set(constants):
            self.types[ANY_SORT] = "object"
        self.used = used
        self.negations: dict[str, str] = {}
        """The name of the negation of each predicate whose negation is written as a predicate."""
        self.unequal: str | None = None
        """The name of the predicate of two different objects; None: objects are compared by `=`."""
        self.cases: dict[str, dict[tuple[int, ...], str]] = {}
        """The names of the actions into which a schema is split, by which arguments are the same object."""

    def without_negations(self, schemas: Mapping[str, Schema], seen: _Seen | None) -> None:
        """Names the predicates and actions that replace negated conditions."""
        required = (self._written(literal, True) for schema in schemas.values() for literal in schema.pre)
        negated = {predicate for predicate, _, value in required if not value}
        negated |= {arguments(atom)[0] for atom, value in (seen.goal if seen is not None else ()) if not value}
        order = [name for name in self.predicates if name in negated]
        self.negations = dict(zip(order, safe_names([f"not-{self.predicates[name]}" for name in order], self.used)))
        [self.unequal] = safe_names(["not-equal"], self.used)
        for name, schema in schemas.items():
            if name not in self.known.parameters:
                continue
            ways = sorted(
                (first for of, first in self.known.kinds if of == name), key=lambda first: (-len(set(first)), first)
            )
            added, deleted = (
                [self._written(literal, True)[:2] for literal in sorted(part) if literal[0] in negated]
                for part in (schema.add, schema.delete)
            )
            if any(
                one != other and _under(first, one) == _under(first, other)
                for first in ways
                for one in added
                for other in deleted
            ):
                more = safe_names([f"{self.schemas[name]}-{number}" for number in range(2, len(ways) + 1)], self.used)
                self.cases[name] = dict(zip(ways, [self.schemas[name], *more]))

    def domain(self, schemas: Mapping[str, Schema]) -> str:
        """The domain file."""
        actions = [
            self._action(name, schemas.get(name), first, spelled)
            for name in self.known.parameters
            for first, spelled in self.cases.get(name, {None: self.schemas[name]}).items()
        ]
        body = "\n".join(actions)
        needs = [
            ":strips",
            *([":typing"] if self.types else []),
            *([":negative-preconditions"] if "(not " in "".join(re.findall(r":precondition.*", body)) else []),
            *([":equality"] if "(= " in body else []),
        ]
        predicates = "\n".join(
            f"  ({spelled}{self._typed(range(len(self.known.predicates[name])), self.known.predicates[name])})"
            for name, spelled in [*self.predicates.items(), *self.negations.items()]
        )
        if self.unequal and f"({self.unequal} " in body:
            predicates += f"\n  ({self.unequal} ?x1 - object ?x2 - object)"
        named = [name for sort, name in self.types.items() if sort != ANY_SORT]
        types = f" (:types {' '.join(named)})\n" if named else ""
        if self.constants:
            sorts = (self.types[self.known.objects.get(name, ANY_SORT)] for name in self.constants)
            constants = " ".join(f"{self.objects[name]} - {sort}" for name, sort in zip(self.constants, sorts))
            types += f" (:constants {constants})\n"
        return (
            f"{self._changes()}(define (domain learned)\n (:requirements {' '.join(needs)})\n{types}"
            f" (:predicates\n{predicates})\n{body})\n"
        )

    def problem(self, seen: _Seen, source: str) -> str:
        """The problem file."""
        initial = [name for name, value in (*seen.known, *seen.assumed) if value]
        by_type: dict[int, list[str]] = {}
        for name, sort in seen.objects.items():
            if name in self.constants:
                continue
            by_type.setdefault(sort, []).append(self.objects[name])
        objects = "\n".join(f"  {' '.join(names)} - {self.types[sort]}" for sort, names in by_type.items())
        said = [
            f"; initial atoms inferred from {' '.join(source.split())}",
            f"; required by the trace before any effect: {self._listed(seen.known)}",
            f"; assumed, since the first effect of the trace changes them: {self._listed(seen.assumed)}",
            f"; unknown, assumed to be false: {self._listed((name, True) for name in seen.unknown)}",
        ]
        written = [self._atom(name) for name in initial]
        every = (*seen.known, *seen.assumed, *((name, False) for name in seen.unknown))
        written += [
            self._literal(name, False) for name, value in every if not value and arguments(name)[0] in self.negations
        ]
        if self.unequal:
            compared = {sorts[one] for sorts, one, _ in self._different()}
            written += [
                f"({self.unequal} {one} {other})"
                for sort, names in by_type.items()
                if sort in compared
                for one, other in permutations(names, 2)
            ]
        atoms = "\n".join(f"  {each}" for each in written)
        goal = "\n".join(f"  {self._literal(*each)}" for each in seen.goal)
        return "\n".join(
            [
                *said,
                "(define (problem trace)",
                " (:domain learned)",
                " (:objects",
                f"{objects})",
                " (:init",
                f"{atoms})",
                " (:goal (and",
                f"{goal})))",
                "",
            ]
        )

    def exported(self, schemas: int, seen: _Seen | None = None) -> Exported:
        """What was written, with the names of the files."""
        folded = {name: ("" if fold.same else "not ") + self.predicates[fold.into] for name, fold in self.folds.items()}
        predicates = (*self.predicates.values(), *self.negations.values())
        if seen is None:
            return Exported(predicates, folded, schemas)
        return Exported(
            predicates,
            folded,
            schemas,
            tuple(self._literal(*each) for each in seen.known),
            tuple(self._literal(*each) for each in seen.assumed),
            tuple(self._atom(name) for name in seen.unknown),
        )

    def _action(self, name: str, schema: Schema | None, first: tuple[int, ...] | None, spelled: str) -> str:
        """A schema, or the part of it in which the arguments are equal as `first` says."""
        sorts = self.known.parameters[name]
        first_of = first or tuple(range(len(sorts)))
        constants = schema.constants if schema is not None else ()
        of_terms = (*first_of, *range(len(sorts), len(sorts) + len(constants)))
        terms = [*(f"?x{at + 1}" for at in range(len(sorts))), *(self.objects[each] for each in constants)]
        nothing: frozenset[Literal] = frozenset()
        pre, add, delete = (
            [(predicate, _under(of_terms, (predicate, places))[1]) for predicate, places in sorted(part)]
            for part in (schema.parts if schema is not None else (nothing,) * 3)
        )
        conditions = [self._condition(literal, True, terms) for literal in pre]
        conditions += [
            f"({self.unequal} ?x{one + 1} ?x{other + 1})" if self.unequal else f"(not (= ?x{one + 1} ?x{other + 1}))"
            for one, other in self._different_of(name, first)
        ]
        effects = []
        for literals, value in ((add, True), (delete, False)):
            for predicate, places in literals:
                if predicate not in self.folds and (value or (predicate, places) not in add):
                    atom = self._applied(self.predicates[predicate], places, terms)
                    effects.append(atom if value else f"(not {atom})")
                    if predicate in self.negations:
                        opposite = self._applied(self.negations[predicate], places, terms)
                        effects.append(f"(not {opposite})" if value else opposite)
        parameters = sorted(set(first_of))
        return (
            f" (:action {spelled}\n"
            f"  :parameters ({self._typed(parameters, [sorts[at] for at in parameters]).strip()})\n"
            f"  :precondition (and{''.join(f' {each}' for each in dict.fromkeys(conditions))})\n"
            f"  :effect (and{''.join(f' {each}' for each in dict.fromkeys(effects))}))"
        )

    def _different_of(self, name: str, first: tuple[int, ...] | None) -> list[tuple[int, int]]:
        """The pairs of a schema's arguments that must be different objects."""
        sorts = self.known.parameters[name]
        return [
            (one, other)
            for one, other in combinations(sorted(set(first or range(len(sorts)))), 2)
            if sorts[one] == sorts[other] and (first or not self.known.may_be_equal(name, one, other))
        ]

    def _different(self) -> Iterable[tuple[tuple[int, ...], int, int]]:
        """The pairs of arguments that must be different objects, each with the sorts of its schema's arguments."""
        for name, sorts in self.known.parameters.items():
            for first in self.cases.get(name, {None: ""}):
                yield from ((sorts, *pair) for pair in self._different_of(name, first))

    def _written(self, literal: Literal, value: bool) -> tuple[str, tuple[int, ...], bool]:
        """The predicate and the arguments with which a literal is written, and whether it is positive."""
        predicate, places = literal
        fold = self.folds.get(predicate)
        if fold is None:
            return predicate, places, value
        return fold.into, tuple(places[at] for at in fold.places), fold.same == value

    def _condition(self, literal: Literal, value: bool, terms: Sequence[str]) -> str:
        predicate, places, value = self._written(literal, value)
        if value:
            return self._applied(self.predicates[predicate], places, terms)
        if predicate in self.negations:
            return self._applied(self.negations[predicate], places, terms)
        return f"(not {self._applied(self.predicates[predicate], places, terms)})"

    def _applied(self, predicate: str, places: Iterable[int], terms: Sequence[str]) -> str:
        return f"({' '.join((predicate, *(terms[place] for place in places)))})"

    def _typed(self, places: Iterable[int], sorts: Sequence[int]) -> str:
        return "".join(f" ?x{place + 1} - {self.types[sort]}" for place, sort in zip(places, sorts))

    def _atom(self, atom: str, predicates: Mapping[str, str] | None = None) -> str:
        predicate, objects = arguments(atom)
        spelled = (predicates or self.predicates)[predicate]
        return f"({' '.join((spelled, *(self.objects[name] for name in objects)))})"

    def _literal(self, atom: str, value: bool) -> str:
        if not value and arguments(atom)[0] in self.negations:
            return self._atom(atom, self.negations)
        return self._atom(atom) if value else f"(not {self._atom(atom)})"

    def _listed(self, literals: Iterable[tuple[str, bool]]) -> str:
        return " ".join(self._literal(*each) for each in literals) or "none"

    def _changes(self) -> str:
        """A comment with the names that differ from those of the model."""
        changed = [
            f"; {safe} = {name}"
            for each in (self.predicates, self.schemas, self.objects)
            for name, safe in each.items()
            if safe != name
        ]
        changed += [
            f"; {'' if fold.same else 'not '}{self.predicates[fold.into]} = {name}" for name, fold in self.folds.items()
        ]
        changed += [f"; {negation} = not {self.predicates[name]}" for name, negation in self.negations.items()]
        if self.unequal:
            changed.append(
                f"; the :init of a problem holds not-... of each false atom, and ({self.unequal} a b) of "
                "all different objects of a type"
            )
        changed += [
            f"; {spelled} = {' '.join((self.schemas[name], *(f'?x{at + 1}' for at in first)))}"
            for name, ways in self.cases.items()
            for first, spelled in ways.items()
        ]
        return "\n".join([OTHER_NAMES, *changed, ""]) if changed else ""


def _under(first: Sequence[int], literal: tuple[str, tuple[int, ...]]) -> tuple[str, tuple[int, ...]]:
    """A literal with each argument replaced by the first one that is the same object."""
    return literal[0], tuple(first[place] for place in literal[1])


def _type_name(sort: int, objects: Mapping[str, int]) -> str:
    """Named after the letters that all objects of the sort begin with: `type-b` for b1, b2, b3."""
    mine = [name.lower() for name, of in objects.items() if of == sort]
    letters = re.match(r"[a-z]*", min(mine, default=""))
    shared = letters[0] if letters else ""
    while not all(name.startswith(shared) for name in mine):
        shared = shared[:-1]
    return f"type-{shared or sort + 1}"


def export(
    learned: ActionModel,
    path: Path,
    *,
    reference: ActionModel | None = None,
    trace: Sequence[str] | None = None,
    problem_path: Path | None = None,
    source: str = "the trace",
) -> ActionModel:
    """Writes a ground PDDL domain and returns the model with the names used there.

    Atoms are named `p0`, `p1`, ...; with `reference`, matched atoms get the names of the reference
    (`mapping.match_atoms`). With a valid `trace` also writes a problem to `problem_path` (default: beside the domain):
    initially true are the atoms that the trace requires, or deletes, before any other effect on them; the goal is what
    is true after it; `source` names the trace in messages. Raises `ValueError` if the reference lacks an action of the
    model, for a trace that the model rejects, and without the extra.
    """
    numbered = ActionModel(tuple(f"p{place}" for place in range(len(learned.atoms))), learned.actions)
    named = renamed(numbered, match_atoms(numbered, reference)) if reference is not None else numbered
    problem = None
    if trace is not None:
        evidence = evidence_of(named, accepted(named, trace, source))
        initial = evidence.required | evidence.deleted
        problem = Problem(Domain("learned", named, (initial,)), initial, evidence.true)
    write_pddl(named, path, "learned", problem=problem, problem_path=problem_path)
    return named
