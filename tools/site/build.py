"""Builds the documentation's site: `make docs`, or `python tools/site/build.py`. Needs the extra `docs`.

1. `stage` copies the pages of docs/, README.md and what they link to, so that every link leads to a page of the site.
2. `reference` writes the pages that follow from the sources: options of the commands, recipes, and the public names.
3. Zensical makes HTML of them, as mkdocs.yml says.
4. `without_network` replaces what the builder would load from elsewhere; `check` finds links that lead nowhere.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from check import check
from notebooks import current

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "runs" / "site-pages"
SITE = ROOT / "site"
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?\)")
SHIM = re.compile(r'<script src="https://unpkg\.com/iframe-worker/shim"[^>]*></script>')
SHOWN = (".md", ".py", ".yaml", ".csv", ".json", ".html", ".png", ".svg", ".toml", ".txt", ".cff")

API = {
    "statewise": ["statewise"],
    "losses": ["statewise.losses"],
    "hf": ["statewise.hf"],
    "beliefs": ["statewise.beliefs"],
    "strips": ["statewise.strips"],
    "extending": [
        *("statewise.tasks.base", "statewise.objectives.base", "statewise.backbones.base", "statewise.decoding.base"),
        *("statewise.decoding.predictor", "statewise.analysis.base", "statewise.data_types", "statewise.batch"),
    ],
}
"""Pages of the reference of Python names, and the modules that each shows."""


def staged(path: Path) -> Path:
    """Where a file of the repository lies among the pages: docs/ is the root, README.md its first page."""
    place = path.relative_to(ROOT)
    if place == Path("README.md"):
        return PAGES / "index.md"
    return PAGES / (place.relative_to("docs") if place.is_relative_to("docs") else place)


def target(page: Path, link: str) -> Path | None:
    """The file of the repository that a link of `page` leads to; None for a link to another site or to no file."""
    if "://" in link or link.startswith("mailto:"):
        return None
    path = Path(os.path.normpath(page.parent / link))
    path = path / "README.md" if (path / "README.md").is_file() else path
    return path if path.is_file() and path.is_relative_to(ROOT) else None


def stage() -> None:
    """Copies pages and whatever they link to, with the links rewritten to where the copies lie."""
    waiting = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    done: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in done:
            continue
        done.add(path)
        place = staged(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix != ".md":
            shutil.copyfile(path, place)
            continue

        def moved(match: re.Match[str], path: Path = path, place: Path = place) -> str:
            found = target(path, match[2])
            if found is None:
                return match[0]
            if found.suffix in SHOWN or found.name == "LICENSE":
                waiting.append(found)
            return f"{match[1]}{os.path.relpath(staged(found), place.parent)}{match[3] or ''})"

        place.write_text(LINK.sub(moved, path.read_text()))


def add_notebooks() -> int:
    """Copies executed notebooks among the pages, and links to each from its page; returns how many there are."""
    made = current()
    for path in made:
        (PAGES / "notebooks").mkdir(exist_ok=True)
        shutil.copyfile(path, PAGES / "notebooks" / path.name)
        page = PAGES / f"{path.stem}.md"
        title, rest = page.read_text().split("\n", 1)
        page.write_text(f"{title}\n\n[This page as a notebook, with its output](notebooks/{path.name})\n{rest}")
    return len(made)


def reference() -> None:
    """Writes the pages that follow from the sources: options, recipes, public names."""
    folder = PAGES / "reference"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "commands.md").write_text(options_page())
    (folder / "recipes.md").write_text(recipes_page())
    for name, modules in API.items():
        title = "For your own parts" if name == "extending" else modules[0]
        text = "\n\n".join(f"::: {module}" for module in modules)
        (folder / f"{name}.md").write_text(f"# {title}\n\n{text}\n")


def options_page() -> str:
    """The help of every command."""
    from statewise.cli import COMMANDS
    from statewise.cli.strips import COMMANDS as STRIPS

    parts = ["# All options\n\nThe help of every command, as `statewise COMMAND --help` prints it.\n"]
    for words in [*([name] for name in COMMANDS), *(["strips", name] for name in STRIPS)]:
        parts.append(f"## statewise {' '.join(words)}\n\n````text\n{help_of(words)}\n````\n")
    return "\n".join(parts)


def help_of(words: list[str]) -> str:
    """What `statewise WORDS --help` prints."""
    from statewise.cli import main

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return said.getvalue().strip()


def recipes_page() -> str:
    """Every recipe of the package, as its file stands."""
    parts = ["# Recipes\n\nThe files of the recipes. [What recipes are](../recipes.md).\n"]
    for path in sorted((ROOT / "src/statewise/config/recipes").glob("*.yaml")):
        parts.append(f"## {path.stem}\n\n```yaml\n{path.read_text().strip()}\n```\n")
    return "\n".join(parts)


def without_network() -> None:
    """Lets the search work from the disk: the builder's script for that would come from another host."""
    shutil.copyfile(Path(__file__).parent / "frame_worker.js", SITE / "assets" / "frame_worker.js")
    for page in SITE.rglob("*.html"):
        up = os.path.relpath(SITE / "assets" / "frame_worker.js", page.parent)
        page.write_text(SHIM.sub(f'<script src="{up}"></script>', page.read_text()))


def main() -> int:
    """Builds the site; returns 1, and says what is wrong, if a link leads nowhere or a page loads from elsewhere."""
    os.environ["COLUMNS"] = "100"
    shutil.rmtree(PAGES, ignore_errors=True)
    stage()
    notebooks = add_notebooks()
    reference()
    builder = shutil.which("zensical", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if builder is None:
        print("zensical is not installed: pip install -e '.[docs]'", file=sys.stderr)
        return 2
    if code := subprocess.run([builder, "build", "--clean", "--strict"], cwd=ROOT).returncode:
        return code
    without_network()
    problems = check(SITE)
    for problem in problems:
        print(problem, file=sys.stderr)
    pages = len(list(SITE.rglob("*.html")))
    print(f"{pages} pages in {SITE.relative_to(ROOT)}/index.html, {notebooks} notebooks; {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
