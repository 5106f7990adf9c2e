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

    @torch.no_grad()
    def work(self, group: Group, block: Block, prefix: Tensor, suffix: Tensor) -> None:
        """See `Worker`."""
        head = self.head
        K, R = head.outputs, head.experts
        b, r, S = len(prefix), prefix.shape[1], suffix.shape[1]
        prefix, suffix = prefix.flatten(0, 1), suffix.flatten(0, 1)
        with torch.autocast(prefix.device.type, enabled=False):
            a, prefix_gates = (part.reshape(K * R, b, r, *part.shape[2:]) for part in self._mapped(prefix, "prefix"))
            c, suffix_gates = (part.reshape(K * R, b, S, *part.shape[2:]) for part in self._mapped(suffix, "suffix"))
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
                return
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
            self.add_states(
                block,
                self._back(prefix, of_a, of_gates.sum(3), "prefix").view(b, r, -1),
                self._back(suffix, of_c, of_gates.sum(2), "suffix").view(b, S, -1),
            )

    def _maps(self, side: str) -> tuple[torch.nn.Linear, torch.nn.Linear] | None:
        """The experts' logits and the gates of a side; None for a suffix that is not read."""
        head = self.head
        if side == "prefix":
            return head.prefix_logits, head.prefix_gates
        if head.suffix_logits is None or head.suffix_gates is None:
            return None
        return head.suffix_logits, head.suffix_gates

    def _mapped(self, states: Tensor, side: str) -> tuple[Tensor, Tensor]:
        """(m, D) -> logits (K R, m, V), less their largest, and gates (K R, m)."""
        maps, count = self._maps(side), self.head.outputs * self.head.experts
        if maps is None:
            empty = states.new_zeros(count, len(states), self.head.vocabulary, dtype=self.exact)
            return empty, empty[..., 0]
        logits, gates = maps
        weight = logits.weight.to(states.dtype).view(count, -1, states.shape[1])
        found = torch.bmm(states.expand(count, -1, -1), weight.transpose(1, 2)).to(self.exact)
        if logits.bias is not None:
            found += logits.bias.to(self.exact).view(count, 1, -1)
        gate = states.to(self.exact) @ gates.weight.to(self.exact).t()
        if gates.bias is not None:
            gate += gates.bias.to(self.exact)
        return found.sub_(found.amax(-1, keepdim=True)), gate.t()

    def _back(self, states: Tensor, of_logits: Tensor, of_gates: Tensor, side: str) -> Tensor:
        """Adds the gradients of a side's maps; returns those of its states (m, D)."""
        maps = self._maps(side)
        if maps is None:
            return states.new_zeros(states.shape, dtype=self.exact)
        logits, gates = maps
        flat = of_logits.flatten(1, 2).transpose(0, 1).to(states.dtype).flatten(1)
        gate = of_gates.flatten(1).t()
        for linear, found, read in ((logits, flat, states), (gates, gate, states.to(self.exact))):
            self.gradient(linear.weight).add_(found.t() @ read)
            if linear.bias is not None:
                self.gradient(linear.bias).add_(of_logits.sum((1, 2)).flatten() if linear is logits else found.sum(0))
        return (flat @ logits.weight.to(states.dtype)).to(self.exact) + gate @ gates.weight.to(self.exact)

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
