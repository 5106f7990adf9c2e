"""Speculative decoding: several tokens are drafted at a low cost, and one pass of the model checks them all.

The checks are exact (Leviathan et al. 2023; Chen et al. 2023), and coupled: the choice of the model at every place, by
the largest logit or by noise that depends on the place alone, is what plain decoding chooses there. Drafted tokens are
accepted while they equal it, and the first that does not is replaced by it. So the completion is that of `greedy` or
`sample` whatever was drafted; the drafts change only the number of passes.

`TwoPass` is the convention of Teoh et al. 2026 for speed-ups with latent dynamics, for comparisons. Without a cache,
the first pass over the whole text gives a token and the state from which others are drafted, and the second checks the
drafts; both read everything again. A cycle makes the accepted tokens and two more, where `Speculative` makes one more
in a single pass. The completions are the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from statewise.batch import Batch
from statewise.decoding.base import Decoder, Request, Step
from statewise.decoding.drafts import (
    Draft,
    DraftLength,
    DraftSource,
    FixedLength,
    FrequentTokens,
    MeasuredLength,
    ModelDrafts,
    PromptLookup,
)
from statewise.decoding.noise import NoiseAhead
from statewise.decoding.predictor import Drafter, Predictor, require, start_conditioned
from statewise.decoding.sample import Greedy, GreedyConfig, Sample, SampleConfig, StepByStep
from statewise.runtime.bounds import bounded, unset


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
        bounded(self, "temperature", at_least=0)
        assert self.sampling
        if self.draft != "auto":
            bounded(self, "draft", at_least=0)
        bounded(self, "confidence", at_least=0, at_most=1)
        bounded(self, "ngram", "draft_vocabulary", at_least=1)
        if self.drafter == "model":
            unset(self, "ngram", reason="is for prompt lookup: omit it, or set drafter to prompt_lookup")
        else:
            why = "is for drafts of the model itself: omit it, or set drafter to model"
            unset(self, "confidence", "draft_vocabulary", reason=why)
        if self.temperature == 0:
            why = "is for sampling: omit it, or set temperature above 0"
            unset(self, "top_k", "top_p", "floor", "seed", reason=why)

    @property
    def sampling(self) -> SampleConfig:
        """The fields of `sample`, with temperature 1 if this is greedy. Raises `ValueError` for wrong values."""
        return SampleConfig(self.temperature or 1.0, self.top_k, self.top_p, self.floor, self.seed)


class Speculative(Decoder):
    """Drafts, and checks all drafted tokens in one pass. Each cycle adds the accepted tokens and one more.

    In floating-point numbers a pass over several tokens may round differently from passes over one, so where two tokens
    are almost equally good, the choice may differ from that of plain decoding.
    """

    Config = SpeculativeConfig
    only_speed = ("draft", "drafter", "confidence", "draft_vocabulary", "ngram")

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
        if self.config.draft == 0:  # any model can
            yield from self.plain.steps(predictor, request)
            return
        limits, (prompts, lengths) = request.limits(predictor.context), request.padded()
        source, length = self._source(predictor, request), self._length(predictor, len(prompts))
        goal = None if request.goal is None else torch.from_numpy(request.goal)
        cursor, first = start_conditioned(
            predictor, torch.from_numpy(prompts), goal, lengths, may_close=request.closing is not None
        )
        B, V = first.shape
        # Lists: with few rows, NumPy's operations cost more than they save.
        rows, left = list(range(B)), limits.tolist()  # in the batch, and how many tokens each may still be given
        most, stop = (lengths + limits).tolist(), request.stop
        learn = None if self.config.draft_vocabulary is None else source.learn
        drafted: list[list[int]] = [[] for _ in rows]
        logits, choices = first[:, None], Choices(self.plain, request, V)
        choices.begin(rows, lengths.tolist(), 0, max(left))
        counts: list[int] = []
        drafted_length, began = 0, 0.0
        while True:
            picked, gained = choices.check(logits, learn)
            chosen = picked.tolist()
            gains = [gain(*each, stop) for each in zip(chosen, drafted, left)]
            # A row's last token is read in the next cycle, also if it was drafted.
            back = [len(draft) + 1 - one.new for draft, one in zip(drafted, gains)]
            if any(back):
                predictor.rewind(cursor, back[0] if back.count(back[0]) == len(back) else np.array(back))
            predictor.release(cursor)
            if counts:
                length.record(drafted_length, counts, [one.accepted for one in gains], time.perf_counter() - began)
            yield _step(B, rows, picked, gained, gains, [len(draft) for draft in drafted])
            last, left = [], [count - one.new for count, one in zip(left, gains)]
            for row, tokens, one in zip(rows, chosen, gains):
                source.follow(row, tokens[: one.new])
                last.append(tokens[one.new - 1])
            if any(one.ended for one in gains):
                stay = [place for place, one in enumerate(gains) if not one.ended]
                if not stay:
                    return
                predictor.reorder(cursor, torch.tensor(stay))
                rows, left, last = ([each[place] for place in stay] for each in (rows, left, last))
            began, drafted_length = time.perf_counter(), length.next()
            counts = [min(drafted_length, count - 1) for count in left]
            places = [most[row] - count for row, count in zip(rows, left)]
            choices.begin(rows, places, max(counts), max(left))
            draft = source.draft(cursor, rows, torch.from_numpy(np.array(last)), counts, choices.draft)
            logits = _read(predictor, cursor, draft)
            drafted = draft.drafted()

    def _source(self, predictor: Predictor, request: Request) -> DraftSource:
        if self.config.drafter == "model":
            return ModelDrafts(require(predictor, Drafter), self.config.confidence, self._tokens(predictor))
        source = PromptLookup(len(request.prompts), self.config.ngram)
        for row, prompt in enumerate(request.prompts):
            source.follow(row, prompt.tolist())
        return source

    def _tokens(self, predictor: Predictor) -> FrequentTokens | None:
        """The tokens to draft from; later requests continue with what was observed."""
        if self.config.draft_vocabulary is None:
            return None
        return self._frequent.setdefault(predictor, FrequentTokens(self.config.draft_vocabulary))

    def _length(self, predictor: Predictor, rows: int) -> DraftLength:
        length, most = self.config.draft, predictor.context - 1
        if length == "auto":  # later requests continue with what was measured
            by_rows = self._measured.setdefault(predictor, {})
            return by_rows.setdefault(rows, MeasuredLength(most))
        if length > most:
            raise ValueError(
                f"a draft of {length} tokens does not fit the context of {predictor.context}: set `draft` to at most "
                f"{most}"
            )
        return FixedLength(length)


class Gain(NamedTuple):
    """The tokens that a cycle adds to a row."""

    accepted: int
    """Drafted tokens that plain decoding chooses, too; the end token may be among them."""
    new: int
    """Tokens that are added to the completion."""
    ended: bool

    def counts(self, drafted: int) -> tuple[int, int]:
        """The numbers of tokens, of `drafted` ones, that were accepted and added, and that could have been: drafts
        behind an accepted end token could not."""
        return (self.new, self.new) if self.accepted >= self.new else (self.accepted, drafted)


def gain(chosen: list[int], drafted: list[int], left: int, stop: int | None) -> Gain:
    """The gain of a row: `chosen` are the tokens of plain decoding at each place, at least one more than the `drafted`
    ones; `left`, at least as many as drafted, how many tokens the row may still get; `stop` the token that ends it."""
    accepted = 0
    while accepted < len(drafted) and drafted[accepted] == chosen[accepted]:
        accepted += 1
    new = accepted + 1
    if stop is not None and stop in chosen[:new]:
        return Gain(accepted, chosen.index(stop) + 1, True)
    return Gain(accepted, new, new == left)


class Choices:
    """What plain decoding chooses at the places of each cycle. Drafts and checks share the noise of a place."""

    def __init__(self, plain: StepByStep, request: Request, width: int) -> None:
        """`width`: the number V of logits."""
        self.plain, self.offset, self.banned = plain, request.offset, request.banned
        self._numbers = request.numbers.tolist()
        self._ahead = NoiseAhead(plain.noise, width) if plain.draws else None
        self._noise: np.ndarray | None = None  # (B, n, V) of the cycle's places

    def begin(self, rows: list[int], places: list[int], ahead: int, left: int) -> None:
        """Begins a cycle. `rows` (B,) of the request; `places` (B,): tokens before the first place; `ahead`: places
        that may be drafted; `left`: places that are left in all, at most."""
        if self._ahead is not None:
            numbers, positions = [self._numbers[row] for row in rows], [self.offset + place for place in places]
            self._noise = self._ahead.at(numbers, positions, ahead + 1, left)

    def allowed(self, logits: Tensor) -> Tensor:
        """The logits (..., V) without the token that must not be generated."""
        if self.banned is None:
            return logits
        return logits.index_fill(-1, torch.tensor(self.banned, device=logits.device), -torch.inf)

    def check(self, logits: Tensor, learn: Callable[[Tensor], None] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The tokens chosen at the first n places by the model's logits (B, n, V), (B, n), and their log-probabilities,
        (B, n). `learn` receives all log-probabilities (`DraftSource.learn`), -inf for a
        token that must not be generated."""
        B, n, V = logits.shape
        flat = logits.reshape(B * n, V)
        tokens = self.plain.choose(
            self.allowed(flat), None if self._noise is None else self._noise[:, :n].reshape(B * n, V)
        )
        log_probabilities = flat.log_softmax(-1)
        if learn is not None:
            learn(self.allowed(log_probabilities).view(B, n, V))
        gained = log_probabilities.gather(1, tokens.to(flat.device).unsqueeze(1))
        return tokens.cpu().numpy().reshape(B, n), gained.cpu().double().numpy().reshape(B, n)

    def draft(self, logits: Tensor, place: int, among: Tensor | None = None) -> Tensor:
        """(B,) the tokens chosen from `logits` at place `place` of the draft, as `drafts.Choose` asks."""
        if among is None:
            noise = None if self._noise is None else self._noise[:, place, : logits.shape[1]]
            return self.plain.choose(self.allowed(logits), noise)
        column = self.plain.choose(logits, None if self._noise is None else self._noise[:, place, among.numpy()])
        return among.to(column.device)[column]


