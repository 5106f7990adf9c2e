"""Whether a row's text depends on what the server decodes beside it: requests are replayed beside others.

python benchmarks/neighbours.py                  # two minutes a part
python benchmarks/neighbours.py --minutes 10

The same requests arrive in changing order, number and company, prompts are read in parts of changing size, and clients
leave. Every choice is compared with that of the same model in float64, which reads the row alone. One that differs is
explained by rounding if the logits differ by enough to change the choice. Each request's text is compared with what it
got before. In float64 no text may differ; in float32 some choices may differ by rounding, and none where choices that
hang on it are made alone. In bfloat16 many differ.
"""

from __future__ import annotations

import copy
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from serving import make_model
from timing import Benchmark, parser
from torch import Tensor

from statewise.decoding.sample import Greedy, GreedyConfig, Sample, SampleConfig, StepByStep
from statewise.deploy.serving.batch import ContinuousBatch
from statewise.deploy.serving.rows import DecodingOptions, Row, Stops
from statewise.deploy.serving.served import Served

CLOSE = 1e-3
"""An error of logits for which it is counted how many choices it could change."""
SAMPLED = (None, SampleConfig(), SampleConfig(1.0, None, 0.9), SampleConfig(0.7, 40))
PROMPTS, SEEDS, TOKENS = 24, 3, 64
REQUESTS, SMOKE_REQUESTS = 24, 5
"""Requests that arrive at one batch."""


class Request(NamedTuple):
    """What decides a text."""

    prompt: int
    decoding: int
    seed: int


class Watched(ContinuousBatch):
    """A batch that keeps the logits that its rows chose by, unless they chose alone."""

    def __init__(self, *given: Any, **fields: Any) -> None:
        super().__init__(*given, **fields)
        self.logits: dict[Row, list[Tensor]] = {}

    def _choose(self, logits: Tensor, rows: list[Row], *given: Any) -> Any:
        for place, row in enumerate(rows):
            if not row.ended:
                self.logits.setdefault(row, []).append(logits[place, 0].clone())
        return super()._choose(logits, rows, *given)


class Found:
    """What a replay found."""

    def __init__(self) -> None:
        self.texts: dict[Request, list[int]] = {}
        self.rows = self.choices = self.changed = self.alone = 0
        self.other = self.unexplained = self.close = 0
        self.errors: list[float] = []
        """The largest difference of each choice's logits from those in float64."""


def replay(
    served: Served,
    exact: Served,
    prompts: list[np.ndarray],
    error: float,
    seconds: float,
    seed: int,
    bf16: bool,
    requests: int = REQUESTS,
) -> Found:
    """Decodes for so long."""
    found, rng, end = Found(), np.random.default_rng(seed), time.perf_counter() + seconds
    with torch.inference_mode():
        while not found.rows or time.perf_counter() < end:
            batch = Watched(
                served.predictor, most=int(rng.integers(1, 33)), part=int(rng.choice([16, 64, 256])), error=error
            )
            made: list[tuple[Request, Row]] = []
            choices = (len(prompts), len(SAMPLED), SEEDS)
            coming = [Request(*(int(rng.integers(n)) for n in choices)) for _ in range(requests)]
            while coming or batch.busy:
                for _ in range(rng.integers(1, 6) if coming and rng.random() < 0.5 else 0):
                    if coming:
                        made.append((coming[-1], row_of(served, prompts, coming.pop())))
                        batch.waiting.append(made[-1][1])
                if made and rng.random() < 0.03:  # a client leaves
                    row = made[rng.integers(len(made))][1]
                    row.cancelled = row.finish is None
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    batch.admit()
                    batch.read_prompts()
                    batch.step()
            found.alone += batch.counts.alone
            for request, row in made:
                judge(found, exact, request, row, batch.logits.get(row, []))
    return found


def row_of(served: Served, prompts: list[np.ndarray], request: Request) -> Row:
    decoding = DecodingOptions(SAMPLED[request.decoding], request.seed, Stops(()), None, False)
    (row,) = served.rows(prompts[request.prompt], None, decoding, limit=TOKENS, numbers=[0], exact=False)
    return row


def judge(found: Found, exact: Served, request: Request, row: Row, logits: list[Tensor]) -> None:
    """Compares the choices of a row with those of float64 after the same tokens."""
    if not row.tokens:
        return
    if row.finish is not None:
        found.rows += 1
        found.changed += found.texts.setdefault(request, row.tokens) != row.tokens
    tokens = torch.tensor([[*row.read.tolist(), *row.tokens[:-1]]])
    cursor, first = exact.predictor.start(tokens[:, :1])
    after = exact.predictor.extend(cursor, tokens[:, 1:]) if tokens.shape[1] > 1 else first[:, None][:, :0]
    true = torch.cat([first[:, None], after], 1)[0, len(row.read) - 1 :]
    errors = (torch.stack(logits).double() - true).abs().amax(-1)
    config, places = row.decoding.sampling, len(row.read) + np.arange(len(true))
    plain: StepByStep = Greedy(GreedyConfig()) if config is None else Sample(replace(config, seed=request.seed))
    noise = plain.noise(np.zeros(len(true), np.int64), places, true.shape[1]) if plain.draws else None
    best = plain.choose(true, noise)
    other = (best != torch.tensor(row.tokens)).nonzero()[:, 0].tolist()
    found.choices += len(true)
    found.errors += errors.tolist()
    found.other += len(other)
    found.close += int(plain.close(true, noise, best, CLOSE).sum())
    for place in other:
        at = slice(place, place + 1)
        near = plain.close(true[at], None if noise is None else noise[at], best[at], float(errors[place]))
        found.unexplained += not bool(near)


def main(words: Sequence[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--minutes", type=float, default=2.0, help="of each part (default 2)")
    given = options.parse_args(words)
    bench, rng = Benchmark(given.smoke), np.random.default_rng(3)
    seconds, requests = (0.0, SMOKE_REQUESTS) if bench.smoke else (60 * given.minutes, REQUESTS)
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder), small=bench.smoke)
    exact = Served("exact", copy.deepcopy(model))
    exact.model.objective.double()
    served = Served("model", model)
    prompts = [rng.integers(2, len(model.task.vocab), rng.integers(4, 100)) for _ in range(PROMPTS)]
    for name, which, error in (
        ("float64", exact, 0.0),
        ("float32", served, 0.0),
        ("float32, close choices alone", served, served.rounding),
        ("bfloat16", served, 0.0),
    ):
        found = replay(which, exact, prompts, error, seconds, seed=4, bf16=name == "bfloat16", requests=requests)
        print(f"{name}: {found.rows:,} rows, {found.choices:,} choices, {found.alone} made alone")
        usual, worst, share = np.median(found.errors), max(found.errors), found.close / found.choices
        print(
            f"  logits differ from float64 by {usual:.1e} at the median, {worst:.1e} at most; "
            f"errors of {CLOSE:g} could change {share:.3%} of the choices"
        )
        print(
            f"  {found.other} choices of another token than float64, {found.unexplained} not explained by rounding; "
            f"{found.changed} texts other than before",
            flush=True,
        )
        if which is exact or error:
            bench.at_most(f"texts that differ, {name}", found.changed, 0)
        bench.at_most(f"choices not explained by rounding, {name}", found.unexplained, 0)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
