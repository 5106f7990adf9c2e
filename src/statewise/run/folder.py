"""The folder of a run, and the names of its reports; its layout is described in `statewise.run`."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from statewise.run.checkpoint import (
    CHECKPOINT_FILES,
    MANIFEST,
    TRAINING,
    Checkpoint,
    DamagedCheckpoint,
    check_checkpoint,
)
from statewise.runtime import overwriting
from statewise.runtime.durable import PATIENCE, append, lock, write_arrays, write_atomically
from statewise.runtime.json_files import (
    AMOUNT,
    ANYTHING,
    COUNT,
    TEXT,
    Leaf,
    Maybe,
    Shape,
    check,
    json_bytes,
    metric,
    one_of,
    parse_json,
    read_json,
)
from statewise.runtime.messages import series
from statewise.runtime.system import sync_folder


def shortened(text: str) -> str:
    """The text as part of a file name: if it has more than 100 bytes, its beginning and a checksum."""
    if len(os.fsencode(text)) <= 100:
        return text
    return f"{_beginning(text, 91)}-{hashlib.sha256(os.fsencode(text)).hexdigest()[:8]}"


def named(text: str) -> str:
    """The text as a file name: characters other than letters, digits and `_.,+-` become `-`, and a checksum is added if
    there were any; `shortened`."""
    safe = re.sub(r"[^\w.,+-]", "-", text)
    if safe != text:
        safe += f"-{hashlib.sha256(os.fsencode(text)).hexdigest()[:8]}"
    return shortened(safe)


def named_path(folder: Path) -> Path:
    """Resolves `.` and `..`, so that the path of a folder ends in its name."""
    return folder.resolve() if folder.name in ("", "..") else folder


def _beginning(text: str, most: int) -> str:
    """The first characters of a text, with at most `most` bytes."""
    return os.fsencode(text)[:most].decode(errors="ignore")


def report_of(kind: str, data: Path) -> str:
    """The name of a report of this kind on a file or corpus: the kind, the file's name, and a checksum of its absolute
    path, so that files of the same name in different folders have reports of their own."""
    return f"{kind}-{_beginning(data.name, 100)}-{hashlib.sha256(os.fsencode(data)).hexdigest()[:8]}"


def evaluation_of(data: Path) -> str:
    """The name of the report of an evaluation on a file or corpus."""
    return report_of("evaluation", data)


def evaluation_on(option: str, value: str) -> str:
    """The name of the report of an evaluation on another held-out set of the task, which an option and its value
    choose."""
    return f"evaluation-{option}-{shortened(value)}"


FORMAT = 1
"""Version of this layout, stored in config.json."""
CONFIG, DATA, ENVIRONMENT_FILE, METRICS = "config.json", "data.json", "environment.json", "metrics.jsonl"
CREATING, LOCK, HOLDER = ".creating", ".lock", ".lock-holder"
FILES = (
    *(ENVIRONMENT_FILE, METRICS, "task/*", "checkpoints/best.json"),
    *(f"checkpoints/*/{name}" for name in CHECKPOINT_FILES),
    *("reports/*.json", "reports/*.png", "reports/*.html", "cache/*.np[yz]", "tensorboard/events.out.tfevents.*"),
    *(CONFIG, DATA, CREATING, LOCK, HOLDER),
)
"""All files of a run directory, as patterns of `statewise.runtime.overwriting`."""
SIGNS = {
    CONFIG: overwriting.json_with("format", "task", "backbone", "objective"),
    ENVIRONMENT_FILE: overwriting.json_with("device", "precision", "threads"),
    "checkpoints/*/manifest.json": overwriting.json_with(TRAINING),
}
"""Signs by which a run is recognised."""
overwriting.protect("run", FILES, SIGNS)

FINISHED = ("steps", "solved")
"""Reasons for ending training after which it is not resumed."""
CONVERTED = "converted"
"""The reason recorded for a run whose weights come from elsewhere."""

Record = dict[str, Any]
"""One line of metrics.jsonl: `kind` (train, evaluation, end), `step`, and numbers."""


_NAMED: Shape = {"name": TEXT}
RECIPE: Shape = {
    "format": ANYTHING,
    "task?": _NAMED,
    "backbone?": _NAMED,
    "objective?": _NAMED,
    "trainer?": Maybe({"steps?": COUNT}),
}
THREADS = Leaf("a whole number from 1 to 4096", lambda value: COUNT.holds(value) and 1 <= value <= 4096)
ENVIRONMENT: Shape = {
    "device": TEXT,
    "precision": one_of("fp32", "bf16"),
    "threads": THREADS,
    "steps?": COUNT,
    "compiled?": one_of("nothing", "blocks", "whole"),
}
RECORD: Shape = {
    "kind": one_of("train", "evaluation", "end"),
    "step": COUNT,
    "reason?": TEXT,
    "part?": TEXT,
    "seconds?": AMOUNT,
    "tokens?": AMOUNT,
    ...: metric,
}
END: Shape = {"reason": TEXT}
"""What a record of the kind `end` also has."""


class Replaced(OSError):
    """A run directory was deleted, moved or replaced while this process was writing to it."""


class Run:
    """A run directory. `create` makes a new one, `open` opens an existing one.

    The holder of its `lock` writes only while the directory is the one that was locked; otherwise `Replaced` is raised.
    Nothing is written through a link: a run may come from anybody.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints_folder = folder / "checkpoints"
        self.reports_folder = folder / "reports"
        self.cache_folder = folder / "cache"
        self._held: int | None = None
        """The open directory, while this object holds the lock; None also on Windows, which opens no directories."""

    @classmethod
    def create(
        cls,
        folder: Path,
        recipe: Mapping[str, Any],
        task_files: Mapping[str, bytes],
        environment: Mapping[str, Any] | None = None,
        data_identity: Mapping[str, str] | None = None,
        *,
        overwrite: bool,
    ) -> Run:
        """Creates a directory. Raises `FileExistsError` as `refuse` does, `BlockingIOError` if another process uses it.

        An overwritten run is deleted once the new one is on disk. If an earlier creation was killed, it is restarted;
        what it was to overwrite is there again.
        """
        run = cls(folder)
        with contextlib.ExitStack() as stack:
            stack.enter_context(cls.claimed(folder, overwrite))
            there = not run._begun()
            if there:
                with run.lock():
                    pass  # no process writes to it
            stack.enter_context(overwriting.replacing(folder, FILES, there))
            held = stack.enter_context(contextlib.ExitStack())
            held.enter_context(run.lock())
            try:
                overwriting.delete(folder, [name for name in FILES if name not in (CREATING, LOCK, HOLDER)])
                (folder / CREATING).touch()
                (folder / "task").mkdir(exist_ok=True)
                for name, content in task_files.items():
                    if Path(name).name != name:
                        raise ValueError(f"the task keeps a file called {name!r}: it must be a name without a folder")
                    write_atomically(folder / "task" / name, content)
                write_atomically(folder / ENVIRONMENT_FILE, json_bytes(environment or {}))
                write_atomically(folder / DATA, json_bytes(data_identity or {}))
                write_atomically(folder / CONFIG, json_bytes({"format": FORMAT, **recipe}))
            except BaseException:
                held.close()
                overwriting.delete(folder, [name for name in FILES if name != CREATING])
                overwriting.delete(folder, FILES)
                raise
            (folder / CREATING).unlink()
        return run

    @classmethod
    @contextlib.contextmanager
    def claimed(cls, folder: Path, overwrite: bool) -> Iterator[None]:
        """A claim on `folder` (`statewise.runtime.overwriting`). What a killed process was to overwrite is there again.
        Raises what `refuse` raises, and `BlockingIOError` if another process creates a run there."""
        with overwriting.claimed(folder):
            run = cls(folder)
            overwriting.put_back(folder, FILES, lambda: run.exists() and not (folder / CREATING).exists())
            cls.refuse(folder, overwrite)
            yield

    @classmethod
    def refuse(cls, folder: Path, overwrite: bool) -> None:
        """Raises `FileExistsError` unless a run may be created at `folder`: it does not exist, holds only a run whose
        creation was interrupted, or, with `overwrite`, holds only a run."""
        try:
            str(folder.absolute()).encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"{str(folder)!r} is not UTF-8, and checkpoints could not be read from it: choose another `out`"
            ) from None
        if not cls(folder)._begun():
            overwriting.check_folder(folder, FILES, SIGNS, "run", overwrite, f"`resume` {folder} or ")

    def _begun(self) -> bool:
        """Whether the directory exists and is empty or holds only a run whose creation was interrupted."""
        if self.exists() or not self.folder.is_dir():
            return not self.folder.exists() and not self.folder.is_symlink()
        names = {path.name for path in self.folder.iterdir()} - {*overwriting.INSIDE}
        return names <= {LOCK, HOLDER} or (CREATING in names and not overwriting.strangers(self.folder, FILES))

    @classmethod
    def open(cls, folder: Path) -> Run:
        """Opens an existing directory. Raises `FileNotFoundError` if there is no run at `folder`."""
        run = cls(folder)
        if (folder / CREATING).exists() and not run.exists():
            raise FileNotFoundError(
                f"{folder} is not a run directory: its creation was interrupted; run the command that created it again"
            )
        if (folder / CONFIG).is_dir():
            raise FileNotFoundError(f"{folder} is not a run directory: its {CONFIG} is a folder, not a file")
        if not run.exists():
            inner = next((path.parent.name for path in sorted(folder.glob(f"*/{CONFIG}"))), "")
            hint = f"; it holds runs, such as {folder / inner}: give one of them" if inner else ""
            raise FileNotFoundError(f"{folder} is not a run directory: it has no {CONFIG}{hint}")
        content: Any = None
        with contextlib.suppress(ValueError, OSError):  # of which reading the recipe tells more
            content = read_json(folder / CONFIG, ANYTHING)
        if isinstance(content, dict) and "model_type" in content and "task" not in content:
            tuned = f", or tune it with statewise train RECIPE --backbone hf --backbone.model {folder}"
            raise FileNotFoundError(
                f"{folder} is not a run directory, but a Hugging Face model: give the run that it was exported from"
                f"{'' if content['model_type'] == 'statewise' else tuned}"
            )
        return run

    def linked(self, folder: Path) -> Run:
        """A run in the new directory `folder`, which uses the recipe and the checkpoints of this one through links.
        Its reports begin as copies, so that what later commands write is not written into this run. Raises
        `FileExistsError` if something is there."""
        if folder.exists() or folder.is_symlink():
            raise FileExistsError(f"{folder} exists")
        here = self.folder.resolve()
        scratch = Path(tempfile.mkdtemp(prefix=".linking-", dir=folder.parent))
        try:
            for name in (CONFIG, DATA, ENVIRONMENT_FILE, METRICS, "task", "checkpoints", "tensorboard"):
                if (here / name).exists():
                    (scratch / name).symlink_to(here / name)
            (scratch / "reports").mkdir()
            for path in self.reports_folder.glob("*.*"):
                if path.is_file() and not path.is_symlink():
                    shutil.copyfile(path, scratch / "reports" / path.name)
            scratch.chmod(here.stat().st_mode & 0o777)
            scratch.rename(folder)
        except BaseException:
            shutil.rmtree(scratch)  # removes links, and not what they name
            raise
        return Run(folder)

    def exists(self) -> bool:
        """Whether there is a run in the directory."""
        return (self.folder / CONFIG).is_file()

    def recipe(self) -> dict[str, Any]:
        """The resolved recipe. Raises `ValueError` if it cannot be read."""
        path = self.folder / CONFIG
        recipe: dict[str, Any] = read_json(path, RECIPE)
        if recipe.pop("format") != FORMAT:
            raise ValueError(f"{path} was not written by this version of statewise (format {FORMAT})")
        return recipe

    def data_identity(self) -> dict[str, str]:
        """Checksums of the run's `data` and of its `tokenizer`, as far as it has them (`Task.data_identity`). Raises
        `ValueError` if the file is damaged."""
        path = self.folder / DATA
        identity: dict[str, str] = read_json(path, {"data?": TEXT, "tokenizer?": TEXT}) if path.exists() else {}
        return identity

    def task_files(self) -> dict[str, bytes]:
        """The task's files by name."""
        return {path.name: path.read_bytes() for path in sorted((self.folder / "task").glob("*"))}

    @contextlib.contextmanager
    def lock(self, patience: float = PATIENCE) -> Iterator[None]:
        """Locks the run for one writer. Raises `BlockingIOError` if another process uses it, for longer than `patience`
        in seconds."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with lock(self.folder / LOCK, f"{self.folder} is in use by another process", patience):
            before = self._held
            self._held = None if os.name == "nt" else os.open(self.folder, os.O_RDONLY)
            try:
                yield
            finally:
                if self._held is not None:
                    os.close(self._held)
                self._held = before

    def _refuse_replaced(self) -> None:
        """Raises `Replaced` if another directory has taken the place of the locked one."""
        if self._held is None:
            return
        try:
            same = os.path.samestat(os.stat(self.folder), os.fstat(self._held))
        except OSError:
            same = False
        if not same:
            raise Replaced(
                f"{self.folder} was deleted, moved or replaced while this process was writing to it: this process "
                "ends, and leaves what is there now unchanged"
            )

    def writable(self, folder: Path) -> Path:
        """Checks that one may write into `folder`, one of the run's own, and returns it. Raises `Replaced`, and
        `PermissionError` if it is a link."""
        self._refuse_replaced()
        if folder.is_symlink():
            raise PermissionError(
                errno.EPERM,
                "this is a link, and nothing is written through links: put a folder in its place",
                str(folder),
            )
        return folder

    def in_use(self) -> bool:
        """Whether a process trains the run, as far as locks show: across machines that share a disk they may not."""
        try:
            with self.lock(patience=0):
                return False
        except BlockingIOError:
            return True
        except OSError:  # we may only read
            return False

    def converted(self, records: Sequence[Record] | None = None) -> bool:
        """Whether the run was not trained, but holds a model from elsewhere; `records` as for `end`."""
        end = self.end(records)
        return end is not None and end["reason"] == CONVERTED

    def complete(self, records: Sequence[Record] | None = None) -> bool:
        """Whether training finished, and its report was written then: an evaluation made during training reports on an
        earlier best checkpoint, and does not count. `records` as for `end`."""
        end = self.end(records)
        if end is None or end["reason"] not in FINISHED:
            return False
        report, step = self.report("evaluation"), self._reported_step()
        return report is not None and step in (None, report.get("checkpoint"))

    def _reported_step(self) -> int | None:
        """Step of the checkpoint that the final report evaluates; None if checkpoints were deleted."""
        best = self.best_step()
        steps = [checkpoint.step for checkpoint in self.checkpoints()]
        return steps[-1] if best is None and steps else best

    # Environment

    def environment(self) -> dict[str, Any]:
        """What determined the results besides the recipe. Raises `FileNotFoundError` if the file is missing,
        `ValueError` if it cannot be read."""
        path = self.folder / ENVIRONMENT_FILE
        if not path.exists():
            raise FileNotFoundError(
                f"{path} is missing: restore it, or describe the machine that trained the run in it as JSON, such as "
                '{"device": "cpu", "precision": "fp32", "threads": 2}'
            )
        environment: dict[str, Any] = read_json(path, ENVIRONMENT)
        return environment

    def precision(self) -> str:
        """`bf16` or `fp32`: the precision of training and inference. Raises as `environment`."""
        name: str = self.environment()["precision"]
        return name

    # Metrics

    def log(self, record: Record) -> None:
        """Appends a line to metrics.jsonl. Raises `Replaced`."""
        self._refuse_replaced()
        append(self.folder / METRICS, (json.dumps(record) + "\n").encode(), durably=False)

    def metrics(self) -> list[Record]:
        """All complete lines of metrics.jsonl."""
        return self.records(self.lines())

    def lines(self) -> list[bytes]:
        """The complete lines of metrics.jsonl, as written."""
        path = self.folder / METRICS
        if not path.exists():
            return []
        return path.read_bytes().split(b"\n")[:-1]  # the last is empty, or incomplete after a kill during writing

    def records(self, lines: Sequence[bytes], first: int = 0) -> list[Record]:
        """The records of `lines` from index `first` on. Raises `ValueError`, with its number, for a damaged line."""
        path = self.folder / METRICS
        records: list[Record] = []
        for number, line in enumerate(lines[first:], first + 1):
            record = parse_json(line, RECORD, f"{path}:{number}")
            records.append(check(record, END, f"{path}:{number}") if record["kind"] == "end" else record)
        return records

    def forget_after(self, step: int) -> None:
        """Deletes everything after the checkpoint of `step`, what a killed process left of others, and every `end`
        record, so that training can resume."""
        self.writable(self.checkpoints_folder)
        for left in (*self.checkpoints_folder.glob(".writing-*"), *self.checkpoints_folder.glob(".dropped-step-*")):
            if not left.is_symlink():
                overwriting.delete(left, CHECKPOINT_FILES)
        for checkpoint in self.checkpoints():
            if checkpoint.step > step:
                checkpoint.discard()
        best = self.best_step()
        if best is not None and best not in [checkpoint.step for checkpoint in self.checkpoints()]:
            (self.checkpoints_folder / "best.json").unlink()
        kept = [record for record in self.metrics() if record["step"] <= step and record["kind"] != "end"]
        content = "".join(json.dumps(record) + "\n" for record in kept)
        write_atomically(self.folder / METRICS, content.encode())

    def end(self, records: Sequence[Record] | None = None) -> Record | None:
        """The final record of training, if it is complete. `records`: those of `metrics`, if the caller has them: to
        read a long file takes seconds."""
        ends = [record for record in (self.metrics() if records is None else records) if record["kind"] == "end"]
        return ends[-1] if ends else None

    # Checkpoints

    def checkpoints(self) -> list[Checkpoint]:
        """Checkpoints on disk, oldest first, not verified."""
        names = (path.name for path in self.checkpoints_folder.glob("step-*"))
        # as `checkpoint` writes it
        matches = (re.fullmatch(r"step-([0-9]{8}|[1-9][0-9]{8,15})", name) for name in names)
        return [self.checkpoint(step) for step in sorted(int(one[1]) for one in matches if one)]

    def refuse_lost(self, every: int) -> None:
        """Raises `FileNotFoundError` if there is no checkpoint and the metrics show that there was one. Checkpoints are
        written every `every` steps, at the first evaluation, and before training ends."""
        folder, records = self.checkpoints_folder, self.metrics()
        if folder.exists() and not folder.is_dir():
            raise FileNotFoundError(f"{folder} is a file, not a folder: move it away")
        if self.checkpoints():
            return
        first = min([every, *(record["step"] for record in records if record["kind"] == "evaluation")])
        if any(record["step"] > first or record.get("reason") in FINISHED for record in records):
            raise FileNotFoundError(
                f"{self.folder} has no checkpoint, but its metrics.jsonl has records after the first one was due: "
                f"restore {folder} from a copy, or train again with `overwrite`"
            )

    def checkpoint(self, step: int) -> Checkpoint:
        """The checkpoint of a step, not verified."""
        return Checkpoint(step, self.checkpoints_folder / f"step-{step:08d}")

    def best_step(self) -> int | None:
        """Step of the best checkpoint so far."""
        path = self.checkpoints_folder / "best.json"
        return int(read_json(path, {"step": COUNT})["step"]) if path.exists() else None

    def mark_best(self, step: int, metric: str, value: float) -> None:
        """Marks the checkpoint of `step` as the best."""
        write_atomically(
            self.writable(self.checkpoints_folder) / "best.json", json_bytes({"step": step, metric: value})
        )

    def write_checkpoint(self, step: int, files: Mapping[str, bytes]) -> Checkpoint:
        """Writes and syncs all files, then makes the checkpoint visible by one rename."""
        scratch = self.begin_checkpoint(step)
        try:
            return self.end_checkpoint(
                step, {name: scratch.write_part(name, content) for name, content in files.items()}
            )
        except BaseException:
            self.abandon_checkpoint(step)
            raise

    def begin_checkpoint(self, step: int) -> Checkpoint:
        """A folder for the files of a checkpoint, which becomes visible with `end_checkpoint`. Raises as `writable`
        does."""
        self.writable(self.checkpoints_folder)
        self.abandon_checkpoint(step)
        return self.begun_checkpoint(step)

    def begun_checkpoint(self, step: int) -> Checkpoint:
        """The folder of `begin_checkpoint`, for another process that writes to it."""
        return Checkpoint(step, self.checkpoints_folder / f".writing-{step:08d}")

    def abandon_checkpoint(self, step: int) -> None:
        """Deletes what was written since `begin_checkpoint`."""
        overwriting.delete(self.begun_checkpoint(step).folder, CHECKPOINT_FILES)

    def end_checkpoint(self, step: int, sums: Mapping[str, str]) -> Checkpoint:
        """Makes a checkpoint visible. All its files must be written; `sums` are their checksums."""
        self._refuse_replaced()
        begun, made = self.begun_checkpoint(step), self.checkpoint(step)
        write_atomically(begun.folder / MANIFEST, json_bytes(sums))
        if made.folder.exists():
            made.discard()
        os.rename(begun.folder, made.folder)
        sync_folder(self.checkpoints_folder)
        return made

    def drop_checkpoints(self, *, newest: int, keeps: Callable[[int], bool]) -> None:
        """Deletes all checkpoints except the `newest` ones, the best, and those whose steps satisfy `keeps`."""
        self.writable(self.checkpoints_folder)
        best = self.best_step()
        for checkpoint in self.checkpoints()[:-newest]:
            if checkpoint.step != best and not keeps(checkpoint.step):
                checkpoint.discard()

    def find_checkpoint(self, which: str = "last") -> Checkpoint:
        """The verified checkpoint `last`, `best` or of a given step.

        Raises `FileNotFoundError` if there is none, and `DamagedCheckpoint`, naming the newest intact one, if it is
        damaged.
        """
        check_checkpoint(which)
        every = self.checkpoints()
        if not every:
            raise FileNotFoundError(f"{self.folder} has no checkpoint yet")
        wanted = every[-1].step
        if which == "best":
            best = self.best_step()
            wanted = wanted if best is None else best
        elif which != "last":
            wanted = int(which)
        by_step = {checkpoint.step: checkpoint for checkpoint in every}
        if wanted not in by_step:
            steps = series(map(str, sorted(by_step)))
            raise FileNotFoundError(f"{self.folder} has no checkpoint of step {wanted}; it has {steps}")
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
                return f"the newest intact one is step {checkpoint.step}: add `checkpoint` {checkpoint.step}"
        return "no other checkpoint is intact: restore it from a copy, or train again"

    # Reports

    def write_report(self, name: str, content: Mapping[str, Any]) -> Path:
        """Writes `content` to reports/NAME.json. Raises what `writable` raises."""
        self.writable(self.reports_folder).mkdir(exist_ok=True)
        path = self.reports_folder / f"{name}.json"
        write_atomically(path, json_bytes(content))
        return path

    def report(self, name: str) -> dict[str, Any] | None:
        """reports/NAME.json, or None if there is none. Raises `ValueError` if it is not a JSON object."""
        path = self.reports_folder / f"{name}.json"
        report: dict[str, Any] | None = read_json(path, {}) if path.exists() else None
        return report

    def reports(self) -> list[str]:
        """Names of all reports, sorted."""
        return sorted(path.stem for path in self.reports_folder.glob("*.json"))

    # Cache

    def remember(self, key: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The cached array of `key`, any text; if there is none, or it is damaged, caches and returns `make()`."""
        path = self.cache_folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npz"  # which has a checksum
        try:
            with np.load(path, allow_pickle=False) as arrays:
                array: np.ndarray = arrays["array"]
            return array
        except Exception:  # a damaged archive raises errors of many kinds: of zip, zlib, seeking, memory, types
            made = make()
        with contextlib.suppress(OSError):  # a run that may only be read caches nothing
            self.writable(self.cache_folder).mkdir(exist_ok=True)
            write_arrays(path, array=made)
        return made
