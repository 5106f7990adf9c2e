"""The frame of a loss that any training loop can call: hidden states and tokens in, a scalar and its parts out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from statewise.batch import Batch, Hidden, Loss
from statewise.losses.targets import IGNORED
from statewise.runtime.messages import short


class Vocabulary(Protocol):
    """What a loss needs of a model besides its hidden states: the embedding of tokens and the vocabulary head, a linear
    map without bias. Each of our backbones is one."""

    vocabulary: int
    """Number V of token ids."""

    def embed(self, tokens: Tensor) -> Tensor:
        """(...) token ids -> (..., D)."""

    def head_weight(self) -> Tensor:
        """(V, D): the matrix of the vocabulary head."""

    def logits(self, readout: Tensor, *, frozen: bool = False) -> Tensor:
        """(..., D) -> (..., V). `frozen`: no gradient reaches the head's own parameters."""

    def state_for_head(self, state: Tensor) -> Tensor:
        """(..., E) -> (..., D): the features of a state that the head reads."""


class GivenVocabulary:
    """The embedding and the head of somebody else's model; satisfies `Vocabulary`."""

    def __init__(self, head_weight: Tensor, embedding: Callable[[Tensor], Tensor]) -> None:
        self.vocabulary = len(head_weight)
        self.weight, self.embedding = head_weight, embedding

    def embed(self, tokens: Tensor) -> Tensor:
        """(...) token ids -> (..., D)."""
        return self.embedding(tokens)

    def head_weight(self) -> Tensor:
        """(V, D)."""
        return self.weight

    def logits(self, readout: Tensor, *, frozen: bool = False) -> Tensor:
        """(..., D) -> (..., V)."""
        return F.linear(readout, self.weight.detach() if frozen else self.weight)

    def state_for_head(self, state: Tensor) -> Tensor:
        """The state itself."""
        return state


class LossOutput(NamedTuple):
    """What a loss returns."""

    loss: Tensor
    """(): the weighted sum of the parts, to differentiate."""
    parts: dict[str, Tensor]
    """The mean of each part by name, (), without gradients."""


Items = Tensor | int | Mapping[str, Tensor]
"""The numbers of terms in all batches whose gradients are accumulated: that of scored tokens, or those of all parts by
name."""


