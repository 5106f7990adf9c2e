"""The loss over all prefix-suffix pairs of the Belief State Transformer (equation 2), exact and fast.

A pair is a gap in a sequence: tokens p .. s are hidden, the prefix before p and the suffix behind s are known.
The next token is the one at p, the previous token the one at s, so P = T (T + 1) / 2 pairs share T targets.
Pairs are taken in blocks of neighbouring p with all s from the first of them on, as slices and not by index.
Each block's gradient is taken as soon as its loss is known: nothing of the size P x V outlives a block. The
whole is one autograd function whose forward pass computes the gradients; from outside it is an ordinary loss.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statewise.objectives.text_head import MLPHead, TextHead

BLOCK = {"cpu": 1024, "cuda": 32768}
"""Pairs that are worked on at a time: on a CPU their logits should stay in its cache."""
MOST_LOGITS = 2**27
"""Of a block, whatever the vocabulary."""


class Pairs(NamedTuple):
    """Which gaps count, for which head. A pair's prefix ends before one column, its suffix begins behind another."""

    tokens: Tensor
    """(B, T) int64: the target in each column."""
    group: Tensor
    """(B, T) int64: number of the document, 0 on padding; a pair lies within one."""
    next_targets: Tensor
    """(B, T) bool: the token in this prefix column is a target of the next-token head."""
    previous_targets: Tensor
    """(B, T) bool: the token in this suffix column is a target of the previous-token head."""
    prefixes: Tensor
    """(B, T) bool: the prefix before this column is used for previous tokens."""
    prefix_columns: Sequence[int]
    """Columns of the prefixes that are used, ascending; others are left out."""
    suffix_span: tuple[int, int]
    """Columns [first, end) of the suffixes that are used."""

    def counted(self, rows: slice, places: slice, first: int) -> Tensor:
        """(b, r, S, 2) bool: whether the pair of a prefix column, some of `prefix_columns`, and a suffix column from
        `first` on counts for the next and for the previous token."""
        end = self.suffix_span[1]
        columns = list(self.prefix_columns[places])
        steps = range(columns[0], columns[-1] + 1)
        at: Any = slice(steps.start, steps.stop) if len(steps) == len(columns) else columns
        group, suffix_group = self.group[rows, at], self.group[rows, first:end]
        suffix_columns = torch.arange(first, end, device=group.device)
        ordered = torch.as_tensor(columns, device=group.device)[:, None] <= suffix_columns
        inside = ordered & (group[:, :, None] == suffix_group[:, None]) & (suffix_group > 0)[:, None]
        following = inside & self.next_targets[rows, at, None]
        previous = inside & self.prefixes[rows, at, None] & self.previous_targets[rows, None, first:end]
        return torch.stack((following, previous), dim=-1)


def pair_loss(head: TextHead, prefix: Tensor, suffix: Tensor, pairs: Pairs, weights: Tensor) -> Tensor:
    """(K,): summed cross-entropy in nats over all counted pairs, of the next and (if K = 2) the previous token.

    `prefix`, `suffix` (B, T, D): the states in each column. `weights` (K,) are the factors with which the sums will
    enter the loss that is differentiated: gradients are computed here and now, so backward passes only any common
    multiple of them. Raises `RuntimeError` on a backward pass with other factors.
    """
    wanted = torch.is_grad_enabled()
    head_inputs = head.project_prefix(prefix[:, list(pairs.prefix_columns)]), head.project_suffix(suffix)
    inputs = (head, pairs, weights, wanted, *head_inputs, *head.pair_parameters())
    totals: Tensor = _PairLoss.apply(*inputs)  # type: ignore[no-untyped-call]
    return totals


class Block(NamedTuple):
    """Some pairs: rows [batch], prefixes at `places` of the prefix columns, suffixes from column `first` on."""

    batch: slice
    places: slice
    first: int


