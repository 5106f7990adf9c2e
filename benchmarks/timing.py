"""The frame of every benchmark: its command line, ways timed in turn, figures beside their bars, an exit code.

A script has a `main(words)` that returns the exit code. It takes `--smoke`: the same code with tiny sizes, so that the
tests can run it in seconds. A smoke run prints its bars and judges none of them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable


def parser(about: str | None, *, quick: bool = False) -> argparse.ArgumentParser:
    """The command line of a script, explained by its docstring; a script may add arguments of its own. `quick`: it
    also takes `--quick`."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--smoke", action="store_true", help="tiny sizes, in seconds; bars are printed, not judged")
    if quick:
        made.add_argument("--quick", action="store_true", help="fewer repeats and cases, as in the table of run_all.py")
    return made


def in_turn(ways: dict[str, Callable[[], object]], rounds: int, warm_up: int = 3) -> dict[str, list[float]]:
    """Seconds of each call of each way, one after the other in every round, so that drift hits all alike."""
    for _ in range(warm_up):
        for call in ways.values():
            call()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, call in ways.items():
            started = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - started)
    return seconds


def ratio(slow: list[float], fast: list[float]) -> float:
    """Median over rounds of how many times as long `slow` took."""
    return statistics.median(a / b for a, b in zip(slow, fast))


class Benchmark:
    """One run of a script: times ways, and collects figures beside their bars."""

    def __init__(self, smoke: bool, quick: bool = False) -> None:
        self.smoke, self.quick = smoke, quick
        self.short = False

    def rounds(self, full: int) -> int:
        """Repeats of a full run, a quarter of them but at least two in a quick run, and one in a smoke run."""
        return 1 if self.smoke else min(full, max(2, full // 4)) if self.quick else full

    def in_turn(self, ways: dict[str, Callable[[], object]], rounds: int, warm_up: int = 3) -> dict[str, list[float]]:
        """`timing.in_turn` with `self.rounds`; a quick run warms up at most once, a smoke run never."""
        return in_turn(ways, self.rounds(rounds), 0 if self.smoke else min(warm_up, 1) if self.quick else warm_up)

    def at_least(self, what: str, value: float, bar: float, limit: str = "") -> None:
        """`value` must reach `bar`. `limit`: what the processor allows at most, measured in this run, with its unit."""
        self._print(what, value, f">= {bar:.4g}", limit, value >= bar)

    def at_most(self, what: str, value: float, bar: float, limit: str = "") -> None:
        """`value` must not pass `bar`. `limit`: as in `at_least`."""
        self._print(what, value, f"<= {bar:.4g}", limit, value <= bar)

    def _print(self, what: str, value: float, bar: str, limit: str, good: bool) -> None:
        verdict = "not judged" if self.smoke else "ok" if good else "SHORT"
        shown = f"  limit {limit}" if limit else ""
        print(f"{what:72} {value:8.2f}   bar {bar:8}{shown}  {verdict}", flush=True)
        self.short |= not good

    def exit_code(self) -> int:
        """1 if a bar was missed, and never in a smoke run."""
        return int(self.short and not self.smoke)
