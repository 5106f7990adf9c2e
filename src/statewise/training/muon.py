"""Muon for hidden matrices and AdamW for all other parameters, as one optimiser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from statewise.objectives.base import Objective


def hidden_matrices(objective: Objective) -> list[nn.Parameter]:
    """The trainable matrices of linear and recurrent layers, except those that map to logits. Not among them are
    embeddings, norms, biases, and parameters outside such layers (initial states, tensors of three dimensions)."""
    heads = {id(matrix) for matrix in objective.head_matrices()}
    found: dict[int, nn.Parameter] = {}
    for part in objective.modules():
        if isinstance(part, nn.Linear | nn.RNNBase | nn.RNNCellBase):
            for parameter in part.parameters(recurse=False):
                if parameter.requires_grad and parameter.dim() == 2 and id(parameter) not in heads:
                    found[id(parameter)] = parameter
    return list(found.values())


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon and AdamW with one list of parameter groups, Muon's first, and one state."""

    def __init__(self, muon: torch.optim.Muon, adamw: torch.optim.AdamW) -> None:
        super().__init__([*muon.param_groups, *adamw.param_groups], {})
        self.muon, self.adamw = muon, adamw
        self._share()

    def _share(self) -> None:
        """Makes both use the groups and the state of this optimiser."""
        first = len(self.muon.param_groups)
        self.muon.param_groups, self.adamw.param_groups = self.param_groups[:first], self.param_groups[first:]
        self.muon.state = self.adamw.state = self.state

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of both."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.muon.step()  # type: ignore[no-untyped-call]
        self.adamw.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores groups and state from `state_dict()`. Raises `ValueError` if they do not match the parameters."""
        super().load_state_dict(state_dict)
        self._share()
