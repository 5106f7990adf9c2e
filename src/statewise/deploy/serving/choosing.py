"""The next tokens of rows that are decoded together: drafts, and what each row chooses as its own request asks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from statewise.decoding.drafts import DraftLength, FixedLength, MeasuredLength, ModelDrafts, PromptLookup
from statewise.decoding.noise import gumbel
from statewise.decoding.predictor import Drafter, Predictor, require
from statewise.decoding.sample import Greedy, GreedyConfig, Sample, SampleConfig, StepByStep
from statewise.deploy.serving.rows import Alternatives, Row

Length = int | Literal["auto"]
Source = Literal["model", "prompt_lookup"]

NGRAM = 3
"""Last tokens that prompt lookup compares, at most."""


class Chosen(NamedTuple):
    """The choices of B rows at n places each."""

    tokens: np.ndarray
    """(B, n) tokens."""
    close: np.ndarray
    """(B, n) bool: rounding may have decided (`StepByStep.close`)."""
    log_probabilities: np.ndarray
    """(B, n) under the model; not finite if the model's output is not."""
    alternatives: list[list[Alternatives]]
    """Likely tokens by row and place; empty for rows that want none."""

    def at(self, row: int, place: int) -> tuple[int, float, Alternatives]:
        """The choice of a row at a place, as the arguments of `Row.add`."""
        gained = float(self.log_probabilities[row, place])
        return int(self.tokens[row, place]), gained, self.alternatives[row][place]


class Choices:
    """The choices of rows at their next places: the tokens of `greedy` or `sample`, for each row by its own seed and
    settings. Drafts and checks share the noise of a place. Rows that have ended choose the most likely tokens."""

    def __init__(self, rows: Sequence[Row], vocabulary: int, *, ahead: int = 0) -> None:
        """`vocabulary`: V; `ahead`: places that may be drafted."""
        self.rows, self.vocabulary, self.ahead = rows, vocabulary, ahead
        self.first = np.array([row.position for row in rows], np.int64)
        alike: defaultdict[SampleConfig | None, list[int]] = defaultdict(list)
        for place, row in enumerate(rows):
            alike[None if row.ended else row.decoding.sampling].append(place)
        self.alike: list[tuple[StepByStep, list[int]]] = [
            (Greedy(GreedyConfig()) if config is None else Sample(config), places) for config, places in alike.items()
        ]
        """The ways to choose, each with the rows that choose so."""
        self._noise: dict[StepByStep, np.ndarray] = {}
        self._banned = [(place, row.request.banned) for place, row in enumerate(rows) if row.request.banned is not None]

    def check(self, logits: Tensor, error: float = 0.0) -> Chosen:
        """Chooses by the model's logits (B, n, V), or (B, n, V + 1) with a closing symbol, of the first n places, which
        are changed in place. `error`: how much rounding may change a logit."""
        self._hide_closing(logits)
        if logits.shape[1] == 1 and self._is_plain and logits.device.type == "cpu":
            return self._check_plain(logits[:, 0].numpy(), error)
        totals = logits.logsumexp(-1)  # with the tokens that must not be chosen: log-probabilities are the model's
        self._ban(logits)
        B, n, _ = logits.shape
        tokens, close = torch.zeros(B, n, dtype=torch.int64), torch.zeros(B, n, dtype=torch.bool)
        for plain, places in self.alike:
            some = logits if len(places) == B else logits[places]
            some, noise = some.reshape(len(places) * n, -1), self._noise_of(plain, places, n, logits.shape[-1])
            noise = None if noise is None else noise.reshape(some.shape)
            chosen = plain.choose(some, noise)
            tokens[places] = chosen.view(-1, n).cpu()
            if error:
                close[places] = plain.close(some, noise, chosen, error).view(-1, n).cpu()
        gained = logits.gather(2, tokens[..., None].to(logits.device))[..., 0] - totals
        wanted = any(row.decoding.alternatives for row in self.rows)
        shown = logits - totals[..., None] if wanted else logits
        likely = alternatives(shown.flatten(0, 1), [row for row in self.rows for _ in range(n)])
        return Chosen(
            tokens.numpy(),
            close.numpy(),
            gained.cpu().double().numpy(),
            [likely[start : start + n] for start in range(0, B * n, n)],
        )

    @property
    def _is_plain(self) -> bool:
        """Whether all rows choose the most likely token and want no others."""
        return all(not plain.draws for plain, _ in self.alike) and not any(
            row.decoding.alternatives for row in self.rows
        )

    def _check_plain(self, logits: np.ndarray, error: float) -> Chosen:
        """`check` of one place (B, V) if `_is_plain`: calls of NumPy cost less than PyTorch's."""
        most = logits.max(1)
        with np.errstate(invalid="ignore"):  # of a model that fails
            totals = most + np.log(np.exp(logits - most[:, None]).sum(1))
        for place, banned in self._banned:
            logits[place, banned] = -np.inf
        tokens = logits.argmax(1)
        best = logits[np.arange(len(logits)), tokens]
        close = np.zeros(len(logits), bool)
        if error:
            close = np.count_nonzero(logits >= (best - 2 * error)[:, None], axis=1) > 1
        gained = (best - totals).astype(np.float64)
        return Chosen(tokens[:, None], close[:, None], gained[:, None], [[[]] for _ in logits])

    def draft(self, logits: Tensor, place: int, among: Tensor | None = None) -> Tensor:
        """See `drafts.Choose`; `among` must be None."""
        assert among is None
        logits = logits[:, None].clone()
        self._hide_closing(logits)
        self._ban(logits)
        tokens = torch.zeros(len(logits), dtype=torch.int64)
        for plain, places in self.alike:
            noise = self._noise_of(plain, places, self.ahead + 1, self.vocabulary)
            noise = None if noise is None else noise[:, place, : logits.shape[-1]]
            tokens[places] = plain.choose(logits[places, 0], noise).cpu()
        return tokens

    def _noise_of(self, plain: StepByStep, places: list[int], count: int, width: int) -> np.ndarray | None:
        """(b, count, width) noise of the first places of some rows; None if they choose without noise."""
        if not plain.draws:
            return None
        known = self._noise.get(plain)
        if known is None or known.shape[1] < count or known.shape[2] < width:
            every = max(count, self.ahead + 1)  # at once, for one call costs more than a place
            after = self.first[places][:, None] + np.arange(every)
            rows = [self.rows[place] for place in places for _ in range(every)]
            numbers = np.array([row.number for row in rows])
            noise = gumbel([row.decoding.seed for row in rows], numbers, after.reshape(-1), width)
            self._noise[plain] = known = noise.reshape(len(places), every, width)
        return known[:, :count, :width]

    def _hide_closing(self, logits: Tensor) -> None:
        """Hides the closing symbol from rows whose requests have none."""
        if logits.shape[-1] > self.vocabulary:
            places = [place for place, row in enumerate(self.rows) if row.request.closing is None]
            logits[places, :, self.vocabulary] = -torch.inf

    def _ban(self, logits: Tensor) -> None:
        if self._banned:
            places, tokens = zip(*self._banned)
            logits[list(places), :, list(tokens)] = -torch.inf


