"""The loss of every token, as JSON lines: one for each sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from statewise.data_types import Examples
from statewise.tasks.base import RunningText, Task


def token_losses(task: Task, examples: Examples, nats: np.ndarray, scored: np.ndarray) -> Iterator[dict[str, Any]]:
    """The line of each sequence, in order: its number from 0, its `nats` in all and the number of tokens
    that are `scored`, its `tokens` as text, and `nats_by_token`, null where a token is not scored. Where several
    documents share a row, a sequence is a row, and `documents` has the number of each token's document within it.

    `nats` (n, T) float64, `scored` (n, T) bool: as `evaluation.evaluate` passes them to `losses`.
    """
    spelled = isinstance(task, RunningText)  # a tokenizer's symbols are not the text that they stand for
    texts = {
        token: task.decode([token]) if spelled else task.vocab.symbols[token]
        for token in np.unique(examples.tokens).tolist()
    }
    for row, length in enumerate(examples.lengths.tolist()):
        counted, losses = scored[row, :length], nats[row, :length]
        tokens = examples.tokens[row, :length].tolist()
        documents = None if examples.documents is None else examples.documents[row, :length].tolist()
        yield {
            "sequence": row,
            "nats": float(losses[counted].sum()),
            "scored": int(counted.sum()),
            "tokens": [texts[token] for token in tokens],
            "nats_by_token": [loss if counts else None for loss, counts in zip(losses.tolist(), counted.tolist())],
            **({} if documents is None else {"documents": documents}),
        }
