"""Runs one cell in this process and prints its row: `python -m statewise.strips.amlgym.cell JSON`."""

from __future__ import annotations

import json
import sys
import warnings

from statewise.strips.amlgym.cells import run_cell
from statewise.strips.amlgym.comparison import MARK


def main(call: str) -> int:
    """Runs the cell that `call` describes, as JSON: domain, method, number of trajectories, options. Errors of other
    libraries are of any kind, so the row says what they were."""
    domain, method, number, options = json.loads(call)
    warnings.simplefilter("ignore")
    try:
        row = run_cell(domain, method, number, options)
    except (Exception, SystemExit) as error:
        row = {"error": f"{type(error).__name__}: {error}"[:300]}
    sys.stdout.write(f"\n{MARK}{json.dumps(row)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
