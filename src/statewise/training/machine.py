"""What this machine is good at: device, precision, threads, and memory that stays at hand."""

from __future__ import annotations

import ctypes
import platform
import re
from pathlib import Path
from typing import Any

import torch

from statewise.system import cores
from statewise.training.config import TrainerConfig


def choose_device(wanted: str) -> str:
    """`cpu`, `cuda`, or another accelerator that PyTorch reports, such as `mps`; `auto` is `cuda` where there is such a
    GPU and `cpu` elsewhere. Raises `ValueError` for one that is not here."""
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    here = ["cpu"] if found is None else ["cpu", found.type]
    if wanted not in here:
        raise ValueError(f"there is no device {wanted!r} here: PyTorch reports {' and '.join(here)}")
    return wanted


def choose_precision(wanted: str, device: str) -> str:
    """`fp32` or `bf16`. On processors with bf16 products these run 4 to 8 times as fast as fp32 ones."""
    if wanted != "auto":
        return wanted
    if device == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    if device != "cpu":
        return "fp32"
    abilities = torch.cpu.get_capabilities()
    return "bf16" if abilities.get("amx_bf16") or abilities.get("avx512_bf16") else "fp32"


def choose_threads(config: TrainerConfig) -> int:
    """Threads of one process: as configured, or the processor's share of one of `devices` processes."""
    if config.threads is not None:
        return config.threads
    return max(1, torch.get_num_threads() // config.devices)


def describe(config: TrainerConfig) -> dict[str, Any]:
    """What decides a run's numbers besides its recipe."""
    device = choose_device(config.device)
    return {
        "device": device,
        "device_name": torch.cuda.get_device_name() if device == "cuda" else processor_name(),
        "precision": choose_precision(config.precision, device),
        "threads": choose_threads(config),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


PEAKS = {
    r"B200": 2250e12,
    r"H200 NVL": 835e12,
    r"H200|GH200": 989e12,
    r"H100 NVL": 835e12,
    r"H100 PCIe": 756e12,
    r"H100": 989e12,
    r"A100": 312e12,
    r"L40S": 362e12,
    r"L40": 181e12,
    r"L4": 121e12,
    r"A10": 125e12,
    r"RTX 4090$": 165e12,
    r"RTX 3090$": 71e12,
}
"""FLOP/s of dense bf16 products with sums in fp32, by the makers' data sheets; the first name that fits is taken."""


def peak_flops(device_name: str, precision: str) -> float | None:
    """FLOP/s that a GPU is capable of by its data sheet; None where that is not known: on processors, for parts of a
    GPU, and in fp32, whose rate depends on settings."""
    if precision != "bf16" or "MIG" in device_name:
        return None
    return next((peak for name, peak in PEAKS.items() if re.search(rf"\b(?:{name})(?!\w)", device_name)), None)


def processor_name() -> str:
    """The processor's model and its number of cores in use."""
    name = platform.processor() or platform.machine()
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return f"{name}, {cores()} cores"


def keep_freed_memory() -> None:
    """Lets the C library keep what was freed, where it is glibc.

    By default it hands large blocks back to the system and gets them again, zeroed page by page, at every
    step: about a tenth of a small model's step.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
    library.mallopt(mmap_threshold, 1 << 30)
    library.mallopt(trim_threshold, (1 << 31) - 1)
