"""What this installation and machine have, what is slow on it, and whether a tiny run trains, resumes and loads."""

from __future__ import annotations

import os
import platform
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from statewise.runtime.messages import in_words, packages_of, to_install
from statewise.runtime.system import cores
from statewise.runtime.version import __version__

if TYPE_CHECKING:
    from statewise.config.recipe import Recipe
    from statewise.model.model import Model

INSTRUCTIONS = {"amx_bf16": "AMX bf16", "avx512_bf16": "AVX-512 bf16", "avx512_f": "AVX-512", "avx2": "AVX2"}
"""Features of processors, by their names in PyTorch, that make training faster, the fastest first."""
TINY = (
    *(
        "--backbone.layers=1",
        "--backbone.width=32",
        "--backbone.heads=2",
        "--trainer.steps=6",
        "--trainer.batch_size=8",
    ),
    *("--trainer.evaluate_every=3", "--trainer.checkpoint_every=3", "--trainer.evaluate_num=8", "--trainer.device=cpu"),
    "--task.held_out_graphs=40",
)
"""Fields of the run of the self-test."""
SLOW_SYNC = 0.05
"""Seconds from which a write to disk counts as slow."""
SMALL_MEMORY = 8.0
"""GiB of memory below which larger recipes may not fit."""


@dataclass(frozen=True)
class Extra:
    """An extra of this installation."""

    name: str
    packages: dict[str, str | None]
    """Version of each package that it needs; None: not installed."""
    install: str
    """The command that installs what is missing; empty if nothing is."""


@dataclass(frozen=True)
class Check:
    """A part of the self-test."""

    name: str
    passed: bool
    seconds: float
    message: str
    """Why it failed; empty if it passed."""


def versions() -> dict[str, str]:
    """Versions of statewise, Python, the system, and the packages of the core; `missing` for one not installed."""
    found = {"statewise": __version__, "Python": platform.python_version(), "system": platform.platform()}
    for name in ("torch", "numpy", "scipy", "matplotlib", "safetensors", "jsonargparse", "rich", "jinja2"):
        found[name] = _version(name) or "missing"
    return found


def extras() -> list[Extra]:
    """The extras for users, with the versions of their packages. Empty if statewise runs from a folder of sources that
    no package manager has installed."""
    try:
        names = metadata.metadata("statewise").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        return []
    found = []
    for name in sorted({*names} - {"dev", "docs"}):
        packages = {package: _version(package) for package in map(_name, packages_of(name))}
        found.append(Extra(name, packages, to_install(name) if None in packages.values() else ""))
    return found


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def machine() -> dict[str, str]:
    """Processor, memory, and accelerators of this machine, and the precision that training chooses on it, in words."""
    import torch

    from statewise.training.machine import choose_device, choose_precision, machine_bytes, processor_name

    has = _instructions()
    memory = machine_bytes()
    found = {
        "processor": processor_name(),
        "instructions": ", ".join(name for key, name in INSTRUCTIONS.items() if has.get(key)) or "none that matter",
        "memory": "unknown" if memory is None else f"{memory / 2**30:,.0f} GiB",
        "threads of PyTorch": str(torch.get_num_threads()),
    }
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        found[f"cuda:{number}"] = f"{about.name}, {about.total_memory / 2**30:,.0f} GiB"
    if torch.backends.mps.is_available():
        found["mps"] = "Apple GPU"
    device = choose_device("auto")
    found["trains on"] = f"{device}, {choose_precision('auto', device)}"
    return found


def _instructions() -> dict[str, object]:
    import torch

    found: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return found


