"""Token embeddings, which a second model may borrow from a first."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class TokenEmbedding(nn.Module):
    """A matrix with a row for each token id: its own, or that of another embedding."""

    def __init__(self, rows: int, width: int, lender: TokenEmbedding | None = None) -> None:
        super().__init__()
        # The lender is kept out of our submodules, which would otherwise hold its matrix a second time.
        self._lender = (lender,)
        self.weight: nn.Parameter | None = None
        if lender is None:
            self.weight = nn.Parameter(torch.randn(rows, width))

    @property
    def matrix(self) -> Tensor:
        """(rows, D)."""
        (lender,) = self._lender
        if lender is not None:
            return lender.matrix
        assert self.weight is not None
        return self.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """(...) token ids -> (..., D)."""
        return F.embedding(tokens, self.matrix)
