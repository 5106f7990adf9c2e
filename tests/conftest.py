import base64
import contextlib
import copy
import functools
import gc
import hashlib
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # of processes that tests start, too: as many tests run as there are cores

import pytest
from filelock import FileLock

gc.disable()  # until tests run: modules and cases are no garbage
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process that tests start compiles all sources
sys.dont_write_bytecode = False

sys.path.insert(0, str(Path(__file__).parent))  # so that every test finds `doubles`
sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))  # whose scripts import the parts they share


def pytest_addoption(parser):
    parser.addoption(
        "--backbone",
        action="append",
        default=[],
        metavar="MODULE:CLASS",
        help="backbone of another package for the contract suite (docs/adding-a-backbone.md)",
    )
    parser.addoption(
        "--one-case", action="store_true", help="only the first case of each test, for the inner loop (`make check`)"
    )
    parser.addoption(
        "--objective",
        action="append",
        default=[],
        metavar="MODULE:CLASS",
        help="objective of another package for the same (docs/adding-an-objective.md)",
    )


def pytest_configure(config):
    """Before tests are collected, since they are parametrised over the table. The process that hands tests out to
    others needs none of it."""
    if config.getoption("numprocesses", None) and "PYTEST_XDIST_WORKER" not in os.environ:
        return
    from hypothesis import settings

    settings.register_profile("whatever else runs", deadline=None)  # tests assert behaviour, never times
    settings.load_profile("whatever else runs")
    parse_the_same_once()
    leave_out_what_no_test_sees()
    import doubles

    from statewise.backbones import BACKBONES

    for name in config.getoption("--backbone"):
        doubles.TINY_BACKBONES[name] = doubles.tiny_of(BACKBONES[name])
    doubles.OWN_OBJECTIVES += config.getoption("--objective")


def pytest_collection_finish(session):
    """What was loaded and collected so far stays until the end: no collection of garbage looks at it again."""
    gc.freeze()
    gc.set_threshold(10_000)  # of 700: what tests load is large, and looking through it took a twentieth of their time
    gc.enable()


def pytest_collection_modifyitems(config, items):
    """With `--one-case`, keeps the first case of each test."""
    if config.getoption("--one-case"):
        first = {}
        for item in items:
            first.setdefault(item.nodeid.partition("[")[0], item)
        others = [item for item in items if first[item.nodeid.partition("[")[0]] is not item]
        config.hook.pytest_deselected(items=others)
        items[:] = list(first.values())


