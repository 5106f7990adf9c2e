"""Many continuations of one prompt: the cursor that searches share, and their choice of tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from statewise.decoding.base import Request
from statewise.decoding.predictor import Predictor, start_conditioned


class Continuations:
    """A cursor after the single prompt of a request, with a row for each continuation.

    With a goal, predictions are conditioned on it; raises `ValueError` if the predictor cannot do so.
    """

    def __init__(self, predictor: Predictor, request: Request) -> None:
        self.predictor = predictor
        (prompt,) = request.prompts
        goal = None if request.goal is None else torch.from_numpy(request.goal)
        self.cursor, self.first = start_conditioned(
            predictor, torch.from_numpy(prompt)[None], goal, may_close=request.closing is not None
        )
        predictor.hold(self.cursor)  # rows rewind to the prompt at most
        self.tokens = torch.zeros(1, 0, dtype=torch.int64, device=self.first.device)
        """(B, n) tokens that each row has read after the prompt."""

    def follow(self, tokens: Tensor) -> Tensor:
        """Moves the cursor to `tokens` (B, n), one continuation per row. Returns the next token's logits (B, V).

        Each new row reuses the old row with the longest common prefix. As rows have equal length, all rewind to the
        end of the shortest of these prefixes, and read the rest in one pass.
        """
        tokens = tokens.to(self.tokens.device)
        # The last token is read again even by a row that has read it: its logits are needed.
        most = max(0, min(self.tokens.shape[1], tokens.shape[1] - 1))
        shared = (tokens[:, None, :most] == self.tokens[None, :, :most]).cumprod(-1).sum(-1)
        longest, rows = shared.max(1)
        kept = int(longest.min())
        self.predictor.rewind(self.cursor, self.tokens.shape[1] - kept)
        self.predictor.reorder(self.cursor, rows)
        self.tokens = tokens
        if tokens.shape[1] == 0:
            return self.first.expand(len(tokens), -1)
        return self.predictor.extend(self.cursor, tokens[:, kept:])[:, -1]

    def read(self, tokens: Tensor, rows: Tensor | None = None) -> Tensor:
        """Row b, first replaced by row `rows[b]` if given, reads `tokens[b]`; both (B,). Returns the next token's
        logits (B, V)."""
        tokens = tokens.to(self.tokens.device)
        if rows is not None:
            self.predictor.reorder(self.cursor, rows)
            self.tokens = self.tokens[rows.to(self.tokens.device)]
        self.tokens = torch.cat([self.tokens, tokens[:, None]], 1)
        return self.predictor.extend(self.cursor, tokens[:, None])[:, -1]


def choices(logits: Tensor, banned: int | None) -> Tensor:
    """(B, V) log-probabilities, -inf for the token `banned`. The others are not renormalised: a search only compares
    them, and a completion's log-probability should be the model's."""
    log_probs = logits.log_softmax(-1)
    if banned is not None:
        log_probs[:, banned] = -math.inf
    return log_probs


def highest(values: Tensor, count: int) -> list[tuple[float, int]]:
    """The `count` highest of `values` (n,) with their indices, highest first, ties by index.

    -inf is never among them, so there may be fewer.
    """
    # `topk` alone may return any of several equal values; the last value determines which ones qualify.
    least = values.topk(min(count, len(values))).values[-1]
    (places,) = torch.where((values >= least) & (values > -math.inf))
    pairs = zip(values[places].tolist(), places.tolist())
    return sorted(pairs, key=lambda pair: (-pair[0], pair[1]))[:count]
