"""Compares what the backbone computes with what the model itself computes, when it is constructed.

The contract of a backbone says more than that of a causal language model: a linear head on the states, documents that
share a row and do not see each other, rows of different lengths in one cache. Some families do not fit it, and wrong
masks change numbers without an error. So every model is tried on random tokens before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional as F

from statewise.backbones.base import Backbone
from statewise.backbones.hf.loading import quiet
from statewise.backbones.leaks.checks import SHORTEST, Result, Tester
from statewise.backbones.leaks.readers import BackboneReader
from statewise.backbones.leaks.recording import ALLOWED, relative
from statewise.batch import Batch

ROWS, TOKENS = 2, 12
WINDOW = 4
"""Sliding windows are this narrow for the comparison, so that a few tokens show what they do."""
LEAKS = {
    "future": "its positions see later tokens",
    "packed": "documents that share a row see each other",
    "cache": "reading step by step gives other numbers than reading at once",
}
"""Messages for what changes states besides the past."""


class Differs(Exception):
    """What the backbone computes is not what the model computes; the message says in what."""


def compare(backbone: Backbone, causal: Any, name: str, rows: int, *, head: bool) -> None:
    """Raises `ValueError`, with the reason, unless the model `name`, `causal`, behaves as a backbone must. `rows`: its
    token ids; `head`: whether its own head is compared. Random numbers that others draw do not change."""
    training, kind = backbone.training, causal.config.model_type
    causal.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), _narrow(causal.config), quiet():
            _compare(backbone, causal, min(backbone.vocabulary, rows), head)
    except Differs as error:
        raise ValueError(
            f"{name} ({kind}) cannot be a backbone: {error}; families that can are in docs/fine-tuning.md"
        ) from None
    except Exception as error:  # whatever the code of an unknown family raises
        raise ValueError(
            f"{name} ({kind}) cannot be a backbone: its code does not take explicit positions, masks "
            f"and our cache ({type(error).__name__}: {str(error)[:200]}); families that can are in docs/fine-tuning.md"
        ) from None
    finally:
        backbone.train(training)
        causal.train(training)


def _compare(backbone: Backbone, causal: Any, most: int, head: bool) -> None:
    length = min(TOKENS, backbone.context)
    if head:
        tokens = torch.randint(0, most, (ROWS, length), generator=torch.Generator().manual_seed(0))
        wanted = causal(input_ids=tokens, use_cache=False).logits[..., :most]
        readout = backbone.encode(Batch.plain(tokens)).readout
        found = F.linear(readout, backbone.head_weight())[..., :most]  # as losses use it
        if relative(found, wanted) > ALLOWED[found.dtype]:
            raise Differs("its logits are not a matrix times its last hidden states")
    if length >= SHORTEST:
        leak = _first_leak(backbone, most, length, modules=False)
        if leak is not None:
            where = _first_leak(backbone, most, length, modules=True) or leak
            raise Differs(LEAKS[leak.check] + (f", first in {where.module}" if where.module else ""))


def _first_leak(backbone: Backbone, most: int, length: int, *, modules: bool) -> Result | None:
    tester = Tester(BackboneReader(backbone, most), length, computes_in=torch.get_default_dtype(), modules=modules)
    try:
        return tester.first_leak()
    finally:
        tester.close()


@contextmanager
def _narrow(config: Any) -> Iterator[None]:
    """Within this context, sliding windows are `WINDOW` wide."""
    before = getattr(config, "sliding_window", None)
    if before is not None:
        config.sliding_window = WINDOW
    try:
        yield
    finally:
        if before is not None:
            config.sliding_window = before
