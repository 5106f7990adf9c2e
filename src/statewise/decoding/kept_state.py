"""Where a generation stood, as a file: tensors, and by which model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

KIND = "statewise-state-1"


def check(path: Path) -> None:
    """Raises `ValueError` if no state can be written there: better before what it shall keep is generated."""
    if path.is_dir():
        raise ValueError(f"{path}: is a folder; give the name of a file")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}")


def write(path: Path, kept: Mapping[str, Tensor], fingerprint: str) -> None:
    """Keeps what `Continued.state` gave, of the model whose weights have that fingerprint."""
    from safetensors.torch import save

    content = save({name: tensor.contiguous().cpu() for name, tensor in kept.items()},
                   metadata={"kind": KIND, "fingerprint": fingerprint})  # fmt: skip
    unfinished = path.with_name(f"{path.name}.unfinished")  # never half a state under its name
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


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
