"""Fields of `backbone: hf`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from statewise.runtime.bounds import bounded, unset


@dataclass(frozen=True)
class LoRAConfig:
    """Low-rank adaptation (Hu et al. 2022): each adapted matrix W becomes W + alpha / rank * B A."""

    rank: int | None = None
    """Rank of the matrices A and B, which alone are trained of the model; null: the whole model is trained."""
    alpha: float | None = None
    """Numerator of their factor; null: twice the rank."""
    dropout: float = 0.0
    """Dropout of their input during training."""
    targets: str = "all-linear"
    """Names of the adapted layers, with commas (`q_proj,v_proj`); all-linear: every linear layer but the head."""

    def __post_init__(self) -> None:
        bounded(self, "rank", prefix="backbone.lora.", at_least=1)
        bounded(self, "alpha", prefix="backbone.lora.", above=0)
        bounded(self, "dropout", prefix="backbone.lora.", at_least=0, below=1)
        if self.rank is None:
            why = "needs backbone.lora.rank: without it the whole model is trained"
            unset(self, "alpha", "dropout", "targets", prefix="backbone.lora.", reason=why)
        if not self.targets.replace(",", "").strip():
            raise ValueError("backbone.lora.targets is empty: name layers, or all-linear")


@dataclass(frozen=True)
class HuggingFaceConfig:
    """Fields of `backbone: hf`."""

    model: str = ""
    """A folder of Hugging Face, or the name of a model on the hub."""
    revision: str | None = None
    """Branch, tag or commit on the hub; null: its main branch."""
    from_scratch: bool = False
    """Whether to draw new weights and use only the configuration of the model."""
    layers: int | None = None
    """Layers to keep, the first ones; null: all."""
    tied: bool | None = None
    """Whether the vocabulary head shares the token embedding's matrix; null: as in the model."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """Attention of transformers: PyTorch's fused kernels (sdpa), or explicit products (eager)."""
    gradient_checkpointing: bool = False
    """Whether training recomputes layers in the backward pass: less memory, about a third more time."""
    standardised_state: bool = True
    """Whether states have mean 0 and variance 1 in every feature, before training, so that outlier features of the
    model do not dominate losses on states. The vocabulary head reads the unchanged output in either case."""
    backward_from: Literal["fresh", "copy"] = "fresh"
    """Weights of a second encoder, for objectives with one: new ones, or a copy of the model's."""
    lora: LoRAConfig = LoRAConfig()
    """Low-rank adaptation of pre-trained weights; a fresh second encoder is trained whole."""

    def __post_init__(self) -> None:
        bounded(self, "layers", prefix="backbone.", at_least=1)
        if self.from_scratch and self.lora.rank is not None:
            raise ValueError(
                "backbone.from_scratch and backbone.lora.rank exclude each other: LoRA adapts pre-trained weights"
            )
