"""Panels of a comparison: the mean of each group over seeds and its single runs, over training, and over a setting in
which groups differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from statewise.reporting.comparison import Comparison, Group
from statewise.reporting.figures import Curve, Drawing, Panel, is_share, looks, needs_log_axis, stored
from statewise.reporting.labels import setting_name, setting_words
from statewise.reporting.members import Member


def training_panels(comparison: Comparison) -> list[Panel]:
    """Headline metric and losses over training steps, with chance and baselines where known; next-token accuracy if
    baselines have one; a held-out loss that is the headline also over tokens and hours."""
    headline = comparison.headline.metric
    unit_of = " (nats per token)" if headline == "loss" else ""
    shown = [(f"{headline.replace('_', ' ')}, held out{unit_of}", "evaluation", headline)]
    if headline != "loss":
        shown.append(("loss, held out (nats per token)", "evaluation", "loss"))
    if headline != "token_accuracy" and any("token_accuracy" in metrics for metrics in comparison.baselines.values()):
        shown.append(("next-token accuracy, held out", "evaluation", "token_accuracy"))
    shown.append(("next-token loss in training (nats per prediction)", "train", "next_token"))
    panels = []
    for title, kind, metric in shown:
        curves = [
            curve
            for group in comparison.groups
            for curve in _group_curves(group, "", [(m, _record(m, kind, metric)) for m in group.members], carry=True)
        ]
        known = {"chance": comparison.chance, **comparison.baselines} if kind == "evaluation" and curves else {}
        for name, metrics in known.items():
            if metric in metrics:
                ends = [float(end([end(curve.x) for curve in curves if curve.role != "control"])) for end in (min, max)]
                if ends[0] == ends[1]:  # a single evaluation: a line across the axis
                    ends = [ends[0] - 1, ends[1] + 1]
                curves.append(Curve(name, ends, [metrics[metric]] * 2, "control"))
        panels.append(Panel("training step", "", curves, is_share(metric), title))
    if headline == "loss":
        for by in ("tokens", "seconds"):
            unit, x_title = _unit(comparison, by)
            curves = [
                curve
                for group in comparison.groups
                for curve in _group_curves(
                    group, "", [(m, _record(m, "evaluation", "loss", by, unit)) for m in group.members], carry=True
                )
            ]
            if curves:
                panels.append(Panel(x_title, "", curves, False, shown[0][0]))
    return panels


UNITS = {
    "tokens": {"million training tokens": 1e6, "thousand training tokens": 1e3, "training tokens": 1.0},
    "seconds": {"hours of training": 3600.0, "minutes of training": 60.0, "seconds of training": 1.0},
}
"""Units of an axis, the largest first."""


def _unit(comparison: Comparison, by: str) -> tuple[float, str]:
    """The largest unit that is not larger than the longest run, and the axis title."""
    most = max(
        (
            float(record[by])
            for group in comparison.groups
            for member in group.members
            for record in member.records
            if by in record
        ),
        default=0.0,
    )
    return next((unit, title) for title, unit in UNITS[by].items() if most >= unit or unit == 1)


def set_panels(comparison: Comparison) -> list[Panel]:
    """The headline metric over the numbers of an option that chose other held-out sets, such as lengths."""
    panels = []
    for name, data in comparison.groups[0].members[0].other_data.items():
        if len(data.numbers) < 2 or comparison.relative:
            continue
        curves = []
        for group in comparison.groups:
            members_with_data = [(member, member.other_data[name]) for member in group.members]
            curves += _group_curves(
                group, "", [(one, Curve("", of.numbers, [*of.metrics.values()])) for one, of in members_with_data]
            )
        first, last, headline = min(data.numbers), max(data.numbers), comparison.headline.metric
        if headline in comparison.chance:
            curves.append(Curve("chance", [first, last], [comparison.chance[headline]] * 2, "control"))
        title = f"{headline.replace('_', ' ')} by {data.option}"
        panels.append(Panel(data.option, "", curves, is_share(headline), title, needs_log_axis(first, last)))
    return panels


def analysis_panels(comparison: Comparison) -> list[Panel]:
    """Panels of the analyses that all runs have, if every group has a curve in them. They have no series, and only
    controls that are the same in all runs; none if curves are relative to a group."""
    panels = []
    for name, content in comparison.groups[0].members[0].analyses.items():
        for place, first in enumerate(content["panels"]):
            lines = {
                group.label: [(member, _lines(member, name, place)) for member in group.members]
                for group in comparison.groups
            }
            several = any(len(of_one) > 1 for of_group in lines.values() for _, of_one in of_group)
            curves = []
            for group in comparison.groups:
                named = [
                    (member, {curve.label if several else "": curve for curve in of_one})
                    for member, of_one in lines[group.label]
                ]
                for label in dict.fromkeys(label for _, of_one in named for label in of_one):
                    curves += _group_curves(group, label, [(member, of_one.get(label)) for member, of_one in named])
            compared = [curve for curve in curves if curve.role == "line" or not comparison.relative]
            if {curve.group for curve in compared} == {group.label for group in comparison.groups}:
                if not comparison.relative:
                    curves += _same_controls(comparison, name, place)
                panel = stored(Panel, first)
                title = f"{name.replace('_', ' ')}: {panel.y_title}"
                panel = replace(panel, curves=curves, title=title, y_title="")
                panels.append(_relative_to(panel, comparison.groups[0].label) if comparison.relative else panel)
    return panels


def drawings(comparison: Comparison) -> list[Drawing]:
    """Drawings by the analyses of each group's first run, titled with the group."""
    titled = []
    for group in comparison.groups:
        first = group.members[0]
        for content in first.analyses.values():
            for drawing in content.get("drawings", ()):
                title = f"{group.label}, seed {first.seed}\n{drawing['title']}"
                titled.append(replace(stored(Drawing, drawing), title=title))
    return titled


