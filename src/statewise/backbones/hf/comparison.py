"""Compares what the backbone computes with what the model itself computes, when it is constructed.

The contract of a backbone says more than that of a causal language model: a linear head on the states, documents that
share a row and do not see each other, rows of different lengths in one cache. Some families do not fit it, and wrong
masks change numbers without an error. So every model is tried on random tokens before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from statewise.backbones.base import Backbone
from statewise.backbones.hf.loading import quiet
from statewise.data_types import Batch

ROWS, TOKENS = 2, 12
WINDOW = 4
"""Sliding windows are this narrow for the comparison, so that a few tokens show what they do."""
SHARE = 1e-4
"""The largest allowed difference of two results, relative to the largest number, or to 1."""


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
        causal.train(training)


def _compare(backbone: Backbone, causal: Any, most: int, head: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    length = min(TOKENS, backbone.context)
    tokens = torch.randint(0, most, (ROWS, length), generator=generator)
    batch = Batch.plain(tokens)
    hidden = backbone.encode(batch)
    if head:
        wanted = causal(input_ids=tokens, use_cache=False).logits[..., :most]
        logits = F.linear(hidden.readout, backbone.head_weight())[..., :most]  # as losses use it
        _same(logits, wanted, "its logits are not a matrix times its last hidden states")
    whole = hidden.readout
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % most
    leak = backbone.encode(Batch.plain(changed)).readout
    _same(leak[:, :-1], whole[:, :-1], "its positions see later tokens")
    if 2 * length <= backbone.context:
        row = tokens.reshape(1, -1)
        documents = torch.arange(1, ROWS + 1).repeat_interleave(length)[None]
        packed = backbone.encode(Batch.plain(row, documents)).readout
        _same(packed.view(ROWS, length, -1), whole, "documents that share a row see each other")
    if length > 4:
        _same(*_by_steps(backbone, tokens, whole), "reading step by step gives other numbers than reading at once")


def _by_steps(backbone: Backbone, tokens: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
    """Readouts from a cache whose rows go apart, back, and change places; and those of whole rows."""
    cache, length = backbone.make_cache(ROWS), tokens.shape[1]
    counts = np.array([3, length - 2])
    first = backbone.extend(tokens[:, : length - 2], cache, counts).readout
    cache.rewind(np.array([1, length - 4]))
    cache.reorder(torch.tensor([1, 0]))
    both = tokens.flip(0)[:, 2:]
    second = backbone.extend(both, cache).readout
    return torch.cat((first[0, :3], first[1, : length - 2], *second)), torch.cat(
        (whole[0, :3], whole[1, : length - 2], *whole.flip(0)[:, 2:])
    )


def _same(ours: Tensor, wanted: Tensor, otherwise: str) -> None:
    allowed = SHARE * max(1.0, float(wanted.abs().max()))
    if not float((ours - wanted).abs().max()) <= allowed:
        raise Differs(otherwise)


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
