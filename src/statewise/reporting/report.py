"""The report of a comparison: a folder with a self-contained web page, tables and plots."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from statewise.reporting.comparison import Comparison, letter_of
from statewise.reporting.drawings import (
    DRAWINGS_NOTE,
    DRAWINGS_STYLE,
    drawings_html,
    drawings_png,
    script,
    star_graph_svg,
)
from statewise.reporting.figures import STYLE, Look, Panel, small_multiples
from statewise.reporting.panels import (
    analysis_panels,
    drawings,
    learned,
    notes_without_mean,
    set_panels,
    sweep_panels,
    training_panels,
    verdicts,
)
from statewise.reporting.plots import CARRIED, MEANS, NO_GROUPS, SVG_STYLE, panel_svg, panels_png
from statewise.reporting.tables import number
from statewise.runtime import overwriting
from statewise.runtime.durable import write_all

TEMPLATE = """{% set key %}{% if coloured and labels | length > 1 %}<p class="note">
{% for label in labels %}<span class="key"><span class="swatch" style="background: {{ colours[loop.index0] }}"></span>
{{ label }}</span> {% endfor %}</p>{% endif %}{% endset %}{% macro grid(figures) %}<div class="curves">
{% for title, figure in figures %}<div>{% if title %}<h3>{{ title }}</h3>{% endif %}{{ figure | safe }}</div>
{% endfor %}
</div>{% endmacro %}<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>statewise: {{ labels | join(" / ") }}</title>
<style>{{ style | safe }}
th, td { text-align: right; }
th:first-child, td:first-child { text-align: left; }
table.text td, table.text th { text-align: left; white-space: normal; vertical-align: top; }
table.text td { overflow-wrap: anywhere; }
table.text .number { text-align: right; overflow-wrap: normal; } table.text td.number { white-space: nowrap; }
.number ~ td:not(.number) { min-width: 9.5rem; }
.swatch { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .5em; }
.key { display: inline-block; margin-right: 1.2em; }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); gap: 1rem;
  align-items: end; }
