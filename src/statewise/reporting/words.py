"""Names of the configuration as words, for labels of figures, tables and pages."""

from __future__ import annotations

import re
from typing import Any

FIELDS = {
    "accumulate": "accumulated parts",
    "ahead_weight": "weight of further tokens",
    "backward": "backward encoder",
    "betas": "AdamW betas",
    "bias": "biases",
    "ce_weight": "CE weight",
    "clip": "gradient clipping",
    "compile": "compilation",
    "decay_share": "share of decay",
    "dynamics_factor": "dynamics width factor",
    "expansion": "MLP expansion",
    "final_rate": "final learning rate",
    "head": "text head",
    "head_gradient": "gradient into the head",
    "head_width": "text head width",
    "kl_weight": "KL weight",
    "latent_weight": "regression weight",
    "min_gap": "least gap",
    "mlp": "MLP",
    "next_weight": "next-token weight",
    "previous_weight": "previous-token weight",
    "separate_from": "streams part at",
    "share": "share of prefixes",
    "stop_gradient": "stop-gradient",
    "tied": "tied head",
    "warmup_steps": "warm-up steps",
    "warmup_tokens": "warm-up tokens",
}
"""Fields whose names need more than spaces for underscores."""
_CHOICE = re.compile(r"[a-z0-9]+(_[a-z0-9]+)+")


def objective_words(name: str) -> str:
    """An objective's name: `next-latent`; one given as module:Class stays as it is."""
    return name.replace("_", "-") if _CHOICE.fullmatch(name) else name


def setting_name(key: str) -> str:
    """The field of a dotted recipe key: `learning rate`."""
    field = key.rpartition(".")[2]
    return FIELDS.get(field, field.replace("_", " "))


def setting_words(key: str, value: Any) -> str:
    """A dotted recipe key with its value: `horizon 2`, `without gradient clipping`, `tokens not set`."""
    part, _, field = key.partition(".")
    name = setting_name(key)
    if value is None:
        return f"{name} not set"
    if isinstance(value, bool) or (field == "clip" and value == 0):
        return f"{'with' if value else 'without'} {name}"
    if isinstance(value, list | tuple):
        return f"{name} {', '.join(map(_value, value))}"
    shown = _value(value)
    # Values of a task may be somebody's files or symbols, and a pre-trained model has its own name: those stay.
    own = part == "task" or key == "backbone.model"
    return f"{name} {shown.replace('_', ' ') if not own and _CHOICE.fullmatch(shown) else shown}"


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
