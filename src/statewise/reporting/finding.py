"""What a comparison found, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from statewise.data_types import Headline
from statewise.reporting.statistics import Summary, told_apart, welch
from statewise.reporting.tables import number


@dataclass(frozen=True)
class Ranked:
    """A group of runs by the metric that ranks them."""

    label: str
    summary: Summary
    solved: int | None
    """Number of runs that solved the task; None if the task defines no threshold."""

    def in_words(self) -> str:
        """`0.9977 (5 of 5 runs solved)`."""
        mean, count = number(self.summary.mean), len(self.summary.values)
        if self.solved is None:
            return mean if count == 1 else f"{mean} (mean of {count} runs)"
        if count == 1:
            return f"{mean} ({'solved' if self.solved else 'not solved'})"
        return f"{mean} ({self.solved} of {count} runs solved)"


def finding(groups: Sequence[Ranked], headline: Headline, chance: float | None) -> str:
    """The best group beside the first one, or beside the next best if it is the first, with Welch's two-sided p."""
    means = [group.summary.mean for group in groups]
    words = headline.metric.replace("_", " ")
    end = "." if chance is None else f"; chance is {number(chance)}."
    if len(groups) == 1:
        return f"{groups[0].label} has a {words} of {groups[0].in_words()}{end}"
    order = sorted(range(len(groups)), key=lambda place: means[place], reverse=headline.higher_is_better)
    best, other = groups[order[0]], groups[0] if order[0] else groups[order[1]]
    values, others = [*best.summary.values.values()], [*other.summary.values.values()]
    if min(len(values), len(others)) < 2:
        test, differ = "one seed, so no test", best.summary.mean != other.summary.mean
    else:
        p, differ = welch(values, others), told_apart(values, others)
        test = "no spread over seeds to test against" if p is None else f"p = {number(p)}"
        test += ", not adjusted for the number of groups" if len(groups) > 2 and p is not None else ""
    if not differ:
        between = f"between {best.label}, {best.in_words()}, and {other.label}, {other.in_words()}"
        return f"No difference in {words} is shown {between} ({test}){end}"
    kinds = ("highest", "higher") if headline.higher_is_better else ("lowest", "lower")
    kind = kinds[len(groups) == 2]
    return f"{best.label} has the {kind} {words}, {best.in_words()}; {other.label} has {other.in_words()} ({test}){end}"
