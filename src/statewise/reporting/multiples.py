"""Small multiples: splits panels that have too many lines."""

from __future__ import annotations

from dataclasses import replace

from statewise.figures import Panel

MOST_LINES = 8
"""Per plot."""


def small_multiples(panel: Panel) -> list[Panel]:
    """The panel itself, or several if it has more than `MOST_LINES` lines.

    Panels with several groups and labels are first split by label. What is still too large becomes one panel per group
    (per label without groups), with the other lines in grey.
    """
    lines = [curve for curve in panel.curves if curve.role == "line"]
    groups = list(dict.fromkeys(curve.group for curve in lines))
    labels = list(dict.fromkeys(curve.label for curve in lines))
    if len(lines) <= MOST_LINES:
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
        multiples.append(replace(panel, title=f"{panel.title}\n{name}" if panel.title else name, curves=curves))
    return multiples
