"""Drafts for rows that are decoded together: where they come from, and how many pay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch

from statewise.decoding.draft_length import DraftLength, FixedLength, MeasuredLength
from statewise.decoding.drafts import ModelDrafts, PromptLookup
from statewise.decoding.predictor import Drafter, Predictor, require
from statewise.deploy.serving.choosing import Choices
from statewise.deploy.serving.rows import Row

Length = int | Literal["auto"]
Source = Literal["model", "prompt_lookup"]

NGRAM = 3
"""Last tokens that prompt lookup compares, at most."""


class Drafting:
    """Drafts tokens for the rows of one model, which a pass then checks (`decoding.speculative`)."""

    def __init__(self, predictor: Predictor, length: Length, source: Source, part: int) -> None:
        """`length`: tokens drafted at a time, at most; `auto`: as many as are measured to be fastest for the number of
        rows, perhaps none. Then a pass reads at most `part` tokens, so that no row waits long. Raises `LacksPower` if
        the model itself shall draft and cannot, and `ValueError` if a draft cannot fit its context."""
        self.model = ModelDrafts(require(predictor, Drafter)) if source == "model" else None
        self.length, self.longest, self.part = length, predictor.context - 1, part
        if length != "auto" and length > self.longest:
            raise ValueError(
                f"a draft of {length} tokens does not fit the context of {predictor.context}: set --draft to at most "
                f"{self.longest}"
            )
        self._measured: dict[int, MeasuredLength] = {}
        self._lookups: WeakKeyDictionary[Row, PromptLookup] = WeakKeyDictionary()

    def length_of(self, rows: int) -> DraftLength:
        """How many tokens to draft where so many rows run."""
        if self.length != "auto":
            return FixedLength(self.length)
        longest = max(0, min(self.longest, self.part // rows - 1))
        return self._measured.setdefault(rows, MeasuredLength(longest))

    def draft(
        self, cursor: Any, rows: Sequence[Row], pending: np.ndarray, most: np.ndarray, choices: Choices
    ) -> tuple[np.ndarray, np.ndarray]:
        """(B, m) tokens that may follow the token `pending[b]` of each row, which follows what the cursor has read,
        and (B,) how many of them are drafted, at most `most[b]`."""
        if self.model is None:
            found = [self._lookup(row).continuation(0, int(count)) for row, count in zip(rows, most)]
            counts = np.array([len(tokens) for tokens in found], np.int64)
            drafted = np.zeros((len(rows), int(counts.max(initial=0))), np.int64)
            for own, tokens in zip(drafted, found):
                own[: len(tokens)] = tokens
            return drafted, counts
        made = self.model.draft(cursor, list(range(len(rows))), torch.from_numpy(pending), most.tolist(), choices.draft)
        return made.tokens[:, 1:].cpu().numpy(), np.array(made.counts)

    def _lookup(self, row: Row) -> PromptLookup:
        """What a row has read and will read next."""
        lookup = self._lookups.setdefault(row, PromptLookup(1, NGRAM))
        known = len(lookup.read[0])
        if not known:
            lookup.follow(0, row.read.tolist())
            known = len(row.read)
        lookup.follow(0, row.tokens[known - len(row.read) :])
        return lookup


def may_draft(predictor: Predictor, source: Source) -> bool:
    """Whether a model can draft from this source."""
    return source == "prompt_lookup" or isinstance(predictor, Drafter)
