"""Runs every benchmark, one after the other, and exits with 1 if one of them was short of a bar.

python benchmarks/run_all.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main() -> None:
    here = Path(__file__).parent
    codes = []
    for path in sorted(here.glob("*.py")):
        if path.name not in ("timing.py", "own_process.py", "run_all.py"):
            print(f"\n== {path.name}", flush=True)
            codes.append(subprocess.run([sys.executable, str(path)], check=False).returncode)
    sys.exit(max(codes))


if __name__ == "__main__":
    main()