def learned(comparison: Comparison) -> list[str]:
    """What each group's first run has learned, as its evaluation says of models of the user's own sequences."""
    firsts = [(group.label, group.members[0]) for group in comparison.groups]
    return [
        f"{label}, seed {member.seed}: {found['sentence']} {found['advice']}"
        for label, member in firsts
        if (found := member.report.get("verdict"))
    ]


def verdicts(comparison: Comparison) -> list[str]:
    """The verdict of each analysis that is compared, on each group's first run."""
    firsts = [(group.label, group.members[0]) for group in comparison.groups]
    return [
        f"{name}, {label}, seed {member.seed}: {content['verdict']}"
        for name in firsts[0][1].analyses
        for label, member in firsts
        if "verdict" in (content := member.analyses[name])
    ]


def _record(member: Member, kind: str, metric: str, by: str = "step", unit: float = 1.0) -> Curve | None:
    """A metric over `by` in `unit`, from the records of `kind`; None if the run lacks it."""
    x, y = member.curve(kind, metric, by)
    return Curve("", [at / unit for at in x], y) if x else None


def _lines(member: Member, name: str, place: int) -> list[Curve]:
    return [curve for curve in _curves(member, name, place) if curve.role == "line" and curve.x]


def _curves(member: Member, name: str, place: int) -> list[Curve]:
    panels = member.analyses[name]["panels"]
    return stored(Panel, panels[place]).curves if place < len(panels) else []


def _same_controls(comparison: Comparison, name: str, place: int) -> list[Curve]:
    """Controls that are the same in all runs, since they do not depend on the model."""
    first, *others = [_curves(member, name, place) for group in comparison.groups for member in group.members]

    def same(one: Curve, other: Curve) -> bool:
        lengths_fit = one.label == other.label and one.role == other.role and len(one.x) == len(other.x)
        return lengths_fit and bool(np.allclose([one.x, one.y], [other.x, other.y], rtol=1e-6, atol=1e-9))

    return [
        curve
        for curve in first
        if curve.role == "control" and all(any(same(curve, other) for other in curves) for curves in others)
    ]


def _group_curves(
    group: Group, label: str, members_with_curves: Sequence[tuple[Member, Curve | None]], *, carry: bool = False
) -> list[Curve]:
    """The mean curve of a group, followed by its runs if there are several. There is no mean where a run lacks the
    curve, or where no x lies within the curves of all.

    Runs may have different x values: their curves are interpolated linearly, and the mean ends where the first of them
    does. `carry`: curves over training; a run that is finished, such as one that stopped because it solved its task,
    keeps its last value, so that the mean extends to the end of the last run, or of the first that is not finished.
    """
    runs = [(member, curve) for member, curve in members_with_curves if curve is not None]
    if not runs:
        return []
    first, ends = max(min(curve.x) for _, curve in runs), [max(curve.x) for _, curve in runs]
    going = [end for (member, _), end in zip(runs, ends, strict=True) if not (carry and member.finished)]
    last = min(going) if going else max(ends)
    x = sorted({at for _, curve in runs for at in curve.x if first <= at <= last})
    values = np.array([np.interp(x, curve.x, curve.y) for _, curve in runs])  # beyond its end, a curve's last value
    if len(members_with_curves) == 1:
        return [Curve(label, x, values[0].tolist(), group=group.label)]
    singles = [
        replace(curve, label=label, role="raw", group=group.label, run=f"seed {member.seed}") for member, curve in runs
    ]
    if not x or len(runs) < len(members_with_curves):
        return singles
    band = list(zip(values.min(axis=0).tolist(), values.max(axis=0).tolist()))
    carried = min(ends) if min(ends) < x[-1] else None
    mean = Curve(label, x, values.mean(axis=0).tolist(), group=group.label, band=band, carried=carried)
    return [mean, *singles]


