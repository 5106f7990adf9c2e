"""Hand-written gradients, which have none of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Found = TypeVar("Found")


def differentiable_once(backward: Callable[..., Found]) -> Callable[..., Found]:
    """Decorates the `backward` of a `torch.autograd.Function`: it raises `RuntimeError` where autograd would
    differentiate it (`create_graph=True`), in place of taking what it saved for constants.

    PyTorch's `once_differentiable` does not suffice: `torch.autograd.grad` with `inputs` never gets to its error.
    """

    @functools.wraps(backward)
    def checked(ctx: Any, *gradients: Any) -> Found:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(
                "second derivatives (create_graph=True) are not computed: this gradient is written by hand; take "
                "differences of first derivatives"
            )
        return backward(ctx, *gradients)

    return checked
