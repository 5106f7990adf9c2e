"""The page of a comparison: one file that opens without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statewise.reporting.drawings import figure as drawing_figure
from statewise.reporting.overlays import overlay_figure
from statewise.reporting.plots import COLOURS, curve, panels
from statewise.reporting.star_graphs import draw

if TYPE_CHECKING:
    from statewise.reporting.compare import Comparison

TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>statewise: {{ labels | join(" / ") }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #2f3b4c; max-width: 1180px; margin: 2rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
p.note { color: #5d6878; margin: .2rem 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #e3e7ec; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } thead th { border-bottom: 2px solid #2f3b4c; }
.swatch { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .5em; }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(340px, 1fr)); gap: 1rem; }
.curves > div { min-width: 0; overflow: hidden; }
.graphs { display: flex; flex-wrap: wrap; gap: 1.2rem; } figure { margin: 0; text-align: center; }
figcaption { font-size: .85rem; color: #5d6878; } .right { color: #3f8f5b; } .wrong { color: #c8442f; }
code { background: #f2f4f7; padding: 0 .3em; border-radius: 3px; overflow-wrap: anywhere; }
</style></head><body>
<h1>{{ labels | join(" against ") }}</h1>
<p class="note">task {{ task }}; seeds {{ seeds }}</p>
<h2>Results</h2>
<div class="scroll"><table><thead><tr>{% for cell in header %}<th>{{ cell }}</th>{% endfor %}</tr></thead><tbody>
{% for row in rows %}{% set row_number = loop.index0 %}<tr>{% for cell in row %}<td>
{% if loop.first %}<span class="swatch" style="background: {{ colours[row_number] }}"></span>{% endif %}
{{ cell }}</td>{% endfor %}</tr>{% endfor %}</tbody></table></div>
{% for note in notes %}<p class="note">{{ note }}</p>{% endfor %}
{% if claims_rows %}<h2>Tests</h2>
<div class="scroll"><table><thead><tr>{% for cell in claims_header %}<th>{{ cell }}</th>{% endfor %}</tr></thead><tbody>
{% for row in claims_rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% for note in claims_notes %}<p class="note">{{ note }}</p>{% endfor %}{% endif %}
<h2>Curves</h2>
<div class="curves">{% for figure in figures %}<div>{{ figure | safe }}</div>{% endfor %}</div>
{% if overlays %}<h2>Analyses</h2>
<p class="note">Means over seeds; colours as in the table of results.</p>
<div class="curves">{% for figure in overlays %}<div>{{ figure | safe }}</div>{% endfor %}</div>{% endif %}
{% if drawings %}<h2>Drawings</h2>
<p class="note">Drag to move, scroll to come closer, point at a line to see its name.</p>
<div class="curves">{% for figure in drawings %}<div>{{ figure | safe }}</div>{% endfor %}</div>{% endif %}
{% if examples %}<h2>Examples</h2>
<p class="note">{{ legend }}</p>
{% for group in examples %}<h3>{{ group.label }}</h3>
<div class="graphs">{% for sample in group.samples %}<figure>{{ sample.svg | safe }}
<figcaption>{% if not sample.svg %}<code>{{ sample.prompt }}</code><br>{% endif %}
true {{ sample.truth }}<br><span class="{{ 'right' if sample.right else 'wrong' }}">predicted
{{ sample.predicted or "nothing" }}</span></figcaption></figure>{% endfor %}</div>{% endfor %}{% endif %}
<h2>Each run</h2>
<div class="scroll"><table><thead><tr>{% for cell in seeds_header %}<th>{{ cell }}</th>{% endfor %}</tr></thead><tbody>
{% for row in seeds_rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
<h2>What the recipes differ in</h2>
{% if differences %}<div class="scroll"><table><thead><tr><th>key</th>
{% for label in labels %}<th>{{ label }}</th>{% endfor %}</tr></thead><tbody>
{% for key, values in differences.items() %}<tr><td><code>{{ key }}</code></td>
{% for value in values %}<td>{{ "-" if value is none else value }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% else %}<p class="note">In nothing but the seed.</p>{% endif %}
<script>addEventListener("load", () => dispatchEvent(new Event("resize"))) // figures precede the full grid
</script></body></html>
"""


