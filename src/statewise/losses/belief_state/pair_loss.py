"""The loss over prefix-suffix pairs of the Belief State Transformer (equation 2), exact and fast.

Pairs are taken in blocks (see `pairs`), and each block's gradient as soon as its loss is known: nothing of the size of
pairs x vocabulary outlives a block. The whole is one autograd function whose forward pass computes the gradients; from
outside it is an ordinary loss. For each kind of text head a worker computes the loss and the gradient of a block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from statewise.backbones.nn.differentiable_once import differentiable_once, eager
from statewise.losses.belief_state.pairs import WASTED, Block, Group, Layout
from statewise.losses.belief_state.text_head import MixtureHead, MLPHead, TextHead

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
            own, other, *of_parameters = torch.autograd.grad(weighted, leaves)
            self.add_states(block, own, other)
            for total, gradient in zip(self.gradients, of_parameters):
                total += gradient


class MLPWorker(Worker):
    """The MLP head, its gradient written out. Buffers are reused, and every step that can be is done in place."""

    def __init__(self, head: TextHead, weights: Tensor, wanted: bool, exact: torch.dtype) -> None:
        super().__init__(head, weights, wanted, exact)
        self.cast: list[Tensor] = []
        self.buffers: dict[str, Tensor] = {}

    def buffer(self, name: str, like: Tensor, rows: int, width: int) -> Tensor:
        """(rows, width) of scratch space."""
        buffer = self.buffers.get(name)
        if buffer is None or len(buffer) < rows:
            self.buffers[name] = buffer = like.new_empty(rows, width)
        return buffer[:rows]

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
        places = counted.any(-1).nonzero().t()
        document, place, suffix = (
            part + span.start for part, span in zip(places, (block.documents, block.places, block.suffixes))
        )
        rows, columns = document * group.prefix.shape[1] + place, document * S + suffix
        both = group.next_tokens.flatten()[rows], group.previous_tokens.flatten()[columns]
        waiting.append([rows, columns, torch.stack(both[:outputs], 1), counted[tuple(places)]])
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


LOGITS = {"cpu": 2**22, "cuda": 2**26}
"""Most logits of one output for the prefixes and suffixes of a block."""
TINY = 1e-30
"""Where Z P is below this for some expert, terms may be lost by underflow: such pairs are computed one by one."""
AT_ONCE = 2**22
"""Most logits of pairs that are computed one by one, at a time."""
STRIPS = 2
"""Number of parts of a block's prefixes. Each part is paired only with the suffixes behind its first prefix, so fewer
pairs are computed that do not count."""


class MixtureWorker(Worker):
    """Loss and gradient of the mixture head.

    An expert r gives token v the probability A_v C_v / Z, where log A is a linear map of the prefix state and log C one
    of the suffix state. So the partition sums Z of all pairs are the product A C^T of one matrix of all prefixes and
    one of all suffixes, and gradients are such products, too: T^2 V operations for each expert, where a head that
    computes logits from a hidden state of width E for every pair takes T^2 V E. No tensor has the size of pairs x
    vocabulary.

    Gates are such products as well: expert r has the share u_r w_r / sum_r u_r w_r, where log u is a linear map of the
    prefix state and log w one of the suffix state. A target t then has the probability P / W with

        P = sum_r u_r w_r A_rt C_rt / Z_r,    W = sum_r u_r w_r

    so that a pair takes one logarithm and no exponential. Pairs for which float32 does not reach are computed one by
    one.

    Shapes: (R b, r, V) for the experts' A of the prefixes of a block, (R b, S, V) for C of its suffixes, and (R b, r,
    S) for its pairs, always of one output.
    """

    head: MixtureHead

    def __init__(self, head: TextHead, weights: Tensor, wanted: bool, exact: torch.dtype) -> None:
        super().__init__(head, weights, wanted, exact)
        detached = [parameter.detach() for parameter in self.parameters(head)]
        outputs = range(head.outputs)
        self.leaves = [[part.requires_grad_(wanted) for part in self.of_output(k, detached)] for k in outputs]
        self.found = [self.of_output(k, self.gradients) for k in outputs] if wanted else []

    @staticmethod
    def states(head: TextHead, prefix: Tensor, suffix: Tensor) -> tuple[Tensor, Tensor]:
        """See `Worker`: the states themselves, in the precision of products."""
        device = prefix.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            return prefix.to(dtype), suffix.to(dtype)
        return prefix, suffix

    @staticmethod
    @override
    def parameters(head: TextHead) -> list[Tensor]:
        return list(head.parameters())

    def of_output(self, output: int, parameters: Sequence[Tensor]) -> list[Tensor]:
        """The parts of one output of tensors like the parameters."""
        words = len(self.head.words)
        maps = parameters[: len(parameters) - words]
        return [
            *(part.chunk(self.head.outputs)[output] for part in maps),
            *parameters[len(maps) :][output : output + 1],
        ]

    @override
    def blocks(self, group: Group, prefix: Tensor) -> Iterator[Block]:
        most = LOGITS["cpu" if prefix.device.type == "cpu" else "cuda"]
        return group.tiles(max(2, most // (self.head.experts * self.head.vocabulary)))

    @override
    def work(self, group: Group, block: Block, prefix: Tensor, suffix: Tensor) -> None:
        counted = group.weights(block, self.head.outputs)
        states = [part.detach().requires_grad_(self.wanted) for part in (prefix, suffix)]
        for output, leaves in enumerate(self.leaves):
            with torch.set_grad_enabled(self.wanted):
                mapped = self.mapped(*states, *leaves)
            log_gradients = self.pairs(group, block, output, counted[..., output], *(part.detach() for part in mapped))
            if log_gradients is None:
                continue
            of_mapped = [
                (part, of_parameters) for part, of_parameters in zip(mapped, log_gradients) if part.requires_grad
            ]
            outputs, gradients = zip(*((part, of_parameters.to(part.dtype)) for part, of_parameters in of_mapped))
            own, other, *of_parameters = torch.autograd.grad(outputs, [*states, *leaves], gradients, allow_unused=True)
            self.add_states(block, own, torch.zeros_like(states[1]) if other is None else other)
            for total, gradient in zip(self.found[output], of_parameters):
                total += gradient

    def mapped(self, prefix: Tensor, suffix: Tensor, *leaves: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """log A (R, b, r, V), log u (R, b, r), log C (R, b, S, V) and log w (R, b, S) of one output."""
        R, left = self.head.experts, list(leaves)
        words = left.pop() if self.head.words else None
        bias, gates_bias = left.pop(1), left.pop(2)

        def logits(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            hidden = F.linear(states, weight, bias).view(*states.shape[:2], R, -1).movedim(-2, 0)
            return hidden if words is None else F.linear(hidden, words)

        of_prefix = logits(prefix, left[0], bias), F.linear(prefix, left[1], gates_bias).movedim(-1, 0)
        if not self.head.reads_suffix:
            empty = suffix.new_zeros(R, *suffix.shape[:2], self.head.vocabulary)
            return *of_prefix, empty, empty[..., 0]
        return *of_prefix, logits(suffix, left[2], None), F.linear(suffix, left[3]).movedim(-1, 0)

    @torch.no_grad()
    def pairs(
        self,
        group: Group,
        block: Block,
        output: int,
        counted: Tensor,
        log_a: Tensor,
        log_u: Tensor,
        log_c: Tensor,
        log_w: Tensor,
    ) -> list[Tensor] | None:
        """Adds the loss of one output; returns the gradients of what `mapped` gave. `counted`: (b, r, S)."""
        experts = log_a.shape[:2]
        following = group.next_tokens[block.documents, block.places]
        previous = group.previous_tokens[block.documents, block.suffixes]
        with torch.autocast(log_a.device.type, enabled=False):
            A, C = (self.from_log(part, -1).flatten(0, 1) for part in (log_a, log_c))
            u, w = (self.from_log(part, 0) for part in (log_u, log_w))
            counted = counted.to(self.exact)
            factor = counted * -self.weights[output].to(self.exact)
            # Gradients of log P, of log W except the factor u or w, and of -log Z except the factor A or C.
            of_P, of_W = A.new_zeros(A.shape[0], *counted.shape[1:]), torch.zeros_like(counted)
            of_a, of_c = (torch.empty_like(part) if self.wanted else part for part in (A, C))
            underflown = torch.zeros_like(counted, dtype=torch.bool)
            strips = list(group.strips(block, STRIPS))
            # In most blocks strips have all prefixes, and the first has all suffixes: it writes where the others add.
            reached = sum(rows.stop - rows.start for rows, _ in strips)
            whole = reached == counted.shape[1] and strips[0][1] == slice(0, counted.shape[2])
            if self.wanted and not whole:
                of_a.zero_(), of_c.zero_()
            for rows, columns in strips:
                own, other, counted_part = A[:, rows], C[:, columns], counted[:, rows, columns]
                in_a, in_c = targets(output, following[:, rows], previous[:, columns], experts[0])
                from_a = split(own, experts).gather(-1, in_a).mul_(u[:, :, rows, None])
                from_c = split(other, experts).gather(-1, in_c).mul_(w[:, :, columns, None])
                parts = of_P[:, rows, columns]
                by_expert = torch.mul(from_a, from_c.transpose(-1, -2), out=split(parts, experts))
                Z = own @ other.transpose(-1, -2)
                lowest = split(Z, experts).amin(0)
                if (lowest < TINY).any():
                    Z.clamp_(min=TINY)
                parts.div_(Z)
                P = by_expert.sum(0)
                W = u[:, :, rows].permute(1, 2, 0) @ w[:, :, columns].permute(1, 0, 2)
                lost = lowest.mul_(P).lt(TINY).logical_and_(counted_part > 0)
                underflown[:, rows, columns] = lost
                P.clamp_(min=TINY), W.clamp_(min=TINY)
                self.totals[output] -= ((P / W).log_() * counted_part.masked_fill(lost, 0.0)).sum()
                if self.wanted:
                    weight = factor[:, rows, columns].masked_fill(lost, 0.0)
                    torch.div(weight, W, out=of_W[:, rows, columns])
                    by_expert.mul_(weight / P)
                    over_Z = torch.div(parts, Z, out=Z)
                    add = float(not whole or rows.start > 0)
                    of_a[:, rows].baddbmm_(over_Z, other, beta=0, alpha=-1)
                    of_c[:, columns].baddbmm_(over_Z.transpose(-1, -2), own, beta=add, alpha=-1)
            single = underflown.nonzero() if underflown.any() else None
            target = previous[:, None].expand(counted.shape) if output else following[..., None].expand(counted.shape)
            logs = [log_a, log_u, log_c, log_w]
            if not self.wanted:
                if single is not None:
                    self._one_by_one(output, logs, single, target[underflown], counted[underflown], [])
                return None
            of_a.mul_(A)
            of_c.mul_(C)
            in_a, in_c = targets(output, following, previous, experts[0])
            of_a, of_c, of_P = (split(part, experts) for part in (of_a, of_c, of_P))
            of_u, of_w, turned = of_P.sum(3), of_P.sum(2), of_P.transpose(-1, -2)
            of_a.scatter_add_(-1, in_a, of_P if output else of_u[..., None])
            of_c.scatter_add_(-1, in_c, of_w[..., None] if output else turned)
            of_u.addcmul_(u, (of_W @ w.permute(1, 2, 0)).permute(2, 0, 1), value=-1)
            of_w.addcmul_(w, (of_W.transpose(1, 2) @ u.permute(1, 2, 0)).permute(2, 0, 1), value=-1)
            gradients = [of_a, of_u, of_c, of_w]
            if single is not None:
                self._one_by_one(output, logs, single, target[underflown], counted[underflown], gradients)
            return gradients

    def from_log(self, part: Tensor, dim: int) -> Tensor:
        """The exponential in the precision of sums, up to a constant factor along `dim`, which cancels."""
        exact = part.to(self.exact, copy=True, memory_format=torch.contiguous_format)
        return exact.sub_(exact.amax(dim, keepdim=True)).exp_()

    @torch.enable_grad()
    def _one_by_one(
        self, output: int, logs: list[Tensor], pairs: Tensor, target: Tensor, counted: Tensor, gradients: list[Tensor]
    ) -> None:
        """Adds the losses of single pairs (m, 3), and the gradients of their weighted sum to `gradients`."""
        size = max(1, AT_ONCE // (len(logs[0]) * logs[0].shape[-1]))
        for some, wanted, weight in zip(*(torch.split(part, size) for part in (pairs, target, counted))):
            document, place, suffix = some.t()
            of_prefix, of_suffix = (slice(None), document, place), (slice(None), document, suffix)
            places = [of_prefix, of_prefix, of_suffix, of_suffix]
            leaves = [log[where].to(self.exact).requires_grad_() for log, where in zip(logs, places)]
            experts = (leaves[0] + leaves[2]).log_softmax(-1).gather(-1, wanted.expand(len(logs[0]), -1)[..., None])
            log_p = (experts[..., 0] + (leaves[1] + leaves[3]).log_softmax(0)).logsumexp(0)
            loss = -(log_p * weight).sum()
            self.totals[output] += loss.detach()
            if gradients:
                leaf_gradients = torch.autograd.grad(loss * self.weights[output].to(self.exact), leaves)
                number = torch.arange(len(logs[0]), device=some.device)[:, None]
                for total, (_, *where), gradient in zip(gradients, places, leaf_gradients):
                    total.index_put_((number, *where), gradient, accumulate=True)


def targets(output: int, following: Tensor, previous: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Where each pair's target stands in A of its prefix, (R, b, r, S), and where in C of its suffix, (R, b, S, r); the
    last is 1 if that side alone determines it. `following` (b, r), `previous` (b, S): next and previous tokens."""
    r, S = following.shape[1], previous.shape[1]
    if output == 0:
        places = following[:, :, None], following[:, None].expand(-1, S, -1)
    else:
        places = previous[:, None].expand(-1, r, -1), previous[:, :, None]
    in_a, in_c = (part.expand(experts, *part.shape) for part in places)
    return in_a, in_c


