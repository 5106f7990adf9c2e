"""A model under its name: from texts of requests to rows, and from tokens to texts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from statewise.backbones.gpt import GPT
from statewise.decoding.base import Request
from statewise.decoding.predictor import GoalScorer
from statewise.deploy.serving.refusals import Refusal
from statewise.deploy.serving.rows import DecodingOptions, Row, Spelled, Transcript, Written
from statewise.model.model import Model
from statewise.runtime.version import __version__
from statewise.tasks.base import RunningText

TextOrTokens = str | list[int]
"""A prompt as text, or as token ids."""

ROUNDING = 1e-4
"""Maximum difference of logits in float32 due to the other rows of a pass: many times what `benchmarks/neighbours.py`
finds."""

UNCONDITIONED = (
    "this model cannot condition on a suffix: omit it, or use a model of the objective belief_state, or one trained "
    "with the encoding fill_in_the_middle"
)


class Served:
    """One of the server's models."""

    def __init__(self, name: str, model: Model) -> None:
        self.name, self.model, self.task = name, model, model.task
        self.predictor = model.predictor()
        self.context = self.predictor.context
        self.created = int(time.time())
        weights = model.fingerprint()[:12]
        self._device, self._precision = model.device, model.precision
        self.fingerprint = f"{weights}-{__version__}-{self._precision}"
        """Identifies weights, version and precision of answers."""
        self.casts = self._precision == "bf16"
        """Whether matrix products are computed in bfloat16."""
        self.rounding = 0.0 if self.casts else ROUNDING
        """`ContinuousBatch.error`. In bfloat16 too many choices would depend on rounding to make them alone."""
        if not self.casts:
            for part in model.objective.modules():
                if isinstance(part, GPT):
                    part.prepare_one_token()
        self._spellings: list[bytes] | None = None
        if isinstance(self.task, RunningText):
            try:
                self._spellings = self.task.bpe.spellings()
            except ValueError:  # its tokens are not bytes: only the task can write them
                self._spellings = None

    def computing(self) -> AbstractContextManager[Any]:
        """Within, the model computes in the precision that it was trained in."""
        if not self.casts:
            return nullcontext()
        return torch.autocast(self._device.type, torch.bfloat16)

    # Texts

    def encode(self, value: TextOrTokens, param: str, *, later: bool = False) -> np.ndarray:
        """(m,) tokens; `later`: of a text that does not begin a sequence. Raises `Refusal`, naming the field `param`,
        if the task does not understand it."""
        if isinstance(value, str):
            try:
                encode = self.task.encode_later if later else self.task.encode
                return np.asarray(encode(value), np.int64)
            except ValueError as error:
                raise Refusal(400, f"{param}: {error}", param=param) from None
        V = len(self.task.vocab)
        wrong = next((token for token in value if not 0 <= token < V), None)
        if wrong is not None:
            raise Refusal(400, f"{param}: no token has the id {wrong}: ids are 0 to {V - 1}", param=param)
        return np.array(value, np.int64)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""
        return self.task.decode(tokens)

    def transcript(self, before: np.ndarray, written: str | None) -> Transcript:
        """An empty text for tokens that follow `before` (t,); `written`: how the user wrote these."""
        if self._spellings is None:
            return Written(self.task.continuation, before.tolist(), written)
        return Spelled(self._spellings)

    def token_text(self, token: int) -> str:
        """A token in lists of log-probabilities: its text, or its bytes if they are not whole characters."""
        if self._spellings is None:
            return self.task.vocab.symbols[token] if token < len(self.task.vocab) else f"token_id:{token}"
        spelling = self._spellings[token] if token < len(self._spellings) else b""
        try:
            return spelling.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelling)

    @property
    def end_text(self) -> str | None:
        """The end token; None: sequences do not end with one."""
        return None if self.task.end is None else self.task.vocab.symbols[self.task.end]

    # Rows

    def rows(
        self,
        prompt: np.ndarray,
        suffix: np.ndarray | None,
        decoding: DecodingOptions,
        *,
        limit: int,
        numbers: Sequence[int],
        exact: bool,
        original: TextOrTokens | None = None,
    ) -> list[Row]:
        """A row for each of `numbers`, which continue `prompt` (t,) by at most `limit` tokens, so that `suffix` follows
        if there is one. `exact`: they do not end before. `original`: the prompt as in the request. Raises `Refusal` if
        the model cannot do that."""
        request, most = self._request(prompt, suffix, limit, exact, scored=decoding.scores_prompts)
        written = original if isinstance(original, str) and not decoding.echo else None
        before = prompt[:0] if decoding.echo else prompt
        return [
            Row(replace(request, rows=[number]), prompt, most, decoding, self.transcript(before, written))
            for number in numbers
        ]

    def _request(
        self, prompt: np.ndarray, suffix: np.ndarray | None, limit: int, exact: bool, *, scored: bool
    ) -> tuple[Request, int]:
        """The request, and the largest number of tokens that it may generate. A `scored` prompt may fill the context:
        the one token after it is chosen and never read."""
        nothing, end = np.zeros(0, np.int64), self.task.end
        try:
            read, goal = self.task.with_goal(prompt, nothing if suffix is None else suffix)
            closing = None
            if goal is not None:
                if not isinstance(self.predictor, GoalScorer):
                    raise Refusal(400, UNCONDITIONED, param="suffix", code="unsupported_parameter")
                closing = None if exact else self.predictor.closing
            request = Request([read], max(1, limit), end, goal, exact=exact, closing=closing)
        except ValueError as error:
            param = "prompt" if suffix is None else "suffix"
            raise Refusal(400, str(error), param=param) from None
        fills = scored and goal is None and len(read) == self.context
        try:
            return request, min(limit, int(request.limits(self.context + fills)[0]))
        except ValueError as error:
            raise Refusal(400, str(error), param="prompt", code="context_length_exceeded") from None
