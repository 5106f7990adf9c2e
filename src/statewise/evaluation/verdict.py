"""What a model of a user's own sequences has learned, in one sentence from numbers, and what to do next.

Nothing says how low the loss of a model can be if nobody knows the process. So the model is compared with predictors
that know less and less of the past, all estimated from the training sequences (`statewise.tasks.baselines`): `longest
match` and `variable order` (the last symbols), `bigram` (the last symbol) and `unigram` (none). A *case* is a sequence.
Differences are in nats a scored symbol, of all cases together, with a 95% bootstrap interval over cases; copies of a
case are drawn together, since they are held out together.

A difference is *little* if it is less than `LITTLE` nats and less than a twentieth of the bigram's nats; it is *clear*
if its interval does not contain 0 and it is not little. The first rule that holds applies:

1. `nothing`: the model is clearly worse than the unigram, or its loss is not finite.
2. `frequencies`: neither the model nor another baseline is clearly better than the unigram.
3. `less`: the model is clearly worse than the bigram, or than the best baseline.
4. `last event`: neither the model nor another baseline is clearly better than the bigram.
5. `more`: the model is better than the best baseline, and the interval does not contain 0.
6. `recent events`: what is left. The model predicts about as well as the best baseline.

Whether one baseline is clearly better than another is decided in the same way. The curve of the held-out loss is
*falling* if the loss fell by more than `FALLS` nats over the last half of the steps, *rising* if the last loss is
more than that above the lowest one, and *level* otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from statewise.data_types import Examples
from statewise.runtime.messages import counted

LITTLE = 0.03
"""Nats a symbol below which a difference may be little."""
SHARE = 0.05
"""Share of the bigram's nats below which it may be."""
FALLS = 0.01
"""Nats a symbol by which a curve falls or rises."""
DRAWS = 1000
"""Bootstrap samples."""
FEW = 8
"""With fewer different cases there is no interval: a bootstrap would be too narrow."""

Learned = Literal["nothing", "frequencies", "less", "last event", "recent events", "more", "unknown"]
Falls = Literal["falling", "level", "rising", "unknown"]
NAMES = {"unigram": "the frequencies of symbols", "bigram": "a bigram"}


@dataclass(frozen=True)
class Comparison:
    """The model and one baseline on the same symbols."""

    baseline: str
    nats: float
    """Nats of the baseline per scored symbol."""
    difference: float
    """The model's nats per scored symbol minus those of the baseline: negative if the model is better."""
    low: float | None
    """Lower end of the 95% interval of `difference`; None with fewer than `FEW` different cases."""
    high: float | None
    """Upper end of it."""


@dataclass(frozen=True)
class Curve:
    """Whether the held-out loss still fell when training ended."""

    falls: Falls = "unknown"
    step: int | None = None
    """The last step."""
    gain: float | None = None
    """Nats a symbol by which the loss fell over the last half of the steps, or rose since the lowest, if it is
    rising."""
    best_step: int | None = None
    """The step of the lowest loss."""


@dataclass(frozen=True)
class Verdict:
    """What a model has learned, and what to do next."""

    sentence: str
    """What the model has learned, with the numbers that show it."""
    advice: str
    """What to do next, with the reason."""
    learned: Learned
    """The rule that applies; `unknown` with fewer than `FEW` different cases."""
    comparisons: list[Comparison]
    """One for each baseline with probabilities, the best baseline first."""
    loss: float
    """The model's nats per scored symbol."""
    cases: int
    """Number of cases with a scored symbol."""
    symbols: int
    """Number of scored symbols."""
    curve: Curve


def learning_curve(records: Sequence[Mapping[str, Any]]) -> Curve:
    """Whether the held-out loss of a run still fell at its last step. `records`: those of `Run.metrics`. Unknown with
    fewer than four evaluations, or if none is from the first half of the steps."""
    points = {
        record["step"]: record["loss"] for record in records if record["kind"] == "evaluation" and "loss" in record
    }
    steps, losses = np.array(sorted(points)), np.array([points[step] for step in sorted(points)], np.float64)
    if len(steps) < 4 or not np.isfinite(losses).all() or steps[0] > steps[-1] / 2:
        return Curve()
    last, best = int(steps[-1]), int(losses.argmin())
    gain = float(np.interp(last / 2, steps, losses) - losses[-1])
    rise = float(losses[-1] - losses[best])
    if rise > FALLS:
        return Curve("rising", last, rise, int(steps[best]))
    return Curve("falling" if gain > FALLS else "level", last, gain, int(steps[best]))


