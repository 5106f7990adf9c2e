"""Belief vectors at chosen positions of many sequences: what probes read and what `embed` writes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from statewise.analysis.base import Model
from statewise.data import blocks, collate
from statewise.decoding.base import Predictor, suffix_encoder
from statewise.types import Batch, Examples

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 64
"""Sequences read at a time."""

Positions = Literal["last", "prompt", "all"]
Side = Literal["prefix", "suffix"]


@dataclass(frozen=True)
class Beliefs:
    """Belief vectors of n sequences."""

    vectors: np.ndarray
    """(m, D) float32, sequence by sequence."""
    offsets: np.ndarray
    """(n + 1,) int64: rows offsets[i] to offsets[i + 1] of `vectors` are those of sequence i."""


def beliefs(predictor: Predictor, examples: Examples, positions: Positions = "last", of: Side = "prefix") -> Beliefs:
    """Belief vectors of `examples`: of their prefixes, or of their suffixes where the model has such.

    `last`: one a sequence, of the whole of it: the prefix that ends, the suffix that begins with it. `prompt`: one a
    sequence, where its prompt ends: of the prompt, or of the answer behind it. `all`: at every position, of the
    prefix that ends or the suffix that begins there. Raises `ValueError` if a prompt or an answer is missing, or the
    model has no suffix beliefs.
    """
    lengths, prompts, n = examples.lengths, examples.prompt_lengths, len(examples)
    rows, offsets = np.arange(n), np.arange(n + 1)
    if positions == "all":
        rows = np.repeat(rows, lengths)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(len(rows)) - offsets[rows]
    elif positions == "last":
        places = lengths - 1 if of == "prefix" else np.zeros_like(lengths)
    else:
        missing = np.flatnonzero(prompts == 0 if of == "prefix" else prompts >= lengths)
        if len(missing):
            what = "no prompt" if of == "prefix" else "nothing behind its prompt"
            raise ValueError(f"sequence {missing[0] + 1} has {what}: choose the positions last or all")
        places = prompts - 1 if of == "prefix" else prompts
    if of == "prefix":
        return Beliefs(prefix_states(predictor, examples, rows, places), offsets)
    return Beliefs(_gather(suffix_encoder(predictor).suffix_states, examples, rows, places), offsets)


def states_of(model: Model, examples: Examples, rows: np.ndarray, places: np.ndarray) -> np.ndarray:
    """`prefix_states` of a model, remembered: for the same weights and examples they are computed once.

    Raises `ValueError` if they are not finite.
    """
    key = hashlib.sha256()
    columns = [examples.tokens, examples.lengths, examples.prompt_lengths, rows, places]
    for column in columns if examples.documents is None else [*columns, examples.documents]:
        key.update(f"{column.shape}".encode() + np.ascontiguousarray(column, np.int64).tobytes())
    states = model.remember(key.hexdigest(), lambda: prefix_states(model.predictor, examples, rows, places))
    if not np.isfinite(states).all():
        raise ValueError(f"the states of the model at {model.label} are not finite numbers")
    return states


def prefix_states(predictor: Predictor, examples: Examples, rows: np.ndarray, places: np.ndarray) -> np.ndarray:
    """(m, D) float32: the state after position places[i] of sequence rows[i].

    Sequences are cut behind the last position that is read: what comes later would only cost time.
    """
    chosen, where = np.unique(rows, return_inverse=True)
    ends = np.zeros(len(chosen), np.int64)
    np.maximum.at(ends, where, places + 1)
    documents = None if examples.documents is None else examples.documents[chosen]
    cut = Examples(examples.tokens[chosen], ends, np.minimum(examples.prompt_lengths[chosen], ends), documents)
    return _gather(lambda batch: predictor.states(batch).state, cut, where, places)


@torch.no_grad()
def _gather(states: Callable[[Batch], Tensor], examples: Examples, rows: np.ndarray, places: np.ndarray) -> np.ndarray:
    """(m, D) float32: what `states` gives, (B, T, D), at position places[i] of sequence rows[i]."""
    found = np.empty((len(rows), 0), np.float32)
    by_row = np.argsort(rows, kind="stable")
    starts = np.searchsorted(rows[by_row], np.arange(len(examples) + 1))
    for members, part in blocks(examples, BLOCK):
        state = states(collate(part))
        here = np.concatenate([by_row[starts[row] : starts[row + 1]] for row in members])
        line = np.repeat(np.arange(len(members)), starts[members + 1] - starts[members])
        indices = (torch.from_numpy(index).to(state.device) for index in (line, places[here]))
        picked = state[tuple(indices)].float().cpu().numpy()
        if not found.shape[1]:
            found = np.empty((len(rows), picked.shape[1]), np.float32)
        found[here] = picked
    return found
