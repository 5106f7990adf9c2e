"""The table and the page of a suite, from the runs that its folder holds."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from statewise.data_types import Headline
from statewise.reporting.comparison import Ranked, finding
from statewise.reporting.figures import STYLE, objective_colour
from statewise.reporting.members import read_evaluation
from statewise.reporting.statistics import out_of, significantly_different, summarise
from statewise.reporting.tables import Rows, markdown_table, markdown_text, number, spread
from statewise.run import Run
from statewise.runtime.json_files import ANYTHING, MEASURED, TEXT, Maybe, Shape, check, printable
from statewise.runtime.messages import counted

METRICS: Shape = {...: Maybe(MEASURED)}
"""Metrics in any report of a run."""
DECODER: Shape = {"name": TEXT, ...: ANYTHING}
"""Decoder of an evaluation that did not decode greedily."""
OTHER_DATA = "data differ"
"""Shown in place of a mean over runs on different data."""
State = Literal["finished", "failed", "not finished", "not started"]


@dataclass(frozen=True)
class SuiteRun:
    """One run of a suite."""

    recipe: str
    objective: str
    backbone: str
    seed: int
    folder: str
    state: State
    message: str
    """Why it failed; empty if it did not."""
    headline: Headline | None
    """None unless finished."""
    metrics: dict[str, float]
    """Metrics of the evaluation on the held-out examples, and of the reports that the suite's own commands wrote on the
    same checkpoint. If several have a metric of one name, that of the evaluation counts, then that of the first
    command."""
    minutes: float | None
    """Minutes of training; None unless finished."""
    data: str = ""
    """Equal for runs on the same task and data; empty unless finished."""

    @classmethod
    def failed(cls, names: tuple[str, str, str], seed: int, folder: Path, message: str) -> SuiteRun:
        """A run without figures."""
        return cls(*names, seed, str(folder), "failed", message, None, {}, None)

    @classmethod
    def read(
        cls,
        names: tuple[str, str, str],
        seed: int,
        folder: Path,
        finished: bool,
        message: str,
        wanted: Mapping[str, Mapping[str, Any] | None],
    ) -> SuiteRun:
        """The run in `folder`, whose training and further commands have `finished`; with a `message` it failed, but if
        it was trained it has its figures. `wanted`: names of the reports that the commands write; of analyses with
        their settings, as the same may have been made since with others. Raises `ValueError` for damaged reports."""
        run = Run(folder)
        state: State = "failed" if message else "not finished" if run.exists() else "not started"
        records = run.metrics() if run.exists() else []
        evaluation = read_evaluation(run) if run.exists() and run.complete(records) else None
        if evaluation is None:
            return cls(*names, seed, str(folder), state, message, None, {}, None)
        metrics: dict[str, float] = {}
        for name, settings in reversed(list(wanted.items())):
            content, where = run.report(name) or {}, str(run.reports_folder / f"{name}.json")
            same = settings is None or content.get("settings") == json.loads(json.dumps(settings))
            if same and content.get("checkpoint") == evaluation["checkpoint"] and "metrics" in content:
                reported = check(content["metrics"], METRICS, where, "metrics")
                other = check(content.get("decoder", {"name": ""}), DECODER, where, "decoder")["name"]
                by = f"_decoder_{other}" if other else ""
                metrics |= {f"{key}{by}": value for key, value in reported.items() if value is not None}
        metrics |= evaluation["metrics"]
        end = run.end(records) or {}
        identity = json.dumps([run.recipe()["task"], run.data_identity()], sort_keys=True)
        data = hashlib.sha256(identity.encode()).hexdigest()[:16]
        minutes, headline = float(end.get("seconds", 0.0)) / 60, Headline.of(evaluation["headline"])
        if finished:
            state, message = "finished", ""
        return cls(*names, seed, str(folder), state, message, headline, metrics, minutes, data)

    @property
    def value(self) -> float | None:
        """Value of the headline metric; None unless it is finite."""
        return self.number(self.headline.metric) if self.headline else None

    def number(self, metric: str) -> float | None:
        """Value of a metric, or of `minutes`; None unless the run has it and it is finite."""
        value = self.metrics.get(metric, math.nan)
        if metric == "minutes" and metric not in self.metrics and self.minutes is not None:
            value = self.minutes
        return value if math.isfinite(value) else None


@dataclass(frozen=True)
class SuiteReport:
    """All runs of a suite, in its order."""

    title: str
    about: str
    runs: list[SuiteRun]
    shown: Mapping[str, str]
    """Metrics shown beside the headline, each with a description, which may be empty."""

    @property
    def found(self) -> dict[str, str]:
        """The metrics that are shown and that some run has."""
        return {name: words for name, words in self.shown.items() if any(name in run.metrics for run in self.runs)}

    def cells(self) -> dict[tuple[str, str, str], list[SuiteRun]]:
        """Runs that differ in the seed alone, by recipe, objective and backbone."""
        cells: dict[tuple[str, str, str], list[SuiteRun]] = {}
        for run in self.runs:
            cells.setdefault((run.recipe, run.objective, run.backbone), []).append(run)
        return cells

    def table(self) -> tuple[list[str], Rows]:
        """Header and rows: one row per recipe, objective and backbone."""
        first = ["recipe", "backbone", "objective", "runs", "failed", "metric", "mean", "solved"]
        rows = []
        for (recipe, objective, backbone), runs in self.cells().items():
            done = [run for run in runs if run.headline is not None]
            failed = sum(run.state == "failed" for run in runs)
            metric = done[0].headline.metric if done and done[0].headline else "-"
            others = [mean_of(done, name) for name in self.found]
            minutes = f"{sum(run.minutes or 0.0 for run in done) / len(done):.1f}" if done else "-"
            rows.append(
                [
                    recipe,
                    backbone,
                    objective,
                    f"{len(done)}/{len(runs)}",
                    str(failed),
                    metric,
                    mean_of(done, metric),
                    solved(done),
                    *others,
                    minutes,
                ]
            )
        return [*first, *self.found, "minutes"], rows

    def runs_table(self) -> tuple[list[str], Rows]:
        """Header and rows: one row per run."""
        header = ["recipe", "backbone", "objective", "seed", "state", "message", "metric", "value", "minutes", "run"]
        folder = self._folder()
        rows = [
            [
                run.recipe,
                run.backbone,
                run.objective,
                str(run.seed),
                run.state,
                run.message,
                run.headline.metric if run.headline else "-",
                number(run.value),
                "-" if run.minutes is None else f"{run.minutes:.1f}",
                os.path.relpath(run.folder, folder) if folder else run.folder,
            ]
            for run in self.runs
        ]
        return header, rows

    def _folder(self) -> str:
        """The common folder of all runs, or an empty text."""
        parents = [str(Path(run.folder).parent) for run in self.runs]
        try:
            return os.path.commonpath(parents)
        except ValueError:  # no runs, or folders of which some are absolute
            return ""

    def notes(self) -> list[str]:
        """Sentences that explain the table."""
        missing = [name for name in self.shown if name not in self.found]
        counts = {
            state: sum(run.state == state for run in self.runs)
            for state in ("finished", "failed", "not finished", "not started")
        }
        return [
            ", ".join(f"{counted(count, 'run')} {state}" for state, count in counts.items() if count) + ".",
            "mean: of the task's headline metric over the trained runs, with the 95% confidence interval of the mean "
            "over seeds (Student's t). solved: runs that reach the task's threshold, with Wilson's 95% interval "
            "of their share.",
            *(f"{name}: {words}." for name, words in self.found.items() if words),
            *self._of_different_data(),
            *([f"No run has {' or '.join(missing)}."] if missing and counts["finished"] else []),
        ]

    def _of_different_data(self) -> list[str]:
        """Notes on combinations whose seeds were trained on different data, as after a change of the task's file."""
        notes = []
        for (recipe, objective, backbone), runs in self.cells().items():
            trained = [run for run in runs if run.headline is not None]
            others = [run.seed for run in trained if run.data != trained[0].data]
            if others:
                listed = ", ".join(map(str, others))
                notes.append(
                    f"{recipe}/{objective}-{backbone}: the data of seed {listed} differ from those of seed "
                    f"{trained[0].seed}, so there is no mean: train them again on the same data."
                )
        return notes

    def as_markdown(self) -> str:
        """Both tables."""
        title, about = markdown_text(self.title), markdown_text(self.about)
        parts = [f"# {title}", about, markdown_table(*self.table()), "\n".join(map(markdown_text, self.notes()))]
        runs = [markdown_table(*self.runs_table()), markdown_text(self._runs_note())]
        return "\n\n".join(part for part in [*parts, *runs] if part) + "\n"

    def _runs_note(self) -> str:
        """Says in which folder the runs of `runs_table` are."""
        folder = self._folder()
        return f"Folders of runs are in {folder}." if folder else ""

    def as_json(self) -> str:
        """Every run as data."""
        content = {"title": self.title, "runs": [asdict(run) for run in self.runs]}
        return printable(content) + "\n"

    def as_html(self) -> str:
        """One self-contained page: a table of objectives by backbones for each recipe, then every run."""
        import jinja2

        recipes = list(dict.fromkeys(run.recipe for run in self.runs))
        sections = [(recipe, self._tables(recipe)) for recipe in recipes]
        header, rows = self.runs_table()
        template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(PAGE)
        return template.render(
            title=self.title,
            findings=self.findings(),
            about=self.about,
            notes=self.notes(),
            sections=sections,
            header=header,
            rows=rows,
            runs_note=self._runs_note(),
            style=STYLE,
        )

    def findings(self) -> dict[str, str]:
        """The result by the headline metric in one sentence, by recipe: `statewise.reporting.comparison.finding` over
        all combinations that have a mean. Recipes whose combinations were trained on different data have none."""
        found = {}
        for recipe in dict.fromkeys(run.recipe for run in self.runs):
            cells = {names[1:]: runs for names, runs in self.cells().items() if names[0] == recipe}
            one = [len({names[place] for names in cells}) == 1 for place in (0, 1)]
            ranked, data, headline = [], set(), None
            for (objective, backbone), runs in cells.items():
                done = [run for run in runs if run.headline is not None]
                values = {run.seed: value for run in done if (value := run.value) is not None}
                if not done or len(values) < len(done):
                    continue
                headline = done[0].headline
                data |= {run.data for run in done}
                label = backbone if one[0] and not one[1] else objective if one[1] else f"{objective} on {backbone}"
                solvable = headline is not None and headline.solved_at is not None
                count = sum(headline is not None and headline.solved(value) for value in values.values())
                ranked.append(Ranked(label, summarise(values, None), count if solvable else None))
            if headline is not None and len(data) == 1:
                found[recipe] = finding(ranked, headline, None)
        return found

    def _tables(self, recipe: str) -> list[dict[str, Any]]:
        """Tables of the headline metric, and of each other shown metric that some run has."""
        runs = [run for run in self.runs if run.recipe == recipe]
        headline = next((run.headline for run in runs if run.headline), None)
        had = [name for name in self.shown if any(run.number(name) is not None for run in runs)]
        first = headline.metric if headline else ""
        return [self._table_of(recipe, metric, headline) for metric in dict.fromkeys([first, *had])]

    def _table_of(self, recipe: str, metric: str, headline: Headline | None) -> dict[str, Any]:
        """A table of objectives by backbones."""
        cells = {names[1:]: runs for names, runs in self.cells().items() if names[0] == recipe}
        objectives, backbones = (list(dict.fromkeys(names[place] for names in cells)) for place in (0, 1))
        values = [value for runs in cells.values() for run in runs if (value := run.number(metric)) is not None]
        ranks = headline is not None and headline.metric == metric
        by_data: dict[str, dict[tuple[str, str], list[float]]] = {}
        for names, runs in cells.items():
            done = [run for run in runs if run.headline is not None]
            finite_ones = [value for run in done if (value := run.number(metric)) is not None]
            one_data = len({run.data for run in done}) == 1
            if finite_ones and one_data and len(finite_ones) == len(done):  # else the cell shows no mean
                by_data.setdefault(done[0].data, {})[names] = finite_ones
        best: set[tuple[str, str]] = set()
        if headline is not None and ranks:  # losses on different data do not rank models
            best = best.union(*(leading(groups, headline.higher_is_better) for groups in by_data.values()))
        rows = []
        for objective in objectives:
            shown = []
            for backbone in backbones:
                runs = cells.get((objective, backbone), [])
                done = [run for run in runs if run.headline is not None]
                failed = sum(run.state == "failed" for run in runs)
                shown.append(
                    {
                        "text": mean_of(done, metric) if runs else "left out",
                        "solved": solved(done) if ranks else "-",
                        "failed": failed if ranks else 0,
                        "best": (objective, backbone) in best,
                        "dots": dots(
                            [value for run in done if (value := run.number(metric)) is not None],
                            values,
                            objective_colour(objective.partition(" ")[0]),
                        ),
                    }
                )
            rows.append((objective, shown))
        words = self.shown.get(metric)
        name = f"{metric}: {words}" if words else metric
        what = (
            "no finished run"
            if headline is None
            else (f"{name}, {'higher' if headline.higher_is_better else 'lower'} is better" if ranks else name)
        )
        if best:
            what += "; bold: the best mean, and each that does not differ from it significantly"
            what += ", of the backbones on the same data" if len(by_data) > 1 else ""
        if len(set(values)) > 1:
            what += f"; dots: seeds, from {number(min(values))} (left) to {number(max(values))} (right)"
        return {"backbones": backbones, "rows": rows, "what": what}


