"""Packing several sequences into a row, to reduce padding."""

from __future__ import annotations

import numpy as np

from statewise.data_types import Examples


def pack(examples: Examples, row: int) -> Examples:
    """Packs sequences in order into rows of `row` tokens, without cutting any; each becomes a document.

    All must have prompts of the same length, and none may be longer than a row.
    """
    lengths = examples.lengths
    assert len(np.unique(examples.prompt_lengths)) == 1
    assert lengths.max() <= row
    ends = np.cumsum(lengths)
    firsts = [0]  # the first sequence of each row
    while firsts[-1] < len(examples):
        start = ends[firsts[-1]] - lengths[firsts[-1]]
        firsts.append(int(np.searchsorted(ends, start + row, side="right")))
    opens = np.array(firsts[:-1])
    which = np.repeat(np.arange(len(opens)), np.diff(firsts))
    starts = ends - lengths - (ends - lengths)[opens][which]
    tokens, documents = np.zeros((2, len(opens), row), np.int64)
    sequence, position = np.nonzero(np.arange(examples.tokens.shape[1]) < lengths[:, None])
    at = which[sequence], starts[sequence] + position
    tokens[at] = examples.tokens[sequence, position]
    documents[at] = sequence - opens[which[sequence]] + 1
    filled = np.bincount(which, weights=lengths).astype(np.int64)
    prompts = examples.prompt_lengths[opens]
    return Examples(tokens, filled, prompts, np.maximum.accumulate(documents, axis=1))
