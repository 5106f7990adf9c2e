"""Losses and gradients of blocks of prefix-suffix pairs, by kind of text head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor
from typing_extensions import override

from statewise.objectives.belief_state.pairs import WASTED, Block, Group
from statewise.objectives.belief_state.text_head import TextHead

BLOCK = {"cpu": 6 * 2**20, "cuda": 512 * 2**20}
"""Bytes that a block's logits and hidden states may take: on a CPU they should stay in its cache, on a GPU blocks
should be few."""

LISTED = 2**15
"""About so many pairs are looked at together to list those that count."""
LISTED_BLOCK = 12 * 2**20
"""Bytes of the logits and hidden states of a block of listed pairs."""
MULTIPLE = 64
"""Such a block has a multiple of so many pairs, as products prefer."""


class Worker(ABC):
    """Sums the losses of blocks and, if `wanted`, the gradients of their weighted sum."""

    def __init__(self, head: TextHead, weights: Tensor, wanted: bool, exact: torch.dtype) -> None:
        self.head, self.weights, self.wanted, self.exact = head, weights, wanted, exact
        self.totals = torch.zeros(head.outputs, dtype=exact, device=weights.device)
        self.gradients = [torch.zeros_like(parameter) for parameter in self.parameters(head)] if wanted else []
        self.state_gradients: list[Tensor] = []

    @staticmethod
    def states(head: TextHead, prefix: Tensor, suffix: Tensor) -> tuple[Tensor, Tensor]:
        """What pairs read of the states (U, D) and (W, D)."""
        own = head.project_prefix(prefix)
        return own, head.project_suffix(suffix).to(own.dtype)  # under autocast zeros would be float32, products are not

    @staticmethod
    def parameters(head: TextHead) -> list[Tensor]:
        """The parameters that pairs use."""
        return head.pair_parameters()

    def group(self, group: Group, prefix: Tensor, suffix: Tensor) -> None:
        """Adds the pairs of a group; `prefix` (n, r, E), `suffix` (n, S, E)."""
        if self.wanted:
            self.state_gradients = [torch.zeros_like(part, dtype=self.exact) for part in (prefix, suffix)]
        for block in self.blocks(group, prefix):
            self.work(group, block, prefix[block.documents, block.places], suffix[block.documents, block.suffixes])

    def blocks(self, group: Group, prefix: Tensor) -> Iterator[Block]:
        """The blocks of a group."""
        kind = "cpu" if prefix.device.type == "cpu" else "cuda"
        return group.blocks(max(1, BLOCK[kind] // self.of_pair(prefix)), WASTED[kind])

    def of_pair(self, prefix: Tensor) -> int:
        """Bytes of a pair's logits and hidden states."""
        return prefix.element_size() * (self.head.outputs * self.head.vocabulary + 2 * prefix.shape[-1])

    @abstractmethod
    def work(self, group: Group, block: Block, prefix: Tensor, suffix: Tensor) -> None:
        """Adds one block; `prefix` (b, r, E), `suffix` (b, S, E)."""

    def targets(self, group: Group, block: Block) -> tuple[Tensor, Tensor]:
        """(b, r, S, K, 1) int64 targets and (b, r, S, K, 1): how much they count."""
        counted = group.weights(block, self.head.outputs)[..., None]
        following = group.next_tokens[block.documents, block.places, None]
        previous = group.previous_tokens[block.documents, None, block.suffixes]
        shape = counted.shape[:3]
        both = torch.stack((following.expand(shape), previous.expand(shape))[: self.head.outputs], dim=-1)
        return both[..., None], counted

    def add_states(self, block: Block, prefix: Tensor, suffix: Tensor) -> None:
        """Adds gradients of the block's inputs, (b, r, E) and (b, S, E)."""
        self.state_gradients[0][block.documents, block.places] += prefix
        self.state_gradients[1][block.documents, block.suffixes] += suffix


