"""Trains the STRIPS Transformer, many restarts as one batch.

The initial theta of a restart and its order of the traces are functions of the seed and its number only. So its result
does not depend on the other restarts, except for rounding (sums over tensors of other shapes may be computed in another
order), and is exactly the same whether or not training was interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from statewise.strips.model.traces import Traces
from statewise.strips.neural.transformer import focal_loss, inconsistency


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
        found: np.ndarray = self.theta().detach().numpy().copy()
        return found

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
        found = {"numbers": self.numbers, "steps": np.array(self.steps), "weights": self.weights.detach().numpy()}
        for index, of in self._optimizer.state_dict()["state"].items():
            found |= {f"moment.{index}.{name}": value.numpy() for name, value in of.items()}
        return {name: value.copy() for name, value in found.items()}

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
