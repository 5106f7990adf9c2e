"""Figures as data: analyses make them, reports store them, `reporting` draws them.

Report files hold them as written by `dataclasses.asdict`; `of` reads that.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from statewise.runtime.json_files import SHARE, metric

Role = Literal["line", "series", "control", "raw", "background"]
LOGARITHMIC = 16.0
"""Numbers above 0 of which the largest is so many times the smallest have a logarithmic axis."""

OBJECTIVE_COLOURS = {
    "next_token": "#3b6fb6",
    "next_latent": "#d1603d",
    "belief_state": "#3f8f5b",
    "joint_multi_token": "#8a5aa8",
    "multi_token": "#a87b1f",
    "latent_multi_token": "#2a8fa3",
    "teacherless": "#75832a",
    "token_order": "#bd3f68",
    "future_summary": "#8f6246",
    "semantic_tube": "#cc5ab0",
}
"""The colour of each objective in every picture and on every page; it can be read on white and on a dark background."""
OTHER_COLOURS = ["#5560e0", "#5f7a88", "#b0413a"]
"""Colours of objectives from other packages."""
MARKERS = ("o", "s", "^", "D", "v", "P")
"""Markers of the groups of one objective in a comparison, by their names in matplotlib."""


@dataclass(frozen=True)
class Look:
    """How the lines of a group of a comparison are drawn."""

    colour: str
    """As #rrggbb."""
    marker: str = "o"
    """One of `MARKERS`."""


def objective_colour(name: str) -> str:
    """The colour of an objective. One from elsewhere always has the same of `OTHER_COLOURS`, which others may share."""
    return OBJECTIVE_COLOURS.get(name, OTHER_COLOURS[zlib.crc32(name.encode()) % len(OTHER_COLOURS)])


def looks(objectives: Sequence[str]) -> list[Look]:
    """Looks of groups with these objectives: the objective's colour, of several groups of one objective shades of it
    and different markers. Up to three objectives from elsewhere have different colours."""
    colours: dict[str, str] = {}
    for name in dict.fromkeys(objectives):
        free = [colour for colour in OTHER_COLOURS if colour not in colours.values()]
        own = objective_colour(name)
        colours[name] = own if name in OBJECTIVE_COLOURS or own in free or not free else free[0]
    found = []
    for place, name in enumerate(objectives):
        rank, count = objectives[:place].count(name), objectives.count(name)
        found.append(Look(_shade(colours[name], rank, count), MARKERS[rank % len(MARKERS)]))
    return found


def _shade(colour: str, rank: int, count: int) -> str:
    """Of `count` shades of a colour the one numbered `rank`; of up to three the first is the colour itself."""
    amount = (0.0, -0.5, 0.42)[rank] if count <= 3 else -0.65 + 1.1 * rank / (count - 1)
    end = 255 if amount > 0 else 0
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part + (end - part) * abs(amount)):02x}" for part in parts)


def is_share(name: str) -> bool:
    """Whether a metric of this name lies between 0 and 1."""
    return metric(name) is SHARE


def needs_log_axis(first: float, last: float) -> bool:
    """Whether an axis from `first` to `last` is to be logarithmic."""
    return first > 0 and last / first >= LOGARITHMIC


@dataclass(frozen=True)
class Curve:
    """A line of a plot."""

    label: str
    x: list[float]
    y: list[float]
    role: Role = "line"
    """`series`: one of an ordered family, coloured by rank; `control`: a reference for the others; `raw`: data that the
    line of the same label and group smooths or averages; `background`: grey, not in the legend."""
    group: str = ""
    """Group of a comparison: curves of one group share a colour, those of one label a line style."""
    band: list[tuple[float, float]] | None = None
    """For each point of a mean the smallest and largest value; None: not a mean of several."""
    run: str = ""
    """Run of a raw curve, for tooltips."""
    colour: str = ""
    """As #rrggbb; empty: that of its group, or one by its label."""
    carried: float | None = None
    """Of a mean over runs: the x from which it holds the last value of runs that ended there; None: of none."""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Curve:
        """From the report of a run, which has no groups, bands and runs."""
        return cls(content["label"], content["x"], content["y"], content["role"])


