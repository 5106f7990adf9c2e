"""Speculative decoding: several tokens are drafted at a low cost, and one pass of the model checks them all.

The checks are exact (Leviathan et al. 2023; Chen et al. 2023), and coupled: the model's own choice at every place, by
the largest logit or by noise that depends on the place alone, is what plain decoding chooses there. Drafted tokens are
accepted while they equal it, and the first that does not is replaced by it. So the completion is that of `greedy` or
`sample` whatever was drafted; the drafts change only the number of passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from statewise.bounds import bounded
from statewise.decoding.base import Decoder, Request, Step
from statewise.decoding.draft_length import DraftLength, FixedLength, MeasuredLength
from statewise.decoding.drafts import Draft, DraftSource, FrequentTokens, ModelDrafts, PromptLookup
from statewise.decoding.predictor import Predictor, drafter, start_towards
from statewise.decoding.sample import Greedy, GreedyConfig, Sample, SampleConfig, StepByStep


@dataclass(frozen=True)
class SpeculativeConfig(SampleConfig):
    """Fields of `--decoder speculative`; those of `sample` mean the same."""

    temperature: float = 0.0
    """Divides the logits. 0: greedy, the most likely token at every step."""
    draft: int | Literal["auto"] = 4
    """Tokens drafted in each cycle, at most; 0: none. `auto`: the number that is measured to be fastest, also none."""
    drafter: Literal["model", "prompt_lookup"] = "model"
    """What drafts: the model itself, if it can guess several tokens ahead, or for any model `prompt_lookup`: what
    followed the last tokens when they occurred before."""
    confidence: float = 0.0
    """A model's draft ends before the product of its tokens' probabilities falls below this. 0: it never does."""
    draft_vocabulary: int | None = None
    """Drafts are chosen from this many tokens, those of the highest mean probability in the text so far, so that the
    vocabulary head costs less; null: from all. The model's own drafts only."""
    ngram: int = 3
    """Prompt lookup compares at most this many last tokens."""

    def __post_init__(self) -> None:
        assert self.sampling
        if self.draft != "auto":
            bounded(self, "draft", at_least=0)
        bounded(self, "confidence", at_least=0, at_most=1)
        bounded(self, "ngram", "draft_vocabulary", at_least=1)
        if self.draft_vocabulary is not None and self.drafter != "model":
            raise ValueError("draft_vocabulary is for drafts of the model itself: omit it, or set drafter to model")

    @property
    def sampling(self) -> SampleConfig:
        """The fields of `sample`; of temperature 1 if this is greedy. Raises `ValueError` for wrong values."""
        return SampleConfig(self.temperature or 1.0, self.top_k, self.top_p, self.floor, self.seed)