class AutogradWorker(Worker):
    """Any head: the block's gradient is left to autograd."""

    @override
    def work(self, group: Group, block: Block, prefix: Tensor, suffix: Tensor) -> None:
        targets, counted = self.targets(group, block)
        with torch.set_grad_enabled(self.wanted):
            prefix, suffix = (part.detach().requires_grad_(self.wanted) for part in (prefix, suffix))
            logits = self.head.logits(prefix[:, :, None], suffix[:, None])
            log_probs = logits.to(self.totals.dtype).log_softmax(-1)
            losses = -(log_probs.gather(-1, targets) * counted).sum((0, 1, 2, 4))
            weighted = (losses * self.weights).sum()
        self.totals += losses.detach()
        if self.wanted:
            leaves = [prefix, suffix, *self.head.pair_parameters()]
            own, other, *found = torch.autograd.grad(weighted, leaves)
            self.add_states(block, own, other)
            for total, gradient in zip(self.gradients, found):
                total += gradient


class MLPWorker(Worker):
    """The MLP head, its gradient written out. Buffers are reused, and every step that can be is done in place."""

    def __init__(self, head: TextHead, weights: Tensor, wanted: bool, exact: torch.dtype) -> None:
        super().__init__(head, weights, wanted, exact)
        self.cast: list[Tensor] = []
        self.buffers: dict[str, Tensor] = {}

    def buffer(self, name: str, like: Tensor, rows: int, width: int) -> Tensor:
        """(rows, width) of scratch space."""
        found = self.buffers.get(name)
        if found is None or len(found) < rows:
            self.buffers[name] = found = like.new_empty(rows, width)
        return found[:rows]

    def group(self, group: Group, prefix: Tensor, suffix: Tensor) -> None:
        """See `Worker`. On a CPU the pairs that count are listed, and taken equally many at a time: none is computed in
        vain, and products of one shape are prepared once."""
        if prefix.device.type != "cpu":
            super().group(group, prefix, suffix)
            return
        if self.wanted:
            self.state_gradients = [torch.zeros_like(part, dtype=self.exact) for part in (prefix, suffix)]
        flat = [part.flatten(0, 1) for part in (prefix, suffix)]
        size = max(1, LISTED_BLOCK // self.of_pair(prefix) // MULTIPLE) * MULTIPLE
        for places, targets, counted in listed(group, self.head.outputs, size):
            z, other = (self.buffer(name, prefix, len(targets), prefix.shape[-1]) for name in ("z", "y"))
            for part, rows, out in zip(flat, places, (z, other)):
                torch.index_select(part, 0, rows, out=out)
            gradient = self.pairs(z.add_(other).relu_(), targets, counted)
            if gradient is not None:
                exact = gradient.to(self.exact)
                for total, rows in zip(self.state_gradients, places):
                    total.flatten(0, 1).index_add_(0, rows, exact)

    @override
    def work(self, group: Group, block: Block, prefix: Tensor, suffix: Tensor) -> None:
        targets, counted = self.targets(group, block)
        b, r, S = targets.shape[:3]
        N, E, K = b * r * S, prefix.shape[-1], self.head.outputs
        z = self.buffer("z", prefix, N, E)
        torch.add(prefix[:, :, None], suffix[:, None], out=z.view(b, r, S, E)).relu_()
        gradient = self.pairs(z, targets.reshape(N, K, 1), counted.reshape(N, K, 1))
        if gradient is not None:
            shaped = gradient.view(b, r, S, E)
            self.add_states(block, shaped.sum(2, dtype=self.exact), shaped.sum(1, dtype=self.exact))

    def pairs(self, z: Tensor, targets: Tensor, counted: Tensor) -> Tensor | None:
        """Adds the losses of N pairs, and returns the gradient of what their first layer adds up, (N, E), if wanted.
        `targets`, `counted`: (N, K, 1). Names: z = relu(a + c) (N, E), y = relu(W2 z + b2), logits = W3 y + b3."""
        if not self.cast:
            self.cast = [parameter.detach().to(z.dtype) for parameter in self.head.pair_parameters()]
        second, second_bias, third, third_bias = self.cast
        (N, E), K = z.shape, self.head.outputs
        y = self.buffer("y", z, N, E)
        torch.addmm(second_bias, z, second.t(), out=y).relu_()
        logits = self.buffer("logits", z, N, K * self.head.vocabulary)
        torch.addmm(third_bias, y, third.t(), out=logits)
        probabilities = logits.view(N, K, self.head.vocabulary)
        places = torch.arange(0, logits.numel(), self.head.vocabulary, device=logits.device).view(N, K, 1) + targets
        if logits.dtype in (torch.bfloat16, torch.float16):
            # Probabilities keep their relative precision in bf16, log-probabilities would not. That of a target near
            # 1 is taken from what is left for the others: 1 - p itself would be rounded away. A pair's loss is right
            # to one part in 2^8 this way, and ends at 87 nats, where bf16 ends.
            torch.softmax(probabilities, -1, out=probabilities)
            likely = probabilities.gather(-1, targets)
            put(logits, places, torch.zeros_like(likely))
            others = probabilities.sum(-1, keepdim=True)  # float32 under autocast on a GPU
            likely, minus = likely.float().clamp(min=torch.finfo(torch.float32).tiny), others.neg().to(logits.dtype)
            others = others.float()
            picked = torch.where(others < 0.5, torch.log1p(-others.clamp(max=0.5)), likely.log())
        else:
            torch.log_softmax(probabilities, -1, out=probabilities)
            picked = probabilities.gather(-1, targets)
            if self.wanted:
                probabilities.exp_()
                minus = probabilities.gather(-1, targets) - 1
        self.totals -= (picked * counted).sum((0, 2))
        if not self.wanted:
            return None
        # From here on `logits` holds its own gradient: (softmax - one-hot) of what counts, times its weight.
        put(logits, places, minus)
        probabilities.mul_((counted * self.weights[:, None]).to(logits.dtype))
        second_gradient, second_bias_gradient, third_gradient, third_bias_gradient = self.gradients
        add_product(third_gradient, logits, y)
        third_bias_gradient += logits.sum(0)
        gradient = torch.mm(logits, third, out=self.buffer("y gradient", z, N, E))
        through_relu(gradient, y)
        add_product(second_gradient, gradient, z)
        second_bias_gradient += gradient.sum(0)
        gradient = torch.mm(gradient, second, out=self.buffer("z gradient", z, N, E))
        through_relu(gradient, z)
        return gradient


def listed(group: Group, outputs: int, size: int) -> Iterator[tuple[tuple[Tensor, Tensor], Tensor, Tensor]]:
    """The pairs of a group that count for some output, `size` at a time, at last fewer: the rows (N,) of their prefixes
    and suffixes among all places of all documents, their targets (N, K, 1), and how much they count, (N, K, 1)."""
    waiting: list[list[Tensor]] = []
    number = 0
    S = group.suffix.shape[1]
    for block in group.blocks(LISTED, wasted=LISTED):
        counted = group.weights(block, outputs)
        found = counted.any(-1).nonzero().t()
        document, place, suffix = (
            part + span.start for part, span in zip(found, (block.documents, block.places, block.suffixes))
        )
        rows, columns = document * group.prefix.shape[1] + place, document * S + suffix
        both = group.next_tokens.flatten()[rows], group.previous_tokens.flatten()[columns]
        waiting.append([rows, columns, torch.stack(both[:outputs], 1), counted[tuple(found)]])
        number += len(rows)
        if number >= size:
            parts = [torch.cat(part) for part in zip(*waiting)]
            full = number - number % size
            for first in range(0, full, size):
                rows, columns, targets, weights = (part[first : first + size] for part in parts)
                yield (rows, columns), targets[..., None], weights[..., None]
            waiting, number = [[part[full:] for part in parts]], number - full
    if number:
        rows, columns, targets, weights = (torch.cat(part) for part in zip(*waiting))
        yield (rows, columns), targets[..., None], weights[..., None]


def put(total: Tensor, places: Tensor, values: Tensor) -> None:
    """Writes at places of the flattened tensor."""
    if total.device.type == "cpu":  # here `scatter_` copies the whole of a bf16 tensor
        total.put_(places, values)
    else:  # other than `put_` it has a deterministic kernel there
        total.view(-1).index_put_((places.flatten(),), values.flatten())


def through_relu(gradient: Tensor, output: Tensor) -> None:
    """Zeroes the gradient, in place, where ReLU gave 0."""
    torch.ops.aten.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left^T right; the sum is taken in the dtype of `total`."""
    if total.dtype == left.dtype:
        total.addmm_(left.t(), right)
    else:
        total += torch.mm(left.t(), right)
