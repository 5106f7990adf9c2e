"""statewise evaluate: the metrics of a trained run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from statewise.cli.arguments import Parser
from statewise.tasks import TASKS
from statewise.types import Carried, Evaluation

if TYPE_CHECKING:
    from statewise.experiment import Experiment


def run(words: list[str]) -> int:
    """Runs the verb."""
    parser = Parser("evaluate", "Scores a run on the held-out data of its task, or on a file in the task's format.")
    parser.add_argument("run", metavar="RUN", help="run directory")
    parser.add_argument("--num", type=int, help="examples to evaluate (default: all held out)")
    parser.add_argument("--data", metavar="FILE", help="evaluate this file (or corpus) instead")
    parser.add_argument(
        "--fills", metavar="FILE", help="look over what `statewise fill` wrote, with RUN as the referee"
    )
    parser.add_argument(
        "--protocol",
        choices=[*get_args(Carried), "all"],
        help="where the state of a chunk comes from (models that carry one; default: all of these, a line each)",
    )
    parser.add_argument(
        "--warmup", type=int, metavar="N", help="passes over a chunk before it counts, with same-chunk (default 1)"
    )
    parser.add_argument(
        "--comprehensive", action="store_true", help="read held-out documents as a whole (such models, task text)"
    )
    parser.add_argument("--checkpoint", default="best", help="best, last, or a step (default: best)")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    others = _other_held_out()
    for option, sets in others.items():
        parser.add_argument(f"--{option}", dest=option, metavar="SET", help=f"evaluate another held-out set: {sets}")
    options = parser.parse_args(words)

    from statewise.experiment import Experiment

    by = [(option, value) for option in others if (value := getattr(options, option)) is not None]
    if options.fills and (options.data or options.num is not None or by):
        raise ValueError("--fills is looked over as it is: leave --data, --num and other sets away")
    if len(by) > 1:
        raise ValueError(f"{' and '.join(f'--{option}' for option, _ in by)} are different sets: give one of them")
    experiment = Experiment.load(options.run, options.checkpoint, options.device)
    if options.fills:
        return _referee(experiment, Path(options.fills), options.checkpoint, options.json)
    at_checkpoint = [] if options.checkpoint == "best" else [f"checkpoint-{options.checkpoint}"]
    if options.comprehensive:
        if options.data or options.num is not None or by or options.protocol or options.warmup is not None:
            raise ValueError("--comprehensive reads all held-out documents with a carried state: give no more with it")
        name = "-".join(["evaluation-comprehensive", *at_checkpoint])
        return _show(experiment, experiment.whole_texts(), name, options)
    protocols = _protocols(experiment, options.protocol, options.warmup)
    own_notes = list(experiment.task.notes)
    asked = {
        name: experiment.evaluate(options.num, options.data, by=by[0] if by else None, protocol=protocol, warmup=warmup)
        for name, (protocol, warmup) in protocols.items()
    }
    evaluation = next(iter(asked.values()))
    # `compare` reads "evaluation", which must mean the same for every run; what deviates gets a name of its own.
    data = Path(options.data).resolve() if options.data else None
    deviations = [data.name] if data else [f"{option}-{value}" for option, value in by]
    deviations += at_checkpoint
    deviations += [] if options.num is None else [f"first-{options.num}"]
    deviations += [] if options.protocol in (None, "all") else [f"protocol-{options.protocol}"]
    deviations += [] if options.warmup in (None, 1) else [f"warmup-{options.warmup}"]
    name = "-".join(["evaluation", *deviations])
    for note in experiment.task.notes:
        if not data or note not in own_notes:  # of a run's own data nothing is said where others are read
            print(note, file=sys.stderr)
    return _show(experiment, evaluation, name, options, data, asked if experiment.carries else {})


def _protocols(
    experiment: Experiment, chosen: str | None, warmup: int | None
) -> dict[str, tuple[Carried | None, int | None]]:
    """By name the protocols that are asked for and their warm-up passes; the first is the one that counts."""
    if not experiment.carries:
        if chosen is not None or warmup is not None:
            raise ValueError(
                "--protocol and --warmup go with models that carry a state: the backbone belief_slots, with the "
                "objectives next_token and next_latent"
            )
        return {"": (None, None)}
    if warmup is not None and chosen not in (None, "all", "same-chunk"):
        raise ValueError("a warm-up passes over the chunk itself: that is --protocol same-chunk")
    if warmup is not None and warmup < 1:
        raise ValueError(f"--warmup must be at least 1, not {warmup}")
    passes = 1 if warmup is None else warmup
    every: dict[str, tuple[Carried | None, int | None]] = {
        "carried": ("carried", None),
        "fresh": ("fresh", None),
        f"same-chunk, {passes} pass{'es' * (passes > 1)}": ("same-chunk", passes),
    }
    return {name: how for name, how in every.items() if chosen in (None, "all", how[0])}


def _show(
    experiment: Experiment,
    evaluation: Evaluation,
    name: str,
    options: argparse.Namespace,
    data: Path | None = None,
    asked: Mapping[str, Evaluation] | None = None,
) -> int:
    """Writes the report and prints it; `asked`: the evaluations by protocol."""
    from statewise.reporting.tables import metrics_table, number, text_table

    protocols = {protocol: found.metrics for protocol, found in (asked or {}).items()}
    content = experiment.report(evaluation, name, data, protocols)
    if options.json:
        print(json.dumps({key: content[key] for key in ("checkpoint", "num", "metrics", "protocols") if key in content},
                         indent=2))  # fmt: skip
        return 0
    decoding = ", greedy decoding" if evaluation.samples else ""
    asked_how = f", {next(iter(protocols))}" if len(protocols) == 1 else ""
    asked_how = ", whole documents, carried" if options.comprehensive else asked_how
    print(f"{options.run}, step {content['checkpoint']}, {evaluation.num} examples{decoding}{asked_how}")
    if len(protocols) < 2:
        print(metrics_table(evaluation.metrics))
    else:
        header = ["metric", *(f"{name} *" if name.startswith("same-chunk") else name for name in protocols)]
        rows = [[metric, *(number(found[metric]) for found in protocols.values())] for metric in evaluation.metrics]
        print(text_table(header, rows))
    if any(name.startswith("same-chunk") for name in protocols):
        mark = "* " if len(protocols) > 1 else ""
        print(f"{mark}same-chunk sees its own targets: it is no likelihood, and compares with nothing else")
    return 0


def _other_held_out() -> dict[str, str]:
    """Options that say which of a task's other held-out sets is meant, with their values and tasks in words.

    All tasks are asked, before there is a run: a mistyped option is then answered as ever, with the near misses.
    """
    found: dict[str, list[str]] = {}
    for name, task in TASKS.items():
        offered: Mapping[str, Sequence[str]] = task.other_held_out  # type: ignore[attr-defined]
        for option, values in offered.items():
            found.setdefault(option, []).append(f"{' or '.join(values)} (task {name})")
    return {option: ", ".join(sets) for option, sets in found.items()}


def _referee(experiment: Experiment, path: Path, checkpoint: str, as_json: bool) -> int:
    """Prints and keeps what this model finds of the sequences in a file that `fill` wrote."""
    from statewise.cli.fill import read
    from statewise.reporting.tables import metrics_table

    found = read(path)
    metrics = experiment.referee(found)
    assert experiment.run is not None
    assert experiment.checkpoint is not None
    content = {"checkpoint": experiment.checkpoint.step, "file": str(path), "num": len(found), "metrics": metrics}
    deviation = "" if checkpoint == "best" else f"-checkpoint-{checkpoint}"
    experiment.run.write_report(f"fills-{path.stem}{deviation}", content)
    if as_json:
        print(json.dumps(content, indent=2))
    else:
        print(f"{path}, {len(found)} sequences, as {experiment.run.folder}, step {content['checkpoint']}, finds them")
        print(metrics_table(metrics))
    return 0
