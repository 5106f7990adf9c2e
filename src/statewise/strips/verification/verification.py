"""Are two action models equivalent? Decided exactly, with a counterexample if they are not.

The STRIPS Transformer paper tests a learned model on random traces, since whether it equals the hidden one "cannot be
determined in general". For action models it can be: see `containment`. There are three notions of equivalence:

- *Definition 1*: both accept the same traces, out of all traces.
- *real states*: both agree on the traces whose actions, except the last, are applicable in turn from some real state of
  the reference domain. Models that differ under Definition 1 may be equivalent here.
- *drawn traces*: both agree on those of these traces that `traces` can draw, which is all that can be learned.

A proof is tried first, since it takes milliseconds where it succeeds, whatever the size: for lifted models at the level
of schemas, for any number of objects (`cut_off`), otherwise for the given ground actions (`pair_proof`). Where the
proof fails, a small instance is searched as a whole, and a large one over fewer of its objects, where wrong schemas
nearly always show.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from statewise.strips.model.heads import Head, heads, uncovered
from statewise.strips.model.model import ActionModel, bits
from statewise.strips.model.pairs import Pairs, closed, pairs_of_states
from statewise.strips.model.schemas import arguments, sorts_of
from statewise.strips.trace_data.domains import Domain
from statewise.strips.verification.containment import KnownFalseSearch, RealStates, RealStateSearch
from statewise.strips.verification.pair_proof import PairBound, Shape, cut_off, shape_of
from statewise.strips.verification.search import MAX_STATES, SECONDS, LimitReached, Limits, Result, Search, shortest

Outcome = Literal["equivalent", "different", "unknown"]
Notion = Literal["definition 1", "real states", "drawn traces"]
Side = Literal["learned", "reference"]
Proven = Literal["all instances", "this instance"]

FEW_STATES = 2_000
"""The whole instance is searched first up to this many states, then the traces over fewer of its objects."""
SHORTER = 5.0
"""Seconds for finding a counterexample shorter than one over fewer objects."""


@dataclass(frozen=True)
class Verdict:
    """The result of a verification."""

    outcome: Outcome
    notion: Notion
    seconds: float
    states: int
    """The number of states searched."""
    counterexample: tuple[str, ...] | None = None
    """A trace of action names whose last action exactly one model rejects; both accept all actions before it."""
    accepted_by: Side | None = None
    """The model that accepts the whole counterexample."""
    head: str | None = None
    """The atom by which one model rejects the trace: an atom of the learned model if that is too strict; an atom of the
    reference that the learned model lacks if it is too lenient."""
    start: tuple[str, ...] | None = None
    """With real states: the true atoms of a state from which all actions but the last are applicable in turn; the last
    one is, too, if only drawn traces count and the reference accepts it."""
    shortest: bool = False
    """Whether the counterexample is proven to be a shortest one: False if the search for shorter ones hit a limit."""
    reason: str | None = None
    """The limit that was reached, if any."""
    proven: Proven | None = None
    """If equivalent, the instances for which this is proven: all, with any number of objects of these sorts in actions
    of these kinds, or only these ground actions."""
    excluded: tuple[str, ...] = ()
    """If proven for all instances, with real states: the pairs of atoms, up to the names of their objects, that no real
    state holds. The proof is valid for every initial state without any of these pairs."""
    depth: int | None = None
    """If unknown: the models agree on all traces of at most this many actions."""
    objects: tuple[str, ...] = ()
    """If unknown: the models agree on all traces over only these objects, whatever their length."""
    unseen: tuple[str, ...] = ()
    """The actions of the reference that the learned model lacks: it never rejects them, and they change nothing."""

    def __bool__(self) -> bool:
        """Whether the models are proven equivalent."""
        return self.outcome == "equivalent"


@dataclass(frozen=True)
class Difference:
    """A trace up to the first action that exactly one model rejects."""

    trace: tuple[int, ...]
    accepted_by: Side
    head: str

    def __len__(self) -> int:
        return len(self.trace)


@dataclass(frozen=True)
class _Pair:
    """Two models over the same actions in the same order, and the domain of the reference if real states count."""

    learned: ActionModel
    reference: ActionModel
    domain: Domain | None

    def sides(self) -> Iterator[tuple[Side, ActionModel, ActionModel]]:
        """Each model as the accepting one, with the other one, whose heads may reject what it accepts."""
        yield "reference", self.reference, self.learned
        yield "learned", self.learned, self.reference

    def wanted(self) -> Wanted:
        """The heads that may reject more than the other model."""
        return [(side, head) for side, one, other in self.sides() for head in uncovered(heads(other), heads(one))]

    def over(self, objects: set[str]) -> _Pair:
        """The pair with only the actions over these objects."""
        kept = [at for at, name in enumerate(self.learned.names) if objects.issuperset(_objects(name))]
        learned, reference = (
            ActionModel(model.atoms, tuple(model.actions[at] for at in kept))
            for model in (self.learned, self.reference)
        )
        domain = Domain(self.domain.name, reference, self.domain.start) if self.domain is not None else None
        return _Pair(learned, reference, domain)


Wanted = list[tuple[Side, Head]]
"""Heads that may reject a trace that a model accepts: the model, and the head of the other one."""


def verify(
    learned: ActionModel,
    reference: ActionModel | Domain,
    *,
    real_states: bool = False,
    drawn_only: bool = False,
    seconds: float = SECONDS,
    max_states: int = MAX_STATES,
) -> Verdict:
    """Compares two models over the same actions, matched by name; atoms may differ in number, names and order.

    By default under Definition 1 of the STRIPS Transformer paper. With `real_states`, on the traces whose actions,
    except the last, are applicable in turn from a real state of the domain `reference`; the last action is arbitrary
    and judged by Definition 1. `drawn_only` (which implies `real_states`) leaves out last actions that Definition 1
    accepts but that are inapplicable: the remaining traces are those that `traces` can draw, and show all that can be
    learned.

    An equivalence is proven for all instances, if ground actions and atoms are written `schema object object` and the
    proof succeeds at the level of schemas, or only for this one. The outcome is `unknown` if neither a difference nor a
    proof was found within `seconds` and `max_states`, which all searches share; the verdict says how far they came. The
    learned model never rejects an action of the reference that it lacks, and the action changes nothing; the verdict
    names it. Raises `ValueError` if the reference lacks an action of the learned model, or if `real_states` is set and
    the reference is not a domain.
    """
    notion: Notion = "drawn traces" if drawn_only else "real states" if real_states else "definition 1"
    if notion != "definition 1" and not isinstance(reference, Domain):
        raise ValueError("real states need a domain: the reference must be one, not just an action model")
    true = reference.model if isinstance(reference, Domain) else reference
    unseen = tuple(learned.unseen(true.names))
    learned = learned.covering([*learned.names, *unseen])
    true = true.with_actions(learned.names, "the reference", "the learned model")
    domain = Domain(reference.name, true, reference.start) if isinstance(reference, Domain) else None
    pair = _Pair(learned, true, domain if notion != "definition 1" else None)
    return replace(_Verification(pair, notion, Limits(seconds, max_states)).verdict(), unseen=unseen)


@dataclass(frozen=True)
class _Counterexample:
    """A difference as the verdict describes it; its length is that of the trace."""

    trace: tuple[str, ...]
    accepted_by: Side
    head: str
    start: tuple[str, ...] | None

    def __len__(self) -> int:
        return len(self.trace)


class _Verification:
    """One comparison, in stages: later stages skip what an earlier one has decided."""

    def __init__(self, pair: _Pair, notion: Notion, limits: Limits) -> None:
        self.pair, self.notion, self.limits = pair, notion, limits
        self.wanted = pair.wanted()
        """Heads that are not yet proven to reject nothing more than the other model."""
        self.proven: Proven = "this instance"
        self.excluded: list[str] = []
        self.bound = 2
        """The models agree on all shorter traces."""
        self.found: _Counterexample | None = None
        self.is_shortest = False
        self.number, self.over = 0, tuple[str, ...]()
        """The number of objects of each sort over which all traces have been searched, and these objects."""
        self.reason: str | None = None

    def verdict(self) -> Verdict:
        """The verdict of all stages, up to the limits."""
        try:
            self._stages()
        except LimitReached as reached:
            self.reason = str(reached)
        outcome: Outcome = "different" if self.found else "unknown" if self.wanted else "equivalent"
        verdict = Verdict(outcome, self.notion, self.limits.elapsed, self.limits.states)
        if outcome == "equivalent":
            return replace(verdict, proven=self.proven, excluded=tuple(self.excluded))
        reason = None if self.is_shortest else self.reason
        if self.found is None:
            return replace(verdict, reason=reason, depth=self.bound - 1, objects=self.over)
        example = self.found
        return replace(
            verdict,
            counterexample=example.trace,
            accepted_by=example.accepted_by,
            head=example.head,
            start=example.start,
            shortest=self.is_shortest,
            reason=reason,
        )

    def _stages(self) -> None:
        """Proofs first, which need no search. Raises `LimitReached`."""
        real: Pairs | None = None
        if self.pair.domain is not None:
            true = self.pair.reference
            real = closed(
                pairs_of_states(self.pair.domain.start, len(true.atoms)), true.actions, self.limits.look_at_the_clock
            )
        self._prove_for_all(real)
        if not self.wanted or self._search_all(Limits(self.limits.seconds, FEW_STATES, self.limits)):
            return
        if self.found is None:
            self._search_over_fewer_objects(Limits(self.limits.seconds / 4, 10 * FEW_STATES, self.limits))
        if self.found is None:
            self._prove_here(real)
            if not self.wanted:
                return
            self._search_over_fewer_objects(Limits(self.limits.seconds / 4, self.limits.max_states // 3, self.limits))
        if self.found is None:
            self._search_all(self.limits)
        elif len(self.found) <= self.bound:
            self.is_shortest = True
        else:
            self._search_all(Limits(SHORTER, self.limits.max_states, self.limits))

    def _prove_for_all(self, real: Pairs | None) -> None:
        """Drops the heads that reject nothing more in any instance, and bounds the length of what the others reject."""
        cut = cut_off(self.pair.learned, self.pair.reference)
        if cut is None:
            return
        limits = Limits(self.limits.seconds / 4, self.limits.max_states, self.limits)
        among = _Pair(cut.learned, cut.reference, None)
        by_shape: dict[tuple[Side, Shape], Head] = {}  # all heads of a shape are equal up to renaming
        for side, _, other in among.sides():
            for head in heads(other):
                by_shape.setdefault((side, shape_of([head.name], cut.sorts)), head)
        accepting_heads = {side: heads(accepting) for side, accepting, _ in among.sides()}
        wanted = {key: head for key, head in by_shape.items() if uncovered([head], accepting_heads[key[0]])}
        try:
            pairs = None
            if wanted and real is not None:
                pairs = cut.pairs(real, self.pair.reference, limits)
            bounds = self._bounds(among, pairs, [(side, head) for (side, _), head in wanted.items()], limits)
        except LimitReached:
            return
        unproven = {key for key, bound in zip(wanted, bounds) if bound is not None}
        self.bound = max(self.bound, min((bound for bound in bounds if bound is not None), default=2))
        self.wanted = [
            (side, head) for side, head in self.wanted if (side, shape_of([head.name], cut.given)) in unproven
        ]
        if not unproven:
            self.proven = "all instances"
            self.excluded = cut.excluded(pairs) if pairs is not None else []

    def _prove_here(self, real: Pairs | None) -> None:
        """Drops the heads that reject nothing more over the given ground actions, and bounds the length for the
        others."""
        limits = Limits(self.limits.seconds / 4, self.limits.max_states, self.limits)
        try:
            bounds = self._bounds(self.pair, real, self.wanted, limits)
        except LimitReached:
            return
        self.wanted = [each for each, bound in zip(self.wanted, bounds) if bound is not None]
        self.bound = max(self.bound, min((bound for bound in bounds if bound is not None), default=2))

    def _bounds(self, pair: _Pair, real: Pairs | None, wanted: Wanted, limits: Limits) -> list[int | None]:
        """For each head a lower bound on the length of the traces that it rejects; None if there are none."""
        true = (pair.reference, real) if real is not None else None
        prove = {
            side: PairBound(accepting, true, limits, last_is_done=self._last_is_done(side))
            for side, accepting, _ in pair.sides()
        }
        return [prove[side].shortest(head) for side, head in wanted]

    def _last_is_done(self, side: Side) -> bool:
        """Whether the last action of a trace that this model accepts must be applicable."""
        return self.notion == "drawn traces" and side == "reference"

    def _search_all(self, limits: Limits) -> bool:
        """Searches for the shortest counterexample; returns whether the search ended."""
        try:
            result = self._search(self.pair, self.wanted, limits)
        except LimitReached as reached:
            self.limits.look_at_the_clock()
            self.reason = str(reached)
            return False
        self.reason = result.limit
        if result.limit is not None:
            assert result.depth is not None
            self.bound = max(self.bound, result.depth + 1)
            return False
        self.is_shortest = self.found is not None
        if self.found is None:
            self.wanted = []
        return True

    def _search_over_fewer_objects(self, limits: Limits) -> None:
        """Searches the traces over the first one, two, ... objects of each sort, beginning where the last call
        ended."""
        by_sort = _objects_by_sort(self.pair)
        for number in range(self.number + 1, max(map(len, by_sort), default=0)):
            objects = [name for names in by_sort for name in names[:number]]
            pair = self.pair.over(set(objects))
            try:
                result = self._search(pair, pair.wanted(), limits)
            except LimitReached:
                return
            if self.found is not None or result.limit is not None:
                return
            self.number, self.over = number, tuple(objects)

    def _search(self, pair: _Pair, wanted: Wanted, limits: Limits) -> Result[_Counterexample]:
        """Searches for a counterexample, shorter than the one found before, if any."""
        real = RealStates(pair.domain, pair.learned.names, limits) if pair.domain is not None and wanted else None

        def searches() -> Iterator[Search]:
            accepting = {side: model for side, model, _ in pair.sides()}
            for side, head in wanted:
                if real is None:
                    yield KnownFalseSearch(accepting[side], head)
                else:
                    yield RealStateSearch(accepting[side], head, real, last_is_done=self._last_is_done(side))

        def seen(trace: list[int]) -> _Counterexample:
            difference = difference_on(pair.learned, pair.reference, trace)
            start = None
            if real is not None:
                all_is_done = self._last_is_done(difference.accepted_by)
                state = real.start_of(difference.trace if all_is_done else difference.trace[:-1])
                assert state is not None, "the prefix is applicable, and the whole trace if the reference accepts it"
                start = tuple(pair.reference.spelled(state))
            names = tuple(pair.learned.names[number] for number in difference.trace)
            return _Counterexample(names, difference.accepted_by, difference.head, start)

        result = shortest(searches(), limits, seen, len(self.found) if self.found is not None else None)
        if result.found is not None:
            self.found = result.found
        return result


def _objects(action: str) -> tuple[str, ...]:
    return arguments(action)[1]


def _objects_by_sort(pair: _Pair) -> list[list[str]]:
    """The objects of each sort. Objects that the first applicable actions mention come first: from the initial states
    on, if real states count, with deletes ignored. Empty if the actions are not written `schema object object`."""
    try:
        _, sorts = sorts_of(pair.reference.names)
    except ValueError:
        return []
    known = 0
    for state in pair.domain.start if pair.domain is not None else ():
        known |= state
    waiting, order = list(pair.reference.actions), dict[str, None]()
    while pair.domain is not None and waiting:
        now = [action for action in waiting if not action.pre & ~known]
        if not now:
            break
        waiting = [action for action in waiting if action.pre & ~known]
        for action in now:
            known |= action.add
            order.update(dict.fromkeys(_objects(action.name)))
    for action in waiting:
        order.update(dict.fromkeys(_objects(action.name)))
    by_sort: dict[int, list[str]] = {}
    for name in order:
        by_sort.setdefault(sorts[name], []).append(name)
    return list(by_sort.values())


def difference_on(learned: ActionModel, reference: ActionModel, trace: list[int]) -> Difference:
    """Runs both models on a trace up to the first rejection, where exactly one of them must reject."""
    ends = [(model, model.first_rejected(trace)) for model in (learned, reference)]
    places = [end for _, end in ends if end is not None]
    assert places, "one of the models rejects the trace"
    last = min(places)
    rejecting = [model for model, end in ends if end == last]
    assert len(rejecting) == 1, "one of the models accepts the trace"
    model = rejecting[0]
    at_fault = model.actions[trace[last]].pre & model.after(trace[:last])
    atom = next(bits(at_fault))
    accepted_by: Literal["learned", "reference"] = "reference" if model is learned else "learned"
    return Difference(tuple(trace[: last + 1]), accepted_by, model.atoms[atom])
