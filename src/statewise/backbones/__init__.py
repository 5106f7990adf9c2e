"""Backbones: tokens to a state and a readout at every position."""

from statewise.config import Table

BACKBONES = Table(
    "backbone",
    {
        "gpt": ("statewise.backbones.gpt:GPT", "the plain decoder-only transformer"),
    },
)
