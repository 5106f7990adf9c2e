"""Runs the benchmarks on which the speed of users rests, and ends in a table of bar, measured value and limit.

python benchmarks/run_all.py             # at most six minutes on two idle cores
python benchmarks/run_all.py --all       # every benchmark that has bars, with all repeats: more than an hour
python benchmarks/run_all.py --smoke

The limit is what the processor allows, where a benchmark measures it in the same run: the time of the matrix products
alone, say. The exit code is 1 if a benchmark failed or missed a bar. Benchmarks for which no time is left are named.
With `--smoke` those in folders are run, too: comparisons with other programs, whose bars are judged where they are
started by themselves, and what needs a GPU.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from timing import parser

from statewise.training.machine import processor_name

HERE = Path(__file__).parent
PARTS = {
    "event_logs",
    "head_in_blocks",
    "one_step",
    "compare_fills",
    "own_process",
    "products",
    "run_all",
    "seed_crossing",
    "timing",
    "peers/enumeration",
    "peers/observer",
    "gpu/machine",
    "gpu/page",
    "gpu/steps",
    "gpu/suites",
    "strips/cells",
    "strips/explore",
    "strips/report",
}
"""Experiments, and what serves benchmarks."""
QUICK = (
    "train_step",
    "data",
    "objectives",
    "pair_loss",
    "token_loss",
    "attention",
    "roofline",
    "serving",
    "decoding",
    "startup",
)
"""Benchmarks of the table, in order: steps of training and what they are made of, the server, generation, the start.
Each takes `--quick`."""
ONE_THREAD = {"serving"}
"""Benchmarks of what is fastest with one thread."""
MINUTES = 6.0
JUDGED = re.compile(r"(.*?) +(-?[\d.]+|nan|inf)   bar ([<>]= \S+) *(?:  limit (.*?))?  (ok|SHORT|not judged)$")
"""A figure beside its bar, as `timing.Benchmark` prints it."""
FEATURES = ("avx2", "avx512_f", "avx512_bf16", "amx_bf16")
"""Features that decide how fast products are in fp32 and bf16, as PyTorch names them."""


class Row(NamedTuple):
    script: str
    what: str
    measured: str
    bar: str
    limit: str | None
    verdict: str


def scripts(folder: Path = HERE) -> list[str]:
    """The benchmarks of a folder and the folders in it."""
    found = (path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.py"))
    return sorted(set(found) - PARTS)


def main(words: Sequence[str] | None = None, folder: Path = HERE, quick: Sequence[str] = QUICK) -> int:
    options = parser(__doc__)
    options.add_argument("--all", action="store_true", help="every benchmark that has bars, with all repeats")
    options.add_argument(
        "--minutes", type=float, default=MINUTES, help=f"most minutes without --all and --smoke (default {MINUTES:g})"
    )
    given = options.parse_args(words)
    if not given.minutes > 0:
        options.error(f"--minutes must be more than 0, not {given.minutes:g}")
    whole = given.all or given.smoke
    names = [name for name in scripts(folder) if given.smoke or "/" not in name] if whole else quick
    flags = ["--smoke"] if given.smoke else [] if given.all else ["--quick"]
    end = float("inf") if whole else time.monotonic() + 60 * given.minutes
    failed, rows, missing = False, list[Row](), list[str]()
    for name in names:
        left = end - time.monotonic()
        if left <= 0:
            missing.append(name)
            continue
        print(f"\n== {name}", flush=True)
        began = time.monotonic()
        code, found = run([sys.executable, "-u", str(folder / f"{name}.py"), *flags], name, left)
        rows += found
        if code is None:
            missing.append(f"{name} (stopped)")
        failed |= bool(code)
        print(f"{time.monotonic() - began:.0f} s", flush=True)
    print("\n".join(table(rows, shutil.get_terminal_size((100, 24)).columns)))
    if missing:
        print("\n" + textwrap.fill(f"No time was left for: {', '.join(missing)}. Give more by --minutes.", 80))
    return int(failed)


def run(command: Sequence[str], name: str, seconds: float) -> tuple[int | None, list[Row]]:
    """Runs a benchmark and passes on what it prints. Returns its exit code, None if it was stopped after `seconds`, and
    its figures."""
    rows, stopped = [], threading.Event()
    given = {**os.environ, **({"OMP_NUM_THREADS": "1"} if name in ONE_THREAD else {})}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, env=given) as process:

        def stop() -> None:
            stopped.set()
            end_group(process.pid)

        timer = threading.Timer(seconds, stop) if seconds < float("inf") else None
        if timer:
            timer.start()
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                if judged := JUDGED.match(line.rstrip()):
                    rows.append(Row(name, *judged.groups()))
        except BaseException:
            end_group(process.pid)
            raise
        finally:
            if timer:
                timer.cancel()
    return None if stopped.is_set() else process.returncode, rows


def end_group(group: int) -> None:
    """Ends a benchmark and the processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def table(rows: Sequence[Row], columns: int) -> list[str]:
    """Lines of at most `columns` characters, but at least 80 and at most 100: the processor, and all figures beside
    their bars and limits, those that miss their bar first."""
    width = min(100, max(80, columns))
    sizes = [max([len(title), *(len(row[place] or "") for row in rows)]) for title, place in COLUMNS]
    first = width - sum(sizes) - 2 * len(sizes)
    lines = ["", *processor(width)]
    if rows:
        lines += ["", laid_out("benchmark", [title for title, _ in COLUMNS], first, sizes)]
        lines.append("  ".join("-" * size for size in (first, *sizes)))
    for row in sorted(rows, key=lambda row: row.verdict != "SHORT"):
        begin, *more = textwrap.wrap(f"{row.script}: {row.what}", first, subsequent_indent="  ")
        lines.append(laid_out(begin, [row[place] or "" for _, place in COLUMNS], first, sizes))
        lines += more
    judged = [row.verdict for row in rows if row.verdict != "not judged"]
    if judged:
        lines += ["", f"{judged.count('ok')} of {len(judged)} bars met"]
    return lines


COLUMNS = (("bar", 3), ("measured", 2), ("LIMIT", 4), ("", 5))
"""Titles, and places in `Row`."""


def laid_out(what: str, cells: Sequence[str], first: int, sizes: Sequence[int]) -> str:
    return "  ".join([what.ljust(first), *(cell.rjust(size) for cell, size in zip(cells, sizes))]).rstrip()


def processor(width: int) -> list[str]:
    """The processor, and which features it has that fast products need."""
    known = getattr(torch.cpu, "get_capabilities", dict)()
    features = ", ".join(f"{name} {'yes' if known.get(name) else 'no'}" for name in FEATURES)
    text = f"Processor: {processor_name()}, {torch.get_num_threads()} thread(s); {features}"
    return textwrap.wrap(text, width, subsequent_indent="  ")


if __name__ == "__main__":
    sys.exit(main())
