"""The pictures of a suite: a dot for each run, curves over seeds, and drawings of analyses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean

from statewise.reporting.comparison import Comparison
from statewise.reporting.drawings import drawings_png
from statewise.reporting.figures import is_share, objective_colour
from statewise.reporting.panels import analysis_panels, drawings, training_panels
from statewise.reporting.plots import fitted, panels_png, plain_text, png
from statewise.reporting.statistics import out_of, summarise
from statewise.reporting.suite import SuiteReport, SuiteRun

Compare = Callable[[Sequence[str | Path]], Comparison]
"""Compares the runs in these folders, with all their analyses."""


def picture_files(
    report: SuiteReport, compare: Compare, metrics: Sequence[str], curves: Sequence[str], with_drawings: bool
) -> tuple[dict[str, bytes], list[str]]:
    """The contents of the files of a picture, by the end of their name, and notes on what it cannot show.

    `.md`: the tables of `report`, whose runs are those of the picture. `.png`: the `metrics`, a dot for each run.
    `-RECIPE.png`: panels of `compare` whose titles contain one of `curves`. `-RECIPE-drawings.png`: drawings of each
    combination's first run. Files without anything to show are left out."""
    files, notes = {".md": report.as_markdown().encode()}, []
    shown = [name for name in metrics if any(run.number(name) is not None for run in report.runs)]
    notes += [f"no run has {name}" for name in metrics if name not in shown]
    if shown:
        files[".png"] = dots_png(report, shown)
    for recipe in dict.fromkeys(run.recipe for run in report.runs) if curves or with_drawings else ():
        folders = [run.folder for run in report.runs if run.recipe == recipe and run.headline is not None]
        try:
            compared = compare(folders)
        except (ValueError, OSError) as error:
            notes.append(f"{recipe}: {error}")
            continue
        panels = [
            panel
            for panel in [*training_panels(compared), *analysis_panels(compared)]
            if any(text in panel.title for text in curves) and panel.curves
        ]
        if panels:
            files[f"-{recipe}.png"] = panels_png(panels, compared.looks(), report.title)
        elif curves:
            notes.append(f"{recipe}: no panel of all its runs is called {' or '.join(curves)}")
        drawn = drawings(compared) if with_drawings else []
        if drawn:
            files[f"-{recipe}-drawings.png"] = drawings_png(drawn, report.title)
        elif with_drawings:
            notes.append(f"{recipe}: not all its runs have a drawing")
    return files, notes


@plain_text
def dots_png(report: SuiteReport, metrics: Sequence[str]) -> bytes:
    """A PNG with a row of plots for each recipe and a column for each metric: a line for each objective and backbone,
    with a dot for each run, the mean, its 95% interval, and how many runs are solved. What all lines have in common is
    not in their names."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    recipes: dict[str, dict[str, list[SuiteRun]]] = {}
    objectives, backbones = ({names[part] for names in report.cells()} for part in (1, 2))
    for (recipe, objective, backbone), runs in report.cells().items():
        name = f"{objective}, {backbone}"
        if len(objectives) == 1 < len(backbones):
            name = backbone
        elif len(backbones) == 1:
            name = objective
        recipes.setdefault(recipe, {})[name] = runs
    columns = {
        recipe: [
            name for name in metrics if any(run.number(name) is not None for runs in cells.values() for run in runs)
        ]
        for recipe, cells in recipes.items()
    }
    recipes = {recipe: cells for recipe, cells in recipes.items() if columns[recipe]}
    across, heights = max(map(len, columns.values())), [0.9 + 0.34 * len(cells) for cells in recipes.values()]
    figure = Figure(figsize=(1.6 + 3.4 * across, 0.4 + sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(len(recipes), across, height_ratios=heights)
    for row, (recipe, cells) in enumerate(recipes.items()):
        for column, metric in enumerate(columns[recipe]):
            axes = figure.add_subplot(grid[row, column])
            _draw_dots(axes, cells, metric)
            axes.set_title(fitted(recipe, 3.0, 11) if column == 0 else "", fontsize=11, loc="left")
            axes.set_yticks(range(len(cells)), list(cells) if column == 0 else [""] * len(cells), fontsize=9)
    figure.suptitle(fitted(report.title, figure.get_size_inches()[0] * 0.95, 11), fontsize=11)
    return png(figure)


def _draw_dots(axes: object, cells: Mapping[str, Sequence[SuiteRun]], metric: str) -> None:
    from matplotlib.axes import Axes
    from matplotlib.ticker import MaxNLocator

    assert isinstance(axes, Axes)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    for place, runs in enumerate(cells.values()):
        values = {run.seed: value for run in runs if (value := run.number(metric)) is not None}
        if not values:
            axes.text(0.02, place, "no finished run", transform=axes.get_yaxis_transform(), fontsize=8, color="0.4")
            continue
        colour = objective_colour(runs[0].objective)
        axes.plot(list(values.values()), [place] * len(values), "o", color=colour, alpha=0.55, markersize=5, zorder=3)
        middle, interval = mean(values.values()), summarise(values, None).interval
        axes.plot([middle, middle], [place - 0.28, place + 0.28], color=colour, linewidth=2, zorder=4)
        if interval is not None:
            ends = [min(max(end, 0.0), 1.0) for end in interval] if is_share(metric) else list(interval)
            axes.plot(ends, [place, place], color=colour, linewidth=1, zorder=2)
        headline = runs[0].headline
        if headline is not None and headline.metric == metric and headline.solved_at is not None:
            solved = sum(headline.solved(value) for value in values.values())
            axes.text(
                1.02, place, out_of(solved, len(values)), transform=axes.get_yaxis_transform(), fontsize=8, va="center"
            )
    axes.set_ylim(len(cells) - 0.5, -0.5)
    axes.set_xlabel(metric.replace("_", " "), fontsize=9)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if is_share(metric):
        axes.set_xlim(min(-0.03, axes.get_xlim()[0] if axes.get_xlim()[0] < 0 else -0.03), 1.05)
