"""Decoders, and their table: from prompts to completions, using a predictor.

Imports `config`, and `tasks.base`. A decoder never sees a network.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from statewise.config.recipe import fill
from statewise.config.registry import Table

if TYPE_CHECKING:
    from statewise.decoding.base import Decoder, Search

__all__ = ["DECODERS"]

DECODERS: Table[Decoder] = Table(
    "decoder",
    "decoders",
    "statewise.decoding.base:Decoder",
    {
        "greedy": ("statewise.decoding.sample:Greedy", "the most likely token at every step"),
        "sample": ("statewise.decoding.sample:Sample", "draws by temperature, top-k and top-p"),
        "speculative": (
            "statewise.decoding.speculative:Speculative",
            "the completions of greedy or sample in fewer passes: tokens are drafted and checked together",
        ),
        "beam": ("statewise.decoding.beam:Beam", "beam search: ranked by log-probability"),
        "goal_search": (
            "statewise.decoding.goal_search:GoalSearch",
            "many rollouts, ranked by how well they lead to a goal or end",
        ),
    },
)


def make_decoder(name: str, **fields: Any) -> Decoder:
    """The decoder of a name, with these fields. Raises `ValueError` for an unknown name, field or value."""
    kind = DECODERS[name]
    for field in sorted(fields.keys() - _field_names(kind.Config)):
        others = [other for other in DECODERS if field in _field_names(DECODERS[other].Config)]
        if others:
            raise ValueError(f"decoder {name} has no field {field!r}: `decoder` {' or '.join(others)} has")
    return kind(fill(kind.Config, fields, f"decoder {name}"))


def make_search(name: str, **fields: Any) -> Search:
    """The search of a name, as `make_decoder` makes decoders. Raises `ValueError` for a decoder that ranks nothing."""
    return as_search(make_decoder(name, **fields), name)


def as_search(decoder: Decoder, name: str) -> Search:
    """The decoder of this name, if it ranks candidates. Raises `ValueError` if not."""
    from statewise.decoding.base import Search

    if not isinstance(decoder, Search):
        searches = " or ".join(other for other in DECODERS if issubclass(DECODERS[other], Search))
        raise ValueError(f"decoder {name} finds one completion and ranks nothing: choose {searches}")
    return decoder


def _field_names(config: type) -> set[str]:
    return {field.name for field in dataclasses.fields(config)}
