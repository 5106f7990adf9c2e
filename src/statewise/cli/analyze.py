"""statewise analyze: what the states of a trained run hold."""

from __future__ import annotations

import contextlib
from pathlib import Path

from statewise.cli.commands import listed
from statewise.cli.counter import shown_progress
from statewise.experiments.requests import AnalysisRequest
from statewise.runtime.json_files import printable
from statewise.runtime.messages import say

DESCRIPTION = """Analyses a run; writes ANALYSIS.json, ANALYSIS.png and further plots into its reports
folder. With --layer their names hold the layer, with --checkpoint the step. The same
analysis again renews them.

  statewise analyze runs/nl-1 effective-rank --sequences 100 --positions 50
  statewise analyze runs/nl-1 future-probe --checkpoints all
  statewise analyze runs/nl-1 compression --trials 200
  statewise analyze runs/nl-1 map --radius 3 --out maps/nl-1
  statewise analyze runs/nl-1 detours --help      # the options of an analysis

Analyses:
"""


def run(words: list[str]) -> int:
    """Runs the command."""
    from statewise.analysis import ANALYSES

    if {"-h", "--help"} & set(words):
        AnalysisRequest.parser(DESCRIPTION + listed(_described())).print_help()
        from statewise.config.field_help import declared_fields
        from statewise.config.recipe import lines_of

        for name in words:
            if name in _described() or ":" in name:
                fields = declared_fields(ANALYSES.target(name))
                say(f"\noptions of {name}, with their defaults:", *lines_of(fields), sep="\n")
        return 0
    request = AnalysisRequest.read(words)
    options, name = request.options, request.report_name

    from statewise.analysis.base import claimed_report
    from statewise.cli.findings import if_writable, show_findings
    from statewise.model.model import load_model

    model = load_model(options.run, options.checkpoint, options.device)
    assert model.run is not None
    assert model.checkpoint is not None
    out = None if options.out is None else Path(options.out)
    with contextlib.nullcontext() if out is None else claimed_report(out, name, options.overwrite):
        with shown_progress():
            findings = model.analyze(request.analysis)
        written = []
        with if_writable():
            written = [model.run.write_report(name, findings.report())]
            written += findings.save_pictures(model.run.reports_folder, name)
        if out is not None:
            written += findings.save(out, name=name, overwrite=options.overwrite)
    if options.json:
        say(printable(findings.report()))
    else:
        show_findings(findings, written)
    return 0


def _described() -> dict[str, str]:
    """Description of each analysis, by name."""
    from statewise.analysis import ANALYSES

    return {name: ANALYSES.describe(name) for name in [*ANALYSES, *ANALYSES.announced()]}
