"""Copies tensors between the host and devices. Does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def to_device(tensor: Tensor, device: Any) -> Tensor:
    """The tensor on a device; float64 becomes float32 on mps, which has no float64. Copies to a GPU are
    asynchronous."""
    kind = str(device).partition(":")[0]
    if tensor.device.type == kind:
        return tensor.to(device)
    if kind == "mps" and str(tensor.dtype) == "torch.float64":
        tensor = tensor.float()
    # Copies to the host are synchronous, since it could read them before they arrive; and on mps they could come late.
    ahead = tensor.device.type == "cpu" and kind != "mps"
    return (tensor.pin_memory() if ahead and kind == "cuda" else tensor).to(device, non_blocking=ahead)


def in_float64(tensor: Tensor) -> Tensor:
    """The tensor in float64: on its device, or on the host if that is mps, which has no float64."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()
