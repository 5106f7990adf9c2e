"""Sweeps: metrics of a comparison over the one numeric setting in which its groups differ."""

from __future__ import annotations

from statewise.reporting.comparison import Comparison
from statewise.reporting.figures import Curve, Panel, is_share, looks, needs_log_axis
from statewise.reporting.words import setting_name, setting_words

FEWEST = 3
"""Values of a setting that make a sweep."""


def sweep_panels(comparison: Comparison) -> list[Panel]:
    """The headline metric, the held-out loss and the chosen metrics over the numeric recipe key in which groups differ;
    none if there are several such keys, or fewer than three values.

    Groups that differ in other keys besides are separate lines in the colours of their objectives, with the range over
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
            means = [found.mean for _, found in ordered]
            ends = [(min(found.values.values()), max(found.values.values())) for _, found in ordered]
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
