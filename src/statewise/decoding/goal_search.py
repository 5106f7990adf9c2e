"""Goal-conditioned planning of the Belief State Transformer: many likely completions, ranked by a second score.

Candidates are greedy rollouts. The first starts after the prompt; each later one branches off an earlier one with
another token at some step. Branches with the highest probability relative to the greedy token come first.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from statewise.data_types import Completion
from statewise.decoding.base import Request, Search
from statewise.decoding.beam import Beam, BeamConfig, Continuations, choices, highest
from statewise.decoding.predictor import GoalScorer, Predictor, require
from statewise.runtime.bounds import bounded, unset
from statewise.runtime.progress import announced


@dataclass(frozen=True)
class GoalSearchConfig:
    """Fields of `--decoder goal_search`."""

    rollouts: int = 120
    """Candidates to find."""
    candidates_from: Literal["queue", "beam"] = "queue"
    """How to find candidates: rollouts from a priority queue, or, an ablation, a beam search of that size."""
    score: Literal["goal", "previous", "next"] | None = None
    """Score of candidates. goal: the likelihood of the goal after them. Without a goal, previous: the likelihood of
    their last tokens under the previous-token head; next: an ablation, under the next-token head. null: goal or
    previous."""
    scored_tokens: int = 50
    """Number of last tokens that `previous` and `next` score; at most the number generated."""
    tie: float = 0.01
    """Scores that differ by at most this many nats count as equal; of these, the most probable completion is best."""
    batch: int = 16
    """Candidates per batch. Affects speed and memory, not the result."""

    def __post_init__(self) -> None:
        bounded(self, "rollouts", "scored_tokens", "batch", at_least=1)
        bounded(self, "tie", at_least=0)


class Branch(NamedTuple):
    """An entry of the queue: the start of a rollout. Entries sort by priority."""

    cost: float
    """Nats lost against greedy choices: minus the logarithm of Algorithm 1's priority."""
    parent: int
    """Number of the rollout that it branches off; ties in cost go to the earlier one."""
    step: int
    """Tokens that it shares with its parent."""
    token: int
    """The next token, instead of the parent's."""
    below: float
    """Nats that this token loses."""


@dataclass(frozen=True)
class RollOut:
    """A greedy continuation, or the start of one."""

    tokens: list[int]
    log_probs: list[float]
    """Log-probability of each token."""
    alternatives: list[tuple[float, int, int]]
    """(nats below the chosen token, step, token) of other tokens, best first."""

    def branch(self, branch: Branch) -> RollOut:
        """The start of the rollout that branches off this one."""
        kept, log_prob = branch.step, self.log_probs[branch.step] - branch.below
        return RollOut([*self.tokens[:kept], branch.token], [*self.log_probs[:kept], log_prob], [])


