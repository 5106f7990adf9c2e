"""Belief vectors at given positions of sequences, for probes and `embed`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from statewise.analysis.base import Snapshot
from statewise.batch import Batch
from statewise.data_types import Examples
from statewise.decoding.predictor import SuffixEncoder, require
from statewise.runtime.durable import write_array, write_atomically
from statewise.runtime.json_files import json_bytes, read_json
from statewise.runtime.overwriting import check_file, check_files, claimed_files, json_with
from statewise.tasks.base import LeftOut
from statewise.tasks.batches import blocks, collate

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 64
"""Sequences read at a time."""

Positions = Literal["last", "prompt", "all"]
Side = Literal["prefix", "suffix"]


ALL, CONCAT = "all", "concat"
"""In place of a layer's name: every layer separately, and all layers concatenated."""
LAYERS = "blocks.*.hook_resid_post"
"""The layers that `ALL` and `CONCAT` stand for: the residual stream after every block."""


@dataclass(frozen=True)
class Beliefs:
    """Belief vectors of n sequences."""

    vectors: np.ndarray
    """(m, D) float32, sequence by sequence; (L, m, D) for several layers."""
    offsets: np.ndarray
    """(n + 1,) int64: rows offsets[i] to offsets[i + 1] of `vectors` are those of sequence i."""
    layers: list[str]
    """Names of the L activations, or of the concatenated ones; empty for belief states."""
    positions: np.ndarray
    """(m,) int64: index of the last token of each vector's prefix, or of the first token of its suffix."""
    sequences: np.ndarray
    """(n,) int64: index of each sequence in its file, including those left out."""
    left_out: Sequence[LeftOut] = ()
    """Sequences of the file without vectors."""
    origin: Mapping[str, Any] = field(default_factory=dict)
    """The model, the file, and what was read, for the JSON file that `save` writes."""

    @property
    def index(self) -> np.ndarray:
        """(m, 2) int64: sequence and position of each vector."""
        return np.stack([np.repeat(self.sequences, np.diff(self.offsets)), self.positions], axis=1)

    def save(self, out: str | Path, *, overwrite: bool = False) -> list[Path]:
        """Writes what `statewise embed` writes: the vectors into `out`, a file whose name ends in `.npy`; beside it
        `index`, with vectors at all positions `offsets`, and a JSON file with the origin and the sequences that were
        left out. Returns the paths. Raises `FileExistsError` for files that exist, unless `overwrite` is set and they
        were written so."""
        out, every = Path(out), self.origin.get("positions") == "all"
        index, offsets, facts = _beside(out)
        content = {
            **self.origin,
            **({"layers": self.layers} if self.layers else {}),
            "sequences": len(self.offsets) - 1,
            "shape": list(self.vectors.shape),
            "index": index.name,
            "left_out": [one._asdict() for one in self.left_out],
            **({"offsets": offsets.name} if every else {}),
        }
        with claimed_vectors(out, every, overwrite) as scratch:
            write_array(scratch / out.name, self.vectors)
            write_array(scratch / index.name, self.index)
            if every:
                write_array(scratch / offsets.name, self.offsets)
            write_atomically(scratch / facts.name, json_bytes(content))
        return [out, index, *([offsets] if every else []), facts]


def _beside(out: Path) -> tuple[Path, Path, Path]:
    """The files beside those of vectors: index, offsets, and facts as JSON."""
    return out.with_suffix(".index.npy"), out.with_suffix(".offsets.npy"), out.with_name(f"{out.name}.json")


def claimed_vectors(out: Path, every: bool, overwrite: bool) -> AbstractContextManager[Path]:
    """A claim on the files of `Beliefs.save` (`statewise.runtime.overwriting`), and the place for them; `every`: with
    vectors at all positions. Raises `ValueError` for a name that does not end in `.npy` and a folder that is missing,
    and what `Beliefs.save` raises."""
    if out.suffix != ".npy":
        raise ValueError(f"`out` must end in .npy, not be {str(out)!r}")
    if not out.parent.is_dir():
        raise ValueError(f"there is no folder {out.parent} to write {out.name} into")
    index, offsets, facts = _beside(out)
    names = [out.name, index.name, *([offsets.name] if every else []), facts.name]

    def check() -> None:
        check_file(out, overwrite)
        check_files(out.parent, names[1:], {facts.name: json_with("run", "checkpoint", "positions")}, overwrite)

    def has_offsets() -> bool:
        return facts.exists() and "offsets" in read_json(facts, {})

    return claimed_files(out.parent, names, check, overwrite, {offsets.name: has_offsets})


