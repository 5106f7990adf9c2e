"""Runs every benchmark that has bars, one after the other, and exits with 1 if one of them was short of a bar.

python benchmarks/run_all.py [--smoke]

With `--smoke` those in folders are run, too: comparisons with other programs, whose bars are judged where they are
started by themselves, and what needs a GPU.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from timing import parser

HERE = Path(__file__).parent
PARTS = {
    "event_logs",
    "head_in_blocks",
    "one_step",
    "own_process",
    "products",
    "run_all",
    "seed_crossing",
    "timing",
    "peers/enumeration",
    "peers/observer",
    "gpu/page",
    "gpu/steps",
    "strips/cells",
    "strips/explore",
    "strips/report",
}
"""Experiments, and what serves benchmarks."""


def scripts(folder: Path = HERE) -> list[str]:
    """The benchmarks of a folder and the folders in it."""
    found = (path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.py"))
    return sorted(set(found) - PARTS)


def main(words: Sequence[str] | None = None, folder: Path = HERE) -> int:
    smoke = parser(__doc__).parse_args(words).smoke
    codes = []
    for name in scripts(folder):
        if smoke or "/" not in name:
            print(f"\n== {name}", flush=True)
            command = [sys.executable, str(folder / f"{name}.py"), *(["--smoke"] if smoke else [])]
            codes.append(subprocess.run(command, check=False).returncode)
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
