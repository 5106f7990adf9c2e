"""statewise fill: new middles for held-out sequences, one JSON line each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from statewise.cli.arguments import Parser, at_least, pairs
from statewise.json_files import TEXT, loads

if TYPE_CHECKING:
    from statewise.infilling import Filled

TITLE = "filling"
KEYS = ("prompt", "completion", "goal", "original")

DESCRIPTION = """Gives a model the beginning and the end of held-out sequences and writes the middles that it generates.

  statewise fill runs/bst --decoder goal_search --rollouts 120 --num 100 --out bst.jsonl
  statewise fill runs/fim --decoder beam --beams 120 --num 100 --out fim.jsonl
  statewise evaluate runs/referee --fills bst.jsonl
  statewise judge bst.jsonl fim.jsonl --url http://localhost:8000/v1 --model NAME --out judged.jsonl

Options of the decoders are those of `statewise generate`. The same command continues an incomplete file."""


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser("fill", DESCRIPTION)
    parser.add_run("run directory; its task must be stories")
    parser.add_argument("--out", metavar="FILE", required=True, help="JSON lines, for `evaluate --fills` and `judge`")
    parser.add_argument("--num", type=at_least(1), default=100, help="held-out sequences to take (default 100)")
    parser.add_argument("--decoder", default="greedy", help="`statewise list` shows them (default: greedy)")
    options, rest = parser.split(words)

    from statewise.building import make_decoder
    from statewise.infilling import fill_middles, infilling
    from statewise.ledger import Ledger
    from statewise.loading import load_model

    decoder = make_decoder(options.decoder, **pairs(rest))
    model = load_model(options.run, options.checkpoint, options.device)
    out, task = Path(options.out), model.task
    with model.asking():
        asked = infilling(task).goals(options.num)
    facts = {"weights": model.fingerprint(), "decoder": options.decoder, "options": vars(decoder.config)}
    with Ledger(out, TITLE, facts, dict.fromkeys(KEYS, TEXT)) as ledger, model.asking() as predictor:
        for number, (line, (prompt, _, goal)) in enumerate(zip(ledger.records, asked), 2):
            if (line["prompt"], line["goal"]) != (task.decode(prompt), task.decode(goal)):
                raise ValueError(f"{out}:{number}: written for other sequences: choose another --out")
        for one in fill_middles(predictor, task, decoder, len(asked), len(ledger.records)):
            ledger.add(vars(one))
            print(f"{len(ledger.records)}/{len(asked)}  ...{one.completion[:90]!r}", file=sys.stderr)
    print(f"wrote {out}: {len(ledger.records)} sequences")
    return 0


def read(path: Path) -> list[Filled]:
    """The lines of such a file. Raises `ValueError` with file and line."""
    from statewise.infilling import Filled
    from statewise.tasks.lines import Problems, read_lines

    found, problems = [], Problems(path)
    for number, line in read_lines(path):
        try:
            row = loads(line)
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
