"""How the benchmarks time and judge: ways taken in turn, medians of ratios, a bar, an exit code."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable


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


class Bars:
    """Collects ratios beside their bars."""

    def __init__(self) -> None:
        self.short = False

    def at_least(self, what: str, value: float, bar: float) -> None:
        """`value` must reach `bar`."""
        self._print(what, value, f">= {bar:g}", value >= bar)

    def at_most(self, what: str, value: float, bar: float) -> None:
        """`value` must not pass `bar`."""
        self._print(what, value, f"<= {bar:g}", value <= bar)

    def _print(self, what: str, value: float, bar: str, good: bool) -> None:
        print(f"{what:72} {value:8.2f}   bar {bar:8}  {'ok' if good else 'SHORT'}", flush=True)
        self.short |= not good

    def finish(self) -> None:
        """Exits with 1 if any bar was missed."""
        sys.exit(1 if self.short else 0)
