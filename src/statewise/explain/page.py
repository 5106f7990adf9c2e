"""One HTML file with what a model has learned of the user's own sequences. Nothing is loaded from elsewhere.

Whatever comes from the user's file is text: escaped where it stands in the markup, and set as text by the script.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import unicodedata
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib import resources
from pathlib import Path
from typing import Any

from statewise.explain.calibration import prefix_panel, reliability_panel
from statewise.explain.explanation import Explanation, SurprisingCase, as_json
from statewise.explain.layout import Layout, layout
from statewise.explain.process_map import LEVEL, Edge, ProcessMap, frequent
from statewise.reporting.figures import STYLE
from statewise.reporting.plots import SVG_STYLE, panel_svg
from statewise.runtime.durable import write_all
from statewise.runtime.json_files import json_bytes
from statewise.runtime.messages import counted, cut, percent
from statewise.runtime.overwriting import check_files, claimed_files, json_with

FILES = ("index.html", "explanation.json")
"""What `save` writes into its folder."""
LINE_CHARACTERS, LINES = 15, 2
"""Characters in a line of a node of the map, and lines; longer names are cut there, and whole in a tooltip."""
CHARACTER = 6.8
"""Pixels that a character takes, generously."""
MOST_ALL = 200
"""Most edges of the map of all edges."""
MOST_LISTED = 15
"""Most edges in the table of those that differ."""
LONGEST_NAME = 80
"""Characters of an event's name outside of the map."""
WIDE = 700
"""Maps that are wider in pixels stand below each other."""
HOT = 5.0
"""Nats from which an event has the full colour of surprise."""


def claimed(folder: Path, overwrite: bool) -> AbstractContextManager[Path]:
    """A claim on the page's files in a folder (`statewise.runtime.overwriting`), and the place where they are written.
    Raises `FileExistsError` if one exists, unless `overwrite` is set and statewise wrote them."""

    def check() -> None:
        check_files(folder, FILES, {FILES[1]: json_with("verdict", "process_map", "surprising")}, overwrite)

    return claimed_files(folder, FILES, check, overwrite)


def save(explanation: Explanation, folder: Path, *, overwrite: bool = False) -> list[Path]:
    """Writes `index.html` and the figures, `explanation.json`, into a folder; returns their paths. Raises what
    `claimed` raises."""
    contents = dict(zip(FILES, (page(explanation).encode(), json_bytes(as_json(explanation))), strict=True))
    with claimed(folder, overwrite) as scratch:
        write_all({scratch / name: content for name, content in contents.items()})
    return [folder / name for name in FILES]


