"""A checkpoint on disk: its files and their checksums."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from statewise.runtime import overwriting
from statewise.runtime.durable import Checked, replacing, write_atomically
from statewise.runtime.json_files import TEXT, Shape, json_bytes, read_json
from statewise.runtime.messages import cut

WEIGHTS, MOMENTS, TRAINING, MANIFEST = "weights", "moments", "training.pt", "manifest.json"
WHOLE = f"{WEIGHTS}.safetensors"
PARTS = tuple(f"{kind}-*-of-*.safetensors" for kind in (WEIGHTS, MOMENTS))
CHECKPOINT_FILES = (WHOLE, TRAINING, MANIFEST, *PARTS)
"""All files of a checkpoint, as patterns of `statewise.runtime.overwriting`."""
SUMS: Shape = {TRAINING: TEXT, ...: TEXT}


def check_checkpoint(which: str) -> None:
    """Raises `ValueError` unless it is `last`, `best` or a step."""
    if which not in ("best", "last") and not (which.isdecimal() and len(which) < 19):
        raise ValueError(f"checkpoint must be last, best or a step, not {cut(repr(which))}")


class DamagedCheckpoint(ValueError):
    """Raised for a checkpoint that is incomplete or was modified."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    step: int
    folder: Path

    @property
    def weights(self) -> Path:
        """The objective's parameters, as safetensors, if they are in one file."""
        return self.folder / WHOLE

    @property
    def training(self) -> Path:
        """Optimiser and trainer state, loadable with `weights_only=True`."""
        return self.folder / TRAINING

    def sums(self) -> dict[str, str]:
        """The checksum of each file. Raises `DamagedCheckpoint` if the manifest cannot be read."""
        path = self.folder / MANIFEST
        try:
            sums: dict[str, str] = read_json(path, SUMS)
        except (FileNotFoundError, IsADirectoryError):
            raise self._without(path) from None
        except (OSError, ValueError) as error:
            raise DamagedCheckpoint(f"checkpoint {self.folder} is damaged: {error}") from None
        foreign = [name for name in sums if not any(fnmatchcase(name, pattern) for pattern in CHECKPOINT_FILES)]
        if foreign or not any(name.startswith(WEIGHTS) for name in sums):
            what = f"{foreign[0]!r}, which is not a file of a checkpoint" if foreign else "no weights"
            raise DamagedCheckpoint(f"checkpoint {self.folder} is damaged: its {path.name} names {what}")
        return sums

    def parts(self, kind: str) -> list[Path]:
        """The files of `WEIGHTS` or `MOMENTS`. Raises as `sums`."""
        return [self.folder / name for name in sorted(self.sums()) if name.startswith(kind)]

    def verify(self) -> None:
        """Raises `DamagedCheckpoint` unless every file matches its checksum."""
        for name, expected in self.sums().items():
            path = self.folder / name
            if not path.is_file():
                raise self._without(path)
            try:
                if _checksum(path) != expected:
                    raise DamagedCheckpoint(f"{path} is damaged: its checksum does not match")
            except OSError as error:
                raise DamagedCheckpoint(f"checkpoint {self.folder} is damaged: {error}") from None

    def _without(self, path: Path) -> DamagedCheckpoint:
        what = "is a folder, not a file" if path.is_dir() else "is missing"
        return DamagedCheckpoint(f"checkpoint {self.folder} is damaged: its {path.name} {what}")

    def write_part(self, name: str, content: bytes) -> str:
        """Writes a file of a checkpoint that `Run.begin_checkpoint` has begun. Returns its checksum."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / name, content)
        return hashlib.sha256(content).hexdigest()

    def replace_weights(self, write: Callable[[Checked], None]) -> None:
        """Replaces the weights' parts by one file, which `write` writes. After a kill at any moment, the checkpoint is
        whole, with the one or the others."""
        rest = {name: value for name, value in self.sums().items() if not name.startswith(WEIGHTS)}
        with replacing(self.weights) as file:
            write(file)
        write_atomically(self.folder / MANIFEST, json_bytes({WHOLE: _checksum(self.weights), **rest}))
        self.drop_replaced()

    def drop_replaced(self) -> None:
        """Deletes parts of weights that one file has replaced."""
        for path in self.folder.glob(PARTS[0]):
            path.unlink()

    def discard(self) -> None:
        """Deletes the checkpoint, renaming it first, so that a kill cannot leave half of it."""
        nameless = self.folder.with_name(f".dropped-{self.folder.name}")
        overwriting.delete(nameless, CHECKPOINT_FILES)
        os.rename(self.folder, nameless)
        overwriting.delete(nameless, CHECKPOINT_FILES)


def _checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