class SequenceLoss(nn.Module, ABC):
    """A loss of hidden states and tokens, with the modules that it trains. Add its parameters to the optimiser."""

    width: int | None = None
    """That of the states that its modules were made for; None if they have no such size."""

    @abstractmethod
    def compute(
        self, model: Vocabulary, hidden: Hidden, batch: Batch, counts: Mapping[str, Tensor], smoothing: float
    ) -> Loss:
        """The parts of the loss: sums over `batch`, with `counts` as their numbers of terms. `smoothing`: the share of
        a target's probability that all tokens have equally, for the next token."""

    @abstractmethod
    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """The number of terms of each part, from the masks alone."""

    def forward(
        self,
        hidden: Tensor,
        tokens: Tensor,
        *,
        head_weight: Tensor,
        embedding: nn.Module | Tensor | Callable[[Tensor], Tensor],
        documents: Tensor | None = None,
        position_ids: Tensor | None = None,
        scored: Tensor | None = None,
        labels: Tensor | None = None,
        state: Tensor | None = None,
        num_items: Items | None = None,
        label_smoothing: float = 0.0,
    ) -> LossOutput:
        """The loss of hidden states `hidden` (B, T, D), which the vocabulary head reads, at `tokens` (B, T).

        `head_weight` (V, D) is the matrix of the vocabulary head, `embedding` maps token ids to (..., D): a module, a
        matrix (V, D) or a function. Several documents that share a row are told by `documents` (B, T), a number each,
        0 on padding, or by `position_ids` (B, T), which begin anew with each document. `scored` (B, T) bool says which
        tokens are to be predicted (by default all but the first of each document); `labels` (B, T), as transformers
        has them, say the same: those that are -100 are not scored. Labels are not shifted: the label at position t is
        the token at t, or -100.

        `state` (B, T, E) is the belief state where it is another tensor than the head's input.

        `num_items`, the number of scored tokens of all batches whose gradients are accumulated, makes the sum of their
        losses the loss of the whole: exactly for the next token, and for the other parts where the batches have the
        same number of their terms per scored token, as rows of one length have. It is exact for all parts with the
        sums of `terms` over these batches.

        `label_smoothing`, as PyTorch's cross-entropy has it, is for the next token. Raises `ValueError` if shapes or
        types do not fit, and if a scored label is another token than the one at its place, as shifted labels are.
        """
        batch = make_batch(hidden, tokens, documents, position_ids, scored, labels)
        if not isinstance(head_weight, Tensor):
            raise ValueError(
                f"head_weight must be the matrix of the vocabulary head, not {type(head_weight).__name__}: give "
                "model.lm_head.weight"
            )
        model = GivenVocabulary(head_weight, _embedding(embedding))
        if not hidden.is_floating_point():
            raise ValueError(f"hidden must be floating-point numbers, not {hidden.dtype}")
        if head_weight.ndim != 2 or head_weight.shape[1] != hidden.shape[2]:
            raise ValueError(
                f"head_weight has the shape {tuple(head_weight.shape)}; hidden states of {hidden.shape[2]} features "
                f"need (V, {hidden.shape[2]})"
            )
        if hasattr(head_weight, "device_mesh") and not hasattr(hidden, "device_mesh"):
            raise ValueError(
                "head_weight is sharded over processes: call the loss in the forward pass of the module that is sharded"
            )
        if state is not None and state.shape[:2] != tokens.shape:
            raise ValueError(f"state has the shape {tuple(state.shape)}, and tokens {tuple(tokens.shape)}")
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing must be at least 0 and at most 1, not {label_smoothing}")
        states = Hidden(hidden if state is None else state, hidden)
        if self.width not in (None, states.state.shape[2], hidden.shape[2]):
            raise ValueError(
                f"the loss was made with width {self.width}, and hidden states have {hidden.shape[2]} features"
            )
        counts = share_of(self.counts(batch), num_items, batch.scored)
        try:
            return result(self.compute(model, states, batch, counts, label_smoothing))
        except RuntimeError as error:
            self._explain(error, states.state)
            raise

    def terms(
        self,
        tokens: Tensor,
        *,
        documents: Tensor | None = None,
        position_ids: Tensor | None = None,
        scored: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The number of terms of each part in a batch, () or (m,), from the arguments of `forward`. Add those of all
        batches of a step, and give the sums to each as `num_items`."""
        return self.counts(make_batch(tokens[..., None], tokens, documents, position_ids, scored, labels))

    def _explain(self, error: RuntimeError, state: Tensor) -> None:
        """Raises `ValueError` if `error` comes from parameters of another type than the states'."""
        own = next((parameter.dtype for parameter in self.parameters()), state.dtype)
        if own != state.dtype and "dtype" in str(error) and not torch.is_autocast_enabled(state.device.type):
            raise ValueError(
                f"the states are {state.dtype} and the parameters of the loss {own}: move the loss to the model's "
                f"type, loss.to({state.dtype}), or call both under torch.autocast"
            ) from error


def share_of(counts: Mapping[str, Tensor], num_items: Items | None, scored: Tensor) -> Mapping[str, Tensor]:
    """The numbers that the sums of a batch are divided by, if it is one of several with `num_items` in total: its own
    `counts`, in proportion to its `scored` tokens. Raises `ValueError` if a part's is missing."""
    if num_items is None:
        return counts
    if not isinstance(num_items, Mapping):
        if isinstance(num_items, (int, float)) and not num_items >= 0:
            raise ValueError(f"num_items must be a number of tokens, at least 0, not {num_items}")
        items = torch.as_tensor(num_items, device=scored.device)
        if items.numel() != 1:
            raise ValueError(f"num_items must be one number, not {tuple(items.shape)} numbers")
        share = torch.where(items > 0, items / scored.sum().clamp(min=1), 1.0).reshape(())
        return {name: count * share for name, count in counts.items()}
    if missing := [name for name in counts if name not in num_items]:
        raise ValueError(f"num_items must have the number of terms of each part; {', '.join(missing)} is missing")
    return {name: torch.as_tensor(num_items[name], device=scored.device) for name in counts}


def result(loss: Loss) -> LossOutput:
    """What is returned of the parts of a loss."""
    return LossOutput(loss.value(), {name: part.mean().detach() for name, part in loss.parts.items()})


def make_batch(
    hidden: Tensor,
    tokens: Tensor,
    documents: Tensor | None = None,
    position_ids: Tensor | None = None,
    scored: Tensor | None = None,
    labels: Tensor | None = None,
) -> Batch:
    """The batch that `SequenceLoss.forward` describes. Raises `ValueError` if shapes do not fit."""
    if hidden.ndim != 3 or tokens.shape != hidden.shape[:2]:
        raise ValueError(
            f"hidden has the shape {tuple(hidden.shape)} and tokens {tuple(tokens.shape)}: they must be (B, T, D) and "
            "(B, T)"
        )
    if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise ValueError(f"tokens must be whole numbers, not {tokens.dtype}")
    if not tokens.shape[1]:
        raise ValueError("tokens has the shape " + str(tuple(tokens.shape)) + ": rows of no tokens have no loss")
    tokens = tokens.long()
    masks = {"documents": documents, "position_ids": position_ids, "scored": scored, "labels": labels}
    for name, mask in masks.items():
        if mask is not None and mask.shape != tokens.shape:
            raise ValueError(f"{name} has the shape {tuple(mask.shape)}, and tokens {tuple(tokens.shape)}")
    if documents is not None and position_ids is not None:
        raise ValueError("give documents or position_ids, not both")
    if scored is not None and labels is not None:
        raise ValueError("give scored or labels, not both")
    if position_ids is not None:
        documents = documents_of(position_ids)
    if scored is None:
        scored = torch.ones_like(tokens, dtype=torch.bool) if labels is None else labels != IGNORED
    scored, real = scored.bool().clone(), torch.ones_like(tokens, dtype=torch.bool)
    scored[:, :1] = False
    if documents is not None:
        real = documents != 0
        scored &= real
        documents = _numbered(documents)
        scored[:, 1:] &= documents[:, 1:] == documents[:, :-1]
    if labels is not None and not torch.compiler.is_compiling() and bool((scored & (labels != tokens)).any()):
        raise ValueError(
            "a label is another token than the one at its place: labels are the tokens themselves, not shifted, or "
            f"{IGNORED} where nothing is scored"
        )
    return Batch(tokens, scored, real, documents, (1, max(1, tokens.shape[1])))


def _numbered(documents: Tensor) -> Tensor:
    """(B, T) int64: `documents` (B, T), whatever their numbers, counted from 1 in each row; 0 on padding."""
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return begins.cumsum(1).masked_fill(documents == 0, 0)


def documents_of(position_ids: Tensor) -> Tensor:
    """(B, T) int64: the document of each position, counted from 1; one begins where `position_ids` (B, T) do not go on
    by one."""
    begins = torch.ones_like(position_ids, dtype=torch.bool)
    begins[:, 1:] = position_ids[:, 1:] != position_ids[:, :-1] + 1
    return begins.cumsum(1)


def _embedding(given: Any) -> Callable[[Tensor], Tensor]:
    if isinstance(given, Tensor):
        return lambda tokens: F.embedding(tokens, given)
    if not callable(given):
        raise ValueError(f"embedding must be a module, a matrix or a function, not {type(given).__name__}")
    return given


LARGEST_SIZE = 2**24
"""The largest width and vocabulary, far above those of any model: with more, memory would run out."""


def check_sizes(**sizes: int) -> None:
    """Raises `ValueError` unless each size of a module is a whole number of at least 1."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= LARGEST_SIZE:
            raise ValueError(f"{name} must be a whole number from 1 to {LARGEST_SIZE:,}, not {short(size)}")


def settings(config: type, **values: Any) -> Any:
    """An instance of an objective's `config`, whose messages name arguments in place of fields of a recipe. Raises
    `ValueError` if a value is of the wrong type or out of bounds, and `TypeError` if there is no such argument."""
    kinds = get_type_hints(config)
    for name, value in values.items():
        if name in kinds and not _fits(value, kinds[name]):
            raise ValueError(f"{name} must be {_words(kinds[name])}, not {short(value)}")
    try:
        return config(**values)
    except ValueError as error:
        raise ValueError(str(error).replace("objective.", "")) from None


WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    type(None): "None",
    str: "text",
}
"""What values of a type are called."""


def _fits(value: Any, kind: Any) -> bool:
    if options := get_args(kind):
        return any(value == one if get_origin(kind) is Literal else _fits(value, one) for one in options)
    if kind in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if kind is float else kind)


def _words(kind: Any) -> str:
    return " or ".join(short(one) if get_origin(kind) is Literal else WORDS[one] for one in get_args(kind) or [kind])
