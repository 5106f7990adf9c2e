import os
import shutil
import subprocess
import sys
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # of processes that tests start, too: as many tests run as there are cores

import pytest
import torch
from hypothesis import settings

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process that tests start compiles all sources
sys.dont_write_bytecode = False

sys.path.insert(0, str(Path(__file__).parent))  # so that every test finds `doubles`
sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))  # whose scripts import the parts they share


settings.register_profile("whatever else runs", deadline=None)  # tests assert behaviour, never times
settings.load_profile("whatever else runs")


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
    """Before tests are collected, since they are parametrised over the table."""
    import doubles

    from statewise.backbones import BACKBONES

    for name in config.getoption("--backbone"):
        doubles.TINY_BACKBONES[name] = doubles.tiny_of(BACKBONES[name])
    doubles.OWN_OBJECTIVES += config.getoption("--objective")


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
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def forked(monkeypatch):
    """Python processes start as forks of a server that has imported PyTorch (`forked.py`), in no time."""
    if not hasattr(os, "pidfd_open"):
        return  # they start as they are
    import forked

    forked.python()  # the server is a real process
    started = subprocess.Popen

    def start(command, *rest, **fields):
        own = isinstance(command, list) and command[:1] == [sys.executable] and command[1] != "-W"
        return started(forked.python(*command[1:]) if own else command, *rest, **fields)

    monkeypatch.setattr(subprocess, "Popen", start)


@pytest.fixture
def float64():
    """Everything made within is float64."""
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