def slow(folder: Path) -> list[str]:
    """What is slow on this machine, in sentences, by its features and by short measurements; those of the disk are made
    in `folder`."""
    import torch

    from statewise.training.machine import choose_device, choose_precision, machine_bytes

    found = []
    if choose_device("auto") == "cpu":
        found.append("No GPU that PyTorch can use: train the small recipes (`statewise list`) here.")
        fp32, bf16 = (_products(dtype) for dtype in (torch.float32, torch.bfloat16))
        measured = f"matrix products run at {fp32:,.0f} GFLOP/s in fp32 and {bf16:,.0f} in bf16"
        if choose_precision("auto", "cpu") == "fp32":
            found.append(f"The processor has no bf16 instructions, and trains in fp32: {measured}.")
        elif bf16 < 1.5 * fp32:
            found.append(f"bf16 is hardly faster than fp32: {measured}. Another process may use the cores.")
    if torch.get_num_threads() > cores():
        found.append(
            f"PyTorch has {torch.get_num_threads()} threads for {cores()} cores: set OMP_NUM_THREADS={cores()}."
        )
    elif torch.get_num_threads() < cores():
        found.append(f"PyTorch uses {torch.get_num_threads()} of {cores()} cores: OMP_NUM_THREADS may be set.")
    if hasattr(os, "getloadavg") and (load := os.getloadavg()[0]) > 1.5 * cores():
        found.append(f"Other processes use this machine: its load is {load:.1f}, with {cores()} cores.")
    if (took := _sync(folder)) > SLOW_SYNC:
        found.append(f"A write to disk takes {took * 1e3:,.0f} ms in {folder}: checkpoints will take long there.")
    memory = machine_bytes()
    if memory is not None and memory / 2**30 < SMALL_MEMORY:
        found.append(f"There are {memory / 2**30:.1f} GiB of memory: `train --dry-run` says what a recipe needs.")
    return found


def _products(dtype: object) -> float:
    """GFLOP/s of matrix products on the CPU, the best of some."""
    import torch

    size = 512
    one = torch.ones(size, size, dtype=dtype)  # type: ignore[call-overload]
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        one @ one
        best = min(best, time.perf_counter() - began)
    return float(2 * size**3 / best / 1e9)


def _sync(folder: Path) -> float:
    """Seconds until 1 MiB is on the disk of `folder`, the best of three."""
    took = []
    for _ in range(3):
        with tempfile.TemporaryFile(dir=folder) as file:
            began = time.perf_counter()
            file.write(bytes(2**20))
            file.flush()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - began)
    return min(took)


class _Stop(Exception):
    """Stops the training that is to be resumed."""


def self_test(folder: Path) -> list[Check]:
    """Trains a tiny run in `folder`, trains it again with a stop and a resumption, and loads it. Each check says why it
    failed; those that depend on a failed one fail, too."""
    from statewise.model.recipes import read_recipe

    checks = []

    def check(name: str, work: Callable[[], str]) -> None:
        began = time.perf_counter()
        try:
            message = work()
        except Exception as error:  # any error is what is looked for
            message = f"{type(error).__name__}: {in_words(error)}"
        checks.append(Check(name, not message, time.perf_counter() - began, message))

    def tiny() -> Recipe:
        from statewise.config.recipes import recipe_text

        return read_recipe(recipe_text("path-star-tiny"), TINY, "self-test")

    check("a tiny run trains", lambda: _trains(tiny(), folder))
    check("a resumed run is the same, bit for bit", lambda: _resumes(tiny(), folder))
    check("the run loads and completes a prompt", lambda: _loads(folder))
    return checks


def _trains(recipe: Recipe, folder: Path) -> str:
    from statewise.experiments.launch import train

    outcome = train(recipe, folder / "whole")
    return "" if outcome.step == recipe.trainer.steps else f"it ended at step {outcome.step}"


def _resumes(recipe: Recipe, folder: Path) -> str:
    from statewise.experiments.launch import Listener, resume, train

    def stop(step: int) -> None:
        if step == 4:
            raise _Stop

    try:
        train(recipe, folder / "cut", listener=Listener(step=stop))
    except _Stop:
        resume(folder / "cut")
    whole, cut = (_loaded(folder / name).fingerprint() for name in ("whole", "cut"))
    return "" if whole == cut else "its weights differ from those of a run without a stop"


def _loads(folder: Path) -> str:
    from statewise.run import Run

    model = _loaded(folder / "whole", "best")
    report = Run(folder / "whole").report("evaluation")
    if report is None:
        return "training wrote no report"
    sample = report["samples"][0]
    (completion,) = model.generate([sample["prompt"]])
    told = model.task.continuation(sample["prompt"], completion.tokens)
    return "" if told.strip() == sample["predicted"].strip() else f"it says {told!r}, and said {sample['predicted']!r}"


def _loaded(folder: Path, checkpoint: str = "last") -> Model:
    from statewise.model.model import load_model

    return load_model(folder, checkpoint, "cpu")
