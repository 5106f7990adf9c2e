"""Who may import whom. The table is read from docs/architecture.md: it stands there and nowhere else."""

import ast
import importlib
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from statewise import strips
from statewise.cli import COMMANDS
from statewise.strips import MODULE_OF

SOURCE = Path(__file__).parent.parent / "src" / "statewise"

PAGE = Path(__file__).parent.parent / "docs" / "architecture.md"


def read_table(text: str) -> tuple[dict[str, set[str]], set[str]]:
    """What each module of the page's table may import besides itself, and what every module may."""
    rows = re.findall(
        r"^\| (.+?) \| (.*?) \| (.*?) ?\|$", text.split("## Rooms, and who may import whom")[1].split("\n## ")[0], re.M
    )
    table: dict[str, set[str]] = {}
    everywhere: set[str] = set()
    for modules, allowed, _ in rows[2:]:
        names = set(re.findall(r"`(.+?)`", allowed))
        assert names or allowed == "nothing", f"{modules}: {allowed!r} names no module"
        if modules == "every room":
            everywhere = names
        for module in re.findall(r"`(.+?)`", modules):
            assert module not in table, f"{module} has two rows"
            table[module] = names
    return table, everywhere


MAY_IMPORT, EVERYWHERE = read_table(PAGE.read_text(encoding="utf-8"))
ROOTS = {"__init__", "__main__"}  # these only hand on


@cache
def imports(path: Path) -> set[str]:
    """Modules of ours that a file imports, without the package's name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            # `from statewise.tasks.batches import x` may name a module or a thing in it
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("statewise.") for name in found if name.startswith("statewise.")}


HEAVY = {
    *("torch", "lightning_fabric", "jsonargparse", "matplotlib", "scipy", "rich"),
    *("tokenizers", "datasets", "openai", "unified_planning", "lm_eval"),
}


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def name_of(name: str) -> str:
    """The row for a module: the longest one that its name begins with."""
    return max((row for row in MAY_IMPORT if within(name, {row})), key=len, default=name.partition(".")[0])


def within(name: str, modules: set[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


@pytest.mark.parametrize("room", [room for room in MAY_IMPORT if (SOURCE / room.replace(".", "/")).is_dir()])
def test_a_room_begins_with_what_it_may_import(room):
    text = ast.get_docstring(ast.parse((SOURCE / room.replace(".", "/") / "__init__.py").read_text())) or ""
    assert "mport" in text
    if "every room" not in text:
        missing = {
            one for one in MAY_IMPORT[room] if f"`{one}`" not in text and f"`{one.removeprefix('strips.')}`" not in text
        }
        assert not missing


def test_imports_follow_the_table():
    faults = []
    for path in files():
        module = name_of(".".join(path.relative_to(SOURCE).with_suffix("").parts))
        if module not in ROOTS:
            allowed = MAY_IMPORT[module] | EVERYWHERE
            faults += [
                f"{path}: {name}" for name in imports(path) if name_of(name) != module and not within(name, allowed)
            ]
    assert not faults, f"see the table of {PAGE.name}"


def test_the_rooms_of_the_table_stand_in_order():
    """A room imports only from rooms above its row, so rooms cannot import each other in a circle."""
    above: set[str] = set()
    for room, allowed in MAY_IMPORT.items():
        below = {name for name in allowed if not any(within(name, {row}) for row in above)}
        assert not below, f"{room} imports from below its row"
        above.add(room)


def test_other_rooms_import_only_the_public_names_of_strips():
    """What others import from `strips` is a name of its face, not a module behind it."""
    face = {f"strips.{name}" for name in MODULE_OF}
    for path in files():
        if path.relative_to(SOURCE).parts[0] != "strips":
            deeper = {name for name in imports(path) if within(name, {"strips"})} - face
            assert not deeper, f"{path.name}: import from statewise.strips itself"


def test_a_face_gives_what_it_names():
    modules = {path.stem for path in (SOURCE / "strips").glob("*.py")}
    assert not modules & set(MODULE_OF)  # a module of that name would take its place once it is imported
    for name, module in MODULE_OF.items():
        assert getattr(strips, name) is getattr(importlib.import_module(f"statewise.strips.{module}"), name)
        assert name in dir(strips)
    with pytest.raises(AttributeError, match="nothing_of_ours"):
        strips.nothing_of_ours  # noqa: B018


def test_every_room_has_a_row():
    modules = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in files()} - ROOTS
    assert modules == {module for module in MAY_IMPORT if "." not in module}
    divided = {row.rpartition(".")[0] for row in MAY_IMPORT if "." in row}
    rooms = {f"{of}.{path.parent.name}" for of in divided for path in (SOURCE / of).glob("*/__init__.py")}
    assert rooms == {row for row in MAY_IMPORT if "." in row}


def test_the_table_allows_nothing_that_nobody_uses():
    used: dict[str, set[str]] = {}
    for path in files():
        used.setdefault(name_of(".".join(path.relative_to(SOURCE).with_suffix("").parts)), set()).update(imports(path))
    idle = [
        f"{module}: {name}"
        for module, allowed in MAY_IMPORT.items()
        for name in sorted(allowed)
        if not any(within(one, {name}) for one in used[module])
    ]
    assert not idle, f"strike these from the table of {PAGE.name}"


def test_modules_import_each_other_in_no_circle():
    """Wherever they import: at the top, in functions, or for types alone. Packages are left out, which hand on."""
    names = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in files()}
    within = {
        name: {found for used in imports(path) for found in (used, used.rpartition(".")[0]) if found in names} - {name}
        for name, path in names.items()
    }
    TopologicalSorter(within).prepare()


def test_no_command_imports_another():
    """What several commands need is in a module of its own, or in the library."""
    for path in (SOURCE / "cli").glob("*.py"):
        others = {f"cli.{name.replace('-', '_')}" for name in COMMANDS} - {f"cli.{path.stem}"}
        assert not [name for name in imports(path) if within(name, others)], path.name


def loaded_with(path: Path) -> set[Path]:
    """The files of ours that an import of this one loads, itself included: what it imports at the top, and so on."""
    found, left = set[Path](), [path]
    while left:
        path = left.pop()
        if path not in found:
            found.add(path)
            left += imported_at_once(path)
    return found


@cache
def imported_at_once(path: Path) -> set[Path]:
    """The files of ours that a file imports when it is imported: not in functions, and not for types alone."""
    names, left = set[str](), list[ast.stmt](ast.parse(path.read_text()).body)
    while left:
        node = left.pop()
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            left += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for field in ("body", "orelse", "finalbody"):
                left += getattr(node, field, [])
    places = [SOURCE.parent.joinpath(*name.split(".")) for name in names if name.startswith("statewise.")]
    return {file for place in places for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()}


@pytest.mark.parametrize(
    ("module", "most"), [("training/trainer", 25), ("experiments/launch", 45), ("objectives/next_token", 15)]
)
def test_few_files_stand_between_a_reader_and_a_training_step(module, most):
    found = {path.relative_to(SOURCE).as_posix() for path in loaded_with(SOURCE / f"{module}.py")}
    assert len(found) <= most, sorted(found)


def test_training_loads_neither_analyses_nor_models_for_users():
    loaded = {path.relative_to(SOURCE).as_posix() for path in loaded_with(SOURCE / "experiments/launch.py")}
    assert "evaluation/evaluate.py" in loaded
    assert not [name for name in loaded if name.startswith("analysis/") or name == "model/model.py"]
    trainer = {path.relative_to(SOURCE).parts[0] for path in loaded_with(SOURCE / "training/trainer.py")}
    assert trainer <= {"batch.py", "data_types.py", "run", "runtime", "training"}


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys; print(*(name for name in sys.modules if '.' not in name))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_tasks_never_load_torch():
    assert "torch" not in modules_after("from statewise.tasks import TASKS\n[TASKS[name] for name in TASKS]")


VERBS = [
    "list",
    "--help",
    "--version",
    "train --help",
    "train path-star-small --objective next_latent --help",
    "analyze future-probe --help",
    "judge --help",
    "score --help",
    "lm-eval --help",
    "strips --help",
    "strips learn --help",
    "data text --help",
]


def test_help_and_list_load_nothing_heavy():
    """One process for all: what is heavy stays loaded, and the first command after which it is there loads it."""
    code = f"""