def _relative_to(panel: Panel, group: str) -> Panel:
    """The means minus the mean of `group` with the same label, interpolated linearly; curves whose label `group` lacks
    are dropped."""
    first = {curve.label: curve for curve in panel.curves if curve.group == group and curve.role == "line"}
    curves = []
    for curve in panel.curves:
        if curve.role != "line" or curve.label not in first:
            continue
        basis = first[curve.label]
        kept = [
            (x, y - float(np.interp(x, basis.x, basis.y)))
            for x, y in zip(curve.x, curve.y)
            if basis.x[0] <= x <= basis.x[-1]
        ]
        if kept:
            curves.append(replace(curve, x=[x for x, _ in kept], y=[y for _, y in kept], band=None))
    title = f"{panel.title}, minus the first group"
    return replace(panel, title=title, curves=curves, shares=False, log_y=False)


def notes_without_mean(panels: Sequence[Panel]) -> list[str]:
    """Notes on groups whose single runs are shown without a mean."""
    groups_by_curve: dict[str, list[str]] = {}
    for panel in panels:
        means = {(curve.group, curve.label) for curve in panel.curves if curve.role == "line"}
        for curve in panel.curves:
            if curve.role == "raw" and (curve.group, curve.label) not in means:
                shown = ", ".join(word for word in (panel.title or panel.y_title, curve.label) if word)
                groups_by_curve.setdefault(shown, []).append(curve.group)
    return [
        f"{shown}: no mean of {'; '.join(dict.fromkeys(groups))}, since some runs lack the curve, or their curves have "
        "no part of the axis in common."
        for shown, groups in groups_by_curve.items()
    ]


FEWEST = 3
"""The smallest number of values of a setting that make a sweep."""


def sweep_panels(comparison: Comparison) -> list[Panel]:
    """The headline metric, the held-out loss and the chosen metrics over the numeric recipe key in which groups differ;
    none if there are several such keys, or fewer than three values.

    Groups that also differ in other keys are separate lines in the colours of their objectives, with the range over
    seeds as their bands. One of a single value, such as a baseline, is drawn across the plot.
    """
    numeric = [key for key, values in comparison.differences.items() if all(map(_is_number, values))]
    if len(numeric) != 1 or len(set(comparison.differences[numeric[0]])) < FEWEST:
        return []
    (key,) = numeric
    others = [other for other in comparison.differences if other != key]
    lines: dict[str, list[tuple[float, int]]] = {}
    for place, value in enumerate(comparison.differences[key]):
        label = ", ".join(setting_words(other, comparison.differences[other][place]) for other in others)
        lines.setdefault(label, []).append((float(value), place))
    named = [comparison.groups[points[0][1]].members[0].recipe["objective"]["name"] for points in lines.values()]
    colours = dict(zip(lines, [look.colour for look in looks(named)], strict=True))
    swept = [x for points in lines.values() if len(points) > 1 for x, _ in points]
    if len(set(swept)) < FEWEST:
        return []
    first, last = min(swept), max(swept)
    wanted = dict.fromkeys([comparison.headline.metric, *comparison.chosen, "loss"])
    panels, log_x = [], needs_log_axis(first, last)
    for metric in wanted:
        if not all(metric in group.metrics for group in comparison.groups):
            continue
        curves = []
        for label, points in lines.items():
            ordered = [(x, comparison.groups[place].metrics[metric]) for x, place in sorted(points)]
            means = [summary.mean for _, summary in ordered]
            ends = [(min(summary.values.values()), max(summary.values.values())) for _, summary in ordered]
            if len(points) == 1:
                curves.append(Curve(label, [first, last], means * 2, "control"))
            else:
                band = ends if any(low < high for low, high in ends) else None
                curves.append(Curve(label, [x for x, _ in ordered], means, band=band, colour=colours[label]))
        title = metric.replace("_", " ") + (" (nats per token)" if metric == "loss" else "")
        panels.append(Panel(setting_name(key), title, curves, is_share(metric), log_x=log_x))
    return panels


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
