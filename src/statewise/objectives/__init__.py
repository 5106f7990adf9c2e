"""Objectives: what a backbone is trained for, one file a paper."""

from statewise.config import Table

OBJECTIVES = Table(
    "objective",
    {
        "next_token": ("statewise.objectives.next_token:NextToken", "cross-entropy of the next token (GPT)"),
        "next_latent": (
            "statewise.objectives.next_latent:NextLatent",
            "the state also predicts later states (NextLat)",
        ),
    },
)
