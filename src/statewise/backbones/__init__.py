"""Backbones, and their table: from tokens to a state and a readout at every position.

Imports `config`, `decoding.carried_state`, and for `leaks` `reporting.tables`. A backbone knows neither tasks nor
losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from statewise.config.registry import Table

if TYPE_CHECKING:
    from statewise.backbones.base import Backbone

__all__ = ["BACKBONES", "CELLS", "with_cells"]

BACKBONES: Table[Backbone] = Table(
    "backbone",
    "backbones",
    "statewise.backbones.base:Backbone",
    {
        "belief_slots": (
            "statewise.backbones.belief_slots:BeliefSlots",
            "a GPT over chunks, with a small state that is carried from each to the next",
        ),
        "deltanet": (
            "statewise.backbones.deltanet:DeltaNet",
            "Gated DeltaNet: a matrix per head is its memory, written by the delta rule",
        ),
        "gpt": ("statewise.backbones.gpt:GPT", "the plain decoder-only transformer"),
        "hf": (
            "statewise.backbones.hf.backbone:HuggingFace",
            "fine-tunes a Hugging Face causal language model, fully or with LoRA",
        ),
        "recurrent": ("statewise.backbones.recurrent:Recurrent", "GRU or LSTM: the hidden state is its only memory"),
        "two_stream": ("statewise.backbones.two_stream:TwoStream", "one stream keeps the state, another predicts"),
    },
)

CELLS = ("gru", "lstm")
"""The cells of the backbone `recurrent`. On the command line, each may be given as a backbone."""


def with_cells(flags: Sequence[str]) -> list[str]:
    """`--backbone=lstm` as the flags of `recurrent` that it stands for."""
    flags_for_parser: list[str] = []
    for flag in flags:
        key, _, value = flag.partition("=")
        short = key == "--backbone" and value in CELLS
        flags_for_parser += ["--backbone=recurrent", f"--backbone.cell={value}"] if short else [flag]
    return flags_for_parser
