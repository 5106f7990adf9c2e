"""Adaptor from a predictor to lm-evaluation-harness's model interface. Importing it needs the extra `eval`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from lm_eval.api.model import TemplateLM
from typing_extensions import override

from statewise.decoding.base import Request
from statewise.decoding.predictor import Predictor
from statewise.decoding.sample import Greedy, GreedyConfig
from statewise.evaluation.zero_shot.likelihood import Continuation, encoded, likelihoods
from statewise.runtime.progress import announced
from statewise.tasks.base import RunningText
from statewise.tasks.corpus.encoding import count_words, word_starts


@dataclass(frozen=True)
class Rolled:
    """A text scored as a whole, after an end-of-text token."""

    benchmark: str
    nats: float
    first_nats: float
    """Nats of the first token, which the model was never trained to predict."""
    tokens: int
    units: dict[str, int]
    """Numbers of words and bytes of the text that the model reads."""
    first_units: dict[str, int]
    """Words that begin in the first token, and its bytes."""
    document: Any
    """The document of the benchmark that the text was made of."""


@dataclass
class Counts:
    """Counts for a report's warnings."""

    requests: int = 0
    """Number of likelihood requests."""
    cut: int = 0
    """Number of those whose context was truncated from the left."""
    in_pieces: int = 0
    """Number of those whose continuation alone exceeds the model's context and was scored in several windows."""
    without_context: int = 0
    """Number of those with an empty context: their first token is predicted from end-of-text, which training never
    did."""
    generations: int = 0
    """Number of completions."""
    cut_prompts: int = 0
    """Number of those whose prompt was truncated from the left."""


class HarnessModel(TemplateLM):  # type: ignore[misc]  # the extra may be missing
    """Batches of similar length, no longer than a training row; greedy completions."""

    def __init__(self, predictor: Predictor, task: RunningText, batch: int) -> None:
        super().__init__()
        self.predictor, self.task, self.batch = predictor, task, batch
        self.counts = Counts()
        self.rolled: list[Rolled] = []
        self._spellings = task.bpe.spellings()

    @property
    @override
    def eot_token_id(self) -> int:
        return self.task.bpe.end

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """See `TemplateLM`. Text is never read as special tokens."""
        return encoded(self.task, [string])[0]

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Encodes as lm-evaluation-harness does, so that figures are comparable; but if the tokenizer merges all of the
        continuation into the context's last token, which would leave nothing to score, that token counts as
        continuation."""
        before, scored = super()._encode_pair(context, continuation)
        if scored:
            return before, scored
        whole = self.tok_encode(context + continuation)
        same = next((place for place, (one, other) in enumerate(zip(whole, before)) if one != other), len(before))
        return (whole[:same], whole[same:]) if same else ([self.prefix_token_id], whole)

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """See `LM`: (log-probability, whether greedy decoding yields it) of each continuation given its context."""
        self.counts.without_context += sum(request.args[0] == "" for request in requests)
        answers: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        return answers

    @override
    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str], list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        continuations = [Continuation([*context, *continuation], len(context)) for _, context, continuation in requests]
        scored = likelihoods(self.predictor, continuations, self.batch)
        self.counts.requests += len(scored)
        self.counts.cut += sum(one.cut for one in scored)
        self.counts.in_pieces += sum(one.pieces > 1 for one in scored)
        return [(one.log_probability, one.greedy) for one in scored]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = True) -> list[float]:
        """See `LM`: the log-probability of each text, including its first token as lm-evaluation-harness requires;
        `rolled` records the values without it."""
        texts = [request.args[0] for request in requests]
        rows = encoded(self.task, texts)
        continuations = [Continuation([self.eot_token_id, *row], 1) for row in rows]
        scored = likelihoods(self.predictor, continuations, self.batch)
        self.counts.requests += len(scored)
        self.counts.in_pieces += sum(one.pieces > 1 for one in scored)
        for request, text, row, one in zip(requests, texts, rows, scored):
            if row:
                size = len(self._spellings[row[0]])
                units, first_units = units_of(text), {"word": words_before(text, size), "byte": size}
                nats, first = float(one.nats.sum()), float(one.nats[0])
                self.rolled.append(Rolled(request.task_name, nats, first, len(row), units, first_units, request.doc))
        return [one.log_probability for one in scored]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = True) -> list[str]:
        """See `LM`: greedy completions up to a stop string. Raises `ValueError` if sampling is requested."""
        answers = []
        for request in announced(requests, "completions", len(requests)):
            context, settings = request.args
            if settings.get("do_sample") and settings.get("temperature", 1.0) != 0:
                raise ValueError(f"{request.task_name} requests sampled completions; only greedy ones are supported")
            answers.append(self._generate(context, settings))
        return answers

    @torch.no_grad()
    def _generate(self, context: str, settings: Mapping[str, Any]) -> str:
        until = settings.get("until") or []
        stops = [stop for stop in ([until] if isinstance(until, str) else until) if stop]
        prompt = self.tok_encode(context) or [self.eot_token_id]
        limit, context_length = int(settings.get("max_gen_toks", 256)), self.predictor.context
        # The package's default of 256 leaves a short context no room: half of it is kept for the prompt.
        room = max(context_length - limit, context_length // 2)
        self.counts.generations += 1
        self.counts.cut_prompts += len(prompt) > room
        read = prompt[-room:]
        request = Request([np.array(read)], min(limit, context_length - len(read)), self.eot_token_id)
        tokens: list[int] = []
        text = ""
        for step in Greedy(GreedyConfig()).steps(self.predictor, request):
            tokens += [token for token in step.tokens[0].tolist() if token != self.eot_token_id]
            text = self.task.bpe.decode(tokens)
            ends = [text.index(stop) for stop in stops if stop in text]
            if ends:
                return text[: min(ends)]
        return text


def units_of(text: str) -> dict[str, int]:
    """Numbers of words, as `count_words` counts them, and of UTF-8 bytes."""
    return {"word": count_words(text), "byte": len(text.encode())}


def words_before(text: str, size: int) -> int:
    """Number of words that begin in the first `size` bytes."""
    return sum(len(text[:start].encode()) < size for start in word_starts(text[:size]))
