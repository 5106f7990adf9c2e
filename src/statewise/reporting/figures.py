"""Figures as data: analyses make them, reports store them, `reporting` draws them.

Report files hold them as written by `dataclasses.asdict`. What a file may hold follows from the types of the fields:
`stored_shape` checks it, `stored` reads it.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, replace
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from statewise.runtime.json_files import (
    AMOUNT,
    COUNT,
    FLAG,
    MEASURED,
    NUMBER,
    SHARE,
    TEXT,
    Keys,
    Leaf,
    Maybe,
    Shape,
    metric,
)

Figure = TypeVar("Figure")
Role = Literal["line", "series", "control", "raw", "background"]
_RGB = re.compile("#[0-9a-fA-F]{6}")
_COLOUR = Leaf("a colour as #rrggbb", lambda value: isinstance(value, str) and bool(_RGB.fullmatch(value)))
Colour = Annotated[str, _COLOUR]
Measured = Annotated[float, MEASURED]
"""A number that may be NaN."""
Amount = Annotated[float, AMOUNT]
_OF_COMPARISONS = {"stored": False}
"""Metadata of fields that curves in the report of a run do not have."""
LOGARITHMIC = 16.0
"""An axis of positive numbers is logarithmic if the largest is at least so many times the smallest."""

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
    """Colour as #rrggbb."""
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
    each = []
    for place, name in enumerate(objectives):
        rank, count = objectives[:place].count(name), objectives.count(name)
        each.append(Look(_shade(colours[name], rank, count), MARKERS[rank % len(MARKERS)]))
    return each


def _shade(colour: str, rank: int, count: int) -> str:
    """The shade numbered `rank` of `count` shades of a colour; the first of up to three is the colour itself."""
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
    y: list[Measured]
    role: Role = "line"
    """`series`: one of an ordered family, coloured by rank; `control`: a reference for the others; `raw`: data that the
    line of the same label and group smooths or averages; `background`: grey, not in the legend."""
    group: str = field(default="", metadata=_OF_COMPARISONS)
    """Group of a comparison: curves of one group share a colour, curves of one label a line style."""
    band: list[tuple[float, float]] | None = field(default=None, metadata=_OF_COMPARISONS)
    """The smallest and largest value at each point of a mean; None: not a mean of several curves."""
    run: str = field(default="", metadata=_OF_COMPARISONS)
    """Run of a raw curve, for tooltips."""
    colour: str = field(default="", metadata=_OF_COMPARISONS)
    """Colour as #rrggbb; empty: that of its group, or one by its label."""
    carried: float | None = field(default=None, metadata=_OF_COMPARISONS)
    """The x from which a mean over runs holds the last value of runs that ended there; None: no run ended earlier."""


def defined_curve(label: str, x: Sequence[float], y: Iterable[float]) -> Curve:
    """A curve without the places where y is NaN, such as an R^2 where all values are equal; `x` may go on beyond y."""
    points = [(at, float(value)) for at, value in zip(x, y, strict=False) if not math.isnan(value)]
    return Curve(label, [at for at, _ in points], [value for _, value in points])


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
    """Whether the y axis is logarithmic."""


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
    """(x, y) of each point."""
    colours: list[Colour]
    """The colour of each point, as #rrggbb."""
    names: list[str] = field(default_factory=list)
    """The name of each point, for tooltips; may be empty."""
    size: Amount = 1.0
    """Diameter; 1 is that of a small dot."""


@dataclass(frozen=True)
class Text:
    """A text in a drawing."""

    place: list[float]
    """(x, y) of the middle of the text."""
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
    """Title of the horizontal axis; empty, as for a map: the axes are not drawn."""
    y_title: str = ""
    """Title of the vertical axis."""
    texts: list[Text] = field(default_factory=list)
    """Texts at places of the drawing, such as the corners of a simplex."""
    note: str = ""
    """A sentence or two on what points, lines and colours mean."""


_LEAVES: dict[Any, Shape] = {str: TEXT, float: NUMBER, int: COUNT, bool: FLAG}


