"""`statewise compare`: what it prints and writes."""

import json
import os
import re

import pytest
from command_line import called
from doubles import make_run


@pytest.fixture
def runs(tmp_path):
    made = [
        make_run(tmp_path / f"{name}-{seed}", seed, value + seed / 100, name)
        for name, value in (("next_token", 0.3), ("next_latent", 0.9))
        for seed in (1, 2, 3)
    ]
    return [str(folder) for folder in made]


@pytest.mark.parametrize("width", [80, 100])
def test_without_out_it_prints_its_tables_and_writes_nothing(runs, tmp_path, monkeypatch, capsys, width):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    short = [os.path.relpath(run) for run in runs]
    code, out, err = called(capsys, "compare", *short, "--margin", "0.1")
    assert (code, err) == (0, "")
    said = "next-latent has the higher path accuracy, 0.9200 (0 of 3 runs solved); next-token has 0.3200"
    assert " ".join(out.split()).startswith(said)
    assert max(map(len, out.splitlines())) <= width
    assert "next-token equals, within 0.1, next-latent" in " ".join(out.split())
    assert "wrote" not in out
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    code, out, _ = called(capsys, "compare", *short, "--json")
    assert code == 0
    assert json.loads(out)["finding"].startswith("next-latent")


@pytest.mark.parametrize("flag", ["--overwrite", "--relative"])
def test_flags_about_files_want_a_place_for_them(runs, capsys, flag):
    code, _, err = called(capsys, "compare", *runs, "--metrics", "all", flag)
    assert code == 2
    assert err == f"statewise: {flag} concerns files of the report, which are only written with --out DIR\n"


def test_the_report_needs_no_extra_and_nothing_from_elsewhere(runs, tmp_path, capsys):
    out = tmp_path / "report"
    code, said, err = called(capsys, "compare", *runs, "--out", str(out))
    assert (code, err) == (0, "")
    names = ("report.json", "table.md", "curves.png", "report.html")
    assert [line for line in said.splitlines() if line.startswith("wrote ")] == [
        f"wrote {out / name}" for name in names
    ]
    page = (out / "report.html").read_text()
    assert page.count('<svg class="panel"') == 3
    assert not re.search(r'(src|href)="(?!#)', page)
    assert len(page) < 200_000
