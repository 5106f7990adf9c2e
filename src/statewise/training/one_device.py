"""Training on one device, with the methods of Lightning Fabric that the trainer calls. Fabric itself, whose import
takes as long as PyTorch's, is needed for several devices only. The numbers are those of Fabric, bit for bit.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import override

Value = TypeVar("Value")


class OneDevice:
    """A single process with a single device, in place of `lightning_fabric.Fabric`."""

    world_size, global_rank = 1, 0

    def __init__(self, device: str, precision: str) -> None:
        """`device`: `cpu`, `cuda` or `mps`; `precision`: `fp32` or `bf16`."""
        self.device = torch.device("cpu") if device == "cpu" else torch.device(device, 0)
        self.precision = precision
        if device == "cuda":
            torch.cuda.set_device(self.device)

    def setup_module(self, module: nn.Module, _reapply_compile: bool = False) -> nn.Module:
        """The module on the device; in bf16 its forward pass runs under `torch.autocast`."""
        module.to(self.device)
        return Mixed(module, self.device.type) if self.precision == "bf16" else module

    def setup_optimizers(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """The optimiser as it is."""
        return optimizer

    def no_backward_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        """Nothing is synchronised."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Computes the gradients of `loss`."""
        loss.backward()  # type: ignore[no-untyped-call]

    def broadcast(self, value: Value) -> Value:
        """The value itself."""
        return value

    def barrier(self) -> None:
        """There is no other process to wait for."""


class Mixed(nn.Module):
    """A module whose forward pass runs in bf16 where `torch.autocast` says so. Inputs with floating-point values are
    converted to bf16, and outputs to float32."""

    def __init__(self, module: nn.Module, device: str) -> None:
        super().__init__()
        self.module, self.device = module, device

    @override
    def forward(self, *inputs: Any) -> Any:
        given = converted(inputs, torch.bfloat16)
        with torch.autocast(self.device, dtype=torch.bfloat16):
            output = self.module(*given)
        return converted(output, torch.float32)


def converted(value: Any, dtype: torch.dtype) -> Any:
    """`value` with each floating-point tensor in it, at any depth of (named) tuples, lists and dictionaries, as
    `dtype`."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: converted(one, dtype) for key, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(converted(one, dtype) for one in value))
    if isinstance(value, (list, tuple)):
        return type(value)(converted(one, dtype) for one in value)
    return value
