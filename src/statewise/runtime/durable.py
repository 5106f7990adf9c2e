"""Durable writing: a file is replaced as a whole or not at all, and is on disk when the call returns.

The content goes into a temporary file beside it, `.NAME.MACHINE-PROCESS-NUMBER.writing`, is synced, read back, and gets
its name by one rename. Whatever fails, on a full disk say, the temporary file is deleted and what was there before
stays. Of two processes that write one file at the same time the last wins (`statewise.runtime.overwriting` keeps them
apart), and what a killed one left is deleted by the next.

What is written is counted and its CRC-32 computed on the way (`Checked`). Before the file gets its name, its size and
the CRC-32 of what is read back must be the same: some writers lose data on a full disk and report success, such as
NumPy's `tofile`, which also `numpy.save` calls for files of the system. Reading back comes from memory
(docs/decisions/0009-files-are-written-in-one-place.md says what it costs).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import hashlib
import io
import itertools
import os
import re
import socket
import stat
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from statewise.runtime.system import process_lives, sync_folder

if TYPE_CHECKING:
    import numpy as np


NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of file systems that have no locks."""
PATIENCE = 0.5
"""Seconds of waiting for a lock: a process that only tests whether it is held has it for an instant."""


LONGEST_STEM = 190
"""Longest name, in bytes, to which a suffix is added; file systems allow 255 in all."""

BLOCK = 2**20
"""Bytes read back at a time."""

_TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<machine>[0-9a-f]{8})-(?P<process>\d+)-\d+\.writing", re.DOTALL)
_NUMBERS = itertools.count()


def stem(name: str) -> str:
    """The stem of names of helper files beside the file `name`: `name` itself or, if that is long, its beginning and a
    hash."""
    content = os.fsencode(name)
    if len(content) <= LONGEST_STEM:
        return name
    return f"{content[:100].decode(errors='ignore')}~{hashlib.sha256(content).hexdigest()[:16]}"


def temporary_of(name: str) -> str | None:
    """The `stem` of the file whose temporary file is called `name`; None: it is not a temporary file."""
    match = _TEMPORARY.fullmatch(name)
    return match["name"] if match else None


