"""Tokenizer specifications: train one, GPT-2's from its files, a model's of Hugging Face, or any tokenizer.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from statewise.runtime.extras import may_be_on_hub, needed, quiet_hub
from statewise.runtime.json_files import loads
from statewise.runtime.text_files import read_text
from statewise.tasks.text import bpe
from statewise.tasks.text.bpe import BPE, END

FORMS = (
    "bpe:N (trained on the training documents), gpt2:DIR, hf:MODEL (a folder, or a name on the hub), or the path of "
    "a tokenizer.json"
)
MOST = 2**24
"""Largest vocabulary."""


def vocabulary_to_learn(spec: str) -> int | None:
    """Vocabulary size of a tokenizer to train; None if `spec` names an existing one. Raises `ValueError`."""
    kind, colon, rest = spec.partition(":")
    if kind != "bpe" or not colon:
        return None
    if not rest.isdecimal():
        raise ValueError(f"`tokenizer` {spec}: the number of tokens must be a whole number, as in bpe:4096")
    if len(rest) < 10 and int(rest) < 257:
        raise ValueError(f"`tokenizer` {spec}: at least 257 tokens are needed, for all bytes and {END}")
    if len(rest) > 9 or int(rest) > MOST:
        raise ValueError(f"`tokenizer` {spec}: at most {MOST:,} tokens")
    return int(rest)


def learn(texts: Sequence[str], vocabulary: int) -> BPE:
    """Trains a tokenizer of `vocabulary` tokens. Raises `ValueError` if the texts yield fewer."""
    return bpe.train(texts, vocabulary, (END,), option="the N of `tokenizer` bpe:N")


def load(spec: str) -> BPE:
    """An existing tokenizer. Raises `ValueError` if `spec` does not name one."""
    kind, colon, rest = spec.partition(":")
    if kind == "gpt2" and colon:
        return _gpt2(Path(rest))
    if kind == "hf" and colon:
        return _of_model(rest)
    path = Path(spec)
    if path.is_dir() and (path / "tokenizer.json").is_file():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise ValueError(f"unknown tokenizer {spec!r}: there is no such file; give {FORMS}")
    return _of_file(path)


def _of_file(path: Path, end: str = END) -> BPE:
    """The tokenizer of a tokenizer.json."""
    made = BPE(read_text(path), str(path), (end,))
    made.check_decoding()
    return made


def _gpt2(folder: Path) -> BPE:
    """GPT-2's tokenizer, from tokenizer.json or from vocab.json and merges.txt."""
    if (folder / "tokenizer.json").is_file():
        return _of_file(folder / "tokenizer.json")
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    for path in (vocabulary, merges):
        if not path.is_file():
            raise ValueError(f"{path}: no such file; gpt2:DIR needs vocab.json and merges.txt, or tokenizer.json")
    return BPE(bpe.from_merges(vocabulary, merges), str(folder), (END,))


def _of_model(model: str) -> BPE:
    """The tokenizer of a model of Hugging Face, with its own end-of-text token."""
    if not model:
        raise ValueError("`tokenizer` hf: names no model: give hf:DIR, or hf:NAME with a name on the hub")
    files = {name: _file_of(model, name) for name in ("tokenizer.json", "tokenizer_config.json")}
    path, facts = files.values()
    if path is None:
        raise ValueError(
            f"{model}: this model has no tokenizer.json: give one that has it, or train a tokenizer with bpe:N"
        )
    try:
        end = (loads(read_text(facts)) if facts is not None else {}).get("eos_token") or END
        return _of_file(path, end["content"] if isinstance(end, dict) else end)
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{model}: its tokenizer cannot be used: {error}; give a model with a byte-level one, such as those of "
            "GPT-2, Llama 3, Qwen or StarCoder2"
        ) from None


def _file_of(model: str, name: str) -> Path | None:
    """A file of a model, from the hub if there is no such folder; None if the model has no file of this name."""
    if Path(model).is_dir():
        path = Path(model) / name
        return path if path.is_file() else None
    if not may_be_on_hub(model):
        raise ValueError(f"{model}: there is no such folder, and no model on the hub has such a name")
    users = "tokenizers of models on the hub"
    huggingface_hub = needed("huggingface_hub", users)
    try:
        with quiet_hub(users):
            return Path(huggingface_hub.hf_hub_download(model, name))
    except Exception as error:  # of the name, the network, or the hub
        from huggingface_hub import errors

        absent = isinstance(error, errors.EntryNotFoundError)
        if absent and not isinstance(error, errors.LocalEntryNotFoundError):  # which is: not fetched before
            return None
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(
            f"{model}: there is no such folder, and the hub did not give {name} (no network, no such name, or no "
            f"permission): {first[:200]}"
        ) from None
