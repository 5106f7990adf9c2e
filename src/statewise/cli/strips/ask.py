"""statewise strips ask: list the shortest traces that would settle what is open."""

from __future__ import annotations

import textwrap
from pathlib import Path

from statewise.runtime.arguments import Parser, above, at_least
from statewise.runtime.messages import counted, say
from statewise.runtime.overwriting import claimed_file


def run(words: list[str]) -> int:
    """Runs the command."""
    from statewise.cli.commands import terminal_width
    from statewise.cli.strips.sources import AGAINST

    parser = Parser(
        "strips ask",
        "Lists the shortest traces that would settle what the training traces leave open: what the model allows and\n"
        "no trace shows, and what it forbids. The answer to each is whether its last action is possible after the\n"
        "others, from some state. With --out the questions are written as JSON lines: replace `null` in `label` by 0\n"
        "(valid) or 1 (the last action is impossible), and learn again from the same traces with --answers.\n\n"
        "  statewise strips ask learned/ --out questions.jsonl\n"
        "  statewise strips learn t.csv --lifted --answers questions.jsonl --out better/\n"
        "  statewise strips ask learned/ --answered-by blocksworld:3 --out answers.jsonl",
    )
    parser.add_argument("model", metavar="DIR", help="a learned folder")
    parser.add_argument("--num", type=at_least(1), default=10, help="the most questions (default: 10)")
    parser.add_argument("--seconds", type=above(0), default=20.0, help="time limit in seconds (default: 20)")
    parser.add_argument("--answered-by", metavar="REFERENCE", help=f"let a true model answer: {AGAINST}")
    parser.add_argument("--out", metavar="FILE", help="JSON lines with the questions")
    parser.add_overwrite()
    options = parser.parse_args(words)

    from statewise.cli.strips.sources import model_of, read_model, read_reference
    from statewise.strips import answered, ask, write_questions

    asked = ask(options.model, num=options.num, seconds=options.seconds)
    answers = None
    if options.answered_by is not None:
        names = read_model(options.model).names
        true = model_of(read_reference(options.answered_by, names))
        answers = [answered(each, true) for each in asked.questions]
    if options.out is not None:
        with claimed_file(Path(options.out), options.overwrite) as scratch:
            write_questions(asked, scratch, answers)
    for place, each in enumerate(asked.questions):
        what = "the model allows it" if each.allowed else "the model forbids it"
        said = ""
        if answers is not None:
            trace, label = answers[place]
            said = "; answer: " + ("possible" if not label else f"{trace[-1]} is impossible")
        text = f"{place + 1:3}  {', '.join(each.trace)}  ({each.about} {what}{said})"
        say(textwrap.fill(text, max(40, terminal_width()), subsequent_indent=" " * 5, break_on_hyphens=False))
    if not asked.questions:
        say(
            "no question"
            + (" was found in the time" if asked.more else ": the training traces decide all that was found")
        )
    elif asked.more:
        say("there may be more: give a larger --num or --seconds")
    if options.out is not None:
        say(f"wrote {counted(len(asked.questions), 'question')} to {options.out}")
    return 0
