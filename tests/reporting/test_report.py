import errno
import os
import re

import pytest
from doubles import make_run

from statewise.reporting import report
from statewise.reporting.figures import Curve, Panel
from statewise.reporting.grouping import compare
from statewise.reporting.plots import draw_panels
from statewise.reporting.report import _agreed, write_report
from statewise.run import Run


def test_the_page_stands_alone_and_escapes_what_it_shows(tmp_path):
    found = compare([make_run(tmp_path / "a", 1, 0.5), make_run(tmp_path / "b", 1, 1.0, "next_latent")])
    paths = write_report(found, tmp_path / "report")
    page = paths[-1].read_text()
    assert "<script>" not in re.sub(r"<script[^>]*>.*?</script>", "", page, flags=re.DOTALL).replace(
        "&lt;script&gt;", ""
    )
    assert not re.search(r'<(script|link|img)[^>]*(src|href)="?http', page)
    assert "&lt;script&gt;" in page
    with pytest.raises(FileExistsError, match="or give `overwrite`"):
        write_report(found, tmp_path / "report")
    write_report(found, tmp_path / "report", overwrite=True)


def test_a_report_that_cannot_be_written_leaves_the_old_one_whole(tmp_path, monkeypatch):
    """Not the table of one comparison beside the page of another."""
    out, old, new = tmp_path / "report", make_run(tmp_path / "a", 1, 0.5), make_run(tmp_path / "b", 1, 1.0)
    write_report(compare([old]), out)
    before, synced = {path.name: path.read_bytes() for path in out.iterdir()}, []

    def full(_):
        synced.append(1)
        if len(synced) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_report(compare([new]), out, overwrite=True)
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    write_report(compare([new]), out, overwrite=True)
    assert (out / "report.json").read_bytes() != before["report.json"]


@pytest.mark.parametrize(
    ("truth", "predicted", "agreed"),
    [
        ("a b c", "a b d", "a b "),
        ("a b c", "a b", "a b"),
        ("a bc", "a b", "a "),
        ("a b", "a b", "a b"),
        ("", "a", ""),
        ("ACGT", "ACTT", "AC"),
        ('["Send letter", "Close"]', '["Send letter", "Complaint"]', '["Send letter", '),
    ],
)
def test_what_agrees_is_shown_in_whole_words(truth, predicted, agreed):
    assert _agreed(truth, predicted) == agreed


def test_a_figure_has_a_heading(tmp_path):
    panel = Panel("rank", "share", [Curve("a", [1, 2], [0.5, 0.4])])
    assert draw_panels([panel], heading="runs/a, step 2, effective-rank").get_suptitle() == (
        "runs/a, step 2, effective-rank"
    )
    assert draw_panels([panel]).get_suptitle() == ""


def test_heads_of_long_labels_are_letters_and_colours_that_repeat_are_not_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "panel_svg", lambda panel, groups: "<svg></svg>")  # which test_panels.py draws
    monkeypatch.setattr(report, "panels_png", lambda panels, groups={}: b"")

    def page(count):
        plans = ["x" * 10 + str(place) for place in range(count)]
        folders = [make_run(tmp_path / f"{count}" / plan, 1, 0.5, plan=plan) for plan in plans]
        return write_report(compare(folders), tmp_path / f"report-{count}")[-1].read_text()

    few, many = page(2), page(9)
    for text, letters in ((few, []), (many, list("ABCDEFGHI"))):
        table = text.split("<h2>Differences between the recipes</h2>")[1]
        assert re.findall(r"<th>([A-Z])</th>", table) == letters
        assert all(f">{letter}: next-token" in table for letter in letters)
    assert 'class="swatch"' in few
    assert "Colours as in the results table" in few
    assert 'class="swatch"' not in many
    assert "Colours as in the results table" not in many


def test_numbers_do_not_break_and_columns_are_explained(tmp_path):
    folder = make_run(tmp_path / "a", 1, 0.5)
    found = {"text": "a b", "tokens": 3, "nats_per_token": 2.25, "copies": 1}
    Run(folder).write_report("evaluation", {**Run(folder).report("evaluation"), "hardest": [found]})
    page = write_report(compare([folder]), tmp_path / "report")[-1].read_text()
    assert '<td class="number">2.2500</td>' in page
    assert "table.text td.number { white-space: nowrap; }" in page
    assert "Copies: how often the held-out set" in page
