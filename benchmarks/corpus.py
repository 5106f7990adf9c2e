"""Writing a corpus against the clock, and against memory: MB of text a second of one core, from files to shards, and
how much more memory a text of ten times the size takes.

python benchmarks/corpus.py
python benchmarks/corpus.py --gigabytes 1 10  # these sizes, and training on each corpus: over an hour, 16 GB of disk
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

import own_process
import past_memory
from timing import Benchmark, parser

DRAWN = 64_000_000
"""Bytes of a text that are drawn at most."""


@dataclass(frozen=True)
class Found:
    processor: float
    """Seconds of processor time."""
    wall: float
    """Seconds."""
    peak: float
    """MB of the whole process."""
    tokens: int


@cache
def made_up_lines() -> list[str]:
    """Words as frequent as in English: the r-th a tenth of 1/r."""
    rng = random.Random(0)
    letters = "etaoinshrdlucmfwypvbgk"
    words = ["".join(rng.choices(letters, k=min(12, 2 + int(rng.expovariate(0.3))))) for _ in range(30_000)]
    weights = list(accumulate(1 / rank for rank in range(1, len(words) + 1)))
    return [" ".join(rng.choices(words, cum_weights=weights, k=12)).capitalize() + "." for _ in range(20_000)]


def made_up_text(path: Path, megabytes: float, *, marks: bool) -> None:
    """Lines in documents of some 2 kB, or all in one. What is longer than `DRAWN` repeats its beginning."""
    rng, lines, written, wanted = random.Random(1), made_up_lines(), 0, megabytes * 1_000_000
    with open(path, "w") as file:
        while written < min(wanted, DRAWN):
            text = "\n".join(rng.choices(lines, k=32)) + ("\n<|endoftext|>\n" if marks else "\n")
            file.write(text)
            written += len(text)
    with open(path, "rb") as beginning, open(path, "ab") as file:
        drawn = written
        while written < wanted:
            if not (part := beginning.read(min(2**20, drawn - beginning.tell()))):
                beginning.seek(0)
            written += file.write(part)


def measure(text: Path, out: Path, tokenizer: str) -> Found:
    """Imports what it needs itself: the memory of its process is that of writing alone."""
    from statewise.tasks.corpus.documents import find
    from statewise.tasks.corpus.writing import write

    processor, wall = time.process_time(), time.perf_counter()
    corpus = write(find([text]), out, tokenizer, shard_tokens=2_000_000)
    processor, wall = time.process_time() - processor, time.perf_counter() - wall
    return Found(processor, wall, own_process.peak(), len(corpus.training) + len(corpus.held_out))


def training(corpus: Path, smoke: bool) -> float:
    """Peak memory in MB of a process that trains on a corpus."""
    return past_memory.measure(corpus, smoke).peak


def main(words: Sequence[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--gigabytes", type=float, nargs=2, metavar=("SMALL", "LARGE"), help="sizes of the texts")
    given = options.parse_args(words)
    if given.gigabytes and not 0 < given.gigabytes[0] < given.gigabytes[1] < float("inf"):
        options.error("--gigabytes takes two sizes, the smaller one first")
    bench = Benchmark(given.smoke)
    sizes, learned_from, symbols = ((0.02, 0.1), 0.02, 512) if bench.smoke else ((4, 40), 2, 8192)  # sizes in MB
    separations = {"documents of 2 kB": True, "one document": False}
    if given.gigabytes:
        sizes = tuple(1000 * size for size in given.gigabytes)
        separations.pop("one document")

    def in_own_process(*arguments: object) -> Found:
        return measure(*arguments) if bench.smoke else own_process.call(measure, *arguments)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made_up_text(folder / "learn.txt", learned_from, marks=True)
        in_own_process(folder / "learn.txt", folder / "learned", f"bpe:{symbols}")
        tokenizer = str(folder / "learned" / "tokenizer.json")
        for what, marks in separations.items():
            peaks, trained = [], []
            for size in sizes:
                made_up_text(folder / "text.txt", size, marks=marks)
                out = folder / f"{marks}-{size}"
                found = in_own_process(folder / "text.txt", out, tokenizer)
                peaks.append(found.peak)
                print(
                    f"  {what}, {size} MB: {found.wall:.1f} s, {found.processor:.1f} s of processor time, "
                    f"{found.tokens:,} tokens, peak memory {found.peak:.0f} MB",
                    flush=True,
                )
                if given.gigabytes:
                    trained.append(own_process.call(training, out, bench.smoke))
                    print(f"  training on it, an eighth of its rows read: peak memory {trained[-1]:.0f} MB", flush=True)
                    shutil.rmtree(out)
            bench.at_least(f"{what}: MB a second of one core", size / found.processor, 1)
            more = f"{sizes[1] - sizes[0]:g} MB more of text"
            bench.at_most(f"{what}: MB more for {more}", peaks[1] - peaks[0], 32)
            if trained:
                bench.at_most(f"training: MB more for {more}", trained[1] - trained[0], 32)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
