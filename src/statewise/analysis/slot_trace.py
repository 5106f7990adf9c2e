"""The state of a belief-slot decoder over a sequence: the norm of each slot, its change per chunk, and how much the
carried state lowers the loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from statewise.analysis.base import Analysis, Findings, Subject, finite_or_none
from statewise.decoding.predictor import Carrier, require
from statewise.evaluation.scoring import score_batch
from statewise.reporting.figures import Curve, Panel, defined_curve
from statewise.runtime.bounds import bounded
from statewise.tasks.batches import blocks, collate, rows_at_once

ROWS = 16
"""Sequences processed at a time, fewer if the vocabulary is large."""


@dataclass(frozen=True)
class SlotTraceConfig:
    """Options of `statewise analyze RUN slot-trace`."""

    sequences: int = 128
    """Held-out sequences."""

    def __post_init__(self) -> None:
        bounded(self, "sequences", at_least=1)


class SlotTrace(Analysis):
    """Means over sequences by chunk."""

    Config = SlotTraceConfig
    config: SlotTraceConfig

    def analyze(self, subject: Subject) -> Findings:
        """Metrics `loss`, `fresh_loss` and their difference `gain`, in nats per token after the first chunk. Panels by
        chunk: the norm of each slot; its change, relative to the larger norm before and after; and the losses. In
        packed rows a chunk counts for the document at its start only, and changes are measured within a document."""
        config, predictor = self.config, subject.snapshot.predictor
        carrier = require(predictor, Carrier)
        fresh = carrier.under("fresh", 0)
        chunk, S = carrier.chunk, carrier.slot_count
        lengths, changes, sums, counts = [], [], [], []
        examples = subject.task.held_out(config.sequences)
        for _, part in blocks(examples, rows_at_once(examples.tokens.shape[1], predictor.vocabulary, ROWS)):
            batch = collate(part)
            T = batch.tokens.shape[1]
            begins = np.arange(0, T, chunk)
            state = predictor.states(batch).state.float().cpu().numpy()
            slots = state[:, begins, -S * (state.shape[-1] // (1 + S)) :].reshape(len(state), len(begins), S, -1)
            owner = batch.document_ids.numpy()
            first = owner[:, begins]  # document at the start of each chunk
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
            nats = [score_batch(model, batch, 1, T).nats[scored] for model in (predictor, fresh)]
            sums.append(np.stack([np.bincount(number[scored], weights=of, minlength=len(begins)) for of in nats]))
            counts.append(np.bincount(number[scored], minlength=len(begins)))
        length, change = (_mean_over_rows(parts) for parts in (lengths, changes))
        if len(length) < 2:
            raise ValueError(f"no held-out sequence has more than one chunk of {chunk} tokens: there is no trace")
        total, count = _added(sums), _added(counts)
        scored_chunks = np.flatnonzero(count)
        loss, fresh_loss = total[:, scored_chunks] / count[scored_chunks]
        later = scored_chunks[scored_chunks > 0]
        if not len(later):
            raise ValueError("no token after the first chunk is scored: the gain of the state cannot be measured")
        carried, fresh_mean = total[:, later].sum(1) / count[later].sum()
        x, moved = np.arange(1.0, len(length) + 1).tolist(), np.arange(2.0, len(length) + 1).tolist()
        where = (scored_chunks + 1.0).tolist()
        panels = [
            Panel(
                "chunk",
                "norm of the slot",
                [defined_curve(f"slot {slot + 1}", x, length[:, slot]) for slot in range(S)],
            ),
            Panel(
                "chunk",
                "change, relative to the larger norm",
                [defined_curve(f"slot {slot + 1}", moved, change[:, slot]) for slot in range(S)],
            ),
            Panel(
                "chunk",
                "loss (nats per token)",
                [Curve("carried", where, loss.tolist()), Curve("fresh", where, fresh_loss.tolist(), "control")],
            ),
        ]
        metrics = {"gain": float(fresh_mean - carried), "loss": float(carried), "fresh_loss": float(fresh_mean)}
        details = {"length": finite_or_none(length), "change": finite_or_none(change), "tokens": count.tolist()}
        verdict = (
            f"After the first chunk the carried state {'lowers' if metrics['gain'] >= 0 else 'raises'} the loss by "
            f"{abs(metrics['gain']):.4f} nats per token: {carried:.4f}, against {fresh_mean:.4f} with a fresh "
            "state in every chunk."
        )
        return Findings({**metrics, "chunks": len(length)}, panels, details, main=["gain"], verdict=verdict)


def _mean_over_rows(parts: list[np.ndarray]) -> np.ndarray:
    """(C, S): means over all n of parts (n, C', S), with different C', without NaN; NaN if there is nothing else."""
    most = max(part.shape[1] for part in parts)
    padded = [np.pad(part, ((0, 0), (0, most - part.shape[1]), (0, 0)), constant_values=np.nan) for part in parts]
    values = np.concatenate(padded)
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        means: np.ndarray = np.where(known, values, 0).sum(0) / known.sum(0)
    return means


def _added(parts: list[np.ndarray]) -> np.ndarray:
    """The sum of arrays (..., C') with different C', padded with zeros."""
    most = max(part.shape[-1] for part in parts)
    return np.sum([np.pad(part, [(0, 0)] * (part.ndim - 1) + [(0, most - part.shape[-1])]) for part in parts], axis=0)
