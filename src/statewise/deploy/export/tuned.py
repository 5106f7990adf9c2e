"""Models of transformers that were trained on here: they leave as what they came."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from statewise.backbones.hf.backbone import HuggingFace
from statewise.backbones.hf.loading import quiet
from statewise.deploy.export import folder_files as files
from statewise.model.model import Model
from statewise.objectives.predictors import CausalPredictor

ADAPTER = "adapter"
"""Folder of the adapter alone, within the exported one."""


class Tuned(NamedTuple):
    """A tuned model."""

    causal: Any
    """The causal language model of transformers, on the CPU, with adapters merged."""
    adapter: Any
    """The model of peft with the adapter alone; None without LoRA."""
    beside: dict[str, Tensor]
    """What else was trained, under our names."""
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
