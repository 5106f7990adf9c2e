"""Analyses: what the states of a trained model hold."""

from statewise.config import Table

ANALYSES = Table(
    "analysis",
    {
        "effective-rank": (
            "statewise.analysis.effective_rank:EffectiveRank",
            "how many dimensions the belief states really use",
        ),
    },
)
