"""A loss attached to a causal language model of transformers, for trainers that take a function `compute_loss_func`.

The loss becomes the submodule `statewise_loss` of the model: its parameters are trained with the model's and saved
beside them. Hooks note what the model reads and its last hidden states. transformers itself is not imported here.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from statewise import losses
from statewise.losses.sequence_loss import SequenceLoss
from statewise.runtime.extras import failing_as
from statewise.runtime.json_files import ANYTHING, Leaf, Shape, read_json

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
FILE = Leaf("the name of a file beside it", lambda value: isinstance(value, str) and Path(value).name == value)
INDEX: Shape = {"weight_map": {...: FILE}, ...: ANYTHING}
"""The file that says which file has which weight."""
Compute = Callable[..., Tensor]
"""(outputs, labels, num_items_in_batch=None) -> the scalar to differentiate."""


def make(model: Any, name: str, settings: Mapping[str, Any]) -> SequenceLoss:
    """The loss `name`, of the widths of `model`. Raises `ValueError` if there is no such loss, or if it does not fit
    the model."""
    if name not in NAMES:
        raise ValueError(f"there is no loss {name!r} for a model of transformers; there are {', '.join(NAMES)}")
    if hasattr(model, "peft_config"):
        raise ValueError(
            f'make the loss before PEFT wraps the model, and give its configuration modules_to_save=["{ATTRIBUTE}"]'
        )
    if not hasattr(model, "get_output_embeddings"):
        raise ValueError(f"the model must be a causal language model of transformers, not {type(model).__name__}")
    kind: Any = getattr(losses, NAMES[name])
    head = model.get_output_embeddings()
    if head is None or getattr(head, "bias", None) is not None:
        raise ValueError(f"{type(model).__name__} has no vocabulary head without bias, which the losses need")
    if getattr(model.config.get_text_config(), "final_logit_softcapping", None):  # small logits would not show it
        raise ValueError(f"{type(model).__name__} caps its logits (final_logit_softcapping), which the losses do not")
    vocabulary, width = head.weight.shape
    known = inspect.signature(kind).parameters
    sizes = {"width": width, "vocabulary": vocabulary}
    try:
        loss: SequenceLoss = kind(**{key: size for key, size in sizes.items() if key in known}, **settings)
    except TypeError as error:
        if unknown := re.search(r"keyword argument '(\w+)'", str(error)):
            raise ValueError(f"the loss {name} has no setting {unknown[1]} here") from None
        raise ValueError(f"{name}: {error}") from None
    return loss


def attach(model: Any, loss: SequenceLoss, name: str, settings: Mapping[str, Any]) -> None:
    """Makes `loss` the submodule of `model`, where the vocabulary head is, and notes in its configuration what `make`
    needs."""
    weight = model.get_output_embeddings().weight
    setattr(model, ATTRIBUTE, loss.to(device=weight.device, dtype=weight.dtype))
    setattr(model.config, ATTRIBUTE, {"name": name, **settings})


def loss_for(model: Any, name: str, *, label_smoothing: float = 0.0, logits: bool = True, **settings: Any) -> Compute:
    """Attaches the loss `name` to a causal language model and returns the function for a trainer's `compute_loss_func`:

    trainer = Trainer(model, ..., compute_loss_func=loss_for(model, "next_latent", horizon=2))

    Make the trainer afterwards, so that its optimiser gets the loss's parameters. `settings` are those of the loss's
    class. The function takes the model's outputs, the labels, -100 where nothing is scored, and the number of scored
    tokens of all accumulated batches, and returns the loss. Rows packed by `position_ids` stay documents; without them
    `attention_mask` says what is padding.

    `label_smoothing` takes the place of the trainer's, which does not reach a function of this kind. `logits` False: in
    training the model computes the logits of the last position alone, which nothing reads; not for trainers that take
    figures from them, as that of TRL. Raises `ValueError` if the loss does not fit the model, at the first call also if
    the model's logits are not a linear map of its last hidden states.
    """
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be at least 0 and at most 1, not {label_smoothing}")
    attach(model, make(model, name, settings), name, settings)
    if not logits and "logits_to_keep" not in inspect.signature(model.forward).parameters:
        raise ValueError(f"logits must be true: {type(model).__name__} has no argument logits_to_keep")
    seen = _Seen(model, logits)
    compared = False

    def compute(outputs: Any, labels: Tensor | None = None, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        nonlocal compared
        hidden, tokens, where = seen.take()
        head, given = model.get_output_embeddings(), getattr(outputs, "logits", None)
        if not compared and given is not None:
            _compare(hidden, head.weight, given)
            compared = True
        loss = getattr(model, ATTRIBUTE)  # PEFT may have put its copy there
        learned = [part.requires_grad for part in loss.parameters()]
        if torch.is_grad_enabled() and learned and not any(learned):
            raise ValueError(
                f"the parameters of {ATTRIBUTE} are frozen. If PEFT froze them, give its configuration "
                f'modules_to_save=["{ATTRIBUTE}"]'
            )
        with seen.autocast:
            output = loss(
                hidden,
                tokens,
                head_weight=head.weight,
                embedding=model.get_input_embeddings(),
                labels=seen.labels if labels is None else labels,
                num_items=num_items_in_batch,
                label_smoothing=label_smoothing,
                **where,
            )
        value: Tensor = output.loss
        return value

    return compute


class _Seen:
    """What a model has read, and its last hidden states, noted by hooks until a loss is computed of them."""

    def __init__(self, model: Any, logits: bool) -> None:
        self.logits = logits
        self.read: dict[str, Any] = {}
        self.hidden: Tensor | None = None
        self.autocast: Any = contextlib.nullcontext()
        model.register_forward_pre_hook(self._note_inputs, with_kwargs=True)
        model.base_model.register_forward_hook(self._note_states)
        model.register_forward_hook(self._show_parameters)

    def take(self) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The hidden states (B, T, D), the tokens (B, T), and the arguments that say which document each position is
        of. Raises `ValueError` if the model was not called since."""
        hidden, tokens = self.hidden, self.read.get("input_ids")
        if hidden is None or tokens is None:
            raise ValueError("the loss needs input_ids and the last hidden states of the model that it was made for")
        positions, mask = self.read.get("position_ids"), self.read.get("attention_mask")
        self.hidden = None
        if positions is not None:
            return hidden, tokens, {"position_ids": positions.expand_as(tokens)}
        if isinstance(mask, Tensor) and mask.ndim == 2:
            return hidden, tokens, {"documents": mask.long()}
        return hidden, tokens, {}

    @property
    def labels(self) -> Tensor | None:
        """(B, T): the labels that the model itself was given."""
        return self.read.get("labels")

    def _note_inputs(self, model: nn.Module, args: tuple[Any, ...], inputs: dict[str, Any]) -> Any:
        self.hidden = None
        self.read = {name: inputs.get(name) for name in ("input_ids", "position_ids", "attention_mask", "labels")}
        if args:
            self.read["input_ids"] = args[0]
        return None if self.logits or not model.training else (args, {**inputs, "logits_to_keep": 1})

    def _note_states(self, _: nn.Module, __: Any, output: Any) -> None:
        self.hidden = output[0]
        kind = output[0].device.type
        self.autocast = torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))

    def _show_parameters(self, model: nn.Module, _: Any, output: Any) -> None:
        """DDP looks for the parameters that the model's outputs depend on: it finds the loss's by hidden states, which
        nobody reads."""
        if self.hidden is None or not torch.is_grad_enabled() or not isinstance(output, dict):
            return
        nothing = sum(parameter.flatten()[:0].sum() for parameter in getattr(model, ATTRIBUTE).parameters())
        states = output.get("hidden_states") or (self.hidden,)
        output["hidden_states"] = (*states[:-1], states[-1] + nothing)


