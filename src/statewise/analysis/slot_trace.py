"""The state of a belief-slot decoder over a sequence: how large each slot is, how much each chunk changes it, and
what it is worth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from statewise.analysis.base import Analysis, Curve, Findings, Panel, Subject
from statewise.analysis.restricted_state import losses
from statewise.data import blocks, collate, rows_at_once
from statewise.decoding.continued import carrier

ROWS = 16
"""Sequences that are read at a time; fewer of a large vocabulary."""


@dataclass(frozen=True)
class SlotTraceConfig:
    """Options of `statewise analyze RUN slot-trace`."""

    sequences: int = 128
    """Held-out sequences."""

    def __post_init__(self) -> None:
        if self.sequences < 1:
            raise ValueError(f"sequences must be at least 1, not {self.sequences}")


class SlotTrace(Analysis):
    """Means over sequences, chunk by chunk."""

    Config = SlotTraceConfig

    def __init__(self, config: SlotTraceConfig) -> None:
        self.config = config

    def analyze(self, subject: Subject) -> Findings:
        """Metrics `gain`, by how many nats a token the carried state lowers the loss behind the first chunk, and `loss`
        and `fresh_loss` there. Panels by chunk: the length of each slot; how far it moved, over the larger of its
        lengths before and after; and the losses. Of several documents in a row only what is of the one that its chunk
        begins with counts, and as moved only slots that it had before."""
        config, predictor = self.config, subject.model.predictor
        power = carrier(predictor)
        fresh = power.under("fresh", 0)
        chunk, S = power.chunk, power.slot_count
        lengths, changes, sums, counts = [], [], [], []
        examples = subject.task.held_out(config.sequences)
        for _, part in blocks(examples, rows_at_once(examples.tokens.shape[1], predictor.vocabulary, ROWS)):
            batch = collate(part)
            T = batch.tokens.shape[1]
            begins = np.arange(0, T, chunk)
            state = predictor.states(batch).state.float().cpu().numpy()
            slots = state[:, begins, -S * (state.shape[-1] // (1 + S)) :].reshape(len(state), len(begins), S, -1)
            owner = batch.owners.numpy()
            first = owner[:, begins]  # of each chunk
            there, stays = first != 0, first[:, 1:] == first[:, :-1]
            carried = first != 0
            carried[:, 1:] &= first[:, 1:] == owner[:, begins[1:] - 1]
            own = (owner == np.repeat(first, chunk, axis=1)[:, :T]) & np.repeat(carried, chunk, axis=1)[:, :T]
            size = np.linalg.norm(slots, axis=-1)
            larger = np.maximum(np.maximum(size[:, :-1], size[:, 1:]), 1e-12)
            change = np.linalg.norm(np.diff(slots, axis=1), axis=-1) / larger
            lengths.append(np.where(there[..., None], size, np.nan))
            changes.append(np.where((there[:, 1:] & stays)[..., None], change, np.nan))
            scored = batch.scored.numpy()[:, 1:] & own[:, :-1]  # a token counts where it is predicted
            number = np.broadcast_to((np.arange(T - 1) // chunk)[None], scored.shape)
            of_chunk = [np.bincount(number[scored], weights=losses(model, batch)[scored], minlength=len(begins))
                        for model in (predictor, fresh)]  # fmt: skip
            sums.append(np.stack(of_chunk))
            counts.append(np.bincount(number[scored], minlength=len(begins)))
        length, change = (_mean_over_rows(parts) for parts in (lengths, changes))
        if len(length) < 2:
            raise ValueError(f"no held-out sequence has more than one chunk of {chunk} tokens: there is no trace")
        total, count = _added(sums), _added(counts)
        asked = np.flatnonzero(count)
        loss, fresh_loss = total[:, asked] / count[asked]
        later = asked[asked > 0]
        if not len(later):
            raise ValueError("nothing is asked behind the first chunk: what the state is worth cannot be seen")
        carried, anew = total[:, later].sum(1) / count[later].sum()
        x, moved = np.arange(1.0, len(length) + 1).tolist(), np.arange(2.0, len(length) + 1).tolist()
        where = (asked + 1.0).tolist()
        panels = [
            Panel("chunk", "length of the slot", [_curve(slot, x, length) for slot in range(S)]),
            Panel("chunk", "change, of the larger length", [_curve(slot, moved, change) for slot in range(S)]),
            Panel("chunk", "loss (nats a token)", [
                Curve("carried", where, loss.tolist()), Curve("fresh", where, fresh_loss.tolist(), "control"),
            ]),
        ]  # fmt: skip
        metrics = {"gain": float(anew - carried), "loss": float(carried), "fresh_loss": float(anew)}
        details = {"length": _listed(length), "change": _listed(change), "tokens": count.tolist()}
        return Findings({**metrics, "chunks": len(length)}, panels, details, main=["gain"])


def _curve(slot: int, x: list[float], values: np.ndarray) -> Curve:
    known = ~np.isnan(values[:, slot])
    return Curve(f"slot {slot + 1}", np.array(x)[known].tolist(), values[known, slot].tolist())


def _mean_over_rows(parts: list[np.ndarray]) -> np.ndarray:
    """(C, S): means of (n, C', S), numbers alone, where C' differs by part; NaN where there are none."""
    most = max(part.shape[1] for part in parts)
    padded = [np.pad(part, ((0, 0), (0, most - part.shape[1]), (0, 0)), constant_values=np.nan) for part in parts]
    values = np.concatenate(padded)
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        found: np.ndarray = np.where(known, values, 0).sum(0) / known.sum(0)
    return found


def _listed(values: np.ndarray) -> list[list[float | None]]:
    return [[None if np.isnan(value) else float(value) for value in row] for row in values]


def _added(parts: list[np.ndarray]) -> np.ndarray:
    """The sum of arrays (..., C') where C' differs."""
    most = max(part.shape[-1] for part in parts)
    return np.sum([np.pad(part, [(0, 0)] * (part.ndim - 1) + [(0, most - part.shape[-1])]) for part in parts], axis=0)