def blocks(pairs: Pairs, size: int) -> Iterator[Block]:
    """All pairs, about `size` at a time. The first rows of a block waste a small triangle of pairs with s < p."""
    B = len(pairs.tokens)
    begin, end = pairs.suffix_span
    columns = pairs.prefix_columns
    place = 0
    while place < len(columns) and columns[place] < end:
        first = max(columns[place], begin)
        suffixes = end - first
        prefixes = min(max(1, size // (B * suffixes)), len(columns) - place)
        examples = max(1, min(B, size // (prefixes * suffixes)))
        for row in range(0, B, examples):
            yield Block(slice(row, min(row + examples, B)), slice(place, place + prefixes), first)
        place += prefixes


class _PairLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, head: TextHead, pairs: Pairs, weights: Tensor, wanted: bool, prefix: Tensor, suffix: Tensor,
        *parameters: Tensor,
    ) -> Tensor:  # fmt: skip
        worker = (MLPWorker if isinstance(head, MLPHead) else AutogradWorker)(
            head, pairs, weights, prefix, suffix, wanted
        )
        size = BLOCK["cpu" if prefix.device.type == "cpu" else "cuda"]
        for block in blocks(pairs, max(1, min(size, MOST_LOGITS // (head.outputs * head.vocabulary)))):
            worker.work(block)
        if wanted:
            ctx.save_for_backward(weights, worker.prefix_gradient, worker.suffix_gradient, *worker.gradients)
        return worker.totals

    @staticmethod
    def backward(ctx: Any, factors: Tensor) -> tuple[Tensor | None, ...]:
        weights, *gradients = ctx.saved_tensors
        scale = (factors * weights).sum() / (weights * weights).sum().clamp(min=torch.finfo(weights.dtype).tiny)
        if factors.device.type == "cpu" and not torch.allclose(factors, scale * weights, rtol=1e-3, atol=0):
            raise RuntimeError(f"the pair loss was told the weights {weights.tolist()}, but got {factors.tolist()}")
        return None, None, None, None, *((gradient * scale).to(gradient.dtype) for gradient in gradients)


class Worker(ABC):
    """Adds up the losses of blocks and, if `wanted`, the gradients of their weighted sum."""

    def __init__(
        self, head: TextHead, pairs: Pairs, weights: Tensor, prefix: Tensor, suffix: Tensor, wanted: bool
    ) -> None:
        self.head, self.pairs, self.wanted = head, pairs, wanted
        self.weights, self.prefix, self.suffix = weights, prefix, suffix
        exact = torch.promote_types(prefix.dtype, torch.float32)
        self.totals = prefix.new_zeros(head.outputs, dtype=exact)
        # Gradients of many pairs meet in one place: they are added up in float32 whatever the pairs are in.
        self.prefix_gradient = torch.zeros_like(prefix, dtype=exact)
        self.suffix_gradient = torch.zeros_like(suffix, dtype=exact)
        self.gradients = [torch.zeros_like(parameter) for parameter in head.pair_parameters()]

    @abstractmethod
    def work(self, block: Block) -> None:
        """Takes one block in."""

    def targets(self, block: Block) -> tuple[Tensor, Tensor]:
        """(b, r, S, K, 1) int64 targets and (b, r, S, K, 1) bool: whether they count."""
        pairs, K = self.pairs, self.head.outputs
        counted = pairs.counted(block.batch, block.places, block.first)[..., :K, None]
        tokens = pairs.tokens[block.batch]
        following = tokens[:, list(pairs.prefix_columns[block.places])][:, :, None]
        previous = tokens[:, None, block.first : pairs.suffix_span[1]]
        shape = counted.shape[:3]
        both = torch.stack((following.expand(shape), previous.expand(shape))[:K], dim=-1)
        return both[..., None], counted

    def inputs(self, block: Block) -> tuple[Tensor, Tensor]:
        """Projected prefixes (b, r, 1, E) and suffixes (b, 1, S, E)."""
        end = self.pairs.suffix_span[1]
        return self.prefix[block.batch, block.places, None], self.suffix[block.batch, None, block.first : end]


class AutogradWorker(Worker):
    """Any head: the block's gradient is left to autograd."""

    def work(self, block: Block) -> None:
        """See `Worker`."""
        targets, counted = self.targets(block)
        with torch.set_grad_enabled(self.wanted):
            prefix, suffix = (part.detach().requires_grad_(self.wanted) for part in self.inputs(block))
            log_probs = self.head.logits(prefix, suffix).to(self.totals.dtype).log_softmax(-1)
            losses = -(log_probs.gather(-1, targets) * counted).sum((0, 1, 2, 4))
            weighted = (losses * self.weights).sum()
        self.totals += losses.detach()
        if self.wanted:
            leaves = [prefix, suffix, *self.head.pair_parameters()]
            own, other, *found = torch.autograd.grad(weighted, leaves)
            end = self.pairs.suffix_span[1]
            self.prefix_gradient[block.batch, block.places] += own[:, :, 0]
            self.suffix_gradient[block.batch, block.first : end] += other[:, 0]
            for total, gradient in zip(self.gradients, found):
                total += gradient


class MLPWorker(Worker):
    """The MLP head, its gradient written out. Buffers are reused, and every step that can be is done in place."""

    def __init__(
        self, head: TextHead, pairs: Pairs, weights: Tensor, prefix: Tensor, suffix: Tensor, wanted: bool
    ) -> None:
        super().__init__(head, pairs, weights, prefix, suffix, wanted)
        self.second, self.second_bias, self.third, self.third_bias = (
            parameter.detach().to(prefix.dtype) for parameter in head.pair_parameters()
        )
        self.buffers: dict[str, Tensor] = {}

    def buffer(self, name: str, rows: int, width: int) -> Tensor:
        """(rows, width) of scratch space."""
        found = self.buffers.get(name)
        if found is None or len(found) < rows:
            self.buffers[name] = found = self.prefix.new_empty(rows, width)
        return found[:rows]

    def work(self, block: Block) -> None:
        """See `Worker`. Names: z = relu(a + c), y = relu(W2 z + b2), logits = W3 y + b3."""
        targets, counted = self.targets(block)
        prefix, suffix = self.inputs(block)
        b, r, S = targets.shape[:3]
        N, E, K = b * r * S, prefix.shape[-1], self.head.outputs
        z, y = self.buffer("z", N, E), self.buffer("y", N, E)
        torch.add(prefix, suffix, out=z.view(b, r, S, E)).relu_()
        torch.addmm(self.second_bias, z, self.second.t(), out=y).relu_()
        logits = self.buffer("logits", N, K * self.head.vocabulary)
        torch.addmm(self.third_bias, y, self.third.t(), out=logits)
        targets, counted = targets.reshape(N, K, 1), counted.reshape(N, K, 1)
        probabilities = logits.view(N, K, self.head.vocabulary)
        if logits.dtype in (torch.bfloat16, torch.float16):
            # Probabilities keep their relative precision in bf16, log-probabilities would not. That of a target near
            # 1 is taken from what is left for the others: 1 - p itself would be rounded away. A pair's loss is right
            # to one part in 2^8 this way, and ends at 87 nats, where bf16 ends.
            torch.softmax(probabilities, -1, out=probabilities)
            likely = probabilities.gather(-1, targets).float().clamp(min=torch.finfo(torch.float32).tiny)
            probabilities.scatter_(-1, targets, 0.0)
            others = probabilities.sum(-1, keepdim=True, dtype=torch.float32)
            picked = torch.where(others < 0.5, torch.log1p(-others.clamp(max=0.5)), likely.log())
            minus = -others.to(probabilities.dtype)
        else:
            torch.log_softmax(probabilities, -1, out=probabilities)
            picked = probabilities.gather(-1, targets)
            if self.wanted:
                probabilities.exp_()
                minus = probabilities.gather(-1, targets) - 1
        self.totals -= (picked * counted).sum((0, 2))
        if not self.wanted:
            return
        # From here on `logits` holds its own gradient: (softmax - one-hot) of what counts, times its weight.
        probabilities.scatter_(-1, targets, minus)
        probabilities.mul_((counted * self.weights[:, None]).to(logits.dtype))
        second, second_bias, third, third_bias = self.gradients
        add_product(third, logits, y)
        third_bias += logits.sum(0)
        gradient = torch.mm(logits, self.third, out=self.buffer("y gradient", N, E))
        through_relu(gradient, y)
        add_product(second, gradient, z)
        second_bias += gradient.sum(0)
        gradient = torch.mm(gradient, self.second, out=self.buffer("z gradient", N, E))
        through_relu(gradient, z)
        shaped = gradient.view(b, r, S, E)
        exact = self.totals.dtype
        self.prefix_gradient[block.batch, block.places] += shaped.sum(2, dtype=exact)
        self.suffix_gradient[block.batch, block.first : self.pairs.suffix_span[1]] += shaped.sum(1, dtype=exact)


def through_relu(gradient: Tensor, output: Tensor) -> None:
    """Zeroes the gradient, in place, where ReLU gave 0."""
    torch.ops.aten.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left^T right; the sum is taken in the dtype of `total`."""
    if total.dtype == left.dtype:
        total.addmm_(left.t(), right)
    else:
        total += torch.mm(left.t(), right)