class Checked:
    """A file that is written from beginning to end, and then compared with what was written.

    It offers no file descriptor, since other software would write to it without these checks.
    """

    def __init__(self, path: Path, head: int = 0) -> None:
        """Creates the file `path`, or empties it. Its first `head` bytes are written last, by `settle`."""
        self.path, self.head = path, head
        self.size, self.sum = head, 0
        """Bytes so far, and the CRC-32 of those after the head."""
        self._file: BinaryIO = open(path, "w+b")  # noqa: SIM115
        if head:
            self._file.write(bytes(head))

    def write(self, content: bytes | bytearray | memoryview) -> int:
        """Appends bytes. Raises `OSError` if there is no room for them, now or later."""
        view = memoryview(content)
        self._file.write(view)
        self.size += view.nbytes
        self.sum = zlib.crc32(view, self.sum)
        return view.nbytes

    def tell(self) -> int:
        """The number of bytes so far."""
        return self.size

    def flush(self) -> None:
        """Hands buffered bytes to the system."""
        self._file.flush()

    def settle(self, head: bytes = b"") -> None:
        """Writes the head and closes the file, which then is on disk and holds what was written. Raises `OSError`
        otherwise."""
        if len(head) != self.head:
            raise ValueError(f"the head has {len(head)} bytes, not {self.head}")
        file = self._file
        if head:
            file.seek(0)
            file.write(head)
        sync(file)
        there = os.fstat(file.fileno()).st_size
        if there != self.size:
            what = f"the file has {there:,} bytes, though {self.size:,} were written: is the disk full?"
            raise OSError(errno.EIO, what, str(self.path))
        file.seek(0)
        checksum, begin = 0, file.read(self.head)
        while block := file.read(BLOCK):
            checksum = zlib.crc32(block, checksum)
        if checksum != self.sum or begin != head:
            raise OSError(errno.EIO, "the file reads back differently than it was written", str(self.path))
        file.close()

    def close(self) -> None:
        """Closes the file without checking it."""
        with contextlib.suppress(OSError):  # what could not be written before would fail again, without a name
            self._file.close()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Checked]:
    """A file for the new content of `path`, which is replaced when the block ends without an error."""
    with errors_of(path):
        with _scratch(path) as file:
            yield file
            _publish(file, path)
        sync_folder(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces `path` as a whole or not at all."""
    write_all({path: content})


def write_all(contents: Mapping[Path, bytes]) -> None:
    """Replaces files that belong together: none of them unless there is room for all. (A power cut between the renames
    may leave the first of them new and the others old, each whole.)"""
    with contextlib.ExitStack() as opened:
        files = {}
        for path, content in contents.items():
            with errors_of(path):
                files[path] = opened.enter_context(_scratch(path))
                files[path].write(content)
                files[path].settle()
        for path, file in files.items():
            with errors_of(path):
                os.replace(file.path, path)
    for folder in {path.parent for path in contents}:
        sync_folder(folder)


def write_array(path: Path, array: np.ndarray) -> None:
    """Writes an .npy file; see `write_atomically`."""
    import numpy as np

    with replacing(path) as file:
        np.save(file, array, allow_pickle=False)


def write_arrays(path: Path, **arrays: np.ndarray) -> None:
    """Writes an .npz file; see `write_atomically`."""
    import numpy as np

    buffer = io.BytesIO()  # zip files are written back and forth
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    write_atomically(path, buffer.getvalue())


def append(path: Path, content: bytes, *, durably: bool = True) -> None:
    """Adds `content` to the end of a file, or nothing of it where that fails. `durably`: it is then on disk."""
    with errors_of(path), open(path, "ab", buffering=0) as file:
        before = file.seek(0, os.SEEK_END)
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[file.write(rest) :]
            if durably:
                os.fsync(file.fileno())
            if os.fstat(file.fileno()).st_size < before + len(content):
                raise OSError(errno.EIO, "the end of what was written is missing: is the disk full?", str(path))
        except BaseException:
            with contextlib.suppress(OSError):
                file.truncate(before)
            raise
    if durably and not before:
        sync_folder(path.parent)


def sync(file: BinaryIO) -> None:
    """Syncs an open file: its content is on disk when this returns."""
    file.flush()
    os.fsync(file.fileno())


@contextlib.contextmanager
def lock(path: Path, refusal: str, patience: float = PATIENCE) -> Iterator[None]:
    """Holds the lock file `path` within the block. Raises `BlockingIOError` with the message `refusal` if another
    process holds it for longer than `patience` seconds, and `FileExistsError` if `path` is not a lock file. On file
    systems without locks, such as some shared ones, the file `PATH-holder` names the process; the error then says so,
    since that file stays if the process is killed on another machine."""
    from filelock import FileLock, Timeout

    _check_lock_file(path)
    held = FileLock(path, timeout=patience, poll_interval=0.02)
    try:
        held.acquire()
    except Timeout:
        raise BlockingIOError(refusal) from None
    except (NotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in NO_LOCKS:
            raise
        with _held_by_name(path.with_name(f"{path.name}-holder"), refusal):
            yield
        return
    own = _identity(path)
    try:
        yield
    finally:
        if _identity(path) == own:  # and not the lock of another process, whose folder has taken the place of this one
            with contextlib.suppress(OSError):  # Windows keeps files that are open
                path.unlink()  # while it is held: a process that waits for it notices, and makes a new one
        held.release()


def _check_lock_file(path: Path) -> None:
    """Raises `FileExistsError` if `path` is not a lock file: it would be deleted with the lock. A lock file is empty,
    or holds the number of a process on file systems where `filelock` cannot lock."""
    try:
        there = os.lstat(path)
    except OSError:
        return  # nothing is there, or the lock itself meets the error
    if stat.S_ISREG(there.st_mode):
        if not there.st_size:
            return
        with contextlib.suppress(OSError), open(path, "rb") as file:
            if re.match(rb"\d+\s", file.read(32)):
                return
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISLNK, "a link"), (stat.S_ISREG, "a file of another program"))
    what = next((words for holds, words in kinds if holds(there.st_mode)), "not a regular file")
    raise FileExistsError(f"{path} is {what}, and statewise needs this name for its lock: move it away")


def _identity(path: Path) -> tuple[int, int] | None:
    """An identity that no other file has while this one is open; None if the file does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def _held_by_name(path: Path, refusal: str) -> Iterator[None]:
    """`lock` by a file that only one process can create."""
    host = socket.gethostname()
    for _ in range(2):
        try:
            with open(path, "x") as file:
                file.write(f"{host} {os.getpid()}")
            break
        except FileExistsError:
            holder, _, number = path.read_text().rpartition(" ")
            if holder == host and number.isdigit() and not process_lives(int(number)):
                path.unlink(missing_ok=True)
                continue
            what = f"{path} names process {number} on {holder}; delete that file if the process has ended"
            raise BlockingIOError(f"{refusal}: {what}") from None
    else:
        raise BlockingIOError(refusal)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _scratch(path: Path) -> Iterator[Checked]:
    """The temporary file of `path`, deleted unless it was published."""
    _delete_left(path)
    file = Checked(path.with_name(f".{stem(path.name)}.{_machine()}-{os.getpid()}-{next(_NUMBERS)}.writing"))
    try:
        yield file
    finally:
        file.close()
        with contextlib.suppress(OSError):
            file.path.unlink()


def _delete_left(path: Path) -> None:
    """Deletes temporary files of `path` whose process was killed on this machine."""
    for left in path.parent.glob(f".{glob.escape(stem(path.name))}.*.writing"):
        match = _TEMPORARY.fullmatch(left.name)
        if match and match["machine"] == _machine() and not process_lives(int(match["process"])):
            with contextlib.suppress(OSError):
                left.unlink()


@functools.cache
def _machine() -> str:
    """Identifies this machine, its boot and its process namespace, for names of temporary files on shared disks."""
    known = [socket.gethostname()]
    with contextlib.suppress(OSError):  # Linux has them
        known += [os.readlink("/proc/self/ns/pid"), Path("/proc/sys/kernel/random/boot_id").read_text()]
    return f"{zlib.crc32(' '.join(known).encode()):08x}"


def _publish(file: Checked, path: Path) -> None:
    """Renames a temporary file to `path`, once its content is on disk."""
    file.settle()
    os.replace(file.path, path)


@contextlib.contextmanager
def errors_of(path: Path) -> Iterator[None]:
    """Makes errors of writing name the file `path`, not its temporary file."""
    try:
        yield
    except OSError as error:
        name = error.filename
        temporary = temporary_of(os.path.basename(name)) if isinstance(name, str) else None
        ours = name in (None, str(path)) or temporary == stem(path.name)
        if error.errno is not None and ours:
            error.filename, error.filename2 = str(path), None
        raise
