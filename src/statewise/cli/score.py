"""statewise score: a run answers the questions in a file."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from statewise.cli.counter import shown_progress
from statewise.cli.findings import keep_report
from statewise.runtime.arguments import Parser, at_least
from statewise.runtime.json_files import printable
from statewise.runtime.messages import say

DESCRIPTION = """Answers the questions in a file by likelihood. The file holds JSON lines of one kind:

  multiple choice  {"context": "A cat", "choices": ["sat", "ran"], "answer": 0}
  last word        {"text": "She poured the tea into his cup"}

Context and choice are joined by a space, unless there is white space already. The task of the run must be text or
stories."""


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser("score", DESCRIPTION)
    parser.add_run()
    parser.add_argument("file", metavar="FILE", help="JSON lines file of questions")
    parser.add_argument("--num", type=at_least(1), help="only the first N questions (default: all)")
    parser.add_argument("--batch", type=at_least(1), default=32, help="texts per batch (default: 32)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(words)

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
