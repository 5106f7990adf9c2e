"""The outline of a paper: its figures, and Holm's correction of the comparisons of the table of results."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
from legible import assert_legible, saved

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "results"


@pytest.fixture(scope="module")
def paper():
    spec = importlib.util.spec_from_file_location("paper", ROOT / "tools" / "pictures" / "paper.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def measured():
    return json.loads((ROOT / "docs" / "paper" / "measured.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("p_values", "more", "adjusted"),
    [
        ([0.01, 0.04, 0.03], 0, [0.03, 0.06, 0.06]),
        ([0.04], 0, [0.04]),
        ([0.04], 2, [0.12]),
        ([0.02, 0.02], 0, [0.04, 0.04]),
        ([0.9, 0.8], 0, [1.0, 1.0]),
        ([], 0, []),
    ],
)
def test_holm_multiplies_by_the_number_of_comparisons_that_are_left(paper, p_values, more, adjusted):
    assert paper.holm(p_values, more) == pytest.approx(adjusted)


def test_a_mean_with_its_interval_is_tested_as_its_seeds_are(paper):
    from scipy import stats

    one, other = [0.95, 0.97, 0.99], [0.90, 0.91, 0.95]
    half = float(stats.sem(one) * stats.t.ppf(0.975, 2))
    by_seed = float(stats.ttest_ind(one, other, equal_var=False).pvalue)
    assert paper.p_value({"of": [0.97, half, 3]}, other) == pytest.approx(by_seed)
    assert paper.p_value({"solved": [5, 5]}, {"solved": [0, 5]}) == pytest.approx(2 / 252)


def test_the_page_of_comparisons_is_what_the_script_prints(paper, measured):
    page = (PAGES / "comparisons.md").read_text(encoding="utf-8")
    assert page.rstrip().endswith(paper.comparisons(measured["families"]))


def test_the_table_of_results_is_short(measured):
    page = (PAGES / "README.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip() for line in page.splitlines() if re.match(r"\| \d", line)]
    assert 20 < len(rows) <= 40
    numbers = {row.rstrip("ab") for row in rows}
    assert {one for family in measured["families"] for one in family["rows"].split(", ")} <= numbers


def test_every_picture_of_the_outline_is_drawn_and_can_be_read(paper, measured, tmp_path, monkeypatch, rendered):
    monkeypatch.setattr(paper, "PAPER", tmp_path)
    (tmp_path / "measured.json").write_text(json.dumps(measured))
    with saved(monkeypatch) as figures:
        paper.main([])
    for figure, cropped in figures:
        assert_legible(figure, monkeypatch, cropped=cropped)
    outline = (ROOT / "docs" / "paper" / "README.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"\]\(([\w-]+\.png)\)", outline))
    assert {path.name for path in tmp_path.glob("*.png")} == shown
    assert len(shown) == 6