def split(part: Tensor, experts: tuple[int, ...]) -> Tensor:
    """(R b, ...) -> (R, b, ...); a view."""
    return part.view(*experts, *part.shape[1:])


WORKERS: dict[type[TextHead], type[Worker]] = {MLPHead: MLPWorker, MixtureHead: MixtureWorker}
"""For heads whose gradient is written out; autograd does the others."""


@eager  # otherwise unrolled, block by block
def pair_loss(head: TextHead, prefix: Tensor, suffix: Tensor, layout: Layout, weights: Tensor) -> Tensor:
    """(K,): summed, weighted cross-entropy in nats of the pairs, of the next and (if K = 2) the previous token.

    `prefix` (U, D), `suffix` (W, D): the states of `layout.prefix_rows` and of `layout.suffix_rows`. `weights` (K,) are
    the factors with which the sums will enter the loss that is differentiated: gradients are computed here and now, so
    backward passes only any common multiple of them. A backward pass with other factors raises `RuntimeError` on a CPU;
    on a GPU it gives wrong gradients, for there the check would have to wait for the device.
    """
    worker = WORKERS.get(type(head), AutogradWorker)
    inputs = (worker, head, layout.groups, weights, torch.is_grad_enabled(), *worker.states(head, prefix, suffix))
    totals: Tensor = _PairLoss.apply(*inputs, *worker.parameters(head))  # type: ignore[no-untyped-call]
    return totals


