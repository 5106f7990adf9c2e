"""statewise score: the surprise of every event of a file, or answers to questions, by likelihood."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statewise.cli.commands import say_lines
from statewise.cli.counter import shown_progress
from statewise.cli.findings import keep_report
from statewise.runtime.arguments import Parser, at_least
from statewise.runtime.json_files import printable
from statewise.runtime.messages import counted, cut, say

if TYPE_CHECKING:
    from statewise.explain.scoring import Scored
    from statewise.model.model import Model

DESCRIPTION = """How likely a file is to a model. What the file holds depends on the run's task.

Task sequences: your own file, in the format of the one that the run was trained on. How much every event and every
case surprises the model, in nats: 0 for what it was sure of, .7 for one of two equally likely events, 4.6 for
something that it expects once in a hundred times. --against compares two files: whether the process has changed.

  statewise score runs/mine new.csv --out surprises.csv
  statewise score runs/mine june.csv --against may.csv
  statewise score runs/mine june.csv --against held-out

--out writes your rows with further columns (event, symbol, surprise, expected_surprise, likeliest,
likeliest_probability, note), and beside it OUT.cases.csv (without OUT's .csv), a row for each case. A case is scored
up to the first symbol that the model does not know.

Tasks text and stories: JSON lines of questions of one kind, answered by likelihood:

  multiple choice  {"context": "A cat", "choices": ["sat", "ran"], "answer": 0}
  last word        {"text": "She poured the tea into his cup"}

Context and choice are joined by a space, unless there is white space already."""
HELD_OUT = "held-out"
SHOWN = 5
"""Most surprising cases that are printed."""


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser("score", DESCRIPTION)
    parser.add_run()
    parser.add_argument("file", metavar="FILE", help="your own file, or JSON lines of questions")
    parser.add_argument("--out", metavar="OUT.csv", help="sequences: write the surprise of every event and case")
    parser.add_overwrite("sequences: replace OUT.csv and the file of cases beside it")
    parser.add_argument(
        "--against",
        metavar="FILE",
        help=f"sequences: compare with the cases of this file, or with the run's {HELD_OUT} cases",
    )
    parser.add_argument("--num", type=at_least(1), help="questions: only the first N (default: all)")
    parser.add_argument("--batch", type=at_least(1), default=32, help="questions: texts per batch (default: 32)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(words)
    if options.overwrite and options.out is None:
        raise ValueError("--overwrite is for the files of --out: give --out, or omit it")
    if _of_sequences(Path(options.run)):
        if options.num is not None:
            raise ValueError("--num is for questions: a run of the task sequences scores the whole file")
        return _score_file(options)
    for name in ("out", "against"):
        if getattr(options, name) is not None:
            raise ValueError(f"--{name} is for runs of the task sequences: omit it")
    return _answer(options)


def _of_sequences(folder: Path) -> bool:
    """Whether the task of a run is `sequences`, or a task of another package that is derived from it."""
    from statewise.run import Run
    from statewise.tasks import TASKS
    from statewise.tasks.own_files.sequences import Sequences

    return issubclass(TASKS[Run.open(folder).recipe()["task"]["name"]], Sequences)


# Sequences


def _score_file(options: argparse.Namespace) -> int:
    """The surprise of a user's file."""
    path = Path(options.file)
    if options.out is None:
        return _scored(options, path, None)

    from statewise.runtime.overwriting import check_file, claimed_files

    out = Path(options.out)
    if not out.parent.is_dir():
        raise ValueError(f"there is no folder {out.parent} to write --out into")
    names = [out.name, f"{out.name.removesuffix('.csv')}.cases.csv"]

    def check() -> None:
        for name in names:
            check_file(out.parent / name, options.overwrite)

    with claimed_files(out.parent, names, check, options.overwrite) as scratch:
        code = _scored(options, path, [scratch / name for name in names])
    if not options.json:
        say(f"wrote {out}, the surprise of every event, and {out.parent / names[1]}, of every case")
    return code


def _scored(options: argparse.Namespace, path: Path, files: list[Path] | None) -> int:
    """Scores, prints, keeps a report in the run, and writes the `files` of events and cases."""
    from statewise.explain.cases import own_sequences
    from statewise.explain.scoring import (
        cases_csv,
        compare,
        drift_lines,
        events_csv,
        is_formula,
        known_file,
        most_surprising,
        score,
        sentences,
    )
    from statewise.model.model import load_model
    from statewise.run import report_of
    from statewise.runtime.durable import replacing

    model = load_model(options.run, options.checkpoint, options.device)
    formulas = 0
    with shown_progress():
        task = own_sequences(model.task)
        scored = score(model, task.log(path))
        lines = [*sentences(scored, str(path)), *filter(None, [known_file(task, path)])]
        content: dict[str, Any] = _summary(scored, path)
        if options.against is not None:
            other = _against(model, options.against)
            found, changes = compare(scored, other)
            lines += sentences(other, options.against)
            names = path.name, Path(options.against).name
            lines += drift_lines(found, changes, *(names if len(set(names)) > 1 else (str(path), options.against)))
            content["against"] = {"file": options.against, **dataclasses.asdict(found), "drifts": found.drifts}
            content["symbols"] = [dataclasses.asdict(change) for change in changes]
        if files is not None:
            for file, rows in zip(files, (events_csv(scored), cases_csv(scored)), strict=True):
                with replacing(file) as into:
                    for row in rows:
                        formulas += is_formula(row)
                        into.write(row.encode())
    deviations = [] if options.checkpoint == "best" else [f"checkpoint-{options.checkpoint}"]
    name = "-".join([report_of("score", path.resolve()), *deviations])
    content, written = keep_report(model, name, content)
    if options.json:
        say(printable(content))
        return 0
    say(f"{options.run}, step {content['checkpoint']}")
    say_lines(*lines)
    say("most surprising cases, by nats beyond those expected:")
    for case, nats, expected in most_surprising(scored, SHOWN):
        say(f"  {cut(' '.join(case.split()))}: {nats:.2f} nats, expected {expected:.2f}")
    if formulas:
        say(
            f"{counted(formulas, 'row')} of --out with a cell that begins like a formula (= + - @): open it in a "
            "spreadsheet only if you trust the file, or import its columns as text",
            file=sys.stderr,
        )
    if written:
        say(f"wrote {written}")
    return 0


def _against(model: Model, named: str) -> Scored:
    """The file that another is compared with, scored."""
    from statewise.explain.cases import held_out_log, own_sequences
    from statewise.explain.scoring import score

    task = own_sequences(model.task)
    return score(model, held_out_log(task) if named == HELD_OUT else task.log(Path(named)))


def _summary(scored: Scored, path: Path) -> dict[str, Any]:
    """What the report says of a file."""
    mean = scored.mean
    return {
        "file": str(path.resolve()),
        "kind": "sequences",
        "num": len(scored.log),
        "events": len(scored.log.codes),
        "scored": int(scored.counts.sum()),
        "metrics": {} if math.isnan(mean) else {"loss": mean},
        "unknown_symbols": dict(scored.unknown()),
    }


# Questions


def _answer(options: argparse.Namespace) -> int:
    """Answers the questions in a file."""
    from statewise.evaluation.zero_shot.questions import read_questions

    path = Path(options.file)
    questions = read_questions(path, options.num)  # errors come before the model is loaded

    from statewise.evaluation.zero_shot.questions import answer
    from statewise.model.model import load_model
    from statewise.reporting.tables import metrics_table
    from statewise.run import report_of
    from statewise.tasks.base import running_text

    model = load_model(options.run, options.checkpoint, options.device)
    with model.asking() as predictor, shown_progress():
        answers = answer(predictor, running_text(model.task), questions, options.batch)
    deviations = [] if options.checkpoint == "best" else [f"checkpoint-{options.checkpoint}"]
    deviations += [] if options.num is None else [f"first-{options.num}"]
    head = {"file": str(path.resolve()), "kind": questions.kind, "num": len(answers.items)}
    name = "-".join([report_of("score", path.resolve()), *deviations])
    content, written = keep_report(model, name, {**head, **dataclasses.asdict(answers)})
    if answers.cut:
        say(
            f"{answers.cut} of {len(answers.items)} questions are longer than the context: the beginning was cut",
            file=sys.stderr,
        )
    if options.json:
        say(printable({key: value for key, value in content.items() if key != "items"}))
    else:
        say(f"{path}, {questions.kind}, {len(answers.items)} questions: {options.run}, step {content['checkpoint']}")
        say(metrics_table(answers.metrics))
        if answers.chance:
            say(f"chance: {answers.chance['accuracy']:.4f}")
        if written:
            say(f"wrote {written}")
    return 0
