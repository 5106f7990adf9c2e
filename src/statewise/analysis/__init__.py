"""Analyses: what the states of a trained model hold."""

from statewise.config import Table

ANALYSES = Table(
    "analysis",
    {
        "compression": (
            "statewise.analysis.compression:Compression",
            "whether two pasts that come to one state have one future",
        ),
        "detours": (
            "statewise.analysis.detours:Detours",
            "whether sequences come to their end although other tokens replace some of the model's",
        ),
        "distinction": (
            "statewise.analysis.distinction:Distinction",
            "whether two pasts that come to different states differ in their futures",
        ),
        "effective-rank": (
            "statewise.analysis.effective_rank:EffectiveRank",
            "how many dimensions the belief states really use",
        ),
        "equations": (
            "statewise.analysis.equations:Equations",
            "at which equation of its solutions a model goes wrong (task countdown)",
        ),
        "future-probe": (
            "statewise.analysis.probes:FutureProbe",
            "which later tokens a small network can read off the belief state",
        ),
        "gradient-ratio": (
            "statewise.analysis.gradient_ratio:GradientRatio",
            "how much of the gradient of later losses each slot of a place gets",
        ),
        "map": (
            "statewise.analysis.map:MapReconstruction",
            "the street map that a model's rides imply, with its picture",
        ),
        "prompt-probe": (
            "statewise.analysis.probes:PromptProbe",
            "which of the prompt's tokens a small network can read off the state after it",
        ),
        "restricted-state": (
            "statewise.analysis.restricted_state:RestrictedState",
            "how much the loss rises if the kept state is cut to the last places",
        ),
        "slot-trace": (
            "statewise.analysis.slot_trace:SlotTrace",
            "the carried state of belief slots over a sequence, and what it is worth",
        ),
        "world-probe": (
            "statewise.analysis.probes:WorldProbe",
            "whether a small network can read the task's true state off the belief state",
        ),
    },
)
