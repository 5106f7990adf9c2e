"""Backbones: tokens to a state and a readout at every position."""

from statewise.config import Table

BACKBONES = Table(
    "backbone",
    {
        "belief_slots": (
            "statewise.backbones.belief_slots:BeliefSlots",
            "a GPT over chunks, with a small state that is carried from each to the next",
        ),
        "gpt": ("statewise.backbones.gpt:GPT", "the plain decoder-only transformer"),
        "two_stream": ("statewise.backbones.two_stream:TwoStream", "one slot keeps the state, another predicts"),
    },
)
