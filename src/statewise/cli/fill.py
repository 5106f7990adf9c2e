"""statewise fill: new middles for held-out sequences, one JSON line each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from statewise.runtime.arguments import Parser, at_least, pairs
from statewise.runtime.messages import say

if TYPE_CHECKING:
    from statewise.evaluation.infilling import Filled

DESCRIPTION = """Gives a model the beginning and the end of held-out sequences and writes the middles that it generates.

  statewise fill runs/bst --decoder goal_search --rollouts 120 --num 100 \\
      --out bst.jsonl
  statewise fill runs/fim --decoder beam --beams 120 --num 100 --out fim.jsonl
  statewise fill runs/fim --decoder beam --beams 120 --ranked-by runs/gpt \\
      --out ranked.jsonl
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
        "--ranked-by",
        metavar="RUN",
        help="a forward model: of the decoder's candidates take the one after which it finds the given ending most "
        "likely (goal_search, beam)",
    )
    parser.add_argument(
        "--reverse",
        action="store_true",
        help="decode from the last missing token to the first with the previous-token head (belief_state)",
    )
    options, fields = parser.split(words)

    from statewise.experiments.fills import Filling
    from statewise.model.model import load_model

    filling = Filling(
        options.decoder,
        pairs(fields),
        options.num,
        options.free_length,
        options.unconditional,
        options.limit,
        options.reverse,
    )  # wrong options fail before the model is loaded
    if options.ranked_by is not None:
        filling.check_ranking()
    model = load_model(options.run, options.checkpoint, options.device)
    ranker = None if options.ranked_by is None else load_model(options.ranked_by, device=options.device)

    def show(done: int, total: int, one: Filled) -> None:
        say(f"{done}/{total}  ...{one.completion[:90]!r}", file=sys.stderr)

    out = Path(options.out)
    written = filling.write(model, out, show, ranker=ranker)
    few = written.held_out < options.num
    fewer = f"; only {written.held_out:,} that can be filled are held out" if few else ""
    say(f"wrote {out}: {len(written.lines)} sequences{fewer}")
    if options.free_length or options.unconditional:
        ended = sum(line.get("ended_by") == "model" for line in written.lines)
        say(f"{ended} of them were ended by the model, the others by the maximum length")
    return 0
