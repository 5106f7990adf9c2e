"""Low-rank adaptation by the package peft."""

from __future__ import annotations

import warnings
from typing import Any

from statewise.backbones.hf.config import LoRAConfig
from statewise.runtime.extras import needed

USERS = "LoRA adapters"


def add_lora(causal: Any, config: LoRAConfig, model: str) -> Any:
    """Freezes a causal language model of transformers and adds adapters to it, in place; returns the model of peft
    around it. Raises `ValueError` if no layer has such a name, or if it is the embedding or the head."""
    peft = needed("peft", USERS)
    rank = config.rank
    assert rank is not None
    targets: Any = [name.strip() for name in config.targets.split(",") if name.strip()]
    made = peft.LoraConfig(
        r=rank,
        lora_alpha=2 * rank if config.alpha is None else config.alpha,
        lora_dropout=config.dropout,
        target_modules="all-linear" if targets == ["all-linear"] else targets,
        task_type="CAUSAL_LM",
    )
    head, table = causal.get_output_embeddings(), causal.get_input_embeddings()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that GPT-2's matrices are transposed, which peft then handles
        try:
            adapted = peft.get_peft_model(causal, made)
        except ValueError as error:
            raise ValueError(
                f"backbone.lora.targets {config.targets}: {model} has no such layers to adapt: {str(error)[:200]}"
            ) from None
    if causal.get_output_embeddings() is not head:
        raise ValueError("backbone.lora.targets names the vocabulary head, which must be a plain matrix: leave it out")
    if causal.get_input_embeddings() is not table:
        raise ValueError("backbone.lora.targets names the embedding, which must be a plain table: leave it out")
    return adapted
