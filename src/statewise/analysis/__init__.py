"""Analyses: what the states of a trained model hold."""

from statewise.config import Table

ANALYSES = Table(
    "analysis",
    {
        "effective-rank": (
            "statewise.analysis.effective_rank:EffectiveRank",
            "how many dimensions the belief states really use",
        ),
        "future-probe": (
            "statewise.analysis.probes:FutureProbe",
            "which later tokens a small network can read off the belief state",
        ),
        "prompt-probe": (
            "statewise.analysis.probes:PromptProbe",
            "which of the prompt's tokens a small network can read off the state after it",
        ),
        "world-probe": (
            "statewise.analysis.probes:WorldProbe",
            "whether a small network can read the task's true state off the belief state",
        ),
    },
)
