"""What an objective is: a batch in, a loss of named parts out, and a predictor for afterwards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from statewise.backbones.powers import Phased
from statewise.decoding.predictor import Predictor
from statewise.types import Batch, Loss, Part


class Objective(nn.Module, ABC):
    """A backbone, the heads that its training needs, and the loss. Built as `cls(config, make_backbone)`.

    Knows nothing of optimisers, files, tasks or decoders. `forward` is the only thing that gets wrapped
    for several processes or for compilation.
    """

    Config: ClassVar[type]
    """Dataclass of its recipe fields."""

    def forward(self, batch: Batch, counts: Mapping[str, Tensor] | None = None) -> Loss:
        """The loss of a batch. `counts` replaces its own when the batch is a share of a larger one."""
        return self.loss(batch, self.counts(batch) if counts is None else counts)

    @abstractmethod
    def loss(self, batch: Batch, counts: Mapping[str, Tensor]) -> Loss:
        """The loss in named parts: sums over `batch`, with `counts` as the parts' terms."""

    @abstractmethod
    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """The parts' counts, from the masks alone: the trainer adds them up over accumulated batches and
        processes before the first forward pass, so that every mean is taken over the whole."""

    @abstractmethod
    def predictor(self) -> Predictor:
        """The inference face, which shares this module's weights."""

    def set_progress(self, fraction: float) -> None:
        """Called before each training step with the fraction of training completed, in [0, 1]; 1 when finished. Hands
        it on to the backbones that work differently as training goes on; see `Phased`."""
        for module in self.modules():
            if isinstance(module, Phased):
                module.set_progress(fraction)

    def flops(self, batch: Batch) -> float | None:
        """Floating-point operations that training on `batch`, on the host, needs; None: not known.

        Counted are the matrix products, two operations a multiplication and addition, of the real tokens and within
        documents: forward, and twice as much for the gradients of both factors. Whatever else a step does, such as
        work on padding, makes it slower but does not count.
        """
        return None


class Measured(Objective):
    """It measures more on held-out batches than what a predictor tells of the tokens."""

    @abstractmethod
    def held_out_parts(self, batch: Batch) -> dict[str, Part]:
        """Sums and counts over a batch on the host, without gradients; one with several sums has one a rollout step."""
