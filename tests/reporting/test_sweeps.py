"""Plots of a metric over the one number in which runs differ."""

import pytest
from doubles import make_run

from statewise.reporting.figures import Curve
from statewise.reporting.grouping import compare
from statewise.reporting.panels import sweep_panels
from statewise.reporting.report import write_report

FOUND = {0: (0.2, 0.4), 16: (0.5, 0.5), 64: (0.7, 0.9), 256: (0.6, 0.8)}
"""Accuracy by window, of two seeds."""


def windows(folder, *wanted, **more):
    for window in wanted:
        for seed, accuracy in zip((1, 2), FOUND[window]):
            backbone = {"name": "two_stream", "variant": "sps", "window": window, **more}
            yield make_run(folder / f"w{window}-{len(more)}-{seed}", seed, accuracy, backbone=backbone)


def test_a_metric_is_drawn_over_the_setting_in_order_with_its_range(tmp_path):
    compared = compare(list(windows(tmp_path, 64, 0, 16)))
    accuracy, loss = sweep_panels(compared)
    assert (accuracy.x_title, accuracy.y_title, accuracy.shares, accuracy.log_x) == (
        "window",
        "path accuracy",
        True,
        False,
    )
    (curve,) = accuracy.curves
    assert (curve.x, curve.y) == ([0.0, 16.0, 64.0], pytest.approx([0.3, 0.5, 0.8]))
    assert curve.band == [(0.2, 0.4), (0.5, 0.5), (0.7, 0.9)]
    assert (loss.y_title, loss.curves[0].y, loss.curves[0].band) == ("loss (nats per token)", [0.5] * 3, None)
    _, rows = compared.table()
    assert [row[0] for row in rows] == [f"next-token (window {window})" for window in (64, 0, 16)]
    written = {path.name: path for path in write_report(compared, tmp_path / "report")}
    assert written["sweep.png"].read_bytes().startswith(b"\x89PNG")
    assert "<h2>By window</h2>" in written["report.html"].read_text()
    plain = compare(list(windows(tmp_path / "other", 16)))
    written = write_report(plain, tmp_path / "report", overwrite=True)
    assert "sweep.png" not in {path.name for path in written}
    assert not (tmp_path / "report" / "sweep.png").exists()
    assert "<h2>By" not in written[-1].read_text()


def test_other_settings_make_lines_and_a_single_value_is_drawn_across(tmp_path):
    standard = {"name": "two_stream", "variant": "standard", "window": 64}
    runs = [
        make_run(tmp_path / "standard", 1, 0.1, backbone=standard),
        *windows(tmp_path, 16, 64, 256),
        *windows(tmp_path, 16, 64, prediction_start="own"),
    ]
    accuracy, _ = sweep_panels(compare(runs))
    assert accuracy.log_x
    across, plain, own = accuracy.curves
    assert across == Curve("variant standard, prediction start not set", [16.0, 256.0], [0.1, 0.1], "control")
    assert (plain.label, plain.x) == ("variant sps, prediction start not set", [16.0, 64.0, 256.0])
    assert (own.label, own.x) == ("variant sps, prediction start own", [16.0, 64.0])


def test_without_one_number_of_three_values_there_is_no_sweep(tmp_path):
    assert sweep_panels(compare(list(windows(tmp_path, 0, 16)))) == []
    sizes = [{"name": "gpt", "layers": size, "heads": size} for size in (1, 2, 4)]
    both = [make_run(tmp_path / f"a{size['layers']}", 1, 0.5, backbone=size) for size in sizes]
    assert sweep_panels(compare(both)) == []
    words = [make_run(tmp_path / f"b{norm}", 1, 0.5, backbone={"name": "gpt", "norm": norm}) for norm in "xyz"]
    assert sweep_panels(compare(words)) == []
    layers = [make_run(tmp_path / f"c{at}", 1, 0.5, backbone={"name": "gpt", "layers": at}) for at in (1, 3, 5)]
    assert len(sweep_panels(compare(layers))) == 2
