"""How much of the answer the model decodes from the state after the prompt alone (Belief State Transformer, theorem 2).

The prompt is not read again. A Belief State Transformer decodes from the last token to the first: its previous-token
head predicts each token from the state and the tokens after it. Next-latent prediction decodes forwards by its head and
dynamics (Teoh et al. 2026, theorem 3.2). Both condition on their own tokens. No probe is trained.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from statewise.analysis.base import Analysis, Findings, Subject
from statewise.analysis.beliefs.vectors import states_of
from statewise.data_types import Completion, Examples
from statewise.decoding.predictor import FutureReader, require
from statewise.reporting.figures import Curve, Panel
from statewise.runtime.bounds import bounded
from statewise.runtime.messages import counted, percent
from statewise.runtime.progress import announced

BLOCK = 256
"""States read at a time."""


@dataclass(frozen=True)
class AnswerFromStateConfig:
    """Options of `statewise analyze RUN answer-from-state`."""

    sequences: int = 1000
    """Held-out sequences."""
    last: int | None = None
    """Instead of the answer, decode this many last tokens of each sequence from the state before them; for sequences
    without prompts."""

    def __post_init__(self) -> None:
        bounded(self, "sequences", "last", at_least=1)


class AnswerFromState(Analysis):
    """Compares greedy decoding from one state with ordinary greedy decoding. Needs a `FutureReader`."""

    Config = AnswerFromStateConfig
    config: AnswerFromStateConfig

    def analyze(self, subject: Subject) -> Findings:
        """Metrics: `answer_accuracy`, the share of answers whose tokens are all correct, and `token_accuracy`; the same
        for ordinary decoding as `decoded_...`; `num`, the number of answers. Accuracy by position as curves."""
        reader = require(subject.snapshot.predictor, FutureReader)
        examples, notes = self._answers(subject.task.held_out(self.config.sequences))
        rows, first = np.arange(len(examples)), examples.prompt_lengths
        counts = examples.lengths - first
        states = torch.from_numpy(states_of(subject.snapshot, examples, rows, first - 1))
        read_off = np.full((len(examples), int(counts.max())), -1, np.int64)
        different = np.unique(counts).tolist()
        for count in announced(different, "lengths of answers", len(different)):
            alike = np.flatnonzero(counts == count)
            for start in range(0, len(alike), BLOCK):
                some = alike[start : start + BLOCK]
                read_off[some, :count] = reader.read_future(states[some], count).cpu().numpy()
        truth = _stacked([examples.answer(row) for row in range(len(examples))], read_off.shape[1])
        decoded = _decoded(subject.complete(examples), counts, read_off.shape[1])
        metrics, curves = {}, []
        for prefix, label, answers in (
            ("", "from the state alone", read_off),
            ("decoded_", "ordinary decoding", decoded),
        ):
            right, exists = answers == truth, truth >= 0
            places = [float(right[exists[:, place], place].mean()) for place in range(truth.shape[1])]
            metrics[f"{prefix}answer_accuracy"] = float((right | ~exists).all(1).mean())
            metrics[f"{prefix}token_accuracy"] = float(right[exists].mean())
            curves.append(Curve(label, [float(place + 1) for place in range(len(places))], places))
        metrics["num"] = len(examples)
        last = self.config.last
        what = "answers" if last is None else f"answers, the last {counted(last, 'token')} of a sequence,"
        verdict = (
            f"From the state before the answer alone, {percent(metrics['answer_accuracy'])} of {len(examples):,} "
            f"{what} are right; ordinary decoding gets {percent(metrics['decoded_answer_accuracy'])} right."
        )
        details = {"label": subject.snapshot.label, "answers_by_length": dict(zip(*_counted(counts)))}
        main = ["answer_accuracy", "token_accuracy", "decoded_answer_accuracy"]
        panel = Panel("position in the answer", "accuracy", curves, shares=True)
        return Findings(metrics, [panel], details, notes, main=main, verdict=verdict)

    def _answers(self, examples: Examples) -> tuple[Examples, list[str]]:
        """The sequences that have an answer, and notes on those left out. Raises `ValueError` if none has."""
        if examples.documents is not None:
            raise ValueError(
                "rows of this task contain several documents: answer-from-state needs one sequence per row"
            )
        if self.config.last is not None:
            examples = replace(examples, prompt_lengths=examples.lengths - self.config.last)
        usable = np.flatnonzero((examples.prompt_lengths > 0) & (examples.prompt_lengths < examples.lengths))
        if not len(usable):
            if self.config.last is None:
                raise ValueError(
                    "no held-out sequence has a prompt and an answer: give the number of last tokens with `last`"
                )
            raise ValueError(f"no held-out sequence has more than {self.config.last} tokens: choose a smaller `last`")
        left = len(examples) - len(usable)
        notes = [f"{left} of {len(examples)} sequences are left out: they have no prompt or no answer"] if left else []
        return examples[usable], notes


def _stacked(rows: list[np.ndarray], width: int) -> np.ndarray:
    """(n, width): the rows, padded with -1."""
    stacked = np.full((len(rows), width), -1, np.int64)
    for row, tokens in enumerate(rows):
        stacked[row, : len(tokens)] = tokens
    return stacked


def _decoded(completions: list[Completion], counts: np.ndarray, width: int) -> np.ndarray:
    """(n, width): the first `counts[i]` tokens of each completion."""
    return _stacked([one.tokens[:count] for one, count in zip(completions, counts.tolist())], width)


def _counted(counts: np.ndarray) -> tuple[list[str], list[int]]:
    """Each number and how often it occurs."""
    values, often = np.unique(counts, return_counts=True)
    return [str(value) for value in values.tolist()], often.tolist()
