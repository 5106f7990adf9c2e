"""Combines findings of the same probes on several layers."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from statewise.analysis.base import Findings
from statewise.analysis.sentences import percent
from statewise.reporting.figures import Curve, Panel


def by_layer(found: Mapping[str, Findings]) -> Findings:
    """Combines the findings of `Probing` on each activation, given by name. Pictures number layers from 1.

    Metrics: `accuracy_NAME` and `accuracy_untrained_NAME`. Panels: accuracy over layers, of models and controls; and
    accuracy along the probes' own axis, one curve per name. Names that differ in more than the layer's number, such as
    those of two streams, get separate curves.
    """
    accuracy = {f"accuracy_{name}": one.metrics["accuracy"] for name, one in found.items()}
    untrained = {f"accuracy_untrained_{name}": one.metrics["accuracy_untrained"] for name, one in found.items()}
    families: dict[str, list[str]] = {}
    for name in found:
        families.setdefault(re.sub(r"\d+", "*", name), []).append(name)
    over_layers = []
    for family, names in families.items():
        layers = [float(_layer(name)) for name in names]
        for number, curve in enumerate(found[names[0]].panels[0].curves):
            label = curve.label if len(families) == 1 else f"{curve.label}, {family}"
            means = [float(np.mean(found[name].panels[0].curves[number].y)) for name in names]
            over_layers.append(Curve(label, layers, means, curve.role))
    best = max(found, key=lambda name: found[name].metrics["accuracy"])
    first, along = next(iter(found.values())).panels[0], []
    several = len(families) > 1 or any(len({*map(_layer, names)}) < len(names) for names in families.values())
    for name, one in found.items():
        (probed,) = (curve for curve in one.panels[0].curves if curve.label == one.details["probed"])
        along.append(Curve(name if several else f"layer {_layer(name)}", probed.x, probed.y, "series"))
    return Findings(
        accuracy | untrained,
        [Panel("layer", "accuracy", over_layers, shares=True), Panel(first.x_title, "accuracy", along, shares=True)],
        {"layers": {name: one.details for name, one in found.items()}},
        list(dict.fromkeys(note for one in found.values() for note in one.notes)),
        main=list(accuracy),
        verdict=(
            f"Of {len(found):,} layers, probes read most from {best}: {percent(found[best].metrics['accuracy'])} "
            f"right; from the same layer of an untrained model {percent(found[best].metrics['accuracy_untrained'])}."
        ),
    )


def _layer(name: str) -> int:
    """The number of an activation's layer, the first of which is 1; 0 if it has none, as the embedding."""
    found = re.search(r"\d+", name)
    return int(found[0]) + 1 if found else 0
