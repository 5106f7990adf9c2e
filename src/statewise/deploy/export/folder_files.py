"""The files of an exported folder of Hugging Face, and how they are written."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from statewise.runtime.durable import errors_of, sync, write_atomically
from statewise.runtime.overwriting import json_with
from statewise.runtime.system import sync_folder

CONFIG, WEIGHTS, OURS = "config.json", "model.safetensors", "statewise.json"
FILES = (
    *(CONFIG, WEIGHTS, OURS, "generation_config.json", "tokenizer.json", "tokenizer_config.json", "README.md"),
    "extra/*.safetensors",
    *(f"adapter/{name}" for name in ("adapter_config.json", "adapter_model.safetensors", "README.md")),
)
"""All files of an exported folder, as patterns of `statewise.runtime.overwriting`."""
TEMPORARY = tuple(f"{folder}.tmp??????" for folder in ("", "extra/", "adapter/"))
"""Patterns of files that safetensors leaves behind when it is killed."""
SIGNS = {OURS: json_with("version", "recipe", "fingerprint")}
"""How an exported folder is recognised."""


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON object, durably."""
    write_atomically(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes a safetensors file with the metadata that loaders ask for; it is on disk when this returns."""
    path.parent.mkdir(exist_ok=True)
    path.touch()
    mode = path.stat().st_mode
    with errors_of_safetensors(path):
        save_file(dict(tensors), path, metadata={"format": "pt"})
    settle([path], mode, tensors.values())


def settle(paths: Iterable[Path], mode: int, tensors: Iterable[Tensor]) -> None:
    """Syncs files that other packages have written, and gives them the permissions `mode`: safetensors makes files
    that only their owner can read. Raises `OSError` for a safetensors file that is truncated, or holds anything but
    some of the `tensors`."""
    sums = {_sum(tensor) for tensor in tensors}
    for path in paths:
        path.chmod(mode)
        with errors_of(path), open(path, "rb+") as file:
            sync(file)
        sync_folder(path.parent)
        if path.suffix == ".safetensors":
            with errors_of_safetensors(path), safe_open(path, "pt") as stored:
                if any(_sum(stored.get_tensor(name)) not in sums for name in stored.offset_keys()):
                    raise OSError(errno.EIO, "the file reads back differently than it was written", str(path))


def _sum(tensor: Tensor) -> int:
    """The CRC-32 of a tensor's bytes; type and shape are in the header of the file."""
    return zlib.crc32(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


@contextlib.contextmanager
def errors_of_safetensors(path: Path) -> Iterator[None]:
    """Within, errors of writing or reading safetensors files are `OSError` with a number, and name `path` if they name
    no file."""
    try:
        with errors_of(path):
            yield
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        code = int(number[1]) if number else errno.EIO
        raise OSError(code, os.strerror(code) if number else str(error), str(path)) from None


def write_beside(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors that are not part of the exported model to extra/NAME.safetensors, by the first part of their
    names."""
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        first, _, rest = name.partition(".")
        groups.setdefault(first, {})[rest or first] = tensor.contiguous()
    for first, group in groups.items():
        write_tensors(folder / "extra" / f"{first}.safetensors", group)


def config_json(fields: Mapping[str, Any], end: int | None) -> dict[str, Any]:
    """config.json: `fields` of the architecture, and what all have. Versions 4 and 5 of transformers read different
    names of the type; absent special tokens would get the defaults of the architecture."""
    special = {"bos_token_id": None, "eos_token_id": end, "pad_token_id": None}
    return {**fields, **special, "dtype": "float32", "torch_dtype": "float32", "use_cache": True}


def generation_json(end: int | None, context: int, longest_answer: int | None) -> dict[str, Any]:
    """generation_config.json: greedy, up to the end token, the longest answer of the task, or the context."""
    ends = {} if end is None else {"eos_token_id": end, "pad_token_id": end}
    limit = {"max_length": context} if longest_answer is None else {"max_new_tokens": longest_answer}
    return {"do_sample": False, **ends, **limit}


def size(folder: Path) -> int:
    """Bytes of all files."""
    return sum(os.path.getsize(Path(place, name)) for place, _, names in os.walk(folder) for name in names)


class Exported(NamedTuple):
    """An exported model."""

    path: Path
    architecture: str
    parameters: int
    bytes: int
    notes: list[str]
    """Remarks for the user, in sentences."""
