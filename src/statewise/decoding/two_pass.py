"""Speculative decoding as it was published for latent dynamics: without a cache, two passes per cycle.

The convention of Teoh et al. 2026 for speed-ups: the first pass over the whole text gives a token and the state from
which others are drafted, the second checks the drafts. Both read everything again. A cycle makes the accepted tokens
and two more, where `Speculative` makes one more in a single pass. For comparisons; the completions are the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from statewise.data_types import Batch
from statewise.decoding.base import Decoder, Request, Step
from statewise.decoding.drafts import ModelDrafts
from statewise.decoding.predictor import Drafter, Predictor, require
from statewise.decoding.speculative import Choices, Speculative, SpeculativeConfig, gain
from statewise.runtime.bounds import unset


class TwoPass(Decoder):
    """Drafts of the model itself, of fixed length, for one prompt at a time. With `draft` 0 it is plain decoding
    without a cache, one pass per token."""

    Config = SpeculativeConfig
    config: SpeculativeConfig

    def __init__(self, config: SpeculativeConfig) -> None:
        super().__init__(config)
        if config.draft == "auto" or config.drafter != "model":
            raise ValueError("two passes per cycle need drafts of the model itself, of a fixed length")
        unset(config, "confidence", "draft_vocabulary", reason="is not for two passes per cycle: omit it")
        self.draft = int(config.draft)
        self.plain = Speculative(config).plain

    @torch.no_grad()
    def steps(self, predictor: Predictor, request: Request) -> Iterator[Step]:
        """See `Decoder.steps`; the first pass and the second pass of a cycle are a step each. Raises `ValueError` also
        for several prompts, or a goal."""
        if len(request.prompts) != 1 or request.goal is not None:
            raise ValueError("decoding without a cache takes one prompt and no goal")
        limit = int(request.limits(predictor.context)[0])
        read = np.asarray(request.prompts[0], np.int64)
        source = ModelDrafts(require(predictor, Drafter)) if self.draft else None
        choices, made = Choices(self.plain, request, predictor.vocabulary), 0
        while True:
            cursor, first = predictor.start(torch.from_numpy(read)[None])
            choices.begin([0], [len(read)], 0, limit - made)
            chosen, gained = choices.check(first[:, None])
            made, read = made + 1, np.append(read, chosen[0])
            yield _step(chosen, gained, 1, 0, 0)
            if made == limit or chosen[0, 0] == request.stop:
                return
            most = min(self.draft, limit - made - 1)
            if source is None or most < 1:
                continue
            choices.begin([0], [len(read)], most, limit - made)
            (drafted,) = source.draft(cursor, [0], torch.from_numpy(chosen[:, 0]), [most], choices.draft).drafted()
            logits = predictor.logits(Batch.plain(torch.from_numpy(np.append(read, drafted))[None]))[:, len(read) - 1 :]
            chosen, gained = choices.check(logits)
            found = gain(chosen[0].tolist(), drafted, limit - made, request.stop)
            made, read = made + found.new, np.append(read, chosen[0, : found.new])
            yield _step(chosen, gained, found.new, *found.counts(len(drafted)))
            if found.ended:
                return


def _step(chosen: np.ndarray, gained: np.ndarray, new: int, accepted: int, offered: int) -> Step:
    return Step(chosen[:, :new], gained[:, :new], np.array([accepted]), np.array([offered]))
