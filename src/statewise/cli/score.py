"""statewise score: how a run answers the questions of a file."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from statewise.cli.arguments import Parser
from statewise.cli.counter import counter

DESCRIPTION = """Answers the questions of a file by likelihood. JSON lines, all of one kind:

  {"context": "The cat sat on the", "choices": ["mat", "moon"], "answer": 0}    multiple choice
  {"text": "She poured the tea into his cup"}                                   the last word

Between a context and a choice comes a space, unless white space is there already. Needs a run whose task is text or
stories."""


def run(words: list[str]) -> int:
    """Runs the verb."""
    parser = Parser("score", DESCRIPTION)
    parser.add_argument("run", metavar="RUN", help="run directory")
    parser.add_argument("file", metavar="FILE", help="questions")
    parser.add_argument("--num", type=int, help="questions to answer, the first ones (default: all)")
    parser.add_argument("--batch", type=int, default=32, help="texts the model reads at a time (default 32)")
    parser.add_argument("--checkpoint", default="best", help="best, last, or a step (default: best)")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(words)
    for name in ("num", "batch"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise ValueError(f"--{name} must be at least 1, not {getattr(options, name)}")

    from statewise.zero_shot.questions import read_questions

    path = Path(options.file)
    questions = read_questions(path, options.num)  # what is wrong there should not wait for the model to load

    from statewise.experiment import Experiment
    from statewise.reporting.tables import metrics_table

    experiment = Experiment.load(options.run, options.checkpoint, options.device)
    answers = experiment.answer(questions, options.batch, counter("texts"))
    assert experiment.run is not None
    assert experiment.checkpoint is not None
    head = {"checkpoint": experiment.checkpoint.step, "file": str(path.resolve()), "kind": questions.kind,
            "num": len(answers.items)}  # fmt: skip
    content = {**head, **dataclasses.asdict(answers)}
    deviations = [] if options.checkpoint == "best" else [f"checkpoint-{options.checkpoint}"]
    deviations += [] if options.num is None else [f"first-{options.num}"]
    experiment.run.write_report("-".join(["score", path.stem, *deviations]), content)
    if answers.cut:
        print(f"{answers.cut} of {len(answers.items)} questions are longer than the context: the beginning was cut",
              file=sys.stderr)  # fmt: skip
    if options.json:
        print(json.dumps({key: value for key, value in content.items() if key != "items"}, indent=2))
    else:
        print(f"{path}, {questions.kind}, {len(answers.items)} questions, as {options.run}, step {head['checkpoint']}, "
              "answers them")  # fmt: skip
        print(metrics_table(answers.metrics))
        if answers.chance:
            print(f"guessing: {answers.chance['accuracy']:.4f}")
    return 0
