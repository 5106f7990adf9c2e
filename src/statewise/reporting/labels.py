"""Groups of runs in words: the objective, and the settings in which they differ."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from statewise.reporting.members import Member, canonical

FIELDS = {
    "accumulate": "accumulated parts",
    "ahead_weight": "weight of further tokens",
    "auxiliary_decay_share": "share of decay of other losses",
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


def labels(firsts: list[Member], differences: dict[str, list[Any]]) -> list[str]:
    """The objective's name, followed by the recipe values in which groups with that objective differ. Keys that only
    some groups have, such as the fields of one backbone, appear only there."""
    flats = [member.flat() for member in firsts]
    found = [_label(place, firsts, differences, flats) for place in range(len(firsts))]
    if len(set(found)) == len(found):
        return found
    found = [_label(place, firsts, differences, [differences] * len(firsts)) for place in range(len(firsts))]
    # Values that words round may be left alike.
    return [f"{label}, {place + 1}" if found.count(label) > 1 else label for place, label in enumerate(found)]


def _label(
    place: int, firsts: list[Member], differences: dict[str, list[Any]], having: Sequence[Mapping[str, Any]]
) -> str:
    names = [member.recipe["objective"]["name"] for member in firsts]
    twins = [other for other in range(len(names)) if names[other] == names[place]]
    telling = [
        setting_words(key, values[place])
        for key, values in differences.items()
        if key in having[place]
        and any(key in having[twin] and canonical(values[twin]) != canonical(values[place]) for twin in twins)
    ]
    name = objective_words(names[place])
    return f"{name} ({', '.join(telling)})" if telling else name


def objective_words(name: str) -> str:
    """An objective's name: `next-latent`; module:Class stays as it is."""
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
