"""A task's conversion of text as a tokenizer.json of the `tokenizers` package, which transformers loads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from statewise.extras import needed
from statewise.tasks.base import RunningText, Task
from statewise.tasks.text_format import TextFormat

ROWS = 200
"""Random sequences on which a tokenizer is compared with its task."""
SPACE, NO_PREFIX = "\ue000", "\ue001"
"""Characters for private use: a space within a symbol while symbols are joined, and a prefix that no symbol has."""


def tokenizer_json(task: Task) -> str | None:
    """The tokenizer.json that converts text exactly as the task does; None if there is none, or if it would not be
    exact. Raises `ValueError` without the extra `hf`."""
    if isinstance(task, RunningText):
        # It may be a model's, whose post-processor begins every text with a token that no text of the task has.
        return json.dumps({**json.loads(task.bpe.content), "post_processor": None}, ensure_ascii=False)
    if task.text_format is None:
        return None
    # An end symbol that transformers knows as special is found anywhere, also within other symbols.
    ends = [None] if task.end is None else [task.vocab.symbols[task.end], None]
    made = (json.dumps(word_level(task.text_format, task.vocab.ids, end), ensure_ascii=False) for end in ends)
    return next((content for content in made if is_exact(content, task)), None)


def tokenizer_config(content: str, end: str | None, context: int) -> dict[str, Any]:
    """tokenizer_config.json for a tokenizer.json; `end`, the end token, also pads.

    The class is one that versions 4 and 5 of transformers both know and that leaves the pre-tokenizer as it is."""
    special = {token["content"] for token in json.loads(content)["added_tokens"]}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **({"eos_token": end, "pad_token": end} if end in special else {}),
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": context,
        "padding_side": "left",
    }


def word_level(form: TextFormat, ids: Mapping[str, int], end: str | None) -> dict[str, Any]:
    """The content of a tokenizer.json whose tokens are the symbols `ids`. Text that is no symbol is an error; `end` is
    a special token."""
    added = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [] if end is None else [{"id": ids[end], "content": end, **added}],
        "normalizer": _sequence("normalizers", [_replace(*rule) for rule in form.normalise]),
        "pre_tokenizer": _sequence("pretokenizers", _splits(form)),
        "post_processor": None,
        "decoder": _sequence("decoders", [*_joined(form.separator), *(_replace(*rule) for rule in form.tidy)]),
        "model": {"type": "WordLevel", "vocab": dict(ids), "unk_token": ""},
    }


def is_exact(content: str, task: Task) -> bool:
    """Whether a tokenizer.json converts every symbol, and random sequences of symbols, as the task does. Sequences
    that the task itself does not reproduce are left out."""
    tokenizer = needed("tokenizers", "exported tokenizers").Tokenizer.from_str(content)
    for row in _some(len(task.vocab), task.end, task.context):
        text = task.decode(row)
        try:
            if task.encode(text).tolist() != row:
                continue
        except ValueError:
            continue
        try:
            again = tokenizer.encode(text, add_special_tokens=False).ids
        except Exception:  # the package raises plain Exception for an unknown symbol
            return False
        if again != row or tokenizer.decode(row, skip_special_tokens=False) != text:
            return False
    return True


def _some(vocabulary: int, end: int | None, context: int) -> Iterator[list[int]]:
    """Every symbol alone and twice, and random sequences, half of them with the end token."""
    rng, symbols = np.random.default_rng(0), [token for token in range(vocabulary) if token != end]
    for token in symbols:
        yield [token]
        yield [token, token]
    for number, length in enumerate(rng.integers(1, context, ROWS, endpoint=True)):
        row = rng.choice(symbols, length).tolist()
        yield row if end is None or number % 2 else [*row[:-1], end]


def _splits(form: TextFormat) -> list[dict[str, Any]]:
    """Steps that leave the symbols of a text."""
    symbols = {"type": "Split", "pattern": {"Regex": form.symbol}, "behavior": "Removed", "invert": True}
    cut = {"type": "Split", "pattern": {"String": form.cut_at}, "behavior": "Removed", "invert": False}
    return [cut, symbols] if form.cut_at else [symbols]


def _joined(separator: str) -> list[dict[str, Any]]:
    """Decoders that join symbols. The package joins words by a space alone, so other separators are put in its place;
    spaces within symbols are replaced meanwhile."""
    fuse: dict[str, Any] = {"type": "Fuse"}
    if not separator:
        return [fuse]
    by_space = [{"type": "WordPiece", "prefix": NO_PREFIX, "cleanup": False}, fuse]
    if separator == " ":
        return by_space
    return [_literal(" ", SPACE), *by_space, _literal(" ", separator), _literal(SPACE, " ")]


def _replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _literal(text: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": text}, "content": content}


def _sequence(kind: str, steps: list[dict[str, Any]]) -> dict[str, Any] | None:
    return {"type": "Sequence", kind: steps} if steps else None
