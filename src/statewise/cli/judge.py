"""statewise judge: a language model compares two files of stories."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from statewise.cli.counter import shown_progress
from statewise.runtime.arguments import Parser, above, at_least, not_below
from statewise.runtime.json_files import printable
from statewise.runtime.messages import say

KEY = "STATEWISE_JUDGE_KEY"

DESCRIPTION = f"""Lets a language model compare two files of stories, pair by pair.

  statewise judge bst.jsonl fim.jsonl \\
      --url http://localhost:8000/v1 --model NAME --out judged.jsonl

Each line of a file is a story: {{"prompt": ..., "completion": ..., "goal": ...}}, or {{"prompt": ..., "story": ...}};
both files must hold the same prompts. The server must offer the OpenAI-compatible chat protocol; its key, if it needs
one, is read from the environment variable {KEY}. Every pair is judged in both orders, --repeats times each.
Answers without a verdict are counted, and their last lines are shown.
The same command continues an interrupted judging."""


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser("judge", DESCRIPTION)
    parser.add_argument("a", metavar="FILE_A", help="stories whose win rate is reported")
    parser.add_argument("b", metavar="FILE_B", help="stories to compare them with")
    parser.add_argument("--url", help="base URL of the server, such as http://localhost:8000/v1")
    parser.add_argument("--model", required=True, help="name of the judge on that server")
    parser.add_argument(
        "--out", metavar="FILE", required=True, help="judgements, as JSON lines; a summary is written beside it"
    )
    parser.add_argument("--repeats", type=at_least(1), default=3, help="judgements per pair and order (default: 3)")
    parser.add_argument(
        "--instructions",
        metavar="FILE",
        help="text of instructions for the judge instead of ours; the format of the verdict is always appended",
    )
    parser.add_argument(
        "--temperature", type=not_below(0), help="sampling temperature of the judge (default: the server's)"
    )
    parser.add_argument("--jobs", type=at_least(1), default=4, help="parallel requests (default: 4)")
    parser.add_argument(
        "--timeout", type=above(0), default=120.0, help="seconds to wait for a server that sends nothing (default: 120)"
    )
    parser.add_argument(
        "--deadline",
        type=above(0),
        default=900.0,
        metavar="SECONDS",
        help="seconds within which an answer must be complete, retries included (default: 900)",
    )
    parser.add_argument(
        "--max-answer",
        type=at_least(1),
        default=2**20,
        metavar="BYTES",
        help="most bytes of an answer (default: 1,048,576)",
    )
    parser.add_argument("--retries", type=at_least(0), default=5, help="repetitions of a failed request (default: 5)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    options = parser.parse_args(words)
    if options.url is None:
        raise ValueError(
            "--url is missing: the base URL of an OpenAI-compatible server, such as http://localhost:8000/v1"
        )

    from statewise.evaluation.judging.client import ChatJudge
    from statewise.evaluation.judging.files import judge_files
    from statewise.evaluation.judging.judgements import as_text

    a, b, out = Path(options.a), Path(options.b), Path(options.out)
    key = (os.environ.get(KEY) or "").strip() or None
    judge_model = ChatJudge(
        options.url,
        options.model,
        key,
        timeout=options.timeout,
        retries=options.retries,
        temperature=options.temperature,
        deadline=options.deadline,
        most_bytes=options.max_answer,
    )
    instructions = None if options.instructions is None else Path(options.instructions)
    try:
        with shown_progress():
            summary, beside = judge_files(
                a,
                b,
                out,
                judge_model,
                model=options.model,
                temperature=options.temperature,
                repeats=options.repeats,
                jobs=options.jobs,
                instructions=instructions,
            )
    except BaseException as error:
        for note in getattr(error, "__notes__", ()):
            say(note, file=sys.stderr)
        raise
    say(printable(summary) if options.json else as_text(summary, str(a), str(b)))
    if not options.json:
        say(f"wrote {out} and {beside}")
    return 0
