"""The objective interface: from a batch to a loss with named parts, and a predictor for inference."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from statewise.backbones.base import Backbone
from statewise.backbones.capabilities import AcrossRows, Counted, Noted, Phased, Pretrained
from statewise.batch import Loss, Part
from statewise.decoding.predictor import Predictor

if TYPE_CHECKING:
    from statewise.batch import Batch, Plan


class Objective(nn.Module, ABC):
    """A backbone, the heads that training needs, and the loss. Built as `cls(config, make_backbone)`.

    Independent of optimisers, files, tasks and decoders. `forward` is the only method that is wrapped for
    distributed training or compilation. What others call of its backbones goes through its methods.
    """

    Config: ClassVar[type]
    """Dataclass of its recipe fields."""
    weights_can_decay: ClassVar[bool] = True
    """Whether the weights of the parts of its loss may change after `loss`: not if that computes gradients itself."""

    def forward(self, batch: Batch, counts: Mapping[str, Tensor] | None = None) -> Loss:
        """The loss of a batch. `counts` replaces the batch's own if it is part of a larger one."""
        return self.loss(batch, self.counts(batch) if counts is None else counts)

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

    @property
    def held_out_losses(self) -> Callable[[Batch], dict[str, Part]] | None:
        """Computes further losses on a held-out batch, which is on the host, without gradients: sums and counts by
        name; with several sums, one for each rollout step. None: it reports the token losses only."""
        return None

    def head_matrices(self) -> list[Tensor]:
        """The matrices that map to logits: the vocabulary heads of its backbones, and its own if any. AdamW trains them
        also where Muon trains other matrices; see `trainer.optimizer`."""
        return [module.head_weight() for module in self.modules() if isinstance(module, Backbone)]

    def flops(self, batch: Batch) -> float | None:
        """Floating-point operations of training on `batch`, which is on the host; None if unknown.

        Counts matrix products, a multiplication and addition as two operations, for real tokens and within documents:
        the forward pass, and twice as much for the backward pass. Other work, such as on padding, is not counted.
        """
        return None

    def set_progress(self, fraction: float) -> None:
        """Called before each training step with the fraction of training completed, in [0, 1).
        Passes it on to backbones that are `Phased`."""
        for module in self.modules():
            if isinstance(module, Phased):
                module.set_progress(fraction)

    def backbones_across_rows(self) -> dict[str, AcrossRows]:
        """Its backbones that carry a state across training rows, by module name."""
        modules = self.named_modules()
        return {name: module for name, module in modules if isinstance(module, AcrossRows) and module.across_rows}

    def notes(self, steps: int) -> list[str]:
        """What its backbones tell the user before training for `steps` steps, in sentences."""
        noted = [module.notes(steps) for module in self.modules() if isinstance(module, Noted)]
        return list(dict.fromkeys(note for notes in noted for note in notes))

    @property
    def pretrained_commit(self) -> str | None:
        """The commit of the repository on the hub that has its pre-trained weights; None: they are not from the hub."""
        return next((backbone.commit for backbone in self._pretrained() if backbone.commit), None)

    def check_symbols(self, symbols: Sequence[str]) -> None:
        """Raises `ValueError`, with what to do, unless the token ids of a task, whose `symbols` they number, are those
        that its pre-trained backbones know."""
        for module in self._pretrained():
            module.check_symbols(symbols)

    def _pretrained(self) -> list[Pretrained]:
        return [module for module in self.modules() if isinstance(module, Pretrained)]

    # An objective of another package may return something else than the interface asks for.

    def checked_counts(self, batch: Batch) -> dict[str, Tensor]:
        """`counts`. Raises `ValueError` unless they are tensors by name, () or (m,)."""
        counts: Any = self.counts(batch)
        if not isinstance(counts, dict):
            raise self._wrong("counts", "a dict of tensors by the names of the loss's parts", counts)
        for name, count in counts.items():
            if not isinstance(count, Tensor) or count.ndim > 1:
                raise self._wrong("counts", f"for {name!r} a tensor () or (m,)", count)
        return counts

    def checked_predictor(self) -> Predictor:
        """`predictor`, in evaluation mode. Raises `ValueError` unless it is a `Predictor`."""
        predictor: Any = self.eval().predictor()
        if not isinstance(predictor, Predictor):
            raise self._wrong("predictor", "a statewise.decoding.predictor.Predictor", predictor)
        return predictor

    def check_loss(self, loss: Any) -> None:
        """Raises `ValueError` unless the result of `forward` is a `Loss` of parts whose sums and counts fit, and has a
        gradient where gradients are recorded."""
        if not isinstance(loss, Loss) or not isinstance(loss.parts, dict) or not loss.parts:
            instead = "one without parts" if isinstance(loss, Loss) else None
            raise self._wrong("loss", "a statewise.data_types.Loss with one part or more", loss, instead)
        for name, part in loss.parts.items():
            if not isinstance(part, Part) or not isinstance(part.total, Tensor) or not isinstance(part.terms, Tensor):
                raise self._wrong("loss", f"as {name!r} a Part of two tensors and a weight", part)
            if part.total.ndim > 1 or part.terms.shape not in (part.total.shape, torch.Size()):
                shapes = f"sums {tuple(part.total.shape)} and counts {tuple(part.terms.shape)}"
                raise self._wrong("loss", f"as {name!r} sums and counts, both () or (m,)", part, shapes)
        if torch.is_grad_enabled() and not any(part.total.requires_grad for part in loss.parts.values()):
            raise self._wrong("loss", "a part with a gradient", loss, "parts that are all detached from the weights")

    def _wrong(self, method: str, wanted: str, value: Any, instead: str | None = None) -> ValueError:
        kind = type(self)
        shape = f" {tuple(value.shape)}" if isinstance(value, Tensor) else ""
        instead = instead or ("None" if value is None else f"{type(value).__name__}{shape}")
        return ValueError(
            f"objective {kind.__module__}:{kind.__qualname__}: {method}() must return {wanted}, not {instead} "
            "(docs/adding-an-objective.md)"
        )


def document_lengths(batch: Batch) -> Counter[int]:
    """The number of documents of each length in a batch on the host."""
    if batch.documents is None:
        return Counter(batch.real.sum(1).tolist())
    documents = batch.documents.numpy()
    opens = np.diff(documents, axis=1, prepend=-1) != 0  # first places of documents and of padding
    lengths = np.diff(np.flatnonzero(opens), append=documents.size)
    return Counter(lengths[documents[opens] > 0].tolist())


def document_flops(of_length: Callable[[int], float], batch: Batch) -> float:
    """FLOPs of all documents of a batch, where `of_length` gives those of a document of a given length."""
    return sum(of_length(length) * number for length, number in document_lengths(batch).items())


def backbone_flops(backbone: Backbone, batch: Batch) -> float | None:
    """FLOPs of one forward pass of a batch, without a head; None if unknown."""
    return document_flops(backbone.flops, batch) if isinstance(backbone, Counted) else None


def head_flops(backbone: Backbone) -> float:
    """FLOPs of the vocabulary head at one position."""
    return 2.0 * backbone.head_weight().numel()


def token_flops(backbone: Backbone, batch: Batch) -> float | None:
    """`Objective.flops` of one pass with the head at every scored token; None if unknown."""
    body = backbone_flops(backbone, batch)
    return None if body is None else 3 * (body + head_flops(backbone) * int(batch.scored.sum()))
