"""Decoders: from prompts to completions, using a predictor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statewise.config.registry import Table

if TYPE_CHECKING:
    from statewise.decoding.base import Decoder

__all__ = ["DECODERS"]

DECODERS: Table[Decoder] = Table(
    "decoder",
    "decoders",
    "statewise.decoding.base:Decoder",
    {
        "greedy": ("statewise.decoding.sample:Greedy", "the most likely token at every step"),
        "sample": ("statewise.decoding.sample:Sample", "draws by temperature, top-k and top-p"),
        "speculative": (
            "statewise.decoding.speculative:Speculative",
            "the completions of greedy or sample in fewer passes: tokens are drafted and checked together",
        ),
        "beam": ("statewise.decoding.beam:Beam", "beam search: ranked by log-probability"),
        "goal_search": (
            "statewise.decoding.goal_search:GoalSearch",
            "many rollouts, ranked by how well they lead to a goal or end",
        ),
    },
)
