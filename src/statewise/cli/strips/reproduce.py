"""statewise strips reproduce: the paper's Table 1 and what lies beyond it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from statewise.cli.arguments import Parser


def run(words: list[str]) -> int:
    """Runs the verb."""
    parser = Parser(
        "strips reproduce",
        "Runs an experiment cell by cell: draw traces, learn, test, verify. The same command goes on where it was.\n\n"
        "  statewise strips reproduce table1 --out results/\n"
        "  statewise strips reproduce table1 --domains simple,ferry:2x1 --sizes 50,200 --draws 3 --out results/\n"
        "  statewise strips reproduce larger --out results/      # also: atoms, noise, lifted",
    )
    parser.add_argument("experiment", metavar="EXPERIMENT", help="table1, larger, atoms, noise or lifted")
    parser.add_argument("--domains", help="some of its domains, separated by commas")
    parser.add_argument("--sizes", help="numbers of traces, separated by commas")
    parser.add_argument("--draws", type=int, default=1, help="training sets of each size (default 1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cells at a time (default: all cores)")
    parser.add_argument("--out", metavar="FOLDER", required=True)
    options = parser.parse_args(words)
    for name in ("draws", "jobs"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name} must be 1 or more, not {getattr(options, name)}")
    try:
        sizes = [int(size) for size in options.sizes.split(",")] if options.sizes else None
    except ValueError:
        raise ValueError(f"--sizes must be whole numbers separated by commas, not {options.sizes!r}") from None

    from statewise.strips.reproduce import reproduce
    from statewise.strips.reproduction_report import as_text, save_curves

    def progress(done: int, cells: int, record: dict[str, Any]) -> None:
        print(f"{done}/{cells}  {record['cell']}: {record['pooled']['test']:.4f} of test traces right, "
              f"{record['seconds']:.0f} s", file=sys.stderr, flush=True)  # fmt: skip

    out = Path(options.out)
    domains = options.domains.split(",") if options.domains else None
    records = reproduce(options.experiment, out, domains=domains, sizes=sizes, draws=options.draws,
                        jobs=options.jobs, progress=progress)  # fmt: skip
    text = as_text(options.experiment, records)
    print(text)
    (out / f"{options.experiment}.md").write_text(text + "\n")
    if options.experiment != "lifted":
        save_curves(records, out / f"{options.experiment}.png")
    print(f"wrote {out / options.experiment}.jsonl and what is shown above as .md"
          + (" and .png" if options.experiment != "lifted" else ""))  # fmt: skip
    return 0
