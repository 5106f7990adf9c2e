"""The rate of bare matrix products: the limit that a processor sets to what is made of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from timing import in_turn

from statewise.training import machine

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def precisions() -> tuple[str, ...]:
    """fp32, and bf16 on a processor that is fast at it. Prints which processor that is."""
    fast = machine.choose_precision("auto", "cpu")
    print(f"{machine.processor_name()}, {torch.get_num_threads()} threads, precision auto = {fast}")
    return ("fp32",) if fast == "fp32" else ("fp32", "bf16")


def rates(rows: int, inner: int, outer: int, precisions: tuple[str, ...], rounds: int = 10) -> dict[str, float]:
    """FLOP/s of products (rows, inner) x (inner, outer) at their fastest, the precisions measured in turn."""
    repeats = 20

    def product(dtype: torch.dtype) -> Callable[[], object]:
        left, right = torch.randn(rows, inner).to(dtype), torch.randn(inner, outer).to(dtype)
        out = torch.empty(rows, outer, dtype=dtype)
        return lambda: [torch.mm(left, right, out=out) for _ in range(repeats)]

    seconds = in_turn({name: product(DTYPES[name]) for name in precisions}, rounds)
    return {name: repeats * 2 * rows * inner * outer / min(times) for name, times in seconds.items()}
