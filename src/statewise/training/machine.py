"""Chooses device, precision and threads for this machine, and says how much memory it has."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from statewise.runtime.system import cores

if TYPE_CHECKING:
    from statewise.config.trainer import TrainerConfig


def choose_device(wanted: str) -> str:
    """The device `wanted`: `cpu`, `cuda`, or another accelerator that PyTorch reports, such as `mps`; `auto` is `cuda`
    if PyTorch finds such a GPU, otherwise `cpu`. Raises `ValueError` if the device is not available."""
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    here = ["cpu"] if accelerator is None else ["cpu", accelerator.type]
    if wanted not in here:
        raise ValueError(f"there is no device {wanted!r} here: PyTorch reports {' and '.join(here)}")
    return wanted


def refuse_missing(device: str, wanted: int) -> None:
    """Raises `ValueError` if this machine has fewer devices than `wanted`, unless `device` is the CPU."""
    here = torch.accelerator.device_count()
    if device != "cpu" and wanted > here:
        raise ValueError(
            f"trainer.devices {wanted}: PyTorch reports {here} of the device {device} here; set it to at most {here}"
        )


def choose_precision(wanted: str, device: str) -> str:
    """`fp32` or `bf16`. On CPUs with bf16 instructions, matrix products run 4 to 8 times as fast as in fp32."""
    if wanted != "auto":
        return wanted
    if device == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    if device != "cpu":
        return "fp32"
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # PyTorch 2.9 does not report them
    return "bf16" if capabilities.get("amx_bf16") or capabilities.get("avx512_bf16") else "fp32"


def choose_threads(config: TrainerConfig) -> int:
    """Threads per process: as configured, or PyTorch's default divided among the `devices` processes."""
    if config.threads is not None:
        return config.threads
    return max(1, torch.get_num_threads() // config.devices)


def describe(config: TrainerConfig) -> dict[str, Any]:
    """Everything besides the recipe that determines a run's numbers."""
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
"""FLOP/s of dense bf16 products with fp32 accumulation, from the vendors' data sheets; the first matching name wins."""


def peak_flops(device_name: str, precision: str) -> float | None:
    """A GPU's peak FLOP/s from its data sheet; None if unknown: for CPUs, for partitions of a GPU, and in fp32, whose
    rate depends on settings."""
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
    """Makes glibc, where it is the C library, keep freed memory.

    By default it returns large blocks to the system and gets them back, zeroed page by page, at every step: about a
    tenth of a small model's step.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
    library.mallopt(mmap_threshold, 1 << 30)
    library.mallopt(trim_threshold, (1 << 31) - 1)


REFUSED = ("allocate memory", "overflow", "out of memory", "too large", "Storage size")
"""Parts of PyTorch's messages for sizes beyond memory or beyond 64 bits."""


def machine_bytes() -> int | None:
    """Bytes of this machine's main memory; None if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def device_bytes(device: str) -> int | None:
    """Bytes of a device's memory: for a GPU, which others may use, too, the free memory; for others, main memory. None
    if the system does not report it."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    return machine_bytes() if device in ("cpu", "mps") else None


@contextlib.contextmanager
def weights_that_fit() -> Iterator[None]:
    """Within this context, raises `ValueError` at the first parameter with which the modules constructed so far no
    longer fit main memory. A parameter is counted when it is registered, before its pages are first written;
    parameters on the device `meta` need none."""
    limit, total = machine_bytes(), 0

    def count(module: nn.Module, name: str, parameter: Tensor | None) -> None:
        nonlocal total
        total += 0 if parameter is None or parameter.is_meta else parameter.numel() * parameter.element_size()
        if limit is not None and total > limit:
            raise ValueError(
                f"this model needs more than {limit / 2**30:,.0f} GiB for its weights, all the memory of this machine: "
                "set backbone.width, backbone.layers or the vocabulary lower"
            )

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    except (RuntimeError, OverflowError, TypeError) as error:
        if not any(text in str(error) for text in REFUSED):
            raise
        raise ValueError("this model's weights exceed any memory: set backbone.width or the vocabulary lower") from None
    finally:
        handle.remove()
