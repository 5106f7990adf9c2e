"""What a training step passes on: a batch, hidden states, and the parts of a loss.

Shape letters are those of `statewise.data_types`. This module imports nothing but types, so that the losses run where
PyTorch is the only package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Batch", "Continuation", "Hidden", "Loss", "Part", "Plan"]


class Continuation(NamedTuple):
    """How the rows of a training batch continue those of the previous step."""

    lane: Tensor
    """(B,) int64: the lane of each row, counted within its process. A lane reads consecutive rows, one per step."""
    follows: Tensor
    """(B,) bool: the row starts within the document in which the lane's previous row ended."""


class Plan(Protocol):
    """What an objective computes of a batch on the host: (named) tuples and lists of tensors, since what goes
    to a model in mixed precision is rebuilt (`training.one_device`, Lightning Fabric), but no dataclass."""

    def to(self, device: Any) -> Self:
        """The plan on a device."""


class Batch(NamedTuple):
    """One training batch. A named tuple, since torch's wrappers of modules rebuild their inputs."""

    tokens: Tensor
    """(B, T) int64, right-padded with 0."""
    scored: Tensor
    """(B, T) bool: the token is a target of token-level losses; never the first of a document."""
    real: Tensor
    """(B, T) bool: False on padding."""
    documents: Tensor | None
    """(B, T) int64 document of each position, 0 on padding; None: one document per row."""
    span: tuple[int, int]
    """Columns [first, end) that hold every scored token; on the host, so that slicing needs no synchronisation."""
    continuation: Continuation | None = None
    """Set if rows are read in order (`trainer.rows: consecutive`); None: rows are independent."""
    plan: Plan | None = None
    """What the objective has computed of the batch on the host (`Objective.plan`); None: it does so in the forward
    pass, if it needs to."""

    @classmethod
    def plain(cls, tokens: Tensor, documents: Tensor | None = None) -> Batch:
        """`tokens` (B, T) without padding or targets; `documents` (B, T) if several share a row, 0: padding."""
        import torch

        everything = torch.ones_like(tokens, dtype=torch.bool)
        real = everything if documents is None else documents != 0
        return cls(tokens, ~everything, real, documents, (0, 0))

    def to(self, device: Any) -> Batch:
        """This batch with its tensors copied to a device."""
        from statewise.runtime.devices import to_device  # tasks, which make batches of arrays, have no device

        ahead = self.continuation
        return self._replace(
            tokens=to_device(self.tokens, device),
            scored=to_device(self.scored, device),
            real=to_device(self.real, device),
            documents=None if self.documents is None else to_device(self.documents, device),
            continuation=None if ahead is None else Continuation(*(to_device(part, device) for part in ahead)),
            plan=None if self.plan is None else self.plan.to(device),
        )

    @property
    def document_ids(self) -> Tensor:
        """(B, T) int64 document of each position, 0 on padding; also where each row is one document."""
        return self.real.long() if self.documents is None else self.documents

    @property
    def targets(self) -> tuple[Tensor, Tensor]:
        """Tokens to predict and their mask, both (B, end - first)."""
        first, end = self.span
        return self.tokens[:, first:end], self.scored[:, first:end]


class Hidden(NamedTuple):
    """A backbone's output at each position; the two differ only where a paper separates them."""

    state: Tensor
    """(B, T, D) belief state: read by probes and available to later positions."""
    readout: Tensor
    """(B, T, D) input of the vocabulary head."""


class Part(NamedTuple):
    """One named part of a loss, as sums and counts, so that means over batches and processes are exact.

    With m sums (one per rollout step, say) its mean is the mean of the m means.
    """

    total: Tensor
    """() or (m,): sums of the terms."""
    terms: Tensor
    """() or (m,): number of terms. If the batch is a share of a larger one, the number in the larger one."""
    weight: float
    """Weight of this part's mean in the training loss."""

    def mean(self) -> Tensor:
        """Scalar mean; 0 without terms."""
        share = self.total / self.terms.clamp(min=1)
        return share.mean() if share.dim() else share


class Loss(NamedTuple):
    """The parts of an objective's loss. The training loss is the weighted sum of the parts' means."""

    parts: dict[str, Part]

    def with_auxiliary(self, factor: float) -> Loss:
        """This loss with the weights of all parts but `next_token` multiplied by `factor`."""
        if factor == 1:
            return self
        parts = self.parts.items()
        return Loss(
            {name: part if name == "next_token" else part._replace(weight=factor * part.weight) for name, part in parts}
        )

    def value(self) -> Tensor:
        """The scalar to differentiate: the weighted sum of the means of all parts."""
        terms = [part.weight * part.mean() for part in self.parts.values()]
        return sum(terms[1:], start=terms[0])
