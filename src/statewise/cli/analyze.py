"""statewise analyze: look into the states of a trained run."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

from statewise.cli.arguments import Parser, pairs


def run(words: list[str]) -> int:
    """Runs the verb."""
    parser = Parser(
        "analyze",
        "Looks into the states of a run; writes reports/ANALYSIS.json and .png.\n\n"
        "  statewise analyze runs/nl-1 effective-rank --sequences 100 --positions 50\n"
        "  statewise analyze runs/nl-1 future-probe --checkpoints all\n"
        "  statewise analyze runs/nl-1 prompt-probe --probe linear\n\n"
        "Of world models (tasks whose true states are known):\n"
        "  statewise analyze runs/nl-1 compression --trials 200\n"
        "  statewise analyze runs/nl-1 detours --kinds random --probabilities 0,0.75\n"
        "  statewise analyze runs/nl-1 map --radius 3 --out maps/nl-1\n\n"
        "Options of compression and distinction: --trials, --samples, --floor, --seed; of distinction also --length. Of\n"
        "detours: --sequences, --kinds, --probabilities, --seed. Of map: --sequences, --temperature, --degree, --radius,\n"
        "--seed.\n\n"
        "Options of effective-rank: --sequences, --positions. Of all probes: --probe mlp|linear, --hidden, --steps,\n"
        "--batch_size, --learning_rate, --seed, --sequences (held out, to test), --training_sequences, --checkpoints\n"
        "(all, or steps like 100,200). Of future-probe also --offsets (like 1-8) and --positions, of world-probe\n"
        "--positions.",
    )
    parser.add_argument("run", metavar="RUN", help="run directory")
    parser.add_argument("analysis", metavar="ANALYSIS", help="`statewise list` shows them")
    parser.add_argument("--checkpoint", default="best", help="best, last, or a step (default: best)")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--out", metavar="DIR", help="copy what is written there as well")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
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
        written += [shutil.copy(made, folder) for made in written]
    if options.json:
        print(json.dumps(content, indent=2))
    else:
        tell(f"{options.run}, step {experiment.checkpoint.step}, {options.analysis}", findings, written)
    return 0
