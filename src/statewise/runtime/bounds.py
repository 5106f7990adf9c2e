"""Bounds of the values of configurations."""

from __future__ import annotations

import dataclasses
from typing import Any

from statewise.runtime.messages import short

LARGEST = 2**53
"""Upper limit of numbers in configurations and files, so that floats hold every whole number exactly."""


def bounded(
    owner: object,
    *names: str,
    prefix: str = "",
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    reason: str = "",
) -> None:
    """Raises `ValueError` unless each of the attributes `names` of `owner` lies within the bounds or is None. NaN and
    values from `LARGEST` on are always refused. `prefix` stands before the name in the message, `reason` after it."""
    limits = {"at least": at_least, "above": above, "at most": at_most, "below": below}
    words = " and ".join(f"{bound} {limit:,}" for bound, limit in limits.items() if limit is not None)
    for name in names:
        value = getattr(owner, name)
        if value is None:
            continue
        within = (
            (at_least is None or value >= at_least)
            and (above is None or value > above)
            and (at_most is None or value <= at_most)
            and (below is None or value < below)
        )
        if not within:
            raise ValueError(f"{prefix}{name} must be {words}, not {short(value)}" + (f": {reason}" if reason else ""))
        if not abs(value) < LARGEST:
            raise ValueError(f"{prefix}{name} must be below {LARGEST:,}, not {short(value)}")


MOST_TOKENS = 2**28
"""Tokens that are drawn at once, as a step or a held-out set: 2 GiB as they are stored."""


def check_tokens(name: str, sequences: int, length: int) -> None:
    """Raises `ValueError` if so many sequences of `length` tokens have more than `MOST_TOKENS`. `name` is the field
    that gives their number."""
    if sequences * length > MOST_TOKENS:
        raise ValueError(
            f"{name} is {sequences:,}: so many sequences of up to {length:,} tokens have more than {MOST_TOKENS:,} "
            "tokens, the most that are drawn at once. Set it lower, or make the sequences shorter"
        )


def unset(owner: Any, *names: str, prefix: str = "", reason: str) -> None:
    """Raises `ValueError` unless each of the fields `names` of the dataclass `owner` has its default: it would be
    ignored. `prefix` stands before the name in the message, `reason` after it."""
    for field in dataclasses.fields(owner):
        if field.name in names and getattr(owner, field.name) != field.default:
            raise ValueError(f"{prefix}{field.name} {reason}")