def verdict(
    examples: Examples, nats: np.ndarray, scored: np.ndarray, baselines: Mapping[str, np.ndarray], curve: Curve
) -> Verdict:
    """The verdict on a model with `nats` (n, T) of each token of `examples`, of which `scored` (n, T) bool count.

    `examples`, `nats` and `scored` are what `evaluation.evaluate` passes to `losses`; `baselines`, the nats (n, T) of
    the same tokens under each baseline, are those of `ComparedBySymbol.baseline_nats`, with at least `unigram` and
    `bigram`. Raises `ValueError` if no token is scored.
    """
    counts = scored.sum(1)
    if not counts.sum():
        raise ValueError("there is no token to score")
    cases = _cases(examples, counts > 0)
    sizes = np.bincount(cases, weights=counts[counts > 0])
    sums = {
        name: np.bincount(cases, weights=np.where(scored, each, 0.0).sum(1)[counts > 0])
        for name, each in {"": nats, **baselines}.items()
    }
    again = _drawn(np.stack([sizes, *sums.values()])) if len(sizes) >= FEW else None
    place = {name: number for number, name in enumerate(sums, 1)}
    means = {name: each.sum() / sizes.sum() for name, each in sums.items()}
    little = min(LITTLE, SHARE * means["bigram"])

    def compared(one: str, other: str) -> Comparison:
        difference, low, high = means[one] - means[other], None, None
        if again is not None:
            drawn = (again[:, place[one]] - again[:, place[other]]) / again[:, 0]
            low, high = (float(end) for end in np.quantile(drawn, (0.025, 0.975)))
        return Comparison(other, float(means[other]), float(difference), low, high)

    def clear(found: Comparison) -> int:
        """-1: clearly better, 1: clearly worse, 0: neither."""
        apart = found.low is not None and found.high is not None and not found.low <= 0 <= found.high
        return int(np.sign(found.difference)) if apart and abs(found.difference) > little else 0

    comparisons = sorted((compared("", name) for name in baselines), key=lambda one: one.nats)
    by_name = {one.baseline: one for one in comparisons}
    best, worse = comparisons[0], comparisons[0] if clear(by_name["bigram"]) <= 0 else by_name["bigram"]

    def beyond(than: str) -> bool:
        """Whether there is clearly more to know than this baseline does."""
        return clear(by_name[than]) < 0 or clear(compared(best.baseline, than)) < 0

    learned: Learned
    if len(sizes) < FEW:
        learned = "unknown"
    elif clear(by_name["unigram"]) > 0:
        learned = "nothing"
    elif not beyond("unigram"):
        learned = "frequencies"
    elif clear(worse) > 0:
        learned = "less"
    elif not beyond("bigram"):
        learned = "last event"
    else:
        learned = "more" if best.high is not None and best.high < 0 else "recent events"
    different, total = len(sizes), int((counts > 0).sum())
    loss = float(means[""])
    sentence, advice = _sentence(learned, loss, by_name, best, worse, different, total), _advice(learned, curve, best)
    if not np.isfinite(loss):
        learned = "nothing"
        sentence = f"The model's loss is not a finite number ({loss}): training has diverged."
        advice = "Train again, with a smaller --trainer.learning_rate."
    return Verdict(sentence, advice, learned, comparisons, loss, total, int(counts.sum()), curve)


def _cases(examples: Examples, which: np.ndarray) -> np.ndarray:
    """(m,) the number of the distinct case of each row in `which` (n,) bool."""
    numbers: dict[tuple[int, bytes], int] = {}
    return np.array(
        [
            numbers.setdefault((prompt, tokens[:length].tobytes()), len(numbers))
            for tokens, length, prompt, one in zip(
                examples.tokens, examples.lengths.tolist(), examples.prompt_lengths.tolist(), which.tolist()
            )
            if one
        ]
    )