class _PairLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        kind: type[Worker],
        head: TextHead,
        groups: list[Group],
        weights: Tensor,
        wanted: bool,
        prefix: Tensor,
        suffix: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        exact = torch.promote_types(prefix.dtype, torch.float32)
        # Gradients of many pairs meet in one place: they are summed in float32, whatever the pairs are computed in.
        states = [torch.zeros_like(part, dtype=exact) for part in (prefix, suffix)] if wanted else []
        worker = kind(head, weights, wanted, exact)
        for group in groups:
            own = [part[rows] for part, rows in ((prefix, group.prefix), (suffix, group.suffix))]
            worker.group(group, *own)
            for total, rows, gradient in zip(states, (group.prefix, group.suffix), worker.state_gradients):
                total.index_add_(0, rows.flatten(), gradient.flatten(0, 1))
        if wanted:
            ctx.save_for_backward(weights, *states, *worker.gradients)
        return worker.totals

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, factors: Tensor) -> tuple[Tensor | None, ...]:
        weights, *gradients = ctx.saved_tensors
        scale = (factors * weights).sum() / (weights * weights).sum().clamp(min=torch.finfo(weights.dtype).tiny)
        if factors.device.type == "cpu" and not torch.allclose(factors, scale * weights, rtol=1e-3, atol=0):
            raise RuntimeError(f"the pair loss was computed with weights {weights.tolist()}, not {factors.tolist()}")
        return None, None, None, None, None, *((gradient * scale).to(gradient.dtype) for gradient in gradients)
