"""Decorators for hand-written gradients: second derivatives raise an error, and compiled graphs leave them out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

Found = TypeVar("Found")
Given = ParamSpec("Given")


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


def eager(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """Decorates a function that `torch.compile` calls as it is: it depends on the batch on the host, or would be
    unrolled.

    As `torch.compiler.disable`, which imports the compiler at once: a third of the time in which a command starts. This
    one, with which torch marks its own optimisers, imports it at the first call.
    """
    # A private name, which only saves time: without it the public one does the same.
    left_out: Callable[Given, Found] = getattr(torch, "_disable_dynamo", torch.compiler.disable)(function)
    return left_out
