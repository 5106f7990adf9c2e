"""Learns action models from noisy traces, ground or lifted, by SAT over the windows that recur.

A noisy trace shows windows that no noise-free one has, and a single such window is enough to forbid a correct atom.
Noise has no pattern: such a window recurs in few traces. So only windows that at least k traces imply count
(`Windows.supported`). Features and preconditions are then found as in noise-free traces (`ground`, `lifted`), except
that no negative trace is explained for its own sake: a precondition pays for its description, including its exceptions,
or explains k negative traces. Ground atoms that need not alternate are not learned: a negative trace that only they
explain may be noisy. Predicates that need not alternate (`elementary`) are learned if their description is shorter than
what it saves: the bits that say which traces end in an invalid action, given what the schemas say of each.

With k too small, noise forbids correct atoms; with k too large, rare windows no longer count, which allows wrong atoms;
in between the model is the same. So k is increased until the models get worse. Of the models within one standard error
of the best, the median k is chosen: a model that explains a few traces more may fit the noise.

All tuples of objects share the windows of slots (`predicates`), so for schemas noise-free windows recur even where
windows of ground actions are rare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, Unpack

import numpy as np

from statewise.strips.exact.elementary import WEIGHING, description, elementary, merged
from statewise.strips.exact.features import MOST, Feature
from statewise.strips.exact.frame import Clock, Options, Work
from statewise.strips.exact.ground import required, weighed
from statewise.strips.exact.lifted import ARITY, AT_ONCE, all_predicates, candidates_of, few_objects
from statewise.strips.exact.preconditions import bits_to_code, preconditions, schema_occasions
from statewise.strips.exact.predicates import Predicate, as_schemas, grounded, signatures, slot_holders, without_covered
from statewise.strips.exact.windows import Windows, holders_of
from statewise.strips.model.heads import Heads, Judge, accuracy
from statewise.strips.model.learned import Learned
from statewise.strips.model.schemas import LiftedModel
from statewise.strips.model.traces import Traces

SUPPORTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Numbers of traces that a window needs, to be tried in this order, up to the number of traces."""
WORSE = 3
"""The trials end after this many worse models in a row."""

M = TypeVar("M")


@dataclass(frozen=True)
class Fit(Generic[M]):
    """What was learned with one support."""

    support: int
    model: M
    windows: int
    offered: int
    """The number of alternating features or predicates that can be required."""
    cut: tuple[str, ...]
    """What was not finished."""
    accuracy: float
    """The share of the traces that the model classifies correctly."""


def check_negatives(traces: Traces) -> None:
    """Raises `ValueError` if no trace is negative."""
    if not sum(traces.labels):
        raise ValueError(
            "without negative traces, noise cannot be distinguished from rare actions: add some, or omit `noise`"
        )


def best_fit(work: Work, what: str, fit: Callable[[int, float], Fit[M]]) -> tuple[Fit[M], dict[str, Any]]:
    """The model with the best support, and for the report this support and the accuracy with each one tried. `fit`
    learns with a support in a number of seconds; `what` names what is learned in messages."""
    fits: list[Fit[M]] = []
    count, clock = len(work.traces), work.clock
    supports = [each for each in SUPPORTS if each <= count] or SUPPORTS[:1]
    for place, support in enumerate(supports):
        if fits and not clock.has_time():
            clock.cut.append(f"trying windows of {support} and more traces")
            break
        fits.append(fit(support, clock.left() / (len(supports) - place)))
        work.say(f"{what}, windows of at least {support} traces: {fits[-1].accuracy:.4f} of the traces right")
        best = max(each.accuracy for each in fits)
        if len(fits) > WORSE and best > fits[0].accuracy and all(each.accuracy < best for each in fits[-WORSE:]):
            break
    chosen = middle(fits, count)
    clock.cut += chosen.cut
    return chosen, {"support": chosen.support, "accuracies": {str(each.support): each.accuracy for each in fits}}


