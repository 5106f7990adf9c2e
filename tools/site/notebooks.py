"""Makes notebooks of the tutorials' pages, and runs them: `make notebooks`, or `python tools/site/notebooks.py PAGE`.

The page is the only source. Its blocks of language `python` and `sh` become cells, in order; blocks of language `text`
are output and are left out, since the notebook has its own. Each notebook runs in an empty folder that has `examples/`;
the first cell that fails ends the run. They are written to runs/notebooks, from where `make docs` takes those whose
page has not changed since.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MADE = ROOT / "runs" / "notebooks"
TUTORIALS = (
    *("ten-minutes", "own-data", "own-training-loop", "strips"),
    *("adding-an-objective", "adding-a-task", "classroom"),
)
"""Pages of docs/, without their suffix."""
FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$\n?", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s:#]+)\.md(#[^)\s]*)?\)")
MARK = "page_sha256"
"""Key of a notebook's metadata: the page that it was made of."""


def cells(page: str) -> list[tuple[str, str]]:
    """The cells of a page's notebook, as pairs of a kind, `markdown` or `code`, and the source."""
    found, text, end = [], [], 0

    def written() -> None:
        if source := LINK.sub(r"](../\1.html\2)", "".join(text)).strip():
            found.append(("markdown", source))
        text.clear()

    for block in FENCE.finditer(page):
        text.append(page[end : block.start()])
        end = block.end()
        language, source = block[1], block[2].strip("\n")
        if language in ("python", "sh"):
            written()
            found.append(("code", source if language == "python" else f"%%script sh -e\n{source}"))
        elif language != "text":
            text.append(block[0])
    text.append(page[end:])
    written()
    return found


def notebook(name: str) -> Any:
    """The notebook of a tutorial, not executed."""
    import nbformat.v4 as made

    page = (ROOT / "docs" / f"{name}.md").read_text()
    of = f"*Made of `docs/{name}.md`. It runs in the environment of `make setup`, in a folder with `examples/`.*"
    new = {"markdown": made.new_markdown_cell, "code": made.new_code_cell}
    pairs = cells(page)
    pairs[0] = ("markdown", f"{pairs[0][1]}\n\n{of}")
    every = [new[kind](source, id=f"cell-{number}") for number, (kind, source) in enumerate(pairs)]
    about = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return made.new_notebook(cells=every, metadata={"kernelspec": about, MARK: digest(name)})


def digest(name: str) -> str:
    """SHA-256 of a tutorial's page."""
    return hashlib.sha256((ROOT / "docs" / f"{name}.md").read_bytes()).hexdigest()


def executed(made: Any) -> Any:
    """Runs a notebook's cells in an empty folder with `examples/`. Raises `CellExecutionError` if one fails."""
    from nbclient import NotebookClient

    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    # A kernel sets FORCE_COLOR, with which the commands would write every frame of their bars.
    environment = {**os.environ, "PATH": path, "TTY_COMPATIBLE": "0"}
    with tempfile.TemporaryDirectory(prefix="statewise-notebook-") as folder:
        shutil.copytree(ROOT / "examples", Path(folder) / "examples")
        where = {"metadata": {"path": folder}}
        client = NotebookClient(made, timeout=3600, kernel_name="python3", resources=where, coalesce_streams=True)
        client.execute(env=environment)
    return made


def current() -> list[Path]:
    """The executed notebooks of runs/notebooks whose page is still as it was."""
    found = [MADE / f"{name}.ipynb" for name in TUTORIALS]
    return [
        path for path in found if path.is_file() and json.loads(path.read_text())["metadata"][MARK] == digest(path.stem)
    ]


def main(names: list[str]) -> int:
    """Makes, runs and writes the notebooks of some tutorials, or of all."""
    import nbformat

    if unknown := {*names} - {*TUTORIALS}:
        print(f"no tutorial: {', '.join(sorted(unknown))}; there are {', '.join(TUTORIALS)}", file=sys.stderr)
        return 2
    MADE.mkdir(parents=True, exist_ok=True)
    for name in names or TUTORIALS:
        print(f"running the notebook of docs/{name}.md", flush=True)
        nbformat.write(executed(notebook(name)), MADE / f"{name}.ipynb")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
