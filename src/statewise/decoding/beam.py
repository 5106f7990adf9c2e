"""Beam search: likely completions, found by extending the most likely partial ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from statewise.data_types import Completion
from statewise.decoding.base import Request, Search
from statewise.decoding.continuations import Continuations, choices, highest
from statewise.decoding.predictor import Predictor
from statewise.runtime.bounds import bounded
from statewise.runtime.devices import in_float64
from statewise.runtime.progress import announced


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

    def __init__(self, config: BeamConfig) -> None:
        self.config = config

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
