"""Seconds and peak memory of ways to compute one thing, each in a process of its own, the processes in turn."""

from __future__ import annotations

import math
import multiprocessing
import os
import resource
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import timing

from statewise.runtime.system import end_with

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Cost:
    """What one call of a way takes, or two of them in proportion."""

    seconds: float
    megabytes: float
    """Memory at the peak, beyond what was in use before."""


def peak() -> float:
    """MB that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def call(measure: Callable[..., Answer], *arguments: Any) -> Answer:
    """What `measure`, a function of a module, returns in a new process. To be called before anything large happens in
    this one: a child inherits its parent's peak memory."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=end_with, initargs=(os.getpid(),)) as pool:
        return pool.submit(measure, *arguments).result()


def cost(make: Callable[[], Callable[[], object]], rounds: int, small: Callable[[], object] | None = None) -> Cost:
    """In the process of one way: its cost, seconds as the median of `rounds` calls after one to warm up. What `make`
    prepares is not counted, nor what first products and backward passes load: `small`, next to nothing, is called for
    that before."""
    prepared = make()
    if small is not None:
        small()
    before = peak()
    times = timing.in_turn({"": prepared}, rounds=rounds, warm_up=1)[""]
    return Cost(statistics.median(times), peak() - before)


Rounds = Sequence[dict[str, Cost]]


def in_turn(
    measure: Callable[..., Cost], ways: dict[str, Sequence[Any]], rounds: int, *, smoke: bool = False
) -> Rounds:
    """The cost of each way in every round: `measure` with the way's arguments, in a process of its own. A smoke run is
    one round in this process."""
    if smoke:
        return [{name: measure(*arguments) for name, arguments in ways.items()}]
    return [{name: call(measure, *arguments) for name, arguments in ways.items()} for _ in range(rounds)]


def print_costs(rounds: Rounds, what: str) -> None:
    """The medians of every way."""
    for way in rounds[0]:
        seconds = statistics.median(found[way].seconds for found in rounds)
        megabytes = statistics.median(found[way].megabytes for found in rounds)
        print(f"  {what} {way:33} {seconds:7.3f} s {megabytes:8.0f} MB", flush=True)


def share(rounds: Rounds, one: str, other: str) -> Cost:
    """Medians over rounds of what `one` takes of what `other` takes; of memory NaN, which meets no bar, where `other`
    took too little to be seen."""
    memory = [(found[one].megabytes, found[other].megabytes) for found in rounds]
    return Cost(
        statistics.median(found[one].seconds / found[other].seconds for found in rounds),
        statistics.median(mine / theirs for mine, theirs in memory) if all(of for _, of in memory) else math.nan,
    )
