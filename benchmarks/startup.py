"""CPU seconds until statewise answers: import, help, lists, the first line and the first step of training.

python benchmarks/startup.py [--smoke]

Each is a process of its own, the fastest of some rounds. Bars hold for a machine that imports PyTorch in 1.7 s of CPU;
on a slower one they are longer by the same factor, which is measured in the same run. A smoke run leaves out what loads
PyTorch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from timing import Benchmark, parser

REFERENCE = 1.7
"""CPU seconds of `import torch` where the bars were set: AMD EPYC, 2 cores, PyTorch 2.13."""
BARS = {"import": 0.05, "--help": 0.3, "list": 0.4, "first line of train": 0.3, "first step of train": 5.0}
TRAIN = ["train", "path-star-demo", "--trainer.log_every", "1", "--trainer.evaluate_num", "1", "--overwrite", "--out"]


def cpu_of(words: Sequence[str], begins: str | None = None) -> float:
    """CPU seconds of a Python process: all of them, or until it prints a line that begins with `begins`, without
    regard to white space; it is then killed."""
    process = subprocess.Popen([sys.executable, "-u", *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    seconds = None
    for line in process.stdout:
        if begins is not None and "".join(line.split()).startswith(begins):
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            process.kill()
            break
    process.stdout.close()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if begins is None:
        assert process.returncode == 0, words
        return used.ru_utime + used.ru_stime
    assert seconds is not None, f"no line of {words} begins with {begins}"
    return seconds


def main(words: Sequence[str] | None = None) -> int:
    """Measures, and judges the bars."""
    given = parser(__doc__, quick=True).parse_args(words)
    bench = Benchmark(given.smoke, given.quick)
    with tempfile.TemporaryDirectory() as scratch:
        command, training = ["-m", "statewise"], [*TRAIN, str(Path(scratch, "run"))]
        ways = {
            "import": (["-c", "import statewise"], None),
            "--help": ([*command, "--help"], None),
            "list": ([*command, "list"], None),
            "first line of train": ([*command, *training], "recipe"),
            "first step of train": ([*command, *training], "step1/"),
        }
        if bench.smoke:
            ways.pop("first step of train")
        torch, scale = ["-c", "import torch"], 1.0
        found: dict[str, list[float]] = {name: [] for name in ways}
        limits = []
        for _ in range(bench.rounds(5)):
            limits += [] if bench.smoke else [cpu_of(torch)]
            for name, (given, begins) in ways.items():
                found[name].append(cpu_of(given, begins))
    print(f"the interpreter alone: {cpu_of(['-c', 'pass']):.3f} s of CPU")
    if limits:
        scale = max(1.0, min(limits) / REFERENCE)
        print(f"import torch: {min(limits):.2f} s of CPU, so bars are {scale:.2f} times as long")
    for name, seconds in found.items():
        limit = f"{min(limits):.2f} s" if limits and "step" in name else ""  # it loads PyTorch
        bench.at_most(f"{name}, s of CPU", min(seconds), BARS[name] * scale, limit)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
