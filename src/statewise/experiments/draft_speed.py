"""The speed of a trained model by draft length, and the share of its drafts that are accepted at each place."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from statewise.decoding import make_decoder
from statewise.decoding.base import Decoder, Request
from statewise.decoding.predictor import Predictor
from statewise.decoding.speculative import SpeculativeConfig, TwoPass
from statewise.model.model import Model
from statewise.runtime.messages import short


@dataclass
class DraftSpeed:
    """Counts and seconds of decoding some prompts, without those of reading the prompts."""

    tokens: int = 0
    """New tokens without each completion's first, which reading the prompt gives."""
    seconds: float = 0.0
    cycles: int = 0
    """Cycles of all rows, without those in which the limit left nothing to draft."""
    offered: list[int] = field(default_factory=list)
    """Number of drafted tokens at each place of a draft before which all were accepted."""
    accepted: list[int] = field(default_factory=list)
    """Number of accepted tokens at each place of a draft."""

    def add(self, decoder: Decoder, predictor: Predictor, request: Request) -> None:
        """Decodes a request."""
        decoding = decoder.steps(predictor, request)
        next(decoding)
        began = time.perf_counter()
        steps = list(decoding)
        self.seconds += time.perf_counter() - began
        self.tokens += sum(int((step.tokens >= 0).sum()) for step in steps)
        for step in steps:
            if step.offered is None:
                continue
            self.cycles += int((step.offered > 0).sum())
            for place in range(int(step.offered.max(initial=0))):
                if place == len(self.offered):
                    self.offered.append(0)
                    self.accepted.append(0)
                self.offered[place] += int(((step.offered > place) & (step.drafted >= place)).sum())
                self.accepted[place] += int((step.drafted > place).sum())

    def summary(self) -> dict[str, Any]:
        """For reports: tokens per second of all rows after their prompts, accepted tokens per cycle and row, and the
        share accepted at each place of the tokens before which all were accepted."""
        return {
            "tokens_per_second": self.tokens / self.seconds,
            "accepted_per_cycle": sum(self.accepted) / self.cycles if self.cycles else 0.0,
            "accepted_by_place": [kept / all_ for kept, all_ in zip(self.accepted, self.offered) if all_],
        }


def draft_lengths(text: str) -> list[int | str]:
    """`0-8`, `0,4,8`, `4` or `auto`, or several with commas. Raises `ValueError` for anything else."""
    lengths: list[int | str] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if part == "auto":
            lengths.append(part)
        elif first.isdecimal() and (not dash or last.isdecimal()) and int(first) <= int(last or first) < 1000:
            lengths += range(int(first), int(last or first) + 1)
        else:
            raise ValueError(f"`draft` takes lengths as in 0-8, 0,4,8 or auto, not {short(text)}")
    return list(dict.fromkeys(lengths))


def draft_speeds(
    model: Model,
    lengths: Sequence[int | str],
    *,
    batch: int,
    rounds: int,
    prefill: int | None,
    decode: int | None,
    **fields: Any,
) -> dict[str, dict[str, Any]]:
    """`DraftSpeed.summary` for plain decoding (`plain`) and each draft length, on the same `rounds` batches of held-out
    prompts; one after another in each round, so that a change of the machine's load affects all. `fields` are those of
    the decoder. Prompts are the task's, or the first `prefill` tokens; by default a quarter of the context where a task
    has none."""
    temperature = fields.get("temperature", 0.0)
    plain = make_decoder("sample", temperature=temperature) if temperature else make_decoder("greedy")
    decoders = {"plain": plain} | {str(one): make_decoder("speculative", draft=one, **fields) for one in lengths}
    return _speeds(model, decoders, _prompts(model, batch * rounds, prefill, decode), batch, decode)


def _prompts(model: Model, count: int, prefill: int | None, decode: int | None) -> list[np.ndarray]:
    task = model.task
    held_out = task.held_out(count)
    prompts = []
    for tokens, length, own in zip(held_out.tokens, held_out.lengths.tolist(), held_out.prompt_lengths.tolist()):
        prompts.append(tokens[: min(length, prefill or own or max(1, task.context // 4))])
    if (longest := max(map(len, prompts))) >= task.context:
        raise ValueError(
            f"a prompt of {longest} tokens leaves nothing of the context of {task.context} to decode: set `prefill` "
            "lower"
        )
    if decode is not None and longest + decode > task.context:
        raise ValueError(
            f"a prompt of {longest} and {decode} further tokens do not fit the context of {task.context}: set `prefill`"
            " and `decode` lower"
        )
    return prompts


def _speeds(
    model: Model, decoders: dict[str, Decoder], prompts: list[np.ndarray], batch: int, decode: int | None
) -> dict[str, dict[str, Any]]:
    """`DraftSpeed.summary` of each decoder, all on the same batches, one after another."""
    task, speeds = model.task, {name: DraftSpeed() for name in decoders}
    with model.asking() as predictor:
        for decoder in decoders.values():  # the first pass of each shape is slow
            DraftSpeed().add(decoder, predictor, Request(prompts[:batch], min(decode or 32, 32), task.end))
        for first in range(0, len(prompts), batch):
            rows = np.arange(first, min(first + batch, len(prompts)))
            request = Request(prompts[first : first + batch], decode or task.context, task.end, rows=rows.tolist())
            for name, decoder in decoders.items():
                speeds[name].add(decoder, predictor, request)
    if not speeds["plain"].tokens:
        raise ValueError(
            "every completion ends with its first token, which reading the prompt gives, so there is no speed to "
            "measure: set `decode` to at least 2, or another `prefill`"
        )
    return {name: speed.summary() for name, speed in speeds.items()}


def two_pass_speeds(
    model: Model, lengths: Sequence[int | str], *, rounds: int, prefill: int | None, decode: int | None, **fields: Any
) -> dict[str, dict[str, Any]]:
    """Like `draft_speeds`, but without a cache and with two passes per cycle (`TwoPass`), one prompt at a time;
    `plain`: one pass per token, without a cache. `auto` and 0 are left out."""
    decoders = {"plain": _two_pass(0, fields)}
    decoders |= {str(one): _two_pass(one, fields) for one in lengths if isinstance(one, int) and one}
    return _speeds(model, decoders, _prompts(model, rounds, prefill, decode), 1, decode)


def _two_pass(draft: int, fields: dict[str, Any]) -> Decoder:
    return TwoPass(SpeculativeConfig(draft=draft, **fields))
