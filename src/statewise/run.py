"""The run directory: one per training run, and the only owner of its file names and formats.

    config.json         the resolved recipe
    environment.json    what decided the numbers besides it: device, precision, threads, versions; steps in all
    task/               files that the task needs to be built again without its data
    metrics.jsonl       every number that was printed while training, a record a line
    checkpoints/        step-00000500/ with weights.safetensors, training.pt, manifest.json; best.json
    reports/            what later commands found out about the run
    cache/              arrays that later commands would compute again; may be deleted at any time

Files are written under a temporary name, synced and renamed, so that a kill at any moment leaves the last
complete one. Checkpoints carry checksums.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = 1
"""Version of this layout, kept in config.json."""

Record = dict[str, Any]
"""One line of metrics.jsonl: `kind` (train, evaluation, end), `step`, and numbers."""


class DamagedCheckpoint(ValueError):
    """A checkpoint that is incomplete or was changed."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    step: int
    folder: Path

    @property
    def weights(self) -> Path:
        """The objective's parameters, as safetensors."""
        return self.folder / "weights.safetensors"

    @property
    def training(self) -> Path:
        """Optimiser and trainer state, readable with `weights_only=True`."""
        return self.folder / "training.pt"

    def verify(self) -> None:
        """Raises `DamagedCheckpoint` unless every file is as it was written."""
        try:
            sums = json.loads((self.folder / "manifest.json").read_text())
            for name, expected in sums.items():
                if _checksum(self.folder / name) != expected:
                    raise DamagedCheckpoint(f"{self.folder / name} is damaged: its checksum does not match")
        except (OSError, ValueError) as error:
            if isinstance(error, DamagedCheckpoint):
                raise
            raise DamagedCheckpoint(f"checkpoint {self.folder} is damaged: {error}") from None


