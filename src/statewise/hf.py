"""What works inside transformers; needs the extra `hf`.

Importing this module registers our models: `AutoModelForCausalLM` then loads every exported folder. `loss_for` is a
loss for the training loops of transformers, TRL and others; `with_loss` loads a model that was trained with one.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from statewise.runtime.messages import to_install

try:
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"models as classes of transformers need the extra `hf`: {to_install('hf')}", name=error.name
    ) from error

from statewise.backbones.hf.loading import quiet
from statewise.deploy.export.drafting import draft
from statewise.deploy.export.registered import StatewiseConfig, StatewiseForCausalLM, StatewiseModel
from statewise.losses.attached import ATTRIBUTE, attach_kept, loss_for

AutoConfig.register("statewise", StatewiseConfig, exist_ok=True)
AutoModel.register(StatewiseConfig, StatewiseModel, exist_ok=True)
AutoModelForCausalLM.register(StatewiseConfig, StatewiseForCausalLM, exist_ok=True)

__all__ = ["StatewiseConfig", "StatewiseForCausalLM", "StatewiseModel", "draft", "loss_for", "with_loss"]


def with_loss(folder: str | Path, **options: Any) -> Any:
    """The causal language model that `save_pretrained` wrote to a folder, with the loss that `loss_for` had attached as
    its submodule `statewise_loss`. `options` go to `AutoModelForCausalLM.from_pretrained`. Warns of weights that the
    folder lacks, or that neither the model nor its loss has. Raises `ValueError` if it was saved with no loss."""
    with quiet():  # transformers would report the weights of the loss
        model, found = AutoModelForCausalLM.from_pretrained(str(folder), output_loading_info=True, **options)
    attach_kept(model, Path(folder))
    missing = sorted(found["missing_keys"])
    unused = sorted(name for name in found["unexpected_keys"] if not name.startswith(f"{ATTRIBUTE}."))
    for names, what in ((missing, "are missing and random now"), (unused, "are not used")):
        if names:
            warnings.warn(f"{folder}: weights {what}: {len(names)}, such as {names[0]}", stacklevel=2)
    return model
