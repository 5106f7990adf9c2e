"""Rows of one model that are decoded together. Rows join and leave between steps (continuous batching; Yu et al. 2022).
Where tokens are drafted, rows gain different numbers of them in a step, and each continues from its own.

Prompts are read in parts, one between two steps, so that running rows wait for a bounded number of tokens. Several
prompts are read in one pass where they fit a part.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from statewise.decoding.drafts import FixedLength
from statewise.decoding.predictor import GoalScorer, Predictor
from statewise.deploy.serving.choosing import Choices, Drafting, alternatives
from statewise.deploy.serving.refusals import Refusal
from statewise.deploy.serving.rows import Alternatives, Row, ShownToken


@dataclass
class Reading:
    """Prompts that are being read."""

    rows: list[list[Row]]
    """For each of P prompts, the rows that begin with it."""
    tokens: Tensor
    """(P, T) right-padded."""
    counts: np.ndarray
    """(P,) number of tokens of each prompt."""
    cursor: Any = None
    logits: Tensor | None = None
    """(P, V) logits after the last token read of each prompt."""
    read: int = 0
    """Number of columns of `tokens` that were read."""
    scores: list[list[ShownToken]] = field(default_factory=list)
    """Scores of the tokens read of each prompt, if they are wanted."""

    @property
    def all(self) -> list[Row]:
        """All rows of these prompts."""
        return [row for rows in self.rows for row in rows]

    @property
    def first(self) -> Row:
        """The first row; all rows have the same goal and want the same scores."""
        return self.rows[0][0]


@dataclass
class BatchCounts:
    """Counts of a batch since they were last collected."""

    alone: int = 0
    """Number of choices made by a pass over one row alone."""
    drafted: int = 0
    """Number of drafted tokens."""
    accepted: int = 0
    """Number of drafted tokens that were chosen."""


class ContinuousBatch:
    """The rows of one model. All methods but `waiting.append` belong to one thread."""

    def __init__(
        self, predictor: Predictor, *, most: int, part: int, error: float = 0.0, drafting: Drafting | None = None
    ) -> None:
        """`most`: rows that are decoded together; `part`: tokens of prompts that are read at a time. `error`: how much
        logits may differ by rounding from those of the row alone; a choice that may depend on it is made alone.
        `drafting`: drafts for steps; None: each gives one token."""
        self.predictor, self.most, self.part, self.error, self.drafting = predictor, most, part, error, drafting
        self.waiting: deque[Row] = deque()
        """Rows whose prompt was not begun, in the order of their requests."""
        self.reading: Reading | None = None
        self.rows: list[Row] = []
        """Rows of the cursor; those that ended are removed when that is worth a copy of the cache."""
        self.counts = BatchCounts()
        self._cursor: Any = None
        self._pending = np.zeros(0, np.int64)  # (B,) tokens that were chosen and not read
        self._read = np.zeros(0, np.int64)  # (B,) tokens that each row has read

    @property
    def live(self) -> int:
        """The number of running rows."""
        return sum(not row.ended for row in self.rows)

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.waiting or self.reading or self.rows)

    # Prompts

    def read_prompts(self) -> list[Row]:
        """Reads the next part of the admitted prompts; rows whose prompt is complete get their first token and join.
        Returns those."""
        reading = self.reading
        if reading is None:
            return []
        if all(row.ended for row in reading.all):
            self.reading = None
            return []
        self._read_part(reading)
        if reading.read < reading.tokens.shape[1]:
            return []
        self.reading = None
        return self._begin(reading)

    def drop_reading(self) -> None:
        """Gives up the prompts that are being read."""
        self.reading = None

    def admit(self) -> list[Row]:
        """Takes the rows that are to be read next from those that wait, first come, first served, if none is being read
        and places are free. Returns them. The caller sees to it that `waiting` is not changed meanwhile."""
        if self.reading is None:
            self.reading = self._next_reading()
            return [] if self.reading is None else self.reading.all
        return []

    def _next_reading(self) -> Reading | None:
        free, groups, longest = self.most - self.live, list[list[Row]](), 0
        while free and self.waiting:
            row = self.waiting[0]
            if row.ended:
                self.waiting.popleft()
                continue
            first = groups[0][0] if groups else row
            if groups and row.read is groups[-1][0].read and row.request.goal is first.request.goal:
                groups[-1].append(row)
            elif not groups or self._fits(row, first, len(groups) + 1, max(longest, len(row.read))):
                groups.append([row])
                longest = max(longest, len(row.read))
            else:
                break
            self.waiting.popleft()
            free -= 1
        if not groups:
            return None
        tokens, counts = groups[0][0].request.padded()
        if len(groups) > 1:
            counts = np.array([len(rows[0].read) for rows in groups], np.int64)
            tokens = np.zeros((len(groups), longest), np.int64)
            for place, rows in enumerate(groups):
                tokens[place, : counts[place]] = rows[0].read
        return Reading(groups, torch.from_numpy(tokens), counts, scores=[[] for _ in groups])

    def _fits(self, row: Row, first: Row, prompts: int, longest: int) -> bool:
        """Whether a row's prompt can be read beside that of `first`, `prompts` in all."""
        alike = row.decoding.scores_prompts == first.decoding.scores_prompts
        return alike and row.request.goal is None and first.request.goal is None and prompts * longest <= self.part

    def _read_part(self, reading: Reading) -> None:
        tokens, begin = reading.tokens, reading.read
        size = self.part if self.predictor.reads_answers else tokens.shape[1]
        if reading.cursor is None:
            end = 1 if reading.first.decoding.scores_prompts else size
            part = tokens[:, :end]
            reading.cursor, reading.logits = self._start(part, reading)
            reading.read = min(end, tokens.shape[1])
            if reading.first.decoding.scores_prompts:
                for scores, token in zip(reading.scores, part[:, 0].tolist() if part.shape[1] else ()):
                    scores.append(ShownToken(token, None, []))
            return
        part = tokens[:, begin : begin + max(1, size // len(tokens))]
        counts = np.clip(reading.counts - begin, 0, part.shape[1])
        logits = self.predictor.extend(reading.cursor, part, None if (counts == part.shape[1]).all() else counts)
        assert reading.logits is not None
        before = torch.cat([reading.logits[:, None], logits], 1)
        if reading.first.decoding.scores_prompts:
            self._score(reading, part, counts, before[:, :-1])
        reading.logits = before[torch.arange(len(counts)), torch.from_numpy(counts)]
        reading.read = begin + part.shape[1]

    def _start(self, part: Tensor, reading: Reading) -> tuple[Any, Tensor]:
        """A cursor that has read the first columns of the prompts. Models that can condition on a goal get one for
        every row, perhaps an empty one, so that all rows can be joined."""
        counts = np.minimum(reading.counts, part.shape[1])
        if not isinstance(self.predictor, GoalScorer):
            return self.predictor.start(part, counts)
        goal = reading.first.request.goal
        tokens = torch.from_numpy(np.zeros(0, np.int64) if goal is None else goal)
        if self.predictor.closing is None:
            return self.predictor.start_with_goal(part, tokens, counts)
        return self.predictor.start_with_goal(part, tokens, counts, may_close=True)

    def _score(self, reading: Reading, part: Tensor, counts: np.ndarray, logits: Tensor) -> None:
        """Notes the log-probabilities of `part` (P, n) under the logits before each token, (P, n, V)."""
        shown = logits[..., : self.predictor.vocabulary].log_softmax(-1)
        gained = shown.gather(2, part[..., None].to(shown.device))[..., 0].tolist()
        for place, (rows, count) in enumerate(zip(reading.rows, counts.tolist())):
            likely = alternatives(shown[place, :count], [rows[0]] * count)
            reading.scores[place] += map(ShownToken, part[place, :count].tolist(), gained[place][:count], likely)

    def _begin(self, reading: Reading) -> list[Row]:
        """Chooses the first tokens of rows whose prompts were read, and joins those that go on."""
        for rows, scores in zip(reading.rows, reading.scores):
            for row in rows:
                if row.decoding.scores_prompts:
                    row.score_prompt(scores)
                if row.limit == 0:
                    row.finish_without_tokens()
        all_rows, prompts = reading.all, np.repeat(np.arange(len(reading.rows)), [len(rows) for rows in reading.rows])
        wanted = [place for place, row in enumerate(all_rows) if not row.ended]
        rows = [all_rows[place] for place in wanted]
        if rows:
            assert reading.logits is not None
            logits = reading.logits[torch.from_numpy(prompts[wanted])][:, None]
            self._choose(logits, rows, Choices(rows, self.predictor.vocabulary), [()] * len(rows))
        unfinished = [place for place, row in zip(wanted, rows) if not row.ended]
        if unfinished:
            chosen = prompts[unfinished]
            if not np.array_equal(chosen, np.arange(len(reading.rows))):
                self.predictor.reorder(reading.cursor, torch.from_numpy(chosen))
            self._join(reading.cursor, [all_rows[place] for place in unfinished], reading.counts[chosen])
        return all_rows

    def _join(self, cursor: Any, rows: list[Row], read: np.ndarray) -> None:
        self._leave(most_ended=0.0)
        pending = np.array([row.tokens[-1] for row in rows], np.int64)
        if self._cursor is None:
            self._cursor, self.rows, self._pending, self._read = cursor, rows, pending, read.copy()
            return
        self.predictor.join(self._cursor, cursor)
        self.rows = [*self.rows, *rows]
        self._pending = np.concatenate([self._pending, pending])
        self._read = np.concatenate([self._read, read])

    # Steps

    def step(self) -> list[Row]:
        """One token for every running row, and drafted ones that are what it chooses. Returns the running rows."""
        self._leave(most_ended=0.25)
        if not self.rows:
            return []
        if len(self.rows) == 1 and self.drafting is None:
            return self._step_alone()
        live, began = np.array([not row.ended for row in self.rows]), time.perf_counter()
        running = [row for row, runs in zip(self.rows, live) if runs]
        length = FixedLength(0) if self.drafting is None or not running else self.drafting.length_of(len(running))
        draft_length = length.next()
        most = np.array([0 if row.ended else min(draft_length, row.limit - len(row.tokens) - 1) for row in self.rows])
        choices = Choices(self.rows, self.predictor.vocabulary, ahead=int(most.max()))
        drafted, counts = np.zeros((len(self.rows), 0), np.int64), np.zeros(len(self.rows), np.int64)
        if self.drafting is not None and most.any():
            drafted, counts = self.drafting.draft(self._cursor, self.rows, self._pending, most, choices)
        logits, read = self._read_drafts(drafted, counts, live)
        tokens = drafted.tolist()
        gained, accepted = self._choose(logits, self.rows, choices, [row[:count] for row, count in zip(tokens, counts)])
        back = np.where(gained > 0, read - gained, 0)  # a client may have left during the pass: its row got none
        if back.any():
            self.predictor.rewind(self._cursor, back)
        self.predictor.release(self._cursor)
        self._read = self._read + read - back
        self._pending = np.array([row.tokens[-1] for row in self.rows], np.int64)
        self.counts.drafted += int(counts[live].sum())
        self.counts.accepted += int(accepted.sum())
        length.record(draft_length, most[live].tolist(), accepted[live].tolist(), time.perf_counter() - began)
        return running

    def _step_alone(self) -> list[Row]:
        """`step` for a single row without drafts, where bookkeeping counts."""
        logits = self.predictor.extend(self._cursor, torch.from_numpy(self._pending[:, None]))
        self._read = self._read + 1
        self._choose(logits, self.rows, Choices(self.rows, self.predictor.vocabulary), [()])
        self._pending = np.array([self.rows[0].tokens[-1]], np.int64)
        return self.rows

    def _read_drafts(self, drafted: np.ndarray, counts: np.ndarray, live: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """Reads the pending tokens and `counts[b]` of the `drafted` ones (B, m) of each row. Returns the logits after
        each, (B, 1 + m, V), and how many were read, (B,)."""
        tokens = torch.from_numpy(np.concatenate([self._pending[:, None], drafted], 1))
        if drafted.shape[1]:  # models that keep only a window must keep what may be rejected
            self.predictor.hold(self._cursor)
            read = np.where(live, counts + 1, 0)
        else:  # Rows that have ended keep reading while they fit: a pass is faster if all rows read the same number.
            read = (live | (self._read < self.predictor.context)).astype(np.int64)
        return self.predictor.extend(self._cursor, tokens, None if (read == tokens.shape[1]).all() else read), read

    def drop_running(self) -> None:
        """Gives up the running rows."""
        self.rows, self._cursor = [], None

    def _leave(self, most_ended: float) -> None:
        """Removes rows that have ended if they are more than this share of all."""
        stay = [place for place, row in enumerate(self.rows) if not row.ended]
        if not stay:
            self.rows, self._cursor = [], None
        elif len(self.rows) - len(stay) > most_ended * len(self.rows):
            # The last rows take the places of those that ended: caches then copy these alone.
            movers = (place for place in stay if place >= len(stay))
            stay = [next(movers) if row.ended else place for place, row in enumerate(self.rows[: len(stay)])]
            self.predictor.reorder(self._cursor, torch.tensor(stay))
            self.rows = [self.rows[place] for place in stay]
            self._pending, self._read = self._pending[stay], self._read[stay]

    def _choose(
        self, logits: Tensor, rows: list[Row], choices: Choices, drafted: Sequence[Sequence[int]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Chooses tokens for each row that has not ended, by the `logits` (B, n, V) after its pending token and the
        `drafted` ones: as many as are drafted, and one more. Returns how many each row got, and how many of these were
        drafted, (B,) each. A row for which the model's output is not finite fails."""
        choice = choices.check(logits, self.error)
        gained, accepted = np.zeros((2, len(rows)), np.int64)
        for place, (row, draft) in enumerate(zip(rows, drafted)):
            while not row.ended and gained[place] == accepted[place]:
                step = int(gained[place])
                token, log_probability, likely = (
                    self._alone(row) if choice.close[place, step] else choice.at(place, step)
                )
                if not math.isfinite(log_probability):
                    row.fail(Refusal(500, "the model failed: its logits are not finite numbers", code="model_failed"))
                    break
                row.add(token, log_probability, likely)
                gained[place] += 1
                accepted[place] += step < len(draft) and token == draft[step]
        return gained, accepted

    def _alone(self, row: Row) -> tuple[int, float, Alternatives]:
        """A row's next token by a pass that reads the row alone, so that the rows beside it have no part in the
        rounding."""
        self.counts.alone += 1
        prompt = Reading([[row]], torch.from_numpy(row.read)[None], np.array([len(row.read)]), scores=[[]])
        while prompt.cursor is None or prompt.read < len(row.read):
            self._read_part(prompt)
        logits, tokens = prompt.logits, torch.tensor([row.tokens], dtype=torch.int64)
        for begin in range(0, len(row.tokens), self.part):
            logits = self.predictor.extend(prompt.cursor, tokens[:, begin : begin + self.part])[:, -1]
        assert logits is not None
        return Choices([row], self.predictor.vocabulary).check(logits[:, None]).at(0, 0)
