"""Losses that make the states of any sequence model belief states, for your own training loop.

from statewise.losses import NextLatentLoss
latent = NextLatentLoss(width=768, horizon=2)
out = latent(hidden, tokens, head_weight=model.lm_head.weight, embedding=model.get_input_embeddings())
out.loss.backward()

This room imports PyTorch and no other package; only `belief_state` needs NumPy too. Of `statewise` it imports
`backbones.nn`. The objectives of
`statewise train` compute their losses here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statewise.losses.belief_state.loss import BeliefStatePair as BeliefStatePair
    from statewise.losses.belief_state.loss import belief_state_loss as belief_state_loss
    from statewise.losses.future_summary import FutureSummaryLoss as FutureSummaryLoss
    from statewise.losses.joint_multi_token import JointMultiTokenLoss as JointMultiTokenLoss
    from statewise.losses.multi_token import MultiTokenLoss as MultiTokenLoss
    from statewise.losses.next_latent import NextLatentLoss as NextLatentLoss
    from statewise.losses.next_token import NextTokenLoss as NextTokenLoss
    from statewise.losses.semantic_tube import SemanticTubeLoss as SemanticTubeLoss
    from statewise.losses.sequence_loss import LossOutput as LossOutput
    from statewise.losses.sequence_loss import SequenceLoss as SequenceLoss
    from statewise.losses.token_order import TokenOrderLoss as TokenOrderLoss

__all__ = [
    "BeliefStatePair",
    "FutureSummaryLoss",
    "JointMultiTokenLoss",
    "LossOutput",
    "MultiTokenLoss",
    "NextLatentLoss",
    "NextTokenLoss",
    "SemanticTubeLoss",
    "SequenceLoss",
    "TokenOrderLoss",
    "belief_state_loss",
]

_MODULES = {
    "BeliefStatePair": "belief_state.loss",
    "FutureSummaryLoss": "future_summary",
    "JointMultiTokenLoss": "joint_multi_token",
    "LossOutput": "sequence_loss",
    "MultiTokenLoss": "multi_token",
    "NextLatentLoss": "next_latent",
    "NextTokenLoss": "next_token",
    "SemanticTubeLoss": "semantic_tube",
    "SequenceLoss": "sequence_loss",
    "TokenOrderLoss": "token_order",
    "belief_state_loss": "belief_state.loss",
}
"""The modules of the losses, imported on first use: who trains one objective reads one file."""

if not TYPE_CHECKING:  # type checkers get the names from the imports above

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
