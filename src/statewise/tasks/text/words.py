"""Words of a text, as lm-evaluation-harness counts them for its perplexity per word.

They are what `re.split(r"\\s+", text)` gives: each stretch of white space lies between two words, so a text that begins
or ends with white space has an empty word there, and an empty text is one empty word.
"""

from __future__ import annotations

import re

_SPACE = re.compile(r"\s+")


def count_words(text: str) -> int:
    """Number of words, at least 1."""
    # Several times faster than the split, and white space is the same to both.
    return max(1, len(text.split()) + text[:1].isspace() + text[-1:].isspace())


def word_starts(text: str) -> list[int]:
    """(count_words(text),) offsets of the characters at which words begin; an empty last one begins at the end."""
    return [0, *(found.end() for found in _SPACE.finditer(text))]
