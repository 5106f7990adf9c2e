"""Learned action models, and the folder that holds one.

model.json       the action model
theta.npz        final theta of every restart [R, L, A, 3]
report.json      how the model was learned: settings, the result of each restart, the pool
checkpoint.npz   during learning: everything needed to resume
seen.json        what the training traces show, for verdicts on new traces (`exact.verdicts`)
before.json      for simplified schemas: the original ones, which accept the same traces (`simplification`)
schemas.json     after lifted learning, instead of theta.npz: the schemas; model.json holds the ground model
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from statewise.runtime import overwriting
from statewise.runtime.durable import write_arrays, write_atomically
from statewise.runtime.json_files import (
    ANYTHING,
    COUNT,
    NUMBER,
    TEXT,
    WORD,
    Shape,
    check,
    json_bytes,
    one_of,
    parse_json,
    read_json,
)
from statewise.runtime.text_files import read_text
from statewise.strips.model.model import FORMAT, ActionModel
from statewise.strips.model.schemas import Schema

REPORT: Shape = {"best_restart": COUNT}
"""What the plots read from report.json."""
_RESTART: Shape = {
    **dict.fromkeys(("number", "best_step", "streak", "steps"), COUNT),
    "accuracy": NUMBER,
    "best": NUMBER,
    "end": TEXT,
}
CHECKPOINT: Shape = {"settings": {}, "progress": {"results": [_RESTART], "log": [ANYTHING], "seconds": NUMBER}}
"""The state of an interrupted learning run."""
_LITERALS: Shape = [[ANYTHING]]
SCHEMAS: Shape = {...: {**dict.fromkeys(("pre", "add", "delete"), _LITERALS), "constants?": [WORD], "arity?": COUNT}}


def _drawn_by_statewise(path: Path) -> bool:
    with open(path, "rb") as file:
        return b"Software\0statewise" in file.read(1000)


SEEN_FILE = "seen.json"
"""What the training traces show (`exact.verdicts`)."""
PICTURES = ("model.png", "schemas.png", "models.png", "attention.png", "theta.png")
"""The images that `statewise strips show` writes."""
PICTURE_SIGNS = dict.fromkeys(PICTURES, _drawn_by_statewise)
"""A test for each image that `statewise strips show` wrote it."""
FILES = (
    "model.json",
    "theta.npz",
    "report.json",
    "checkpoint.npz",
    "schemas.json",
    SEEN_FILE,
    "before.json",
    *PICTURES,
)
"""All files of the folder, as patterns of `statewise.runtime.overwriting`."""
SIGNS = {
    "model.json": lambda path: bool(read_json(path, {"format": one_of(FORMAT)})),
    "schemas.json": lambda path: bool(read_json(path, SCHEMAS)),
    "report.json": overwriting.json_with("settings", "seconds"),
    "theta.npz": overwriting.arrays_with("theta"),
    "checkpoint.npz": overwriting.arrays_with("facts"),
}
"""A test for each file that statewise wrote it (`statewise.runtime.overwriting`)."""


NOTHING: Mapping[str, bytes] = {}


@dataclass(frozen=True)
class Learned:
    """A learned action model and how it was learned."""

    model: ActionModel
    theta: np.ndarray
    """[R, L, A, 3] at the end of each restart."""
    report: dict[str, Any] = field(repr=False)
    """Plain data: settings, restarts, pool, seconds."""

    def save(self, folder: Path, files: Mapping[str, bytes] = NOTHING, *, keep_checkpoint: bool = False) -> None:
        """Writes the folder, like `write_model`."""
        write_model(folder, self.model, self.report, files, theta=self.theta, keep_checkpoint=keep_checkpoint)

    @classmethod
    def load(cls, folder: Path) -> Learned:
        """Reads the folder. Raises `FileNotFoundError` if learning has not finished there, `ValueError` if it is
        damaged."""
        model = read_learned_model(folder)
        report = read_json(folder / "report.json", REPORT)
        path = folder / "theta.npz"
        theta = read_arrays(path, "theta")["theta"]
        # NaN fails both comparisons.
        if theta.ndim != 4 or theta.shape[2:] != (len(model.names), 3) or not ((theta >= 0) & (theta <= 1)).all():
            raise ValueError(f"{path}: theta must be (restarts, atoms, {len(model.names)}, 3) numbers from 0 to 1")
        if report["best_restart"] >= len(theta):
            raise ValueError(f"{folder / 'report.json'}: best_restart must be one of {len(theta)} restarts, from 0")
        return cls(model, theta, report)


def read_learned_model(folder: str | Path) -> ActionModel:
    """The action model of a folder, lifted or not. Raises `FileNotFoundError` if learning has not finished there,
    `ValueError` if it is damaged."""
    folder = Path(folder)
    path = folder / "model.json"
    if not path.is_file():
        unfinished = (folder / "checkpoint.npz").exists()
        raise FileNotFoundError(
            f"{folder} holds no learned model"
            + (": learning was interrupted; the same command resumes it" if unfinished else "")
        )
    return ActionModel.from_json(read_text(path), str(path))


def claim(folder: Path, overwrite: bool, *, resumes: bool) -> None:
    """Prepares `folder` for a model. With `overwrite` an earlier model is set aside until the new one is written. An
    interrupted run stays if learning `resumes`. Raises `FileExistsError` if the folder holds a model and `overwrite` is
    not given, or anything else."""
    if may_claim(folder, overwrite, resumes=resumes):
        overwriting.set_aside(folder, FILES)


def may_claim(folder: Path, overwrite: bool, *, resumes: bool) -> bool:
    """Checks, without side effects, whether `claim` would replace the folder; False if learning continues in it. Raises
    what `claim` raises."""
    interrupted = (folder / "checkpoint.npz").is_file()
    if not overwrite and resumes and interrupted:
        return False
    overwriting.check_folder(folder, FILES, SIGNS, "learned model", overwrite)
    return True


@contextlib.contextmanager
def alone(folder: Path | None) -> Iterator[None]:
    """Keeps other processes from learning into `folder` (`statewise.runtime.overwriting`). In the end, a model that was
    set aside is restored unless a new one was written. Raises `BlockingIOError` if another process learns there."""
    if folder is None:
        yield
        return
    with overwriting.claimed(folder):
        _put_back(folder)  # what a killed process had set aside
        try:
            yield
        finally:
            _put_back(folder)


def _put_back(folder: Path) -> None:
    """Deletes the model that was set aside if there is a new one or a checkpoint, and restores it otherwise."""
    overwriting.put_back(
        folder, FILES, lambda: (folder / "model.json").is_file() or (folder / "checkpoint.npz").is_file()
    )


def write_model(
    folder: Path,
    model: ActionModel,
    report: Mapping[str, Any],
    files: Mapping[str, bytes] = NOTHING,
    *,
    schemas: Mapping[str, Schema] | None = None,
    theta: np.ndarray | None = None,
    keep_checkpoint: bool = False,
) -> None:
    """Writes a folder, with further `files`, and deletes the checkpoint, unless learning is to continue from it. If
    writing fails, for example on a full disk, no part of the model stays, so that the folder does not look learned; a
    checkpoint stays."""
    content = dict(files)
    if schemas is not None:
        content["schemas.json"] = schemas_as_json(schemas)
    content["report.json"] = json_bytes(report)
    content["model.json"] = model.as_json().encode()  # the last one, since a folder with a model looks learned
    existed = folder.is_dir()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if theta is not None:
            write_arrays(folder / "theta.npz", theta=theta)
        if SEEN_FILE not in files:
            (folder / SEEN_FILE).unlink(missing_ok=True)  # of an earlier result
        for name, data in content.items():
            write_atomically(folder / name, data)
    except OSError:
        for name in ("theta.npz", "schemas.json", SEEN_FILE, *content):
            (folder / name).unlink(missing_ok=True)
        if not existed:
            with contextlib.suppress(OSError):
                folder.rmdir()
        _put_back(folder)
        raise
    _put_back(folder)
    if not keep_checkpoint:
        (folder / "checkpoint.npz").unlink(missing_ok=True)


def schemas_as_json(schemas: Mapping[str, Schema]) -> bytes:
    """The content of `schemas.json`."""
    content = {
        name: {
            **{
                which: sorted([predicate, *places] for predicate, places in getattr(schema, which))
                for which in ("pre", "add", "delete")
            },
            **({"constants": list(schema.constants), "arity": schema.arity} if schema.constants else {}),
        }
        for name, schema in schemas.items()
    }
    return json_bytes(content)


def read_schemas(folder: str | Path) -> dict[str, Schema] | None:
    """The schemas of a folder, or None if the model was not learned lifted. Raises `ValueError` if they are damaged."""
    path = Path(folder) / "schemas.json"
    if not path.is_file():
        return None
    return schemas_of(read_json(path, SCHEMAS), path)


def schemas_of(content: dict[str, Any], path: Path) -> dict[str, Schema]:
    """The schemas of the content of `schemas.json`. Raises `ValueError`, which names `path`, if they are damaged."""
    if not content:
        raise ValueError(f"{path}: holds no schema")
    check(list(content), [WORD], f"{path}: the names of schemas")
    parts = ("pre", "add", "delete")
    for literal in (literal for schema in content.values() for which in parts for literal in schema[which]):
        check(literal[:1], [WORD], f"{path}: a literal begins with its predicate")
        check(literal[1:], [COUNT], f"{path}: the predicate of a literal is followed by argument numbers")
        if not literal:
            raise ValueError(f"{path}: a literal is empty: it must begin with its predicate")
    return {
        name: Schema(
            *(frozenset((literal[0], tuple(literal[1:])) for literal in schema[which]) for which in parts),
            constants=tuple(schema.get("constants", ())),
            arity=schema.get("arity") if schema.get("constants") else None,
        )
        for name, schema in content.items()
    }


def write_checkpoint(folder: Path, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
    """Writes what an interrupted run resumes from; `facts` is plain data."""
    folder.mkdir(parents=True, exist_ok=True)
    text = np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)
    write_arrays(folder / "checkpoint.npz", **arrays, facts=text)


def read_checkpoint(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """Reads what `write_checkpoint` wrote, or None."""
    path = folder / "checkpoint.npz"
    if not path.exists():
        return None
    arrays = read_arrays(path, "facts")
    return arrays, parse_json(arrays.pop("facts").tobytes(), CHECKPOINT, str(path))


def read_arrays(path: Path, needed: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz file. Raises `OSError` if it cannot be read, `ValueError` if it is damaged or lacks
    `needed`."""
    import lzma
    import zipfile
    import zlib

    content = path.read_bytes()  # first, so that a disk error is not reported as a damaged file
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}  # whole, so that checksums are checked
        arrays = {
            name.removesuffix(".npy"): np.lib.format.read_array(io.BytesIO(member), allow_pickle=False)
            for name, member in members.items()
        }
    # Raised if a flipped bit says: other compression (OSError is bzip2's), encryption, another version, another length.
    except (ValueError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError) as error:
        raise ValueError(f"{path}: damaged: {error}") from None
    if needed not in arrays:
        raise ValueError(f"{path}: damaged: it holds no {needed}")
    return arrays
