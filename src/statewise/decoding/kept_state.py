"""Files of kept states: tensors, and the fingerprint of the model's weights."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from statewise.runtime.durable import write_atomically
from statewise.runtime.overwriting import claimed_file

if TYPE_CHECKING:
    from torch import Tensor

KIND = "statewise-state-1"


def claimed(path: Path, overwrite: bool) -> AbstractContextManager[Path]:
    """A claim on `path` (`statewise.runtime.overwriting`), and the place for the state that it is to become. Raises
    `FileExistsError` if `path` exists, unless it is a file and `overwrite` is set, and `ValueError` if its folder does
    not exist. Begin it before generating."""
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}")
    return claimed_file(path, overwrite, "--save-state")


def write(path: Path, kept: Mapping[str, Tensor], fingerprint: str) -> None:
    """Writes the result of `Continued.state` with the fingerprint of the model's weights."""
    from safetensors.torch import save

    content = save(
        {name: tensor.contiguous().cpu() for name, tensor in kept.items()},
        metadata={"kind": KIND, "fingerprint": fingerprint},
    )
    write_atomically(path, content)


def read(path: Path, fingerprint: str) -> dict[str, Tensor]:
    """Reads a kept state. Raises `ValueError` if the file is not one, or belongs to other weights."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ValueError(f"{path}: there is no such file; --save-state writes one")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            kept = {name: file.get_tensor(name) for name in file.offset_keys()}
    except SafetensorError as error:
        raise ValueError(f"{path}: not a kept state, or a damaged one: {error}") from None
    if metadata.get("kind") != KIND:
        raise ValueError(f"{path}: not a kept state: --save-state writes one")
    if metadata.get("fingerprint") != fingerprint:
        raise ValueError(f"{path}: was kept by another run or checkpoint: a state is meaningless to other weights")
    return kept