@pytest.fixture(autouse=True)
def alike():
    """Whatever ran before. Tests are small: threads would only wait for each other, and a training run, or a benchmark,
    may have set more."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)


PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg==")
MARKED = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAAEnRFWHRTb2Z0d2FyZQBzdGF0ZXdpc2WildSvAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg=="
)
"""The same, with the mark by which `strips show` recognises its own."""
REAL = {}
"""What draws pictures."""


def leave_out_what_no_test_sees():
    """Figures are laid out as ever, but a single pixel stands for each PNG: matplotlib's part is half of the time of a
    command that draws. Files are not waited for until they are on disk, since no test cuts the power; one that is
    closed fails as ever. PyTorch would write down a stack trace at each seed, for each absent kind of device."""
    import torch

    from statewise.reporting import drawings, plots
    from statewise.runtime.durable import write_atomically
    from statewise.strips.write import pictures

    REAL.update(png=plots.png, save=pictures._save)
    for module in (drawings, plots):
        module.png = lambda figure: PIXEL
    pictures._save = lambda figure, path: write_atomically(path, MARKED)
    os.fsync = lambda file: os.stat(file) and None
    for device in (torch.cuda, torch.xpu, torch.mtia):
        if not device.is_available():
            device.manual_seed_all = lambda seed: None


def parse_the_same_once():
    """Equal YAML, flags and fields: reading the same recipes, runs and options anew took a quarter of the time of
    commands. Called before other modules import `fill`."""
    import yaml

    from statewise.config import recipe

    load, fill, filled = yaml.load, recipe.fill, {}
    loaded, parsed = functools.lru_cache(4000)(load), functools.lru_cache(4000)(recipe._parsed)

    def fill_once(config, fields, what):
        key = config, repr(fields), what
        if key not in filled:
            filled[key] = fill(config, fields, what)
        return copy.copy(filled[key])

    yaml.load = lambda text, Loader: copy.deepcopy((loaded if isinstance(text, (str, bytes)) else load)(text, Loader))
    recipe._parsed = lambda parser, flags: parsed(parser, tuple(flags)).clone()
    recipe.fill = fill_once


@pytest.fixture
def rendered(monkeypatch):
    """Pictures are real."""
    for name in ("reporting.drawings.png", "reporting.plots.png"):
        monkeypatch.setattr(f"statewise.{name}", REAL["png"])
    monkeypatch.setattr("statewise.strips.write.pictures._save", REAL["save"])


@pytest.fixture
def forked(monkeypatch):
    """Python processes start as forks of a server that has imported PyTorch (`forked.py`), in no time."""
    if not hasattr(os, "pidfd_open"):
        return  # they start as they are
    import forked

    forked.python()  # the server is a real process
    started, own_python = subprocess.Popen, sys.executable  # which tests replace

    def start(command, *rest, **fields):
        own = isinstance(command, list) and command[:1] == [own_python] and command[1] != "-W"
        return started(forked.python(*command[1:]) if own else command, *rest, **fields)

    monkeypatch.setattr(subprocess, "Popen", start)


def stamps(folder: Path) -> str:
    """Path, length and time of change of each file in a folder."""
    found = sorted((path.relative_to(folder), path.stat()) for path in folder.rglob("*") if path.is_file())
    return "\n".join(f"{path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in found)


@contextlib.contextmanager
def unnoticed():
    """What happens within prints nothing unless it fails, and changes neither random numbers nor threads."""
    import torch

    threads, output = torch.get_num_threads(), io.StringIO()
    try:
        with torch.random.fork_rng([]), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            torch.manual_seed(0)
            yield
    except BaseException:
        print(output.getvalue())
        raise
    finally:
        torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """`made_once(key, make)` is a folder that `make(folder)` creates and fills, once for all workers and modules.

    Whatever `make` depends on belongs in the key, or in the values that follow: `made_once("corpus", make, 40)`; `name`
    is the folder's own. Call it in a fixture of a module, before anything is patched.
    Tests share the folder, so none writes into it: one that must write copies it first
    (`shutil.copytree(folder, tmp_path / "run")`). A folder that has changed by the end of the session is an error."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # that of all workers
    used = {}

    def made(key: str, make: Callable[[Path], object], *values: object, name: str = "run") -> Path:
        place = shared / "made" / hashlib.sha256(repr((key, values, name)).encode()).hexdigest()[:16]
        if place not in used:
            place.mkdir(parents=True, exist_ok=True)
            with FileLock(place / "lock"):
                if not (place / "stamps").exists():
                    shutil.rmtree(place / name, ignore_errors=True)  # of one that failed
                    with unnoticed():
                        make(place / name)
                    (place / "stamps").write_text(stamps(place / name))
            used[place] = place / name
        return used[place]

    yield made
    for place, folder in used.items():
        assert stamps(folder) == (place / "stamps").read_text(), f"a test has changed {folder}, which tests share"


@pytest.fixture(scope="session")
def trained(made_once):
    """`trained(recipe, *flags)` is the folder of a run that `statewise train RECIPE FLAGS --out FOLDER` made, once for
    all workers and modules. As for `made_once`, a test that writes into it copies it first."""

    def made(*words: object, name: str = "run") -> Path:
        from statewise.cli import main

        def train(folder):
            assert main(["train", *map(str, words), "--out", str(folder)]) == 0

        return made_once("train", train, *map(str, words), name=name)

    return made


@pytest.fixture(scope="session")
def two_steps(trained):
    """The folder of a run of path-star-small after two steps, which tests share."""
    from doubles import SMALL_RUN

    flags = ["--task.held_out_graphs=40", "--trainer.steps=2", "--trainer.warmup_steps=0"]
    return trained("path-star-small", *SMALL_RUN, *flags)


@pytest.fixture
def float64():
    """Everything made within is float64."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def attention_without_padding(monkeypatch):
    """Keys that attention adds to short rows are no part of what a model costs, but a counter sees them."""
    monkeypatch.setattr("statewise.backbones.nn.attention.SOFTMAX_FROM", 0)


@pytest.fixture(scope="module")
def browser():
    """A real browser: the system's Chromium, or that of the variable CHROMIUM (extra `browser`)."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = os.environ.get("CHROMIUM") or next((path for name in names if (path := shutil.which(name))), None)
    if path is None:
        pytest.skip("needs Chromium: install it, or set the variable CHROMIUM")
    with playwright.sync_playwright() as made:
        found = made.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()
