"""One prompt, many continuations: the cursor that searches share, and how they choose among tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from statewise.decoding.base import Request
from statewise.decoding.predictor import Predictor, goal_scorer


class Continuations:
    """A cursor behind the one prompt of a request, with a row for each continuation that is being read.

    With a goal its predictions are made towards it; raises `ValueError` if the predictor cannot.
    """

    def __init__(self, predictor: Predictor, request: Request) -> None:
        self.predictor = predictor
        (prompt,) = request.prompts
        prompts = torch.from_numpy(prompt)[None]
        if request.goal is None:
            self.cursor, self.first = predictor.start(prompts)
        else:
            self.cursor, self.first = goal_scorer(predictor).start_with_goal(prompts, torch.from_numpy(request.goal))
        predictor.hold(self.cursor)  # rows go back as far as to the prompt
        self.tokens = torch.zeros(1, 0, dtype=torch.int64, device=self.first.device)
        """(B, n) what each row has read behind the prompt."""

    def follow(self, tokens: Tensor) -> Tensor:
        """Makes its rows those that have read `tokens` (B, n). Returns the next token's logits (B, V).

        A row takes over from the one there that begins like it for longest; as rows are of one length, all go back to
        where the shortest such beginning ends, and read on from there in one go.
        """
        tokens = tokens.to(self.tokens.device)
        # Whoever has read it all already must still read the last token once more: its logits are wanted.
        most = max(0, min(self.tokens.shape[1], tokens.shape[1] - 1))
        alike = (tokens[:, None, :most] == self.tokens[None, :, :most]).cumprod(-1).sum(-1)
        longest, rows = alike.max(1)
        kept = int(longest.min())
        self.predictor.rewind(self.cursor, self.tokens.shape[1] - kept)
        self.predictor.reorder(self.cursor, rows)
        self.tokens = tokens
        if tokens.shape[1] == 0:
            return self.first.expand(len(tokens), -1)
        return self.predictor.extend(self.cursor, tokens[:, kept:])[:, -1]

    def read(self, tokens: Tensor, rows: Tensor | None = None) -> Tensor:
        """Row b, or row `rows[b]` in its place, reads `tokens[b]`; both (B,). Returns the logits (B, V) after it."""
        tokens = tokens.to(self.tokens.device)
        if rows is not None:
            self.predictor.reorder(self.cursor, rows)
            self.tokens = self.tokens[rows.to(self.tokens.device)]
        self.tokens = torch.cat([self.tokens, tokens[:, None]], 1)
        return self.predictor.extend(self.cursor, tokens[:, None])[:, -1]


def choices(logits: Tensor, banned: int | None) -> Tensor:
    """(B, V) log-probabilities, -inf for the token `banned`. The others keep theirs: a search compares them among
    each other, and a completion's log-probability is to be the model's."""
    log_probs = logits.log_softmax(-1)
    if banned is not None:
        log_probs[:, banned] = -math.inf
    return log_probs


def highest(values: Tensor, count: int) -> list[tuple[float, int]]:
    """The `count` highest of `values` (n,) and their places, highest first and the first of equals first.

    -inf, what is impossible, is never among them, so there may be fewer.
    """
    # `topk` alone may return any of several equals; the value of the last one says which these are.
    least = values.topk(min(count, len(values))).values[-1]
    (places,) = torch.where((values >= least) & (values > -math.inf))
    pairs = zip(values[places].tolist(), places.tolist())
    return sorted(pairs, key=lambda pair: (-pair[0], pair[1]))[:count]
