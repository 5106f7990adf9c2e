"""statewise fill: held-out sequences get a new middle, a line of JSON each."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from statewise.cli.arguments import Parser, pairs

if TYPE_CHECKING:
    from statewise.infilling import Filled

TITLE = "filling"
KEYS = ("prompt", "completion", "goal", "original")

DESCRIPTION = """Takes held-out sequences, gives a model their beginning and their end, and writes what it puts between.

  statewise fill runs/bst --decoder goal_search --rollouts 120 --num 100 --out bst.jsonl
  statewise fill runs/fim --decoder beam --beams 120 --num 100 --out fim.jsonl
  statewise evaluate runs/referee --fills bst.jsonl
  statewise judge bst.jsonl fim.jsonl --url http://localhost:8000/v1 --model NAME --out judged.jsonl

Options of the decoders are those of `statewise generate`. The same command goes on with a file that is not complete."""


def run(words: list[str]) -> int:
    """Runs the verb."""
    parser = Parser("fill", DESCRIPTION)
    parser.add_argument("run", metavar="RUN", help="run directory; its task must be stories")
    parser.add_argument("--out", metavar="FILE", required=True, help="JSON lines, for `evaluate --fills` and `judge`")
    parser.add_argument("--num", type=int, default=100, help="held-out sequences to take (default 100)")
    parser.add_argument("--decoder", default="greedy", help="`statewise list` shows them (default: greedy)")
    parser.add_argument("--checkpoint", default="best", help="best, last, or a step (default: best)")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    options, rest = parser.split(words)
    if options.num < 1:
        raise ValueError(f"--num must be at least 1, not {options.num}")

    from statewise.experiment import Experiment, make_decoder
    from statewise.infilling import infilling
    from statewise.ledger import Ledger

    decoder = make_decoder(options.decoder, **pairs(rest))
    experiment = Experiment.load(options.run, options.checkpoint, options.device)
    out, task = Path(options.out), experiment.task
    asked = infilling(task).goals(options.num)
    facts = {"weights": experiment.fingerprint(), "decoder": options.decoder, "options": vars(decoder.config)}
    with Ledger(out, TITLE, facts, KEYS) as ledger:
        for number, (line, (prompt, _, goal)) in enumerate(zip(ledger.records, asked), 2):
            if (line["prompt"], line["goal"]) != (task.decode(prompt), task.decode(goal)):
                raise ValueError(f"{out}:{number}: filled for other sequences: choose another --out")
        for one in experiment.fill(decoder, len(asked), len(ledger.records)):
            ledger.add(vars(one))
            print(f"{len(ledger.records)}/{len(asked)}  ...{one.completion[:90]!r}", file=sys.stderr)
    print(f"wrote {out}: {len(ledger.records)} sequences")
    return 0


def read(path: Path) -> list[Filled]:
    """The lines of such a file. Raises `ValueError` as `FILE:LINE: what is wrong`."""
    from statewise.infilling import Filled
    from statewise.tasks.lines import Problems, read_lines

    found, problems = [], Problems(path)
    for number, line in read_lines(path):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if number == 1 and isinstance(row, dict) and row.get("title") == f"statewise {TITLE}":
            continue
        if isinstance(row, dict) and set(row) == set(KEYS) and all(isinstance(row[key], str) for key in KEYS):
            found.append(Filled(**row))
            if row["goal"] and row["prompt"]:
                continue
        problems.add(number, "not a line that `statewise fill` wrote")
    problems.raise_if_any()
    return found
