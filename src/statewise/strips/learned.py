"""What learning leaves behind, and the folder that it is kept in.

model.json       the action model
theta.npz        theta of every restart [R, L, A, 3] at the end
report.json      how it was learned: settings, what each restart reached, the pool
checkpoint.npz   while learning goes on: everything that it needs to be resumed
schemas.json     of a model that was learned lifted, in place of theta.npz: its schemas; model.json has it grounded
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from statewise.run import write_atomically
from statewise.strips.model import ActionModel
from statewise.strips.schemas import Schema


@dataclass(frozen=True)
class Learned:
    """A learned action model and how it came about."""

    model: ActionModel
    theta: np.ndarray
    """[R, L, A, 3] at the end of each restart."""
    report: dict[str, Any] = field(repr=False)
    """Plain data: settings, restarts, pool, seconds."""

    def save(self, folder: Path) -> None:
        """Writes the folder; the checkpoint goes."""
        folder.mkdir(parents=True, exist_ok=True)
        _write_arrays(folder / "theta.npz", {"theta": self.theta})
        write_atomically(folder / "report.json", (json.dumps(self.report, indent=2) + "\n").encode())
        write_atomically(folder / "model.json", self.model.as_json().encode())
        (folder / "checkpoint.npz").unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: Path) -> Learned:
        """Reads the folder. Raises `FileNotFoundError` if learning has not come to its end there, `ValueError` if it is
        damaged."""
        model = read_learned_model(folder)
        try:
            report = json.loads((folder / "report.json").read_text())
        except ValueError as error:
            raise ValueError(f"{folder / 'report.json'}: not JSON: {error}") from None
        return cls(model, read_arrays(folder / "theta.npz", "theta")["theta"], report)


def read_learned_model(folder: Path) -> ActionModel:
    """The action model of a folder, learned lifted or not. Raises `FileNotFoundError` if learning has not come to its
    end there, `ValueError` if it is damaged."""
    path = folder / "model.json"
    if not path.is_file():
        unfinished = (folder / "checkpoint.npz").exists()
        raise FileNotFoundError(
            f"{folder} holds no learned model"
            + (": learning was interrupted; the same command goes on" if unfinished else "")
        )
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: byte {error.start} is no UTF-8 text") from None
    return ActionModel.from_json(text, str(path))


def is_learned(folder: Path) -> bool:
    """Whether learning has been at work in the folder, to its end or not."""
    return any((folder / name).is_file() for name in ("model.json", "checkpoint.npz"))


def write_schemas(folder: Path, schemas: Mapping[str, Schema], model: ActionModel, report: Mapping[str, Any]) -> None:
    """Writes the folder of a lifted model."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        name: {which: sorted([predicate, *places] for predicate, places in getattr(schema, which))
               for which in ("pre", "add", "delete")}
        for name, schema in schemas.items()
    }  # fmt: skip
    write_atomically(folder / "schemas.json", (json.dumps(content, indent=2) + "\n").encode())
    write_atomically(folder / "report.json", (json.dumps(report, indent=2) + "\n").encode())
    write_atomically(folder / "model.json", model.as_json().encode())


def read_schemas(folder: Path) -> dict[str, Schema] | None:
    """The schemas of a folder that was learned lifted, or None. Raises `ValueError` if they are damaged."""
    path = folder / "schemas.json"
    if not path.is_file():
        return None
    try:
        return {
            name: Schema(*(frozenset((str(literal[0]), tuple(int(place) for place in literal[1:]))
                                     for literal in of[which]) for which in ("pre", "add", "delete")))
            for name, of in json.loads(path.read_text()).items()
        }  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__} {error}") from None


def write_checkpoint(folder: Path, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
    """Keeps what an interrupted learning goes on from; `facts` is plain data."""
    folder.mkdir(parents=True, exist_ok=True)
    text = np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)
    _write_arrays(folder / "checkpoint.npz", {**arrays, "facts": text})


def read_checkpoint(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """What `write_checkpoint` kept, or None."""
    path = folder / "checkpoint.npz"
    if not path.exists():
        return None
    arrays = read_arrays(path, "facts")
    facts: dict[str, Any] = json.loads(arrays.pop("facts").tobytes())
    return arrays, facts


def read_arrays(path: Path, needed: str) -> dict[str, np.ndarray]:
    """Arrays of an .npz file, `needed` among them. Raises `ValueError` if it is damaged."""
    import zipfile

    try:
        with np.load(path, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if needed not in arrays:
        raise ValueError(f"{path} is damaged: it holds no {needed}")
    return arrays


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    write_atomically(path, buffer.getvalue())
