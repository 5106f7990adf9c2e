"""Names that renderers would read as markup, formulas or HTML go through every verb as they are."""

import html
from dataclasses import replace

import numpy as np
import pytest
from doubles import make_run
from rich.text import Text

from statewise.analysis.base import Findings, Origin
from statewise.cli import main
from statewise.experiments.progress import Count, Display
from statewise.reporting.figures import Curve, Drawing, Layer, Panel
from statewise.reporting.grouping import compare
from statewise.reporting.panels import training_panels
from statewise.reporting.plots import draw_panels
from statewise.reporting.report import write_report
from statewise.reporting.tables import markdown_table
from statewise.strips.model.model import ActionModel

pytestmark = pytest.mark.usefixtures("rendered")

MARKUP, FORMULA, SCRIPT = "x[/b]:smile:", r"$\frac{$", "</script><script>alert(1)</script>"
HOSTILE = f"{MARKUP} {FORMULA} {SCRIPT} %{{y}} |"
FOLDER = HOSTILE.replace("/", "")
"""The same as the name of one folder."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "a[" / f"b] {FOLDER}"
    folder.mkdir(parents=True)
    (folder / "data.txt").write_text("".join(f"a b {c} d\n" for c in [MARKUP, FORMULA, SCRIPT, "%{y}", "c", "d"]))
    fields = [
        "--task",
        "sequences",
        f"--task.path={folder / 'data.txt'}",
        "--backbone.width=8",
        "--backbone.heads=1",
        "--backbone.layers=1",
        "--trainer.steps=2",
        "--trainer.batch_size=2",
        "--trainer.device=cpu",
        "--trainer.warmup_steps=0",
    ]
    assert main(["train", "path-star-small", *fields, "--out", str(folder / "run")]) == 0
    return folder / "run"


def test_every_verb_takes_such_paths(run, tmp_path, capsys):
    out = tmp_path / "a[" / f"b] {FOLDER}"
    assert main(["evaluate", str(run)]) == 0
    assert str(run) in capsys.readouterr().out
    assert main(["analyze", str(run), "effective-rank", "--out", str(out / "analysed")]) == 0
    assert str(run) in capsys.readouterr().out
    assert main(["compare", str(run), "--metrics", "all", "--out", str(out / "report")]) == 0
    assert str(out) in capsys.readouterr().out
    assert main(["generate", str(run), "--prompt", f"a b {MARKUP}"]) == 0
    page = (out / "report" / "report.html").read_text()
    assert str(run) not in page
    assert html.escape(str(run)) in page


def test_the_command_of_action_models_takes_them(tmp_path, capsys):
    out = tmp_path / FOLDER
    out.mkdir()
    model = ActionModel.of([HOSTILE], {HOSTILE: ([HOSTILE], [], [])})
    (out / "model.json").write_text(model.as_json())
    word = ["strips", "show", str(out), "--trace", HOSTILE.replace(" ", "_"), "--against", str(out / "model.json")]
    assert main(word) == 2  # such a trace names no action
    assert "Traceback" not in capsys.readouterr().err
    assert main([*word[:3], *word[5:]]) == 0
    assert {path.name for path in out.iterdir()} == {"model.json", "model.png", "models.png"}


def test_the_terminal_shows_them_as_they_are(tmp_path, capsys):
    display = Display()
    display.note(HOSTILE)
    with Count("tokens") as count:
        count.stage(HOSTILE, None)
        count.note(HOSTILE)
    shown = capsys.readouterr()
    assert shown.out == f"{HOSTILE}\n"
    assert shown.err == f"{HOSTILE}\n" * 2


def test_so_does_its_bar(monkeypatch, capsys):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Count("tokens") as count:
        count.stage(MARKUP, 10)
        assert count.bars.live is not None
        count.advance(1)
    assert MARKUP in Text.from_ansi(capsys.readouterr().err).plain


def test_figures_and_pages_show_them(tmp_path):
    runs = [make_run(tmp_path / "a", 1, 0.5, note=HOSTILE), make_run(tmp_path / "b", 1, 1.0, note="b")]
    found = compare(runs)
    assert HOSTILE in found.groups[0].label
    figure = draw_panels(training_panels(found), found.looks())
    figure.draw_without_rendering()
    assert HOSTILE in figure.legends[0].get_texts()[0].get_text()
    *_, page = write_report(found, tmp_path / "report")
    text = page.read_text()
    assert "<script>alert" not in text
    assert "<script>" not in (tmp_path / "report" / "table.md").read_text()


def test_findings_with_such_labels_are_drawn(tmp_path):
    layer = Layer(HOSTILE, [[0.0, 0.0, 1.0, 1.0]], [HOSTILE])
    panel = Panel(HOSTILE, HOSTILE, [Curve(HOSTILE, [1, 2], [0.0, 1.0]), Curve("b", [1, 2], [0.0, 1.0])])
    findings = Findings({"m": 1.0}, main=["m"], panels=[panel], drawings=[Drawing(HOSTILE, [layer])], verdict="One.")
    written = replace(findings, origin=Origin("map", HOSTILE, {})).save_pictures(tmp_path, "map")
    assert [path.name for path in written] == ["map.png", "map-drawing.png", "map-drawing.html"]
    assert "<script>alert" not in written[-1].read_text()


def test_pictures_of_action_models_have_such_names(tmp_path):
    from statewise.strips.write.pictures import save_theta

    save_theta(np.full((1, 1, 3), 0.5), tmp_path / "theta.png", [HOSTILE], [FORMULA])
    assert (tmp_path / "theta.png").stat().st_size > 1000


def test_markdown_keeps_cells_apart():
    assert markdown_table(["a"], [[f"{SCRIPT}|\nb"]]).splitlines()[2:] == [
        "| &lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;\\| b |"
    ]
