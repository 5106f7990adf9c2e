"""What differs between systems: modules that only some have, and accelerators."""

import subprocess
import sys

import pytest
import torch
from doubles import SMALL_RUN

from statewise.training.machine import choose_device, choose_precision

WITHOUT = """
import sys
sys.modules["fcntl"] = sys.modules["resource"] = None
import importlib, pkgutil, warnings
warnings.simplefilter("ignore")  # that locks are files then
import statewise
from statewise.runtime import system
from statewise.runtime.durable import lock
sys.modules["transformers"] = None  # which has needs of its own on each system
for module in pkgutil.walk_packages(statewise.__path__, "statewise."):
    try:
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] not in ("lm_eval", "transformers"):  # extras
            raise
assert system.peak_memory() is None
from pathlib import Path
held = Path(sys.argv[1]) / "x.lock"
with lock(held, "taken"):
    try:
        with lock(held, "taken"):
            raise SystemExit("two have the lock")
    except BlockingIOError:
        pass
assert not held.exists()
from statewise.cli import main
raise SystemExit(main(sys.argv[2:]))
"""


def test_it_loads_and_trains_where_fcntl_and_resource_are_not(tmp_path):
    flags = [*SMALL_RUN, "--task.held_out_graphs=4", "--trainer.steps=2", "--trainer.warmup_steps=0"]
    words = ["train", "path-star-small", *flags, "--out", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(tmp_path), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "end: steps" in done.stdout


@pytest.mark.parametrize("name", ["mps", "xpu"])
def test_an_accelerator_is_taken_where_torch_reports_it(monkeypatch, name):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(ValueError, match=f"there is no device '{name}' here: PyTorch reports cpu$"):
        choose_device(name)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(name))
    assert choose_device(name) == name
    assert choose_device("cpu") == "cpu"
    assert choose_precision("auto", name) == "fp32"
    with pytest.raises(ValueError, match=f"no device 'cuda' here: PyTorch reports cpu and {name}"):
        choose_device("cuda")
