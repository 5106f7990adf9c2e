"""Searches over many continuations of one prompt: their common cursor, their choice of tokens, and beam search."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from statewise.data_types import Completion
from statewise.decoding.base import Request, Search
from statewise.decoding.predictor import Predictor, start_conditioned
from statewise.runtime.bounds import bounded
from statewise.runtime.devices import in_float64
from statewise.runtime.progress import announced


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


@dataclass(frozen=True)
class BeamConfig:
    """Fields of `--decoder beam`."""

    beams: int = 120
    """Sequences kept at every step."""

    def __post_init__(self) -> None:
        bounded(self, "beams", at_least=1, at_most=100_000)


@dataclass(frozen=True)
class Path:
    """A partial or finished completion."""

    tokens: tuple[int, ...]
    log_probability: float
    row: int
    """Row of the cursor that has read all of its tokens except the last."""


class Beam(Search):
    """Keeps the `beams` most likely sequences at every step (Hu et al., Belief State Transformer, Algorithm 2).

    The score is the log-probability. A finished sequence stays in the beam while it is likely enough; as the others
    only become less likely, the search stops when all sequences in the beam are finished. With a goal, `end` is never
    generated: the completion comes before the goal, and the closing symbol finishes it.
    """

    Config = BeamConfig
    config: BeamConfig

    @torch.no_grad()
    def search(self, predictor: Predictor, request: Request) -> list[Completion]:
        """See `Search.search`. With a goal the predictor must be a `GoalScorer`."""
        (limit,) = request.limits(predictor.context).tolist()
        stop, banned = request.stop, request.banned
        rows = Continuations(predictor, request)
        logits = rows.first
        kept = live = [Path((), 0.0, 0)]
        for _ in announced(range(limit), "tokens", limit):
            log_probs = in_float64(choices(logits, banned))
            so_far = [path.log_probability for path in live]
            totals = log_probs + torch.tensor(so_far, dtype=torch.float64, device=log_probs.device)[:, None]
            V = totals.shape[1]
            grown = [
                Path((*live[place // V].tokens, place % V), total, place // V)
                for total, place in highest(totals.flatten(), self.config.beams)
            ]
            ended = [path for path in kept if path.tokens and path.tokens[-1] == stop]
            # `sorted` is stable: ties go to those that ended earlier, then to those with likelier prefixes.
            kept = sorted([*ended, *grown], key=lambda path: -path.log_probability)[: self.config.beams]
            live = [path for path in kept if path.tokens[-1] != stop]
            if not live or len(live[0].tokens) == limit:
                break
            logits = rows.read(torch.tensor([path.tokens[-1] for path in live]), torch.tensor([p.row for p in live]))
        return [request.completion(path.tokens, path.log_probability, path.log_probability) for path in kept]
