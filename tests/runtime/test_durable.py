"""Files are replaced as a whole or not at all; a full disk leaves nothing behind."""

import errno
import io
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from statewise.runtime import durable
from statewise.runtime.durable import append, lock, replacing, write_all, write_array, write_arrays, write_atomically
from statewise.runtime.json_files import COUNT
from statewise.runtime.ledger import Ledger
from statewise.tasks.corpus.folder import ShardWriter


class Full:
    """A file of a full disk: it takes `room` bytes."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, content):
        fits = bytes(content)[: self.room]
        self.room -= len(fits)
        if not fits:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.file.write(fits)
        if len(fits) < len(content):
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(fits)

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return self.file.__exit__(*error)


def disk_full(monkeypatch, where):
    """Makes one kind of operation fail as on a full disk; `write` after some bytes."""

    def fails(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    if where == "write":
        monkeypatch.setattr(durable, "open", lambda *words, **more: Full(open(*words, **more), 3), raising=False)  # noqa: SIM115
    elif where == "open":
        monkeypatch.setattr(durable, "open", fails, raising=False)
    else:
        monkeypatch.setattr(os, where, fails)


@pytest.mark.parametrize("where", ["open", "write", "fsync", "replace"])
@pytest.mark.parametrize("there", [True, False])
def test_a_full_disk_leaves_what_was_there_and_nothing_else(tmp_path, monkeypatch, where, there):
    path = tmp_path / "facts.json"
    if there:
        path.write_bytes(b"old")
    disk_full(monkeypatch, where)
    with pytest.raises(OSError, match="No space left") as raised:
        write_atomically(path, b"something new")
    monkeypatch.undo()
    assert raised.value.filename == str(path)  # and not the temporary file, nor none
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == ({"facts.json": b"old"} if there else {})
    write_atomically(path, b"something new")
    assert path.read_bytes() == b"something new"
    assert os.listdir(tmp_path) == ["facts.json"]


class FullDisk(io.RawIOBase):
    """A file that takes nothing, whose errors name no file."""

    def writable(self):
        return True

    def write(self, content):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("size", [5, 100_000])  # less and more than what waits in memory, to be written at the end
def test_a_file_that_a_full_disk_holds_up_is_named(tmp_path, monkeypatch, size):
    monkeypatch.setattr(durable, "open", lambda *_: io.BufferedWriter(FullDisk()), raising=False)
    with pytest.raises(OSError, match="No space left") as raised:
        write_atomically(tmp_path / "facts.json", b"x" * size)
    assert raised.value.filename == str(tmp_path / "facts.json")


@pytest.mark.parametrize("where", ["open", "write", "fsync"])
def test_files_that_belong_together_are_replaced_together(tmp_path, monkeypatch, where):
    old = {tmp_path / name: b"old" for name in ("a", "b", "c")}
    write_all(old)
    room = {"a": 100, "b": 3, "c": 100}  # the disk is full in the second file

    def full(path, mode):
        name = durable.temporary_of(os.path.basename(path))
        if where == "open" and name == "b":
            raise OSError(errno.ENOSPC, "No space left on device")
        return Full(open(path, mode), room[name] if where == "write" else 100)

    synced = []

    def fails(*_):
        synced.append(1)
        if len(synced) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(durable, "open", full, raising=False)
    if where == "fsync":
        monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="No space left") as raised:
        write_all(dict.fromkeys(old, b"something new"))
    monkeypatch.undo()
    assert raised.value.filename == str(tmp_path / "b")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == old
    write_all(dict.fromkeys(old, b"something new"))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == dict.fromkeys(old, b"something new")


def test_two_processes_that_write_one_file_leave_one_of_both_whole(tmp_path):
    path = tmp_path / "report.json"
    code = (
        "import sys\nfrom pathlib import Path\nfrom statewise.runtime.durable import write_atomically\n"
        "for _ in range(80): write_atomically(Path(sys.argv[1]), sys.argv[2].encode() * 50_000)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), letter]) for letter in "ab"]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            seen.add(path.read_bytes())
        time.sleep(0.0005)  # the writers need the core
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen <= {b"a" * 50_000, b"b" * 50_000}
    assert path.read_bytes() in seen
    assert os.listdir(tmp_path) == ["report.json"]


def test_what_a_killed_writer_left_is_deleted_by_the_next(tmp_path):
    path = tmp_path / "report.json"
    code = (
        "import os, sys, signal\nfrom pathlib import Path\nfrom statewise.runtime.durable import replacing\n"
        "with replacing(Path(sys.argv[1])) as file:\n    file.write(b'half')\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)])
    (left,) = os.listdir(tmp_path)
    assert durable.temporary_of(left) == "report.json"
    foreign = [".report.json.writing", ".report.json.mine.writing", left.replace(".report.json.", ".other.json.")]
    with replacing(path) as file:  # of a process that lives
        for name in foreign:
            (tmp_path / name).touch()
        write_atomically(path, b"whole")
        file.write(b"later")
    assert path.read_bytes() == b"later"
    assert sorted(os.listdir(tmp_path)) == sorted([*foreign, "report.json"])


def test_any_error_within_leaves_what_was_there(tmp_path):
    path = tmp_path / "picture.png"
    path.write_bytes(b"old")

    def broken():
        with replacing(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["picture.png"]


@pytest.mark.parametrize("where", ["write", "fsync"])
def test_a_line_is_added_as_a_whole_or_not_at_all(tmp_path, monkeypatch, where):
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, "test", {}, {"x": COUNT}) as ledger:
        ledger.add({"x": 1})
        before = path.read_bytes()
        disk_full(monkeypatch, where)
        with pytest.raises(OSError, match="No space left"):
            ledger.add({"x": 2})
        monkeypatch.undo()
        assert path.read_bytes() == before
        assert ledger.records == [{"x": 1}]
        ledger.add({"x": 3})
    with Ledger(path, "test", {}, {"x": COUNT}) as ledger:
        assert ledger.records == [{"x": 1}, {"x": 3}]
    assert os.listdir(tmp_path) == ["ledger.jsonl"]


def test_a_ledger_whose_first_line_is_incomplete_is_begun_again(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, "test", {"model": "m"}, {"x": COUNT}):
        header = path.read_bytes()
    for size in range(len(header)):
        path.write_bytes(header[:size])
        with Ledger(path, "test", {"model": "m"}, {"x": COUNT}) as ledger:
            assert ledger.records == []
        assert path.read_bytes() == header
    for foreign in (b"my work", header[:9] + b"!", b'{"title"\0'):
        path.write_bytes(foreign)
        with pytest.raises(ValueError, match="is not a test file"), Ledger(path, "test", {"model": "m"}, {"x": COUNT}):
            pass
        assert path.read_bytes() == foreign


def test_a_folder_is_no_ledger(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place in (tmp_path, Path("."), Path("..")):
        with pytest.raises(IsADirectoryError), Ledger(place, "test", {}, {"x": COUNT}):
            pass
    assert os.listdir(tmp_path) == []


def test_partial_writes_are_finished(tmp_path, monkeypatch):
    class Slow(Full):
        def write(self, content):
            return self.file.write(bytes(content)[:2])

    monkeypatch.setattr(durable, "open", lambda *words, **more: Slow(open(*words, **more), 0), raising=False)  # noqa: SIM115
    append(tmp_path / "a", b"whole line\n")
    assert (tmp_path / "a").read_bytes() == b"whole line\n"


class Lossy:
    """A file that passes over errors of its disk: it drops bytes, or changes one."""

    def __init__(self, file, how):
        self.file, self.how = file, how

    def write(self, content):
        content = bytearray(content)
        if self.how == "changed":
            content[-1] ^= 1
        self.file.write(content[:-1] if self.how == "dropped" else content)
        return len(content)

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.mark.parametrize(
    ("how", "message"), [("dropped", "were written: is the disk full"), ("changed", "differently")]
)
def test_what_reads_back_differently_replaces_nothing(tmp_path, monkeypatch, how, message):
    old = {tmp_path / name: b"old" for name in ("a", "b")}
    write_all(old)
    monkeypatch.setattr(durable, "open", lambda *words, **more: Lossy(open(*words, **more), how), raising=False)  # noqa: SIM115
    for write in (
        lambda: write_all(dict.fromkeys(old, b"new")),
        lambda: write_atomically(tmp_path / "a", b"x" * 3 * durable.BLOCK),
        lambda: write_array(tmp_path / "a", np.arange(9)),
        lambda: write_arrays(tmp_path / "a", x=np.arange(9)),
    ):
        with pytest.raises(OSError, match=message) as raised:
            write()
        assert (raised.value.errno, raised.value.filename) == (errno.EIO, str(tmp_path / "a"))
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == old


def test_a_head_is_written_last_and_compared_too(tmp_path, monkeypatch):
    for how in (None, "changed"):
        file = durable.Checked(tmp_path / "shard", head=4)
        file.write(memoryview(np.arange(3, dtype=np.uint16)).cast("B"))
        assert file.tell() == 10
        if how:
            monkeypatch.setattr(file, "_file", Lossy(file._file, how))
            with pytest.raises(OSError, match="reads back differently"):
                file.settle(b"head")
            file.close()
        else:
            file.settle(b"head")
            assert (tmp_path / "shard").read_bytes() == b"head" + np.arange(3, dtype=np.uint16).tobytes()
    with pytest.raises(ValueError, match="the head has 0 bytes, not 4"):
        durable.Checked(tmp_path / "shard", head=4).settle()


def test_numpy_gets_no_file_of_the_system(tmp_path):
    """To which its `tofile` would write past us, and past errors of a full disk."""
    with pytest.raises((TypeError, AttributeError, io.UnsupportedOperation)), replacing(tmp_path / "a") as file:
        np.arange(3).tofile(file)


def test_a_line_whose_end_is_missing_is_taken_back(tmp_path, monkeypatch):
    append(tmp_path / "log", b"first\n")

    class Short(Lossy):
        def write(self, content):
            self.file.write(bytes(content)[:-1])
            return len(content)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.file.close()

    monkeypatch.setattr(durable, "open", lambda *words, **more: Short(open(*words, **more), ""), raising=False)  # noqa: SIM115
    with pytest.raises(OSError, match="the end of what was written is missing"):
        append(tmp_path / "log", b"second\n")
    assert (tmp_path / "log").read_bytes() == b"first\n"


def test_arrays_round_trip(tmp_path):
    write_array(tmp_path / "a.npy", np.arange(5))
    write_arrays(tmp_path / "b.npz", one=np.arange(3), two=np.ones(2))
    assert np.load(tmp_path / "a.npy").tolist() == [0, 1, 2, 3, 4]
    with np.load(tmp_path / "b.npz") as found:
        assert {name: found[name].tolist() for name in found.files} == {"one": [0, 1, 2], "two": [1.0, 1.0]}
    assert sorted(os.listdir(tmp_path)) == ["a.npy", "b.npz"]


def test_a_lock_is_held_by_one_process_and_leaves_no_file(tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom statewise.runtime.durable import lock\n"
        f"with lock(Path({str(tmp_path / 'x.lock')!r}), 'it is taken'): print('got it')"
    )
    with lock(tmp_path / "x.lock", "it is taken"):
        with pytest.raises(BlockingIOError, match="it is taken"), lock(tmp_path / "x.lock", "it is taken"):
            pass
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "BlockingIOError: it is taken" in done.stderr
    assert os.listdir(tmp_path) == []
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "got it\n"


def test_who_asks_whether_a_lock_is_held_does_not_refuse_it_to_another(tmp_path):
    """`status` asks by holding it for an instant."""
    code = (
        "from pathlib import Path\nfrom statewise.runtime.durable import lock\n"
        f"with lock(Path({str(tmp_path / 'x.lock')!r}), 'it is taken'):\n    print('held', flush=True)\n    input()"
    )
    asking = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert asking.stdout.readline() == "held\n"
        release = threading.Timer(0.1, lambda: (asking.stdin.write("\n"), asking.stdin.flush()))
        release.start()
        with lock(tmp_path / "x.lock", "it is taken", patience=60):
            assert release.finished.is_set()
        assert os.listdir(tmp_path) == []
    finally:
        asking.communicate()


def test_shards_are_synced(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    writer = ShardWriter(tmp_path, "training", np.dtype("<u2"), 10)
    writer.add(np.arange(5, dtype="<u2"), last=True)
    writer.close()
    assert len(synced) == 3 == len(os.listdir(tmp_path))