.curves > div { min-width: 0; overflow: hidden; }
.graphs { display: grid; grid-template-columns: repeat(auto-fill, minmax(140px, 1fr)); gap: .8rem; }
figure { margin: 0; } .graphs figure { text-align: center; }
.graphs svg { width: 100%; height: auto; max-width: 190px; }
figcaption { font-size: .8rem; color: var(--soft); overflow-wrap: anywhere; }
.right { color: var(--right); } .wrong { color: var(--wrong); }
</style></head><body>
<h1>{{ labels | join(" vs. ") }}</h1>
{% if finding %}<p class="finding">{{ finding }}</p>{% endif %}
{% for sentence in learned %}<p>{{ sentence }}</p>{% endfor %}
<p class="note">task {{ task }}; seeds {{ seeds }}</p>
<h2>Results</h2>
<div class="scroll"><table><thead><tr>{% for cell in header %}<th>{{ cell }}</th>{% endfor %}</tr></thead><tbody>
{% for row in rows %}{% set colour = colours[loop.index0] %}<tr>{% for cell in row %}<td>
{% if loop.first and coloured %}<span class="swatch" style="background: {{ colour or "none" }}"></span>{% endif %}
{{ cell }}</td>{% endfor %}</tr>{% endfor %}</tbody></table></div>
{% for note in notes %}<p class="note">{{ note }}</p>{% endfor %}
{% if claims_rows %}<h2>Tests</h2>
<div class="scroll"><table><thead><tr>{% for cell in claims_header %}<th>{{ cell }}</th>{% endfor %}</tr></thead><tbody>
{% for row in claims_rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% for note in claims_notes %}<p class="note">{{ note }}</p>{% endfor %}{% endif %}
{% if matches_rows %}<h2>Tokens to match</h2>
<div class="scroll"><table>
<thead><tr>{% for cell in matches_header %}<th>{{ cell }}</th>{% endfor %}</tr></thead><tbody>
{% for row in matches_rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% for note in matches_notes %}<p class="note">{{ note }}</p>{% endfor %}{% endif %}
{% if sweep %}<h2>By {{ sweep_over }}</h2>
<p class="note">Means over seeds; bands: range over runs; thin lines: groups with a single value.</p>
{{ grid(sweep) }}{% endif %}
<h2>Curves</h2>
<p class="note">{{ curves_note }}</p>
{{ key }}
{% for note in without_mean %}<p class="note">{{ note }}</p>{% endfor %}
{{ grid(figures) }}
{% if analyses or verdicts %}<h2>Analyses</h2>
{% for verdict in verdicts %}<p>{{ verdict }}</p>{% endfor %}{% endif %}
{% if analyses %}
<p class="note">{{ curves_note }}</p>
{{ key }}
{{ grid(analyses) }}{% endif %}
{% if drawings %}<h2>Drawings</h2>
<p class="note">{{ drawings_note }}</p>
{{ drawings | safe }}{% endif %}
{% if graphs %}<h2>Examples</h2>
<p class="note">Wide green line: the true path. Narrow line and rings: the model's answer, green where correct, red
where wrong, a dashed arc where the graph has no such edge, a dashed loop where a node is repeated.</p>
{% for label, samples in graphs.items() %}{% set right = samples | selectattr("right") | list | length %}
<h3>{{ label }}: {{ right }} of these {{ samples | length }} right{{ of_all[label] }}</h3>
<div class="graphs">{% for sample in samples %}<figure>{{ sample.svg | safe }}
<figcaption>true {{ sample.truth }}<br><span class="{{ 'right' if sample.right else 'wrong' }}">predicted
{{ sample.predicted or "nothing" }}</span></figcaption></figure>{% endfor %}</div>{% endfor %}{% endif %}
{% for title, note, groups in answers %}<h2>{{ title }}</h2>
<p class="note">{{ note }}</p>
{% for label, samples in groups.items() %}<h3>{{ label }}</h3>
<div class="scroll"><table class="text">
<thead><tr><th>given</th><th>true</th><th>predicted</th></tr></thead><tbody>
{% for sample in samples %}<tr><td>{{ sample.prompt }}</td><td>{{ sample.truth }}</td><td>
<span class="right">{{ sample.agreed }}</span><span class="wrong">{{ sample.rest }}</span></td></tr>
{% endfor %}</tbody></table></div>{% endfor %}{% endfor %}
{% for title, groups in extremes %}<h2>{{ title }}</h2>
<p class="note">Held-out sequences by nats per scored token; long ones are truncated. Copies: how often the held-out set
has the sequence.</p>
{% for label, found in groups.items() %}<h3>{{ label }}</h3>
<div class="scroll"><table class="text">
<thead><tr><th class="number">nats per token</th><th class="number">scored tokens</th><th class="number">copies</th>
<th>sequence</th></tr></thead><tbody>
{% for one in found %}<tr><td class="number">{{ "%.4f" % one.nats_per_token }}</td>
<td class="number">{{ one.tokens }}</td><td class="number">{{ one.copies }}</td><td>{{ one.text }}</td></tr>
{% endfor %}</tbody></table></div>{% endfor %}{% endfor %}
<h2>Each run</h2>
<div class="scroll"><table><thead><tr>{% for cell in seeds_header %}<th>{{ cell }}</th>{% endfor %}</tr></thead><tbody>
{% for row in seeds_rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
<p class="note">To repeat a run, in the directory where it was trained:</p>
{% for command in commands %}<p class="note"><code>{{ command }}</code></p>{% endfor %}
<h2>Differences between the recipes</h2>
{% for letter, label in letters.items() %}<p class="note">{{ letter }}: {{ label }}</p>{% endfor %}
{% if differences %}<div class="scroll"><table><thead><tr><th>key</th>
{% for label in letters or labels %}<th>{{ label }}</th>{% endfor %}</tr></thead><tbody>
{% for key, values in differences.items() %}<tr><td><code>{{ key }}</code></td>
{% for value in values %}<td>{{ "-" if value is none else value }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% else %}<p class="note">Only the seed.</p>{% endif %}
{% if drawings %}<script>{{ script | safe }}</script>{% endif %}
</body></html>
"""

COLOURS_NOTE = "Colours as in the results table."
MOST_COLOURS = 8
"""With more groups, the page does not name groups by their colours."""
GRAPHS, TEXTS = 12, 4
"""Number of examples of each group: drawn, and as text."""
LONG = 80
"""If the labels of groups are longer together, letters take their place as heads of columns."""


def page(comparison: Comparison) -> str:
    """The web page as HTML."""
    import jinja2

    looks = comparison.looks()
    labels = list(looks)

    def figures(panels: Sequence[Panel], groups: Mapping[str, Look] = looks) -> list[tuple[str, str]]:
        """Titles and figures."""
        multiples = [multiple for panel in panels for multiple in small_multiples(panel)]
        return [(panel.title, panel_svg(panel, groups)) for panel in multiples]

    header, rows = comparison.table()
    seeds_header, seeds_rows = comparison.seeds_table()
    claims_header, claims_rows = comparison.claims_table()
    matches_header, matches_rows = comparison.matches_table()
    trained, analysed = training_panels(comparison), [*set_panels(comparison), *analysis_panels(comparison)]
    samples, swept = _entries(comparison, "samples", GRAPHS), sweep_panels(comparison)
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(TEMPLATE)
    members = [member for group in comparison.groups for member in group.members]
    several = len(members) > len(comparison.groups)
    coloured = len(labels) <= MOST_COLOURS  # else groups look alike, and each has plots of its own, titled with it
    drawn = drawings(comparison)
    panels = [*trained, *analysed]
    return template.render(
        labels=labels,
        task=members[0].recipe["task"]["name"],
        seeds=", ".join(map(str, sorted({member.seed for member in members}))),
        style=STYLE + DRAWINGS_STYLE + SVG_STYLE,
        finding=comparison.finding(),
        learned=learned(comparison),
        curves_note=" ".join(
            [
                *[COLOURS_NOTE] * coloured,
                *[MEANS] * several,
                *[CARRIED] * any(curve.carried is not None for panel in panels for curve in panel.curves),
            ]
        ),
        header=header,
        rows=rows,
        notes=comparison.notes(),
        claims_header=claims_header,
        claims_rows=claims_rows,
        claims_notes=comparison.claims_notes(),
        matches_header=matches_header,
        matches_rows=matches_rows,
        matches_notes=comparison.matches_notes(),
        sweep=figures(swept, NO_GROUPS),
        sweep_over=swept[0].x_title if swept else "",
        figures=figures(trained),
        analyses=figures(analysed),
        verdicts=verdicts(comparison),
        without_mean=notes_without_mean([*trained, *analysed]),
        drawings=drawings_html(drawn) if drawn else "",
        drawings_note=DRAWINGS_NOTE,
        script=script(),
        graphs=_mapped(samples, _with_graph),
        of_all=_headlines_on_all(comparison),
        answers=[
            (title, note, entries)
            for title, note, entries in (
                (
                    "Examples",
                    "Held-out prompts and the model's answers.",
                    _mapped(_entries(comparison, "samples", TEXTS), _with_agreement),
                ),
                (
                    "Continuations",
                    "Held-out sequences, cut, and the continuations: green until they first differ.",
                    _mapped(_entries(comparison, "continuations", 6), _with_agreement),
                ),
            )
            if entries
        ],
        extremes=[
            (title, entries)
            for title, name in (("Hardest sequences", "hardest"), ("Easiest sequences", "easiest"))
            if (entries := _entries(comparison, name, 5))
        ],
        commands=[member.repeat for member in members],
        seeds_header=seeds_header,
        seeds_rows=seeds_rows,
        differences=comparison.differences,
        letters={letter_of(place): label for place, label in enumerate(labels)} if len("".join(labels)) > LONG else {},
        coloured=coloured,
        colours=[look.colour for look in looks.values()] + [""] * len(comparison.baselines),
    )


Entries = dict[str, list[dict[str, Any]]]
"""Entries of one kind in the report of each group's first run, by group and seed."""


def _headlines_on_all(comparison: Comparison) -> dict[str, str]:
    """Texts with the headline metric of each group's first run on all held-out examples."""
    metric, num = comparison.headline.metric, comparison.groups[0].members[0].report["num"]
    words = metric.replace("_", " ")
    return {
        f"{group.label}, seed {member.seed}": f"; {words} on all {num:,}: {number(float(member.metrics[metric]))}"
        for group in comparison.groups
        for member in group.members[:1]
    }


def _entries(comparison: Comparison, kind: str, few: int) -> Entries:
    firsts = {f"{group.label}, seed {group.members[0].seed}": group.members[0] for group in comparison.groups}
    return {label: entries for label, member in firsts.items() if (entries := member.report.get(kind, [])[:few])}


def _mapped(kept: Entries, made: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Entries:
    """Entries mapped by `made`, without those for which it returns None."""
    mapped = {label: [one for sample in samples if (one := made(sample))] for label, samples in kept.items()}
    return {label: samples for label, samples in mapped.items() if samples}


def _with_graph(sample: dict[str, Any]) -> dict[str, Any] | None:
    right = sample["truth"] == sample["predicted"]
    return {**sample, "svg": star_graph_svg(sample["graph"]), "right": right} if "graph" in sample else None


def _with_agreement(sample: dict[str, Any]) -> dict[str, Any] | None:
    """Splits the prediction into the prefix that agrees with the truth, and the rest."""
    if "graph" in sample:
        return None
    agreed = _agreed(sample["truth"], sample["predicted"])
    rest = sample["predicted"][len(agreed) :]
    return {**sample, "agreed": agreed, "rest": rest if sample["predicted"] else "nothing"}


def _agreed(truth: str, predicted: str) -> str:
    """The common prefix of two texts, in whole words if they have words."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(truth, predicted))
    common = "".join(letter for letter, _ in same)
    after = truth[len(common) : len(common) + 1] + predicted[len(common) : len(common) + 1]
    if not after.strip() or " " not in truth + predicted:
        return common
    return common[: common.rfind(" ") + 1]


FILES = ("report.json", "table.md", "curves.png", "sweep.png", "analyses.png", "drawings.png", "report.html")
"""All files of a report, as patterns of `statewise.runtime.overwriting`."""
SIGNS = {"report.json": overwriting.json_with("headline", "differences", "groups")}
"""How a report is recognised."""


def claimed(folder: Path, overwrite: bool) -> AbstractContextManager[Path]:
    """A claim on a report in `folder` (`statewise.runtime.overwriting`), and the place for its files, which are one
    unit. Raises `FileExistsError` unless `folder` is empty or missing, or with `overwrite` holds only a report."""

    def check() -> None:
        overwriting.check_folder(folder, FILES, SIGNS, "report", overwrite)

    return overwriting.claimed_files(folder, FILES, check, overwrite)


def write_report(comparison: Comparison, folder: Path, overwrite: bool = False) -> list[Path]:
    """Writes the report into `folder` and returns the paths; report.html is last.

    An earlier report stays whole if this one cannot be written. Raises what `claimed` raises.
    """
    with claimed(folder, overwrite) as scratch:
        groups = comparison.looks()
        analysed = [*set_panels(comparison), *analysis_panels(comparison)]
        drawn, swept = drawings(comparison), sweep_panels(comparison)
        content = {
            "report.json": comparison.as_json().encode(),
            "table.md": comparison.as_markdown().encode(),
            "curves.png": panels_png(training_panels(comparison), groups),
            "sweep.png": panels_png(swept) if swept else None,
            "analyses.png": panels_png(analysed, groups) if analysed else None,
            "drawings.png": drawings_png(drawn) if drawn else None,
            "report.html": page(comparison).encode(),
        }
        files = {name: made for name, made in content.items() if made is not None}
        write_all({scratch / name: made for name, made in files.items()})
    return [folder / name for name in files]
