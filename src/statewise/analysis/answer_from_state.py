"""How much of the answer the state after the prompt tells by itself (Belief State Transformer, theorem 2).

The model reads the answer off one state without looking at the prompt again: a Belief State Transformer from the last
token to the first, each by the previous-token head from the state and the tokens behind it; next-latent prediction from
the first to the last, head and dynamics taking turns (Teoh et al. 2026, theorem 3.2). Both go on from their own tokens.
No probe is trained, so what is found is what the model itself makes of the state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from statewise.analysis.base import Analysis, Findings, Subject
from statewise.analysis.beliefs import states_of
from statewise.bounds import bounded
from statewise.decoding.predictor import future_reader
from statewise.figures import Curve, Panel
from statewise.types import Completion, Examples

BLOCK = 256
"""States read at a time."""


@dataclass(frozen=True)
class AnswerFromStateConfig:
    """Options of `statewise analyze RUN answer-from-state`."""

    sequences: int = 1000
    """Held-out sequences."""
    last: int | None = None
    """Read the last so many tokens of each sequence, off the state before them, in place of the answer; for sequences
    without prompts."""

    def __post_init__(self) -> None:
        bounded(self, "sequences", "last", at_least=1)


class AnswerFromState(Analysis):
    """Greedy reading of whole answers, beside the greedy decoding that reads on. Needs a `FutureReader`."""

    Config = AnswerFromStateConfig
    config: AnswerFromStateConfig

    def analyze(self, subject: Subject) -> Findings:
        """Metrics: `answer_accuracy`, the share of answers that are right as a whole, and `token_accuracy`; the same of
        decoding that reads on as `decoded_...`; `num`, the answers. Accuracy by the token's place as curves."""
        reader = future_reader(subject.snapshot.predictor)
        examples, notes = self._answers(subject.task.held_out(self.config.sequences))
        rows, first = np.arange(len(examples)), examples.prompt_lengths
        counts = examples.lengths - first
        states = torch.from_numpy(states_of(subject.snapshot, examples, rows, first - 1))
        told = np.full((len(examples), int(counts.max())), -1, np.int64)
        for count in np.unique(counts).tolist():
            alike = np.flatnonzero(counts == count)
            for start in range(0, len(alike), BLOCK):
                some = alike[start : start + BLOCK]
                told[some, :count] = reader.read_future(states[some], count).cpu().numpy()
        truth = _stacked([examples.answer(row) for row in range(len(examples))], told.shape[1])
        decoded = _decoded(subject.complete(examples), counts, told.shape[1])
        metrics, curves = {}, []
        for prefix, label, given in (("", "read off the state", told), ("decoded_", "decoded, reading on", decoded)):
            right, exists = given == truth, truth >= 0
            places = [float(right[exists[:, place], place].mean()) for place in range(truth.shape[1])]
            metrics[f"{prefix}answer_accuracy"] = float((right | ~exists).all(1).mean())
            metrics[f"{prefix}token_accuracy"] = float(right[exists].mean())
            curves.append(Curve(label, [float(place + 1) for place in range(len(places))], places))
        metrics["num"] = len(examples)
        details = {"label": subject.snapshot.label, "answers_by_length": dict(zip(*_counted(counts)))}
        return Findings(metrics, [Panel("token of the answer", "accuracy", curves, shares=True)], details, notes,
                        main=["answer_accuracy", "token_accuracy", "decoded_answer_accuracy"])  # fmt: skip

    def _answers(self, examples: Examples) -> tuple[Examples, list[str]]:
        """The sequences that have an answer, and what was left out. Raises `ValueError` if none has."""
        if examples.documents is not None:
            raise ValueError("rows of this task hold several documents: answer-from-state needs one sequence a row")
        if self.config.last is not None:
            examples = replace(examples, prompt_lengths=examples.lengths - self.config.last)
        usable = np.flatnonzero((examples.prompt_lengths > 0) & (examples.prompt_lengths < examples.lengths))
        if not len(usable):
            if self.config.last is None:
                raise ValueError(
                    "no held-out sequence has a prompt and an answer: choose how many last tokens by --last"
                )
            raise ValueError(f"no held-out sequence has more than {self.config.last} tokens: choose fewer by --last")
        left = len(examples) - len(usable)
        notes = [f"left out: {left} of {len(examples)} sequences, without a prompt or an answer"] if left else []
        return examples[usable], notes


def _stacked(rows: list[np.ndarray], width: int) -> np.ndarray:
    """(n, width): the rows, -1 behind them."""
    found = np.full((len(rows), width), -1, np.int64)
    for row, tokens in enumerate(rows):
        found[row, : len(tokens)] = tokens
    return found


def _decoded(completions: list[Completion], counts: np.ndarray, width: int) -> np.ndarray:
    """(n, width): the first `counts[i]` tokens of each completion."""
    return _stacked([one.tokens[:count] for one, count in zip(completions, counts.tolist())], width)


def _counted(counts: np.ndarray) -> tuple[list[str], list[int]]:
    """Each number and how often it occurs."""
    values, often = np.unique(counts, return_counts=True)
    return [str(value) for value in values.tolist()], often.tolist()