def alternatives(log_probabilities: Tensor, rows: Sequence[Row]) -> list[Alternatives]:
    """The likeliest tokens of each row by its `log_probabilities` (B, V), as many as it wants, but none that it cannot
    choose (-inf)."""
    wanted = [row.decoding.alternatives or 0 for row in rows]
    if not any(wanted):
        return [[] for _ in rows]
    best, places = log_probabilities.topk(min(max(wanted), log_probabilities.shape[1]))
    return [
        [(token, value) for token, value in zip(row_tokens[:count], row_best[:count]) if value > -math.inf]
        for row_tokens, row_best, count in zip(places.tolist(), best.tolist(), wanted)
    ]


class Drafting:
    """Drafts tokens for the rows of one model, which a pass then checks (`decoding.speculative`)."""

    def __init__(self, predictor: Predictor, length: Length, source: Source, part: int) -> None:
        """`length`: tokens drafted at a time, at most; `auto`: as many as are measured to be fastest for the number of
        rows, perhaps none. Then a pass reads at most `part` tokens, so that no row waits long. Raises `LacksCapability`
        if the model itself shall draft and cannot, and `ValueError` if a draft cannot fit its context."""
        self.model = ModelDrafts(require(predictor, Drafter)) if source == "model" else None
        self.length, self.longest, self.part = length, predictor.context - 1, part
        if length != "auto" and length > self.longest:
            raise ValueError(
                f"a draft of {length} tokens does not fit the context of {predictor.context}: set `draft` to at most "
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
            continuations = [self._lookup(row).continuation(0, int(count)) for row, count in zip(rows, most)]
            counts = np.array([len(tokens) for tokens in continuations], np.int64)
            drafted = np.zeros((len(rows), int(counts.max(initial=0))), np.int64)
            for own, tokens in zip(drafted, continuations):
                own[: len(tokens)] = tokens
            return drafted, counts
        made = self.model.draft(cursor, list(range(len(rows))), torch.from_numpy(pending), most.tolist(), choices.draft)
        return made.tokens[:, 1:].cpu().numpy(), np.array(made.counts)

    def _lookup(self, row: Row) -> PromptLookup:
        """A lookup with all tokens that a row has read or will read next."""
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
