"""Checks that a model's weights fit this machine's memory before they are allocated."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

REFUSED = ("allocate memory", "overflow", "out of memory", "too large", "Storage size")
"""Parts of PyTorch's messages for sizes beyond memory or beyond 64 bits."""


def machine_bytes() -> int | None:
    """This machine's main memory; None if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def device_bytes(device: str) -> int | None:
    """Memory of a device, of the cpu main memory; of a GPU, which others may use, too, what is free; None where the
    system does not say."""
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
