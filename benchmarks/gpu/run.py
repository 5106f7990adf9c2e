"""Everything that needs a GPU to be seen: correctness against the CPU, exact resuming, step times of all objectives,
the pair loss, attention, torch.compile, and learning curves on G(5,5).

python benchmarks/gpu/run.py [--out DIR] [--only STEP ...] [--long [--text FILE ...]]

With --long there are also curves of ten minutes each: G(5,5) and G(2,20) in both regimes, A5 at the size of the paper,
and, where text is given, two streams of size XS.

Each step runs in a process of its own, for at most two minutes, or ten. Its figures are kept in DIR/figures.json as
soon as it ends, and the page DIR/page.md is written anew; the same command continues with the steps that are missing or
failed.
With --smoke, all steps run on the CPU at tiny sizes.
"""

from __future__ import annotations

import json
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
from gpu.page import page
from gpu.steps import Machine, long_steps, steps
from timing import Benchmark, parser

from statewise.config.trainer import TrainerConfig
from statewise.training.machine import describe

LIMIT, LONG_LIMIT = 120, 600
"""Most seconds of a step, and of a long one."""


def main(words: Sequence[str] | None = None) -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--out", type=Path, default=Path("runs/gpu"), help="where figures are kept (runs/gpu)")
    arguments.add_argument("--only", nargs="+", metavar="STEP", help="steps whose names begin so")
    arguments.add_argument("--step", help="one step in this process; prints its figures")
    arguments.add_argument("--long", action="store_true", help="also the curves of ten minutes each")
    arguments.add_argument("--text", type=Path, nargs="+", default=[], metavar="FILE", help="text for two streams")
    options = arguments.parse_args(words)
    if options.smoke:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            text = folder / "text.txt"
            text.write_text("\n\n".join(f"The {number} of all numbers is {number + 1}." for number in range(300)))
            return run_all(Machine("cpu", True, folder, (text,)), options.only, long=True)
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
    where = Machine("cuda", False, options.out, tuple(options.text))
    where.folder.mkdir(parents=True, exist_ok=True)
    if options.step:
        (where.folder / "step.json").write_text(json.dumps(figures(where, options.step)))
        return 0
    return run_all(where, options.only, options.long)


def run_all(where: Machine, only: Sequence[str] | None = None, long: bool = False) -> int:
    """Runs the steps that have no figures yet, the long ones if `long`. Returns the exit code."""
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
    for name in [*steps(where), *(long_steps(where) if long else ())]:
        if only and not name.startswith(tuple(only)):
            continue
        kept = found["steps"].get(name)
        if kept is None or "error" in kept:
            print(f"== {name}", flush=True)
            found["steps"][name] = kept = apart(where, name)
            path.write_text(json.dumps(found, indent=1))
            (where.folder / "page.md").write_text(page(found))
        if "error" in kept:
            failed = True
            print(f"  failed: {kept['error']}", flush=True)
        for what, value, sign, bar in kept.get("bars", []):
            (bench.at_least if sign == ">=" else bench.at_most)(what, value, bar)
    print(f"wrote {path} and {where.folder / 'page.md'}")
    return 1 if failed else bench.exit_code()


def apart(where: Machine, name: str) -> dict[str, Any]:
    """The figures of a step, from a process of its own."""
    limit = LONG_LIMIT if name in long_steps(where) else LIMIT
    if where.smoke:
        return figures(where, name)
    result, began = where.folder / "step.json", time.monotonic()
    result.unlink(missing_ok=True)
    text = ["--text", *map(str, where.text)] if where.text else []
    command = [sys.executable, __file__, "--out", str(where.folder), "--step", name, *text]
    error = None
    try:
        code = subprocess.run(command, timeout=limit, check=False).returncode
        error = None if code == 0 and result.exists() else f"the process ended with code {code}"
    except subprocess.TimeoutExpired:
        error = f"took more than {limit} seconds"
    if error is not None:
        return {"seconds": time.monotonic() - began, "error": error}
    made: dict[str, Any] = json.loads(result.read_text())
    return made


def figures(where: Machine, name: str) -> dict[str, Any]:
    """The figures of a step, in this process."""
    began = time.monotonic()
    try:
        made = (steps(where) | long_steps(where))[name](where)
    except Exception:
        return {"seconds": time.monotonic() - began, "error": traceback.format_exc(limit=-6)}
    return {"seconds": time.monotonic() - began, "values": made.values, "bars": made.bars}


if __name__ == "__main__":
    sys.exit(main())
