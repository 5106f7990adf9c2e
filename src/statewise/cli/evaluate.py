"""statewise evaluate: metrics of a trained run."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from statewise.cli.commands import say_lines
from statewise.cli.counter import shown_progress
from statewise.cli.findings import keep_report
from statewise.data_types import Evaluation, Examples
from statewise.decoding.carried_state import seeing_targets
from statewise.evaluation.evaluate import token_losses
from statewise.experiments.requests import EvaluationRequest, learned, verdict
from statewise.runtime.durable import replacing
from statewise.runtime.json_files import printable
from statewise.runtime.messages import counted, say
from statewise.runtime.overwriting import claimed_file

if TYPE_CHECKING:
    import numpy as np

    from statewise.evaluation.verdict import Verdict
    from statewise.model.model import Model

SHOWN = 10
"""How many of the sequences that are left out are named."""

DESCRIPTION = """Scores a run on the held-out data of its task, or on a file in the task's format.

Of a model of your own sequences (task sequences) it says first what the model has learned, beside simple baselines, and
what to do next: see docs/own-data.md.

Writes a report into the run's folder reports: evaluation.json of all held-out examples of the best checkpoint, which
`statewise compare` reads; any other evaluation under a name of its own, such as evaluation-first-50.json with --num 50.
`compare --metrics all` also reads those of --data and of other held-out sets, if they cover all examples with the best
checkpoint and greedy decoding.

--losses OUT.jsonl also writes the nats of every token, a JSON line for each sequence: {"sequence": 0, "nats": 1.7,
"scored": 2, "tokens": ["a", "b", "c"], "nats_by_token": [null, 0.5, 1.2]}, with null where a token is not scored."""


def run(words: list[str]) -> int:
    """Runs the command."""
    request = EvaluationRequest.read(words, DESCRIPTION)  # wrong options fail before the model is loaded
    if not request.options.losses:
        return _evaluate(request, None)
    out = Path(request.options.losses)
    if not out.parent.is_dir():
        raise ValueError(f"there is no folder {out.parent} to write --losses into")
    with claimed_file(out, request.options.overwrite, "--losses") as scratch:
        code = _evaluate(request, scratch)
    if not request.options.json:
        say(f"wrote {out}: the nats of every token, a JSON line for each sequence")
    return code


def _evaluate(request: EvaluationRequest, losses_file: Path | None) -> int:
    """Evaluates, prints, and writes the report and the losses."""
    from statewise.model.model import load_model

    options = request.options
    model = load_model(options.run, options.checkpoint, options.device)
    if options.fills:
        return _score_fills(request, model)
    notes_of_run = list(model.task.notes)
    losses: list[tuple[Examples, np.ndarray, np.ndarray]] = []

    def keep_losses(examples: Examples, nats: np.ndarray, scored: np.ndarray) -> None:
        losses.append((examples, nats, scored))

    with shown_progress():
        evaluations = request.evaluate(model, None if options.comprehensive else keep_losses)
    if request.decoding and not next(iter(evaluations.values())).samples:
        say("no example has a prompt: the decoder does not affect these figures", file=sys.stderr)
    for note in model.task.notes:
        if not request.data or note not in notes_of_run:  # notes on the run's own data do not concern a file
            say(note, file=sys.stderr)
    judged = learned(model.task, model.run, *losses[0], next(iter(evaluations))) if losses else None
    _show(request, model, evaluations, judged)
    for one in losses if losses_file else ():  # after the report, which a full disk must not take along
        assert losses_file is not None
        with replacing(losses_file) as file:
            for record in token_losses(model.task, *one):
                file.write((printable(record, indent=None) + "\n").encode())
    return 0


def _show(
    request: EvaluationRequest, model: Model, evaluations: Mapping[str, Evaluation], judged: Verdict | None
) -> None:
    """Writes the report into the run, and prints it; `judged`: the verdict, if the task's models get one."""
    from statewise.reporting.tables import baselines_table, metrics_table, number, text_table

    options, evaluation = request.options, next(iter(evaluations.values()))
    told = {"verdict": dataclasses.asdict(judged)} if judged else {}
    content, written = keep_report(model, request.report_name, {**told, **request.report(model, evaluations)})
    if options.json:
        shown = ["checkpoint", "num", "verdict", "decoder", "metrics", "baselines", "protocols"]
        say(printable({key: content[key] for key in shown if content.get(key)}))
        return
    protocols = [label for label in evaluations if label]
    leaks = seeing_targets(protocols)
    decoder, *fields = request.decoder_words()
    how = f", {decoder} decoding" + f" ({', '.join(fields)})" * bool(fields) if evaluation.samples else ""
    how += ", whole documents" * options.comprehensive
    how += f", {protocols[0]}" if len(protocols) == 1 else ""
    say(f"{options.run}, step {content['checkpoint']}, {evaluation.num} examples{how}")
    if judged:
        say_lines(judged.sentence, judged.advice)
    if (not leaks or len(protocols) > 1) and not (judged and model.task.headline.metric == "loss"):
        say(verdict(model.task, evaluation, own=request.data is None and request.held_out_set is None))
    if len(protocols) < 2:
        say(metrics_table(evaluation.metrics))
    else:
        header = ["metric", *(f"{name} *" if name in leaks else name for name in protocols)]
        each = [one.metrics for one in evaluations.values()]
        rows = [[metric, *(number(metrics[metric]) for metrics in each)] for metric in evaluation.metrics]
        say(text_table(header, rows))
    if evaluation.baselines:
        say(f"\n{baselines_table(evaluation.baselines, evaluation.metrics)}")
    if request.held_out_set and "," in request.held_out_set[1]:
        option, value = request.held_out_set
        say(f"metrics without a {option} in their names are over all of {value} together")
    if leaks:
        mark = "* " if len(protocols) > 1 else ""
        say(f"{mark}same-chunk sees its own targets: no likelihood, comparable with nothing else")
    if written:
        say(f"wrote {written}")


def _score_fills(request: EvaluationRequest, model: Model) -> int:
    """Prints and reports the likelihood of the sequences in a file that `statewise fill` wrote."""
    from statewise.reporting.tables import metrics_table

    with shown_progress():
        name, scores = request.score_fills(model)
    content, written = keep_report(model, name, scores)
    if request.options.json:
        say(printable(content))
        return 0
    path, num, left_out = request.options.fills, scores["num"], scores["left_out"]
    say(f"{path}, {counted(num, 'sequence')}, scored by {request.options.run}, step {content['checkpoint']}")
    if left_out:
        named = ", ".join(map(str, left_out[:SHOWN])) + ", ..." * (len(left_out) > SHOWN)
        say(f"left out: {len(left_out)} of {num + len(left_out)} sequences, too long for the referee ({named})")
    say(metrics_table(scores["metrics"]))
    if written:
        say(f"wrote {written}")
    return 0
