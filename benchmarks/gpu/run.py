"""Everything that needs a GPU to be seen, the most valuable first: solve rates of star graphs, correctness against the
CPU, steps with and without compiling, the pair loss, G(5,5), exact resuming, step times of all objectives, attention,
A5, and, where text is given, two streams of size XS.

python benchmarks/gpu/run.py [--out DIR] [--only STEP ...] [--minutes N] [--text FILE ...]

Each step runs in a process of its own, for at most five minutes; trainings, which are suites of benchmarks/suites,
for --minutes (25). Figures are kept in DIR/figures.json as soon as a step ends, and the page DIR/page.md is written
anew; the same command continues with the steps that are missing or failed, and with runs that are not finished.
With --smoke, all steps run on the CPU at tiny sizes.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # the frame of all benchmarks stands there
import torch
from gpu.machine import Machine
from gpu.page import page
from gpu.steps import steps
from gpu.suites import TRAININGS
from timing import Benchmark, parser

from statewise.config.trainer import TrainerConfig
from statewise.training.machine import describe

LIMIT = 300
"""Most seconds of a step."""


def main(words: Sequence[str] | None = None) -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--out", type=Path, default=Path("runs/gpu"), help="where figures are kept (runs/gpu)")
    arguments.add_argument("--only", nargs="+", metavar="STEP", help="steps whose names begin so")
    arguments.add_argument("--step", help="one step in this process; prints its figures")
    arguments.add_argument("--minutes", type=float, default=25, help="most minutes of each training (25)")
    arguments.add_argument(
        "--text", type=Path, nargs="+", default=[], metavar="FILE", help="text files for two streams"
    )
    options = arguments.parse_args(words)
    if options.smoke:
        with tempfile.TemporaryDirectory() as name:
            return run_all(Machine("cpu", True, Path(name)), options.only)
    for path in options.text:
        if not path.is_file():
            print(f"--text {path}: no such file", file=sys.stderr)
            return 2
    if not torch.cuda.is_available():
        print(
            "make gpu needs a CUDA GPU, and PyTorch finds none: run it on a machine with one, with a PyTorch built "
            "for CUDA; --smoke runs all steps on the CPU at tiny sizes",
            file=sys.stderr,
        )
        return 2
    if not options.minutes > 0:
        print(f"--minutes {options.minutes:g}: must be above 0", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # trainings that run are stopped and saved
    where = Machine("cuda", False, options.out, tuple(options.text))
    where.folder.mkdir(parents=True, exist_ok=True)
    if options.step:
        (where.folder / "step.json").write_text(json.dumps(figures(where, options.step)))
        return 0
    return run_all(where, options.only, options.minutes)


def order(where: Machine) -> list[str]:
    """The names of all steps, in the order in which they are run."""
    small = list(steps(where))
    if where.smoke:  # suites have smoke runs of their own
        return small
    first = small.index("pair loss") + 1
    on_text = ["two streams, XS"] if where.text else []
    return ["solve", *small[:first], "G(5,5)", *small[first:], "A5", *on_text]


def run_all(where: Machine, only: Sequence[str] | None = None, minutes: float = 25) -> int:
    """Runs the steps that have no figures yet or runs to be continued. Returns the exit code."""
    bench = Benchmark(where.smoke)
    at = describe(TrainerConfig(device=where.device))
    path = where.folder / "figures.json"
    found: dict[str, Any] = {"date": str(date.today()), "machine": at, "steps": {}}
    if path.exists():
        found = json.loads(path.read_text())
        before, now = (one["device_name"] for one in (found["machine"], at))
        if before != now:
            print(f"{path} has figures of {before}, and this is {now}: set --out to another folder", file=sys.stderr)
            return 2
    failed = False
    chosen = [name for name in order(where) if not only or name.startswith(tuple(only))]
    if not where.text and not only and not where.smoke:
        print("two streams of size XS are left out: --text FILE names text to train on")
    if not chosen:
        print(f"--only {' '.join(only or ())}: the steps are {', '.join(order(where))}", file=sys.stderr)
        return 2
    for name in chosen:
        kept = found["steps"].get(name)
        if kept is None or "error" in kept or kept.get("left"):
            print(f"== {name}", flush=True)
            found["steps"][name] = kept = apart(where, name, minutes)
            path.write_text(json.dumps(found, indent=1))
            (where.folder / "page.md").write_text(page(found))
        if "error" in kept:
            failed = True
            print(f"  failed: {kept['error']}", flush=True)
        if kept.get("left"):
            print(f"  {kept['left']} runs are not finished: the same command continues them", flush=True)
        for what, value, sign, bar in kept.get("bars", []):
            (bench.at_least if sign == ">=" else bench.at_most)(what, value, bar)
    print(f"wrote {path} and {where.folder / 'page.md'}")
    return 1 if failed else bench.exit_code()


def apart(where: Machine, name: str, minutes: float) -> dict[str, Any]:
    """The figures of a step, from a process of its own; of a training, whose runs are processes, too."""
    if where.smoke or name in TRAININGS:
        return figures(where, name, minutes)
    result, began = where.folder / "step.json", time.monotonic()
    result.unlink(missing_ok=True)
    text = ["--text", *map(str, where.text)] if where.text else []
    command = [sys.executable, __file__, "--out", str(where.folder), "--step", name, *text]
    error = None
    try:
        code = subprocess.run(command, timeout=LIMIT, check=False).returncode
        error = None if code == 0 and result.exists() else f"the process ended with code {code}"
    except subprocess.TimeoutExpired:
        error = f"took more than {LIMIT} seconds"
    if error is not None:
        return {"seconds": time.monotonic() - began, "error": error}
    made: dict[str, Any] = json.loads(result.read_text())
    return made


def figures(where: Machine, name: str, minutes: float = 25) -> dict[str, Any]:
    """The figures of a step, in this process."""
    began = time.monotonic()
    try:
        made = TRAININGS[name](where, minutes) if name in TRAININGS else steps(where)[name](where)
    except Exception:
        return {"seconds": time.monotonic() - began, "error": traceback.format_exc(limit=-6)}
    return {"seconds": time.monotonic() - began, "values": made.values, "bars": made.bars, "left": made.left}


if __name__ == "__main__":
    sys.exit(main())
