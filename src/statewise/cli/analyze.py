"""statewise analyze: what the states of a trained run hold."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from statewise.cli.arguments import Parser, pairs
from statewise.cli.commands import listed
from statewise.cli.counter import shown_progress
from statewise.runtime.json_files import printable
from statewise.runtime.messages import say

if TYPE_CHECKING:
    from statewise.analysis.base import Analysis

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
        _parser().print_help()
        from statewise.config.field_help import declared_fields
        from statewise.config.recipe import lines_of

        for name in words:
            if name in _described() or ":" in name:
                fields = declared_fields(ANALYSES.target(name))
                say(f"\noptions of {name}, with their defaults:", *lines_of(fields), sep="\n")
        return 0
    options, analysis = options_of(words)

    from statewise.cli.findings import as_plain_data, claimed, save, save_pictures, tell
    from statewise.cli.reports import if_writable
    from statewise.model.loading import load_model

    model = load_model(options.run, options.checkpoint, options.device)
    assert model.run is not None
    assert model.checkpoint is not None
    name = report_name(options, analysis)
    out = None if options.out is None else Path(options.out)
    with contextlib.nullcontext() if out is None else claimed(out, name, options.overwrite):
        with shown_progress():
            findings = model.analyze(analysis)
        title = f"{options.run}, step {model.checkpoint.step}, {options.analysis}"
        content = {
            "checkpoint": model.checkpoint.step,
            "settings": dataclasses.asdict(analysis.config),
            **as_plain_data(findings),
        }
        written = []
        with if_writable():
            written = [model.run.write_report(name, content)]
            written += save_pictures(findings, model.run.reports_folder, name, title)
        if out is not None:
            written += save(findings, content, out, name, title, overwrite=options.overwrite)
    if options.json:
        say(printable(content))
    else:
        tell(title, findings, written)
    return 0


def report_name(options: argparse.Namespace, analysis: Analysis) -> str:
    """Of the run's report on what `options_of` returns."""
    layer = getattr(analysis.config, "layer", None)
    name = options.analysis.replace(":", ".") + ("" if layer is None else f"-layer-{_in_a_file_name(layer)}")
    return name + ("" if options.checkpoint == "best" else f"-checkpoint-{options.checkpoint}")


def options_of(words: Sequence[str]) -> tuple[argparse.Namespace, Analysis]:
    """The options of the command's `words`, and the analysis that they ask for. Raises `ValueError` for unknown
    options, fields and values."""
    options, rest = _parser().split(words)
    if options.overwrite and options.out is None:
        raise ValueError("--overwrite replaces files in --out, which is not given; those in the run are always renewed")
    from statewise.analysis import make_analysis

    return options, make_analysis(options.analysis, **pairs(rest))


def _parser() -> Parser:
    parser = Parser("analyze", DESCRIPTION + listed(_described()), add_help=False)
    parser.add_run()
    parser.add_argument("analysis", metavar="ANALYSIS", help="one of those above, or module:Class")
    parser.add_argument("--out", metavar="DIR", help="write report and plots here as well")
    parser.add_overwrite("replace files of the same names in --out")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


def _described() -> dict[str, str]:
    """What each analysis does, by name."""
    from statewise.analysis import ANALYSES

    return {name: ANALYSES.describe(name) for name in [*ANALYSES, *ANALYSES.announced()]}


def _in_a_file_name(layer: str) -> str:
    """A layer's name or pattern without what a file name cannot hold; a checksum then tells patterns apart."""
    plain = re.sub(r"[^\w.-]", "_", layer)[:100]
    return plain if plain == layer else f"{plain}-{hashlib.sha256(layer.encode()).hexdigest()[:8]}"
