"""What the states of a trained model hold: the table of analyses, which `statewise analyze` runs by name.

Imports `beliefs`, `config`, `decoding`, `evaluation.scoring`, `reporting.drawings`, `reporting.figures`,
`reporting.plots`, `reporting.tables` and `tasks`. An analysis gets a `Subject` with predictors; it does not depend on
networks or runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statewise.config.recipe import fill
from statewise.config.registry import Table

if TYPE_CHECKING:
    from statewise.analysis.base import Analysis

__all__ = ["ANALYSES"]

ANALYSES: Table[Analysis] = Table(
    "analysis",
    "analyses",
    "statewise.analysis.base:Analysis",
    {
        "answer-from-state": (
            "statewise.analysis.answer_from_state:AnswerFromState",
            "how much of the answer the model decodes from the state after the prompt alone",
        ),
        "belief-dynamics": (
            "statewise.analysis.beliefs.bayes_rule:BeliefDynamics",
            "whether learned dynamics, rolled along tokens, follow Bayes' rule (next_latent on task hmm)",
        ),
        "belief-geometry": (
            "statewise.analysis.beliefs.geometry:BeliefGeometry",
            "whether a linear map finds the exact belief in the states (task hmm)",
        ),
        "compression": (
            "statewise.analysis.world_models.prefix_pairs:Compression",
            "whether prefixes that lead to the same state have the same continuations",
        ),
        "detours": (
            "statewise.analysis.world_models.detours:Detours",
            "whether sequences still reach their end if other tokens replace some of the model's",
        ),
        "distinction": (
            "statewise.analysis.world_models.prefix_pairs:Distinction",
            "whether prefixes that lead to different states have different continuations",
        ),
        "dynamics-accuracy": (
            "statewise.analysis.rollouts:DynamicsAccuracy",
            "accuracy of answers from learned dynamics alone, by length, beside the backbone's (next_latent)",
        ),
        "effective-rank": (
            "statewise.analysis.effective_rank:EffectiveRank",
            "how many dimensions the belief states effectively use",
        ),
        "equations": (
            "statewise.analysis.equations:Equations",
            "the first wrong equation of a model's solutions (task countdown)",
        ),
        "fetch": (
            "statewise.analysis.fetch:Fetch",
            "when the prediction stream of two streams learns to attend to its own input",
        ),
        "future-probe": (
            "statewise.analysis.probes.targets:FutureProbe",
            "which later tokens a probe decodes from the belief state",
        ),
        "gradient-ratio": (
            "statewise.analysis.streams:GradientRatio",
            "how much gradient of later losses each stream of a position receives",
        ),
        "inductive-bias": (
            "statewise.analysis.world_models.inductive_bias:InductiveBias",
            "whether functions learned from few examples are functions of the true state",
        ),
        "map": (
            "statewise.analysis.world_models.map:MapReconstruction",
            "the street map implied by a model's rides, with a drawing",
        ),
        "prompt-probe": (
            "statewise.analysis.probes.targets:PromptProbe",
            "which tokens of the prompt a probe decodes from the state after it",
        ),
        "restricted-state": (
            "statewise.analysis.streams:RestrictedState",
            "how much the loss rises if attention is restricted to the last positions",
        ),
        "rollout-drift": (
            "statewise.analysis.rollouts:RolloutDrift",
            "how far learned dynamics stay with the true states, and how many of their drafts are accepted, by step",
        ),
        "slot-trace": (
            "statewise.analysis.slot_trace:SlotTrace",
            "the carried state of belief slots over a sequence, and how much it lowers the loss",
        ),
        "strips-extract": (
            "statewise.extraction.implied:StripsExtract",
            "whether the action model that the model implies is the true domain (task strips_traces)",
        ),
        "suffixes": (
            "statewise.analysis.suffixes:Suffixes",
            "next symbol, suffix, remaining steps and remaining time, by the number of symbols read (task sequences)",
        ),
        "world-probe": (
            "statewise.analysis.probes.targets:WorldProbe",
            "whether a probe decodes the task's true state from the belief state",
        ),
    },
)


def make_analysis(name: str, **fields: Any) -> Analysis:
    """The analysis of a name, with these fields. Raises `ValueError` for an unknown name, field or value."""
    kind = ANALYSES[name]
    return kind(fill(kind.Config, fields, f"analysis {name}"))
