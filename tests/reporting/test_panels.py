import pytest
from doubles import make_run, rewrite_end, with_baselines

from statewise.reporting.figures import MOST_GROUPS
from statewise.reporting.grouping import compare
from statewise.reporting.panels import training_panels
from statewise.reporting.plots import draw_panels
from statewise.reporting.report import write_report
from statewise.run import Run

PANELS = (
    "path accuracy, held out",
    "loss, held out (nats per token)",
    "next-token loss in training (nats per prediction)",
)


@pytest.mark.parametrize(
    ("panels", "groups"), [(1, 1), (3, 3), (1, MOST_GROUPS), (3, MOST_GROUPS), (3, MOST_GROUPS + 1)]
)
def test_no_text_of_a_figure_is_cut_off_or_lies_on_a_plot_however_long_labels_are(tmp_path, groups, panels):
    long = {f"option_{place}": "W" * 12 for place in range(6)}
    folders = [
        make_run(tmp_path / str(number), 1, 0.5, **{name: f"{value}{number}" for name, value in long.items()})
        for number in range(groups)
    ]
    found = compare(folders)
    labels = [group.label for group in found.groups]
    assert groups == 1 or len(labels[0]) > 100
    figure = draw_panels(training_panels(found)[:panels], found.looks(), heading="W" * 150 + " " + "path " * 40)
    nothing_is_cut(figure)
    (legend,) = figure.legends
    named = ["".join(text.get_text().split()) for text in legend.get_texts()]
    if groups > MOST_GROUPS:  # each has plots of its own, named above them
        assert named == ["chance"]
        titles = ["".join(axes.get_title().split()) for axes in figure.axes]
        assert titles == ["".join(label.split()) for label in labels] * panels
        assert {axes.get_ylabel().replace("\n", " ") for axes in figure.axes} <= {"", *PANELS}
    else:
        assert named == ["".join(label.split()) for label in [*labels, "chance"]]
        assert all(axes.get_window_extent().height > 200 for axes in figure.axes)  # pixels of 360: not squeezed for it


def nothing_is_cut(figure):
    """All texts are within the figure, and none lies on a plot or on another text."""
    figure.draw_without_rendering()
    texts = [text for axes in figure.axes for text in (axes.title, axes.xaxis.label, axes.yaxis.label)]
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    texts += [text for legend in legends for text in (*legend.get_texts(), legend.get_title())]
    texts += [figure._suptitle] if figure.get_suptitle() else []
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    assert boxes
    for place, box in enumerate(boxes):
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1 + 1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1 + 1
        assert not any(box.overlaps(axes.get_window_extent()) for axes in figure.axes)
        assert not any(box.shrunk(0.98, 0.9).overlaps(other.shrunk(0.98, 0.9)) for other in boxes[place + 1 :])


def test_a_group_is_shown_by_its_mean_its_range_and_its_runs(tmp_path):
    folders = [make_run(tmp_path / f"a{seed}", seed, accuracy) for seed, accuracy in ((1, 0.2), (2, 0.9), (3, 0.4))]
    folders.append(make_run(tmp_path / "b", 1, 0.7, "next_latent"))
    accuracy = training_panels(compare(folders))[0]
    mean, *runs, single, chance = accuracy.curves
    assert (mean.x, mean.y, mean.band) == ([5, 10], pytest.approx([0.5, 0.5]), [(0.2, 0.9)] * 2)
    assert [(run.role, run.run, run.y) for run in runs] == [
        ("raw", "seed 1", [0.2, 0.2]),
        ("raw", "seed 2", [0.9, 0.9]),
        ("raw", "seed 3", [0.4, 0.4]),
    ]
    assert (single.group, single.y, single.band) == ("next-latent", [0.7, 0.7], None)
    assert (chance.label, chance.role, chance.x, chance.y) == ("chance", "control", [5, 10], [0.5, 0.5])


def test_runs_without_a_mean_are_shown_by_themselves(tmp_path):
    """Where runs have no step in common, or one lacks the curve, there is no mean."""
    lacking, early, late = (make_run(tmp_path / f"a{seed}", seed, 0.2 * seed) for seed in (1, 2, 3))
    other = make_run(tmp_path / "b", 1, 0.7, "next_latent")
    for folder, change in ((lacking, ('"evaluation"', '"none"')), (early, ('"step": 10', '"step": 6'))):
        path = folder / "metrics.jsonl"
        path.write_text(
            path.read_text().replace(*change)
            if change[0] != '"evaluation"'
            else "".join(line for line in path.read_text().splitlines(True) if '"evaluation"' not in line)
        )
    mean = training_panels(compare([early, late, other]))[0].curves[0]
    assert (mean.role, mean.x, mean.carried) == ("line", [5, 6, 10], 6)
    found = compare([lacking, early, late, other])
    accuracy, *_, training = training_panels(found)
    assert [(curve.group, curve.role, curve.run) for curve in accuracy.curves[:3]] == [
        ("next-token", "raw", "seed 2"),
        ("next-token", "raw", "seed 3"),
        ("next-latent", "line", ""),
    ]
    assert training.curves[0].role == "line"
    text = late / "metrics.jsonl"
    text.write_text(text.read_text().replace('"step": 5,', '"step": 8,'))
    rewrite_end(early)  # a run that goes on has no last value yet
    apart = compare([early, late, other])
    early_text = early / "metrics.jsonl"
    early_text.write_text(early_text.read_text().replace('"step": 6,', '"step": 5,'))
    apart = compare([early, late, other])
    assert [curve.role for curve in training_panels(apart)[0].curves] == ["raw", "raw", "line", "control"]
    for one in (found, apart):
        page = write_report(one, tmp_path / "report", overwrite=one is apart)[-1].read_text()
        assert "path accuracy, held out: no mean of next-token, since" in page
    figure = draw_panels(training_panels(apart), apart.looks())
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["next-token", "next-latent", "chance"]


def evaluated_once(folder):
    """Drops all evaluations but the last from the records of training."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"evaluation"' not in line or '"step": 10' in line))
    return folder


def test_baselines_are_drawn_across_a_plot_of_a_single_evaluation(tmp_path):
    found = compare([evaluated_once(with_baselines(make_run(tmp_path / "a", 1, 0.5)))])
    figure = draw_panels(training_panels(found), found.looks())
    axes = figure.axes[0]
    lines = {line.get_label(): line.get_xdata() for line in axes.lines}
    for name in ("bigram", "chance"):
        low, high = axes.get_xlim()
        assert max(lines[name]) - min(lines[name]) > 0.8 * (high - low)
    figure.canvas.draw()
    shown = [tick for tick in axes.get_xticks() if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]]
    assert all(float(tick).is_integer() for tick in shown)


def test_every_panel_of_losses_names_their_unit(tmp_path):
    folder = make_run(tmp_path / "a", 1, 0.5)
    report = Run(folder).report("evaluation")
    report["headline"] = {"metric": "loss", "higher_is_better": False, "solved_at": None}
    Run(folder).write_report("evaluation", report)
    titles = [panel.title for panel in training_panels(compare([folder]))]
    assert titles[0] == "loss, held out (nats per token)"
    assert all("(nats per " in title for title in titles if "loss" in title)
