"""What a comparison found, in one sentence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from statewise.reporting.statistics import told_apart, welch
from statewise.reporting.tables import number

if TYPE_CHECKING:
    from statewise.reporting.comparison import Comparison, Group


def finding(comparison: Comparison) -> str:
    """By the headline metric, the best group beside the first one, or beside the next best if it is the first, with
    Welch's two-sided p. Empty where the metric does not compare, or is not finite for some group."""
    groups, headline = comparison.groups, comparison.headline
    means = [group.metrics[headline.metric].mean for group in groups]
    if not comparison.comparable or not all(map(math.isfinite, means)):
        return ""
    words = headline.metric.replace("_", " ")
    chance = comparison.chance.get(headline.metric)
    end = "." if chance is None else f"; chance is {number(chance)}."
    if len(groups) == 1:
        return f"{groups[0].label} has a {words} of {_value(groups[0], headline.metric)}{end}"
    order = sorted(range(len(groups)), key=lambda place: means[place], reverse=headline.higher_is_better)
    best, other = groups[order[0]], groups[0] if order[0] else groups[order[1]]
    values, others = ([*group.metrics[headline.metric].values.values()] for group in (best, other))
    if min(len(values), len(others)) < 2:
        test, differ = "one seed, so no test", means[order[0]] != other.metrics[headline.metric].mean
    else:
        p, differ = welch(values, others), told_apart(values, others)
        test = "no spread over seeds to test against" if p is None else f"p = {number(p)}"
        test += ", not adjusted for the number of groups" if len(groups) > 2 and p is not None else ""
    of_best, of_other = (_value(group, headline.metric) for group in (best, other))
    if not differ:
        between = f"between {best.label}, {of_best}, and {other.label}, {of_other}"
        return f"No difference in {words} {between}, is shown ({test}){end}"
    kind = ("highest" if headline.higher_is_better else "lowest") if len(groups) > 2 else (
        "higher" if headline.higher_is_better else "lower")  # fmt: skip
    return f"{best.label} has the {kind} {words}, {of_best}; {other.label} has {of_other} ({test}){end}"


def _value(group: Group, metric: str) -> str:
    """`0.9977, 5 of 5 runs solved`."""
    mean, count = number(group.metrics[metric].mean), len(group.members)
    if group.solved is None:
        return mean if count == 1 else f"{mean} (mean of {count} runs)"
    runs = "the run" if count == 1 else f"{group.solved} of {count} runs"
    return f"{mean} ({runs} {'' if count > 1 or group.solved else 'not '}solved)"
