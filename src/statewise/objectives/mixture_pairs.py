"""Loss and gradient of the mixture head over blocks of prefix-suffix pairs.

An expert gives token v the probability exp(a_v + c_v) / Z, where a is a linear map of the prefix state and c one of the
suffix state. So the partition sums Z of all pairs are the product exp(a) exp(c)^T of one matrix of all prefixes and one
of all suffixes, and gradients are such products, too: T^2 V operations for each expert, where a head that computes
logits from a hidden state of width E for every pair takes T^2 V E. No tensor has the size of pairs x vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from statewise.objectives.pair_workers import Worker
from statewise.objectives.pairs import Block, Group
from statewise.objectives.text_head import MixtureHead, TextHead

LOGITS = {"cpu": 2**23, "cuda": 2**27}
"""Most logits of the prefixes and suffixes of a block."""
TINY = 1e-30
"""Below this, Z may have lost terms by underflow: such pairs are computed one by one."""
AT_ONCE = 2**22
"""Logits of such pairs that are computed at a time."""


class MixtureWorker(Worker):
    """See the module. Shapes: (K R, b, r, V) for experts' values of the prefixes, (K R, b, S, V) of the suffixes, and
    (K R, b, r, S) of the pairs of a block."""

    head: MixtureHead

    @staticmethod
    def states(head: TextHead, prefix: Tensor, suffix: Tensor) -> tuple[Tensor, Tensor]:
        """See `Worker`: the states themselves, in the precision of products."""
        device = prefix.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            return prefix.to(dtype), suffix.to(dtype)
        return prefix, suffix

    @staticmethod
    def parameters(head: TextHead) -> list[Tensor]:
        """See `Worker`."""
        return list(head.parameters())

    def blocks(self, group: Group, prefix: Tensor) -> Iterator[Block]:
        """See `Worker`."""
        most = LOGITS["cpu" if prefix.device.type == "cpu" else "cuda"]
        return group.tiles(max(2, most // (self.head.outputs * self.head.experts * self.head.vocabulary)))

    def work(self, group: Group, block: Block, prefix: Tensor, suffix: Tensor) -> None:
        """See `Worker`."""
        states = [part.detach().requires_grad_(self.wanted) for part in (prefix, suffix)]
        with torch.set_grad_enabled(self.wanted):
            mapped = [*self.head.of_prefix(states[0]), *self.head.of_suffix(states[1])]
        gradients = self.block(group, block, *(self.by_expert(part.detach()) for part in mapped))
        if gradients is None:
            return
        of_mapped = [(part, self.by_token(found).to(part.dtype)) for part, found in zip(mapped, gradients)]
        outputs, given = zip(*((part, found) for part, found in of_mapped if part.requires_grad))
        leaves = [*states, *self.parameters(self.head)]
        own, other, *found = torch.autograd.grad(outputs, leaves, given, allow_unused=True)
        self.add_states(block, own, torch.zeros_like(states[1]) if other is None else other)
        for total, gradient in zip(self.gradients, found):
            total += gradient

    def by_expert(self, part: Tensor) -> Tensor:
        """(b, t, K, R, ...) -> (K R, b, t, ...), in the precision of sums."""
        return part.flatten(2, 3).movedim(2, 0).to(self.exact).contiguous()

    def by_token(self, part: Tensor) -> Tensor:
        """The inverse of `by_expert`."""
        moved = part.movedim(0, 2)
        return moved.reshape(*moved.shape[:2], self.head.outputs, self.head.experts, *moved.shape[3:])

    @torch.no_grad()
    def block(
        self, group: Group, block: Block, a: Tensor, prefix_gates: Tensor, c: Tensor, suffix_gates: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        """Adds the loss; returns the gradients of the four. `a`, `c`: logits (K R, b, r or S, V); gates: (K R, b, r or
        S)."""
        K, R = self.head.outputs, self.head.experts
        b, r, S = a.shape[1], a.shape[2], c.shape[2]
        with torch.autocast(a.device.type, enabled=False):
            a, c = (part - part.amax(-1, keepdim=True) for part in (a, c))  # constants of a side cancel
            following = group.next_tokens[block.documents, block.places]
            previous = group.previous_tokens[block.documents, block.suffixes]
            # Where each pair's target stands among the logits of its prefix, and of its suffix.
            by_row = following[None, :, :, None].expand(R, b, r, 1), following[None, :, None].expand(R, b, S, r)
            by_column = previous[None, :, None].expand(R, b, r, S), previous[None, :, :, None].expand(R, b, S, 1)
            places = [by_row, by_column][:K]
            target = torch.stack([
                a[k * R : (k + 1) * R].gather(-1, in_a) + c[k * R : (k + 1) * R].gather(-1, in_c).transpose(-1, -2)
                for k, (in_a, in_c) in enumerate(places)
            ]).flatten(0, 1)  # fmt: skip
            counted = group.weights(block, K).permute(3, 0, 1, 2).to(self.exact)
            e_a, e_c = a.exp(), c.exp()
            Z = e_a @ e_c.transpose(-1, -2)
            apart = (Z < TINY) & (counted > 0).repeat_interleave(R, 0)
            log_Z = Z.clamp(min=TINY).log()
            single = apart.nonzero() if apart.any() else None
            if single is not None:
                log_Z[apart] = self._one_by_one(a, c, single)
            log_gates = (prefix_gates[..., None] + suffix_gates[:, :, None]).view(K, R, b, r, S).log_softmax(1)
            joint = log_gates + (target - log_Z).view(K, R, b, r, S)
            log_probs = joint.logsumexp(1)
            self.totals -= (log_probs * counted).sum((1, 2, 3))
            if not self.wanted:
                return None
            factor = -(counted * self.weights.to(self.exact)[:, None, None, None])[:, None]
            of_gates = log_gates.exp_().mul_(-factor)
            of_target = joint.sub_(log_probs[:, None]).exp_().mul_(factor)
            of_gates += of_target
            of_target = of_target.flatten(0, 1)
            over_Z = of_target / Z.clamp_(min=TINY)
            if single is not None:
                over_Z[apart] = 0.0
            of_a = (over_Z @ e_c).mul_(e_a).neg_()
            of_c = (over_Z.transpose(-1, -2) @ e_a).mul_(e_c).neg_()
            if single is not None:
                self._one_by_one(a, c, single, of_target[apart], of_a, of_c)
            for k, (in_a, in_c) in enumerate(places):
                own, its = slice(k * R, (k + 1) * R), of_target[k * R : (k + 1) * R]
                turned = its.transpose(-1, -2)
                of_a[own].scatter_add_(-1, in_a, its if in_a.shape[-1] == S else its.sum(-1, keepdim=True))
                of_c[own].scatter_add_(-1, in_c, turned if in_c.shape[-1] == r else turned.sum(-1, keepdim=True))
            of_gates = of_gates.flatten(0, 1)
            return of_a, of_gates.sum(3), of_c, of_gates.sum(2)

    def _one_by_one(
        self, a: Tensor, c: Tensor, pairs: Tensor, of_target: Tensor | None = None, of_a: Tensor | None = None,
        of_c: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """(m,) log-partitions of single pairs (m, 4); with `of_target` (m,) adds their gradients to `of_a`, `of_c`."""
        found = []
        size = max(1, AT_ONCE // a.shape[-1])
        for number, some in enumerate(torch.split(pairs, size)):
            expert, document, place, suffix = some.t()
            logits = a[expert, document, place] + c[expert, document, suffix]
            found.append(logits.logsumexp(-1))
            if of_target is not None and of_a is not None and of_c is not None:
                gradient = logits.softmax(-1).mul_(-of_target[number * size : (number + 1) * size, None])
                of_a.index_put_((expert, document, place), gradient, accumulate=True)
                of_c.index_put_((expert, document, suffix), gradient, accumulate=True)
        return torch.cat(found)
