"""Sequences whose middle is missing: filled by one model, and looked over by another.

The protocol of the Belief State Transformer paper (appendix D): of held-out sequences the beginning and the end are
given. What models put between is judged by how likely a referee, a forward model of its own, finds what follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from statewise.data import blocks, collate
from statewise.decoding.base import Decoder, Predictor
from statewise.tasks.base import Infilling, Task
from statewise.types import Examples

REPEATED = 4
"""A repetition is so many tokens in a row that stood in the same middle before."""


@dataclass(frozen=True)
class Filled:
    """One sequence with its middle filled, as text."""

    prompt: str
    completion: str
    goal: str
    original: str
    """What stood between prompt and goal."""


def infilling(task: Task) -> Infilling:
    """The task, if its sequences can be given without their middle. Raises `ValueError` if not."""
    if not isinstance(task, Infilling):
        raise ValueError(
            "this task has no sequences with a beginning and an end to fill between: of the tasks, stories"
        )
    return task


def fill_middles(predictor: Predictor, task: Task, decoder: Decoder, num: int, skip: int = 0) -> Iterator[Filled]:
    """Fills the middles of the first `num` held-out sequences, but for the first `skip`, one by one.

    Every middle gets exactly as many tokens as the original: searches prefer short ones, and endings are compared here.
    """
    for prompt, middle, goal in infilling(task).goals(num)[skip:]:
        read, ahead = task.towards(prompt, goal)
        (told,) = decoder.decode(predictor, read[None], limit=len(middle), end=task.end, goal=ahead, exact=True)
        yield Filled(*map(task.decode, (prompt, told.tokens, goal, middle)))


def referee(predictor: Predictor, task: Task, found: Sequence[Filled]) -> dict[str, float]:
    """How a forward model of `task` finds filled sequences; nats are natural logarithms, higher is better.

    `goal_nats`: log-likelihood of the goal's tokens, a token; `join_nats`: of its first five; `exact_joins`: share of
    sequences in which the goal's first token is the referee's first choice; `middle_nats`: log-likelihood of the
    middle, a token; `repetition`: share of the middles' runs of four tokens that stood in the same middle before;
    `length`: tokens of a middle.
    Those of the original middles as `original_...`. Raises `ValueError` if there is no sequence, if one is too long for
    the referee, or if its task lets models read the goal first.
    """
    if not found:
        raise ValueError("there is no filled sequence to look over")
    if task.towards(task.encode(found[0].prompt), task.encode(found[0].goal))[1] is None:
        raise ValueError(
            "this run reads goals first, so it cannot be a referee: take one that was trained on plain order"
        )
    told = _measure(predictor, task, [(one.prompt, one.completion, one.goal) for one in found])
    true = _measure(predictor, task, [(one.prompt, one.original, one.goal) for one in found])
    return {**told, **{f"original_{name}": value for name, value in true.items()}}


def _measure(predictor: Predictor, task: Task, texts: Iterable[tuple[str, str, str]]) -> dict[str, float]:
    pieces = [[task.encode(text) for text in three] for three in texts]
    rows = [np.concatenate(three) for three in pieces]
    lengths = np.array([len(row) for row in rows])
    starts = np.array([[len(prompt), len(prompt) + len(middle)] for prompt, middle, _ in pieces])
    if lengths.max() > predictor.context:
        place = int(lengths.argmax())
        raise ValueError(
            f"sequence {place + 1} has {lengths[place]} tokens, the referee's context is {predictor.context}"
        )
    examples = Examples.of(rows, starts[:, 0].tolist())
    log_probs, first_choice = np.zeros(examples.tokens.shape), np.zeros(examples.tokens.shape, bool)
    for some, part in blocks(examples, 16):
        batch = collate(part)
        logits = predictor.logits(batch)[:, :-1].float().cpu()
        targets = batch.tokens[:, 1:]
        width = 1 + targets.shape[1]
        gathered = logits.log_softmax(-1).gather(-1, targets[:, :, None])[:, :, 0]
        log_probs[some[:, None], np.arange(1, width)] = gathered.numpy()
        first_choice[some[:, None], np.arange(1, width)] = (logits.argmax(-1) == targets).numpy()
    column = np.arange(examples.tokens.shape[1])
    middle = (column >= starts[:, :1]) & (column < starts[:, 1:])
    goal = (column >= starts[:, 1:]) & (column < lengths[:, None])
    joins = goal & (column < starts[:, 1:] + 5)
    repeats = [_repeats(three[1]) for three in pieces]
    return {
        "goal_nats": float(log_probs[goal].mean()),
        "join_nats": float(log_probs[joins].mean()),
        "exact_joins": float(first_choice[np.arange(len(rows)), starts[:, 1]].mean()),
        "middle_nats": float(log_probs[middle].mean()) if middle.any() else float("nan"),
        "repetition": sum(again for again, _ in repeats) / max(1, sum(runs for _, runs in repeats)),
        "length": float(middle.sum(1).mean()),
    }


def _repeats(tokens: np.ndarray) -> tuple[int, int]:
    """(runs of `REPEATED` tokens that stood there before, all runs)."""
    runs = [tuple(tokens[place : place + REPEATED]) for place in range(len(tokens) - REPEATED + 1)]
    return len(runs) - len(set(runs)), len(runs)