def middle(fits: Sequence[Fit[M]], count: int) -> Fit[M]:
    """The median of the fits to `count` traces that are within one standard error of the best."""
    best = max(each.accuracy for each in fits)
    error = (best * (1 - best) / count) ** 0.5
    good = [each for each in fits if each.accuracy >= best - error]
    return good[len(good) // 2]


def learn_noisy(traces: Traces, **options: Unpack[Options]) -> Learned:
    """Learns an action model that explains most of the traces; the others are treated as noisy.

    `report["support"]` is the number of traces that a window needs, `report["accuracies"]` has the accuracy for each
    number tried. Raises `ValueError` without negative traces and without python-sat.
    """
    check_negatives(traces)
    work = Work("exact", traces, **options)
    return fitted(work)


def fitted(
    work: Work, effects: Sequence[Feature] = (), facts: Mapping[str, Any] | None = None, *, before: float = 0.0
) -> Learned:
    """The model with the best support. `effects` are more effects that atoms may have, alternating or not; `facts` and
    `before` are those of `Work.ground`."""
    traces, stop = work.traces, work.clock.stop
    holders, judge = holders_of(traces, work.clock.reading), Judge(traces)

    def fit(support: int, seconds: float) -> Fit[Heads]:
        clock = Clock(seconds, stop)
        windows = Windows.supported(len(traces.actions), holders, support)
        listed = work.listed.alternating(None, windows, support=support, seconds=clock.left() / 2, stop=stop)
        if not listed.complete and len(listed.features) < MOST:
            clock.cut.append("listing the alternating features")
        others = set(effects) - set(listed.features)
        able = required(windows, [*listed.features, *sorted(others)], clock)
        heads, _ = weighed(traces, able, others, clock, support)
        return Fit(support, heads, len(windows), len(able), tuple(clock.cut), accuracy(heads, judge))

    best, tried = best_fit(work, "ground atoms", fit)
    return work.ground(
        best.model,
        {"windows": best.windows, **tried, "features": best.offered, **(facts or {})},
        before=before + work.listed.seconds,
    )


def learn_lifted_noisy(traces: Traces, *, arity: int = ARITY, **options: Unpack[Options]) -> LiftedModel:
    """Learns action schemas that explain most of the traces, whose actions are written `schema object object`; the
    other traces are treated as noisy.

    The report has `support` and `accuracies` as in `learn_noisy`. Raises `ValueError` without negative traces, if a
    schema occurs with different numbers of arguments, and without python-sat.
    """
    check_negatives(traces)
    of_slots = [each for wanted in range(arity + 1) for each in signatures(traces.actions, wanted)]
    work = Work("exact", traces, **options)
    holders = {
        each: slot_holders(each, traces.actions, traces, lambda rows: work.clock.reading(rows, 0.2))
        for each in of_slots
    }
    judge = Judge(traces)

    def fit(support: int, seconds: float) -> Fit[list[Predicate]]:
        clock = Clock(seconds, work.clock.stop)
        windows = {each: Windows.supported(len(each.slots), held, support) for each, held in holders.items()}
        able = all_predicates(windows, clock, work.listed, "listing the alternating predicates", support)
        kept = with_preconditions(able, traces, clock, support)
        kept = without_covered([*kept, *merged(explaining(kept, elementary(windows, clock), judge, clock))])
        right = accuracy(grounded(kept, traces.actions)[0], judge)
        return Fit(support, kept, sum(map(len, windows.values())), len(able), tuple(clock.cut), right)

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


def with_preconditions(predicates: Sequence[Predicate], traces: Traces, clock: Clock, support: int) -> list[Predicate]:
    """The predicates with those of their possible preconditions that are worth their description; without predicates
    that nothing requires."""
    required = [0] * len(predicates)
    for literals, occasions in schema_occasions(predicates, traces, clock.with_grace()):
        chosen = preconditions(
            [1] * len(literals), [0] * len(literals), occasions, support=support, has_time=clock.has_time
        )
        for (owner, slot), requires in zip(literals, chosen):
            required[owner] |= requires << slot
    if not clock.has_time():
        clock.cut.append("weighing preconditions")
    return [Predicate(each.signature, pre, each.add, each.delete) for each, pre in zip(predicates, required) if pre]


def explaining(
    chosen: Sequence[Predicate], offered: Sequence[Predicate], judge: Judge, clock: Clock
) -> list[Predicate]:
    """The elementary predicates of `offered` that explain more traces and are worth their description, in addition to
    those `chosen` and to each other, the best first; no predicates if there is no time to weigh them."""
    left = [each for each in offered if not any(other.covers(each) for other in chosen)]
    blocks: list[tuple[np.ndarray, np.ndarray]] = []
    for some in (chosen, *(left[first : first + AT_ONCE] for first in range(0, len(left), AT_ONCE))):
        if not clock.has_time():
            clock.cut.append(WEIGHING)
            return []
        blocks.append(candidates_of(some, judge.traces.actions).verdicts(judge))
    alarm, catch = (np.asarray(blocks[0][kind].any(0)) for kind in (0, 1))  # [N]
    alarms, catches = (np.concatenate([each[kind] for each in blocks])[len(chosen) :] for kind in (0, 1))
    pairs = sum(len(each.slots) ** 2 for each in {each.signature for each in offered})
    cost = np.array([description(each, pairs) for each in left])
    worthy: list[Predicate] = []
    while left:
        before, after = (alarm, catch), (alarms | alarm, catches | catch)
        saved = _label_bits(*before, judge.labels) - _label_bits(*after, judge.labels) - cost
        right = judge.right(after[0][:, None], after[1][:, None]).sum(-1)
        saved[right <= judge.right(alarm[None], catch[None]).sum()] = 0
        best = int(np.argmax(saved))
        if saved[best] <= 0:
            break
        alarm, catch = after[0][best], after[1][best]
        worthy.append(left[best])
    return worthy


def _label_bits(alarm: np.ndarray, catch: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """[...] bits that code the labels [N] of traces, given whether a model rejects a valid action or the last one of a
    negative trace: [..., N] bool both."""
    total = np.zeros(alarm.shape[:-1])
    for kind in (alarm, catch & ~alarm, ~catch & ~alarm):
        total += bits_to_code((kind & (labels == 1)).sum(-1), kind.sum(-1))
    return total
