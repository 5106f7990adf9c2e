"""Published pictures: each has a command on its page that makes it, and what that command draws can be read.

The drawings here are those of the commands, of small made runs.
"""

import importlib.util
import itertools
import json
import re
import sys
from dataclasses import asdict, replace

import pytest
from doubles import make_run
from legible import assert_legible, assert_svg_legible, font_sizes, saved
from pages import ROOT

from statewise.analysis.base import Findings, Origin
from statewise.reporting.drawings import drawings_png
from statewise.reporting.figures import Curve, Drawing, Layer, Panel, Points, Text, looks
from statewise.reporting.grouping import compare
from statewise.reporting.panels import analysis_panels, training_panels
from statewise.reporting.plots import panels_png
from statewise.run import Run
from statewise.strips.model.schemas import Schema
from statewise.strips.write.pictures import save_schemas

THREE = ("next_token", "next_latent", "belief_state")
EIGHT = (*THREE, "future_summary", "joint_multi_token", "latent_multi_token", "multi_token", "token_order")
IMAGE = re.compile(r"!\[(.*?)\]\((?!https?:)([^)\s]+\.(?:png|svg))\)", re.DOTALL)


def script(path):
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(f"pictures of {path}", ROOT / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def objectives(folder, names, seeds=2, **settings):
    runs = itertools.product(names, range(1, seeds + 1))
    return [
        make_run(folder / f"{name}{seed}", seed, 0.3 + 0.6 * names.index(name) / len(names), name, **settings)
        for name, seed in runs
    ]


def curves(folder, names=THREE):
    found = compare(objectives(folder, names))
    panels_png(training_panels(found), found.looks())


def curves_of_losses(folder):
    runs = objectives(folder, THREE)
    for run in map(Run, runs):
        report = run.report("evaluation")
        headline = {"metric": "loss", "higher_is_better": False, "solved_at": None}
        run.write_report("evaluation", {**report, "headline": headline, "metrics": {"loss": 0.5}, "chance": {}})
    found = compare(runs)
    panels_png(training_panels(found), found.looks())


def curves_of_slots(folder):
    settings = [
        {"name": "belief_slots", "slots": slots, "update": update} for slots in (1, 2, 4) for update in ("ema", "gated")
    ]
    runs = [
        make_run(folder / f"{place}-{seed}", seed, 0.5 + place / 20, backbone=backbone)
        for place, backbone in enumerate([*settings, {"name": "gpt"}])
        for seed in (1, 2)[: 1 + (place == 0)]
    ]
    found = compare(runs)
    panels_png(training_panels(found), found.looks())


def by_length(folder):
    lengths = [32.0, 64.0, 96.0, 128.0, 192.0, 256.0]
    lines = [
        Curve("", lengths, [1 - place * x / 4000 for x in lengths], group=name.replace("_", "-"))
        for place, name in enumerate(EIGHT)
    ]
    chance = Curve("chance", [32.0, 256.0], [0.5, 0.5], "control")
    groups = dict(zip([line.group for line in lines], looks(EIGHT), strict=True))
    panels_png([Panel("length", "", [*lines, chance], True, "accuracy by length")], groups)


def analysed(folder, name, panels):
    runs = objectives(folder, THREE[:2])
    for run in runs:
        content = {"checkpoint": 10, "settings": {}, "metrics": {}, "main": [], "drawings": [], "details": {}}
        described = [asdict(panel) for panel in panels]
        for panel in described:
            for curve in panel["curves"]:
                for field in ("group", "band", "run", "colour", "carried"):
                    del curve[field]
        Run(run).write_report(name, {**content, "panels": described, "notes": [], "verdict": "One."})
    found = compare(runs, metrics="all")
    panels_png(analysis_panels(found), found.looks())


def geometry(folder):
    layers = [float(layer) for layer in range(1, 7)]
    lines = [Curve("trained", layers, [0.6, 0.7, 0.8, 0.9, 0.95, 1.0]), Curve("untrained", layers, [0.3] * 6)]
    controls = [
        Curve(name, [1.0, 6.0], [value] * 2, "control")
        for name, value in (("next-token distribution", 0.24), ("all tokens", 0.13), ("true belief", 0.5))
    ]
    title = "layer (5: last state, 6: all layers)"
    by_tokens = Panel("tokens read", "excess (nats per token)", [Curve("trained", layers, [3e-4] * 6)])
    first = Panel(title, "R2 of the belief", [*lines, *controls], shares=True)
    analysed(folder, "belief-geometry", [first, replace(first, y_title="R2 of constrained beliefs"), by_tokens])


def probes(folder):
    offsets = [1.0, 2.0, 3.0, 4.0]
    control = Curve("most frequent label", offsets, [0.1] * 4, "control")
    line = Curve("model", offsets, [1.0, 0.3, 0.3, 0.8])
    title = "offset of the token after the state"
    losses = [replace(line, y=[0.0, 1.7, 1.7, 0.6]), replace(control, y=[2.2] * 4)]
    panels = [Panel(title, "accuracy", [line, control], shares=True), Panel(title, "cross-entropy (nats)", losses)]
    analysed(folder, "future-probe", panels)


def one_analysis(folder):
    x = [float(place) for place in range(4, 190, 6)]
    lines = [Curve("dynamics alone", x, [0.95] * 31), Curve("backbone", x, [0.9] * 6 + [0.2] * 25)]
    lines += [
        Curve("length of training", [24.0, 24.0], [0.0, 1.0], "control"),
        Curve("chance", [4.0, 190.0], [0.23] * 2, "control"),
    ]
    findings = Findings(
        {"m": 1.0}, main=["m"], panels=[Panel("tokens read", "accuracy", lines, shares=True)], verdict="One."
    )
    replace(findings, origin=Origin("dynamics-accuracy", "runs/s3-nl, step 3600, dynamics-accuracy", {})).save_pictures(
        folder, "dynamics-accuracy"
    )


def simplices(folder):
    corners = [[0.0, 0.0], [1.0, 0.0], [0.5, 0.87]]
    frame = Layer("", [[corners[place], corners[place - 1]] for place in range(3)], [""] * 3)
    texts = [Text(corner, f"state {place + 1}") for place, corner in enumerate(corners)]
    dots = Points(corners, ["#aa2222", "#22aa22", "#2222aa"])
    titles = ("next-latent, seed 1\ntrue", "next-latent, seed 1\nfrom states", "next-latent, seed 1\ndynamics alone")
    note = "Dots: beliefs after each prefix, in the colour of the true one. "
    drawings_png([Drawing(title, [frame], [dots], "beliefs", texts=texts, note=note) for title in titles])


def maps(folder, count=3):
    streets = [[[0.0, 0.0], [1.0, 8.0]], [[1.0, 8.0], [2.0, 0.0]]]
    title = "next-token, seed 1\n193 true and 41 new streets, by 100 rides, 2 of them unreadable"
    layers = [Layer("true", streets, ["", ""]), Layer("new", streets[:1], [""], stands_out=True)]
    drawings_png([Drawing(title, layers) for _ in range(count)])


def one_map(folder):
    maps(folder, 1)


def table1(folder):
    report = script("benchmarks/strips/report.py")
    records = [
        {"domain": name, "size": size, "method": "neural", "draw": 1, "atoms": "ground", "noise": 0.0, "noise_of": ""}
        | {"pooled": {"test": 1.0}, "single": {"test": [0.9, 0.95], "best": 1}, "mean_test": 0.8 + size / 10000}
        for name, sizes in report.PUBLISHED.items()
        for size in sizes
    ]
    report.save_reproduction(records, folder / "table1.png")


def schemas(folder):
    board = frozenset({("p1", ()), ("p3", (0,)), ("p7", (0, 1))})
    sail = frozenset({("p4", (1,)), ("p5", (0,))})
    ferry = {"board": Schema(board, sail, board), "debark": Schema(sail, board, sail), "sail": Schema(sail, sail, sail)}
    save_schemas(ferry, folder / "schemas.png")


CURVES = "statewise compare "
PICTURES = {
    "docs/path-star.png": (curves, CURVES),
    "docs/beliefs.png": (geometry, CURVES),
    "docs/strips-schemas.png": (schemas, "statewise strips show "),
    "docs/results/belief-dynamics.png": (simplices, "belief-dynamics"),
    "docs/results/belief-slots-recall.png": (curves_of_slots, CURVES),
    "docs/results/city-maps.png": (maps, CURVES),
    "docs/results/countdown-gpt2.png": (curves, CURVES),
    "docs/results/demo.png": (curves, CURVES),
    "docs/results/dynamics-accuracy.png": (one_analysis, "statewise analyze runs/s3-nl dynamics-accuracy"),
    "docs/results/flip-flop-lengths.png": (by_length, CURVES),
    "docs/results/gpu-g5-5.png": (curves, CURVES),
    "docs/results/strips-table1.png": (table1, "benchmarks/strips/reproduce.py table1"),
    "docs/results/two-stream-8m.png": (curves_of_losses, CURVES),
    "docs/results/what-states-hold.png": (probes, CURVES),
    "docs/results/world-models-published.png": (one_map, "statewise rides map"),
}
"""What draws each picture, and a command of its page, of which it is a file."""
OTHERS = {
    "docs/first-page.svg": "python tools/pictures/first_page.py",
    "docs/playground-star.png": "python tools/pictures/playground.py",
    "docs/playground-belief.png": "python tools/pictures/playground.py",
    **{f"docs/paper/{path.name}": "python tools/pictures/paper.py" for path in (ROOT / "docs/paper").glob("*.png")},
}
"""The same of those that matplotlib does not draw."""


@pytest.mark.parametrize("draw", dict.fromkeys(draw for draw, _ in PICTURES.values()), ids=lambda draw: draw.__name__)
def test_all_texts_of_a_published_picture_can_be_read(draw, tmp_path, monkeypatch, rendered):
    with saved(monkeypatch) as figures:
        draw(tmp_path)
    assert figures
    for figure, cropped in figures:
        assert_legible(figure, monkeypatch, cropped=cropped)


def test_all_texts_of_the_first_picture_can_be_read():
    first = script("tools/pictures/first_page.py")
    picture = (ROOT / "docs/first-page.svg").read_text()
    assert_svg_legible(picture, {"": 14.0} | font_sizes(first.STYLE))


def test_the_first_picture_is_drawn_of_the_recorded_page(tmp_path):
    first = script("tools/pictures/first_page.py")
    points = [{"places": [[0.1, 0.2]], "colours": ["#aa2222"]}] * 2
    drawings = [{"title": title, "points": points} for title in ("true", "predicted")]
    path = tmp_path / "geometry.json"
    path.write_text(json.dumps({"drawings": drawings, "metrics": {"r2": 0.5}}))
    picture = first.picture(ROOT / "docs/playground-demo.html", path, path)
    assert_svg_legible(picture, {"": 14.0} | font_sizes(first.STYLE))
    assert re.search(">3[0-9]%<", picture)


def test_each_published_picture_has_an_alternative_text_and_a_command_on_its_page():
    commands = {**{name: words for name, (_, words) in PICTURES.items()}, **OTHERS}
    found = set()
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]):
        content = path.read_text()
        for words, target in IMAGE.findall(content):
            picture = (path.parent / target).resolve().relative_to(ROOT).as_posix()
            page = ROOT / "docs/playground.md" if path == ROOT / "README.md" else path
            found.add(picture)
            assert len(words.split()) >= 3, f"{path.name} does not say what {picture} shows"
            code = re.findall(r"^(?: {4}|```).*?(?=\n\n|\Z)", page.read_text(), re.MULTILINE | re.DOTALL)
            assert any(commands[picture] in block for block in code), f"{page.name} has no command for {picture}"
    published = [path for ending in ("png", "svg") for path in (ROOT / "docs").rglob(f"*.{ending}")]
    assert found == {path.relative_to(ROOT).as_posix() for path in published}
    assert found == {*commands}
