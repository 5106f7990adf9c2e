"""The documentation as a site: pages that follow from the sources, and links that lead somewhere."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from pages import ROOT

from statewise.cli import COMMANDS


@pytest.fixture
def site(monkeypatch, tmp_path):
    """The builder, which writes into a folder of the test."""
    monkeypatch.syspath_prepend(ROOT / "tools" / "site")
    build = importlib.import_module("build")
    monkeypatch.setattr(build, "PAGES", tmp_path / "pages")
    yield build
    for name in ("build", "check", "notebooks"):
        sys.modules.pop(name, None)


def test_every_page_is_in_the_navigation_and_every_entry_is_a_page(site):
    site.stage()
    site.reference()
    listed = {
        line.rpartition(": ")[2] for line in (ROOT / "mkdocs.yml").read_text().splitlines() if line.endswith(".md")
    }
    staged = {str(path.relative_to(site.PAGES)) for path in site.PAGES.rglob("*.md")}
    assert listed <= staged
    assert {name for name in staged - listed if not name.startswith("decisions/")} == {"tests/README.md"}


def test_links_are_rewritten_to_where_the_copies_lie(site):
    site.stage()
    assert "](quick-start.md)" in (site.PAGES / "index.md").read_text()
    assert "](examples/small_languages.py)" in (site.PAGES / "theory.md").read_text()
    for page in site.PAGES.rglob("*.md"):
        for _, link, _ in site.LINK.findall(page.read_text()):
            if ":" not in link and Path(link).suffix:
                assert (page.parent / link).is_file(), f"{page.relative_to(site.PAGES)}: {link}"
    assert (site.PAGES / "examples" / "small_languages.py").is_file()


def test_the_page_of_options_has_the_help_of_every_command(site):
    text = site.options_page()
    assert all(f"## statewise {name}\n" in text for name in COMMANDS)
    assert "--export FILE" in text


def test_a_page_links_to_its_notebook_while_it_is_as_the_notebook_was_made(site, tmp_path, monkeypatch):
    import notebooks

    monkeypatch.setattr(notebooks, "MADE", tmp_path / "made")
    (tmp_path / "made").mkdir()
    for name, page in (("strips", notebooks.digest("strips")), ("own-data", "an older page")):
        (tmp_path / "made" / f"{name}.ipynb").write_text(json.dumps({"metadata": {notebooks.MARK: page}}))
    site.stage()
    assert site.add_notebooks() == 1
    assert "](notebooks/strips.ipynb)" in (site.PAGES / "strips.md").read_text()
    assert "ipynb" not in (site.PAGES / "own-data.md").read_text()
    assert (site.PAGES / "notebooks" / "strips.ipynb").is_file()


def test_what_leads_nowhere_is_found(site, tmp_path):
    from check import check

    (tmp_path / "a.html").write_text(
        "<h1 id='top'>A</h1><a href='b.html'>b</a><a href='#top'>t</a><a href='#no'>n</a><img src='x.png'>"
        "<script src='https://elsewhere.example/x.js'></script><a href='https://elsewhere.example'>fine</a>"
    )
    found = check(tmp_path)
    assert len(found) == 5
    for part in (
        "b.html leads to no file",
        "#no: the page has no such anchor",
        "x.png has no text",
        "x.png leads to no",
        "x.js",
    ):
        assert any(part in line for line in found), part


@pytest.mark.slow
def test_the_site_is_built_without_a_network_and_without_a_dead_link(site, tmp_path, monkeypatch):
    pytest.importorskip("zensical", reason="needs the extra docs")
    monkeypatch.undo()
    monkeypatch.syspath_prepend(ROOT / "tools" / "site")
    assert importlib.reload(importlib.import_module("build")).main() == 0
    assert (ROOT / "site" / "reference" / "losses.html").is_file()
