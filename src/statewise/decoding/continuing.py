"""Generation that continues from a kept state, and keeps its final state in a file: tensors, and the fingerprint of the
model's weights."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from statewise.batch import Batch, Hidden
from statewise.data_types import Completion
from statewise.decoding.base import Decoder, Request
from statewise.decoding.predictor import Carrier, Drafter, Kind, Predictor, require
from statewise.runtime.durable import write_atomically
from statewise.runtime.overwriting import claimed_file
from statewise.tasks.base import Task

KIND = "statewise-state-1"
"""The kind of the files of kept states, in their metadata."""


def continue_generation(
    predictor: Predictor,
    task: Task,
    prompt: str,
    decoder: Decoder,
    limit: int = 100,
    *,
    fingerprint: str,
    state: str | Path | None = None,
    save_state: str | Path | None = None,
    overwrite: bool = False,
    warmup: int = 0,
) -> Completion:
    """A completion by a model with a carried state, of any length: continues from the file `state`, or starts a new
    sequence. Keeps the final state in the file `save_state`.

    `prompt` follows what the state has read, and may be empty if there is a state. `warmup`: passes over each chunk of
    the prompt of a new sequence before it is read. `fingerprint` is that of the model's weights: a state is meaningless
    to other weights. Raises `FileExistsError` if `save_state` exists, unless it is a file and `overwrite` is set;
    `ValueError` for a model without a carried state, a file that does not match it, or a sequence that has ended.
    """
    if warmup < 0:
        raise ValueError(f"warmup must not be negative, not {warmup}")
    if warmup and state is not None:
        raise ValueError("a warm-up passes over the prompt of a new sequence: it cannot follow a kept state")
    if save_state is not None:
        with claimed_state_file(Path(save_state), overwrite) as scratch:
            completion, after = _continued(predictor, task, prompt, decoder, limit, fingerprint, state, warmup)
            write_state(scratch, after, fingerprint)
        return completion
    return _continued(predictor, task, prompt, decoder, limit, fingerprint, state, warmup)[0]


def _continued(
    predictor: Predictor,
    task: Task,
    prompt: str,
    decoder: Decoder,
    limit: int,
    fingerprint: str,
    state: str | Path | None,
    warmup: int,
) -> tuple[Completion, dict[str, Tensor]]:
    """The completion, and the state after it."""
    carrying = require(predictor, Carrier).under("carried", warmup)
    tokens = task.encode(prompt)
    if state is None:
        continued = Continued(carrying, None)
    else:
        kept = read_state(Path(state), fingerprint)
        try:
            continued = Continued(carrying, kept)
        except ValueError as error:
            raise ValueError(f"{state}: {error}") from None
        if task.end is not None and int(kept["pending"][-1]) == task.end:
            raise ValueError(f"{state}: its sequence has ended and cannot be continued")
        tokens = np.concatenate([kept["pending"].numpy(), tokens])
    (completion,) = decoder.decode(continued, Request([tokens], limit, task.end, offset=continued.offset))
    return completion, continued.state(len(tokens), completion)


class Continued(Predictor):
    """A predictor for a single sequence that starts from a kept state, and whose final state can be kept.

    Only for decoders that read one sequence in order, not for searches, which read several branches.
    """

    def __init__(self, predictor: Predictor, kept: Mapping[str, Tensor] | None) -> None:
        """`kept`: the result of `state`; None: a new sequence. Raises `ValueError` for a predictor without a carried
        state, and for a kept state that does not match it."""
        self.predictor, self.carrier, self.kept = predictor, require(predictor, Carrier), kept
        self.vocabulary, self.context = predictor.vocabulary, sys.maxsize
        self._cursor: Any = None
        self._read = 0
        self.offset = 0
        """Tokens that the kept state has read."""
        if kept is not None:
            pending = kept.get("pending", torch.empty(0))
            if pending.dtype != torch.int64 or pending.dim() != 1 or not len(pending):
                raise ValueError("not a kept state, or a damaged one: it lacks the tokens that were not read yet")
            if pending.min() < 0 or pending.max() >= self.vocabulary:
                raise ValueError(f"a damaged state: it holds tokens beyond the vocabulary of {self.vocabulary}")
            self.offset = self._resumed(kept).cache.length

    def start(self, prompts: Tensor, counts: np.ndarray | None = None) -> tuple[Any, Tensor]:
        """See `Predictor.start`; takes one row, which starts with the pending tokens."""
        assert len(prompts) == 1
        assert counts is None or counts[0] == prompts.shape[1]
        self._read = prompts.shape[1]
        if self.kept is None:
            self._cursor, logits = self.predictor.start(prompts)
        else:
            self._cursor = self._resumed(self.kept)
            logits = self.predictor.extend(self._cursor, prompts)[:, -1]
        return self._cursor, logits

    @override
    def extend(self, cursor: Any, tokens: Tensor, counts: np.ndarray | None = None) -> Tensor:
        self._read += tokens.shape[1] if counts is None else int(counts[0])
        return self.predictor.extend(cursor, tokens, counts)

    @override
    def hold(self, cursor: Any) -> None:
        self.predictor.hold(cursor)

    @override
    def release(self, cursor: Any) -> None:
        self.predictor.release(cursor)

    @override
    def rewind(self, cursor: Any, positions: int | np.ndarray) -> None:
        self._read -= int(np.asarray(positions).flatten()[0])
        self.predictor.rewind(cursor, positions)

    def join(self, cursor: Any, other: Any) -> None:
        """Raises `ValueError`, as `reorder` does."""
        self.reorder(cursor, torch.zeros(0, dtype=torch.int64))

    def reorder(self, cursor: Any, rows: Tensor) -> None:
        """Raises `ValueError`: there is only one sequence."""
        raise ValueError("a kept state needs a decoder that does not search: greedy, sample or speculative")

    @override
    def states(self, batch: Batch) -> Hidden:
        return self.predictor.states(batch)

    @override
    def logits(self, batch: Batch) -> Tensor:
        return self.predictor.logits(batch)

    @override
    def capability(self, kind: type[Kind]) -> Kind | None:
        return self.predictor.capability(kind) if kind is Drafter else super().capability(kind)

    def _resumed(self, kept: Mapping[str, Tensor]) -> Any:
        return self.carrier.resume({name: tensor for name, tensor in kept.items() if name != "pending"})

    def state(self, prompt_length: int, completion: Completion) -> dict[str, Tensor]:
        """The state after a completion. Tokens of the completion that were not read are `pending` (m,), m >= 1: they
        must be read first when continuing."""
        pending = torch.from_numpy(completion.tokens[self._read - prompt_length :])
        return {**self.carrier.keep(self._cursor), "pending": pending}


def claimed_state_file(path: Path, overwrite: bool) -> AbstractContextManager[Path]:
    """A claim on `path` (`statewise.runtime.overwriting`), and the place for the state that it is to become. Raises
    `FileExistsError` if `path` exists, unless it is a file and `overwrite` is set, and `ValueError` if its folder does
    not exist. Begin it before generating."""
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}")
    return claimed_file(path, overwrite, "`save_state`")


def write_state(path: Path, kept: Mapping[str, Tensor], fingerprint: str) -> None:
    """Writes the result of `Continued.state` with the fingerprint of the model's weights."""
    from safetensors.torch import save

    content = save(
        {name: tensor.contiguous().cpu() for name, tensor in kept.items()},
        metadata={"kind": KIND, "fingerprint": fingerprint},
    )
    write_atomically(path, content)


def read_state(path: Path, fingerprint: str) -> dict[str, Tensor]:
    """Reads a kept state. Raises `ValueError` if the file is not one, or belongs to other weights."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ValueError(f"{path}: there is no such file; `save_state` writes one")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            kept = {name: file.get_tensor(name) for name in file.offset_keys()}
    except SafetensorError as error:
        raise ValueError(f"{path}: not a kept state, or a damaged one: {error}") from None
    if metadata.get("kind") != KIND:
        raise ValueError(f"{path}: not a kept state: `save_state` writes one")
    if metadata.get("fingerprint") != fingerprint:
        raise ValueError(f"{path}: was kept by another run or checkpoint: a state is meaningless to other weights")
    return kept
