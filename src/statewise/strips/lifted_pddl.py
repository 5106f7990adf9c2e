"""Writes learned schemas as a lifted PDDL domain, and a trace as a problem. Needs the extra `planning`.

Types are the sorts of arguments (`signatures`). A learner without negative preconditions learns *the hand is full*
beside *the hand is empty*: two predicates whose effects are each other's opposite are complements, and one is written
as the negation of the other. Predicates with equal effects are written as one.

A trace does not show its initial state. The problem's initial atoms are those that the trace requires before anything
affects them, and by assumption those that its first effect deletes (`evidence`); the file says which are known, which
are assumed, and which are neither. These are taken to be false, so a plan cannot rely on them. But that an unknown atom
is false is not safe to assume if its negation is a precondition. So if the trace leaves atoms unknown, complements are
written as one predicate only if the traces show which one is exclusive: of atoms that differ in one argument, never two
are true. A car is at one port, and not at all others; where nothing is known, it is not there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from pathlib import Path

from statewise.durable import write_atomically
from statewise.strips.evidence import accepted, evidence_of
from statewise.strips.mapping import CLEAR, match_atoms
from statewise.strips.model import ActionModel, Atoms, bits
from statewise.strips.pddl import _safe, quiet_environment
from statewise.strips.schemas import Literal, Schema, arguments, ground
from statewise.strips.signatures import Signature, signature

MOST_OTHERS = 100
"""More traces do not tell complements apart any better."""


@dataclass(frozen=True)
class Folded:
    """A predicate that is written by means of another."""

    into: str
    places: tuple[int, ...]
    """The argument at each place of the other one."""
    same: bool
    """Whether it is the same as the other one, or its complement."""


@dataclass(frozen=True)
class Exported:
    """What was written."""

    predicates: tuple[str, ...]
    """Those of the file, by their names there."""
    folded: Mapping[str, str]
    """For each learned predicate that is not in the file the condition that stands for it."""
    schemas: int
    known: tuple[str, ...] = ()
    """Initial literals that the trace requires."""
    assumed: tuple[str, ...] = ()
    """Initial literals that follow from the first effect of the trace, if that changed the atom."""
    unknown: tuple[str, ...] = ()
    """Atoms of which the trace shows nothing at its beginning: taken to be false."""


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
) -> Exported:
    """Writes a typed domain, and with a valid `trace`, over any objects, a problem to `problem_path`.

    `actions` are the ground actions of training, `others` more valid traces that help to tell complements apart,
    `reference` is a model over the same actions after whose atoms predicates are named where they match, `source` what
    the problem's comment calls the trace. Raises `ValueError` if a
    trace does not fit the schemas, or the first is rejected by them, and without the extra.
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
    spelling = _Spelling(known, folds, names, seen.objects if seen is not None else {})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, spelling.domain(schemas).encode())
    if seen is None or trace is None:
        return spelling.exported(len(schemas))
    target = problem_path or path.with_name(
        "problem.pddl" if path.name == "domain.pddl" else f"{path.stem}-problem.pddl"
    )
    write_atomically(target, spelling.problem(seen, f"{source}, {len(trace)} actions").encode())
    return spelling.exported(len(schemas), seen)


def _matched_names(schemas: Mapping[str, Schema], reference: ActionModel) -> dict[str, str]:
    """For each predicate the name that most of its ground atoms have in the reference, if they match it clearly."""
    match = match_atoms(ground(schemas, reference.names), reference)
    votes: dict[str, Counter[str]] = {}
    for mine, theirs in match.as_names(CLEAR).items():
        votes.setdefault(arguments(mine)[0], Counter())[arguments(theirs)[0]] += 1
    return {name: counts.most_common(1)[0][0] for name, counts in votes.items()}


def complements(
    schemas: Mapping[str, Schema],
    known: Signature,
    share: Mapping[str, float] | None = None,
    exclusive: Collection[str] = (),
) -> dict[str, Folded]:
    """For each predicate that another one can stand for, that one. Of complements an exclusive one is kept, or that
    with the smaller share of time, or with more preconditions."""
    uses = {name: (set[tuple[str, Literal]](), set[tuple[str, Literal]](), 0) for name in known.predicates}
    for name, schema in schemas.items():
        for predicate, (add, delete, count) in uses.items():
            add |= {(name, literal) for literal in schema.add if literal[0] == predicate}
            delete |= {(name, literal) for literal in schema.delete if literal[0] == predicate}
            uses[predicate] = add, delete, count + sum(literal[0] == predicate for literal in schema.pre)
    share = share or {}
    # stable: of two equal ones the first
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
                folds[other] = Folded(kept, tuple(places.index(place) for place in range(len(places))),
                                      uses[other][:2] == (add, delete))  # fmt: skip
                break
    return folds


