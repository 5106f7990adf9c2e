"""Functions that `torch.compile` calls as they are: what depends on the batch on the host, or would be unrolled."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Result = TypeVar("Result")


def eager(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """`function`, left out of compiled graphs; a decorator.

    As `torch.compiler.disable`, which imports the compiler at once: a third of the time in which a command starts. This
    one, with which torch marks its own optimisers, imports it at the first call.
    """
    # A private name, which only saves time: without it the public one does the same.
    left_out: Callable[Given, Result] = getattr(torch, "_disable_dynamo", torch.compiler.disable)(function)
    return left_out