class GoalSearch(Search):
    """Algorithm 1 of the Belief State Transformer paper, with equation 7 as the score if there is a goal, and
    otherwise equation 8. Needs a `GoalScorer`.

    With a goal, candidates have exactly `limit` tokens, or end with the request's closing symbol, and `end` is never
    generated; without one, a rollout ends when it generates `end`. All candidates are distinct: a branch differs from
    its parent and from the parent's other branches in the token at that step.
    """

    Config = GoalSearchConfig
    config: GoalSearchConfig
    only_speed = ("batch",)

    def check_backwards(self, prompted: bool) -> None:
        """Refuses options for another ranking than by the prompt or, without a prompt, by the first tokens."""
        what = "the likelihood of the prompt" if prompted else "that of their first tokens under the next-token head"
        why = f"has no use: backwards, candidates are ranked by {what}: omit"
        if self.config.score is not None and not (prompted and self.config.score == "goal"):
            raise ValueError(f"score {self.config.score} {why} `score`")
        if prompted:
            unset(self.config, "scored_tokens", reason=f"{why} it")

    @torch.no_grad()
    def search(self, predictor: Predictor, request: Request) -> list[Completion]:
        """See `Search.search`; the order is that of `ranked`. There are fewer than `rollouts` candidates if no more
        sequences exist. Raises `ValueError` if the predictor is not a `GoalScorer`, if the prompt leaves no room,
        or if the score needs a goal or cannot use one."""
        request.limits(predictor.context)  # raise first for a prompt without room
        (prompt,), goal = request.prompts, request.goal
        scorer = require(predictor, GoalScorer)
        if self.config.score == "goal" and goal is None:
            raise ValueError(
                "score goal needs a goal (statewise generate --goal): without one, score by previous or next"
            )
        if self.config.score in ("previous", "next") and goal is not None:
            raise ValueError(f"score {self.config.score} is for a search without a goal: omit `score` or `goal`")
        if goal is not None:
            unset(self.config, "scored_tokens", reason="is for a search without a goal: omit it, or the goal")
        if goal is None and self.config.score != "next" and not scorer.predicts_previous:
            raise ValueError(
                "this model was trained without previous tokens, so it cannot score by them: add `score` next"
            )
        if self.config.candidates_from == "beam":
            beam = Beam(BeamConfig(self.config.rollouts))
            candidates = beam.search(predictor, request)
        else:
            candidates = self._roll_outs(predictor, request)
        if goal is not None:
            scores = self._goal_scores(predictor, scorer, request, goal, candidates)
        else:
            scores = self._ending_scores(scorer, prompt, candidates)
        return ranked(candidates, scores, self.config.tie)

    # Candidates

    def _roll_outs(self, predictor: Predictor, request: Request) -> list[Completion]:
        """The candidates, in the order in which Algorithm 1 finds them.

        A rollout depends only on its start. So the best branches of the queue are run in advance, as a batch, and then
        used one by one in strict order, each adding its own branches before the next is used. No more branches can be
        used than rollouts remain, so the queue is a sorted list of that length.
        """
        count = self.config.rollouts
        (limit,) = request.limits(predictor.context).tolist()
        runner = Runner(Continuations(predictor, request), limit, request.stop, request.banned)
        rollouts = runner.run([RollOut([], [], [])], count)
        queue = branches(0, 0.0, rollouts[0])[: count - 1]
        ready: dict[Branch, RollOut] = {}
        while queue:
            branch = queue[0]
            if branch not in ready:
                ahead = [other for other in queue if other not in ready][: self.config.batch]
                starts = [rollouts[other.parent].branch(other) for other in ahead]
                ready |= zip(ahead, runner.run(starts, count - len(rollouts)))
            rollouts.append(ready.pop(branch))
            more = branches(len(rollouts) - 1, branch.cost, rollouts[-1])
            queue = sorted([*queue[1:], *more])[: count - len(rollouts)]
        return [request.completion(one.tokens, math.fsum(one.log_probs)) for one in rollouts]

    # Scores

    def _goal_scores(
        self, predictor: Predictor, scorer: GoalScorer, request: Request, goal: np.ndarray, candidates: list[Completion]
    ) -> list[float]:
        """Equation 7 for each candidate. The product is over the goal's tokens only, so lengths do not matter."""
        rows, scores = Continuations(predictor, request), [0.0] * len(candidates)
        for _, places in sorted(by_length(candidates).items()):  # an empty one first, at the prompt's state
            for first in range(0, len(places), self.config.batch):
                some = places[first : first + self.config.batch]
                rows.follow(torch.from_numpy(np.stack([candidates[place].tokens for place in some])))
                for place, score in zip(some, scorer.score_goal(rows.cursor, torch.from_numpy(goal)).tolist()):
                    scores[place] = score
        return scores

    def _ending_scores(self, scorer: GoalScorer, prompt: np.ndarray, candidates: list[Completion]) -> list[float]:
        """Equation 8 for each candidate, always over the same number of tokens, since a product over fewer would be
        greater: a completion with too few tokens is extended by the prompt's last ones, and if these are too few as
        well, each missing token counts as the mean of the others."""
        head: Literal["previous", "next"] = "next" if self.config.score == "next" else "previous"
        count = min(self.config.scored_tokens, max(len(completion.tokens) for completion in candidates))
        scores = [0.0] * len(candidates)
        for length, places in by_length(candidates).items():
            own = min(count, len(prompt) + length - 1)  # the very first token is not scored
            for first in range(0, len(places), self.config.batch):
                some = places[first : first + self.config.batch]
                sequences = np.stack([np.concatenate([prompt, candidates[place].tokens]) for place in some])
                totals = scorer.score_ending(torch.from_numpy(sequences), own, head)
                for place, total in zip(some, totals.tolist()):
                    scores[place] = total * (count / own)
        return scores