@dataclass(frozen=True)
class _Seen:
    """What a trace shows of the atoms that are written."""

    objects: Mapping[str, int]
    known: tuple[tuple[str, bool], ...]
    assumed: tuple[tuple[str, bool], ...]
    unknown: tuple[str, ...]
    goal: tuple[tuple[str, bool], ...]
    contradicted: frozenset[str]
    """Folded predicates of which the trace requires an atom to be true and false at once: they are no complements."""

    def undecided(self, folds: Mapping[str, Folded], exclusive: Collection[str]) -> frozenset[str]:
        """Folded complements of predicates with unknown atoms of which nothing shows that most are false."""
        unknown = {arguments(atom)[0] for atom in self.unknown}
        return frozenset(
            name for name, fold in folds.items() if not fold.same and fold.into in unknown - set(exclusive)
        )


def _seen(model: ActionModel, numbers: Sequence[int], objects: Mapping[str, int], folds: Mapping[str, Folded]) -> _Seen:
    found = evidence_of(model, numbers)
    written = [_folded(atom, folds) for atom in model.atoms]

    def values(atoms: Atoms, value: bool) -> Iterable[tuple[str, bool]]:
        return ((name, same == value) for at, (name, same) in enumerate(written) if atoms >> at & 1)

    known = dict.fromkeys(values(found.required, True))
    sure = {name for name, _ in known}
    assumed = {name: value for name, value in (*values(found.deleted, True), *values(found.added, False))
               if name not in sure}  # fmt: skip
    both = {name for name, value in known if (name, not value) in known}
    contradicted = {arguments(atom)[0] for atom, (name, _) in zip(model.atoms, written) if name in both}
    every = dict.fromkeys(name for name, _ in written)
    return _Seen(
        objects,
        tuple(known),
        tuple(assumed.items()),
        tuple(name for name in every if name not in sure and name not in assumed),
        tuple(dict.fromkeys(values(found.true, True))),
        frozenset(contradicted & folds.keys()),
    )


class _Shown:
    """How often the atoms that the traces show are true, by predicate."""

    def __init__(self, schemas: Mapping[str, Schema], traces: Sequence[Sequence[str]]) -> None:
        model = ground(schemas, list(dict.fromkeys(name for trace in traces for name in trace)))
        atoms = [arguments(atom) for atom in model.atoms]
        times, true_times = Counter[str](), Counter[str]()
        together: dict[tuple[str, int], list[int]] = {}
        for trace in traces:
            numbers = [model.number[name] for name in trace]
            found = evidence_of(model, numbers)
            shown, true = found.required | found.added | found.deleted, found.required | found.deleted
            for number in numbers:
                true = model.result(true, number)
                alike: Counter[tuple[str, int, tuple[str, ...], bool]] = Counter()
                for at in bits(shown):
                    (name, objects), value = atoms[at], bool(true >> at & 1)
                    times[name] += 1
                    true_times[name] += value
                    alike.update((name, place, objects[:place] + objects[place + 1 :], value)
                                 for place in range(len(objects)))  # fmt: skip
                for (name, place, _, value), count in alike.items():
                    most = together.setdefault((name, place), [0, 0])
                    most[value] = max(most[value], count)
        self.share = {name: true_times[name] / count for name, count in times.items()}
        """The share of the time during which a predicate's atoms are true."""
        self.exclusive = {name for (name, _), (false, true) in together.items() if true == 1 and false > 1}
        """Predicates with an argument in which never two true atoms differ, though two false ones do."""


def _folded(atom: str, folds: Mapping[str, Folded]) -> tuple[str, bool]:
    """The atom that stands for an atom, and whether it is the same or the complement."""
    predicate, objects = arguments(atom)
    fold = folds.get(predicate)
    if fold is None:
        return atom, True
    return " ".join((fold.into, *(objects[place] for place in fold.places))), fold.same