def page(made: Explanation) -> str:
    """The page as HTML."""
    script = _file("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; base-uri 'none'; "
        "form-action 'none'"
    )
    # In a script element only `<` could end it or begin a comment.
    data = json.dumps(_for_script(made), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>statewise: {_text(made.run)}</title>
<style>{STYLE}{SVG_STYLE}{_file("style.css")}</style></head><body>
<h1>Did the model understand the data?</h1>
<p class="finding">{_text(made.verdict.sentence)}</p>
<p class="advice">{_text(made.verdict.advice)}</p>
<p class="note">{_text(_origin(made))}</p>
<nav><a href="#map">Process map</a><a href="#prefix">By prefix length</a><a href="#sure">Calibration</a>
<a href="#surprising">Surprising cases</a><a href="#states">States</a><a href="#near">Similar cases</a></nav>
{_comparisons(made)}
{_map(made)}
{_prefixes(made)}
{_calibration(made)}
{_surprising(made)}
{STATES.format(**_of_states(made))}
<h2 id="similar">Similar cases</h2>
<p>Cases whose states after the last event are near each other: what the model knows of them is much the same.</p>
<p><label>Case <select id="case"></select></label></p>
<div id="near"></div>
{"".join(f'<p class="note">{_text(note)}</p>' for note in made.notes)}
<script type="application/json" id="data">{data}</script>
<script>{script}</script></body></html>
"""


STATES = """<h2 id="states">States</h2>
<p>{count} states of the model, each after some event of a held-out case, on their first two principal components. Those
have {first} and {second} of the variance{most}. Points of one colour that lie together are alike to the model.</p>
<div class="plane"><label>Colour <select id="colour"></select></label>
<canvas id="plane" role="img" aria-label="States of the model in two dimensions"></canvas>
<div id="tip" class="tip" hidden></div></div>
<div id="legend" class="legend"></div>"""


def _file(name: str) -> str:
    return (resources.files(__package__) / "page" / name).read_text(encoding="utf-8")


def _text(text: str) -> str:
    """Text as markup."""
    return html.escape(text)


def _named(name: str) -> str:
    """The name of an event as markup, cut if it is long."""
    return _text(cut(name, LONGEST_NAME))


def _for_script(made: Explanation) -> dict[str, Any]:
    """What the script draws: events are numbers of a list of names."""
    content = as_json(made)
    events = list(dict.fromkeys(name for sequence in made.index.sequences for name in sequence))
    number = {name: place for place, name in enumerate(events)}
    sequences = [[number[name] for name in sequence] for sequence in made.index.sequences]
    shown = [cut(name, LONGEST_NAME) for name in events]
    return {"states": content["states"], "index": {**content["index"], "sequences": sequences}, "events": shown}


def _origin(made: Explanation) -> str:
    step = "" if made.step is None else f", step {made.step:,}"
    return f"{made.run}{step}; {made.cases:,} held-out cases with {made.events:,} scored events; data: {made.file}"


def _comparisons(made: Explanation) -> str:
    rows = "".join(
        f"<tr><td>{_text(one.baseline)}</td><td>{one.nats:.3f}</td><td>{one.difference:+.3f}</td>"
        f"<td>{_interval(one.low, one.high)}</td></tr>"
        for one in made.verdict.comparisons
    )
    header = "".join(f"<th>{name}</th>" for name in ("predictor", "nats per event", "model minus it", "95% interval"))
    own = f"<tr><td>model</td><td>{made.verdict.loss:.3f}</td><td></td><td></td></tr>"
    return (
        f'<div class="scroll"><table class="compared"><thead><tr>{header}</tr></thead>'
        f"<tbody>{own}{rows}</tbody></table></div>"
        '<p class="note">Nats measure surprise, and fewer are better: 0 for an event that was certain, 0.7 for one of '
        "two equally likely events, 4.6 for one that was expected once in a hundred times. The other predictors look "
        "at no event before (unigram), at the last one (bigram) or at the last few.</p>"
    )


def _interval(low: float | None, high: float | None) -> str:
    return "too few cases" if low is None or high is None else f"{low:+.3f} to {high:+.3f}"


# The process map


def _map(made: Explanation) -> str:
    graph = made.process_map
    shown = frequent(graph)
    hidden = len(graph.edges) - len(shown)
    differing = [edge for edge in graph.edges if edge.differs]
    parts = [
        '<h2 id="map">Process map</h2>',
        f"<p>Which event directly follows which, in {_text(made.map_of)}, and in {graph.model_cases:,} sequences that "
        "the model generated, each from the first event of a case, so that the edges of the start are alike. A number "
        "on an edge is the share of times that this event comes next.</p>",
        '<p class="note"><span class="key more"><i></i>the model does this too often</span><span class="key less"><i>'
        "</i>the model does this too rarely</span></p>",
        f"<p>{_text(_differences(graph, len(differing)))}</p>",
        _maps(graph, shown),
    ]
    if hidden:
        parts.append(f"<p class='note'>{_text(_hidden(graph, shown))}</p>")
    if hidden and len(graph.edges) <= MOST_ALL:
        every = _maps(graph, range(len(graph.edges)))
        parts.append(f"<details><summary>Show all {len(graph.edges):,} edges</summary>{every}</details>")
    if differing:
        parts.append(_edges(graph, differing))
    return "\n".join(parts)


def _differences(graph: ProcessMap, count: int) -> str:
    if not graph.compared:
        return "Too few cases have the same event to compare the shares."
    if not count:
        return f"No edge differs: {graph.compared:,} were compared."
    which = "edge differs" if count == 1 else "edges differ"
    return (
        f"{count:,} of {graph.compared:,} compared {which} by at least 5 points (jackknife t-test over cases, at a "
        f"level of {LEVEL:g} for all together)."
    )


def _hidden(graph: ProcessMap, shown: Sequence[int]) -> str:
    nodes = {node for place in shown for node in (graph.edges[place].source, graph.edges[place].target)}
    total = max(1, sum(edge.data for edge in graph.edges))
    covered = sum(graph.edges[place].data for place in shown) / total
    left_out = len(graph.nodes) - len(nodes)
    others = f" and {left_out:,} of {len(graph.nodes):,} nodes" if left_out else ""
    return (
        f"{len(graph.edges) - len(shown):,} of {len(graph.edges):,} edges{others} are hidden, the rare ones. Those "
        f"shown have {percent(covered)} of all transitions of the data."
    )


def _edges(graph: ProcessMap, edges: Sequence[Edge]) -> str:
    """A table of the edges that differ, those with the largest difference first."""
    ranked = sorted(edges, key=lambda edge: -abs((edge.model_share or 0.0) - (edge.data_share or 0.0)))
    rows = "".join(
        f"<tr><td>{_named(graph.nodes[edge.source].name)}</td><td>{_named(graph.nodes[edge.target].name)}</td>"
        f'<td class="number">{percent(edge.data_share or 0.0)}</td><td class="number"><b class="{_way(edge)}">'
        f"{percent(edge.model_share or 0.0)}</b></td></tr>"
        for edge in ranked[:MOST_LISTED]
    )
    rest = len(edges) - MOST_LISTED
    more = f'<p class="note">{rest:,} more are in explanation.json.</p>' if rest > 0 else ""
    return (
        '<h3>Edges that differ</h3><div class="scroll"><table class="edges"><thead><tr><th>after</th><th>comes</th>'
        f"<th>data</th><th>model</th></tr></thead><tbody>{rows}</tbody></table></div>{more}"
    )


def _way(edge: Edge) -> str:
    return "more" if (edge.model_share or 0.0) > (edge.data_share or 0.0) else "less"


def _maps(graph: ProcessMap, shown: Sequence[int]) -> str:
    """The maps of data and model with the edges of these numbers, all nodes in the same places."""
    edges = [graph.edges[place] for place in shown]
    used = sorted({node for edge in edges for node in (edge.source, edge.target)})
    number = {node: place for place, node in enumerate(used)}
    names = {node: wrapped(graph.nodes[node].name) for node in used}
    sizes = [(max(46.0, CHARACTER * max(map(_width, names[node])) + 14), 15.0 * len(names[node]) + 22) for node in used]
    ends = [(number[edge.source], number[edge.target]) for edge in edges]
    last = max((graph.nodes[node].position for node in used), default=0.0) + 1
    rank = [last if graph.nodes[node].kind == "end" else graph.nodes[node].position for node in used]
    cases, samples = max(1, graph.data_cases), max(1, graph.model_cases)
    weights = [max(edge.data / cases, edge.model / samples) for edge in edges]
    placed = layout(sizes, ends, rank, weights)
    wide = " wide" if placed.width > WIDE else ""
    figures = "".join(
        f"<figure><h3>{title}</h3>"
        f'<div class="scroll">{_drawn(graph, side, used, edges, placed, sizes, names, title)}</div></figure>'
        for side, title in (("data", "Data"), ("model", "Model"))
    )
    return f'<div class="maps{wide}">{figures}</div>'


def _drawn(
    graph: ProcessMap,
    side: str,
    used: Sequence[int],
    edges: Sequence[Edge],
    placed: Layout,
    sizes: Sequence[tuple[float, float]],
    names: dict[int, list[str]],
    title: str,
) -> str:
    parts, labels = [], []
    places_of_labels = _Labels([(*place, *size) for place, size in zip(placed.places, sizes)])
    most = max((getattr(edge, side) for edge in edges), default=1) or 1
    for edge, path in zip(edges, placed.paths):
        count, share = getattr(edge, side), getattr(edge, f"{side}_share")
        if not count:
            if not edge.differs:
                continue
            share = 0.0
        width = 1 + 4 * (count / most) ** 0.5
        line = f"M{_at(path[0])}" + "".join(f"C{_at(a)} {_at(b)} {_at(c)}" for a, b, c in zip(*[iter(path[1:])] * 3))
        x, y = places_of_labels.place(path)
        way = f" {_way(edge)}" if edge.differs else ""
        tip = f"{graph.nodes[edge.source].name} → {graph.nodes[edge.target].name}: {count:,} times, {percent(share)}"
        parts.append(
            f'<g class="edge{way}"><title>{_text(tip)}</title><path d="{line}" stroke-width="{width:.1f}"/>'
            f'<polygon points="{_arrow(path, 5 + width)}"/></g>'
        )
        labels.append(f'<g class="edge{way}"><text x="{x:.1f}" y="{y + 4:.1f}">{_text(_brief(share))}</text></g>')
    for node, place, (width, height) in zip(used, placed.places, sizes):
        one = graph.nodes[node]
        count = getattr(one, side)
        x, y = place[0] - width / 2, place[1] - height / 2
        texts = "".join(
            f'<text x="{place[0]:.1f}" y="{y + 15 + 15 * line:.1f}">{_text(name)}</text>'
            for line, name in enumerate(names[node])
        )
        radius = 6 if one.kind == "event" else 14
        parts.append(
            f'<g class="node {one.kind}{"" if count else " absent"}"><title>{_text(one.name)}: {count:,} times</title>'
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius}"/>{texts}'
            f'<text class="count" x="{place[0]:.1f}" y="{y + height - 7:.1f}">{count:,}</text></g>'
        )
    edge_of = 14
    whole = f"{-edge_of} {-edge_of} {placed.width + 2 * edge_of:.0f} {placed.height + 2 * edge_of:.0f}"
    natural = placed.width + 2 * edge_of
    return (
        f'<svg class="map" viewBox="{whole}" role="img" aria-label="Process map: {title.lower()}" '
        f'style="width:100%;max-width:{natural:.0f}px;min-width:{0.85 * natural:.0f}px">{"".join(parts + labels)}</svg>'
    )


def _brief(share: float) -> str:
    """A share in at most four characters."""
    return "<1%" if 0 < share < 0.005 else ">99%" if 0.995 <= share < 1 else f"{share:.0%}"


def _at(point: tuple[float, float]) -> str:
    return f"{point[0]:.1f},{point[1]:.1f}"


class _Labels:
    """Finds places for the labels of edges, beside nodes and other labels."""

    WIDTH, HEIGHT = 28.0, 12.0
    """Pixels of a label."""
    ALONG = (0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8)
    """Where a label may stand on its edge, as shares of the way, the best first."""

    def __init__(self, boxes: Sequence[tuple[float, float, float, float]]) -> None:
        """`boxes`: middle, width and height of each node."""
        self.boxes = list(boxes)

    def place(self, path: Sequence[tuple[float, float]]) -> tuple[float, float]:
        """The middle of a label on a curve: where it covers the least of the others."""
        middle = min((_along(path, share) for share in self.ALONG), key=self._covered)
        self.boxes.append((*middle, self.WIDTH, self.HEIGHT))
        return middle

    def _covered(self, middle: tuple[float, float]) -> float:
        total = 0.0
        for x, y, width, height in self.boxes:
            across = (width + self.WIDTH) / 2 - abs(middle[0] - x)
            down = (height + self.HEIGHT) / 2 - abs(middle[1] - y)
            total += max(0.0, across) * max(0.0, down)
        return total


def _along(path: Sequence[tuple[float, float]], share: float) -> tuple[float, float]:
    """The point of a curve at a share of its pieces."""
    pieces = (len(path) - 1) // 3
    piece = min(int(share * pieces), pieces - 1)
    t = share * pieces - piece
    a, b, c, d = path[3 * piece : 3 * piece + 4]
    u = 1 - t
    weights = (u**3, 3 * u**2 * t, 3 * u * t**2, t**3)
    x, y = (sum(weight * one for weight, one in zip(weights, ones)) for ones in zip(a, b, c, d))
    return x, y


def _arrow(path: Sequence[tuple[float, float]], size: float) -> str:
    """The corners of an arrowhead at the end of a curve."""
    x, y = path[-1]
    before = next((point for point in reversed(path[:-1]) if point != path[-1]), (x, y - 1))
    dx, dy = x - before[0], y - before[1]
    length = (dx * dx + dy * dy) ** 0.5
    dx, dy = dx / length, dy / length
    half = 0.45 * size
    corners = [(x, y), (x - size * dx - half * dy, y - size * dy + half * dx)]
    corners.append((x - size * dx + half * dy, y - size * dy - half * dx))
    return " ".join(map(_at, corners))


def _width(text: str) -> int:
    """Characters that a text takes, wide ones as two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def wrapped(name: str) -> list[str]:
    """A name in at most `LINES` lines of `LINE_CHARACTERS`, cut at the end if it is longer; at least one line."""
    lines = [""]
    seen = name[: 4 * LINES * LINE_CHARACTERS]  # what is cut anyway would take long
    for word in " ".join(seen.split()).split(" "):
        rest = word
        while rest:
            line = f"{lines[-1]} {rest}".strip()
            if _width(line) <= LINE_CHARACTERS:
                lines[-1], rest = line, ""
            elif lines[-1]:
                lines.append("")
            else:
                fits = next(at for at in range(len(rest), 0, -1) if _width(rest[:at]) <= LINE_CHARACTERS or at == 1)
                lines[-1], rest = rest[:fits], rest[fits:]
                if rest:
                    lines.append("")
    if len(lines) <= LINES:
        return lines
    return [*lines[: LINES - 1], lines[LINES - 1][: LINE_CHARACTERS - 1] + "…"]


# The other figures


def _prefixes(made: Explanation) -> str:
    accuracy = prefix_panel(made.accuracy, "share of next events that are right", shares=True)
    nats = prefix_panel(made.nats, "nats per event", shares=False)
    least, most = min(made.accuracy.counts), max(made.accuracy.counts)
    points = counted(most, "event") if least == most else f"{least:,} to {most:,} events"
    return (
        '<h2 id="prefix">By prefix length</h2>'
        "<p>How well the next event is predicted after few and after many events of a case. Lower nats are better. "
        f"Where the model falls behind as cases grow, it forgets. Each point is a mean of {points}; the band is the "
        "95% interval of the model's.</p>"
        f'<div class="two"><div>{panel_svg(accuracy)}</div><div>{panel_svg(nats)}</div></div>'
    )


def _calibration(made: Explanation) -> str:
    found = made.reliability
    rows = "".join(
        f"<tr><td>{one.low:.1f} to {one.high:.1f}</td><td>{one.count:,}</td><td>{percent(one.chance)}</td>"
        f"<td>{percent(one.right)}</td></tr>"
        for one in found.bins
    )
    points = 100 * found.error
    how = "too sure of itself" if found.sureness > 0 else "less sure than it could be"
    sentence = (
        f"Its probabilities can be taken at their word: they are {points:.1f} points from the truth on average."
        if found.error < 0.03
        else f"On average it is {how}: its probabilities are {points:.1f} points from the truth."
    )
    return (
        '<h2 id="sure">Calibration: are its probabilities right?</h2>'
        f"<p>Of the predictions with some probability, the share that is right. {_text(sentence)}</p>"
        f'<div class="two"><div>{panel_svg(reliability_panel(found))}</div>'
        '<div class="scroll"><table><thead><tr><th>probability</th><th>events</th><th>mean</th><th>right</th></tr>'
        f"</thead><tbody>{rows}</tbody></table></div></div>"
    )


def _surprising(made: Explanation) -> str:
    more, count = sum(one.nats > one.expected_nats for one in made.surprising), len(made.surprising)
    some = "All" if more == count else "None" if not more else f"{more:,}"
    surprise = "surprises" if more == 1 else "surprise"
    return (
        '<h2 id="surprising">The most surprising cases</h2>'
        "<p>Cases with the most nats beyond what the model expects, given how unsure it is. The darker an event, the "
        f"more it surprises; the framed one surprises most. Dashed events are not scored. {some} of these {count:,} "
        f"cases {surprise} more than expected.</p>{''.join(map(_case, made.surprising))}"
    )


def _case(one: SurprisingCase) -> str:
    happened = one.events[one.place].name
    expected = ", ".join(f"<b>{_named(name)}</b> ({_chance(chance)})" for name, chance in one.expected)
    items = [f'<li class="cut">{one.before:,} events before</li>'] if one.before else []
    for place, event in enumerate(one.events):
        here = "here" if place == one.place else "given" if event.nats is None else ""
        tip = "not scored" if event.nats is None else f"{event.nats:.2f} nats, expected {event.expected_nats:.2f}"
        heat = min(1.0, (event.nats or 0.0) / HOT)
        items.append(f'<li class="{here}" style="--w:{heat:.2f}" title="{tip}">{_named(event.name)}</li>')
    if one.after:
        items.append(f'<li class="cut">{one.after:,} events after</li>')
    copies = f", {one.copies:,} cases alike" if one.copies > 1 else ""
    return (
        f'<div class="case"><h3>{_named(one.name)}</h3><p class="note">{one.nats:.1f} nats, {one.expected_nats:.1f} '
        f"expected{copies}</p><p><b>{_named(happened)}</b> came, to which the model gave {_chance(one.chance)}. "
        f'Expected instead: {expected or "nothing else"}.</p><ol class="events">{"".join(items)}</ol></div>'
    )


def _chance(value: float) -> str:
    return percent(value) if value >= 0.01 else f"{100 * value:.2g}%" if value >= 1e-6 else "less than 0.0001%"


def _of_states(made: Explanation) -> dict[str, str]:
    first, second = made.states.shares
    rest = 1 - first - second
    return {
        "count": f"{len(made.states.places):,}",
        "first": percent(first),
        "second": percent(second),
        "most": f"; the other {percent(rest)} are not seen here" if rest > 0.005 else "",
    }