def ranked(candidates: Sequence[Completion], scores: Sequence[float], tie: float) -> list[Completion]:
    """The completions with their scores, best first.

    Scores at most `tie` nats below the best count as equal to it, then those at most `tie` below the best of the rest,
    and so on. Among equal ones the most probable completion comes first, then the one found first. The scores alone
    cannot decide: if the goal follows any completion, as when the prompt names it, all candidates have scores near 0,
    and their order is noise.
    """
    order = np.argsort([-score for score in scores], kind="stable").tolist()
    leader, leaders = order[0], {}
    for place in order:
        if scores[place] < scores[leader] - tie:
            leader = place
        leaders[place] = scores[leader]
    order.sort(key=lambda place: (-leaders[place], -candidates[place].log_probability, place))
    return [dataclasses.replace(candidates[place], score=scores[place]) for place in order]


def by_length(completions: Sequence[Completion]) -> dict[int, list[int]]:
    """Indices of the completions of each length."""
    lengths: dict[int, list[int]] = {}
    for place, completion in enumerate(completions):
        lengths.setdefault(len(completion.tokens), []).append(place)
    return lengths


def branches(number: int, cost: float, rollout: RollOut) -> list[Branch]:
    """The branches of rollout `number`, which has `cost` itself, in queue order."""
    return [Branch(cost + below, number, step, token, below) for below, step, token in rollout.alternatives]


@dataclass(frozen=True)
class Runner:
    """Completes rollouts from their starts, in batches."""

    rows: Continuations
    limit: int
    stop: int | None
    """The end token or the closing symbol, if any."""
    banned: int | None
    """The token that must not be generated, if any."""

    def run(self, starts: list[RollOut], count: int) -> list[RollOut]:
        """Each start, followed by greedy choices up to `stop` or the limit, with its `count` best alternatives."""
        whole = [len(start.tokens) == self.limit or start.tokens[-1:] == [self.stop] for start in starts]
        going = [start for start, is_whole in zip(starts, whole) if not is_whole]
        ran = iter(self._run(going, count) if going else ())
        return [start if is_whole else next(ran) for start, is_whole in zip(starts, whole)]

    def _run(self, starts: list[RollOut], count: int) -> list[RollOut]:
        """Runs all rows in lockstep from the end of the shortest start; longer starts are forced to their own tokens
        until they end."""
        known = torch.tensor([len(start.tokens) for start in starts])
        shortest = int(known.min())
        forced = torch.zeros(len(starts), self.limit, dtype=torch.int64)
        for row, start in enumerate(starts):
            forced[row, : len(start.tokens)] = torch.tensor(start.tokens, dtype=torch.int64)
        logits = self.rows.follow(forced[:, :shortest])
        known, forced = known.to(logits.device), forced.to(logits.device)
        ended = torch.zeros_like(known, dtype=torch.bool)
        steps: list[tuple[Tensor, Tensor, Tensor]] = []
        for step in announced(range(shortest, self.limit), "tokens", self.limit - shortest):
            log_probs = choices(logits, self.banned)
            best, greedy = log_probs.max(-1)
            free = (known <= step) & ~ended
            below = (log_probs - best[:, None]).scatter(1, greedy[:, None], -math.inf)
            token = torch.where(known <= step, greedy, forced[:, step])
            steps.append((token, best, below.masked_fill(~free[:, None], -math.inf)))
            if self.stop is not None:
                ended |= token == self.stop
                if bool(ended.all()):
                    break
            if step + 1 < self.limit:
                logits = self.rows.read(token)
        tokens, bests, belows = (torch.stack(column, 1) for column in zip(*steps))
        V, rollouts = belows.shape[2], []
        for row, start in enumerate(starts):
            first = len(start.tokens) - shortest
            own = tokens[row, first:].tolist()
            length = own.index(self.stop) + 1 if self.stop in own else len(own)
            rollouts.append(
                RollOut(
                    [*start.tokens, *own[:length]],
                    [*start.log_probs, *bests[row, first : first + length].tolist()],
                    [(-value, shortest + at // V, at % V) for value, at in highest(belows[row].flatten(), count)],
                )
            )
        return rollouts
