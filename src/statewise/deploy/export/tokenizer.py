"""A task's conversion of text as a tokenizer.json of the `tokenizers` package, which transformers loads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from statewise.runtime.extras import needed
from statewise.tasks.base import RunningText, Task, TextFormat
from statewise.tasks.text.bpe import spelled

ROWS = 200
"""Random sequences on which a tokenizer is compared with its task."""
UNKNOWN, PADDING = "[UNK]", "[PAD]"


def tokenizer_json(task: Task, rows: int = 0) -> str | None:
    """The tokenizer.json that converts text exactly as the task does; None if no such file would be exact.
    `rows`: number of ids that the model has, if more than the task. Raises `ValueError` without the extra `hf`."""
    if isinstance(task, RunningText):
        # It may be a model's, whose post-processor begins every text with a token that no text of the task has.
        return json.dumps({**json.loads(task.bpe.content), "post_processor": None}, ensure_ascii=False)
    if task.text_format is None:
        return None
    # Special tokens are found anywhere in a text, so an end symbol with which another one begins cannot be special.
    for end in (task.end, None):
        made = word_level(task.text_format, task.vocab.symbols, end, task.filler, rows)
        content = json.dumps(made, ensure_ascii=False)
        if is_exact(content, task):
            return content
    return None


def tokenizer_config(content: str, task: Task) -> dict[str, Any]:
    """tokenizer_config.json for a tokenizer.json of a task.

    The class is one that versions 4 and 5 of transformers both know and that leaves the pre-tokenizer as it is."""
    tokenizer = json.loads(content)
    added = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    end = added.get(task.end)
    padding = end or added.get(task.filler) or next((name for name in added.values() if PADDING in name), None)
    named = {"unk_token": tokenizer["model"].get("unk_token"), "eos_token": end, "pad_token": padding}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: token for name, token in named.items() if token},
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": task.context,
        "padding_side": "left",
    }


def lead(form: TextFormat) -> str:
    """The text with which decoded text begins. Programs append what a model generates to the prompt, and a tokenizer
    decodes it without the prompt, so every symbol is written with the separator before it, as GPT-2 writes words.
    Formats that remove separators again (`tidy`) have none."""
    return "" if form.tidy else form.separator


def word_level(
    form: TextFormat, symbols: Sequence[str], end: int | None, filler: int | None, rows: int = 0
) -> dict[str, Any]:
    """The content of a tokenizer.json whose tokens are `symbols` by id, each with its `lead`, in the spelling of
    byte-level tokenizers, by which transformers finds stop strings.

    Text that is not a symbol becomes a token beyond them and the model's `rows`, which no model has. `end` and `filler`
    are special; without them there is a token for padding, one of the model's beyond the symbols if there is one."""
    tokens = {spelled(lead(form) + symbol): token for token, symbol in enumerate(symbols)}
    special = {token: name for name, token in tokens.items() if token in (end, filler)}
    unknown = max(len(symbols), rows)
    others = {UNKNOWN: unknown}
    if not special:
        others[PADDING] = len(symbols) if rows > len(symbols) else unknown + 1
    for name, token in others.items():
        while name in tokens:
            name = f"[{name}]"
        special[token] = name
        tokens[name] = token
    rules = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    normalise, split = _reading_steps(form, None if end is None else symbols[end])
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": token, "content": special[token], **rules} for token in sorted(special)],
        "normalizer": _sequence("normalizers", [*(_replace(*rule) for rule in form.normalise), *normalise]),
        "pre_tokenizer": _sequence("pretokenizers", split),
        "post_processor": None,
        "decoder": _sequence("decoders", _writing_steps(form)),
        "model": {"type": "WordLevel", "vocab": tokens, "unk_token": special[unknown]},
    }


def is_exact(content: str, task: Task) -> bool:
    """Whether a tokenizer.json converts every symbol, and random sequences of symbols, as the task does. Sequences
    that the task itself does not reproduce are left out."""
    tokenizer = needed("tokenizers", "exported tokenizers").Tokenizer.from_str(content)
    first = "" if task.text_format is None else lead(task.text_format)
    for row in _sequences_of_symbols(len(task.vocab), task.end, task.context):
        text = task.decode(row)
        try:
            if task.encode(text).tolist() != row:
                continue
        except ValueError:
            continue
        if tokenizer.encode(text, add_special_tokens=False).ids != row:
            return False
        if tokenizer.decode(row, skip_special_tokens=False) != first + text:
            return False
    return True


def _sequences_of_symbols(vocabulary: int, end: int | None, context: int) -> Iterator[list[int]]:
    """Every symbol alone and twice, and random sequences, half of them with the end token."""
    rng, symbols = np.random.default_rng(0), [token for token in range(vocabulary) if token != end]
    for token in symbols:
        yield [token]
        yield [token, token]
    for number, length in enumerate(rng.integers(1, context, ROWS, endpoint=True)):
        row = rng.choice(symbols, length).tolist()
        yield row if end is None or number % 2 else [*row[:-1], end]


def _reading_steps(form: TextFormat, end: str | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Steps that normalise a text, and that split it into tokens as they are spelled."""
    first = lead(form)
    if first.strip() or "\t" in first:  # the package can put only a space before a symbol that was split off
        between = rf"(?:\s|{re.escape(form.cut_at)})*"
        joint = rf"{between}{re.escape(form.cut_at)}{between}"
        begun = [{"type": "Prepend", "prepend": first}, _replace(joint, first), _replace(rf"{between}\z", "")]
        return begun, [_split({"String": first}, "MergedWithNext"), _byte_level(prefixed=False)]
    whole = [re.escape(end)] if end is not None and not form.separator else []
    symbols = _split({"Regex": "|".join([*whole, form.symbol])}, "Removed", invert=True)
    cut = [_split({"String": form.cut_at}, "Removed")] if form.cut_at else []
    return [], [*cut, symbols, _byte_level(prefixed=bool(first))]


def _writing_steps(form: TextFormat) -> list[dict[str, Any]]:
    """Steps from tokens to text."""
    if not form.tidy:
        return [_byte_level(prefixed=False)]
    apart = [_replace("^", spelled(form.separator)), _byte_level(prefixed=False)]
    return [*apart, _replace(rf"\A{re.escape(form.separator)}", ""), *(_replace(*rule) for rule in form.tidy)]


def _split(pattern: dict[str, str], behavior: str, *, invert: bool = False) -> dict[str, Any]:
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def _byte_level(*, prefixed: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": prefixed, "trim_offsets": False, "use_regex": False}


def _replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _sequence(kind: str, steps: list[dict[str, Any]]) -> dict[str, Any] | None:
    return {"type": "Sequence", kind: steps} if steps else None
