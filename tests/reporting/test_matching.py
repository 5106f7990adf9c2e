"""The tokens that runs need to match others, by hand and against a search over a fine grid."""

import json

import numpy as np
import pytest
from doubles import make_run
from hypothesis import given
from hypothesis import strategies as st

from statewise.reporting.grouping import compare
from statewise.reporting.panels import training_panels
from statewise.reporting.report import write_report
from statewise.reporting.statistics import match, tokens_to_reach
from statewise.run import Run


def test_by_hand():
    curve = [100, 200, 400], [5.0, 4.0, 3.0]
    assert tokens_to_reach(curve, 4.0) == 200
    assert tokens_to_reach(curve, 4.25) == 175
    assert tokens_to_reach(curve, 3.5) == 300
    assert tokens_to_reach(curve, 3.0) == 400
    assert tokens_to_reach(curve, 2.9) is None
    assert tokens_to_reach(curve, 6.0) == 100  # it was there at its first evaluation, or before
    assert tokens_to_reach(([], []), 1.0) is None
    assert tokens_to_reach(([1, 2, 3, 4], [5.0, 3.0, 5.0, 1.0]), 4.0) == 1.5  # the first time


@given(st.lists(st.integers(0, 40), min_size=2, max_size=8), st.integers(0, 40))
def test_it_is_the_first_place_of_a_fine_grid(losses, loss):
    tokens = [100 * (place + 1) for place in range(len(losses))]
    grid = np.arange(tokens[0], tokens[-1] + 0.25, 0.25)
    there = grid[np.interp(grid, tokens, losses) <= loss]
    found = tokens_to_reach((tokens, losses), loss)
    assert (found is None) == (not len(there))
    if found is not None:
        assert there[0] - 0.25 <= found <= there[0]


def test_the_loss_to_match_is_the_mean_of_the_final_ones():
    a = {1: ([100, 200], [5.0, 3.0]), 2: ([100, 200], [5.0, 4.5])}
    b = {7: ([50, 100], [6.0, 4.0]), 8: ([50, 300], [6.0, 5.0])}
    found = match("a", a, "b", b)
    assert (found.loss, found.other_tokens) == (4.5, 200.0)
    assert found.tokens == {1: 125.0, 2: 200.0}
    assert found.mean == 162.5
    back = match("b", b, "a", a)
    assert back.loss == 3.75
    assert back.tokens == {7: None, 8: None}
    assert back.mean is None


def text_run(folder, seed, losses, objective="next_token", with_tokens=True, **trainer):
    """A run whose headline is the loss, evaluated every 100 tokens and half an hour."""
    folder = make_run(folder, seed, 0.5, objective, **trainer)
    (folder / "metrics.jsonl").unlink()
    run = Run(folder)
    for place, loss in enumerate(losses, 1):
        tokens = {"tokens": 100 * place} if with_tokens else {}
        run.log({"kind": "evaluation", "step": place, **tokens, "loss": loss, "seconds": 1800.0 * place})
    run.log({"kind": "end", "step": len(losses), "reason": "steps", "seconds": 1800.0 * len(losses)})
    report = run.report("evaluation")
    headline = {"metric": "loss", "higher_is_better": False, "solved_at": None}
    run.write_report("evaluation", {**report, "headline": headline, "metrics": {"loss": losses[-1]}})
    return folder


@pytest.fixture
def folders(tmp_path):
    return [
        text_run(tmp_path / "a1", 1, [5.0, 4.0, 3.0]),
        text_run(tmp_path / "a2", 2, [5.0, 4.0, 3.2]),
        text_run(tmp_path / "b1", 1, [5.0, 3.1, 2.0], "next_latent"),
    ]


def test_each_group_is_set_against_the_first(folders, tmp_path):
    found = compare(folders)
    assert [(one.group, one.other) for one in found.matches] == [
        ("next-latent", "next-token"),
        ("next-token", "next-latent"),
    ]
    header, rows = found.matches_table()
    assert header == ["group", "matches", "its loss", "after tokens", "of its tokens", "runs"]
    assert rows == [
        ["next-latent", "next-token", "3.1000", "200", "66.7%", "1/1"],
        ["next-token", "next-latent", "2.0000", "not reached", "-", "0/2"],
    ]
    assert json.loads(found.as_json())["tokens_to_match"][0]["tokens"] == {"1": pytest.approx(200.0)}
    for text in (found.as_text(10_000), found.as_markdown(), write_report(found, tmp_path / "report")[-1].read_text()):
        assert "not reached" in text
        assert "66.7%" in text
        assert "interpolated linearly between evaluations" in text


def test_the_loss_is_drawn_over_tokens_and_hours(folders):
    panels = {panel.x_title: panel for panel in training_panels(compare(folders))}
    assert list(panels) == ["training step", "training tokens", "hours of training"]
    mean = panels["training tokens"].curves[0]
    assert (mean.x, mean.y) == ([100, 200, 300], pytest.approx([5.0, 4.0, 3.1]))
    assert panels["hours of training"].curves[0].x == [0.5, 1.0, 1.5]
    assert [curve.group for curve in panels["hours of training"].curves if curve.role == "line"] == [
        "next-token",
        "next-latent",
    ]


def test_nothing_is_matched_where_that_would_mean_nothing(folders, tmp_path):
    older = text_run(tmp_path / "c", 1, [5.0, 1.0], "teacherless", with_tokens=False)
    assert compare([*folders, older]).matches == []
    others = text_run(tmp_path / "d", 1, [5.0, 1.0], evaluate_num=7)
    assert compare([*folders, others]).matches == []  # on other examples
    assert compare(folders[:2]).matches == []
    plain = [make_run(tmp_path / "e", 1, 0.5), make_run(tmp_path / "f", 1, 0.5, "next_latent")]
    assert compare(plain).matches == []
    assert "after tokens" not in compare(plain).as_text()
    assert {panel.x_title for panel in training_panels(compare(plain))} == {"training step"}