def page(comparison: Comparison) -> str:
    """The HTML. Raises `ValueError` if the extra `report` is not installed."""
    try:
        import jinja2
        import plotly.graph_objects as go
        import plotly.io
    except ImportError:
        raise ValueError("report.html needs the extra `report`: pip install 'statewise[report]'") from None
    figures: list[str] = []
    for title, kind, metric in panels(comparison):
        figure = _figure(go, comparison, title, kind, metric)
        # The library of the first figure serves all.
        figures.append(plotly.io.to_html(figure, full_html=False, include_plotlyjs=not figures,
                                         config={"displayModeBar": False, "responsive": True}))  # fmt: skip
    drawn_maps = [drawing_figure(drawing).update_layout(height=560, title_font_size=13, showlegend=False)
                  for drawing in comparison.drawings()]  # fmt: skip
    labels = [group.label for group in comparison.groups]
    overlays = [plotly.io.to_html(overlay_figure(go, overlay, labels), full_html=False, include_plotlyjs=False,
                                  config={"displayModeBar": False, "responsive": True})
                for overlay in comparison.overlays()]  # fmt: skip
    header, rows = comparison.table()
    seeds_header, seeds_rows = comparison.seeds_table()
    claims_header, claims_rows = comparison.claims_table()
    examples = _examples(comparison)
    drawn = any(sample["svg"] for group in examples for sample in group["samples"])
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(TEMPLATE)
    members = [member for group in comparison.groups for member in group.members]
    return template.render(
        labels=labels,
        task=members[0].recipe["task"]["name"],
        seeds=", ".join(map(str, sorted({member.seed for member in members}))),
        header=header, rows=rows, notes=comparison.notes(),
        claims_header=claims_header, claims_rows=claims_rows, claims_notes=comparison.claims_notes(),
        figures=figures, overlays=overlays,
        drawings=[plotly.io.to_html(one, full_html=False, include_plotlyjs=False, config={"scrollZoom": True})
                  for one in drawn_maps],
        examples=examples,
        legend="Broad green: the true path. Narrow: what the model answered, green where right, red where wrong, "
               "dashed where the graph has no such edge." if drawn else "Held-out prompts and what the model answered.",
        seeds_header=seeds_header, seeds_rows=seeds_rows, differences=comparison.differences,
        colours=[COLOURS[place % len(COLOURS)] for place in range(len(comparison.groups))],
    )  # fmt: skip


def _figure(go: Any, comparison: Comparison, title: str, kind: str, metric: str) -> Any:
    figure = go.Figure()
    for number, group in enumerate(comparison.groups):
        for order, (seed, steps, values) in enumerate(curve(group, kind, metric)):
            figure.add_scatter(
                x=steps, y=values, mode="lines+markers" if len(steps) < 60 else "lines", marker_size=4,
                line_color=COLOURS[number % len(COLOURS)],
                line_dash=("solid", "dash", "dot", "dashdot")[number // len(COLOURS) % 4],
                name=group.label, legendgroup=group.label,
                showlegend=order == 0,
                hovertemplate=f"{group.label}, seed {seed}<br>step %{{x}}: %{{y:.4f}}<extra></extra>",
            )  # fmt: skip
    if kind == "evaluation" and metric in comparison.chance:
        figure.add_hline(y=comparison.chance[metric], line_dash="dot", line_color="#888", annotation_text="chance")
    figure.update_layout(
        title={"text": title, "font_size": 14}, template="plotly_white", height=340, autosize=True,
        xaxis_title="training step",
        margin={"l": 50, "r": 15, "t": 45, "b": 45}, legend={"orientation": "h", "y": -0.25},
    )  # fmt: skip
    return figure


def _examples(comparison: Comparison) -> list[dict[str, Any]]:
    """Each group's first run's samples, drawn where they are graphs."""
    examples = []
    for group in comparison.groups:
        samples = [
            {**sample, "svg": draw(sample["graph"]) if "graph" in sample else "",
             "right": sample["truth"] == sample["predicted"]}
            for sample in group.members[0].report["samples"][:4]
        ]  # fmt: skip
        if samples:
            examples.append({"label": f"{group.label}, seed {group.members[0].seed}", "samples": samples})
    return examples