@dataclass(frozen=True)
class Panel:
    """Curves that share their axes."""

    x_title: str
    y_title: str
    curves: list[Curve]
    shares: bool = False
    """Whether y lies between 0 and 1, as a share does, and an R^2 unless it is negative."""
    title: str = ""
    log_x: bool = False
    """Whether the x axis is logarithmic."""
    log_y: bool = False
    """Whether the y axis is."""

    @classmethod
    def of(cls, content: Mapping[str, Any], title: str = "") -> Panel:
        """From a report."""
        curves = [Curve.of(curve) for curve in content["curves"]]
        log_x, log_y = (content.get(key, False) for key in ("log_x", "log_y"))
        return cls(content["x_title"], content["y_title"], curves, content["shares"], title, log_x, log_y)


def over_steps(panel: Panel) -> Panel:
    """A panel over steps of training, with a logarithmic axis if they are far apart: then without step 0, which such an
    axis does not have. Controls are lines from end to end."""
    steps = [x for curve in panel.curves for x in curve.x if x > 0]
    if not needs_log_axis(min(steps, default=0.0), max(steps, default=0.0)):
        return panel
    curves = []
    for curve in panel.curves:
        if curve.role == "control":
            curves.append(replace(curve, x=[min(steps), max(steps)]))
        else:
            kept = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if x > 0]
            curves.append(replace(curve, x=[x for x, _ in kept], y=[y for _, y in kept]))
    return replace(panel, curves=curves, log_x=True)


@dataclass(frozen=True)
class Layer:
    """Lines of a drawing in one style."""

    label: str
    lines: list[list[list[float]]]
    """The two ends of each line, each (x, y)."""
    names: list[str]
    """Name of each line, for tooltips."""
    stands_out: bool = False
    """Whether to highlight them."""


@dataclass(frozen=True)
class Points:
    """Points of a drawing."""

    places: list[list[float]]
    """(x, y) of each."""
    colours: list[str]
    """Of each, as #rrggbb."""
    names: list[str] = field(default_factory=list)
    """Of each, for tooltips; may be empty."""
    size: float = 1.0
    """Diameter; 1 is that of a small dot."""


@dataclass(frozen=True)
class Text:
    """A text in a drawing."""

    place: list[float]
    """(x, y) of its middle."""
    text: str


@dataclass(frozen=True)
class Drawing:
    """A drawing of lines and points, such as a map, with equal scales on both axes."""

    title: str
    layers: list[Layer]
    points: list[Points] = field(default_factory=list)
    plane: str = ""
    """Drawings that name the same plane have the same limits, so that they compare; empty: limits of its own."""
    true: bool = False
    """Whether it shows the truth, which the other drawings of the plane are compared with."""
    step: int | None = None
    """The training step that it shows, if it is one of a series over training."""
    x_title: str = ""
    """What the horizontal axis is; empty, as of a map: the axes are not drawn."""
    y_title: str = ""
    """What the vertical axis is."""
    texts: list[Text] = field(default_factory=list)
    """Texts at places of the drawing, such as the corners of a simplex."""
    note: str = ""
    """What points, lines and colours mean: a sentence or two."""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Drawing:
        """From a report."""
        layers = [
            Layer(layer["label"], layer["lines"], layer["names"], layer["stands_out"]) for layer in content["layers"]
        ]
        points = [
            Points(dots["places"], dots["colours"], dots.get("names", []), dots.get("size", 1.0))
            for dots in content.get("points", ())
        ]
        texts = [Text(text["place"], text["text"]) for text in content.get("texts", ())]
        rest = {
            name: content[name] for name in ("plane", "true", "step", "x_title", "y_title", "note") if name in content
        }
        return cls(content["title"], layers, points, texts=texts, **rest)
