"""statewise analyze: look into the states of a trained run."""

from __future__ import annotations

import dataclasses
import json

from statewise.cli.arguments import Parser, pairs


def run(words: list[str]) -> int:
    """Runs the verb."""
    parser = Parser(
        "analyze",
        "Looks into the states of a run; writes reports/ANALYSIS.json and .png.\n\n"
        "  statewise analyze runs/nl-1 effective-rank --sequences 100 --positions 50\n"
        "  statewise analyze runs/nl-1 future-probe --checkpoints all\n"
        "  statewise analyze runs/nl-1 prompt-probe --probe linear\n\n"
        "Options of effective-rank: --sequences, --positions. Of all probes: --probe mlp|linear, --hidden, --steps,\n"
        "--batch_size, --learning_rate, --seed, --sequences (held out, to test), --training_sequences, --checkpoints\n"
        "(all, or steps like 100,200). Of future-probe also --offsets (like 1-8) and --positions, of world-probe\n"
        "--positions.",
    )
    parser.add_argument("run", metavar="RUN", help="run directory")
    parser.add_argument("analysis", metavar="ANALYSIS", help="`statewise list` shows them")
    parser.add_argument("--checkpoint", default="best", help="best, last, or a step (default: best)")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options, rest = parser.split(words)

    from statewise.experiment import Experiment, make_analysis
    from statewise.reporting.plots import Axes, Line, save_lines
    from statewise.reporting.tables import metrics_table

    analysis = make_analysis(options.analysis, **pairs(rest))
    experiment = Experiment.load(options.run, options.checkpoint, options.device)
    assert experiment.run is not None
    assert experiment.checkpoint is not None
    findings = experiment.analyze(analysis)
    name = options.analysis + ("" if options.checkpoint == "best" else f"-checkpoint-{options.checkpoint}")
    content = {
        "checkpoint": experiment.checkpoint.step,
        "settings": dataclasses.asdict(analysis.config),
        **dataclasses.asdict(findings),
    }
    path = experiment.run.write_report(name, content)
    plots = [
        Axes(panel.x_title, panel.y_title, [Line(c.label, c.x, c.y, c.role) for c in panel.curves], panel.shares)
        for panel in findings.panels
    ]
    save_lines(plots, path.with_suffix(".png"))
    if options.json:
        print(json.dumps(content, indent=2))
    else:
        print(f"{options.run}, step {experiment.checkpoint.step}, {options.analysis}")
        print(metrics_table(findings.metrics))
        print(*findings.notes, f"wrote {path} and {path.with_suffix('.png')}", sep="\n")
    return 0
