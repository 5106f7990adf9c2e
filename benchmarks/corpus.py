"""Writing a corpus against the clock, and against memory: MB of text a second of one core, from files to shards, and
how much more memory a text of ten times the size takes.

python benchmarks/corpus.py
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from timing import Bars

SIZES = (4, 40)
"""MB of text."""

CHILD = """
import json, resource, sys, time
from pathlib import Path
from statewise.tasks.corpus.documents import find
from statewise.tasks.corpus.writing import write
started, wall = time.process_time(), time.perf_counter()
corpus = write(find([Path(sys.argv[1])]), Path(sys.argv[2]), sys.argv[3], shard_tokens=2_000_000)
spent, wall = time.process_time() - started, time.perf_counter() - wall
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"cpu": spent, "wall": wall, "peak": peak, "tokens": len(corpus.training) + len(corpus.held_out)}))
"""


def made_up_text(path: Path, megabytes: int, *, marks: bool) -> None:
    """Words as frequent as in English (the r-th a tenth of 1/r), in documents of some 2 kB, or all in one."""
    rng = random.Random(0)
    letters = "etaoinshrdlucmfwypvbgk"
    words = ["".join(rng.choices(letters, k=min(12, 2 + int(rng.expovariate(0.3))))) for _ in range(30_000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    lines = [" ".join(rng.choices(words, weights, k=12)).capitalize() + "." for _ in range(20_000)]
    written = 0
    with open(path, "w") as file:
        while written < megabytes * 1_000_000:
            text = "\n".join(rng.choices(lines, k=32)) + ("\n<|endoftext|>\n" if marks else "\n")
            file.write(text)
            written += len(text)


def measure(text: Path, out: Path, tokenizer: str) -> dict[str, float]:
    """In a process of its own, whose memory is that of the writing alone."""
    done = subprocess.run([sys.executable, "-c", CHILD, str(text), str(out), tokenizer], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    bars = Bars()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made_up_text(folder / "learn.txt", 2, marks=True)
        measure(folder / "learn.txt", folder / "learned", "bpe:8192")
        tokenizer = str(folder / "learned" / "tokenizer.json")
        for what, marks in (("documents of 2 kB", True), ("one document", False)):
            peaks = []
            for size in SIZES:
                made_up_text(folder / "text.txt", size, marks=marks)
                found = measure(folder / "text.txt", folder / f"{marks}-{size}", tokenizer)
                peaks.append(found["peak"])
                print(f"  {what}, {size} MB: {found['wall']:.1f} s, {found['cpu']:.1f} s of processor time, "
                      f"{found['tokens']:,.0f} tokens, peak memory {found['peak']:.0f} MB")  # fmt: skip
            bars.at_least(f"{what}: MB a second of one core", size / found["cpu"], 1)
            bars.at_most(f"{what}: MB more for {SIZES[1] - SIZES[0]} MB more of text", peaks[1] - peaks[0], 32)
    bars.finish()


if __name__ == "__main__":
    main()
