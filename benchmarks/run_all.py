"""Runs every benchmark that has bars, one after the other, and exits with 1 if one of them was short of a bar.

python benchmarks/run_all.py [--smoke]

With `--smoke` those in folders are run, too: comparisons with other programs, whose bars are judged where they are
started by themselves, and what needs a GPU.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

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
JUDGED = re.compile(r"(.*?) +(-?[\d.]+|nan|inf)   bar ([<>]= \S+) +(ok|SHORT|not judged)$")
"""A figure beside its bar, as `timing.Benchmark` prints it."""


def scripts(folder: Path = HERE) -> list[str]:
    """The benchmarks of a folder and the folders in it."""
    found = (path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.py"))
    return sorted(set(found) - PARTS)


def main(words: Sequence[str] | None = None, folder: Path = HERE) -> int:
    smoke = parser(__doc__).parse_args(words).smoke
    codes, table = [], []
    for name in scripts(folder):
        if smoke or "/" not in name:
            print(f"\n== {name}", flush=True)
            command = [sys.executable, str(folder / f"{name}.py"), *(["--smoke"] if smoke else [])]
            began = time.perf_counter()
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                for line in process.stdout or ():
                    print(line, end="", flush=True)
                    if judged := JUDGED.match(line.rstrip()):
                        table.append((name, *judged.groups()))
            codes.append(process.returncode)
            print(f"{time.perf_counter() - began:.0f} s", flush=True)
    print_table(table)
    return int(any(codes))


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """All figures beside their bars, what is short of its bar first."""
    if rows:
        capabilities = getattr(torch.cpu, "get_capabilities", dict)()
        fast = [name for name in ("avx512_f", "avx512_bf16", "amx_bf16") if capabilities.get(name)]
        print(
            f"\nProcessor: {processor_name()}; of AVX-512, its bf16 products and AMX it has {', '.join(fast) or 'none'}"
        )
    for name, what, value, bar, verdict in sorted(rows, key=lambda row: row[-1] != "SHORT"):
        print(f"{name:24} {what[:58]:58} {value:>9}  {bar:9} {verdict}")


if __name__ == "__main__":
    sys.exit(main())
