"""Schemas from states of which some atoms are wrong, with actions of which some are misread: by votes.

Each observed value of an atom is wrong with a probability of at most `noise`, independently of the others, and each
action is misread as another one with at most the same probability, as any ground action with equal probability. Each
occurrence of a schema votes on each literal l, by the values of its atom before and after it:

- l is required only if it is true before every occurrence, added only if it is true after every one, and deleted only
  if it is false after every one: it is excluded if more votes say otherwise than noise explains;
- l is not changed only if its values before and after are equal: if this and deleting are excluded, it is certain that
  l is added; if this and adding are, that it is deleted.

With a probability of at least `CONFIDENCE` no verdict is wrong: each test has its part of the rest (Bonferroni), and
all occurrences that may be misread count as votes against it. So verdicts need no model of what damage looks like.

The chosen schema is the likeliest one: of each literal, what the votes say if wrong values have the estimated rate.
Occurrences that contradict most of what their schema requires and changes are left out as misread, and the votes are
counted again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import log

import numpy as np

from statewise.strips.exact.frame import Clock
from statewise.strips.model.schemas import Literal, arguments
from statewise.strips.model.states import Observed, State
from statewise.strips.observed.bounds import Bounds, SchemaBounds, schema_of

CONFIDENCE = 0.99
"""With which probability no verdict is wrong, if the share of noise is at most the stated one."""
LEAST = 0.002
"""The least share of wrong values that the choice of a schema reckons with."""
MOST = 0.4
"""The largest share of noise: with half of the values wrong, they say nothing."""
ROUNDS = 3
"""How often votes are counted again without occurrences that look misread."""
VOTING = "counting votes of observed states"
UNKNOWN = -1


@dataclass(frozen=True)
class Votes:
    """The values of the literals of one schema."""

    literals: tuple[Literal, ...]
    before: np.ndarray
    """[n, L] int8: whether the atom of each literal was observed to be true before each occurrence, or `UNKNOWN`."""
    after: np.ndarray
    """[n, L] the same after it; `UNKNOWN` also where another literal names the same atom."""

    def only(self, kept: np.ndarray) -> Votes:
        """The votes of some occurrences: [n] bool."""
        return Votes(self.literals, self.before[kept], self.after[kept])

    def counts(self) -> tuple[np.ndarray, np.ndarray]:
        """[2, L] how often each value was seen before occurrences, and [2, 2, L] how often each pair of values before
        and after them."""
        single = np.stack([(self.before == value).sum(0) for value in (0, 1)])
        pairs = np.stack(
            [np.stack([((self.before == one) & (self.after == other)).sum(0) for other in (0, 1)]) for one in (0, 1)]
        )
        return single, pairs


def noisy_bounds(
    observed: Observed,
    clock: Clock,
    *,
    noise: float | None = None,
    constants: Sequence[str] = (),
    fits: Callable[[str, Literal], bool] = lambda schema, literal: True,
) -> tuple[dict[str, SchemaBounds], float]:
    """The bounds of each schema that was valid in some trace, and the share of noise. `noise` is the largest share of
    wrong values and of misread actions; None: it is estimated (`estimated_noise`). Once the time is up, the remaining
    traces are not counted. Raises `ValueError` for a share outside [0, 0.4]."""
    if noise is not None and not 0 <= noise <= MOST:
        raise ValueError(f"the share of noise must be from 0 to {MOST} where states are observed, not {noise:g}")
    votes = gathered(observed, clock, constants, fits)
    names = observed.traces.actions
    width = {schema: len(objects) for schema, objects in map(arguments, names)}
    total = sum(len(each.before) for each in votes.values())
    share = {schema: sum(arguments(name)[0] == schema for name in names) / len(names) for schema in votes}
    rate = estimated_noise(observed, clock) if noise is None else noise
    chosen = {schema: Choice.of(each, rate, _expected(rate, total, share[schema])) for schema, each in votes.items()}
    if noise is None:
        left_out = sum(int((~each.kept).sum()) for each in chosen.values())
        rate = min(MOST, max(rate, 1.5 * left_out / max(1, total)))
    tests = 4 * sum(len(each.literals) for each in votes.values()) + len(votes)
    alpha = (1 - CONFIDENCE) / max(1, tests)
    found = {}
    for schema, each in votes.items():
        misread = _most(total, rate * share[schema], alpha)
        pre, add, delete = _tested(each, rate, misread, alpha)
        pick = chosen[schema]
        made = schema_of(pick.pre & pre.possible, pick.add, pick.delete, width[schema], constants)
        kept = frozenset(each.literals) - delete.possible
        found[schema] = SchemaBounds(pre, add, delete, made, tuple(constants), kept)
    return found, rate


def gathered(
    observed: Observed,
    clock: Clock,
    constants: Sequence[str] = (),
    fits: Callable[[str, Literal], bool] = lambda schema, literal: True,
) -> dict[str, Votes]:
    """The votes on the literals of each schema, of its valid occurrences."""
    actions = [arguments(name) for name in observed.traces.actions]
    predicates, complete = observed.predicates, observed.complete
    literals: dict[str, tuple[Literal, ...]] = {}
    for schema, objects in actions:
        if schema not in literals:
            places = range(len(objects) + len(constants))
            every = ((name, chosen) for name, arity in predicates.items() for chosen in product(places, repeat=arity))
            literals[schema] = tuple(each for each in every if fits(schema, each))
    known_to = np.array([name in complete for name in predicates])
    number = {name: at for at, name in enumerate(predicates)}
    whole = {
        schema: known_to[np.array([number[name] for name, _ in of], dtype=np.int64)] for schema, of in literals.items()
    }
    atoms: dict[int, tuple[list[str], np.ndarray]] = {}
    rows: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for place in range(len(observed.traces)):
        if not clock.has_time():
            clock.cut.append(VOTING)
            break
        for at, action in enumerate(observed.traces.valid(place)):
            schema, objects = actions[action]
            if action not in atoms:
                terms = (*objects, *constants)
                named = [" ".join((name, *(terms[one] for one in places))) for name, places in literals[schema]]
                often = {name: named.count(name) for name in set(named)} if len(set(named)) < len(named) else {}
                atoms[action] = named, np.array([often.get(name, 1) > 1 for name in named], dtype=bool)
            named, shared = atoms[action]
            before, after = (_values(observed.states[place][one], named, whole[schema]) for one in (at, at + 1))
            after[shared] = UNKNOWN
            rows.setdefault(schema, []).append((before, after))
    return {
        schema: Votes(literals[schema], np.stack([one for one, _ in of]), np.stack([other for _, other in of]))
        for schema, of in rows.items()
    }


def _values(state: State | None, named: Sequence[str], complete: np.ndarray) -> np.ndarray:
    """The values of atoms in a state; those that it does not list are false if their predicates are complete."""
    values = np.full(len(named), UNKNOWN, dtype=np.int8)
    if state is None:
        return values
    values[complete] = 0
    for at, name in enumerate(named):
        if name in state.true:
            values[at] = 1
        elif name in state.false:
            values[at] = 0
    return values


def estimated_noise(observed: Observed, clock: Clock) -> float:
    """The share of wrong values, from stretches of three states and more between actions that name all objects of an
    atom: there its value does not change, and the rarer value is wrong. The larger one of the shares of atoms that are
    mostly true and mostly false; at least `LEAST`, at most `MOST`."""
    rarer, total = np.zeros(2), np.zeros(2)
    objects_of = [set(arguments(name)[1]) for name in observed.traces.actions]
    for place in range(len(observed.traces)):
        if not clock.has_time():
            break
        row = observed.traces.valid(place)
        states = observed.states[place][: len(row) + 1]
        for atom in sorted({atom for state in states if state is not None for part in state for atom in part}):
            name, *objects = atom.split()
            complete, first = name in observed.complete, 0
            for last in range(len(states)):
                if last < len(row) and not objects_of[row[last]].issuperset(objects):
                    continue
                seen = [state.value(atom, complete) for state in states[first : last + 1] if state is not None]
                true, false = seen.count(True), seen.count(False)
                first = last + 1
                if true + false >= 3 and true != false:
                    rarer[int(true > false)] += min(true, false)
                    total[int(true > false)] += true + false
    return float(np.clip((rarer / np.maximum(total, 1)).max(), LEAST, MOST))


def _expected(rate: float, total: int, share: float) -> float:
    """How many occurrences of a schema with this share of the ground actions are expected to be misread actions."""
    return rate * total * share


def _most(count: int, rate: float, alpha: float) -> int:
    """The number of events that is exceeded with a probability of at most `alpha`."""
    from scipy.stats import binom

    return int(binom.isf(alpha, count, min(1.0, rate))) if rate > 0 else 0


def _refuted(against: np.ndarray, of: np.ndarray, rate: float, misread: int, alpha: float) -> np.ndarray:
    """[L] bool: whether so many of the votes are too many for this rate of wrong ones, besides those misread."""
    from scipy.stats import binom

    tail = binom.sf(np.maximum(against - misread, 0) - 1, of, min(1.0, rate))
    return np.asarray((against > misread) & (tail <= alpha))


def _tested(votes: Votes, rate: float, misread: int, alpha: float) -> tuple[Bounds, Bounds, Bounds]:
    """The bounds of preconditions, additions and deletions."""
    single, pairs = votes.counts()
    count = pairs.sum((0, 1))
    not_pre = _refuted(single[0], single.sum(0), rate, misread, alpha)
    not_add = _refuted(pairs[:, 0].sum(0), count, rate, misread, alpha)
    not_delete = _refuted(pairs[:, 1].sum(0), count, rate, misread, alpha)
    not_none = _refuted(pairs[0, 1] + pairs[1, 0], count, 2 * rate * (1 - rate), misread, alpha)

    def bounds(certain: np.ndarray, excluded: np.ndarray) -> Bounds:
        def named(which: np.ndarray) -> frozenset[Literal]:
            return frozenset(votes.literals[at] for at in np.flatnonzero(which))

        return Bounds(named(certain), named(~excluded))

    return (
        bounds(np.zeros_like(not_pre), not_pre),
        bounds(not_none & not_delete & ~not_add, not_add),
        bounds(not_none & not_add & ~not_delete, not_delete),
    )


@dataclass(frozen=True)
class Choice:
    """The likeliest literals of a schema."""

    pre: frozenset[Literal]
    add: frozenset[Literal]
    delete: frozenset[Literal]
    kept: np.ndarray
    """[n] bool: the occurrences that do not look misread."""

    @classmethod
    def of(cls, votes: Votes, rate: float, misread: float) -> Choice:
        """Chooses by the votes. `misread`: how many of the occurrences are expected to be misread actions."""
        rate = min(MOST, max(LEAST, rate))
        count = len(votes.before)
        kept = np.ones(count, dtype=bool)
        doubt = min(0.5, misread / max(1, count))
        for round_ in range(ROUNDS):
            wrong = min(MOST, rate + doubt * (round_ == 0))
            pre, add, delete = _likeliest(votes.only(kept), wrong)
            if doubt == 0 or round_ == ROUNDS - 1:
                break
            fails = ((votes.before == 0) & pre).sum(1) + ((votes.after == 0) & add).sum(1)
            fails = fails + ((votes.after == 1) & delete).sum(1)
            told = ((votes.before != UNKNOWN) & pre).sum(1) + ((votes.after != UNKNOWN) & (add | delete)).sum(1)
            doubtful = fails * log(0.5 / rate) + (told - fails) * log(0.5 / (1 - rate)) + log(doubt / (1 - doubt))
            kept = doubtful <= 0
            if not kept.any():
                kept[:] = True
                break
        literals = votes.literals
        one, two, three = (frozenset(literals[at] for at in np.flatnonzero(which)) for which in (pre, add, delete))
        return cls(one, two, three, kept)


def _likeliest(votes: Votes, wrong: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[L] bool: what is required, added and deleted, if values are wrong at this rate.

    A literal is required if so many false values are likelier of an atom that is always true than of one that is true
    at an unknown rate, all rates being equally likely. It has an effect if this explains the values better than no
    effect, each with the likeliest rate of true values before, by more than the choice among all literals costs."""
    from scipy.stats import binom

    single, pairs = votes.counts()
    seen = single.sum(0)
    pre = (seen > 0) & (binom.pmf(single[0], seen, wrong) * (seen + 1) >= 1)
    rates = np.linspace(0, 1, 41)[:, None]
    right = np.array([[1 - wrong, wrong], [wrong, 1 - wrong]])  # of each value, how likely it is seen as false and true

    def likelihood(after: Callable[[int], int]) -> np.ndarray:
        """[L] the largest log-likelihood, if a value t becomes `after(t)`."""
        total = np.zeros((len(rates), len(seen)))
        for one in (0, 1):
            for other in (0, 1):
                chance = sum(
                    (rates if value else 1 - rates) * right[value, one] * right[after(value), other] for value in (0, 1)
                )
                total = total + pairs[one, other] * np.log(chance)
        return total.max(0)

    none = likelihood(lambda value: value)
    added, deleted = likelihood(lambda value: 1) - none, likelihood(lambda value: 0) - none
    price = log(2 * max(1, len(votes.literals)))
    return pre, (added > price) & (added >= deleted), (deleted > price) & (deleted > added)
