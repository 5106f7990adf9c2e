"""Who may import whom. The table is that of docs/architecture.md; a change to either is a change of design."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "statewise"

MAY_IMPORT = {
    "types": set(),
    "config": {"types"},
    "recipes": {"config"},
    "nn": {"types", "config"},
    "run": {"types", "config"},
    "tasks": {"types", "config", "strips"},
    "strips": {"types", "run", "reporting", "ledger"},
    "data": {"types", "tasks.base"},
    "backbones": {"nn", "types", "config"},
    "objectives": {"backbones.base", "nn", "decoding.base", "types", "config"},
    "decoding": {"types", "config"},
    "training": {"objectives.base", "data", "run", "types", "config"},
    "analysis": {
        "decoding.base",
        "decoding.continued",
        "decoding.sample",
        "tasks.base",
        "tasks.automaton",
        "tasks.manhattan",
        "data",
        "types",
        "config",
    },
    "infilling": {"decoding.base", "tasks.base", "data", "types"},
    "evaluation": {"decoding.base", "decoding.continued", "tasks.base", "data", "types"},
    "zero_shot": {"decoding.base", "tasks.base", "tasks.lines", "evaluation", "data", "types", "config"},
    "reporting": {"run", "types"},
    "ledger": set(),
    "judging": {"reporting.statistics", "tasks.lines", "ledger"},
    "experiment": {
        "__version__",
        "tasks",
        "analysis",
        "data",
        "backbones",
        "objectives",
        "decoding",
        "training",
        "evaluation",
        "infilling",
        "zero_shot",
        "run",
        "types",
        "config",
    },
    "throughput": {"experiment", "training", "config"},
    "launch": {"experiment", "data", "run", "training", "types", "config"},
    "cli": {
        "__version__",
        "experiment",
        "infilling",
        "zero_shot",
        "launch",
        "throughput",
        "ledger",
        "recipes",
        "reporting",
        "judging",
        "analysis",
        "strips",
        "run",
        "tasks",
        "backbones",
        "objectives",
        "decoding",
        "config",
        "types",
    },
}
ROOTS = {"__init__", "__main__"}  # these only hand on


def imports(path: Path) -> set[str]:
    """Modules of ours that a file imports, without the package's name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            # `from statewise.data import x` may name a module or a thing in it
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("statewise.") for name in found if name.startswith("statewise.")}


HEAVY = {
    *("torch", "lightning_fabric", "jsonargparse", "matplotlib", "scipy", "plotly", "rich"),
    *("tokenizers", "datasets", "openai", "unified_planning", "lm_eval"),
}


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_follow_the_table(path):
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if room in ROOTS:
        return
    for name in imports(path):
        allowed = MAY_IMPORT[room] | {room}
        assert any(name == ok or name.startswith(f"{ok}.") for ok in allowed), f"{room} may not import {name}"


def test_every_room_has_a_row():
    rooms = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in files()} - ROOTS
    assert rooms == set(MAY_IMPORT)


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys; print(*(name for name in sys.modules if '.' not in name))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_tasks_never_load_torch():
    assert "torch" not in modules_after(
        "from statewise.tasks import TASKS\n[TASKS[name] for name in TASKS]"
    )  # fmt: skip


@pytest.mark.parametrize(
    "verb",
    [
        "list",
        "--help",
        "--version",
        "train --help",
        "judge --help",
        "score --help",
        "lm-eval --help",
        "strips --help",
        "strips learn --help",
        "data text --help",
    ],
)
def test_help_and_list_load_nothing_heavy(verb):
    loaded = modules_after(
        f"import sys\nfrom statewise.cli import main\nout, sys.stdout = sys.stdout, open('/dev/null', 'w')\n"
        f"try: main({verb.split()!r})\nexcept SystemExit: pass\nsys.stdout = out"
    )
    assert not loaded & HEAVY


def test_no_file_is_too_long():
    for path in files():
        assert len(path.read_text().splitlines()) <= 400, f"{path}: does it still hold one idea?"


@pytest.mark.parametrize("path", sorted((SOURCE / "strips").glob("*.py")), ids=lambda path: path.stem)
def test_the_strips_wing_loads_without_what_it_may_not_need(path):
    loaded = modules_after(
        f"import statewise.strips.{path.stem}" if path.stem != "__init__" else "import statewise.strips"
    )
    assert not loaded & (HEAVY - {"torch"})
    assert ("torch" in loaded) == (path.stem in ("transformer", "restarts"))
