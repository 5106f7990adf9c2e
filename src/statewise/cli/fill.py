"""statewise fill: new middles for held-out sequences, one JSON line each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from statewise.cli.arguments import Parser, at_least, pairs
from statewise.runtime.json_files import TEXT, Shape, check, loads, one_of
from statewise.runtime.messages import say

if TYPE_CHECKING:
    from statewise.evaluation.infilling import Filled

TITLE = "filling"
KEYS = ("prompt", "completion", "goal", "original")
LINE: Shape = {**dict.fromkeys(KEYS, TEXT), "ended_by?": one_of("length", "model")}

DESCRIPTION = """Gives a model the beginning and the end of held-out sequences and writes the middles that it generates.

  statewise fill runs/bst --decoder goal_search --rollouts 120 --num 100 \\
      --out bst.jsonl
  statewise fill runs/fim --decoder beam --beams 120 --num 100 --out fim.jsonl
  statewise fill runs/bst --unconditional --decoder goal_search --out free.jsonl
  statewise evaluate runs/referee --fills bst.jsonl
  statewise judge bst.jsonl fim.jsonl \\
      --url http://localhost:8000/v1 --model NAME --out judged.jsonl

A middle has as many tokens as the original, unless --free-length or --unconditional lets the model end it. Options of
the decoders are those of `statewise generate`. The same command continues an incomplete file."""


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser("fill", DESCRIPTION)
    parser.add_run("run directory; its task must be stories")
    parser.add_argument("--out", metavar="FILE", required=True, help="JSON lines, for `evaluate --fills` and `judge`")
    parser.add_argument("--num", type=at_least(1), default=100, help="held-out sequences to take (default: 100)")
    parser.add_argument("--decoder", default="greedy", help="`statewise list` shows them (default: greedy)")
    parser.add_argument(
        "--free-length",
        action="store_true",
        help="the model ends the middle (belief_state with min_gap 1, or fill_in_the_middle)",
    )
    parser.add_argument(
        "--unconditional", action="store_true", help="give the beginning only; the model ends the sequence"
    )
    parser.add_argument(
        "--limit",
        type=at_least(1),
        help="with these two: maximum tokens to generate, including the one that ends it (default: the context)",
    )
    parser.add_argument(
        "--reverse",
        action="store_true",
        help="decode from the last missing token to the first with the previous-token head (belief_state)",
    )
    options, rest = parser.split(words)
    if options.limit is not None and not (options.free_length or options.unconditional):
        raise ValueError(
            "--limit needs --free-length or --unconditional: otherwise middles are as long as the originals"
        )
    if options.reverse and options.unconditional:
        raise ValueError("--reverse starts from the given end, and --unconditional gives none: omit either")
    if options.free_length and options.unconditional:
        raise ValueError("--unconditional implies free length: omit --free-length")

    from statewise.decoding import make_decoder
    from statewise.decoding.reverse import Reverse
    from statewise.evaluation.infilling import fill_gaps, gaps, goal_text
    from statewise.model.loading import load_model
    from statewise.runtime.ledger import Ledger

    decoder = make_decoder(options.decoder, **pairs(rest))
    how = Reverse(decoder) if options.reverse else decoder
    model = load_model(options.run, options.checkpoint, options.device)
    out, task = Path(options.out), model.task
    with model.asking():
        asked = gaps(task, options.num, unconditional=options.unconditional)
    shaping = {name: value for name, value in vars(decoder.config).items() if name not in decoder.only_speed}
    # What is off is None, so that files begun before there was the option can be continued.
    facts = {
        "weights": model.fingerprint(),
        "decoder": options.decoder,
        "options": shaping,
        "free_length": options.free_length or None,
        "unconditional": options.unconditional or None,
        "limit": options.limit,
        "reverse": options.reverse or None,
    }
    with Ledger(out, TITLE, facts, LINE) as ledger, model.asking() as predictor:
        for number, (line, gap) in enumerate(zip(ledger.records, asked), 2):
            if (line["prompt"], line["goal"]) != (task.decode(gap.prompt), goal_text(task, gap)):
                raise ValueError(f"{out}:{number}: written for other sequences: choose another --out")
        found = fill_gaps(
            predictor, task, how, asked, skip=len(ledger.records), free_length=options.free_length, limit=options.limit
        )
        for one in found:
            ledger.add(vars(one))
            say(f"{len(ledger.records)}/{len(asked)}  ...{one.completion[:90]!r}", file=sys.stderr)
    fewer = f"; only {len(asked):,} that can be filled are held out" if len(asked) < options.num else ""
    say(f"wrote {out}: {len(ledger.records)} sequences{fewer}")
    if options.free_length or options.unconditional:
        ended = sum(line.get("ended_by") == "model" for line in ledger.records)
        say(f"{ended} of them were ended by the model, the others by the maximum length")
    return 0


def read(path: Path) -> list[Filled]:
    """The lines of such a file. Raises `ValueError` with file and line."""
    from statewise.evaluation.infilling import Filled
    from statewise.tasks.own_files.lines import Problems, read_lines

    found, problems = [], Problems(path)
    for number, line in read_lines(path):
        try:
            row = loads(line)
            if number == 1 and isinstance(row, dict) and row.get("title") == f"statewise {TITLE}":
                continue
            one = Filled(**check(row, LINE, str(path)))
            "".join(vars(one).values()).encode()  # half of a surrogate pair is no text
        except (ValueError, TypeError):  # TypeError: it has further keys
            one = None
        if one is None or not one.prompt:
            problems.add(number, "not a line that `statewise fill` wrote")
        else:
            found.append(one)
    problems.raise_if_any()
    return found
