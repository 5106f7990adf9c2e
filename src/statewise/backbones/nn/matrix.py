"""Linear maps whose matrix is used by itself."""

from __future__ import annotations

from torch import nn


class Matrix(nn.Linear):
    """A linear map of which other code reads the weight, in parts or as the vocabulary head.

    Its own type, since dynamic quantisation replaces modules of the type `nn.Linear` by some that have no such weight.
    """
