"""The probability that a trained sequence model gives to whole actions, whatever its objective and backbone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from statewise.analysis.base import Subject
from statewise.decoding.base import Request
from statewise.decoding.predictor import Predictor
from statewise.model.model import Model
from statewise.strips import ActionPredictor, Domain
from statewise.tasks.base import RunningText
from statewise.tasks.batches import rows_at_once
from statewise.tasks.own_files.sequences import Sequences
from statewise.tasks.strips_traces import StripsTraces

ROWS = 256
"""The most rows that are read at once."""
BEGINNINGS = 256
"""The number of sequences of the task whose first actions begin walks."""


class SequencePredictor(ActionPredictor):
    """The model of a run, asked within `Model.asking`, or the subject of an analysis, with its predictor.

    `actions` are names as the task's text writes them, by default all symbols of the task but its end symbol. An action
    of several tokens has the product of their probabilities. Walks begin with the first actions of the task's
    sequences, since a model does not predict the first token. Raises `ValueError` for a task of text without `actions`,
    for fewer than two of them, for an action that the task cannot encode or whose tokens begin those of another, if the
    tokens of an action depend on those before it, and if no sequence of the task begins with one of the actions.
    """

    def __init__(self, model: Model | Subject, predictor: Predictor, actions: Sequence[str] | None = None) -> None:
        self.model, self.predictor = model, predictor
        task = model.task
        self._names = tuple(self._symbols() if actions is None else actions)
        if len(self._names) < 2 or len(set(self._names)) < len(self._names):
            raise ValueError("give at least two actions, with different names")
        self.pieces = [tuple(task.encode(name).tolist()) for name in self._names]
        self._check()
        widest = max(map(len, self.pieces))
        self._longest = (min(predictor.context, task.context) - widest) // widest
        self._beginnings = self._first_actions()

    @property
    def actions(self) -> tuple[str, ...]:
        """The names of all actions."""
        return self._names

    @property
    def longest(self) -> int:
        """The most actions of a prefix that can be asked about."""
        return self._longest

    @property
    def truth(self) -> Domain | None:
        """The true domain, if the task knows it and has these actions."""
        task = self.model.task
        known = isinstance(task, StripsTraces) and set(self._names) == set(task.model.names)
        return task.domain if isinstance(task, StripsTraces) and known else None

    def begin(self, rng: np.random.Generator, count: int) -> list[tuple[int, ...]]:
        """One first action for each of `count` walks, as often as sequences of the task begin with it."""
        return [(int(at),) for at in rng.choice(self._beginnings, count)]

    @torch.no_grad()
    def log_probabilities(self, prefixes: Sequence[tuple[int, ...]]) -> np.ndarray:
        """(n, A) float64: log-probability that each of the A actions follows each of the n prefixes."""
        totals = np.zeros((len(prefixes), len(self._names)))
        rows = [[token for action in each for token in self.pieces[action]] for each in prefixes]
        # The beginnings of actions, each with the actions that continue it and their next tokens.
        beginnings: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for action, piece in enumerate(self.pieces):
            for at, token in enumerate(piece):
                beginnings.setdefault(piece[:at], []).append((action, token))
        for begun, continued in beginnings.items():
            logs = self._next([[*row, *begun] for row in rows], [token for _, token in continued])
            totals[:, [action for action, _ in continued]] += logs
        return totals

    def _next(self, rows: Sequence[Sequence[int]], tokens: Sequence[int]) -> np.ndarray:
        """(n, k): log-probability of each of the k tokens after each row."""
        found = []
        size = rows_at_once(self.predictor.context, self.predictor.vocabulary, ROWS)
        for first in range(0, len(rows), size):
            prompts, lengths = Request([np.array(row) for row in rows[first : first + size]], 1).padded()
            _, logits = self.predictor.start(torch.from_numpy(prompts), lengths)
            logs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
            found.append(logs[:, torch.tensor(tokens, device=logs.device)].cpu().double().numpy())
        return np.concatenate(found)

    def _symbols(self) -> list[str]:
        task = self.model.task
        if isinstance(task, RunningText):
            raise ValueError("the task of this run is text: `actions` must name the actions")
        if isinstance(task, Sequences) and task.config.gaps:
            raise ValueError("sequences with durations between events are not supported: train without --task.gaps")
        return [name for token, name in enumerate(task.vocab.symbols) if token != task.end]

    def _check(self) -> None:
        """Raises `ValueError` unless tokens of actions are those of whole sequences, and show where an action ends."""
        task = self.model.task
        order = sorted(range(len(self.pieces)), key=lambda at: self.pieces[at])
        for at in order:
            if not self.pieces[at]:
                raise ValueError(f"the action {self._names[at]!r} has no tokens")
        for one, other in pairwise(order):
            if self.pieces[other][: len(self.pieces[one])] == self.pieces[one]:
                raise ValueError(
                    f"the tokens of the action {self._names[one]!r} begin those of {self._names[other]!r}: the model "
                    "cannot show which of them it predicts"
                )
        separator = task.text_format.separator if task.text_format is not None else " "
        for first in range(0, len(order), 8):
            some = order[first : first + 8]
            try:
                whole = task.encode(separator.join(self._names[at] for at in some)).tolist()
            except ValueError:  # symbols that cannot stand side by side
                whole = None
            if whole != [token for at in some for token in self.pieces[at]]:
                raise ValueError(
                    "the tokens of an action depend on what is before it in this task: train with one symbol for "
                    "each action, as the task sequences does"
                )

    def _first_actions(self) -> np.ndarray:
        """The first actions of sequences of the task, where these are actions."""
        task, found = self.model.task, []
        rng = np.random.default_rng(0)
        for examples in (task.sample(rng, BEGINNINGS), task.held_out(BEGINNINGS)):
            for row, length in zip(examples.tokens, examples.lengths):
                begun = tuple(row[:length].tolist())
                found += [at for at, piece in enumerate(self.pieces) if begun[: len(piece)] == piece]
        if not found:
            raise ValueError("no sequence of the task of this run begins with one of the actions")
        return np.array(found)
