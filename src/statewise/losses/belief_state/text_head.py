"""The text heads of the Belief State Transformer: from a prefix and a suffix state to the tokens next to the gap.

All kinds begin with a linear map of [f; b]. It is a sum of a map of f and a map of b, so it is done once for
each prefix and once for each suffix (`project_prefix`, `project_suffix`), and a pair of them costs an addition.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from statewise.backbones.nn.layers import Init, Matrix, init_weights, make_norm


class TextHead(nn.Module, ABC):
    """Logits for K outputs: the next token and, if K is 2, the previous one. `E` is the width of projected states."""

    def __init__(self, vocabulary: int, outputs: int, reads_suffix: bool) -> None:
        super().__init__()
        self.vocabulary, self.outputs, self.reads_suffix = vocabulary, outputs, reads_suffix

    @abstractmethod
    def project_prefix(self, prefix: Tensor) -> Tensor:
        """(..., D) -> (..., E)."""

    @abstractmethod
    def project_suffix(self, suffix: Tensor) -> Tensor:
        """(..., D) -> (..., E)."""

    @abstractmethod
    def logits(self, prefix: Tensor, suffix: Tensor, outputs: int | None = None) -> Tensor:
        """Projected prefixes and suffixes, (..., E) each and broadcastable -> (..., K, V); `outputs`: only this many
        first ones of the K."""

    @abstractmethod
    def pair_parameters(self) -> list[Tensor]:
        """The parameters that `logits` uses."""

    @abstractmethod
    def head_matrices(self) -> list[Tensor]:
        """The matrices that map to logits."""

    @abstractmethod
    def flops(self, prefixes: float, suffixes: float, pairs: float, targets: float) -> float:
        """FLOPs of a forward pass over so many prefix and suffix states and pairs of them. `targets`: distributions
        that are asked for, up to K per pair."""


class MLPHead(TextHead):
    """A three-layer ReLU MLP from [f; b] to K V logits (BST, appendix D)."""

    def __init__(
        self,
        width: int,
        hidden: int,
        vocabulary: int,
        *,
        outputs: int = 2,
        reads_suffix: bool = True,
        init: Init | None = None,
    ) -> None:
        """`init` None: PyTorch's default, uniform in +-1 / sqrt(inputs)."""
        super().__init__(vocabulary, outputs, reads_suffix)
        self.first = Matrix(2 * width if reads_suffix else width, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.third = Matrix(hidden, outputs * vocabulary)
        if init is not None:
            init_weights(self, init)

    @override
    def project_prefix(self, prefix: Tensor) -> Tensor:
        return F.linear(prefix, self.first.weight[:, : prefix.shape[-1]], self.first.bias)

    @override
    def project_suffix(self, suffix: Tensor) -> Tensor:
        if not self.reads_suffix:
            return suffix.new_zeros(*suffix.shape[:-1], self.first.out_features)
        return F.linear(suffix, self.first.weight[:, suffix.shape[-1] :])

    @override
    def logits(self, prefix: Tensor, suffix: Tensor, outputs: int | None = None) -> Tensor:
        kept = self.outputs if outputs is None else outputs
        x = F.relu(self.second(F.relu(prefix + suffix)))
        rows = slice(0, kept * self.vocabulary)
        flat = F.linear(x, self.third.weight[rows], self.third.bias[rows])
        return flat.view(*flat.shape[:-1], kept, self.vocabulary)

    @override
    def pair_parameters(self) -> list[Tensor]:
        return [self.second.weight, self.second.bias, self.third.weight, self.third.bias]

    @override
    def head_matrices(self) -> list[Tensor]:
        return [self.third.weight]

    @override
    def flops(self, prefixes: float, suffixes: float, pairs: float, targets: float) -> float:
        hidden, sides = self.first.out_features, 2 if self.reads_suffix else 1
        of_state = self.first.weight.numel() / sides
        mapped = of_state * (prefixes + (suffixes if self.reads_suffix else 0))
        return 2.0 * (mapped + hidden**2 * pairs + hidden * self.vocabulary * targets)


class GatedHead(TextHead):
    """x + SwiGLU(x) with x = [f; b], normalised and split into K parts that share one vocabulary matrix, as in the
    authors' released code."""

    def __init__(
        self,
        width: int,
        hidden: int,
        vocabulary: int,
        *,
        outputs: int = 2,
        reads_suffix: bool = True,
        init: Init | None = None,
        norm_eps: float = 1e-5,
    ) -> None:
        """`init` None: `gpt2`."""
        super().__init__(vocabulary, outputs, reads_suffix)
        self.width, self.hidden = width, hidden
        whole = 2 * width if reads_suffix else width
        if whole % outputs:
            raise ValueError(f"a gated head cannot split a width of {whole} into {outputs} outputs: choose head mlp")
        self.first = Matrix(whole, 2 * hidden, bias=False)
        self.second = nn.Linear(hidden, whole, bias=False)
        self.norm = make_norm("rms", whole, bias=False, eps=norm_eps)
        self.third = Matrix(whole // outputs, vocabulary, bias=False)
        init_weights(self, init or "gpt2")

    def project_prefix(self, prefix: Tensor) -> Tensor:
        """See `TextHead`: gate and value, and the state itself for the residual."""
        return torch.cat((F.linear(prefix, self.first.weight[:, : self.width]), prefix), dim=-1)

    @override
    def project_suffix(self, suffix: Tensor) -> Tensor:
        if not self.reads_suffix:
            return suffix.new_zeros(*suffix.shape[:-1], 2 * self.hidden + self.width)
        return torch.cat((F.linear(suffix, self.first.weight[:, self.width :]), suffix), dim=-1)

    @override
    def logits(self, prefix: Tensor, suffix: Tensor, outputs: int | None = None) -> Tensor:
        kept = self.outputs if outputs is None else outputs
        inner = 2 * self.hidden
        gate, value = (prefix[..., :inner] + suffix[..., :inner]).chunk(2, dim=-1)
        residual = prefix[..., inner:]
        if self.reads_suffix:
            shape = gate.shape[:-1]
            residual = torch.cat((residual.expand(*shape, -1), suffix[..., inner:].expand(*shape, -1)), dim=-1)
        x = self.norm(residual + self.second(F.silu(gate) * value))
        return self.third(x.view(*x.shape[:-1], self.outputs, -1)[..., :kept, :])

    @override
    def pair_parameters(self) -> list[Tensor]:
        return [*self.second.parameters(), *self.norm.parameters(), *self.third.parameters()]

    @override
    def head_matrices(self) -> list[Tensor]:
        return [self.third.weight]

    @override
    def flops(self, prefixes: float, suffixes: float, pairs: float, targets: float) -> float:
        mapped = 2 * self.hidden * self.width * (prefixes + (suffixes if self.reads_suffix else 0))
        return 2.0 * (mapped + self.second.weight.numel() * pairs + self.third.weight.numel() * targets)


class MixtureHead(TextHead):
    """A mixture of R products of experts: p(v | f, b) = sum_r g_r softmax(A_r f + C_r b)_v, with gates g = softmax of
    a linear map of [f; b]. Not the paper's. Over all pairs of T prefixes and suffixes it takes T^2 V R operations,
    where an MLP of hidden width E takes T^2 V E: see `pair_loss.MixtureWorker`.

    With a `hidden` width, A_r = W U_r and C_r = W U'_r: a mixture of softmaxes, where the experts of an output share
    its vocabulary matrix W. Without, they are full matrices, which takes less for small vocabularies.
    """

    def __init__(
        self,
        width: int,
        experts: int,
        hidden: int | None,
        vocabulary: int,
        *,
        outputs: int = 2,
        reads_suffix: bool = True,
        init: Init | None = None,
    ) -> None:
        """`init` None: PyTorch's default, uniform in +-1 / sqrt(inputs)."""
        super().__init__(vocabulary, outputs, reads_suffix)
        self.experts, self.hidden = experts, hidden
        wide = outputs * experts * (hidden or vocabulary)
        self.prefix_experts = Matrix(width, wide)
        self.prefix_gates = Matrix(width, outputs * experts)
        self.suffix_experts = Matrix(width, wide, bias=False) if reads_suffix else None
        self.suffix_gates = Matrix(width, outputs * experts, bias=False) if reads_suffix else None
        shared = [] if hidden is None else [Matrix(hidden, vocabulary, bias=False) for _ in range(outputs)]
        self.words = nn.ModuleList(shared)
        if init is not None:
            init_weights(self, init)

    # Maps are applied as functions: the pair loss differentiates them within its forward pass, where hooks on modules,
    # such as those of torch's FLOP counter, cannot follow.

    def of_prefix(self, prefix: Tensor) -> tuple[Tensor, Tensor]:
        """(..., D) -> what prefixes add to the experts' logits (..., K, R, V) and to the gates' (..., K, R)."""
        logits, gates = self.prefix_experts, self.prefix_gates
        return self._experts(F.linear(prefix, logits.weight, logits.bias)), self._gates(
            F.linear(prefix, gates.weight, gates.bias)
        )

    def of_suffix(self, suffix: Tensor) -> tuple[Tensor, Tensor]:
        """(..., D) -> what suffixes add to the experts' logits and to the gates', shaped as in `of_prefix`."""
        if self.suffix_experts is None or self.suffix_gates is None:
            empty = suffix.new_zeros(*suffix.shape[:-1], self.outputs, self.experts, self.vocabulary)
            return empty, empty[..., 0]
        return self._experts(F.linear(suffix, self.suffix_experts.weight)), self._gates(
            F.linear(suffix, self.suffix_gates.weight)
        )

    def project_prefix(self, prefix: Tensor) -> Tensor:
        """See `TextHead`: the experts' logits, and behind them those of the gates."""
        return torch.cat([part.flatten(prefix.dim() - 1) for part in self.of_prefix(prefix)], dim=-1)

    @override
    def project_suffix(self, suffix: Tensor) -> Tensor:
        return torch.cat([part.flatten(suffix.dim() - 1) for part in self.of_suffix(suffix)], dim=-1)

    def logits(self, prefix: Tensor, suffix: Tensor, outputs: int | None = None) -> Tensor:
        """See `TextHead`; they are log-probabilities."""
        kept = self.outputs if outputs is None else outputs
        both = prefix + suffix
        split = self.outputs * self.experts * self.vocabulary
        shape = (*both.shape[:-1], self.outputs, self.experts)
        experts = both[..., :split].view(*shape, self.vocabulary)[..., :kept, :, :]
        gates = both[..., split:].view(shape)[..., :kept, :]
        return (experts.log_softmax(-1) + gates.log_softmax(-1)[..., None]).logsumexp(-2)

    def pair_parameters(self) -> list[Tensor]:
        """See `TextHead`: pairs use none, if states have been projected."""
        return []

    def head_matrices(self) -> list[Tensor]:
        """See `TextHead`; including those to the gates' logits."""
        experts = self.words or (self.prefix_experts, self.suffix_experts)
        maps = (self.prefix_gates, self.suffix_gates, *experts)
        return [part.weight for part in maps if isinstance(part, nn.Linear)]

    def flops(self, prefixes: float, suffixes: float, pairs: float, targets: float) -> float:
        """See `TextHead.flops`: a pair takes a product of length V per expert of each target."""
        words = sum(part.weight.numel() for part in self.words.children() if isinstance(part, nn.Linear))
        total = 0.0
        for number, maps in (
            (prefixes, (self.prefix_experts, self.prefix_gates)),
            (suffixes, (self.suffix_experts, self.suffix_gates)),
        ):
            total += number * sum(part.weight.numel() + 0.0 for part in maps if part is not None)
            total += number * words * self.experts if maps[0] is not None else 0.0
        return 2.0 * (total + (self.experts * self.vocabulary * targets if self.reads_suffix else 0.0))

    def _experts(self, mapped: Tensor) -> Tensor:
        parts = mapped.view(*mapped.shape[:-1], self.outputs, self.experts, -1)
        if not self.words:
            return parts
        return torch.stack(
            [F.linear(parts[..., place, :, :], words) for place, words in enumerate(self.words.parameters())], dim=-3
        )

    def _gates(self, mapped: Tensor) -> Tensor:
        return mapped.view(*mapped.shape[:-1], self.outputs, self.experts)
