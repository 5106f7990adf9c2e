"""statewise lm-eval: a run on benchmarks of lm-evaluation-harness."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from statewise.cli.counter import shown_progress
from statewise.cli.findings import keep_report
from statewise.runtime.arguments import Parser, at_least
from statewise.runtime.durable import write_atomically
from statewise.runtime.messages import say
from statewise.runtime.overwriting import claimed_file

DESCRIPTION = """Scores a run on benchmarks of lm-evaluation-harness (extra `eval`) and writes a report into the run.

  statewise lm-eval runs/x --tasks arc_easy,hellaswag,piqa,sciq,lambada_openai
  statewise lm-eval runs/x --tasks mine --include-path DIR  # your own YAML

The package downloads the data of its benchmarks. The task of the run must be text or stories."""


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser("lm-eval", DESCRIPTION)
    parser.add_run()
    parser.add_argument("--tasks", metavar="NAMES", required=True, help="benchmarks or groups, separated by commas")
    parser.add_argument("--include-path", metavar="DIR", help="folder of further benchmarks, as YAML files")
    parser.add_argument("--limit", metavar="N", type=at_least(1), help="documents per benchmark (default: all)")
    parser.add_argument("--batch", type=at_least(1), default=32, help="texts per batch (default: 32)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON instead of a table")
    parser.add_argument("--out", metavar="FILE", help="write the report here as well")
    parser.add_overwrite()
    options = parser.parse_args(words)
    out = None if options.out is None else Path(options.out)
    if out is not None and not out.parent.is_dir():
        raise ValueError(f"--out {out}: there is no folder {out.parent}")
    with contextlib.nullcontext() if out is None else claimed_file(out, options.overwrite) as scratch:
        content, as_json, written = _report(options)
        if scratch is not None:
            write_atomically(scratch, as_json.encode() + b"\n")
    for warning in warnings(content["counts"]):
        say(warning, file=sys.stderr)
    if options.json:
        say(as_json)
    else:
        say(f"{options.run}, step {content['checkpoint']}, lm-evaluation-harness {content['lm_eval']}")
        say(table(content))
        if written:
            say(f"wrote {written}")
    return 0


def _report(options: argparse.Namespace) -> tuple[dict[str, Any], str, Path | None]:
    """The report, as JSON too, and where it is in the run."""
    from statewise.evaluation.zero_shot import harness
    from statewise.run import Run

    Run.open(Path(options.run))  # a mistyped run fails before benchmarks are loaded
    folder = None if options.include_path is None else Path(options.include_path)
    names = [name.strip() for name in options.tasks.split(",") if name.strip()]
    benchmarks = harness.find(names, folder)

    from statewise.model.model import load_model
    from statewise.tasks.base import running_text

    model = load_model(options.run, options.checkpoint, options.device)
    with model.asking() as predictor, shown_progress():
        results = harness.run(predictor, running_text(model.task), benchmarks, limit=options.limit, batch=options.batch)
    deviations = [] if options.checkpoint == "best" else [f"checkpoint-{options.checkpoint}"]
    deviations += [] if options.limit is None else [f"first-{options.limit}"]
    content, written = keep_report(model, "-".join(["lm-eval", _name(names), *deviations]), results)
    return content, json.dumps(content, indent=2), written


def _name(names: list[str]) -> str:
    """A file name for a set of benchmarks."""
    joined = "+".join(name.replace("/", "_") for name in names)
    return joined if len(joined) <= 100 else f"{len(names)}-{hashlib.sha256(joined.encode()).hexdigest()[:12]}"


def warnings(counts: Mapping[str, int]) -> list[str]:
    """Warnings about what limits the figures, such as texts that were cut."""
    requests, completions = counts["requests"], counts["generations"]
    limits = {
        "cut": f"of {requests:,} likelihoods have a context that was cut at its beginning to fit the model's",
        "in_pieces": f"of {requests:,} likelihoods concern a text longer than the context, read in pieces",
        "without_context": f"of {requests:,} likelihoods have no context: their first token is predicted from an "
        "end-of-text token, for which the model was not trained",
        "cut_prompts": f"of {completions:,} completions have a prompt that was cut at its beginning",
    }
    return [f"{counts[key]:,} {what}" for key, what in limits.items() if counts[key]]


def table(content: Mapping[str, Any]) -> str:
    """A row per metric; then whole texts without their first tokens, and the paper's average."""
    from statewise.reporting.tables import number, text_table

    rows = []
    for name, benchmark in content["benchmarks"].items():
        metrics = benchmark["metrics"]
        for metric, value in metrics.items():
            if "_stderr" not in metric:
                error = metrics.get(metric.replace(",", "_stderr,", 1) if "," in metric else f"{metric}_stderr")
                rows.append([name, number(benchmark["num"]), metric, number(value), number(error)])
    lines = [text_table(["benchmark", "documents", "metric", "value", "± error"], rows)]
    for name, texts in content["whole_texts"].items():
        both = [texts["with_first"], texts["without_first"]]
        rows = [[metric, *(number(one.get(metric)) for one in both)] for metric in both[0]]
        title = f"{name}: {texts['texts']:,} whole texts, with and without their first token, which is not trained"
        lines += ["", title, text_table(["metric", "with", "without"], rows)]
    if "average" in content:
        average = content["average"]
        metrics = ", ".join(f"{name} {metric}" for name, metric in average["of"].items())
        lines += ["", f"average accuracy {number(average['accuracy'])} of {metrics}"]
    return "\n".join(lines)