class _Spelling:
    """The text of the files."""

    def __init__(
        self, known: Signature, folds: Mapping[str, Folded], names: Mapping[str, str], objects: Mapping[str, int]
    ) -> None:
        self.known, self.folds = known, folds
        taken = {"learned", "either"}
        kept = [name for name in known.predicates if name not in folds]
        sorts = sorted({*known.objects.values(), *(sort for each in known.parameters.values() for sort in each)})

        def safe(originals: Iterable[str], shown: Mapping[str, str] | None = None) -> dict[str, str]:
            each = list(originals)
            return dict(zip(each, _safe([(shown or {}).get(name, name) for name in each], taken)))

        # one after the other: actions of plans keep their names, and predicates make way
        self.objects = safe(objects)
        safe(name for name in known.objects if name not in objects)
        self.schemas = safe(known.parameters)
        self.predicates = safe(kept, names)
        self.types = dict(zip(sorts, _safe([_type_name(sort, known.objects) for sort in sorts], taken)))

    def domain(self, schemas: Mapping[str, Schema]) -> str:
        """The domain file."""
        actions = [self._action(name, schemas.get(name)) for name in self.known.parameters]
        body = "\n".join(actions)
        needs = [
            ":strips",
            *([":typing"] if self.types else []),
            *([":negative-preconditions"] if "(not" in "".join(re.findall(r":precondition.*", body)) else []),
            *([":equality"] if "(= " in body else []),
        ]
        predicates = "\n".join(
            f"  ({spelled}{self._typed(range(len(self.known.predicates[name])), self.known.predicates[name])})"
            for name, spelled in self.predicates.items()
        )
        types = f" (:types {' '.join(self.types.values())})\n" if self.types else ""
        return (
            f"{self._changes()}(define (domain learned)\n (:requirements {' '.join(needs)})\n{types}"
            f" (:predicates\n{predicates})\n{body})\n"
        )

    def problem(self, seen: _Seen, source: str) -> str:
        """The problem file."""
        initial = [name for name, value in (*seen.known, *seen.assumed) if value]
        by_type: dict[int, list[str]] = {}
        for name, sort in seen.objects.items():
            by_type.setdefault(sort, []).append(self.objects[name])
        objects = "\n".join(f"  {' '.join(names)} - {self.types[sort]}" for sort, names in by_type.items())
        said = [
            f"; initial atoms inferred from {' '.join(source.split())}",
            f"; required by the trace before any effect: {self._listed(seen.known)}",
            f"; assumed, since the first effect of the trace changes them: {self._listed(seen.assumed)}",
            f"; not known, taken to be false: {self._listed((name, True) for name in seen.unknown)}",
        ]
        atoms = "\n".join(f"  {self._atom(name)}" for name in initial)
        goal = "\n".join(f"  {self._literal(*each)}" for each in seen.goal)
        return "\n".join([
            *said, "(define (problem trace)", " (:domain learned)", " (:objects", f"{objects})", " (:init", f"{atoms})",
            " (:goal (and", f"{goal})))", "",
        ])  # fmt: skip

    def exported(self, schemas: int, seen: _Seen | None = None) -> Exported:
        """What was written, by the names of the files."""
        folded = {name: ("" if fold.same else "not ") + self.predicates[fold.into] for name, fold in self.folds.items()}
        predicates = tuple(self.predicates.values())
        if seen is None:
            return Exported(predicates, folded, schemas)
        return Exported(
            predicates, folded, schemas, tuple(self._literal(*each) for each in seen.known),
            tuple(self._literal(*each) for each in seen.assumed), tuple(self._atom(name) for name in seen.unknown),
        )  # fmt: skip

    def _action(self, name: str, schema: Schema | None) -> str:
        sorts = self.known.parameters[name]
        nothing: frozenset[Literal] = frozenset()
        pre, add, delete = (schema.pre, schema.add, schema.delete) if schema is not None else (nothing,) * 3
        conditions = [self._condition(literal, True) for literal in sorted(pre)]
        conditions += [
            f"(not (= ?x{one + 1} ?x{other + 1}))"
            for one, other in combinations(range(len(sorts)), 2)
            if sorts[one] == sorts[other] and not self.known.may_be_equal(name, one, other)
        ]
        effects = [
            self._condition(literal, value)
            for part, value in ((add, True), (delete, False))
            for literal in sorted(part)
            if literal[0] not in self.folds
        ]
        return (
            f" (:action {self.schemas[name]}\n  :parameters ({self._typed(range(len(sorts)), sorts).strip()})\n"
            f"  :precondition (and{''.join(f' {each}' for each in dict.fromkeys(conditions))})\n"
            f"  :effect (and{''.join(f' {each}' for each in effects)}))"
        )

    def _condition(self, literal: Literal, value: bool) -> str:
        predicate, places = literal
        fold = self.folds.get(predicate)
        if fold is not None:
            predicate, places, value = fold.into, tuple(places[at] for at in fold.places), fold.same == value
        spelled = f"({' '.join((self.predicates[predicate], *(f'?x{place + 1}' for place in places)))})"
        return spelled if value else f"(not {spelled})"

    def _typed(self, places: Iterable[int], sorts: Sequence[int]) -> str:
        return "".join(f" ?x{place + 1} - {self.types[sort]}" for place, sort in zip(places, sorts))

    def _atom(self, atom: str) -> str:
        predicate, objects = arguments(atom)
        return f"({' '.join((self.predicates[predicate], *(self.objects[name] for name in objects)))})"

    def _literal(self, atom: str, value: bool) -> str:
        return self._atom(atom) if value else f"(not {self._atom(atom)})"

    def _listed(self, literals: Iterable[tuple[str, bool]]) -> str:
        return " ".join(self._literal(*each) for each in literals) or "none"

    def _changes(self) -> str:
        """A comment with the names that are not those of the model."""
        changed = [
            f"; {safe} = {name}"
            for each in (self.predicates, self.schemas, self.objects)
            for name, safe in each.items()
            if safe != name
        ]
        changed += [
            f"; {'' if fold.same else 'not '}{self.predicates[fold.into]} = {name}" for name, fold in self.folds.items()
        ]
        return "\n".join(["; names in this file, and in the model where they differ", *changed, ""]) if changed else ""


def _type_name(sort: int, objects: Mapping[str, int]) -> str:
    """Named after the letters that all objects of the sort begin with: `type-b` for b1, b2, b3."""
    mine = [name.lower() for name, of in objects.items() if of == sort]
    letters = re.match(r"[a-z]*", min(mine, default=""))
    shared = letters[0] if letters else ""
    while not all(name.startswith(shared) for name in mine):
        shared = shared[:-1]
    return f"type-{shared or sort + 1}"