def _read(predictor: Predictor, cursor: Any, draft: Draft) -> Tensor:
    """Reads the pending tokens and the drafts after them. Returns the logits after each, (B, m + 1, V)."""
    longest = draft.tokens.shape[1]
    if longest > 1:  # models that keep only a window must keep what may be rejected
        predictor.hold(cursor)
    uneven = min(draft.counts) + 1 < longest
    return predictor.extend(cursor, draft.tokens, np.array(draft.counts) + 1 if uneven else None)


def _step(
    B: int, rows: list[int], chosen: np.ndarray, gained: np.ndarray, gains: list[Gain], offered: list[int]
) -> Step:
    """The gains of the `rows` (b,) of a batch of B, from the tokens `chosen` (b, m), as a step."""
    new = [one.new for one in gains]
    n = max(new)
    some, scores = chosen[:, :n], gained[:, :n]
    if min(new) < n:
        kept = np.arange(n) < np.array(new)[:, None]
        some, scores = np.where(kept, some, -1), np.where(kept, scores, 0.0)
    counts = np.array([one.counts(count) for one, count in zip(gains, offered)]).T
    if len(rows) == B:
        return Step(some, scores, *counts)
    tokens, all_scores, all_counts = np.full((B, n), -1, np.int64), np.zeros((B, n)), np.zeros((2, B), np.int64)
    tokens[rows], all_scores[rows], all_counts[:, rows] = some, scores, counts
    return Step(tokens, all_scores, *all_counts)


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
            yield _single_row_step(chosen, gained, 1, 0, 0)
            if made == limit or chosen[0, 0] == request.stop:
                return
            most = min(self.draft, limit - made - 1)
            if source is None or most < 1:
                continue
            choices.begin([0], [len(read)], most, limit - made)
            (drafted,) = source.draft(cursor, [0], torch.from_numpy(chosen[:, 0]), [most], choices.draft).drafted()
            logits = predictor.logits(Batch.plain(torch.from_numpy(np.append(read, drafted))[None]))[:, len(read) - 1 :]
            chosen, gained = choices.check(logits)
            gained_tokens = gain(chosen[0].tolist(), drafted, limit - made, request.stop)
            made, read = made + gained_tokens.new, np.append(read, chosen[0, : gained_tokens.new])
            yield _single_row_step(chosen, gained, gained_tokens.new, *gained_tokens.counts(len(drafted)))
            if gained_tokens.ended:
                return


def _single_row_step(chosen: np.ndarray, gained: np.ndarray, new: int, accepted: int, offered: int) -> Step:
    return Step(chosen[:, :new], gained[:, :new], np.array([accepted]), np.array([offered]))
