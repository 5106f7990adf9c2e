"""Groups runs over seeds, labels the groups, and tests claims about them. The result is a `comparison.Comparison`."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from statewise.data_types import Headline
from statewise.reporting.comparison import Comparison, Group
from statewise.reporting.labels import labels
from statewise.reporting.members import PATHS, Defaults, Member, alike, canonical, differing, identity, no_defaults
from statewise.reporting.statistics import Claim, Match, equivalence, match, summarise, welch

PER_TOKEN = ("loss", "perplexity", "token_accuracy")
"""Metrics whose unit is the token of a run's tokenizer."""


def compare(
    folders: Sequence[Path],
    *,
    better: Path | None = None,
    margin: float | None = None,
    metrics: str = "evaluation",
    relative: bool = False,
    defaults: Defaults = no_defaults,
    seeds_left_out: Mapping[str, Sequence[int]] | None = None,
) -> Comparison:
    """Compares runs. Raises `ValueError` for a run without an evaluation, for different tasks, for runs of one recipe
    on different data, and for tests of losses per token of different tokenizers.

    `metrics`: `evaluation`; `all`, which adds every analysis, and every report of other data, that all runs have with
    the same settings; or names of metrics, separated by commas.

    `better`, one of the runs: tests whether its group has a better headline metric than each other group.
    `margin`: tests every pair of groups for equality within it.
    `relative`: shows curves of analyses as differences from the first group.
    `defaults`: of fields that older recipes lack.
    `seeds_left_out`: seeds that are not among `folders`, by the folder of their group, for the notes.
    """
    if relative and metrics == "evaluation":
        raise ValueError("`relative` applies to the curves of analyses: add `metrics` all")
    if margin is not None and not margin > 0:
        raise ValueError(f"the margin must be positive, not {margin}")
    members = [Member.read(folder, metrics != "evaluation", defaults) for folder in folders]
    chosen = [] if metrics in ("evaluation", "all") else [name.strip() for name in metrics.split(",")]
    every = {data.source for member in members for data in member.other_data.values()}
    analysed = {name for member in members for name in member.analyses}
    if metrics != "evaluation":
        members = alike(members, chosen)
    left_out = []
    if metrics == "all":
        left_out = sorted(every - {data.source for data in members[0].other_data.values()})
        left_out += [f"analyze {name}" for name in sorted(analysed - {*members[0].analyses})]
    seen: dict[Path, Path] = {}
    for member in members:
        place = member.folder.resolve()
        if place in seen:
            raise ValueError(f"{member.folder} is given twice")
        seen[place] = member.folder
    tasks = {member.recipe["task"]["name"]: member.folder for member in members}
    if len(tasks) > 1:
        raise ValueError("these runs have different tasks: " + ", ".join(f"{t} ({f})" for t, f in tasks.items()))
    grouped: dict[str, list[Member]] = {}
    for member in members:
        grouped.setdefault(identity(member.recipe), []).append(member)
    for same in grouped.values():
        by_seed: dict[int, Path] = {}
        for member in same:
            if member.seed in by_seed:
                raise ValueError(f"{by_seed[member.seed]} and {member.folder} are the same recipe with the same seed")
            by_seed[member.seed] = member.folder
            unlike = differing(same[0].data, member.data)
            if unlike:
                raise ValueError(
                    f"{same[0].folder} and {member.folder} have the same recipe, but their {' and '.join(unlike)} "
                    "differ, so they are not seeds of one experiment: compare them separately"
                )
    firsts = [same[0] for same in grouped.values()]
    differences = _differences(firsts)
    headline = Headline.of(members[0].report["headline"])
    for member in members:
        other = Headline.of(member.report["headline"])
        if other != headline:
            how = "are ranked by different metrics"
            if dataclasses.replace(other, solved_at=headline.solved_at) == headline:
                thresholds = f"{_threshold(headline)} and {_threshold(other)}"
                how = f"count as solved by different values of {headline.metric} ({thresholds})"
            raise ValueError(f"{members[0].folder} and {member.folder} {how}: compare them separately")
        if member.report["num"] != members[0].report["num"]:
            raise ValueError(_unlike(members[0], member))
    tokenizers = {member.data["tokenizer"] for member in members if "tokenizer" in member.data}
    untested = PER_TOKEN if len(tokenizers) > 1 else ()
    comparable = headline.metric not in untested
    if not comparable and (better is not None or margin is not None):
        raise ValueError(
            f"{headline.metric} is per token, and the tokenizers of these runs differ: `better` and `margin`, which "
            "test it, would compare different things; `metrics` loss_per_word shows a loss that compares"
        )
    chances = [member.report["chance"] for member in members]
    chance = {name: value for name, value in chances[0].items() if all(other.get(name) == value for other in chances)}
    baselines = [member.report.get("baselines", {}) for member in members]
    shared = baselines[0] if all(_agree(baselines[0], others) for others in baselines) else {}
    groups: list[Group] = []
    for same, label in zip(grouped.values(), labels(firsts, differences)):
        same.sort(key=lambda member: member.seed)
        groups.append(_group(label, same, groups[0] if groups else None, headline, untested))
    for name in chosen:
        missing = [group.label for group in groups if name not in group.metrics]
        if missing:
            available = ", ".join(groups[0].metrics)
            raise ValueError(f"not every run has the metric {name!r}: {missing[0]} does not; there are {available}")
    claims = _claims(groups, headline, better, margin)
    unlike_data = _unlike_data(firsts, differences)
    matches = [] if unlike_data else _matches(groups, headline, differences)
    return Comparison(
        groups,
        headline,
        chance,
        differences,
        claims,
        margin,
        chosen,
        shared,
        relative,
        matches,
        left_out,
        unlike_data=unlike_data,
        comparable=comparable,
        seeds_left_out={name: list(seeds) for name, seeds in (seeds_left_out or {}).items() if seeds},
    )