def _stored_fields(kind: type) -> dict[str, tuple[Any, bool]]:
    """The fields of a class that reports hold: of each its type, and whether it may be missing."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        one.name: (hints[one.name], one.default is not MISSING or one.default_factory is not MISSING)
        for one in dataclasses.fields(kind)
        if one.metadata.get("stored", True)
    }


def stored_shape(kind: Any) -> Shape:
    """The shape of a value of this type in a report, as `statewise.runtime.json_files` checks it."""
    if get_origin(kind) is Annotated:
        shape: Shape = get_args(kind)[1]
        return shape
    if get_origin(kind) is list:
        return [stored_shape(get_args(kind)[0])]
    if get_origin(kind) is dict:
        return {...: stored_shape(get_args(kind)[1])}
    if get_origin(kind) is types.UnionType:
        return Maybe(stored_shape(get_args(kind)[0]))
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return stored_fields(kind)
    return TEXT if get_origin(kind) is Literal else _LEAVES[kind]


def stored_fields(kind: type) -> Keys:
    """The shapes of the fields of a class in a report; the keys of fields with a default end in `?`."""
    fields = _stored_fields(kind)
    return {f"{name}?" if optional else name: stored_shape(hint) for name, (hint, optional) in fields.items()}


def stored(kind: type[Figure], content: Mapping[str, Any]) -> Figure:
    """The `Panel` or `Drawing` in a report, whose `content` has the shape of its class."""
    fields = {name: hint for name, (hint, _) in _stored_fields(kind).items() if name in content}
    return kind(**{name: _value(hint, content[name]) for name, hint in fields.items()})


def _value(kind: Any, content: Any) -> Any:
    inner = get_args(kind)[0] if get_origin(kind) is list else None
    if isinstance(inner, type) and dataclasses.is_dataclass(inner):
        return [stored(inner, one) for one in content]
    return content


MOST_LINES = 8
"""The largest number of lines in a plot."""
MOST_GROUPS = 6
"""The largest number of groups of a comparison in a plot: each also has a band and thin lines."""


def small_multiples(panel: Panel) -> list[Panel]:
    """The panel itself, or several if it has more than `MOST_LINES` lines or `MOST_GROUPS` groups.

    Panels with several groups and labels are first split by label. What is still too large becomes one panel per group
    (per label without groups), titled with it, with the other lines in grey; the title of the panel then labels its
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


STYLE = """
:root { --back: #ffffff; --ink: #2f3b4c; --soft: #5d6878; --line: #e3e7ec; --faint: #f2f4f7; --right: #2f7d4c;
  --wrong: #c8442f; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --back: #14181e; --ink: #e4e8ee; --soft: #a3adba; --line: #333c48;
  --faint: #222932; --right: #63c389; --wrong: #ff8a75; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); max-width: 1180px;
  margin: 2rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: .95rem; font-weight: 600; margin: .4rem 0; white-space: pre-line; }
h1, h2, h3 { overflow-wrap: anywhere; }
p.note { color: var(--soft); margin: .2rem 0; } p.finding { font-size: 1.1rem; margin: .6rem 0 .9rem; }
.scroll { overflow-x: auto; /* with a shadow where there is more to scroll to */
  background: linear-gradient(to right, var(--back) 40%, transparent) 0 0 / 40px 100% no-repeat local,
  linear-gradient(to left, var(--back) 40%, transparent) 100% 0 / 40px 100% no-repeat local,
  linear-gradient(to right, var(--line), transparent) 0 0 / 12px 100% no-repeat,
  linear-gradient(to left, var(--line), transparent) 100% 0 / 12px 100% no-repeat; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
thead th { border-bottom: 2px solid var(--ink); }
code { background: var(--faint); padding: 0 .3em; border-radius: 3px; overflow-wrap: anywhere; }
@media (max-width: 640px) { body { padding: 0 .8rem; margin: 1rem auto; } th, td { padding: .3rem .4rem; } }
"""
"""CSS that all pages of reports have in common, for bright and dark screens, and for phones. Colours are variables of
the root."""