import contextlib, io, sys
from statewise.cli import main
for verb in {VERBS}:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main(verb.split())
    print(verb, len(out.getvalue()) > 5, *sorted({HEAVY} & set(sys.modules)), sep="|")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{verb}|True" for verb in VERBS]


@pytest.mark.parametrize("words", [["path-star-small", "--out", "{}/run"], ["--resume", "{}"]], ids=["new", "resumed"])
def test_training_speaks_before_it_loads_anything_heavy(words, tmp_path):
    given = [word.format(tmp_path) for word in words]
    code = f"import sys\nsys.modules['torch'] = None\nfrom statewise.cli import main\nmain(['train', *{given!r}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "import of torch halted" in done.stderr
    assert done.stdout.endswith(": loading PyTorch\n")


def test_models_load_no_compiler_before_it_is_needed():
    """It takes as long as PyTorch itself, and only optimisers and `torch.compile` need it. Recipes are checked by
    models without memory. Fabric is for several devices."""
    code = """
import sys, torch
import statewise.experiments.launch
from statewise.model.building import make_objective, make_task
from statewise.model.recipes import read_recipe
from statewise.model.model import new_model
from statewise.objectives import OBJECTIVES
from statewise.config.recipes import recipe_text
[OBJECTIVES[name] for name in OBJECTIVES]
for backbone in ("gpt", "deltanet", "recurrent"):
    recipe = read_recipe(f"{{task: path_star, backbone: {backbone}, objective: next_latent}}")
    with torch.device("meta"):
        made = make_objective(recipe, make_task(recipe))
    assert all(parameter.is_meta for parameter in made.parameters())
new_model(read_recipe(recipe_text("path-star-small"), ["--task.held_out_graphs=4"])).evaluate()
print("torch._dynamo" in sys.modules, "lightning_fabric" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_strips_loads_without_what_it_may_not_need():
    names = (
        ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts) for path in (SOURCE / "strips").rglob("*.py")
    )
    plain = sorted(name.removesuffix(".__init__") for name in names)
    plain.remove("statewise.strips.neural.transformer")  # which trains
    assert not modules_after(f"import {', '.join(plain)}") & HEAVY
