"""Registers our models with transformers: after `import statewise.hf`, `AutoModelForCausalLM` loads every exported folder.

Needs the extra `hf`.
"""

from __future__ import annotations

from statewise.interop.extra import needed

_transformers = needed("transformers", "models as classes of transformers")

from statewise.interop.registered import StatewiseConfig, StatewiseForCausalLM  # noqa: E402

_transformers.AutoConfig.register("statewise", StatewiseConfig, exist_ok=True)
_transformers.AutoModelForCausalLM.register(StatewiseConfig, StatewiseForCausalLM, exist_ok=True)

__all__ = ["StatewiseConfig", "StatewiseForCausalLM"]
