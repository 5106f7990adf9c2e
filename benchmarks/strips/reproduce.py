"""Runs an experiment with STRIPS traces cell by cell: draw traces, learn, test, verify. The same command continues it.

python benchmarks/strips/reproduce.py table1 --out results/
python benchmarks/strips/reproduce.py table1 --domains simple,ferry:2x1 --sizes 50,200 --draws 3 --out results/
python benchmarks/strips/reproduce.py table1 --protocol paper --out paper/
python benchmarks/strips/reproduce.py table1 --method exact,neural --out results/
python benchmarks/strips/reproduce.py larger --out results/    # also: atoms, noise, lifted

The experiment table1 is that of the STRIPS Transformer paper. With `--smoke` tiny cells run in seconds, in a temporary
folder.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent.parent))  # the frame of all benchmarks stands there
from strips import cells
from strips.cells import reproduce
from strips.report import reproduction_text, save_costs, save_reproduction
from timing import parser

from statewise.runtime.durable import write_atomically
from statewise.runtime.overwriting import check_derived
from statewise.runtime.system import cores


def main(words: Sequence[str] | None = None) -> int:
    arguments = parser(__doc__)
    arguments.add_argument("experiment", nargs="?", help="table1, larger, atoms, noise, damage or lifted")
    arguments.add_argument("--domains", help="some of its domains, separated by commas")
    arguments.add_argument("--sizes", help="numbers of traces, separated by commas")
    arguments.add_argument("--draws", type=int, default=1, help="training sets per size (default: 1)")
    arguments.add_argument("--jobs", type=int, default=cores(), help="parallel cells (default: number of cores)")
    arguments.add_argument(
        "--method",
        default="neural",
        help="some of neural (default), exact, positive-only (exact, from valid actions alone), sift, locm, "
        "auto (as strips learn), hybrid, separated by commas: all learn from the same traces",
    )
    arguments.add_argument(
        "--symmetry", action="store_true", help="join the traces renamed by symmetries of the instance"
    )
    arguments.add_argument(
        "--drawn-only",
        action="store_true",
        help="decide equivalence on drawn traces alone, and seek no simplest model: faster",
    )
    arguments.add_argument(
        "--protocol",
        default="early",
        choices=["early", "paper"],
        help="early: a restart ends after 20000 steps, or when its accuracy no longer rises (default); "
        "paper: after 100000 steps",
    )
    arguments.add_argument("--steps", type=int, help="maximum training steps per restart, in place of the protocol's")
    arguments.add_argument("--seconds", type=float, help="time limit of learning, for auto and hybrid")
    arguments.add_argument("--out", metavar="DIR")
    options = arguments.parse_args(words)
    if options.smoke:
        options.experiment, options.domains, options.sizes, options.method = "table1", "simple", "50", "exact,neural"
        options.steps, options.jobs, options.drawn_only = 20, 1, True
    elif options.experiment is None or options.out is None:
        arguments.error("give an experiment and --out")
    if options.sizes and not re.fullmatch(r"[1-9]\d{0,6}(,[1-9]\d{0,6})*", options.sizes):
        arguments.error(f"--sizes must be numbers from 1 to 9,999,999 separated by commas, not {options.sizes!r}")
    if min(options.draws, options.jobs, options.steps or 1) < 1:
        arguments.error("--draws, --jobs and --steps must be at least 1")
    if options.seconds is not None and not options.seconds > 0:
        arguments.error(f"--seconds must be above 0, not {options.seconds}")
    try:
        if options.smoke:
            with tempfile.TemporaryDirectory() as folder, mock.patch.object(cells, "TEST", 30):
                run(options, Path(folder))
        else:
            run(options, Path(options.out))
    except (ValueError, OSError) as error:
        arguments.error(str(error))
    return 0


def run(options: Any, out: Path) -> None:
    """Runs the experiment, prints its tables and writes them, with the curves, beside the ledger."""
    text_file, curves = out / f"{options.experiment}.md", out / f"{options.experiment}.png"
    costs = out / f"{options.experiment}-costs.png"
    for path in (text_file, curves, costs):
        check_derived(path, out / f"{options.experiment}.jsonl")
    records = reproduce(
        options.experiment,
        out,
        domains=options.domains.split(",") if options.domains else None,
        sizes=[int(size) for size in options.sizes.split(",")] if options.sizes else None,
        draws=options.draws,
        jobs=options.jobs,
        methods=options.method.split(","),
        symmetry=options.symmetry,
        drawn_only=options.drawn_only,
        protocol=options.protocol,
        steps=options.steps,
        limit=options.seconds,
        progress=progress,
    )
    print(reproduction_text(options.experiment, records, shutil.get_terminal_size((100, 24)).columns))
    write_atomically(text_file, (reproduction_text(options.experiment, records) + "\n").encode())
    if options.experiment != "lifted":
        save_reproduction(records, curves)
    save_costs(records, costs)
    drawn = [path.name for path in (curves, costs) if path.exists()]
    print(f"wrote {out / options.experiment}.jsonl, the tables above as {text_file.name}, {' and '.join(drawn)}")


def progress(done: int, cells: int, record: dict[str, Any]) -> None:
    right, seconds = record["pooled"]["test"], record["seconds"]
    text = f"{done}/{cells}  {record['cell']}: {right:.4f} of test traces right, {seconds:.0f} s"
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
