"""The STRIPS Transformer (equations 8-19 of its paper), many restarts as one batch.

Shapes: `R` restarts, `L` heads (atoms), `A` actions, `B` traces per restart, `T` positions. `theta` [R, L, A, 3] in
[0, 1]: query (the action requires the atom), key (affects it), value (deletes it). Scores are q_i k_j, so
stick-breaking attention (equation 15) over the positions before i is a recursion over j that moves the output of every
later position towards the value at j,

    y_i <- y_i + q_i k_j (v_j - y_i)        for j = 1 .. i - 1,

without logarithms and without a T x T matrix, and as exact at length 200 as at 2. The backward pass is the same
recursion in reverse; `tests/strips/neural/test_transformer.py` compares it with the equations in float64.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

EDGE = 1e-6
"""Probabilities are kept this far from 0 and 1 before taking logarithms."""


class _Attend(torch.autograd.Function):
    """Queries, keys and values [T, ..., L] to each head's outputs [T, ..., L], equations 14-16."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = torch.zeros_like(query)
        before: list[Tensor] = []  # the outputs behind position j, before its update
        for at in range(len(query) - 1):
            later = output[at + 1 :]
            before.append(later.clone())
            later.lerp_(value[at], query[at + 1 :] * key[at])
        ctx.save_for_backward(query, key, value, *before)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value, *before = ctx.saved_tensors
        output = gradients[0].clone()
        to_query, to_key, to_value = (torch.zeros_like(each) for each in (query, key, value))
        for at in reversed(range(len(query) - 1)):
            later = output[at + 1 :]
            score = query[at + 1 :] * key[at]
            weighted = score * later
            torch.sum(weighted, dim=0, out=to_value[at])
            to_score = torch.sub(value[at], before[at]).mul_(later)
            to_query[at + 1 :].addcmul_(to_score, key[at])
            torch.sum(to_score.mul_(query[at + 1 :]), dim=0, out=to_key[at])
            later.sub_(weighted)
        return to_query, to_key, to_value


def head_outputs(theta: Tensor, actions: Tensor) -> Tensor:
    """How far each head finds each action inconsistent (equations 11-16).

    `theta` [R, L, A, 3]; `actions` [T, R, B], action numbers padded with -1. Returns [T, R, B, L].
    """
    restarts, _, count, _ = theta.shape
    rows = torch.where(actions < 0, count, actions) + (count + 1) * torch.arange(restarts)[:, None]
    padded = torch.nn.functional.pad(theta, (0, 0, 0, 1))  # an action without effects, for padding
    tables = padded.permute(3, 0, 2, 1).reshape(3, restarts * (count + 1), -1)
    query, key, value = (torch.nn.functional.embedding(rows, table) for table in tables)
    return _Attend.apply(query, key, value)  # type: ignore[no-untyped-call]


def inconsistency(theta: Tensor, actions: Tensor) -> Tensor:
    """y(i), how far each action is inconsistent with those before it (equation 17): [T, R, B] in [0, 1]."""
    return 1 - (1 - head_outputs(theta, actions)).prod(-1)


def focal_loss(y: Tensor, lengths: Tensor, labels: Tensor, alpha: float = 0.9, gamma: float = 3.0) -> Tensor:
    """The loss of each restart [R] (equations 20-22): y [T, R, B], lengths and labels [R, B].

    The last action of a trace with label 1 should be rejected, all other actions accepted.
    """
    at = torch.arange(len(y))[:, None, None]
    y = EDGE + (1 - 2 * EDGE) * y
    accepted = -(1 - alpha) * y**gamma * torch.log1p(-y)
    rejected = -alpha * (1 - y) ** gamma * torch.log(y)
    last = (at == lengths - 1) & (labels == 1)
    by_position = torch.where(last, rejected, accepted) * (at < lengths)
    return (by_position.sum(0) / lengths).mean(-1)
