"""Registers our models with transformers: `AutoModelForCausalLM` then loads every exported folder.

Needs the extra `hf`.
"""

from __future__ import annotations

from statewise.runtime.messages import to_install

try:
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"models as classes of transformers need the extra `hf`: {to_install('hf')}", name=error.name
    ) from error

from statewise.deploy.export.drafting import draft
from statewise.deploy.export.registered import StatewiseConfig, StatewiseForCausalLM, StatewiseModel

AutoConfig.register("statewise", StatewiseConfig, exist_ok=True)
AutoModel.register(StatewiseConfig, StatewiseModel, exist_ok=True)
AutoModelForCausalLM.register(StatewiseConfig, StatewiseForCausalLM, exist_ok=True)

__all__ = ["StatewiseConfig", "StatewiseForCausalLM", "StatewiseModel", "draft"]