def leading(groups: Mapping[tuple[str, str], Sequence[float]], higher_is_better: bool) -> set[tuple[str, str]]:
    """The group with the best mean, and those that do not differ from it significantly: Welch's two-sided t-test with
    p of at least 0.05, not adjusted for the number of groups. Groups of one seed are left out. Empty if all groups
    would be in it."""
    if not groups:
        return set()
    best = (max if higher_is_better else min)(groups.values(), key=mean)
    leaders = {
        names for names, values in groups.items() if len(values) > 1 and not significantly_different(values, best)
    }
    return leaders if len(best) > 1 and len(leaders) < len(groups) else set()


def mean_of(runs: Sequence[SuiteRun], metric: str) -> str:
    """The mean of a metric over runs, with half the width of its interval; a dash where no run has it, and no mean of
    runs on different data."""
    if len({run.data for run in runs}) > 1:
        return OTHER_DATA
    values = {run.seed: run.metrics[metric] for run in runs if metric in run.metrics}
    if not values:
        return "-"
    summary = summarise(values, None)
    return spread(summary.mean, summary.interval)


def solved(runs: Sequence[SuiteRun]) -> str:
    """How many runs solved their task; a dash where it has no threshold."""
    if not runs or runs[0].headline is None or runs[0].headline.solved_at is None:
        return "-"
    count = sum(run.headline.solved(run.value) for run in runs if run.headline and run.value is not None)
    return out_of(count, len(runs))


