"""When a backward pass that is written by hand is worth its call."""

from __future__ import annotations

import torch
from torch import Tensor


def trained_on_cpu(x: Tensor) -> bool:
    """Whether a gradient of `x` is wanted on a CPU, outside of `torch.compile`, which fuses what autograd records."""
    return x.device.type == "cpu" and x.requires_grad and torch.is_grad_enabled() and not torch.compiler.is_compiling()
