"""Backbones: tokens to a state and a readout at every position."""

from statewise.config import Table

BACKBONES = Table(
    "backbone",
    {
        "gpt": ("statewise.backbones.gpt:GPT", "the plain decoder-only transformer"),
        "two_stream": ("statewise.backbones.two_stream:TwoStream", "one slot keeps the state, another predicts"),
    },
)
