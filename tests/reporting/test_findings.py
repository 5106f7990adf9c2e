"""What `analyze` prints and draws of findings."""

import numpy as np

from statewise.analysis.base import Findings
from statewise.cli.findings import in_order, save_pictures, tell
from statewise.reporting.figures import Curve, Panel


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
    tell("map", Findings(metrics, [], main=["streets"], verdict="It needs 153 streets."), [])
    title, verdict, *table = capsys.readouterr().out.splitlines()
    assert (title, verdict) == ("map", "It needs 153 streets.")
    assert [line.split() for line in table[2:5]] == [["streets", "153"], ["share", "1.0000"], ["rides", "1,000"]]


def test_pictures_of_an_earlier_report_do_not_stay(tmp_path):
    panel = Panel("x", "y", [Curve("a", [0.0, 1.0], [0.0, 1.0])])
    assert save_pictures(Findings({}, [panel], verdict="One."), tmp_path, "map", "map") == [tmp_path / "map.png"]
    (tmp_path / "other.png").touch()
    assert save_pictures(Findings({}, [], verdict="None."), tmp_path, "map", "map") == []
    assert [path.name for path in tmp_path.iterdir()] == ["other.png"]
