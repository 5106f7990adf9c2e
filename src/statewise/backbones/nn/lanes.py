"""Tensors kept per lane from one training step to the next. A lane is a batch position whose rows are consecutive."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


class Lanes:
    """Tensors (lanes, ...) by name. Writes become visible after `advance`, so all passes over a batch within one step
    read the same values.

    Not buffers of a module: they are training state, not part of the model, and differ between processes.
    """

    def __init__(self, **kept: Tensor) -> None:
        self.kept = kept
        self._written = {name: tensor.clone() for name, tensor in kept.items()}

    def read(self, lane: Tensor) -> dict[str, Tensor]:
        """The values (B, ...) of the lanes (B,), as of the previous step."""
        return {name: tensor.index_select(0, lane) for name, tensor in self.kept.items()}

    def write(self, lane: Tensor, **new: Tensor) -> None:
        """Sets the values of the lanes (B,) to `new` (B, ...), detached, for the next step."""
        for name, tensor in new.items():
            written = self._written[name]
            written.index_copy_(0, lane, tensor.detach().to(written.dtype))

    def advance(self) -> None:
        """Ends the step: makes its writes visible."""
        for name, tensor in self.kept.items():  # in place, so that a compiled model keeps reading the same tensors
            tensor.copy_(self._written[name])

    def load(self, kept: Mapping[str, Tensor]) -> None:
        """Replaces all values. Raises `ValueError` if names or shapes differ."""
        found = {name: tuple(tensor.shape) for name, tensor in kept.items()}
        wanted = {name: tuple(tensor.shape) for name, tensor in self.kept.items()}
        if found != wanted:
            raise ValueError(f"the state of the lanes has shapes {found}, not {wanted}")
        for name, tensor in kept.items():
            self.kept[name].copy_(tensor)
            self._written[name].copy_(tensor)
