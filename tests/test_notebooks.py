"""Notebooks of the tutorials: made of the pages, and run."""

import importlib
import sys

import pytest
from pages import ROOT, blocks, page

SHORT = {"own-training-loop": "step 400: next_token 0.4", "strips": "proven for all instances"}
"""Tutorials whose notebooks take seconds, and what these print."""
LONG = {"ten-minutes", "own-data", "adding-an-objective", "adding-a-task", "classroom"}
"""Those that train for minutes: `make notebooks` runs them, and other tests run their commands with few steps."""


@pytest.fixture
def made(monkeypatch):
    """The tool that makes them."""
    monkeypatch.syspath_prepend(ROOT / "tools" / "site")
    yield importlib.import_module("notebooks")
    sys.modules.pop("notebooks", None)


def test_the_cells_of_a_page_are_its_text_and_its_blocks_in_order(made):
    text = "# A\n\nSee [b](b.md#c).\n\n```python\nx = 1\n```\n\nIt is:\n\n```text\n1\n```\n\n"
    text += "```\nkept\n```\n\n```sh\nls\nls -l\n```\n"
    assert made.cells(text) == [
        ("markdown", "# A\n\nSee [b](../b.html#c)."),
        ("code", "x = 1"),
        ("markdown", "It is:\n\n\n```\nkept\n```"),
        ("code", "%%script sh -e\nls\nls -l"),
    ]


def test_every_tutorial_has_cells_to_run_and_is_a_tutorial_of_the_site(made):
    tutorials, _, _ = (ROOT / "mkdocs.yml").read_text().partition("  - Tutorials:\n")[2].partition("  - How-to:")
    assert {*SHORT, *LONG} == {*made.TUTORIALS}
    for name in made.TUTORIALS:
        code = [source for kind, source in made.cells(page(f"docs/{name}.md")) if kind == "code"]
        assert len(code) == sum(len(blocks(f"docs/{name}.md", language)) for language in ("python", "sh")) > 0
        assert f": {name}.md\n" in tutorials


def test_a_name_that_is_no_tutorial_is_refused(made, capsys):
    pytest.importorskip("nbformat", reason="needs the extra docs")
    assert made.main(["theory"]) == 2
    assert "no tutorial: theory" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_a_notebook_runs_to_its_end(made, name):
    pytest.importorskip("nbclient", reason="needs the extra docs")
    book = made.notebook(name)
    code = next(cell for cell in book.cells if cell.cell_type == "code" and cell.source.startswith("%%script"))
    code.source += "\nstatewise train path-star-tiny --trainer.steps 2 --out runs/short"
    done = made.executed(book)
    code = [cell for cell in done.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    said = "".join(output.text for cell in code for output in cell.outputs)
    assert SHORT[name] in said
    assert "best checkpoint" in said
    assert "\x1b" not in said, "frames of a bar"
    assert all(len(cell.outputs) < 3 for cell in code), "the output of a cell is in pieces"


@pytest.mark.slow
def test_a_notebook_ends_at_the_first_cell_that_fails(made):
    client = pytest.importorskip("nbclient", reason="needs the extra docs")
    broken = made.notebook("strips")
    broken.cells[1].source = "%%script sh -e\nfalse\ntrue"
    broken.cells[1].cell_type = "code"
    with pytest.raises(client.exceptions.CellExecutionError):
        made.executed(broken)
