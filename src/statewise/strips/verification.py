"""Are two action models equivalent? Decided exactly, with a shortest counterexample if they are not.

The STRIPS Transformer paper tests a learned model on random traces, since whether it equals the hidden one "cannot be
determined in general". For action models it can: see `containment`. There are three notions of equivalence:

- *Definition 1*: both accept the same traces, out of all traces.
- *real states*: both agree on the traces whose actions, except the last, are applicable in turn from some real state of
  the reference domain. Models that differ under Definition 1 may be equivalent here.
- *drawn traces*: both agree on those of these traces that `traces` can draw, which is all that can be learned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from statewise.strips.containment import KnownFalseSearch
from statewise.strips.domains import Domain
from statewise.strips.heads import Head, heads, uncovered
from statewise.strips.model import ActionModel, bits
from statewise.strips.real_states import RealStates, RealStateSearch
from statewise.strips.search import MAX_STATES, SECONDS, LimitReached, Limits, Search, shortest

Outcome = Literal["equivalent", "different", "unknown"]
Notion = Literal["definition 1", "real states", "drawn traces"]


@dataclass(frozen=True)
class Verdict:
    """The result of a verification."""

    outcome: Outcome
    notion: Notion
    seconds: float
    states: int
    """The number of states searched."""
    counterexample: tuple[str, ...] | None = None
    """Names of actions: a trace whose last action exactly one model rejects; both accept all before it."""
    accepted_by: Literal["learned", "reference"] | None = None
    """The model that accepts the whole counterexample."""
    head: str | None = None
    """The atom of the rejecting model that is at fault: one of the learned model if that is too strict; one of the
    reference, missing from the learned model, if that is too lenient."""
    start: tuple[str, ...] | None = None
    """With real states: the atoms true in a state from which all actions but the last are applicable in turn; the last,
    too, if only drawn traces count and the reference accepts it."""
    shortest: bool = False
    """Whether the counterexample is known to be a shortest one: False if the search for shorter ones hit a limit."""
    reason: str | None = None
    """Which limit was reached, if one was."""

    def __bool__(self) -> bool:
        """Proven equivalent."""
        return self.outcome == "equivalent"


@dataclass(frozen=True)
class Difference:
    """A trace up to the first action that exactly one model rejects."""

    trace: tuple[int, ...]
    accepted_by: Literal["learned", "reference"]
    head: str

    def __len__(self) -> int:
        return len(self.trace)


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
    accepts but that are inapplicable: what remains is what `traces` can draw, and all that can be learned from traces.

    The outcome is `unknown` if neither a difference nor a proof was found within `seconds` and `max_states`, which all
    searches share. Raises `ValueError` if the models have different actions, or if `real_states` is set and the
    reference is not a domain.
    """
    limits = Limits(seconds, max_states)
    notion: Notion = "drawn traces" if drawn_only else "real states" if real_states else "definition 1"
    if notion != "definition 1" and not isinstance(reference, Domain):
        raise ValueError("real states need a domain: the reference must be one, not just an action model")
    true = (reference.model if isinstance(reference, Domain) else reference).with_actions(learned.names)
    too_strict = uncovered(heads(learned), heads(true))
    lacking = uncovered(heads(true), heads(learned))
    real: RealStates | None = None

    def searches() -> Iterator[Search]:
        for accepting, wanted in ((true, too_strict), (learned, lacking)):
            for head in wanted:
                yield search(accepting, head)

    def search(accepting: ActionModel, head: Head) -> Search:
        if real is None:
            return KnownFalseSearch(accepting, head)
        return RealStateSearch(accepting, head, real, last_is_done=drawn_only and accepting is true)

    difference, limit = None, None
    try:
        if isinstance(reference, Domain) and notion != "definition 1" and (too_strict or lacking):
            real = RealStates(reference, learned.names, limits)
        difference, limit = shortest(searches(), limits, lambda trace: difference_on(learned, true, trace))
    except LimitReached as reached:
        limit = str(reached)
    if difference is None:
        outcome: Outcome = "equivalent" if limit is None else "unknown"
        return Verdict(outcome, notion, limits.elapsed, limits.states, reason=limit)
    start = None
    if real is not None:
        all_is_done = drawn_only and difference.accepted_by == "reference"
        state = real.start_of(difference.trace if all_is_done else difference.trace[:-1])
        assert state is not None, "the prefix is applicable, and the whole trace if the reference accepts it"
        start = tuple(true.spelled(state))
    return Verdict(
        "different",
        notion,
        limits.elapsed,
        limits.states,
        counterexample=tuple(learned.names[number] for number in difference.trace),
        accepted_by=difference.accepted_by,
        head=difference.head,
        start=start,
        shortest=limit is None,
        reason=limit,
    )


def difference_on(learned: ActionModel, reference: ActionModel, trace: list[int]) -> Difference:
    """Runs both models on a trace up to the first rejection: exactly one of them must reject there."""
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
