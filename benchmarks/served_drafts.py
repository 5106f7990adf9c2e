"""Drafts in the server: tokens per second of 1, 4 and 16 rows that are decoded together, greedily, without HTTP.

python benchmarks/served_drafts.py [RUN ...]

Of each RUN, or else of a model of next_latent on rides that it trains first. Prompts are held out, and reading them is
not counted. `auto` may cost a tenth where drafts do not pay.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from speculative import trained
from timing import Benchmark, parser

from statewise.data_types import Examples
from statewise.deploy.serving.batch import BatchCounts, ContinuousBatch
from statewise.deploy.serving.choosing import Drafting, Length
from statewise.deploy.serving.rows import DecodingOptions, Row, Stops
from statewise.deploy.serving.served import Served
from statewise.model.model import load_model
from statewise.training import machine

LENGTHS: tuple[Length, ...] = (0, 2, 4, "auto")
TOKENS, PART = 64, 256
GREEDY = DecodingOptions(None, 0, Stops(()), None, False)


def prompt(held_out: Examples, number: int) -> np.ndarray:
    """A held-out prompt, or the first tokens of a sequence that has none."""
    row = number % len(held_out.lengths)
    return held_out.tokens[row, : held_out.prompt_lengths[row] or 8].astype(np.int64)


def decode(batch: ContinuousBatch, rows: list[Row]) -> tuple[float, list[list[int]]]:
    """Tokens per second after the first, and all tokens of each row."""
    batch.waiting.extend(rows)
    while batch.waiting or batch.reading:
        batch.admit()
        batch.read_prompts()
    began, before = time.perf_counter(), sum(len(row.tokens) for row in rows)
    while batch.busy:
        batch.step()
    made = sum(len(row.tokens) for row in rows) - before
    return made / (time.perf_counter() - began), [row.tokens for row in rows]


def measure(bench: Benchmark, name: str, served: Served, count: int, rounds: int) -> None:
    """Decodes `count` rows together, with each draft length in turn."""
    drafting = {length: Drafting(served.predictor, length, "model", PART) for length in LENGTHS}
    rates: dict[Length, list[float]] = {length: [] for length in LENGTHS}
    drafted = dict.fromkeys(LENGTHS, BatchCounts())
    held_out, differ = served.task.held_out(256), 0
    with torch.inference_mode(), served.computing():
        for turn in range(rounds):
            texts = []
            for length in LENGTHS:
                batch = ContinuousBatch(
                    served.predictor, most=count, part=PART, error=served.rounding, drafting=drafting[length]
                )
                prompts = [prompt(held_out, turn * count + place) for place in range(count)]
                rows = [served.rows(one, None, GREEDY, limit=TOKENS, numbers=[0], exact=False)[0] for one in prompts]
                rate, tokens = decode(batch, rows)
                rates[length].append(rate)
                texts.append(tokens)
                drafted[length] = batch.counts
            differ += sum(other != texts[0] for other in texts[1:])
    plain = float(np.median(rates[0]))
    for length, found in rates.items():
        made, rate = drafted[length], np.median(found)
        print(
            f"  {count:2} rows, draft {length!s:4} {rate:8.1f} tokens/s, {rate / plain:.2f} of none; "
            f"accepted {made.accepted} of {made.drafted} in the last round",
            flush=True,
        )
    if served.rounding:
        bench.at_most(f"{name}, {count} rows: rounds whose texts drafts change", differ, 0)
    else:
        print(f"  {count:2} rows: in bfloat16 {differ} of {rounds * (len(LENGTHS) - 1)} rounds have other texts")
    bench.at_least(f"{name}, {count} rows: auto against none", float(np.median(rates["auto"])) / plain, 0.9)


def main(words: Sequence[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("runs", nargs="*", metavar="RUN")
    given = options.parse_args(words)
    bench = Benchmark(given.smoke)
    machine.keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        for run in given.runs or [trained("rides", Path(folder), bench.smoke)]:
            name = Path(run).name
            served = Served(name, load_model(run, device="cpu"))
            print(f"{name}: {machine.processor_name()}, {torch.get_num_threads()} thread(s)")
            for count in (1, 2) if bench.smoke else (1, 4, 16):
                measure(bench, name, served, count, 1 if bench.smoke else 7)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
