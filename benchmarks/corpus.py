"""Writing a corpus against the clock, and against memory: MB of text a second of one core, from files to shards, and
how much more memory a text of ten times the size takes.

python benchmarks/corpus.py
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

import own_process
from timing import Benchmark, parser


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
    """Lines in documents of some 2 kB, or all in one."""
    rng, lines, written = random.Random(1), made_up_lines(), 0
    with open(path, "w") as file:
        while written < megabytes * 1_000_000:
            text = "\n".join(rng.choices(lines, k=32)) + ("\n<|endoftext|>\n" if marks else "\n")
            file.write(text)
            written += len(text)


def measure(text: Path, out: Path, tokenizer: str) -> Found:
    """Imports what it needs itself: the memory of its process is that of writing alone."""
    from statewise.tasks.corpus.documents import find
    from statewise.tasks.corpus.writing import write

    processor, wall = time.process_time(), time.perf_counter()
    corpus = write(find([text]), out, tokenizer, shard_tokens=2_000_000)
    processor, wall = time.process_time() - processor, time.perf_counter() - wall
    return Found(processor, wall, own_process.peak(), len(corpus.training) + len(corpus.held_out))


def main(words: Sequence[str] | None = None) -> int:
    bench = Benchmark(parser(__doc__).parse_args(words).smoke)
    sizes, learned_from, symbols = ((0.02, 0.1), 0.02, 512) if bench.smoke else ((4, 40), 2, 8192)  # sizes in MB

    def in_own_process(*arguments: object) -> Found:
        return measure(*arguments) if bench.smoke else own_process.call(measure, *arguments)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made_up_text(folder / "learn.txt", learned_from, marks=True)
        in_own_process(folder / "learn.txt", folder / "learned", f"bpe:{symbols}")
        tokenizer = str(folder / "learned" / "tokenizer.json")
        for what, marks in (("documents of 2 kB", True), ("one document", False)):
            peaks = []
            for size in sizes:
                made_up_text(folder / "text.txt", size, marks=marks)
                found = in_own_process(folder / "text.txt", folder / f"{marks}-{size}", tokenizer)
                peaks.append(found.peak)
                print(
                    f"  {what}, {size} MB: {found.wall:.1f} s, {found.processor:.1f} s of processor time, "
                    f"{found.tokens:,} tokens, peak memory {found.peak:.0f} MB"
                )
            bench.at_least(f"{what}: MB a second of one core", size / found.processor, 1)
            bench.at_most(f"{what}: MB more for {sizes[1] - sizes[0]:g} MB more of text", peaks[1] - peaks[0], 32)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
