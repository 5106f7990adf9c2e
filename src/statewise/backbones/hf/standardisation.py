"""Mean and standard deviation of every feature of a model's states."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise.backbones.base import Backbone, plain_batch


def moments(backbone: Backbone, rows: int) -> tuple[Tensor, Tensor]:
    """(D,) each."""
    training = backbone.training
    backbone.eval()
    generator = torch.Generator().manual_seed(0)
    most = min(backbone.vocabulary, rows)
    tokens = torch.randint(0, most, (8, min(64, backbone.context)), generator=generator)
    with torch.no_grad():
        found = backbone.encode(plain_batch(tokens)).readout.flatten(0, 1)
    backbone.train(training)
    deviation = found.std(0)
    return found.mean(0), deviation.clamp(min=1e-3 * float(deviation.median()) + 1e-8)
