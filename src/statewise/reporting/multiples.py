"""Small multiples: splits panels that have too many lines."""

from __future__ import annotations

from dataclasses import replace

from statewise.reporting.figures import Panel

MOST_LINES = 8
"""Per plot."""
MOST_GROUPS = 6
"""Of a comparison per plot: each has a band and thin lines of its own besides."""


def small_multiples(panel: Panel) -> list[Panel]:
    """The panel itself, or several if it has more than `MOST_LINES` lines or `MOST_GROUPS` groups.

    Panels with several groups and labels are first split by label. What is still too large becomes one panel per group
    (per label without groups), titled with it, with the other lines in grey; what the panel shows then stands at its
    y axis.
    """
    shown = [curve for role in ("line", "raw") for curve in panel.curves if curve.role == role]
    lines = dict.fromkeys((curve.group, curve.label) for curve in shown)  # a mean and its runs are one
    groups = list(dict.fromkeys(group for group, _ in lines))
    labels = list(dict.fromkeys(label for _, label in lines))
    if len(lines) <= MOST_LINES and len(groups) <= MOST_GROUPS:
        return [panel]
    if len(groups) > 1 and len(labels) > 1:
        return [
            multiple
            for label in labels
            for multiple in small_multiples(
                replace(
                    panel,
                    title=f"{panel.title}: {label}" if panel.title else label,
                    curves=[curve for curve in panel.curves if curve.label == label or curve.role == "control"],
                )
            )
        ]
    multiples = []
    for name in groups if len(groups) > 1 else labels:
        curves = []
        for curve in panel.curves:
            if name == (curve.group if len(groups) > 1 else curve.label) or curve.role in ("control", "series"):
                curves.append(curve)
            elif curve.role == "line":
                curves.insert(0, replace(curve, role="background", band=None))
        titles = ": ".join(title for title in (panel.title, panel.y_title) if title)
        multiples.append(replace(panel, title=name, y_title=titles, curves=curves))
    return multiples
