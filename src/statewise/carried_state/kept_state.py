"""Where a generation stood, as a file: tensors, and by which model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from statewise.durable import write_atomically
from statewise.overwriting import check_file

if TYPE_CHECKING:
    from torch import Tensor

KIND = "statewise-state-1"


def check(path: Path, overwrite: bool) -> None:
    """Raises `FileExistsError` if there is something at `path`, unless it is a file and `overwrite` says to replace it,
    and `ValueError` if there is no folder for it: better before what it shall keep is generated."""
    check_file(path, overwrite, "--save-state")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}")


def write(path: Path, kept: Mapping[str, Tensor], fingerprint: str) -> None:
    """Keeps what `Continued.state` gave, of the model whose weights have that fingerprint."""
    from safetensors.torch import save

    content = save({name: tensor.contiguous().cpu() for name, tensor in kept.items()},
                   metadata={"kind": KIND, "fingerprint": fingerprint})  # fmt: skip
    write_atomically(path, content)


def read(path: Path, fingerprint: str) -> dict[str, Tensor]:
    """What was kept. Raises `ValueError` for a file that is none, or is of a model with other weights."""
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
        raise ValueError(
            f"{path}: was kept by another run, or another checkpoint: a state means nothing to other weights"
        )
    return kept
