"""statewise strips reproduce: the experiments of the paper, and more."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

from statewise.runtime.arguments import Parser, at_least
from statewise.runtime.messages import say
from statewise.runtime.overwriting import check_derived
from statewise.runtime.system import cores


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser(
        "strips reproduce",
        "Runs an experiment cell by cell: draw traces, learn, test, verify. The same command continues it.\n\n"
        "  statewise strips reproduce table1 --out results/\n"
        "  statewise strips reproduce table1 --domains simple,ferry:2x1 \\\n"
        "      --sizes 50,200 --draws 3 --out results/\n"
        "  statewise strips reproduce table1 --protocol paper --out paper/\n"
        "  statewise strips reproduce table1 --method exact,neural --out results/\n"
        "  statewise strips reproduce larger --out results/  # also: atoms, noise, lifted",
    )
    parser.add_argument("experiment", metavar="EXPERIMENT", help="table1, larger, atoms, noise or lifted")
    parser.add_argument("--domains", help="some of its domains, separated by commas")
    parser.add_argument("--sizes", help="numbers of traces, separated by commas")
    parser.add_argument("--draws", type=at_least(1), default=1, help="training sets per size (default: 1)")
    parser.add_argument("--jobs", type=at_least(1), default=cores(), help="parallel cells (default: number of cores)")
    parser.add_argument(
        "--method",
        default="neural",
        help="some of neural (default), exact, positive-only (exact, from valid actions alone), sift, locm, "
        "auto (as strips learn), hybrid, separated by commas: all learn from the same traces",
    )
    parser.add_argument("--symmetry", action="store_true", help="join the traces renamed by symmetries of the instance")
    parser.add_argument(
        "--drawn-only",
        action="store_true",
        help="decide equivalence on drawn traces alone, and seek no simplest model: faster",
    )
    parser.add_argument(
        "--protocol",
        default="early",
        choices=["early", "paper"],
        help="early: a restart ends after 20000 steps, or when its accuracy no longer rises (default); "
        "paper: after 100000 steps",
    )
    parser.add_argument(
        "--steps", type=at_least(1), help="maximum training steps per restart, in place of the protocol's"
    )
    parser.add_argument("--out", metavar="DIR", required=True)
    options = parser.parse_args(words)
    if options.sizes and not re.fullmatch(r"[1-9]\d{0,6}(,[1-9]\d{0,6})*", options.sizes):
        raise ValueError(f"--sizes must be numbers from 1 to 9,999,999 separated by commas, not {options.sizes!r}")
    sizes = [int(size) for size in options.sizes.split(",")] if options.sizes else None

    from statewise.runtime.durable import write_atomically
    from statewise.strips import reproduce, reproduction_text, save_costs, save_reproduction

    def progress(done: int, cells: int, record: dict[str, Any]) -> None:
        say(
            f"{done}/{cells}  {record['cell']}: {record['pooled']['test']:.4f} of test traces right, "
            f"{record['seconds']:.0f} s",
            file=sys.stderr,
            flush=True,
        )

    out = Path(options.out)
    text_file, curves = out / f"{options.experiment}.md", out / f"{options.experiment}.png"
    costs = out / f"{options.experiment}-costs.png"
    for path in (text_file, curves, costs):
        check_derived(path, out / f"{options.experiment}.jsonl")
    domains = options.domains.split(",") if options.domains else None
    records = reproduce(
        options.experiment,
        out,
        domains=domains,
        sizes=sizes,
        draws=options.draws,
        jobs=options.jobs,
        methods=options.method.split(","),
        symmetry=options.symmetry,
        drawn_only=options.drawn_only,
        protocol=options.protocol,
        steps=options.steps,
        progress=progress,
    )
    say(reproduction_text(options.experiment, records, shutil.get_terminal_size((100, 24)).columns))
    write_atomically(text_file, (reproduction_text(options.experiment, records) + "\n").encode())
    if options.experiment != "lifted":
        save_reproduction(records, curves)
    save_costs(records, costs)
    drawn = [path.name for path in (curves, costs) if path.exists()]
    say(f"wrote {out / options.experiment}.jsonl, what is shown above as {text_file.name}, {' and '.join(drawn)}")
    return 0
