"""What `analyze` prints, draws and writes of findings."""

import json
import sys

import numpy as np
import pytest

from statewise.analysis.base import Findings, Origin
from statewise.cli.findings import in_order, show_findings
from statewise.reporting.figures import Curve, Drawing, Layer, Panel


def test_metrics_are_in_families_by_their_numbers():
    drift = [f"step_{step}_{name}" for name in ("latent", "greedy") for step in (1, 2, 10)]
    assert in_order(drift, ["step_1_greedy", "step_10_greedy"]) == [*drift[3:], *drift[:3]]
    geometry = [
        "r2_blocks.0",
        "mse_blocks.0",
        "distance_blocks.0",
        "r2_concat",
        "mse_concat",
        "distance_concat",
        "r2",
        "r2_held_out",
        "mse",
        "distance",
        "excess",
    ]
    assert in_order(geometry, ["r2", "excess"]) == [
        "r2",
        "excess",
        "r2_blocks.0",
        "r2_concat",
        "r2_held_out",
        "mse",
        "mse_blocks.0",
        "mse_concat",
        "distance",
        "distance_blocks.0",
        "distance_concat",
    ]
    shares = ["detours_0.05", "detours_0.5", "detours_0.1"]
    assert in_order(shares, []) == ["detours_0.05", "detours_0.1", "detours_0.5"]


def test_counts_are_printed_as_whole_numbers(capsys):
    metrics = {"share": 1.0, "streets": 153, "rides": np.int64(1000)}
    origin = Origin("map", "rides", {})
    show_findings(Findings(metrics, [], main=["streets"], verdict="It needs 153 streets.", origin=origin), [])
    title, verdict, *table = capsys.readouterr().out.splitlines()
    assert (title, verdict) == ("rides", "It needs 153 streets.")
    assert [line.split() for line in table[2:5]] == [["streets", "153"], ["share", "1.0000"], ["rides", "1,000"]]


def test_on_a_terminal_the_verdict_is_wrapped_and_the_main_metrics_are_shown(capsys, monkeypatch):
    """A terminal broke the verdict within words, and forty metrics pushed it off the screen."""
    metrics = {f"r2_layer_{layer}": 0.5 for layer in range(40)} | {"r2": 0.9952}
    verdict = "The last state explains 99.5% of the variance of the exact belief; " * 3
    findings = Findings(metrics, [], main=["r2"], notes=["a note " * 20], verdict=verdict)
    show_findings(findings, [])
    whole = capsys.readouterr().out
    assert verdict in whole
    assert whole.count("r2_layer_") == 40
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show_findings(findings, [])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(lines).split()).startswith(" ".join(verdict.split()))
    assert lines.index("... and 40 more, which --json prints") < 20
    assert [line.split() for line in lines if line.startswith("r2")] == [["r2", "0.9952"]]


PANEL = Panel("x", "y", [Curve("a", [0.0, 1.0], [0.0, 1.0])])


def test_findings_are_saved_as_a_unit(tmp_path):
    layer = Layer("streets", [[[0.0, 0.0], [1.0, 1.0]]], [""])
    origin = Origin("map", "rides", {"settings": {"radius": np.float64(2.5)}})
    found = Findings(
        {"streets": np.int64(3)}, [PANEL], drawings=[Drawing("map", [layer])], verdict="3 < 4.", origin=origin
    )
    written = found.save(tmp_path / "new")
    names = ["map.json", "map.png", "map-drawing.png", "map-drawing.html"]
    assert [path.name for path in written] == names
    report = json.loads(written[0].read_text())
    assert list(report)[:3] == ["settings", "metrics", "panels"]
    assert (report["settings"], report["metrics"], report["verdict"]) == ({"radius": 2.5}, {"streets": 3}, "3 < 4.")
    assert "origin" not in report
    assert '<p class="finding">3 &lt; 4.</p>' in written[3].read_text()
    with pytest.raises(FileExistsError, match=r"map\.json exists"):
        found.save(tmp_path / "new")
    (tmp_path / "new" / "other.png").touch()
    assert Findings({}, [], verdict="None.").save(tmp_path / "new", name="map", overwrite=True) == written[:1]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["map.json", "other.png"]
    with pytest.raises(ValueError, match="give one"):
        Findings({}, [], verdict="None.").save(tmp_path)