class Speculative(Decoder):
    """Drafts, and checks all drafted tokens in one pass. Each cycle adds the accepted tokens and one more.

    In floating-point numbers a pass over several tokens may round differently from passes over one, so where two tokens
    are almost equally good, the choice may differ from that of plain decoding.
    """

    Config = SpeculativeConfig

    def __init__(self, config: SpeculativeConfig) -> None:
        self.config = config
        self.plain: StepByStep = Sample(config.sampling) if config.temperature else Greedy(GreedyConfig())
        """The decoder whose completions these are."""
        self._measured: WeakKeyDictionary[Predictor, dict[int, MeasuredLength]] = WeakKeyDictionary()
        self._frequent: WeakKeyDictionary[Predictor, FrequentTokens] = WeakKeyDictionary()

    @torch.no_grad()
    def steps(self, predictor: Predictor, request: Request) -> Iterator[Step]:
        """See `Decoder.steps`; each but the first is a cycle. With a goal the predictor must be a `GoalScorer`. Raises
        `ValueError` if the model cannot draft, or if a draft cannot fit the context. Rows that have ended leave the
        batch."""
        limits, (prompts, lengths) = request.limits(predictor.context), request.padded()
        source, length = self._source(predictor, request), self._length(predictor, len(prompts))
        goal = None if request.goal is None else torch.from_numpy(request.goal)
        cursor, first = start_towards(
            predictor, torch.from_numpy(prompts), goal, lengths, may_close=request.closing is not None
        )
        B, V = first.shape
        rows, left = np.arange(B), limits  # in the batch, and how many tokens each may still be given
        logits, draft = first[:, None], Draft(torch.zeros(B, 0, dtype=torch.int64), np.zeros(B, np.int64))
        choices = Choices(self.plain, request, rows, lengths, V)
        whole, asked, began = False, 0, 0.0
        while True:
            chosen, gained = choices.check(logits, source.learn)
            accepted = accepted_drafts(chosen, draft)
            new = accepted + 1
            ended = new == left
            if request.stop is not None and (stops := chosen == request.stop).any():
                stops &= np.arange(chosen.shape[1]) < new[:, None]
                new = np.where(stops.any(1), stops.argmax(1) + 1, new)
                ended |= stops.any(1)
            # A row's last token is read in the next cycle, also if it was drafted.
            if (back := draft.counts + 1 - new).any():
                predictor.rewind(cursor, back)
            predictor.release(cursor)
            if whole:
                length.record(asked, accepted, time.perf_counter() - began)
            yield _step(B, rows, chosen, gained, new, np.minimum(accepted, new), draft.counts)
            for row, tokens, count in zip(rows.tolist(), chosen.tolist(), new.tolist()):
                source.follow(row, tokens[:count])
            left, pending = left - new, chosen[np.arange(len(rows)), new - 1]
            if ended.any():
                stay = np.flatnonzero(~ended)
                if not len(stay):
                    return
                predictor.reorder(cursor, torch.from_numpy(stay))
                rows, left, pending = rows[stay], left[stay], pending[stay]
            began, asked = time.perf_counter(), length.next()
            most = np.minimum(asked, left - 1)
            whole = bool((most == asked).all())
            places = lengths[rows] + limits[rows] - left
            choices = Choices(self.plain, request, rows, places, V, int(most.max()))
            draft = source.draft(cursor, rows, pending, most, choices.draft)
            logits = _read(predictor, cursor, pending, draft)

    def _source(self, predictor: Predictor, request: Request) -> DraftSource:
        if self.config.drafter == "model":
            return ModelDrafts(drafter(predictor), self.config.confidence, self._tokens(predictor))
        source = PromptLookup(len(request.prompts), self.config.ngram)
        for row, prompt in enumerate(request.prompts):
            source.follow(row, prompt.tolist())
        return source

    def _tokens(self, predictor: Predictor) -> FrequentTokens | None:
        """The tokens to draft from; further requests go on with what was observed."""
        if self.config.draft_vocabulary is None:
            return None
        return self._frequent.setdefault(predictor, FrequentTokens(self.config.draft_vocabulary))

    def _length(self, predictor: Predictor, rows: int) -> DraftLength:
        length, most = self.config.draft, predictor.context - 1
        if length == "auto":  # further requests go on with what was measured
            by_rows = self._measured.setdefault(predictor, {})
            return by_rows.setdefault(rows, MeasuredLength(most))
        if length > most:
            raise ValueError(
                f"a draft of {length} tokens does not fit the context of {predictor.context}: set --draft to at most "
                f"{most}"
            )
        return FixedLength(length)


