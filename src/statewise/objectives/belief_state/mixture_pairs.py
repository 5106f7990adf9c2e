"""Loss and gradient of the mixture head over blocks of prefix-suffix pairs.

An expert r gives token v the probability A_v C_v / Z, where log A is a linear map of the prefix state and log C one of
the suffix state. So the partition sums Z of all pairs are the product A C^T of one matrix of all prefixes and one of
all suffixes, and gradients are such products, too: T^2 V operations for each expert, where a head that computes logits
from a hidden state of width E for every pair takes T^2 V E. No tensor has the size of pairs x vocabulary.

Gates are such products as well: expert r has the share u_r w_r / sum_r u_r w_r, where log u is a linear map of the
prefix state and log w one of the suffix state. A target t then has the probability P / W with

    P = sum_r u_r w_r A_rt C_rt / Z_r,    W = sum_r u_r w_r

so that a pair takes one logarithm and no exponential. Pairs for which float32 does not reach are computed one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from statewise.objectives.belief_state.pair_workers import Worker
from statewise.objectives.belief_state.pairs import Block, Group
from statewise.objectives.belief_state.text_head import MixtureHead, TextHead

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
    """See the module. Shapes: (R b, r, V) for the experts' A of the prefixes of a block, (R b, S, V) for C of its
    suffixes, and (R b, r, S) for its pairs, always of one output."""

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
            given = self.pairs(group, block, output, counted[..., output], *(part.detach() for part in mapped))
            if given is None:
                continue
            of_mapped = [(part, found) for part, found in zip(mapped, given) if part.requires_grad]
            outputs, gradients = zip(*((part, found.to(part.dtype)) for part, found in of_mapped))
            own, other, *found = torch.autograd.grad(outputs, [*states, *leaves], gradients, allow_unused=True)
            self.add_states(block, own, torch.zeros_like(states[1]) if other is None else other)
            for total, gradient in zip(self.found[output], found):
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
                own, other, taken = A[:, rows], C[:, columns], counted[:, rows, columns]
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
                lost = lowest.mul_(P).lt(TINY).logical_and_(taken > 0)
                underflown[:, rows, columns] = lost
                P.clamp_(min=TINY), W.clamp_(min=TINY)
                self.totals[output] -= ((P / W).log_() * taken.masked_fill(lost, 0.0)).sum()
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
            found = [of_a, of_u, of_c, of_w]
            if single is not None:
                self._one_by_one(output, logs, single, target[underflown], counted[underflown], found)
            return found

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
            taken = [log[where].to(self.exact).requires_grad_() for log, where in zip(logs, places)]
            experts = (taken[0] + taken[2]).log_softmax(-1).gather(-1, wanted.expand(len(logs[0]), -1)[..., None])
            log_p = (experts[..., 0] + (taken[1] + taken[3]).log_softmax(0)).logsumexp(0)
            loss = -(log_p * weight).sum()
            self.totals[output] += loss.detach()
            if gradients:
                found = torch.autograd.grad(loss * self.weights[output].to(self.exact), taken)
                number = torch.arange(len(logs[0]), device=some.device)[:, None]
                for total, (_, *where), gradient in zip(gradients, places, found):
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
