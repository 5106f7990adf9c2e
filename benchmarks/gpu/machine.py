"""Where `make gpu` measures, and what a step of it returns."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from statewise.training import machine


@dataclass(frozen=True)
class Machine:
    """Where the steps run."""

    device: str
    smoke: bool
    folder: Path
    text: tuple[Path, ...] = ()
    """Files of the user's text, for curves on text."""

    @property
    def precision(self) -> str:
        return machine.choose_precision("auto", self.device)

    @property
    def peak(self) -> float | None:
        """FLOP/s of the data sheet."""
        name = torch.cuda.get_device_name() if self.device == "cuda" else ""
        return machine.peak_flops(name, self.precision)

    def autocast(self, precision: str | None = None) -> torch.autocast:
        return torch.autocast(self.device, torch.bfloat16, enabled=(precision or self.precision) == "bf16")

    def wait(self) -> float:
        """The time, once the device has done all that it was given."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def seconds(self, call: Callable[[], object], rounds: int = 20) -> float:
        """Median seconds of a call, after three to warm up."""
        times = []
        for number in range(1 if self.smoke else rounds + 3):
            began = self.wait()
            call()
            times.append(self.wait() - began)
            if number >= 8 and sum(times) > 40:
                break
        return statistics.median(times[3:] or times)

    def kernels(self, call: Callable[[], object]) -> dict[str, Any]:
        """What a call has the device do: ms of all kernels together, fewer than the call takes if the device waits for
        the host, their number, and the largest."""
        kind = ProfilerActivity.CUDA if self.device == "cuda" else ProfilerActivity.CPU
        with profile(activities=[kind]) as seen:
            call()
            self.wait()
        field = "self_device_time_total" if self.device == "cuda" else "self_cpu_time_total"
        every = ((getattr(one, field) / 1000, one.count, one.key) for one in seen.key_averages())
        found = sorted((one for one in every if one[0] > 0), reverse=True)
        largest = "; ".join(f"{ms:.3g} ms in {count}: {name[:60].replace('|', '/')}" for ms, count, name in found[:5])
        total, number = sum(ms for ms, _, _ in found), sum(count for _, count, _ in found)
        return {"kernels, ms": total, "kernels": number, "largest kernels": largest}

    @contextlib.contextmanager
    def without_waiting(self) -> Iterator[None]:
        """On a GPU, what waits for it raises within."""
        if self.device != "cuda":
            yield
            return
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


@dataclass
class Figures:
    """The result of a step."""

    values: dict[str, Any] = field(default_factory=dict)
    bars: list[tuple[str, float, str, float]] = field(default_factory=list)
    """What, value, `>=` or `<=`, bar."""
    left: int = 0
    """Number of runs that are not finished: the same command continues them."""
