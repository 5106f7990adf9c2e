"""The objective interface: from a batch to a loss with named parts, and a predictor for inference."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from statewise.backbones.base import Backbone
from statewise.backbones.capabilities import AcrossRows, Phased
from statewise.data_types import Batch, Loss, Part, Plan
from statewise.decoding.predictor import Predictor
from statewise.objectives.returned import check_loss


class Objective(nn.Module, ABC):
    """A backbone, the heads that training needs, and the loss. Built as `cls(config, make_backbone)`.

    Independent of optimisers, files, tasks and decoders. `forward` is the only method that is wrapped for
    distributed training or compilation.
    """

    Config: ClassVar[type]
    """Dataclass of its recipe fields."""

    def forward(self, batch: Batch, counts: Mapping[str, Tensor] | None = None) -> Loss:
        """The loss of a batch. `counts` replaces the batch's own if it is part of a larger one.

        Raises `ValueError` if `loss` returns anything else than it must.
        """
        return check_loss(self, self.loss(batch, self.counts(batch) if counts is None else counts))

    @abstractmethod
    def loss(self, batch: Batch, counts: Mapping[str, Tensor]) -> Loss:
        """The loss in named parts: sums over `batch`, with `counts` as the parts' numbers of terms."""

    @abstractmethod
    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """The parts' counts, computed from the masks alone: the trainer sums them over accumulated batches and
        processes before the first forward pass, so that every mean is over the whole batch."""

    @abstractmethod
    def predictor(self) -> Predictor:
        """The inference interface, which shares this module's weights."""

    def plan(self, batch: Batch) -> Plan | None:
        """What the loss of `batch`, which is on the host, needs to know on the host. The trainer calls it before it
        sends the batch to another device, so that no forward pass waits for that device. None: nothing."""
        return None

    def set_progress(self, fraction: float) -> None:
        """Called before each training step with the fraction of training completed, in [0, 1).
        Passes it on to backbones that are `Phased`."""
        for module in self.modules():
            if isinstance(module, Phased):
                module.set_progress(fraction)

    def head_matrices(self) -> list[Tensor]:
        """The matrices that map to logits: the vocabulary heads of its backbones, and its own if any. AdamW trains them
        also where Muon trains other matrices; see `trainer.optimizer`."""
        return [module.head_weight() for module in self.modules() if isinstance(module, Backbone)]

    def backbones_across_rows(self) -> dict[str, AcrossRows]:
        """Its backbones that carry a state across training rows, by module name."""
        found = self.named_modules()
        return {name: module for name, module in found if isinstance(module, AcrossRows) and module.across_rows}

    def flops(self, batch: Batch) -> float | None:
        """Floating-point operations of training on `batch`, which is on the host; None if unknown.

        Counts matrix products, a multiplication and addition as two operations, for real tokens and within documents:
        the forward pass, and twice as much for the backward pass. Other work, such as on padding, is not counted.
        """
        return None


class Measured(Objective):
    """An objective that reports extra held-out losses, besides the loss of the tokens."""

    @abstractmethod
    def held_out_parts(self, batch: Batch) -> dict[str, Part]:
        """Sums and counts over a batch on the host, without gradients; one with several sums has one a rollout step."""
