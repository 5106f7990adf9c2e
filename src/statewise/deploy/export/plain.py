"""Models whose inference is a plain decoder of an architecture that other libraries have."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from statewise.backbones.gpt import GPT, GPTConfig
from statewise.backbones.two_stream import TwoStream
from statewise.deploy.export.layouts import Layout, layout_of
from statewise.deploy.export.tensor_maps import to_theirs
from statewise.objectives.base import Objective
from statewise.objectives.predictors import CausalPredictor


class NotPlain(ValueError):
    """No such architecture represents the model; the message says why."""


class Plain(NamedTuple):
    """A model as a decoder of an existing architecture."""

    layout: Layout
    config: GPTConfig
    context: int
    vocabulary: int
    tensors: dict[str, Tensor]
    """Its weights under the names of the architecture, in float32."""
    beside: dict[str, Tensor]
    """What else was trained, under our names: latent dynamics, further heads."""


def plain(objective: Objective) -> Plain:
    """The model for inference as a decoder of an existing architecture, exactly. Raises `NotPlain`."""
    predictor = objective.eval().predictor()
    kind = type(objective).__name__
    if not isinstance(predictor, CausalPredictor):
        raise NotPlain(f"{kind} predicts by an interface of its own")
    if type(predictor).next_logits is not CausalPredictor.next_logits:
        raise NotPlain(f"{kind} does not predict by a matrix on the output of its backbone")
    backbone = predictor.backbone
    standard = type(backbone) is TwoStream and backbone.config.variant == "standard"
    if not (type(backbone) is GPT or standard):
        variant = f" of variant {backbone.config.variant}" if isinstance(backbone, TwoStream) else ""
        raise NotPlain(f"{type(backbone).__name__}{variant} is no plain decoder")
    assert isinstance(backbone, (GPT, TwoStream))
    config = backbone.config
    layout = layout_of(config)
    if layout is None:
        bias = " and bias" * config.bias
        raise NotPlain(
            f"no architecture has norm {config.norm}, positions {config.positions}, mlp {config.mlp}{bias} together"
        )
    (prefix,) = [f"{name}." for name, module in objective.named_modules() if module is backbone]
    every = {name: tensor.detach().cpu() for name, tensor in objective.state_dict().items()}
    ours = {name.removeprefix(prefix): tensor for name, tensor in every.items() if name.startswith(prefix)}
    ours["embedding.weight"] = ours["embedding.weight"][: backbone.vocabulary]  # without the row of <predict>
    return Plain(
        layout,
        config,
        backbone.context,
        backbone.vocabulary,
        to_theirs(layout.maps(config), ours),
        {name: tensor for name, tensor in every.items() if not name.startswith(prefix)},
    )
