"""Speculative decoding against plain decoding with the cache, one sequence at a time: greedy, or by sampling.

python benchmarks/speculative.py [--temperature 1] [RUN ...]

Of each RUN, or else of three models of next_latent that it trains first, which takes some minutes: star graphs and
rides, where text is nearly forced, and English text, this repository's documentation. Prompts are held out, and reading
them is not counted. Prints what a pass over n tokens takes against one, what a drafted token takes, and each draft
length's share of accepted drafts and tokens a second.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timing import Benchmark, in_turn, parser
from torch import Tensor

import statewise
from statewise.decoding import make_decoder
from statewise.decoding.base import Request
from statewise.decoding.predictor import Drafter, Predictor
from statewise.experiments.draft_speed import DraftSpeed
from statewise.model.model import Model
from statewise.tasks.corpus.documents import find
from statewise.tasks.corpus.writing import write
from statewise.training import machine

LENGTHS: tuple[int | str, ...] = (2, 4, 7, "auto")
FORCED = 0.85
"""Share of accepted drafts from which text counts as nearly forced."""
TRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "star graphs": ("path-star-small", {"task": {"degree": 2, "length": 12, "nodes": 24}, "steps": 300}),
    "rides": ("city-small", {"steps": 300}),
    "text": ("text-small", {"backbone": {"name": "gpt", "layers": 6, "width": 128}, "tokens": 600_000}),
}
SMOKE = {
    "backbone.width": 16,
    "backbone.heads": 2,
    "backbone.layers": 2,
    "batch_size": 4,
    "steps": 2,
    "tokens": None,
    "evaluate_num": 10,
    "report_num": 10,
}


class Clocked:
    """A predictor that adds up the seconds of its passes and guesses."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor, self.seconds = predictor, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._predictor, name)

    def capability(self, kind: type) -> Any:
        able = self._predictor.capability(kind)
        return self if able is self._predictor and kind is Drafter else able  # or its guesses would not be counted

    def extend(self, *given: Any) -> Tensor:
        began = time.perf_counter()
        logits = self._predictor.extend(*given)
        self.seconds += time.perf_counter() - began
        return logits

    def guesses(self, cursor: Any, token: Tensor, among: Tensor | None = None) -> Generator[Tensor, Tensor, None]:
        assert isinstance(self._predictor, Drafter)
        inner, sent = self._predictor.guesses(cursor, token, among), None
        while True:
            began = time.perf_counter()
            try:
                logits = next(inner) if sent is None else inner.send(sent)
            except StopIteration:
                return
            finally:
                self.seconds += time.perf_counter() - began
            sent = yield logits


def trained(name: str, folder: Path, smoke: bool) -> Path:
    """A run of one of `TRAINED`."""
    recipe, fields = TRAINED[name]
    fields = {"objective": {"name": "next_latent", "horizon": 4}, "evaluate_every": 0, "threads": 1, **fields}
    if smoke and recipe == "path-star-small":
        fields["task.held_out_graphs"] = 10
    if recipe == "text-small":
        docs = sorted(Path(statewise.__file__).parents[2].glob("docs/**/*.md"))
        write(find(docs[:4] if smoke else docs), folder / "corpus", "bpe:512", held_out=0.1)
        fields["task.path"] = str(folder / "corpus")
    return Path(statewise.train(recipe, out=folder / name, **{**fields, **(SMOKE if smoke else {})}).folder)


def costs(predictor: Predictor, smoke: bool) -> None:
    """Prints the time of a pass over n tokens against one, and of a drafted token."""
    assert isinstance(predictor, Drafter)
    prompt, token = (
        torch.zeros(1, min(64, predictor.context - 17), dtype=torch.int64),
        torch.zeros(1, dtype=torch.int64),
    )
    (cursor, _), (untouched, _) = predictor.start(prompt), predictor.start(prompt)

    def read(n: int) -> None:
        predictor.extend(cursor, token.expand(1, n))
        predictor.rewind(cursor, n)

    def draft() -> None:
        guesses = predictor.guesses(untouched, token)
        next(guesses)
        for _ in range(3):
            guesses.send(token)

    predictor.hold(cursor)
    ways = {f"pass over {n}": partial(read, n) for n in (1, 3, 5, 8)} | {"drafted token": draft}
    seconds = {name: statistics.median(found) for name, found in in_turn(ways, 1 if smoke else 30).items()}
    seconds["drafted token"] /= 4
    one = seconds["pass over 1"]
    print(
        f"  pass over 1 token {1e3 * one:.2f} ms; against it "
        + ", ".join(f"{name} {found / one:.2f}" for name, found in seconds.items() if name != "pass over 1")
    )


