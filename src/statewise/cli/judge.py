"""statewise judge: which of two files of stories is better."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from statewise.cli.arguments import Parser
from statewise.cli.counter import counter

KEY = "STATEWISE_JUDGE_KEY"

DESCRIPTION = f"""Lets a language model compare two files of stories, pair by pair.

  statewise judge bst.jsonl fim.jsonl --url http://localhost:8000/v1 --model NAME --out judged.jsonl

A file holds a line a story: {{"prompt": ..., "completion": ..., "goal": ...}}, or {{"prompt": ..., "story": ...}};
both must hold the same prompts. The server speaks the OpenAI-compatible chat protocol; its key, if it wants
one, is read from the environment variable {KEY}. Every pair is judged in both orders, --repeats times each.
The same command goes on with a judging that was interrupted."""


def run(words: list[str]) -> int:
    """Runs the verb."""
    parser = Parser("judge", DESCRIPTION)
    parser.add_argument("a", metavar="FILE_A", help="stories whose win rate is reported")
    parser.add_argument("b", metavar="FILE_B", help="stories that they are compared with")
    parser.add_argument("--url", help="base URL of the server, such as http://localhost:8000/v1")
    parser.add_argument("--model", required=True, help="name of the judge on that server")
    parser.add_argument("--out", metavar="FILE", required=True, help="judgements, as JSON lines; a summary beside it")
    parser.add_argument("--repeats", type=int, default=3, help="judgements of a pair in each order (default 3)")
    parser.add_argument("--jobs", type=int, default=4, help="requests at a time (default 4)")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds a request may take (default 120)")
    parser.add_argument("--retries", type=int, default=5, help="times a failed request is sent again (default 5)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a summary for reading")
    options = parser.parse_args(words)
    if options.url is None:
        raise ValueError("--url is missing: the base URL of an OpenAI-compatible server, http://localhost:8000/v1 say")
    for name in ("repeats", "jobs", "timeout"):
        if not getattr(options, name) > 0:
            raise ValueError(f"--{name} must be more than 0, not {getattr(options, name)}")
    if options.retries < 0:
        raise ValueError(f"--retries must not be negative, not {options.retries}")

    from statewise.judging.client import ChatJudge
    from statewise.judging.pairs import checksum, read_pairs
    from statewise.judging.protocol import NEEDED, facts, judge
    from statewise.judging.summary import as_text, summarise
    from statewise.ledger import Ledger
    from statewise.run import write_atomically

    a, b, out = Path(options.a), Path(options.b), Path(options.out)
    if out.resolve() in (a.resolve(), b.resolve()):
        raise ValueError(f"--out {out} is one of the files to be judged: choose another")
    pairs = read_pairs(a, b)
    key = (os.environ.get(KEY) or "").strip() or None
    asked = ChatJudge(options.url, options.model, key, timeout=options.timeout, retries=options.retries)
    known = facts(options.model, {"a": checksum(a), "b": checksum(b)}, options.repeats)
    with Ledger(out, "judging", known, NEEDED) as ledger:
        try:
            total = 2 * options.repeats * len(pairs)
            shown = counter("judgements")
            records = judge(pairs, asked, ledger, repeats=options.repeats, jobs=options.jobs,
                            made=lambda count: shown(count, total))  # fmt: skip
        except BaseException:
            print(
                f"{len(ledger.records)} judgements are in {out}: the same command goes on from there", file=sys.stderr
            )
            raise
    summary = {"a": str(a), "b": str(b), "model": options.model, **summarise(records, len(pairs))}
    beside = out.with_suffix(".summary.json")
    write_atomically(beside, (json.dumps(summary, indent=2) + "\n").encode())
    print(json.dumps(summary, indent=2) if options.json else as_text(summary, str(a), str(b)))
    if not options.json:
        print(f"wrote {out} and {beside}")
    return 0
