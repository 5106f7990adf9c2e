"""statewise lm-eval: a run on benchmarks of lm-evaluation-harness."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from statewise.cli.arguments import Parser
from statewise.cli.counter import counter

DESCRIPTION = """Scores a run on benchmarks of lm-evaluation-harness (extra `eval`), and keeps a report in the run.

  statewise lm-eval runs/x --tasks arc_easy,hellaswag,piqa,sciq,lambada_openai
  statewise lm-eval runs/x --tasks mine --include-path FOLDER    # your own benchmarks, as YAML files of that package

The package loads the data of its own benchmarks over the network. Needs a run whose task is text or stories."""


def run(words: list[str]) -> int:
    """Runs the verb."""
    parser = Parser("lm-eval", DESCRIPTION)
    parser.add_argument("run", metavar="RUN", help="run directory")
    parser.add_argument("--tasks", metavar="NAMES", required=True, help="benchmarks or groups of them, by commas")
    parser.add_argument("--include-path", metavar="DIR", help="folder with YAML files of further benchmarks")
    parser.add_argument("--limit", metavar="N", type=int, help="documents of each, the first ones (default: all)")
    parser.add_argument("--batch", type=int, default=32, help="texts the model reads at a time (default 32)")
    parser.add_argument("--checkpoint", default="best", help="best, last, or a step (default: best)")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--json", action="store_true", help="print the report as JSON instead of a table")
    parser.add_argument("--out", metavar="FILE", help="write the report here too")
    options = parser.parse_args(words)
    for name in ("limit", "batch"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise ValueError(f"--{name} must be at least 1, not {getattr(options, name)}")
    out = None if options.out is None else Path(options.out)
    if out is not None and not out.parent.is_dir():
        raise ValueError(f"--out {out}: there is no folder {out.parent}")

    from statewise.run import Run, write_atomically
    from statewise.zero_shot import harness

    Run.open(Path(options.run))  # a mistyped run should not wait for what follows
    folder = None if options.include_path is None else Path(options.include_path)
    names = [name.strip() for name in options.tasks.split(",") if name.strip()]
    benchmarks = harness.find(names, folder)

    from statewise.experiment import Experiment

    experiment = Experiment.load(options.run, options.checkpoint, options.device)
    found = experiment.lm_eval(benchmarks, options.limit, options.batch, counter("requests"))
    assert experiment.run is not None
    assert experiment.checkpoint is not None
    content = {"checkpoint": experiment.checkpoint.step, **found}
    deviations = [] if options.checkpoint == "best" else [f"checkpoint-{options.checkpoint}"]
    deviations += [] if options.limit is None else [f"first-{options.limit}"]
    experiment.run.write_report("-".join(["lm-eval", _name(names), *deviations]), content)
    as_json = json.dumps(content, indent=2)
    if out is not None:
        write_atomically(out, as_json.encode() + b"\n")
    for warning in warnings(content["counts"]):
        print(warning, file=sys.stderr)
    if options.json:
        print(as_json)
    else:
        print(f"{options.run}, step {content['checkpoint']}, lm-evaluation-harness {content['lm_eval']}")
        print(table(content))
    return 0


def _name(names: list[str]) -> str:
    """Of a set of benchmarks, short enough for a file."""
    joined = "+".join(name.replace("/", "_") for name in names)
    return joined if len(joined) <= 100 else f"{len(names)}-{hashlib.sha256(joined.encode()).hexdigest()[:12]}"


def warnings(counts: Mapping[str, int]) -> list[str]:
    """What about the requests makes the figures less than they could be."""
    requests, completions = counts["requests"], counts["generations"]
    said = {
        "cut": f"of {requests:,} likelihoods have a context that was cut at its beginning to fit the model's",
        "in_pieces": f"of {requests:,} likelihoods are of a text longer than the model's context, read in pieces",
        "without_context": f"of {requests:,} likelihoods have no context: their first token is predicted from an "
        "end-of-text token, for which the model was not trained",
        "cut_prompts": f"of {completions:,} completions have a prompt that was cut at its beginning",
    }
    return [f"{counts[key]:,} {what}" for key, what in said.items() if counts[key]]


def table(content: Mapping[str, Any]) -> str:
    """A line a metric; then whole texts without their first tokens, and the paper's average."""
    from statewise.reporting.tables import number, text_table

    rows = []
    for name, benchmark in content["benchmarks"].items():
        metrics = benchmark["metrics"]
        for metric, value in metrics.items():
            if "_stderr" not in metric:
                error = metrics.get(metric.replace(",", "_stderr,", 1) if "," in metric else f"{metric}_stderr")
                rows.append([name, number(benchmark["num"]), metric, number(value), number(error)])
    lines = [text_table(["benchmark", "documents", "metric", "value", "± error"], rows, left=(0, 2))]
    for name, texts in content["whole_texts"].items():
        both = [texts["with_first"], texts["without_first"]]
        rows = [[metric, *(number(one.get(metric)) for one in both)] for metric in both[0]]
        title = f"{name}: {texts['texts']:,} whole texts, with and without their first token, which is not trained"
        lines += ["", title, text_table(["metric", "with", "without"], rows)]
    if "average" in content:
        average = content["average"]
        of = ", ".join(f"{name} {metric}" for name, metric in average["of"].items())
        lines += ["", f"average accuracy {number(average['accuracy'])} of {of}"]
    return "\n".join(lines)