def beliefs(
    snapshot: Snapshot, examples: Examples, positions: Positions = "last", of: Side = "prefix", layer: str | None = None
) -> Beliefs:
    """Belief vectors of prefixes of `examples`, or of suffixes if the model encodes them.

    `last`: one per sequence, of the whole sequence. `prompt`: one per sequence, of its prompt, or for suffixes of the
    answer after it. `all`: at every position, of the prefix that ends there or the suffix that begins there. With
    `layer` the vectors are activations: of one name, of each name that matches a pattern, of `all` layers separately,
    or of all layers concatenated (`concat`).

    Raises `ValueError` if a prompt or an answer is missing, or the model has no suffix encoder or no such layer.
    """
    if layer is not None and of == "suffix":
        raise ValueError("layers belong to the prefix encoder: leave out the layer or the suffixes")
    lengths, prompts, n = examples.lengths, examples.prompt_lengths, len(examples)
    rows, offsets = np.arange(n), np.arange(n + 1)
    if positions == "all":
        rows = np.repeat(rows, lengths)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        columns = np.arange(len(rows)) - offsets[rows]
    elif positions == "last":
        columns = lengths - 1 if of == "prefix" else np.zeros_like(lengths)
    else:
        missing = np.flatnonzero(prompts == 0 if of == "prefix" else prompts >= lengths)
        if len(missing):
            what = "no prompt" if of == "prefix" else "nothing after its prompt"
            raise ValueError(f"sequence {missing[0] + 1} has {what}: choose the positions last or all")
        columns = prompts - 1 if of == "prefix" else prompts
    if of == "suffix":
        encoder = require(snapshot.predictor, SuffixEncoder)
        vectors = _gather(lambda batch: [encoder.suffix_states(batch)], examples, rows, columns)
        return Beliefs(vectors, offsets, [], columns, np.arange(n))
    vectors, widths = prefix_states(snapshot, examples, rows, columns, layer), layer_widths(snapshot, examples, layer)
    if layer is not None and is_several(layer):
        if len(set(widths.values())) > 1:
            raise ValueError(f"the activations {layer} differ in width: choose one, or {CONCAT} for {LAYERS}")
        vectors = np.stack(np.split(vectors, len(widths), axis=1))
    return Beliefs(vectors, offsets, list(widths), columns, np.arange(n))


def layer_widths(snapshot: Snapshot, examples: Examples, layer: str | None) -> dict[str, int]:
    """Names and widths of the activations that `layer` stands for, in order; empty for the belief state. Raises
    `ValueError` for an unknown name."""
    if layer is None:
        return {}
    activations = snapshot.activations(collate(examples[:1]), [_pattern(layer)])
    return {name: activation.flatten(2).shape[2] for name, activation in activations.items()}


def is_several(layer: str) -> bool:
    """Whether `layer` stands for several activations, to be treated separately."""
    return layer == ALL or "*" in layer


def _pattern(layer: str) -> str:
    if not layer:
        raise ValueError("the layer's name is empty: give one, such as blocks.0.hook_resid_post, or all")
    return LAYERS if layer in (ALL, CONCAT) else layer


def states_of(
    snapshot: Snapshot, examples: Examples, rows: np.ndarray, columns: np.ndarray, layer: str | None = None
) -> np.ndarray:
    """`prefix_states`, cached: computed once for the same weights and examples.

    Raises `ValueError` if they are not finite, or the layer's name is empty.
    """
    key = hashlib.sha256(type(snapshot.predictor).__qualname__.encode())  # it defines what the states are
    arrays = [examples.tokens, examples.lengths, examples.prompt_lengths, rows, columns]
    for array in [*arrays, *(one for one in (examples.documents, examples.scored) if one is not None)]:
        key.update(f"{array.shape}".encode() + np.ascontiguousarray(array, np.int64).tobytes())
    if layer is not None:
        key.update(_pattern(layer).encode())
    states = snapshot.remember(key.hexdigest(), lambda: prefix_states(snapshot, examples, rows, columns, layer))
    if not np.isfinite(states).all():
        raise ValueError(f"the states of the model at {snapshot.label} are not finite numbers")
    return states


def prefix_states(
    snapshot: Snapshot, examples: Examples, rows: np.ndarray, columns: np.ndarray, layer: str | None = None
) -> np.ndarray:
    """(m, D) float32: the state after position columns[i] of sequence rows[i], or the activations that `layer` stands
    for, concatenated.

    Sequences are cut after the last position that is needed.
    """
    chosen, where = np.unique(rows, return_inverse=True)
    ends = np.zeros(len(chosen), np.int64)
    np.maximum.at(ends, where, columns + 1)
    documents = None if examples.documents is None else examples.documents[chosen]
    scored = None  # which tokens are answers matters to models that do not read them
    if examples.scored is not None:
        scored = examples.scored[chosen] & (np.arange(examples.tokens.shape[1]) < ends[:, None])
    prompts = np.minimum(examples.prompt_lengths[chosen], ends)
    cut = Examples(examples.tokens[chosen], ends, prompts, documents, scored)

    def states(batch: Batch) -> list[Tensor]:
        if layer is None:
            return [snapshot.predictor.states(batch).state]
        return [each.flatten(2) for each in snapshot.activations(batch, [_pattern(layer)]).values()]

    return _gather(states, cut, where, columns)


def places_by_block(examples: Examples, rows: np.ndarray, block: int) -> Iterator[tuple[Batch, np.ndarray, np.ndarray]]:
    """Blocks of `examples` with places in their sequences `rows` (m,): the batch, the indices of the places in it,
    and the row of the batch of each."""
    by_row = np.argsort(rows, kind="stable")
    starts = np.searchsorted(rows[by_row], np.arange(len(examples) + 1))
    for members, part in blocks(examples, block):
        here = np.concatenate([by_row[starts[row] : starts[row + 1]] for row in members])
        yield collate(part), here, np.repeat(np.arange(len(members)), starts[members + 1] - starts[members])


@torch.no_grad()
def _gather(
    states: Callable[[Batch], list[Tensor]], examples: Examples, rows: np.ndarray, columns: np.ndarray
) -> np.ndarray:
    """(m, D) float32: the outputs of `states`, (B, T, ...) each, together D wide, at position columns[i] of sequence
    rows[i]."""
    vectors = np.empty((len(rows), 0), np.float32)
    for batch, here, line in places_by_block(examples, rows, BLOCK):
        parts = states(batch)
        at = tuple(torch.from_numpy(index).to(parts[0].device) for index in (line, columns[here]))
        picked = torch.cat([part[at].float().cpu() for part in parts], dim=-1).numpy()
        if not vectors.shape[1]:
            vectors = np.empty((len(rows), picked.shape[1]), np.float32)
        vectors[here] = picked
    return vectors
