"""Training objectives for backbones, one file per paper, and their table.

Imports `backbones.base`, `backbones.capabilities`, `backbones.nn`, `config`, `decoding.carried_state`,
`decoding.predictor` and `losses`. An objective knows neither tasks nor files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statewise.config.registry import Table

if TYPE_CHECKING:
    from statewise.objectives.base import Objective

__all__ = ["OBJECTIVES"]

OBJECTIVES: Table[Objective] = Table(
    "objective",
    "objectives",
    "statewise.objectives.base:Objective",
    {
        "next_token": ("statewise.objectives.next_token:NextToken", "cross-entropy of the next token (GPT)"),
        "belief_state": (
            "statewise.objectives.belief_state.objective:BeliefState",
            "next and previous tokens of every prefix-suffix pair (BST)",
        ),
        "joint_multi_token": (
            "statewise.objectives.joint_multi_token:JointMultiToken",
            "later tokens too, each from the state and the tokens between (JTP)",
        ),
        "multi_token": (
            "statewise.objectives.multi_token:MultiToken",
            "later tokens too, each by a last block of its own (MTP)",
        ),
        "teacherless": (
            "statewise.objectives.teacherless:Teacherless",
            "the whole answer at once, from the prompt alone",
        ),
        "next_latent": (
            "statewise.objectives.next_latent:NextLatent",
            "the state also predicts later states (NextLat)",
        ),
        "token_order": (
            "statewise.objectives.token_order:TokenOrder",
            "which tokens come soonest, by a second head (TOP)",
        ),
        "future_summary": (
            "statewise.objectives.future_summary:FutureSummary",
            "a summary of what follows, by a reverse model or a bag of words (FSP)",
        ),
        "latent_multi_token": (
            "statewise.objectives.latent_multi_token:LatentMultiToken",
            "multi-token heads whose states are pulled to the true ones (LSE-MTP)",
        ),
        "semantic_tube": ("statewise.objectives.semantic_tube:SemanticTube", "states follow straight paths (STP)"),
    },
)