def _unlike(first: Member, other: Member) -> str:
    """The message for runs that were evaluated on different numbers of examples."""
    fewer = min(first, other, key=lambda member: int(member.report["num"]))
    differ = first.recipe["task"] != other.recipe["task"]
    return (
        f"{first.folder} was evaluated on {first.report['num']} examples and {other.folder} on {other.report['num']}: "
        f"`statewise evaluate {fewer.folder}` evaluates it on all held-out examples"
        + "; if they still differ, so do the held-out sets of the tasks, whose fields differ"
        * differ
    )


def _agree(some: Mapping[str, Mapping[str, float]], others: Mapping[str, Mapping[str, float]]) -> bool:
    """Whether baselines are equal up to rounding, which differs between machines."""
    flat, other = (
        {(name, metric): value for name, metrics in baselines.items() for metric, value in metrics.items()}
        for baselines in (some, others)
    )
    return flat.keys() == other.keys() and all(math.isclose(flat[key], other[key], rel_tol=1e-9) for key in flat)


def _group(
    label: str, members: list[Member], first: Group | None, headline: Headline, untested: Collection[str]
) -> Group:
    """`untested`: metrics that have no p value."""
    names = [name for name in members[0].metrics if all(name in member.metrics for member in members)]
    metrics = {}
    for name in names:
        values = {member.seed: float(member.metrics[name]) for member in members}
        reference = first.metrics.get(name) if first and name not in untested else None
        metrics[name] = summarise(values, list(reference.values.values()) if reference else None)
    solved = None
    if headline.solved_at is not None:
        solved = sum(headline.solved(value) for value in metrics[headline.metric].values.values())
    return Group(label, members, metrics, solved)


def _threshold(headline: Headline) -> str:
    return "none" if headline.solved_at is None else f"{headline.solved_at:g}"


def _claims(groups: list[Group], headline: Headline, better: Path | None, margin: float | None) -> list[Claim]:
    values = [list(group.metrics[headline.metric].values.values()) for group in groups]
    means = [group.metrics[headline.metric].mean for group in groups]
    claims = []
    if better is not None:
        places = [
            place
            for place, group in enumerate(groups)
            if any(member.folder.resolve() == better.resolve() for member in group.members)
        ]
        if not places:
            raise ValueError(f"{better} is not one of the runs being compared")
        if len(groups) < 2:
            raise ValueError(f"there is no other group to compare {better} with: these runs differ only in the seed")
        (one,) = places
        for other in range(len(groups)):
            if other != one:
                p = welch(values[one], values[other], "greater" if headline.higher_is_better else "less")
                difference = means[one] - means[other]
                claims.append(Claim("better", groups[one].label, groups[other].label, difference, p))
    if margin is not None:
        if len(groups) < 2:
            raise ValueError("a margin needs two groups: these runs differ only in the seed")
        for one, other in itertools.combinations(range(len(groups)), 2):
            p = equivalence(values[one], values[other], margin)
            claims.append(Claim("equal", groups[one].label, groups[other].label, means[one] - means[other], p))
    return claims


def _matches(groups: Sequence[Group], headline: Headline, differences: Mapping[str, Any]) -> list[Match]:
    """The tokens that each group needs to match the held-out loss of the first, and the first to match it; empty if the
    loss is not the headline metric or was measured on different examples, or if runs do not record their tokens."""
    if headline.metric != "loss" or "trainer.evaluate_num" in differences:
        return []
    curves = [
        {member.seed: member.curve("evaluation", "loss", "tokens") for member in group.members} for group in groups
    ]
    if not all(points[0] for runs in curves for points in runs.values()):
        return []
    return [
        match(groups[one].label, curves[one], groups[other].label, curves[other])
        for place in range(1, len(groups))
        for one, other in ((place, 0), (0, place))
    ]


def _differences(firsts: list[Member]) -> dict[str, list[Any]]:
    flats = [member.flat() for member in firsts]
    keys = dict.fromkeys(key for flat in flats for key in flat)
    values_by_key = {key: [flat.get(key) for flat in flats] for key in keys}
    return {key: values for key, values in values_by_key.items() if len(set(map(canonical, values))) > 1}


def _unlike_data(firsts: Sequence[Member], differences: Mapping[str, Any]) -> list[str]:
    """How the data of groups differ: `data` or `tokenizer`, and fields of the task."""
    unlike = list(dict.fromkeys(key for member in firsts for key in differing(firsts[0].data, member.data)))
    known = all("data" in member.data for member in firsts) and not unlike
    return unlike + [key for key in differences if key.startswith("task.") and not (known and key in PATHS)]
