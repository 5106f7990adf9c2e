"""statewise analyze: look into the states of a trained run."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

from statewise.cli.arguments import Parser, pairs

DESCRIPTION = """Looks into a run; writes reports/ANALYSIS.json, .png and what else there is to see.

  statewise analyze runs/nl-1 effective-rank --sequences 100 --positions 50
  statewise analyze runs/nl-1 future-probe --checkpoints all
  statewise analyze runs/nl-1 compression --trials 200
  statewise analyze runs/nl-1 map --radius 3 --out maps/nl-1
  statewise analyze runs/nl-1 detours --help      # the options of an analysis

Analyses:
"""


def run(words: list[str]) -> int:
    """Runs the verb."""
    from statewise.analysis import ANALYSES

    listed = "\n".join(f"  {name:17} {ANALYSES.describe(name)}" for name in ANALYSES)
    parser = Parser("analyze", DESCRIPTION + listed, add_help=False)
    parser.add_argument("run", metavar="RUN", help="run directory")
    parser.add_argument("analysis", metavar="ANALYSIS", help="one of those above")
    parser.add_argument("--checkpoint", default="best", help="best, last, or a step (default: best)")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--out", metavar="DIR", help="copy what is written there as well")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    if {"-h", "--help"} & set(words):
        parser.print_help()
        from statewise.config import fields_of

        for name in filter(ANALYSES.rows.__contains__, words):
            print(f"\noptions of {name}, with their defaults:", *fields_of(ANALYSES[name].Config()), sep="\n")  # type: ignore[attr-defined]
        return 0
    options, rest = parser.split(words)

    from statewise.cli.findings import as_plain_data, save_pictures, tell
    from statewise.experiment import Experiment, make_analysis

    analysis = make_analysis(options.analysis, **pairs(rest))
    experiment = Experiment.load(options.run, options.checkpoint, options.device)
    assert experiment.run is not None
    assert experiment.checkpoint is not None
    findings = experiment.analyze(analysis)
    name = options.analysis + ("" if options.checkpoint == "best" else f"-checkpoint-{options.checkpoint}")
    content = {
        "checkpoint": experiment.checkpoint.step,
        "settings": dataclasses.asdict(analysis.config),
        **as_plain_data(findings),
    }
    path = experiment.run.write_report(name, content)
    written = [path, *save_pictures(findings, path.parent, name)]
    if options.out is not None:
        folder = Path(options.out)
        folder.mkdir(parents=True, exist_ok=True)
        written += [Path(shutil.copy(made, folder)) for made in written]
    if options.json:
        print(json.dumps(content, indent=2))
    else:
        tell(f"{options.run}, step {experiment.checkpoint.step}, {options.analysis}", findings, written)
    return 0
