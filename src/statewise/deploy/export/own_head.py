"""Tuned models of transformers whose objective predicts by a head of its own: they leave in our class, around the
architecture that they came with.

The folder needs neither the model that was tuned nor peft: it holds all weights, with adapters merged, and the
configuration of the architecture.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statewise.backbones.hf.backbone import HuggingFace
from statewise.backbones.hf.config import LoRAConfig
from statewise.backbones.hf.loading import SPECIAL_TOKENS, VOLATILE
from statewise.objectives.base import Objective

EXTRA_STATE = "_extra_state"
"""The name that torch gives to what `get_extra_state` returns."""


class Embedded(NamedTuple):
    """A tuned model with its objective."""

    fields: dict[str, Any]
    """Of config.json: the backbone, and `pretrained_config`, the configuration of the architecture."""
    tensors: dict[str, Tensor]
    """All weights by name, on the CPU, for backbones that are made of that configuration."""


def embedded(objective: Objective, backbone: HuggingFace) -> Embedded:
    """Of an objective and the backbone that it predicts with; neither is changed."""
    ours = dataclasses.replace(
        backbone.config,
        from_scratch=True,
        tied=backbone.tied,
        revision=None,
        lora=LoRAConfig(),
        gradient_checkpointing=False,
    )
    theirs = {name: value for name, value in backbone.unwrapped.config.to_dict().items() if name not in VOLATILE}
    theirs |= {"vocab_size": backbone.vocabulary, "tie_word_embeddings": backbone.tied}
    theirs |= dict.fromkeys(SPECIAL_TOKENS)  # which may be beyond the vocabulary
    fields = {"backbone": {"name": "hf", **dataclasses.asdict(ours)}, "pretrained_config": theirs}
    return Embedded(fields, _tensors(objective))


def _tensors(objective: Objective) -> dict[str, Tensor]:
    whole = copy.deepcopy(objective).cpu().eval()
    backbones = {f"{name}.": part for name, part in whole.named_modules() if isinstance(part, HuggingFace)}
    for part in backbones.values():
        if part.adapted:
            part.causal.merge_and_unload()
        part.requires_grad_(True)  # a state dict holds no frozen weights
    found = {name: tensor.detach() for name, tensor in whole.state_dict().items() if not name.endswith(EXTRA_STATE)}
    for prefix, part in backbones.items():
        if part.lender is None:
            _resize(found, prefix, part)
    return {f"objective.{name}": tensor.contiguous() for name, tensor in found.items()}


def _resize(found: dict[str, Tensor], prefix: str, backbone: HuggingFace) -> None:
    """Makes the rows of the embedding, and of the head, if it has a matrix of its own, those of the vocabulary."""
    table, count = backbone.unwrapped.get_input_embeddings(), backbone.vocabulary
    (name,) = [name for name, each in backbone.named_parameters() if each is table.weight]
    more = found.pop(f"{prefix}tokens.extra", table.weight.detach()[:0])
    # Some families multiply what they read of the table by a constant; the rows beyond it are read as they are.
    scale = float(getattr(table, "embed_scale", 1.0))
    found[prefix + name] = torch.cat((found[prefix + name], more / scale))[:count]
    if backbone.head is not None:
        found[f"{prefix}head"] = torch.cat((found[f"{prefix}head"], more))[:count]
