"""Values of users in messages: short ones as they are, long ones cut."""

from __future__ import annotations

import json


def short(value: object, most: int = 60) -> str:
    """`value` as JSON, or else as Python writes it, with at most about `most` characters."""
    if isinstance(value, int) and value.bit_length() > 200:  # Python may refuse to write it
        return f"a number of {int(value.bit_length() * 0.30103) + 1:,} digits"
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        try:
            text = repr(value)
        except ValueError:
            text = type(value).__name__
    return cut(text, most)


def cut(text: str, most: int = 60) -> str:
    """`text`, or its beginning and length."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"
