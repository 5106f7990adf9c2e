"""Token embeddings, which a second model may share."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class TokenEmbedding(nn.Module):
    """A matrix with a row for each token id: its own, or the matrix of another embedding."""

    def __init__(self, rows: int, width: int, shared: TokenEmbedding | None = None) -> None:
        super().__init__()
        # Not registered as a submodule, which would list its matrix among the parameters a second time.
        self._shared = (shared,)
        self.weight: nn.Parameter | None = None
        if shared is None:
            self.weight = nn.Parameter(torch.randn(rows, width))

    @property
    def matrix(self) -> Tensor:
        """(rows, D)."""
        (shared,) = self._shared
        if shared is not None:
            return shared.matrix
        assert self.weight is not None
        return self.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """(...) token ids -> (..., D)."""
        return F.embedding(tokens, self.matrix)
