"""Splits states into training, validation and test by what the model has read, where a task holds out no sequences."""

from __future__ import annotations

import numpy as np

from statewise.data_types import Examples
from statewise.tasks.holding_out import hash_prefixes

TEST, VALIDATION, TRAINING = 0, 1, 2
TEST_SHARE = 0.25
"""Share of the distinct prefixes on which probes are tested."""
FEWEST = 40
"""Minimum number of distinct prefixes."""


def split_by_prefix(*hashes: np.ndarray, validation: float) -> list[np.ndarray]:
    """For each array of prefix hashes, `TEST`, `VALIDATION` or `TRAINING` of each; equal prefixes are in the same part.
    `validation`: the share of the prefixes not tested. Raises `ValueError` if there are fewer than `FEWEST`."""
    # The order of the hashes has nothing to do with the prefixes, so each part is a random choice of them.
    distinct = np.unique(np.concatenate(hashes))
    if len(distinct) < FEWEST:
        raise ValueError(
            f"the sequences have {len(distinct)} different prefixes to probe: a probe needs at least {FEWEST}, as this "
            "task holds out no sequences, so that prefixes are divided between training and test. Set --sequences and "
            "--training_sequences higher, or train on longer sequences"
        )
    tested = round(TEST_SHARE * len(distinct))
    last = tested + max(1, round(validation * (len(distinct) - tested)))
    return [np.searchsorted([tested, last], np.searchsorted(distinct, each), side="right") for each in hashes]


def prefix_hashes(examples: Examples, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """(m,) uint64: a hash of the tokens of sequence rows[i] up to position positions[i]."""
    return hash_prefixes(examples.tokens)[rows, positions]