def dots(values: Sequence[float], scale: Sequence[float], colour: str) -> str:
    """An SVG strip with a dot of this colour for each value, on the common scale; empty if all values are equal."""
    if not values or min(scale) == max(scale):
        return ""
    low, span = min(scale), max(scale) - min(scale)
    marks = "".join(f'<circle cx="{6 + 108 * (value - low) / span:.1f}" cy="7" r="3.5"/>' for value in values)
    line = '<line x1="6" y1="7" x2="114" y2="7"/>'
    return f'<svg width="120" height="14" fill="{colour}" aria-hidden="true">{line}{marks}</svg>'


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>statewise: {{ title }}</title>
<style>{{ style | safe }}
h2 { margin-bottom: .4rem; } .scroll + p.note { margin-top: 1.2rem; }
th, td { padding: .3rem .6rem; text-align: left; }
.best { font-weight: 600; } .failed { color: var(--wrong); }
.number { text-align: right; } td.message { white-space: normal; min-width: 16rem; overflow-wrap: anywhere; }
svg { display: block; } svg line { stroke: var(--soft); stroke-opacity: .5; } svg circle { fill-opacity: .75; }
.scroll td:first-child, .scroll th:first-child { position: sticky; left: 0; background: var(--back); }
small { color: var(--soft); display: block; } td.run { white-space: normal; overflow-wrap: anywhere; min-width: 12rem; }
</style></head><body>
<h1>{{ title }}</h1>
{% for recipe, text in findings.items() %}<p class="finding">{% if findings | length > 1 %}<b>{{ recipe }}</b>:
{% endif %}{{ text }}</p>{% endfor %}
{% if about %}<p>{{ about }}</p>{% endif %}
{% for note in notes %}<p class="note">{{ note }}</p>{% endfor %}
{% for recipe, tables in sections %}<h2>{{ recipe }}</h2>
{% for section in tables %}<p class="note">{{ section.what }}</p>
<div class="scroll"><table>
<thead><tr><th>objective</th>{% for name in section.backbones %}<th>{{ name }}</th>{% endfor %}</tr></thead><tbody>
{% for objective, cells in section.rows %}<tr><td>{{ objective }}</td>{% for cell in cells %}<td>
<span{% if cell.best %} class="best"{% endif %}>{{ cell.text }}</span>
{% if cell.solved != "-" %}<small>solved {{ cell.solved }}</small>{% endif %}
{% if cell.failed %}<span class="failed">{{ cell.failed }} failed</span>{% endif %}
{{ cell.dots | safe }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>{% endfor %}{% endfor %}
<h2>Each run</h2>
{% set kinds = {"seed": "number", "value": "number", "minutes": "number"} %}
<div class="scroll"><table><thead><tr>{% for name in header %}<th class="{{ kinds.get(name, "") }}">{{ name }}</th>
{% endfor %}</tr></thead><tbody>
{% for row in rows %}{% set failed = row[4] == "failed" %}<tr{% if failed %} class="failed"{% endif %}>
{% for cell in row %}{% set name = header[loop.index0] %}
{% set long = name == "run" or name == "message" and cell %}
<td class="{{ kinds.get(name, "") }}{% if long %}{{ name }}{% endif %}">{{ cell }}</td>
{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% if runs_note %}<p class="note">{{ runs_note }}</p>{% endif %}
</body></html>
"""