@torch.no_grad()
def _compare(hidden: Tensor, weight: Tensor, logits: Tensor) -> None:
    """Raises `ValueError` unless the logits of a row's last position are the head's product with the hidden state."""
    own = F.linear(hidden[:1, -1].to(weight.dtype), weight).float()
    given = logits[:1, -1].float()
    if not given.isfinite().all():
        return  # the loss is not finite either, and a trainer says so
    within = 1e-3 if hidden.dtype == logits.dtype == torch.float32 else 0.05  # of the largest logit
    if not torch.allclose(own, given, rtol=0, atol=within * float(given.abs().max())):
        raise ValueError(
            "the logits of this model are not the vocabulary head's product with its last hidden states; they may be "
            "scaled: the losses do not fit it"
        )


def attach_kept(model: Any, folder: Path) -> SequenceLoss:
    """Attaches the loss that a model was saved with, from the weights in `folder`. Raises `ValueError` if it was saved
    with none."""
    from safetensors import safe_open

    kept = getattr(model.config, ATTRIBUTE, None)
    if not isinstance(kept, dict) or not isinstance(kept.get("name"), str):
        raise ValueError(f"{folder}: the model was saved without a loss of statewise (config.json has no {ATTRIBUTE})")
    name, settings = kept["name"], {key: value for key, value in kept.items() if key != "name"}
    index, prefix = folder / "model.safetensors.index.json", f"{ATTRIBUTE}."
    parts = read_json(index, INDEX)["weight_map"].values() if index.exists() else ["model.safetensors"]
    weights = {}
    for part in sorted(set(parts)):
        if not (folder / part).is_file():
            raise ValueError(f"{folder} has no {part}: a loss is read from a folder that save_pretrained wrote")
        with failing_as(f"{folder / part}: not a file of weights"), safe_open(folder / part, "pt") as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118 (no mapping)
            weights.update({name[len(prefix) :]: file.get_tensor(name) for name in names})
    try:
        with torch.device("meta"):  # whatever sizes the configuration says
            loss = make(model, name, settings)
        loss.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise ValueError(
            f"{folder}: the weights of its loss do not fit: {str(error).splitlines()[-1].strip()}"
        ) from None
    attach(model, loss, name, settings)
    return loss
