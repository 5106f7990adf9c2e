"""Seconds and peak memory of ways to compute one thing, each in a process of its own, the processes in turn.

A script that uses it calls itself as `SCRIPT measure WORD...` and answers with `print_cost`.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import timing
import torch


@dataclass(frozen=True)
class Cost:
    """What one call of a way takes, or two of them in proportion."""

    seconds: float
    megabytes: float
    """At the peak, beyond what was in use before."""


def print_cost(
    make: Callable[[], Callable[[], object]], rounds: int, small: Callable[[], object] | None = None
) -> None:
    """In the process of one way: prints its cost, seconds as the median of `rounds` calls after one to warm up. What
    `make` prepares is not counted, nor what first products and backward passes load: `small`, next to nothing, is
    called for that before."""
    call = make()
    (small or torch.randn(64, 64, requires_grad=True).sum().backward)()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = timing.in_turn({"": call}, rounds=rounds, warm_up=1)[""]
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(statistics.median(times), (after - before) / 1024)


Rounds = Sequence[dict[str, Cost]]


def in_turn(script: str, ways: dict[str, Sequence[str]], rounds: int) -> Rounds:
    """Of every round the cost of each way, which is called by its words. To be called before anything large happens in
    this process: a child inherits its parent's peak memory."""
    return [{name: _cost(script, *words) for name, words in ways.items()} for _ in range(rounds)]


def _cost(script: str, *words: str) -> Cost:
    command = [sys.executable, script, "measure", *words]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return Cost(*map(float, printed.split()))


def typical(rounds: Rounds, way: str) -> Cost:
    """The medians over rounds."""
    return Cost(
        statistics.median(found[way].seconds for found in rounds),
        statistics.median(found[way].megabytes for found in rounds),
    )


def share(rounds: Rounds, one: str, other: str) -> Cost:
    """Medians over rounds of what `one` takes of what `other` takes."""
    return Cost(
        statistics.median(found[one].seconds / found[other].seconds for found in rounds),
        statistics.median(found[one].megabytes / found[other].megabytes for found in rounds),
    )