class Choices:
    """What plain decoding chooses at the places of a cycle. Drafts and checks share the noise of a place."""

    def __init__(
        self, plain: StepByStep, request: Request, rows: np.ndarray, places: np.ndarray, width: int, ahead: int = 0
    ) -> None:
        """`rows` (B,) of the request; `places` (B,): tokens before the first place; `width`: V; `ahead`: places that
        may be drafted."""
        self.plain, self.banned, self.width, self.ahead = plain, request.banned, width, ahead
        self.numbers, self.first = request.numbers[rows], request.offset + places
        self._noise: Tensor | None = None

    def allowed(self, logits: Tensor) -> Tensor:
        """The logits (..., V) without the token that must not be generated."""
        if self.banned is None:
            return logits
        return logits.index_fill(-1, torch.tensor(self.banned, device=logits.device), -torch.inf)

    def noise(self, count: int) -> Tensor | None:
        """(B, n, V) of the first n >= `count` places, or None: see `StepByStep.noise`. Computed at once, for one call
        costs more than a place."""
        if self._noise is None or self._noise.shape[1] < count:
            places = (self.first[:, None] + np.arange(count)).reshape(-1)
            found = self.plain.noise(self.numbers.repeat(count), places, self.width)
            self._noise = None if found is None else found.view(len(self.numbers), count, self.width)
        return self._noise

    def check(self, logits: Tensor, learn: Callable[[Tensor], None] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """From the model's logits (B, n, V) of the first n places: the tokens chosen, (B, n), and their
        log-probabilities, (B, n). `learn` is told the distribution of the first place (`DraftSource.learn`)."""
        logits = self.allowed(logits)
        tokens = self.choose(logits)
        log_probabilities = logits.log_softmax(-1)
        if learn is not None:
            learn(log_probabilities[:, 0])
        gained = log_probabilities.gather(2, tokens[..., None].to(logits.device))[..., 0]
        return tokens.cpu().numpy(), gained.double().cpu().numpy()

    def choose(self, logits: Tensor) -> Tensor:
        """From allowed logits (B, n, V) of the first n places to the tokens, (B, n)."""
        B, n, V = logits.shape
        noise = self.noise(n)
        together = None if noise is None else noise[:, :n].reshape(B * n, V)
        return self.plain.choose(logits.reshape(B * n, V), together).view(B, n)

    def draft(self, logits: Tensor, place: int, among: Tensor | None = None) -> Tensor:
        """See `drafts.Choose`."""
        noise = self.noise(self.ahead + 1)
        noise = None if noise is None else noise[:, place]
        if among is None:
            return self.plain.choose(self.allowed(logits), None if noise is None else noise[:, : logits.shape[1]])
        column = self.plain.choose(logits, None if noise is None else noise[:, among])
        return among.to(column.device)[column]


def accepted_drafts(chosen: np.ndarray, draft: Draft) -> np.ndarray:
    """(B,): the leading tokens of each draft that are those `chosen` (B, m + 1)."""
    same = draft.tokens.cpu().numpy() == chosen[:, :-1]
    return np.minimum(np.logical_and.accumulate(same, axis=1).sum(1), draft.counts)


def _read(predictor: Predictor, cursor: Any, pending: np.ndarray, draft: Draft) -> Tensor:
    """Reads the pending tokens (B,) and the drafts after them. Returns the logits after each, (B, m + 1, V)."""
    tokens = torch.cat((torch.from_numpy(pending)[:, None].to(draft.tokens.device), draft.tokens), dim=1)
    uneven = (draft.counts + 1 < tokens.shape[1]).any()
    if tokens.shape[1] > 1:  # models that keep only a window must keep what may be rejected
        predictor.hold(cursor)
    return predictor.extend(cursor, tokens, draft.counts + 1 if uneven else None)


def _step(
    B: int, rows: np.ndarray, chosen: np.ndarray, gained: np.ndarray, new: np.ndarray, accepted: np.ndarray,
    offered: np.ndarray,
) -> Step:  # fmt: skip
    """The first `new[b]` of the tokens `chosen` (b, m) for the `rows` (b,) of a batch of B, as a step."""
    n = int(new.max())
    some, gains = chosen[:, :n], gained[:, :n]
    if (new < n).any():
        kept = np.arange(n) < new[:, None]
        some, gains = np.where(kept, some, -1), np.where(kept, gains, 0.0)
    if len(rows) == B:
        return Step(some, gains, accepted, offered)
    tokens, scores, counts = np.full((B, n), -1, np.int64), np.zeros((B, n)), np.zeros((2, B), np.int64)
    tokens[rows], scores[rows], counts[:, rows] = some, gains, (accepted, offered)
    return Step(tokens, scores, *counts)
