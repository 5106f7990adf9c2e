"""The frame of every benchmark: its command line, ways timed in turn, figures beside their bars, an exit code.

A script has a `main(words)` that returns the exit code. It takes `--smoke`: the same code with tiny sizes, so that the
tests can run it in seconds. A smoke run prints its bars and judges none of them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable


def parser(about: str | None) -> argparse.ArgumentParser:
    """The command line of a script, explained by its docstring; a script may add arguments of its own."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--smoke", action="store_true", help="tiny sizes, in seconds; bars are printed, not judged")
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

    def __init__(self, smoke: bool) -> None:
        self.smoke = smoke
        self.short = False

    def in_turn(self, ways: dict[str, Callable[[], object]], rounds: int, warm_up: int = 3) -> dict[str, list[float]]:
        """`timing.in_turn`, once and without warm-up in a smoke run."""
        return in_turn(ways, 1, 0) if self.smoke else in_turn(ways, rounds, warm_up)

    def at_least(self, what: str, value: float, bar: float) -> None:
        """`value` must reach `bar`."""
        self._print(what, value, f">= {bar:g}", value >= bar)

    def at_most(self, what: str, value: float, bar: float) -> None:
        """`value` must not pass `bar`."""
        self._print(what, value, f"<= {bar:g}", value <= bar)

    def _print(self, what: str, value: float, bar: str, good: bool) -> None:
        verdict = "not judged" if self.smoke else "ok" if good else "SHORT"
        print(f"{what:72} {value:8.2f}   bar {bar:8}  {verdict}", flush=True)
        self.short |= not good

    def exit_code(self) -> int:
        """1 if a bar was missed, and never in a smoke run."""
        return int(self.short and not self.smoke)
