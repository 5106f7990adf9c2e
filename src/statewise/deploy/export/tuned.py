"""Models of transformers that were trained on here.

If the objective predicts by the model's own head, the exported model is of the architecture that was tuned (`tuned`).
Otherwise it is our class around that architecture (`embedded`): the folder then needs neither the model that was tuned
nor peft, since it holds all weights, with adapters merged, and the configuration of the architecture.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statewise.backbones.hf.backbone import HuggingFace
from statewise.backbones.hf.loading import SPECIAL_TOKENS, VOLATILE, LoRAConfig, quiet
from statewise.deploy.export import folder_files as files
from statewise.model.model import Model
from statewise.objectives.base import Objective
from statewise.objectives.predictors import CausalPredictor

ADAPTER = "adapter"
"""Folder of the adapter alone, within the exported one."""
EXTRA_STATE = "_extra_state"
"""The name under which torch stores the result of `get_extra_state`."""


class Tuned(NamedTuple):
    """A tuned model."""

    causal: Any
    """The causal language model of transformers, on the CPU, with adapters merged."""
    adapter: Any
    """The model of peft with the adapter alone; None without LoRA."""
    beside: dict[str, Tensor]
    """Other trained tensors, under our names."""
    notes: list[str]


def tuned(model: Model) -> Tuned | None:
    """The model for inference; None if its backbone is one of ours, or if the objective predicts by a head of its
    own."""
    predictor = model.predictor()
    if not isinstance(predictor, CausalPredictor) or not isinstance(predictor.backbone, HuggingFace):
        return None
    backbone = predictor.backbone
    if type(predictor).next_logits is not CausalPredictor.next_logits:
        return None
    (prefix,) = [f"{name}." for name, module in model.objective.named_modules() if module is backbone]
    every = {name: tensor.detach().cpu() for name, tensor in model.objective.state_dict().items()}
    beside = {name: tensor for name, tensor in every.items() if not name.startswith(prefix)}
    notes = [f"tuned from {backbone.config.model}"]
    whole = copy.deepcopy(backbone.causal).cpu().eval()
    if backbone.config.lora.rank is None:
        return Tuned(whole, None, beside, notes)
    notes.append(f"its LoRA adapter of rank {backbone.config.lora.rank} is merged, and alone in {ADAPTER}/")
    return Tuned(whole.merge_and_unload(), backbone.causal, beside, notes)


def write(found: Tuned, folder: Path, end: int | None) -> None:
    """Writes weights and config.json to `folder`, and the adapter, if there is one, below it."""
    parts = {folder / files.WEIGHTS: found.causal}
    if found.adapter is not None:
        parts[folder / ADAPTER / "adapter_model.safetensors"] = found.adapter
    for path, part in parts.items():
        with quiet(), files.errors_of_safetensors(path):
            part.save_pretrained(path.parent, max_shard_size="1000GB")
        mode = (folder / files.CONFIG).stat().st_mode
        others = [one for one in path.parent.iterdir() if one != path and one.is_file()]
        files.settle([path, *others], mode, part.state_dict().values())
    files.write_beside(folder, found.beside)
    fields = json.loads((folder / files.CONFIG).read_text(encoding="utf-8"))
    base = (fields.get("rope_parameters") or {}).get("rope_theta")
    kept = {name: fields.get(name) for name in ("bos_token_id", "pad_token_id")}
    rotary = {} if base is None else {"rope_theta": base}
    files.write_json(folder / files.CONFIG, {**files.config_json({**fields, **rotary}, end), **kept})


class Embedded(NamedTuple):
    """A tuned model with its objective."""

    fields: dict[str, Any]
    """Fields of config.json: the backbone, and `pretrained_config`, the configuration of the architecture."""
    tensors: dict[str, Tensor]
    """All weights by name, on the CPU, for backbones that are made of that configuration."""


def embedded(objective: Objective, backbone: HuggingFace) -> Embedded:
    """The export of an objective and the backbone that it predicts with; neither is changed."""
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
