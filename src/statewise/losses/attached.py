"""A loss attached to a causal language model of transformers, for trainers that take a function `compute_loss_func`.

The loss becomes the submodule `statewise_loss` of the model: its parameters are trained with the model's and saved
beside them. Hooks note what the model reads and its last hidden states. transformers itself is not imported here.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from statewise import losses
from statewise.losses.sequence_loss import SequenceLoss

ATTRIBUTE = "statewise_loss"
"""The name of the submodule, and of the entry of the model's configuration that says how to make it again."""
NAMES = {
    "next_token": "NextTokenLoss",
    "next_latent": "NextLatentLoss",
    "joint_multi_token": "JointMultiTokenLoss",
    "token_order": "TokenOrderLoss",
    "future_summary": "FutureSummaryLoss",
    "semantic_tube": "SemanticTubeLoss",
}
"""The losses by the names of the objectives."""
Compute = Callable[..., Tensor]
"""(outputs, labels, num_items_in_batch=None) -> the scalar to differentiate."""


def attach(model: Any, name: str, settings: Mapping[str, Any]) -> SequenceLoss:
    """Makes the loss `name`, of the widths of `model`, and attaches it. Raises `ValueError` if there is no such loss,
    or if it does not fit the model."""
    if name not in NAMES:
        raise ValueError(f"there is no loss {name!r} for a model of transformers; there are {', '.join(NAMES)}")
    kind: Any = getattr(losses, NAMES[name])
    head = model.get_output_embeddings()
    if head is None or getattr(head, "bias", None) is not None:
        raise ValueError(f"{type(model).__name__} has no vocabulary head without bias, which the losses need")
    vocabulary, width = head.weight.shape
    known = inspect.signature(kind).parameters
    sizes = {"width": width, "vocabulary": vocabulary}
    try:
        loss: SequenceLoss = kind(**{key: size for key, size in sizes.items() if key in known}, **settings)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from None
    setattr(model, ATTRIBUTE, loss.to(device=head.weight.device, dtype=head.weight.dtype))
    setattr(model.config, ATTRIBUTE, {"name": name, **settings})
    return loss


def loss_for(model: Any, name: str, **settings: Any) -> Compute:
    """Attaches the loss `name` to a causal language model and returns the function for a trainer's `compute_loss_func`:

    trainer = Trainer(model, ..., compute_loss_func=loss_for(model, "next_latent", horizon=2))

    Make the trainer afterwards, so that its optimiser gets the loss's parameters. `settings` are those of the loss's
    class. The function takes the model's outputs, the labels, -100 where nothing is scored, and the number of scored
    tokens of all accumulated batches, and returns the loss. Rows packed by `position_ids` stay documents; without them
    `attention_mask` says what is padding. Raises `ValueError` if the loss does not fit the model, at the first call
    also if the model's logits are not a linear map of its last hidden states.
    """
    loss = attach(model, name, settings)
    read: dict[str, Any] = {}

    def note_inputs(_: nn.Module, args: tuple[Any, ...], inputs: dict[str, Any]) -> None:
        read.clear()
        read.update(inputs)
        if args:
            read["input_ids"] = args[0]

    def note_states(_: nn.Module, __: Any, output: Any) -> None:
        read["hidden"] = output[0]

    model.register_forward_pre_hook(note_inputs, with_kwargs=True)
    base = getattr(model, "base_model", model)
    base = base.model.base_model if hasattr(base, "peft_config") or hasattr(model, "peft_config") else base
    base.register_forward_hook(note_states)
    compared = False

    def compute(outputs: Any, labels: Tensor | None = None, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        nonlocal compared
        if read.get("input_ids") is None or "hidden" not in read:
            raise ValueError("the loss needs input_ids and the last hidden states of the model that it was made for")
        hidden, tokens = read["hidden"], read["input_ids"]
        head, logits = model.get_output_embeddings(), getattr(outputs, "logits", None)
        if not compared and logits is not None and logits.shape[:2] == tokens.shape:
            _compare(hidden, head.weight, logits)
            compared = True
        positions, mask = read.get("position_ids"), read.get("attention_mask")
        where: dict[str, Any] = {}
        if positions is not None:
            where["position_ids"] = positions.expand_as(tokens)
        elif isinstance(mask, Tensor) and mask.ndim == 2:
            where["documents"] = mask.long()
        given = labels if labels is not None else read.get("labels")
        output = loss(
            hidden,
            tokens,
            head_weight=head.weight,
            embedding=model.get_input_embeddings(),
            labels=given,
            num_items=num_items_in_batch,
            **where,
        )
        read.clear()
        value: Tensor = output.loss
        return value

    return compute


@torch.no_grad()
def _compare(hidden: Tensor, weight: Tensor, logits: Tensor) -> None:
    """Raises `ValueError` unless the logits of a row's last position are the head's product with the hidden state."""
    own = F.linear(hidden[:1, -1].to(weight.dtype), weight).float()
    given = logits[:1, -1].float()
    if not torch.allclose(own, given, rtol=0.05, atol=0.05 * float(given.abs().max())):
        raise ValueError(
            "the logits of this model are not a linear map of its last hidden states (they are scaled or capped): the "
            "losses do not fit it"
        )


def attach_kept(model: Any, folder: Path) -> SequenceLoss:
    """Attaches the loss that a model was saved with, from the weights in `folder`. Raises `ValueError` if it was saved
    with none."""
    from safetensors import safe_open

    kept = getattr(model.config, ATTRIBUTE, None)
    if not isinstance(kept, dict) or not isinstance(kept.get("name"), str):
        raise ValueError(f"{folder}: the model was saved without a loss of statewise (config.json has no {ATTRIBUTE})")
    loss = attach(model, kept["name"], {key: value for key, value in kept.items() if key != "name"})
    index, prefix = folder / "model.safetensors.index.json", f"{ATTRIBUTE}."
    kept_in = json.loads(index.read_text())["weight_map"].values() if index.exists() else ["model.safetensors"]
    weights = {}
    for part in sorted(set(kept_in)):
        with safe_open(folder / part, "pt") as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118 (no mapping)
            weights.update({name[len(prefix) :]: file.get_tensor(name) for name in names})
    try:
        loss.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(
            f"{folder}: the weights of its loss do not fit: {str(error).splitlines()[-1].strip()}"
        ) from None
    return loss