class Run:
    """A run directory. `create` makes one, `open` takes an existing one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints_folder = folder / "checkpoints"
        self.reports_folder = folder / "reports"
        self.cache_folder = folder / "cache"

    @classmethod
    def create(
        cls, folder: Path, recipe: Mapping[str, Any], task_files: Mapping[str, bytes], *, overwrite: bool
    ) -> Run:
        """A new directory. Raises `FileExistsError` if there is something at `folder` already.

        `overwrite` replaces an existing run, but nothing that is not one. It is dropped once the new one is on disk.
        """
        run, aside = cls(folder), None
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            if not overwrite:
                raise FileExistsError(
                    f"{folder} exists: choose another --out, or give --resume {folder} or --overwrite"
                )
            if not run.exists():
                raise FileExistsError(f"{folder} exists and is no run: it will not be overwritten")
            aside = run._put_aside()
        try:
            (folder / "task").mkdir(parents=True, exist_ok=True)
            run.checkpoints_folder.mkdir(exist_ok=True)
            run.reports_folder.mkdir(exist_ok=True)
            for name, content in task_files.items():
                write_atomically(folder / "task" / name, content)
            write_atomically(folder / "config.json", _as_json({"format": FORMAT, **recipe}))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            if aside is not None:
                os.rename(aside, folder)
            raise
        if aside is not None:
            shutil.rmtree(aside)
        return run

    def _put_aside(self) -> Path:
        """Renames the directory; returns where it is then. Raises as `delete`."""
        aside = self.folder.with_name(f".replaced-{self.folder.name}")
        with self.lock():
            shutil.rmtree(aside, ignore_errors=True)
            os.rename(self.folder, aside)
        return aside

    @classmethod
    def open(cls, folder: Path) -> Run:
        """An existing directory. Raises `FileNotFoundError` if there is no run at `folder`."""
        run = cls(folder)
        if not run.exists():
            raise FileNotFoundError(f"{folder} is no run: it has no config.json")
        return run

    def exists(self) -> bool:
        """Whether there is a run in the directory."""
        return (self.folder / "config.json").is_file()

    def recipe(self) -> dict[str, Any]:
        """The resolved recipe. Raises `ValueError` if it cannot be read."""
        path = self.folder / "config.json"
        try:
            recipe: dict[str, Any] = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from None
        if recipe.pop("format", None) != FORMAT:
            raise ValueError(f"{path} was not written by this version of statewise (format {FORMAT})")
        return recipe

    def task_files(self) -> dict[str, bytes]:
        """What the task left here."""
        return {path.name: path.read_bytes() for path in sorted((self.folder / "task").glob("*"))}

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the run for one writer. Raises `BlockingIOError` if another process has it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / ".lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BlockingIOError(f"{self.folder} is in use by another process") from None
            yield

    def delete(self) -> None:
        """Deletes the directory. Raises `BlockingIOError` if another process is writing to it."""
        with self.lock():
            shutil.rmtree(self.folder)

    def complete(self) -> bool:
        """Whether training came to its end and its report was written."""
        end = self.end()
        return end is not None and end["reason"] in ("steps", "solved") and self.report("evaluation") is not None

    # Environment

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        """Keeps what decided the numbers besides the recipe."""
        write_atomically(self.folder / "environment.json", _as_json(environment))

    def environment(self) -> dict[str, Any]:
        """What `write_environment` kept; empty before that."""
        path = self.folder / "environment.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    # Metrics

    def log(self, record: Record) -> None:
        """Adds a line to metrics.jsonl."""
        with open(self.folder / "metrics.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")

    def metrics(self) -> list[Record]:
        """All complete lines of metrics.jsonl."""
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            lines.pop()  # torn by a kill in the middle of writing
        try:
            return [json.loads(line) for line in lines]
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}") from None

    def forget_after(self, step: int) -> None:
        """Drops what came after the checkpoint at `step`, and every `end` record: training goes on there."""
        for checkpoint in self.checkpoints():
            if checkpoint.step > step:
                _discard(checkpoint.folder)
        best = self.best_step()
        if best is not None and best not in [checkpoint.step for checkpoint in self.checkpoints()]:
            (self.checkpoints_folder / "best.json").unlink()
        kept = [record for record in self.metrics() if record["step"] <= step and record["kind"] != "end"]
        content = "".join(json.dumps(record) + "\n" for record in kept)
        write_atomically(self.folder / "metrics.jsonl", content.encode())

    def end(self) -> Record | None:
        """The record that closed training, if it is complete."""
        ends = [record for record in self.metrics() if record["kind"] == "end"]
        return ends[-1] if ends else None

    # Checkpoints

    def checkpoints(self) -> list[Checkpoint]:
        """Checkpoints on disk, oldest first; not verified."""
        found = []
        for folder in sorted(self.checkpoints_folder.glob("step-*")):
            number = folder.name.removeprefix("step-")
            if number.isdigit():
                found.append(Checkpoint(int(number), folder))
        return found

    def best_step(self) -> int | None:
        """Step of the best checkpoint so far."""
        path = self.checkpoints_folder / "best.json"
        return int(json.loads(path.read_text())["step"]) if path.exists() else None

    def mark_best(self, step: int, metric: str, value: float) -> None:
        """Names the checkpoint of `step` the best."""
        write_atomically(self.checkpoints_folder / "best.json", _as_json({"step": step, metric: value}))

    def write_checkpoint(self, step: int, files: Mapping[str, bytes]) -> Checkpoint:
        """Writes all files, synced, and makes the whole visible by one rename."""
        final = self.checkpoints_folder / f"step-{step:08d}"
        scratch = self.checkpoints_folder / f".writing-{step:08d}"
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            scratch.mkdir()
            for name, content in files.items():
                write_atomically(scratch / name, content)
            sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
            write_atomically(scratch / "manifest.json", _as_json(sums))
            if final.exists():
                _discard(final)
            os.rename(scratch, final)
            _sync(self.checkpoints_folder)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        return Checkpoint(step, final)

    def drop_checkpoints(self, *, newest: int, every: int) -> None:
        """Deletes all checkpoints but the `newest` ones, the best, and those at multiples of `every` (0: none)."""
        best = self.best_step()
        for checkpoint in self.checkpoints()[:-newest]:
            if checkpoint.step != best and not (every and checkpoint.step % every == 0):
                _discard(checkpoint.folder)

    def find_checkpoint(self, which: str = "last") -> Checkpoint:
        """The verified checkpoint named `last`, `best` or by its step.

        Raises `FileNotFoundError` if there is none, and `DamagedCheckpoint`, which names the newest good
        one, if it is damaged.
        """
        every = self.checkpoints()
        if not every:
            raise FileNotFoundError(f"{self.folder} has no checkpoint yet")
        wanted = every[-1].step
        if which == "best":
            best = self.best_step()
            wanted = wanted if best is None else best
        elif which != "last":
            if not which.isdigit():
                raise ValueError(f"checkpoint must be last, best or a step, not {which!r}")
            wanted = int(which)
        by_step = {checkpoint.step: checkpoint for checkpoint in every}
        if wanted not in by_step:
            raise FileNotFoundError(f"{self.folder} has no checkpoint of step {wanted}; it has {sorted(by_step)}")
        try:
            by_step[wanted].verify()
        except DamagedCheckpoint as error:
            raise DamagedCheckpoint(f"{error}; {self._newest_good(wanted)}") from None
        return by_step[wanted]

    def _newest_good(self, but: int) -> str:
        for checkpoint in reversed(self.checkpoints()):
            if checkpoint.step != but:
                try:
                    checkpoint.verify()
                except DamagedCheckpoint:
                    continue
                return f"the newest good one is step {checkpoint.step}: add --checkpoint {checkpoint.step}"
        return "no other is good"

    # Reports

    def write_report(self, name: str, content: Mapping[str, Any]) -> Path:
        """Keeps `content` as reports/NAME.json."""
        self.reports_folder.mkdir(exist_ok=True)
        path = self.reports_folder / f"{name}.json"
        write_atomically(path, _as_json(content))
        return path

    def report(self, name: str) -> dict[str, Any] | None:
        """reports/NAME.json, or None if there is none."""
        path = self.reports_folder / f"{name}.json"
        found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
        return found

    def reports(self) -> list[str]:
        """Names of all reports, in order."""
        return sorted(path.stem for path in self.reports_folder.glob("*.json"))

    # Cache

    def remember(self, key: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The array kept under `key`, any text; where there is none that can be read, what `make` gives, which is
        kept from then on."""
        path = self.cache_folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npy"
        try:
            found: np.ndarray = np.load(path, allow_pickle=False)
            return found
        except (FileNotFoundError, ValueError, EOFError):
            made = make()
        self.cache_folder.mkdir(exist_ok=True)
        write_array(path, made)
        return made


def write_array(path: Path, array: np.ndarray) -> None:
    """Writes an .npy file atomically."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    write_atomically(path, buffer.getvalue())


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces `path` as a whole or not at all, and durably."""
    scratch = path.with_name(f".{path.name}.writing")
    with open(scratch, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, path)
    _sync(path.parent)


def _discard(folder: Path) -> None:
    """Deletes a folder that a kill must not leave half there: it loses its name first."""
    nameless = folder.with_name(f".dropped-{folder.name}")
    shutil.rmtree(nameless, ignore_errors=True)
    os.rename(folder, nameless)
    shutil.rmtree(nameless, ignore_errors=True)


def _as_json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
