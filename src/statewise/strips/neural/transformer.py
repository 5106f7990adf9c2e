"""The STRIPS Transformer (equations 8-19 of its paper) and its training, many restarts as one batch.

Shapes: `R` restarts, `L` heads (atoms), `A` actions, `B` traces per restart, `T` positions. `theta` [R, L, A, 3] in
[0, 1]: query (the action requires the atom), key (affects it), value (deletes it). Scores are q_i k_j, so
stick-breaking attention (equation 15) over the positions before i is a recursion over j that moves the output of every
later position towards the value at j,

    y_i <- y_i + q_i k_j (v_j - y_i)        for j = 1 .. i - 1,

without logarithms and without a T x T matrix, and as exact at length 200 as at 2. The backward pass is the same
recursion in reverse; `tests/strips/neural/test_transformer.py` compares it with the equations in float64.

The initial theta of a restart and its order of the traces are functions of the seed and its number only. So its result
does not depend on the other restarts, except for rounding (sums over tensors of other shapes may be computed in another
order), and is exactly the same whether or not training was interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from statewise.strips.model.traces import Traces

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


class Restarts:
    """Restarts in training. `weights` [R, L, A, 3] belong to the active restarts, whose numbers are `numbers` [R].

    With `places` [L, A] the weights [R, K, 3] are shared: head l uses the weights at places[l, a] for action a; index K
    means that the head ignores the action.
    """

    def __init__(
        self,
        traces: Traces,
        shape: tuple[int, ...],
        count: int,
        *,
        seed: int,
        batch: int,
        learning_rate: float,
        places: np.ndarray | None = None,
    ) -> None:
        actions, lengths, labels = traces.padded()
        self.actions, self.lengths = torch.from_numpy(actions), torch.from_numpy(lengths)
        self.labels = torch.from_numpy(labels)
        self.seed, self.batch, self.learning_rate = seed, batch, learning_rate
        self.count, self.numbers = count, np.arange(count)
        self.steps = 0
        drawn = []
        for number in range(count):
            generator = torch.Generator().manual_seed(int(np.random.SeedSequence([seed, number]).generate_state(1)[0]))
            drawn.append(torch.rand(*shape, 3, generator=generator))
        self._orders: dict[tuple[int, int], np.ndarray] = {}
        self._places = None if places is None else torch.from_numpy(places)
        self._take(torch.stack(drawn))

    def theta(self) -> Tensor:
        """[R, L, A, 3] of the active restarts."""
        if self._places is None:
            return self.weights
        return torch.nn.functional.pad(self.weights, (0, 0, 0, 1))[:, self._places]

    def _take(self, weights: Tensor) -> None:
        self.weights = weights.requires_grad_()
        self._optimizer = torch.optim.RAdam([self.weights], lr=self.learning_rate)

    def step(self) -> Tensor:
        """One RAdam step on one batch per restart, then clamps theta to [0, 1]. Returns the losses [R]."""
        chosen = self._batch()
        lengths, labels = self.lengths[chosen], self.labels[chosen]
        longest = int(lengths.max())
        y = inconsistency(self.theta(), self.actions[chosen].permute(2, 0, 1)[:longest])
        losses = focal_loss(y, lengths, labels)
        self._optimizer.zero_grad(set_to_none=True)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        with torch.no_grad():
            self.weights.clamp_(0, 1)
        self.steps += 1
        return losses.detach()

    def binary(self) -> np.ndarray:
        """theta [R, L, A, 3] as a NumPy array."""
        theta: np.ndarray = self.theta().detach().numpy().copy()
        return theta

    def keep(self, places: np.ndarray) -> None:
        """Keeps the active restarts at `places` and stops the others."""
        state = self._optimizer.state_dict()["state"]
        chosen = torch.from_numpy(np.asarray(places))
        self.numbers = self.numbers[places]
        self._take(self.weights.detach()[chosen].clone())
        moments = {
            index: {name: value[chosen].clone() if value.dim() else value for name, value in of.items()}
            for index, of in state.items()
        }
        self._load(moments)

    def state(self) -> dict[str, np.ndarray]:
        """The state of training as arrays."""
        arrays = {"numbers": self.numbers, "steps": np.array(self.steps), "weights": self.weights.detach().numpy()}
        for index, of in self._optimizer.state_dict()["state"].items():
            arrays |= {f"moment.{index}.{name}": value.numpy() for name, value in of.items()}
        return {name: value.copy() for name, value in arrays.items()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restores what `state` returned. Raises `KeyError` or `ValueError` for anything else."""
        numbers, weights = state["numbers"], state["weights"]
        if not set(numbers.tolist()) <= set(range(self.count)) or len(set(numbers.tolist())) < len(numbers):
            raise ValueError(f"numbers must be some of the {self.count} restarts")
        whole = (len(numbers), *self.weights.shape[1:])
        for name, value in state.items():
            scalar = value.shape == () and name.startswith("moment.")
            if (name == "weights" or name.startswith("moment.")) and not (
                (scalar or value.shape == whole) and value.dtype.kind == "f" and np.isfinite(value).all()
            ):
                raise ValueError(f"{name} must be finite numbers of the shape {whole}")
        self.numbers, self.steps = numbers, int(state["steps"])
        self._take(torch.from_numpy(weights.copy()))
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in state.items():
            if name.startswith("moment."):
                _, index, key = name.split(".", 2)
                moments.setdefault(int(index), {})[key] = torch.from_numpy(value.copy())
        self._load(moments)

    def _load(self, moments: Mapping[int, Mapping[str, Tensor]]) -> None:
        whole = self._optimizer.state_dict()
        self._optimizer.load_state_dict({"state": dict(moments), "param_groups": whole["param_groups"]})

    def _batch(self) -> Tensor:
        """Trace numbers [R, B]: in each epoch, each restart visits all traces in its own order."""
        count = len(self.lengths)
        wanted = np.arange(self.steps * self.batch, (self.steps + 1) * self.batch)
        epochs, places = wanted // count, wanted % count
        rows = np.empty((len(self.numbers), self.batch), dtype=np.int64)
        for row, number in enumerate(self.numbers):
            for epoch in np.unique(epochs):
                here = epochs == epoch
                rows[row, here] = self._order(int(number), int(epoch))[places[here]]
        if len(self._orders) > 4 * len(self.numbers):
            newest = int(epochs[-1])
            self._orders = {key: order for key, order in self._orders.items() if key[1] >= newest}
        return torch.from_numpy(rows)

    def _order(self, number: int, epoch: int) -> np.ndarray:
        key = (number, epoch)
        if key not in self._orders:
            self._orders[key] = np.random.default_rng([self.seed, number, epoch]).permutation(len(self.lengths))
        return self._orders[key]
