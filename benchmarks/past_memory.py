"""Training from a corpus that need not fit in memory: resident memory, and the speed of the reader against that of a
training step, one thread each. The corpus has 2 GB of random tokens, is made in a temporary folder, and deleted.

python benchmarks/past_memory.py
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import own_process
from timing import Benchmark, parser, ratio

SHARD_TOKENS = 100_000_000
ROWS = 8
"""Rows of a step, of 128 tokens."""


@dataclass(frozen=True)
class Found:
    step: list[float]
    """Seconds of training steps."""
    batch: list[float]
    """Seconds of batches."""
    first: float
    """Tokens a second while blocks are read for the first time, from the disk."""
    again: float
    """Tokens a second afterwards."""
    rows: int
    tokens: int
    """Tokens of a batch."""
    alone: float
    """MB of the whole process at most, before most of the corpus was read."""
    peak: float
    """And after it."""


def make_corpus(folder: Path, tokens: int, vocabulary: int) -> Path:
    """Random tokens in documents of 500 on average, under a tokenizer of random words."""
    from statewise.tasks.corpus import documents, writing
    from statewise.tasks.corpus import folder as corpora
    from statewise.tasks.corpus.folder import ShardWriter

    rng = np.random.default_rng(0)
    words = ["".join(map(chr, rng.integers(97, 123, 6))) for _ in range(5000)]
    lines = (" ".join(rng.choice(words, 12)) for _ in range(vocabulary))
    (folder / "learn.txt").write_text("\n".join(lines))
    small = writing.write(documents.find([folder / "learn.txt"], "line"), folder / "small", f"bpe:{vocabulary}")
    out = folder / "corpus"
    out.mkdir()
    content = small.bpe.content.encode()
    (out / corpora.TOKENIZER).write_bytes(content)
    splits, kind = {}, np.dtype("<u2")
    for name, count in (("training", tokens), ("held_out", 100_000)):
        writer = ShardWriter(out, name.replace("_", "-"), kind, SHARD_TOKENS)
        for start in range(0, count, 2**20):
            part = rng.integers(len(small.bpe.symbols), size=min(2**20, count - start), dtype=kind)
            part[rng.random(len(part)) < 1 / 500] = small.bpe.end
            part[-1] = small.bpe.end
            for document in np.split(part, np.flatnonzero(part == small.bpe.end)[:-1] + 1):
                writer.add(document, last=True)
        splits[name] = corpora.split_facts(writer.close(), 0, 0)
    read = {"sources": ["random"], "documents": "auto", "field": "text", "held_out": 0.0}
    (out / corpora.INDEX).write_bytes(corpora.make_index(splits, content, small.bpe, read=read))
    return out


def measure(corpus: Path, smoke: bool) -> Found:
    """Imports what it needs itself: the memory of its process is that of training alone."""
    from one_step import one_step

    from statewise.config.recipes import recipe_text
    from statewise.model.building import make_objective, make_task
    from statewise.model.recipes import read_recipe
    from statewise.tasks.batches import Stream
    from statewise.training import machine
    from statewise.training.optim import make_optimizer

    machine.keep_freed_memory()
    size = ["--backbone.width=32", "--backbone.layers=1"] if smoke else ["--backbone.layers=2"]
    flags = [f"--task.path={corpus}", "--task.context=128", f"--trainer.batch_size={ROWS}", *size]
    recipe = read_recipe(recipe_text("text-small"), flags)
    task = make_task(recipe)
    stream = Stream(task, seed=1, batch_size=ROWS)
    objective = make_objective(recipe, task)
    precision = machine.choose_precision("auto", "cpu")
    batches = [stream.batch(number) for number in range(4)]
    step = one_step(objective, make_optimizer(objective, recipe.trainer), batches, precision, recipe.trainer.clip)
    numbers = iter(range(4, 2**40))
    bench = Benchmark(smoke)
    seconds = bench.in_turn({"step": step, "batch": lambda: stream.batch(next(numbers))}, rounds=30)
    alone = own_process.peak()
    for path in corpus.glob("training-*.npy"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    rates = []
    part = max(1, len(stream.examples) // ROWS // 16)  # twice: then nearly all pages have been read, of 16 rows each
    for _ in range(2):
        started = time.perf_counter()
        read = sum(stream.batch(next(numbers)).tokens.numel() for _ in range(part))
        rates.append(read / (time.perf_counter() - started))
        step()
    tokens = batches[0].tokens.numel()
    return Found(seconds["step"], seconds["batch"], *rates, len(stream.examples), tokens, alone, own_process.peak())


def main(words: Sequence[str] | None = None) -> int:
    from statewise.tasks.permutation import Permutation

    bench = Benchmark(parser(__doc__).parse_args(words).smoke)
    with tempfile.TemporaryDirectory() as name:
        if bench.smoke:
            corpus = make_corpus(Path(name), 50_000, 300)
            found = measure(corpus, True)
        else:
            corpus = own_process.call(make_corpus, Path(name), 10**9, 4096)
            found = own_process.call(measure, corpus, False)
        gigabytes = sum(path.stat().st_size for path in corpus.glob("training-*.npy")) / 1e9
    print(f"  corpus: {gigabytes:.2f} GB, {found.rows:,} rows of 128 tokens")
    print(
        f"  training step: {1000 * statistics.median(found.step):.2f} ms, "
        f"{found.tokens / statistics.median(found.step):,.0f} tokens a second"
    )
    print(f"  reader: {found.first:,.0f} tokens a second from the disk, checksums included, then {found.again:,.0f}")
    bench.at_least("tokens a second: reader / training", ratio(found.step, found.batch), 20)
    bench.at_most("MB resident at most, training and most of the corpus read", found.peak, 500)
    bench.at_most("MB of these for reading most of the corpus", found.peak - found.alone, 32)
    order, places = Permutation(10**9, [0, 1]), np.random.default_rng(0).integers(10**9, size=(64, 512))
    coming = iter(places)
    seconds = bench.in_turn({"order": lambda: order[next(coming)]}, rounds=60)["order"]
    print(f"  512 rows of an order of 10^9: {1000 * statistics.median(seconds):.2f} ms")
    share = statistics.median(seconds) / statistics.median(found.step)
    bench.at_most("order of 512 rows among 10^9 / training step", share, 0.05)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