def measure(bench: Benchmark, name: str, model: Model, temperature: float, rows: int, rounds: int) -> None:
    """Decodes `rows` held-out prompts in each of `rounds`, one at a time, and judges the bars."""
    task = model.task
    held_out = task.held_out(rows)
    requests = []
    for tokens, length, prompt in zip(held_out.tokens, held_out.lengths.tolist(), held_out.prompt_lengths.tolist()):
        prompts = [tokens[: min(length, prompt or task.context // 4)]]
        requests.append(Request(prompts, 8 if bench.smoke else task.context, task.end))
    decoders = {"plain": make_decoder("sample", temperature=temperature) if temperature else make_decoder("greedy")}
    decoders |= {str(one): make_decoder("speculative", draft=one, temperature=temperature) for one in LENGTHS}
    speeds: list[dict[str, DraftSpeed]] = []
    overheads = []
    with model.asking() as predictor, torch.no_grad():
        costs(predictor, bench.smoke)
        for number in range(rounds + 1):
            speeds.append({decoder: DraftSpeed() for decoder in decoders})
            for request in requests:
                for decoder in decoders:
                    speeds[-1][decoder].add(decoders[decoder], predictor, request)
            clocked, whole = Clocked(predictor), DraftSpeed()
            for request in requests:
                whole.add(decoders["4"], clocked, request)
            overheads.append(whole.seconds / clocked.seconds - 1)
            if number == 0:  # the first pass of each shape is slow
                speeds.clear()
                overheads.clear()

    def faster(decoder: str) -> float:
        return statistics.median(
            (one[decoder].tokens / one[decoder].seconds) / (one["plain"].tokens / one["plain"].seconds)
            for one in speeds
        )

    shares = {one: sum(speed.accepted) / max(1, sum(speed.offered)) for one, speed in speeds[0].items()}
    cycles = {one: speed.summary()["accepted_per_cycle"] for one, speed in speeds[0].items()}
    for one in decoders:
        rate = statistics.median(each[one].tokens / each[one].seconds for each in speeds)
        drafts = "" if one == "plain" else f"  {cycles[one]:.2f} accepted a cycle, {shares[one]:.2f} of those reached"
        print(f"  {one:5} {rate:7.0f} tokens/s  {faster(one):5.2f} x{drafts}")
    best = max((one for one in decoders if one not in ("plain", "auto")), key=faster)
    if shares[best] >= FORCED:
        bench.at_least(f"{name}: speed with draft {best}, of which {shares[best]:.2f} are accepted", faster(best), 2.0)
    elif name == "text":
        bench.at_least(f"{name}: speed with draft {best}, of which {shares[best]:.2f} are accepted", faster(best), 1.4)
    bench.at_least(f"{name}: speed with draft auto", faster("auto"), 0.97)
    bench.at_most(
        f"{name}: a cycle's time besides passes and drafts, as a share of these", statistics.median(overheads), 0.1
    )


def main(words: Sequence[str] | None = None) -> int:
    command = parser(__doc__)
    command.add_argument("runs", nargs="*", type=Path, help="run directories")
    command.add_argument("--temperature", type=float, default=0.0, help="of sampling (default 0: greedy)")
    given = command.parse_args(words)
    bench = Benchmark(given.smoke)
    print(f"{machine.processor_name()}, {torch.get_num_threads()} threads, {machine.choose_precision('auto', 'cpu')}")
    rows, rounds = (1, 1) if bench.smoke else (6, 5)
    names = [name for name in TRAINED if not (bench.smoke and name == "rides")]  # of which served_drafts.py makes one
    with tempfile.TemporaryDirectory() as folder:
        made = {} if given.runs else {name: trained(name, Path(folder), bench.smoke) for name in names}
        for name, run in (made or {str(one): one for one in given.runs}).items():
            model = statewise.load(run, device="cpu")
            print(name)
            measure(bench, "text" if model.recipe.task.name == "text" else name, model, given.temperature, rows, rounds)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