def _drawn(sums: np.ndarray) -> np.ndarray:
    """(DRAWS, K): the sums (K, cases) over bootstrap samples of the cases, the same samples at every call."""
    cases = sums.shape[1]
    rng = np.random.default_rng([cases, 62])
    return np.stack([sums @ np.bincount(rng.integers(cases, size=cases), minlength=cases) for _ in range(DRAWS)])


def _by(found: Comparison) -> str:
    """The size of a difference with its interval, such as `.09 [.06, .12] nats a symbol`."""
    size = f"{abs(found.difference):.3f}"
    if found.low is None or found.high is None:
        return f"{size} nats a symbol"
    ends = (found.low, found.high) if found.difference > 0 else (-found.high, -found.low)
    return f"{size} [{ends[0]:.3f}, {ends[1]:.3f}] nats a symbol"


def _named(baseline: str) -> str:
    return NAMES.get(baseline, f"the baseline {baseline}")


def _sentence(
    learned: Learned,
    loss: float,
    by_name: Mapping[str, Comparison],
    best: Comparison,
    worse: Comparison,
    different: int,
    total: int,
) -> str:
    bigram, unigram = by_name["bigram"], by_name["unigram"]
    side = "better" if bigram.difference < 0 else "worse"
    copies = f", {different:,} of them different" if different < total else ""
    where = f"{loss:.3f} nats a symbol on {counted(total, 'case')}{copies}"
    if learned == "unknown":
        return f"{counted(different, 'different case')} cannot show what the model has learned: {where}."
    if learned == "nothing":
        return f"The model has learned less than {NAMES['unigram']}: it is {_by(unigram)} worse ({where})."
    if learned == "frequencies":
        return f"The model predicts about as well as {NAMES['unigram']} alone, as every other baseline does ({where})."
    if learned == "less":
        return f"The model has learned less than {_named(worse.baseline)}: it is {_by(worse)} worse ({where})."
    if learned == "last event":
        return f"The model predicts about as well as a bigram: it is {_by(bigram)} {side} ({where})."
    if learned == "more":
        than = f"{_by(best)} better than the best of them, {best.baseline}"
        than += f", and {_by(bigram)} better than a bigram" if best.baseline != "bigram" else ""
        return f"The model knows more than every baseline: it is {than} ({where})."
    side = "better" if best.difference < 0 else "worse"
    return (
        f"The model predicts about as well as the best baseline, {best.baseline}: it is {_by(best)} {side}, and "
        f"{_by(bigram)} better than a bigram ({where})."
    )


def _advice(learned: Learned, curve: Curve, best: Comparison) -> str:
    if learned == "unknown":
        return (
            f"Evaluate at least {FEW} different cases: hold out more, with --task.held_out_share, or use a file with "
            "more cases."
        )
    if curve.falls == "falling" and curve.step is not None:
        return (
            f"The loss still fell by {curve.gain:.3f} nats over the last half of the {curve.step} steps: train 4 times "
            f"as long, with --trainer.steps {4 * curve.step}."
        )
    if curve.falls == "rising":
        return (
            f"The held-out loss rose by {curve.gain:.3f} nats after step {curve.best_step}, as it does if training "
            "cases are learned by heart: more cases help, or a smaller model, with --backbone.width."
        )
    if learned in ("nothing", "less"):
        if curve.falls == "unknown":
            return "Train longer, with more --trainer.steps."
        return (
            "The loss no longer falls, so longer training hardly helps: try another --trainer.learning_rate, or a "
            "larger model, with --backbone.width."
        )
    if learned == "frequencies":
        return "The order of the symbols tells little: look for columns that tell more, and for mixed-up cases."
    if learned == "last event":
        return "There is little beyond the last event: a bigram does the same, unless more columns or cases tell more."
    if learned == "recent events":
        return f"The last events tell what the model knows: the baseline {best.baseline} does the same on these data."
    if curve.falls == "unknown":
        return "Whether it would learn more is not known: evaluate more often, with a smaller --trainer.evaluate_every."
    return "Longer training would change little: ask what its states hold, with statewise analyze RUN future-probe."
