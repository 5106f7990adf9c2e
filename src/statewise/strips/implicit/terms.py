"""Objects that the state determines: the arguments that a log leaves out (STRIPS+).

A *query* is an atom in which one place is asked for, the others hold arguments that are known already, or anything:
`at ? x1` asks what is at x1. A query that has exactly one answer before every occurrence of an action, or two queries
that have exactly one answer in common, define a *term*, which may then stand in further queries. Where only the
negation of an atom has a single answer, as the one cell without a tile, that defines a term, too.

Source: Jansen, Gösgens, Geffner, *Learning lifted action models from traces of incomplete actions and states*, KR 2025:
implicit arguments are the unique answers of queries that are stratified, each over the answers of earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import NamedTuple

from statewise.strips.model.states import State

ASKED = -1
"""The place of a query that is asked for."""
ANY = -2
"""A place of a query that can be any object."""
MOST_TERMS = 16
"""The most terms of a schema beside its arguments."""
MOST_FIXED = 3
"""The most places of a query that hold known arguments."""
MOST_PAIRS = 5_000
"""The most pairs of queries that are tried at once."""

Objects = frozenset[str]
NOTHING: Objects = frozenset()


class Query(NamedTuple):
    """An atom with one place that is asked for."""

    predicate: str
    places: tuple[int, ...]
    """At each place an argument by its number, `ASKED` or `ANY`."""
    negated: bool = False
    """Whether the answers are the objects of the sort for which no such atom is true."""

    @property
    def uses(self) -> frozenset[int]:
        """The arguments that the query names."""
        return frozenset(at for at in self.places if at >= 0)

    def as_text(self, asked: int) -> str:
        """The query in words, with arguments `x1 x2 ...`; what it asks for is the argument `asked`."""
        names = {ASKED: f"x{asked + 1}", ANY: "_"}
        text = " ".join((self.predicate, *(names.get(at, f"x{at + 1}") for at in self.places)))
        return f"no {text}" if self.negated else text


Definition = tuple[Query, ...]
"""Queries with exactly one answer in common."""


@dataclass
class Term:
    """An object that the state determines."""

    values: tuple[str, ...]
    """The object at each occurrence of the action."""
    sort: int
    definitions: list[Definition] = field(default_factory=list)
    """All definitions found, the simplest first."""


class Facts:
    """The true atoms of a state, by predicate and by object."""

    def __init__(
        self, state: State, objects: Mapping[tuple[str, int], Objects], split: dict[str, tuple[str, ...]]
    ) -> None:
        self.objects = objects
        """The objects of the trace that have the sort of a place of a predicate."""
        self.atoms: dict[str, list[tuple[str, ...]]] = {}
        for name in state.true:
            words = split.get(name)
            if words is None:
                words = split[name] = tuple(name.split())
            self.atoms.setdefault(words[0], []).append(words[1:])
        self._true: dict[str, frozenset[tuple[str, ...]]] = {}
        self._by_place: dict[tuple[str, int], dict[str, list[tuple[str, ...]]]] = {}

    def true(self, predicate: str) -> frozenset[tuple[str, ...]]:
        """The objects of the true atoms of a predicate."""
        found = self._true.get(predicate)
        if found is None:
            found = self._true[predicate] = frozenset(self.atoms.get(predicate, ()))
        return found

    def _having(self, predicate: str, place: int, one: str) -> Sequence[tuple[str, ...]]:
        index = self._by_place.get((predicate, place))
        if index is None:
            index = self._by_place[predicate, place] = {}
            for atom in self.atoms.get(predicate, ()):
                index.setdefault(atom[place], []).append(atom)
        return index.get(one, ())

    def answers(self, query: Query, arguments: Sequence[str]) -> Objects:
        """The objects that answer a query about these arguments."""
        predicate, places, negated = query
        atoms: Sequence[tuple[str, ...]] | None = None
        asked = 0
        for place, at in enumerate(places):
            if at == ASKED:
                asked = place
            elif at >= 0:
                some = self._having(predicate, place, arguments[at])
                atoms = some if atoms is None or len(some) < len(atoms) else atoms
        if atoms is None:
            atoms = self.atoms.get(predicate, ())
        fixed = [(place, arguments[at]) for place, at in enumerate(places) if at >= 0]
        found = frozenset(atom[asked] for atom in atoms if all(atom[place] == one for place, one in fixed))
        return self.objects.get((predicate, asked), NOTHING) - found if negated else found

    def value(self, definition: Definition, arguments: Sequence[str]) -> str | None:
        """The object that a definition determines; None if it has no answer or several."""
        common: Objects | None = None
        for query in definition:
            answers = self.answers(query, arguments)
            common = answers if common is None else common & answers
            if not common:
                return None
        assert common is not None
        return next(iter(common)) if len(common) == 1 else None


class Sorts:
    """Sorts of objects: objects at one place of a predicate or of a schema have one sort."""

    def __init__(self, places: Iterable[tuple[tuple[str, str, int], str]]) -> None:
        """`places`: places of predicates and of schemas, each `("atom" or "action", name, number)`, with an object."""
        self._parent: dict[object, object] = {}
        for place, one in places:
            self._parent[self._root(place)] = self._root(one)
        numbers: dict[object, int] = {}
        self.of: dict[object, int] = {
            key: numbers.setdefault(self._root(key), len(numbers)) for key in list(self._parent)
        }
        """The sort of each place, and of each object."""

    def _root(self, key: object) -> object:
        parent = self._parent
        while (above := parent.setdefault(key, key)) != key:
            parent[key] = key = parent[above]
        return key


class Search:
    """The search for the terms of a schema."""

    def __init__(
        self,
        schema: str,
        arity: int,
        predicates: Mapping[str, int],
        sorts: Sorts,
        before: Sequence[Facts],
        objects: Sequence[tuple[str, ...]],
        has_time: Callable[[], bool] = lambda: True,
    ) -> None:
        """`before`: the states before the occurrences of the action; `objects`: its arguments there. `predicates` that
        states list completely, with their numbers of arguments."""
        self.predicates, self.sorts, self.before, self.has_time = predicates, sorts, before, has_time
        self.terms = [Term(tuple(each[at] for each in objects), sorts.of["action", schema, at]) for at in range(arity)]
        """The arguments, and after them the terms that were found; a definition names only earlier ones."""
        self.arity = arity
        self._tried: set[Query] = set()
        self._broad: list[tuple[Query, int, list[Objects]]] = []
        """Queries with at least one answer everywhere, and several somewhere."""
        self._paired: set[tuple[Query, Query]] = set()

    def run(self) -> list[Term]:
        """Finds all terms, at most `MOST_TERMS`: of single queries, then of two, then of negated ones."""
        while True:
            while self._add_singles(negated=False):
                pass
            if not self._add_pairs() and not self._add_singles(negated=True):
                return self.terms

    def _full(self) -> bool:
        return len(self.terms) - self.arity >= MOST_TERMS or not self.has_time()

    def _add_singles(self, *, negated: bool) -> bool:
        """Adds the terms of new queries; whether there were any."""
        added = False
        for query, sort in list(self._queries(negated)):
            if query in self._tried or self._full():
                continue
            self._tried.add(query)
            answers = self._answers(query)
            if answers is None:
                continue
            if all(len(each) == 1 for each in answers):
                added |= self._add((query,), sort, tuple(next(iter(each)) for each in answers))
            elif not negated:
                self._broad.append((query, sort, answers))
        return added

    def _queries(self, negated: bool) -> Iterator[tuple[Query, int]]:
        """Queries over the terms so far, with the sort that they ask for: those with few known arguments first."""
        found = []
        for predicate, arity in self.predicates.items():
            sorts = [self.sorts.of.get(("atom", predicate, place), -1) for place in range(arity)]
            for asked in range(arity):
                choices: list[list[int]] = [
                    [ASKED]
                    if place == asked
                    else [ANY]
                    if negated
                    else [ANY, *(at for at, term in enumerate(self.terms) if term.sort == sorts[place])]
                    for place in range(arity)
                ]
                for places in product(*choices):
                    if sum(at >= 0 for at in places) <= MOST_FIXED:
                        found.append((Query(predicate, places, negated), sorts[asked]))
        # a query that names more arguments and fewer wildcards says more about the action
        yield from sorted(found, key=lambda each: (max(each[0].places), sum(at == ANY for at in each[0].places), each))

    def _answers(self, query: Query) -> list[Objects] | None:
        """The answers at each occurrence; None if there is none at one of them."""
        found = []
        for at, facts in enumerate(self.before):
            arguments = [term.values[at] for term in self.terms]
            answers = facts.answers(query, arguments)
            if not answers:
                return None
            found.append(answers)
        return found

    def _add(self, definition: Definition, sort: int, values: tuple[str, ...]) -> bool:
        """Adds a term, or another definition of a term; whether it is new."""
        for at, term in enumerate(self.terms):
            if term.values == values:
                if at >= self.arity and all(use < at for query in definition for use in query.uses):
                    term.definitions.append(definition)
                return False
        self.terms.append(Term(values, sort, [definition]))
        return True

    def _add_pairs(self) -> bool:
        added, count = False, 0
        for (one, sort, first), (other, also, second) in combinations(self._broad, 2):
            if sort != also or (one, other) in self._paired or count >= MOST_PAIRS or self._full():
                continue
            self._paired.add((one, other))
            count += 1
            common = []
            for these, those in zip(first, second):
                both = these & those
                if len(both) != 1:
                    break
                common.append(next(iter(both)))
            else:
                added |= self._add((one, other), sort, tuple(common))
        return added
