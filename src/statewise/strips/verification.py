"""Are two action models equivalent? Decided exactly, with a shortest counterexample where they are not.

The STRIPS Transformer paper tests a learned model on random traces, since whether it equals the hidden one "cannot be
determined in general". It can, for action models: see `containment`. There are three notions, each of use:

- *Definition 1*: the two accept the same traces, out of all traces.
- *real states*: the two agree on the traces whose actions, all but the last, can be done from some real state of the
  reference domain. Models that differ under Definition 1 may be equivalent here.
- *drawn traces*: the two agree on those of these that `traces` can draw, which is all that a learner can find out.
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
    """What a verification found."""

    outcome: Outcome
    notion: Notion
    seconds: float
    states: int
    """How many states the searches went through."""
    counterexample: tuple[str, ...] | None = None
    """Names of actions: a trace of which exactly one model rejects the last action; both accept those before."""
    accepted_by: Literal["learned", "reference"] | None = None
    """The model that accepts all of the counterexample."""
    head: str | None = None
    """The atom at fault, of the model that rejects: the learned model's where it rejects what the reference accepts,
    the reference's, which the learned model lacks, where it accepts what the reference rejects."""
    start: tuple[str, ...] | None = None
    """With real states: the atoms that are true in a state from which all actions but the last can be done; the last,
    too, if only drawn traces count and the reference accepts it."""
    shortest: bool = False
    """Whether the counterexample is known to be a shortest one. Not if a limit ended the search for shorter ones."""
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

    Without `real_states` by Definition 1 of the STRIPS Transformer paper. With it on the traces whose actions, all but
    the last, can be done from a real state of the domain `reference`; the last one is any, judged by Definition 1.
    `drawn_only` (which implies `real_states`) leaves out last actions that Definition 1 accepts but that cannot be
    done: what remains is what `traces` can draw, and all that a learner can find out from its traces.

    `unknown` is the answer, never a guess, if neither a difference nor a proof was found within `seconds` and
    `max_states`, which are for all searches together. Raises `ValueError` if the models have different actions, or if
    real states are asked for and the reference is no domain.
    """
    limits = Limits(seconds, max_states)
    notion: Notion = "drawn traces" if drawn_only else "real states" if real_states else "definition 1"
    if notion != "definition 1" and not isinstance(reference, Domain):
        raise ValueError("real states are those of a domain: the reference must be one, not just an action model")
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
        assert state is not None, "what comes before the last action can be done, and if all is to be done all can be"
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
    """Runs both models on a trace that was found, up to the first rejection: exactly one of them must reject there."""
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
