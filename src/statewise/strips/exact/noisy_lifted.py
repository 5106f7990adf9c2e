"""Learns action schemas from damaged traces, by SAT over the windows of slots that recur.

As from damaged traces without schemas (`noisy`), only windows that at least k traces imply count, and `supports`
chooses k. All tuples of objects share the windows of slots (`slots`), so that those of undamaged traces recur where
windows of ground actions are rare. A schema's preconditions are those worth their description (`preconditions`), where
the positions are those of the traces with each of its ground actions. Predicates that need not alternate are not
learned: a negative that no other explains may be damaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

from statewise.strips.exact.features import MOST
from statewise.strips.exact.frame import Clock, How, Work, accuracy
from statewise.strips.exact.lifted import ARITY, few_objects
from statewise.strips.exact.listed import Listed
from statewise.strips.exact.preconditions import preconditions
from statewise.strips.exact.predicates import Predicate, as_schemas, distinct_predicates, grounded
from statewise.strips.exact.schema_occasions import schema_occasions
from statewise.strips.exact.slots import Signature, signatures, slot_holders
from statewise.strips.exact.supports import Fit, best_fit, check_negatives
from statewise.strips.exact.windows import Holders, Windows
from statewise.strips.model.head_arrays import Judge
from statewise.strips.neural.lifted import LiftedModel
from statewise.strips.trace_data.random_traces import Traces


def learn_lifted_noisy(traces: Traces, *, arity: int = ARITY, **how: Unpack[How]) -> LiftedModel:
    """Learns action schemas that explain most of the traces, whose actions are written `schema object object`; the
    other traces are taken for damaged.

    `report["support"]`, `report["accuracies"]` and what an interrupted call leaves are as of `learn_noisy`. Raises
    `ValueError` without negative traces, if a schema occurs with different numbers of arguments, and without
    python-sat, `FileExistsError` if the folder holds anything else.
    """
    check_negatives(traces)
    of_slots = [each for wanted in range(arity + 1) for each in signatures(traces.actions, wanted)]
    work = Work("exact", traces, how)
    work.claim(resumes=True, lifted=True)
    holders = {
        each: slot_holders(each, traces.actions, traces, lambda rows: work.clock.reading(rows, 0.2))
        for each in of_slots
    }
    judge = Judge(traces)

    def fit(support: int, seconds: float) -> Fit[list[Predicate]]:
        clock = Clock(seconds, work.clock.stop)
        found, windows = able_predicates(holders, support, clock, work.listed)
        kept = with_preconditions(found, traces, clock, support)
        right = accuracy(grounded(kept, traces.actions)[0], judge)
        return Fit(support, kept, windows, len(found), tuple(clock.cut), right)

    best, tried = best_fit(work, "schemas", fit)
    return work.lifted(
        as_schemas(best.model, traces.actions),
        {
            "settings": {"arity": arity},
            "offered": best.offered,
            "predicates": len(best.model),
            "windows": best.windows,
            **tried,
            "training_accuracy": best.accuracy,
            "few_objects": few_objects(traces.actions),
        },
    )


def able_predicates(
    holders: Mapping[Signature, Holders], support: int, clock: Clock, listed: Listed
) -> tuple[list[Predicate], int]:
    """The alternating predicates of the windows that at least `support` traces imply, without mirror images, each with
    all that can require it; and the number of these windows. What is found is added to `listed`."""
    found: list[Predicate] = []
    little = clock.going_on_a_little()
    count = 0
    for signature, of_pair in holders.items():
        windows = Windows.supported(len(signature.slots), of_pair, support)
        count += len(windows)
        features, complete = listed.alternating(
            signature, windows, support=support, seconds=clock.left() / 2, stop=clock.stop
        )
        if not complete and len(features) < MOST:
            clock.cut.append("listing the alternating predicates")
        found += distinct_predicates(signature, windows, features, little)
    return found, count


def with_preconditions(found: Sequence[Predicate], traces: Traces, clock: Clock, support: int) -> list[Predicate]:
    """The predicates with the preconditions that are worth their description, of those that they can have; without
    those that nothing requires."""
    required = [0] * len(found)
    for literals, occasions in schema_occasions(found, traces, clock.going_on_a_little()):
        chosen = preconditions(
            [1] * len(literals), [0] * len(literals), occasions, support=support, going_on=clock.going_on
        )
        for (owner, slot), taken in zip(literals, chosen):
            required[owner] |= taken << slot
    if not clock.going_on():
        clock.cut.append("weighing preconditions")
    return [Predicate(each.signature, pre, each.add, each.delete) for each, pre in zip(found, required) if pre]
