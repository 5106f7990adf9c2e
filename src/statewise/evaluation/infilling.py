"""Infilling: one model fills the missing middle of sequences, another scores the result.

The protocols of the Belief State Transformer paper: models see the beginning and the end of held-out sequences (section
5.1, appendix D), or the beginning alone (section 5.2). A referee, a separate forward model, scores how well the filled
middle leads to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from statewise.data_types import Examples
from statewise.decoding.base import Decoder, Request, Search
from statewise.decoding.predictor import Predictor, closing_symbol
from statewise.evaluation.scoring import score_batch
from statewise.runtime.json_files import TEXT, Shape, check, loads, one_of
from statewise.runtime.messages import LacksCapability
from statewise.tasks.base import Infill, Infilling, Task
from statewise.tasks.batches import blocks, collate
from statewise.tasks.own_files.lines import Problems, read_lines

FILLS = "filling"
"""Title of the files that `statewise fill` writes."""
FILL: Shape = {
    **dict.fromkeys(("prompt", "completion", "goal", "original"), TEXT),
    "ended_by?": one_of("length", "model"),
}
"""A line of such a file: the fields of `Filled`."""
REPEATED = 4
"""Length of the n-grams that count as repetitions within a middle."""


@dataclass(frozen=True)
class Filled:
    """One sequence with its middle filled, as text."""

    prompt: str
    completion: str
    goal: str
    original: str
    """The true middle."""
    ended_by: Literal["length", "model"] = "length"
    """Whether the required or maximum length ended the completion, or the model by the closing symbol or end token."""


def infilling(task: Task) -> Infilling:
    """The task, if it supports infilling. Raises `ValueError` if not."""
    if not isinstance(task, Infilling):
        raise LacksCapability("infilling needs a task whose sequences have a beginning, a middle and an end", Infilling)
    return task


def gaps(task: Task, num: int | None = None, *, unconditional: bool = False) -> list[Infill]:
    """The first `num` held-out sequences that are long enough, in three parts. `unconditional`: everything after the
    beginning is missing, and the goal is empty."""
    goals = infilling(task).goals(num)
    if not unconditional:
        return goals
    return [Infill(prompt, np.concatenate([middle, goal]), goal[:0]) for prompt, middle, goal in goals]


def fill_gaps(
    predictor: Predictor,
    task: Task,
    decoder: Decoder,
    missing: Sequence[Infill],
    *,
    skip: int = 0,
    free_length: bool = False,
    limit: int | None = None,
    choose: Callable[[str, Sequence[str], str], int] | None = None,
) -> Iterator[Filled]:
    """Fills gaps, one by one, except the first `skip`.

    `choose(prompt, middles, goal)` returns the index of one of the candidates of a search, which come best first; None:
    the best. It needs a `Search`, and goals.

    A completion has exactly as many tokens as are missing. With `free_length`, or if the goal is empty, the model ends
    it with the closing symbol, or with the end token if it reads goals first or there is no goal; it has at most
    `limit` tokens (None: what the context allows). Raises `ValueError` if the model has no closing symbol, or for
    `choose` with another decoder.
    """
    for row, (prompt, middle, goal) in enumerate(missing[skip:], skip):
        read, ahead = task.with_goal(prompt, goal)
        if free_length or not len(goal):
            closing = None if ahead is None else closing_symbol(predictor)
            most = task.context if limit is None else limit
            request = Request([read], most, task.end, ahead, closing=closing, rows=[row])
        else:
            request = Request([read], len(middle), task.end, ahead, exact=True, rows=[row])
        if choose is None:
            found = decoder.decode(predictor, request)
        else:
            if not isinstance(decoder, Search):
                raise ValueError("`choose` needs a decoder that finds several candidates: goal_search or beam")
            found = decoder.search(predictor, request)
        ended = [request.end is not None and one.tokens[-1:].tolist() == [request.end] for one in found]
        middles = [task.continuation(prompt, one.tokens[: len(one.tokens) - by]) for one, by in zip(found, ended)]
        beginning, rest = task.decode(prompt), goal_text(task, missing[row])
        best = 0 if choose is None else choose(beginning, middles, rest)
        ended_by: Literal["length", "model"] = "model" if ended[best] or found[best].closed else "length"
        yield Filled(beginning, middles[best], rest, task.continuation(prompt, middle), ended_by)


def goal_text(task: Task, gap: Infill) -> str:
    """The goal of a sequence with a gap as text that follows its middle."""
    return task.continuation(np.concatenate([gap.prompt, gap.middle]), gap.goal)


@dataclass(frozen=True)
class Refereed:
    """Scores of filled sequences by a referee."""

    metrics: dict[str, float]
    left_out: list[int]
    """Indices of sequences that are too long for the referee, with the filled or the original middle; metrics omit
    them."""


def referee(predictor: Predictor, task: Task, found: Sequence[Filled]) -> Refereed:
    """Scores of filled sequences by a forward model of `task`; log-likelihoods are in nats per token, higher is better.

    `goal_nats`: log-likelihood of the goal; `join_nats`: of its first five tokens; `exact_joins`: share of sequences in
    which the goal's first token is the referee's most likely one; `middle_nats`: log-likelihood of the middle;
    `repetition`: share of 4-grams of a middle that occurred in it before; `length`: tokens of a middle. Without goals,
    the first three are omitted. The same scores of the original middles are called `original_...`. Raises `ValueError`
    without sequences, if all are too long for the referee, if only some have a goal, or if its task has models read the
    goal first.
    """
    if not found:
        raise ValueError("there is no filled sequence to score")
    if len({bool(one.goal) for one in found}) > 1:
        raise ValueError("some of the filled sequences have a goal and others have none: score them separately")
    if reads_goals_first(task):
        raise ValueError(
            "this run reads goals first, so it cannot be a referee: use one trained on sequences in plain order"
        )
    filled = [_tokens(task, one.prompt, one.completion, one.goal) for one in found]
    true = [_tokens(task, one.prompt, one.original, one.goal) for one in found]
    longest = [max(sum(map(len, three)) for three in both) for both in zip(filled, true, strict=True)]
    kept = [place for place, length in enumerate(longest) if length <= predictor.context]
    if not kept:
        raise ValueError(
            f"all {len(found)} sequences, with the filled or the original middle, have more tokens than the "
            f"referee's context of {predictor.context}: score them by a run of a longer context"
        )
    of_filled = _measure(predictor, [filled[place] for place in kept])
    of_true = _measure(predictor, [true[place] for place in kept])
    metrics = {**of_filled, **{f"original_{name}": value for name, value in of_true.items()}}
    return Refereed(metrics, [place for place, length in enumerate(longest) if length > predictor.context])


def reads_goals_first(task: Task) -> bool:
    """Whether the models of a task read the goal before the middle, so that they cannot score one after the other."""
    any_tokens = np.zeros(1, np.int64)
    return task.with_goal(any_tokens, any_tokens)[1] is None


def likeliest_before(predictor: Predictor, task: Task, prompt: str, middles: Sequence[str], goal: str) -> int:
    """The index of the middle after which a forward model of `task` finds the goal likeliest; the first of equal ones.

    Raises `ValueError` without a goal, for text that is not of `task`, or for a sequence longer than the model's
    context.
    """
    if not goal:
        raise ValueError("middles are ranked by the likelihood of what follows them, and nothing does")
    try:
        pieces = [_tokens(task, prompt, middle, goal) for middle in middles]
    except ValueError as error:
        raise ValueError(f"the model that ranks cannot read the sequences: {error}") from None
    longest = max(sum(map(len, three)) for three in pieces)
    if longest > predictor.context:
        raise ValueError(
            f"a sequence with its middle has {longest} tokens, more than the context of {predictor.context} of the "
            "model that ranks them: choose one of a longer context, or a lower `limit`"
        )
    scores = _scored(predictor, pieces)
    of_goal = np.where(scores.goal, scores.nats, 0).sum(1)
    return int(of_goal.argmin())


def _tokens(task: Task, *texts: str) -> list[np.ndarray]:
    return [task.encode(text) for text in texts]


class _Scored(NamedTuple):
    """What a forward model makes of n sequences of up to T tokens, each a prompt, a middle and a goal."""

    nats: np.ndarray
    """(n, T): the negative log-likelihood of each token."""
    first_choice: np.ndarray
    """(n, T) bool: whether the token is the most likely one."""
    starts: np.ndarray
    """(n, 2): where the middle and the goal begin."""
    middle: np.ndarray
    """(n, T) bool: the tokens of the middle."""
    goal: np.ndarray
    """(n, T) bool: the tokens of the goal."""


def _scored(predictor: Predictor, pieces: Sequence[Sequence[np.ndarray]]) -> _Scored:
    """Scores of sequences, each a prompt, a middle and a goal, 16 at a time."""
    rows = [np.concatenate(three) for three in pieces]
    lengths = np.array([len(row) for row in rows])
    starts = np.array([[len(prompt), len(prompt) + len(middle)] for prompt, middle, _ in pieces])
    examples = Examples.of(rows, starts[:, 0].tolist())
    nats, first_choice = np.zeros(examples.tokens.shape), np.zeros(examples.tokens.shape, bool)
    for some, part in blocks(examples, 16):
        batch = collate(part)
        columns = np.arange(1, batch.tokens.shape[1])
        scores = score_batch(predictor, batch, 1, batch.tokens.shape[1])
        nats[some[:, None], columns] = scores.nats
        first_choice[some[:, None], columns] = scores.choices == batch.tokens[:, 1:].numpy()
    column = np.arange(examples.tokens.shape[1])
    middle = (column >= starts[:, :1]) & (column < starts[:, 1:])
    goal = (column >= starts[:, 1:]) & (column < lengths[:, None])
    return _Scored(nats, first_choice, starts, middle, goal)


def _measure(predictor: Predictor, pieces: Sequence[Sequence[np.ndarray]]) -> dict[str, float]:
    """Metrics of sequences, each a prompt, a middle and a goal."""
    nats, first_choice, starts, middle, goal = _scored(predictor, pieces)
    column = np.arange(nats.shape[1])
    joins = goal & (column < starts[:, 1:] + 5)
    repeats = [_repeats(three[1]) for three in pieces]
    of_goal = {}
    if goal.any():
        of_goal = {
            "goal_nats": -float(nats[goal].mean()),
            "join_nats": -float(nats[joins].mean()),
            "exact_joins": float(first_choice[np.arange(len(pieces)), starts[:, 1]].mean()),
        }
    return {
        **of_goal,
        "middle_nats": -float(nats[middle].mean()) if middle.any() else float("nan"),
        "repetition": sum(again for again, _ in repeats) / max(1, sum(runs for _, runs in repeats)),
        "length": float(middle.sum(1).mean()),
    }


def _repeats(tokens: np.ndarray) -> tuple[int, int]:
    """(repeated n-grams of `REPEATED` tokens, all n-grams)."""
    runs = [tuple(tokens[start : start + REPEATED]) for start in range(len(tokens) - REPEATED + 1)]
    return len(runs) - len(set(runs)), len(runs)


def read_fills(path: Path) -> list[Filled]:
    """The lines of a file that `statewise fill` wrote. Raises `ValueError` with file and line for any other line."""
    fills, problems = [], Problems(path)
    for number, line in read_lines(path):
        try:
            row = loads(line)
            if number == 1 and isinstance(row, dict) and row.get("title") == f"statewise {FILLS}":
                continue
            one = Filled(**check(row, FILL, str(path)))
            "".join(vars(one).values()).encode()  # fails for half of a surrogate pair, which is not a character
        except (ValueError, TypeError):  # TypeError: it has further keys
            one = None
        if one is None or not one.prompt:
            problems.add(number, "not a line that `statewise fill` wrote")
        else:
            fills.append(one)
    problems.raise_if_any()
    return fills
