"""Nothing is replaced unless it is asked for and ours."""

import contextlib
import errno
import json
import os
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from disk import in_thread, tree, watched
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.runtime import overwriting
from statewise.runtime.durable import lock, write_atomically
from statewise.runtime.overwriting import (
    arrays_with,
    begins_with,
    check_derived,
    check_file,
    check_files,
    check_folder,
    claimed,
    claimed_file,
    claimed_files,
    claimed_folder,
    delete,
    json_with,
    recognised,
    strangers,
)

OURS = ("index.json", "parts/*.npy", "parts/*/sums.bin")
SIGNS = {"index.json": begins_with(b"index"), "parts/*/sums.bin": begins_with(b"sums")}


def make(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_names_of_protected_folders_are_refused_wherever_they_lie_in_one(tmp_path, monkeypatch):
    monkeypatch.setattr(overwriting, "_UNITS", {})
    make(tmp_path, "box/index.json", "box/parts/a.npy", "other/parts/a.npy")
    (tmp_path / "box/index.json").write_text("index")
    check_file(tmp_path / "box/parts/a.npy", True)
    overwriting.protect("box", OURS, SIGNS)
    (tmp_path / "link").symlink_to(tmp_path / "box")
    for name in ("box/index.json", "box/parts/a.npy", "box/parts/new.npy", "link/parts/a.npy"):
        with pytest.raises(FileExistsError, match=f"belongs to the box in {tmp_path}/box, .* another --losses"):
            check_file(tmp_path / name, True, "--losses")
    for name in ("box/losses.jsonl", "box/parts/deep/a.npy", "other/parts/a.npy", "index.json"):
        check_file(tmp_path / name, True)


def test_files_are_replaced_only_when_asked_and_only_files(tmp_path):
    path = tmp_path / "out.npy"
    check_file(path, False)
    make(tmp_path, "out.npy")
    with pytest.raises(FileExistsError, match="exists: choose another --write-labels, or give `overwrite`"):
        check_file(path, False, "--write-labels")
    check_file(path, True)
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe")
    for name, message in (("link", "is a link"), ("nowhere", "is a link"), ("", "is a folder"), ("pipe", "not a reg")):
        for overwrite in (False, True):
            with pytest.raises(FileExistsError, match=message):
                check_file(tmp_path / name, overwrite)
    check_files(tmp_path, ["a.png", "b.png"], SIGNS, False)
    with pytest.raises(FileExistsError, match=r"out\.npy exists"):
        check_files(tmp_path, ["a.png", "out.npy"], SIGNS, False)
    with pytest.raises(FileExistsError, match="is a file: `out` names a folder"):
        check_files(path, [], SIGNS, True)


def test_a_folder_is_ours_by_content_and_not_by_names(tmp_path):
    make(tmp_path, "parts/a.npy", "parts/7/sums.bin")
    (tmp_path / "parts/7/sums.bin").write_bytes(b"my own sums")
    for content in (b"my own", b"", b"\xff"):
        (tmp_path / "index.json").write_bytes(content)
        with pytest.raises(FileExistsError, match=r"no index\.json or parts/\*/sums\.bin in it shows that statewise"):
            check_folder(tmp_path, OURS, SIGNS, "corpus", True)
        with pytest.raises(FileExistsError, match=r"a\.npy is not replaced: no index\.json"):
            check_files(tmp_path, ["b.npy", "parts/a.npy"], SIGNS, True)
        check_files(tmp_path, ["b.npy"], SIGNS, True)
    (tmp_path / "parts/7/sums.bin").write_bytes(b"sums of ours")
    check_folder(tmp_path, OURS, SIGNS, "corpus", True)
    check_files(tmp_path, ["b.npy", "parts/a.npy"], SIGNS, True)


def test_only_temporary_files_of_a_killed_writer_are_ours(tmp_path):
    make(tmp_path, ".index.json.0123abcd-7-0.writing")
    assert recognised(tmp_path, SIGNS)
    make(tmp_path, "parts/a.npy")
    assert not recognised(tmp_path, SIGNS)


@pytest.mark.parametrize(
    ("sign", "content", "ours"),
    [
        (json_with("a", "b"), b'{"a": 1, "b": 2, "c": 3}', True),
        (json_with("a", "b"), b'{"a": 1}', False),
        (json_with("a"), b"[1]", False),
        (json_with("a"), b"years of work", False),
        (begins_with(b"a\n", b"abc\n"), b"abc\n1", True),
        (begins_with(b"a\n", b"abc\n"), b"abcd\n", False),
        (arrays_with("theta"), b"PK\x03\x04", False),
    ],
)
def test_signs_read_the_content(tmp_path, sign, content, ours):
    (tmp_path / "index.json").write_bytes(content)
    assert recognised(tmp_path, {"index.json": sign}) is ours


def test_an_archive_of_another_version_is_foreign(tmp_path):
    path = tmp_path / "theta.npz"
    np.savez(path, theta=np.zeros(3))
    signs = {"theta.npz": arrays_with("theta")}
    assert recognised(tmp_path, signs)
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 6] = 200  # the version needed to read it
    path.write_bytes(content)
    assert not recognised(tmp_path, signs)


def test_what_is_made_from_a_ledger_is_replaced_where_the_ledger_is(tmp_path):
    check_derived(tmp_path / "table.md", tmp_path / "cells.jsonl")
    make(tmp_path, "table.md")
    with pytest.raises(FileExistsError, match="but its ledger"):
        check_derived(tmp_path / "table.md", tmp_path / "cells.jsonl")
    make(tmp_path, "cells.jsonl")
    check_derived(tmp_path / "table.md", tmp_path / "cells.jsonl")


def letters(out, overwrite=True):
    return claimed_folder(out, ["a"], {"a": begins_with(b"")}, "letter", overwrite)


def test_a_folder_that_a_killed_process_had_put_aside_is_back(tmp_path):
    out, aside = tmp_path / "corpus", tmp_path / ".corpus.dropped"
    with letters(out) as folder:
        (folder / "a").write_text("old")
    out.rename(aside)  # killed here, between the two renames

    def fails():
        with letters(out):
            assert (out / "a").read_text() == "old"
            raise OSError("later")

    with pytest.raises(OSError, match="later"):
        fails()
    assert os.listdir(tmp_path) == ["corpus"]
    out.rename(aside)
    with pytest.raises(FileExistsError, match="exists"), letters(out, overwrite=False):
        pass
    assert tree(tmp_path) == {"corpus": None, "corpus/a": b"old"}
    aside.mkdir()  # killed after them
    make(aside, "a")
    with letters(out) as folder:
        (folder / "a").write_text("new")
    assert (out / "a").read_text() == "new"
    assert os.listdir(tmp_path) == ["corpus"]


def test_a_folder_whose_replacement_cannot_take_its_place_stays(tmp_path, monkeypatch):
    """As on Windows, where a folder that a program uses cannot be renamed."""
    out, rename = tmp_path / "corpus", os.rename
    with letters(out) as folder:
        (folder / "a").write_text("old")

    def in_use(source, target):
        if ".writing" in str(source):
            raise PermissionError(13, "in use", str(target))
        rename(source, target)

    monkeypatch.setattr(os, "rename", in_use)
    for _ in range(2):
        with pytest.raises(PermissionError), letters(out) as folder:
            (folder / "a").write_text("new")
        assert (out / "a").read_text() == "old"
    monkeypatch.undo()
    with letters(out) as folder:
        (folder / "a").write_text("new")
    assert (out / "a").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


# Claims


def one_file(folder, overwrite):
    return claimed_file(folder / "x.txt", overwrite)


def several(folder, overwrite):
    names = ["x.txt", "y.txt", "z.txt"]
    return claimed_files(
        folder, names, lambda: check_files(folder, names, {"x.txt": begins_with(b"")}, overwrite), overwrite
    )


def whole(folder, overwrite):
    return claimed_folder(folder / "out", ["*.txt"], {"*.txt": begins_with(b"")}, "list", overwrite)


KINDS = pytest.mark.parametrize("kind", [one_file, several, whole])


def put(kind, folder, content, names=("x.txt", "y.txt"), overwrite=False):
    with kind(folder, overwrite) as scratch:
        for name in names:
            path = scratch if kind is one_file else scratch / name
            path.write_text(content)
            if kind is one_file:
                break


def contents(folder):
    return {found for found in tree(folder).values() if found is not None}


@KINDS
def test_a_name_has_one_writer_at_a_time(tmp_path, kind):
    with kind(tmp_path, False) as scratch:
        for overwrite in (False, True):
            with pytest.raises(BlockingIOError, match="is being written by another process: wait for it"):
                in_thread(partial(put, kind, tmp_path, "second", overwrite=overwrite))
        assert contents(tmp_path) <= {b""}  # the lock
        (scratch if kind is one_file else scratch / "x.txt").write_text("first")
    assert contents(tmp_path) == {b"first"}
    with pytest.raises(FileExistsError, match="exists: choose another `out`"):
        put(kind, tmp_path, "second")
    put(kind, tmp_path, "second", overwrite=True)
    assert contents(tmp_path) == {b"second"}


class Foreign:
    """Another program, which makes a file of the name before operation `number` of a publication."""

    def __init__(self, kind, home, number):
        self.target, self.number, self.operations, self.made = home / "out" if kind is whole else home, number, 0, False

    def __call__(self, *_):
        if self.operations == self.number and not (self.target / "x.txt").exists():
            self.target.mkdir(exist_ok=True)
            (self.target / "x.txt").write_bytes(b"foreign")
            self.made = True
        self.operations += 1


@KINDS
def test_what_another_program_makes_meanwhile_is_not_replaced(tmp_path, kind):
    refused, number, foreign = 0, 0, None
    while foreign is None or foreign.operations >= number:
        home = tmp_path / str(number)
        home.mkdir()
        foreign = Foreign(kind, home, number)
        said = None
        with contextlib.ExitStack() as stack:
            try:
                with kind(home, False) as scratch:
                    for name in ("x.txt",) if kind is one_file else ("x.txt", "y.txt"):
                        (scratch.parent / name if kind is one_file else scratch / name).write_bytes(b"ours")
                    stack.enter_context(watched(home, foreign))
            except FileExistsError as error:
                said = str(error)
        assert foreign.made == (said is not None), number
        assert contents(home) == ({b"foreign"} if foreign.made else {b"ours"}), number
        assert said is None or "choose another `out`" in said
        refused += foreign.made
        number += 1
    assert refused >= 1


def states(folder, kind, content, names, overwrite, copies):
    """The folder as it is if the process is killed before any of its operations, and at the end."""

    def copy(*_):
        shutil.copytree(folder, copies / str(len(os.listdir(copies))))

    copies.mkdir()
    with watched(folder, copy):
        put(kind, folder, content, names, overwrite)
    copy()
    return [copies / str(number) for number in range(len(os.listdir(copies)))]


@KINDS
def test_a_writer_that_was_killed_leaves_all_or_nothing_and_is_in_nobodys_way(tmp_path, kind):
    home = tmp_path / "home"
    home.mkdir()
    complete = 0
    for state in states(home, kind, "new", ["x.txt", "y.txt"], False, tmp_path / "first"):
        try:
            put(kind, state, "next", ["x.txt", "y.txt"])
        except FileExistsError:
            complete += 1
        found = {Path(name).name: content for name, content in tree(state).items() if content is not None}
        assert set(found) == ({"x.txt"} if kind is one_file else {"x.txt", "y.txt"})
        assert set(found.values()) in ({b"new"}, {b"next"})
    assert complete >= 1


@KINDS
def test_a_writer_that_was_killed_while_it_replaced_leaves_the_old_or_the_new(tmp_path, kind):
    home, found = tmp_path / "home", []
    home.mkdir()
    put(kind, home, "old", ["x.txt", "y.txt"])
    for state in states(home, kind, "new", ["x.txt", "z.txt"], True, tmp_path / "copies"):
        with pytest.raises(FileExistsError, match="exists: choose another `out`"):  # which also cleans up
            put(kind, state, "next", ["x.txt"])
        files = {Path(name).name: content for name, content in tree(state).items() if content is not None}
        old = dict.fromkeys(["x.txt"] if kind is one_file else ["x.txt", "y.txt"], b"old")
        new = dict.fromkeys(["x.txt"] if kind is one_file else ["x.txt", "z.txt"], b"new")
        assert files in (old, new), state
        found.append(files == new)
        put(kind, state, "next", ["x.txt"], overwrite=True)
        assert contents(state) == {b"next"}
    assert found == sorted(found)
    assert not found[0]
    assert found[-1]


@pytest.mark.parametrize("name", ["a[1].csv", "[!x]", "*", "new\nline", "n" * 250, "é" * 127])
def test_names_of_any_characters_and_length_are_claimed_and_cleaned_up(tmp_path, name):
    """Names are no patterns, and what stands beside a file has a name that the file system allows."""
    folder, other = tmp_path / "home", "b" * 240 + "[2]"

    def write(folder, content, overwrite):
        with claimed_files(folder, [name, other], lambda: check_file(folder / name, overwrite), overwrite) as scratch:
            write_atomically(scratch / name, content)
            write_atomically(scratch / other, content)

    (tmp_path / "copies").mkdir()
    folder.mkdir()
    write(folder, b"old", False)
    assert tree(folder) == {name: b"old", other: b"old"}

    def killed(*_):
        shutil.copytree(folder, tmp_path / "copies" / str(len(os.listdir(tmp_path / "copies"))))

    with watched(folder, killed):
        write(folder, b"new", True)
    for state in (tmp_path / "copies").iterdir():
        with pytest.raises(FileExistsError, match="exists: choose another"):
            write(state, b"next", False)
        assert tree(state) in ({name: b"old", other: b"old"}, {name: b"new", other: b"new"})


@KINDS
def test_what_has_the_name_of_a_lock_or_of_a_work_folder_stays_and_is_named(tmp_path, kind):
    name = "out" if kind is whole else "x.txt"
    (tmp_path / "mine").write_text("mine")
    lock_name, work = tmp_path / f".{name}.lock", tmp_path / f".{name}.writing"
    makers = {
        "a folder": (lock_name, lambda path: path.mkdir()),
        "a link": (lock_name, lambda path: path.symlink_to(tmp_path / "mine")),
        "not a regular file": (lock_name, os.mkfifo),
        "a file of another program": (lock_name, lambda path: path.write_text("poetry")),
        "holds what statewise did not write": (work, lambda path: path.write_text("mine")),
    }
    for what, (path, create) in makers.items():
        create(path)
        before = os.lstat(path)
        with pytest.raises(FileExistsError, match=rf"{re.escape(path.name)} .*{what}.*: move it away"):
            put(kind, tmp_path, "new", ["x.txt"])
        assert os.path.samestat(os.lstat(path), before)
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
    assert tree(tmp_path) == {"mine": b"mine"}
    put(kind, tmp_path, "new", ["x.txt"])


def test_the_root_is_not_written():
    with pytest.raises(FileExistsError, match="root folder"), claimed(Path("/")):
        pass


def test_a_journal_of_other_names_is_nobodys_order(tmp_path):
    """What is in a folder of this name may come from anywhere."""
    make(tmp_path, "thesis.tex", ".x.txt.writing/x.txt")
    journal = {"files": ["x.txt"], "dropped": ["thesis.tex"], "overwrite": True}
    (tmp_path / ".x.txt.writing/.journal").write_text(json.dumps(journal))
    put(several, tmp_path, "ours", ["x.txt"])
    assert contents(tmp_path) == {b"thesis.tex", b"ours"}
    (tmp_path / ".x.txt.writing").symlink_to(tmp_path / "elsewhere")
    make(tmp_path, "elsewhere/x.txt")
    with pytest.raises(FileExistsError):
        put(several, tmp_path, "next", ["x.txt"], overwrite=True)
    assert (tmp_path / "elsewhere/x.txt").read_text() == "elsewhere/x.txt"


@KINDS
def test_work_that_fails_leaves_nothing(tmp_path, kind):
    def fails():
        with kind(tmp_path / "new" / "home", False) as scratch:
            (scratch if kind is one_file else scratch / "x.txt").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fails()
    assert os.listdir(tmp_path) == []


@KINDS
def test_errors_name_the_file_that_was_to_be(tmp_path, kind):
    def fails(number, name):
        with kind(tmp_path, False) as scratch:
            place = scratch if kind is one_file else scratch / "x.txt"
            raise OSError(number, os.strerror(number), str(place) if name else None)

    for name in (True, False):
        with pytest.raises(OSError, match="No space left") as raised:
            fails(errno.ENOSPC, name)
        assert Path(raised.value.filename).relative_to(tmp_path).parts[-1] in ("x.txt", "out")
    with pytest.raises(ConnectionRefusedError) as raised:
        fails(errno.ECONNREFUSED, False)
    assert raised.value.filename is None  # of the work, which has nothing to do with the file


def test_claims_of_one_thread_are_nested(tmp_path):
    path = tmp_path / "x.txt"
    with claimed_file(path, False) as outer:
        with claimed_file(path, False) as inner:
            assert inner == outer
            inner.write_text("once")
        assert path.read_text() == "once"  # published at the end of the inner one
    assert tree(tmp_path) == {"x.txt": b"once"}


def test_a_folder_without_a_place_beside_it_is_claimed_inside(tmp_path, monkeypatch):
    """As a mounted one in a folder that may only be read."""

    def read_only(path, taken, patience=0.5):
        if path.name == ".run.lock":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return lock(path, taken, patience)

    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setattr("statewise.runtime.overwriting.lock", read_only)
    with claimed(folder):
        assert os.listdir(folder) == [".claim"]
        assert strangers(folder, []) == []
        check_folder(folder, OURS, SIGNS, "corpus", False)
        with pytest.raises(BlockingIOError, match="is being written"):
            in_thread(lambda: claimed(folder).__enter__())
    assert os.listdir(folder) == []
    with pytest.raises(PermissionError), claimed(tmp_path / "other" / "run"):
        pass
    assert os.listdir(tmp_path) == ["run"]


def test_names_are_exclusive_where_files_have_one_name_only(tmp_path, monkeypatch):
    """As on exFAT."""

    def no_links(source, target):
        raise OSError(errno.EPERM, "Operation not permitted", str(source))

    monkeypatch.setattr(os, "link", no_links)
    put(several, tmp_path, "first")
    assert contents(tmp_path) == {b"first"}
    with pytest.raises(FileExistsError, match="exists"):
        put(several, tmp_path, "second")
    assert contents(tmp_path) == {b"first"}


def test_of_a_large_folder_only_the_first_strangers_are_looked_for(tmp_path, monkeypatch):
    make(tmp_path, "a.txt", "b.txt", "c.txt", "d.txt", "disk/e.txt")
    walked = []
    walk = os.walk

    def counted(folder, **options):
        for found in walk(folder, **options):
            walked.append(found[0])
            yield found

    monkeypatch.setattr(os, "walk", counted)
    for overwrite in (False, True):
        walked.clear()
        with pytest.raises(FileExistsError, match=r"holds a\.txt, b\.txt, c\.txt, \.\.\., which is not part of a map"):
            check_folder(tmp_path, OURS, SIGNS, "map", overwrite)
        assert walked == [str(tmp_path)] or walked == [tmp_path]


def test_folders_are_replaced_only_when_asked_and_only_ours(tmp_path):
    folder = tmp_path / "corpus"
    check_folder(folder, OURS, SIGNS, "corpus", False)
    folder.mkdir()
    check_folder(folder, OURS, SIGNS, "corpus", False)
    make(folder, "index.json", "parts/a.npy", "parts/7/sums.bin", "parts/7/.sums.bin.0123abcd-7-0.writing")
    with pytest.raises(FileExistsError, match="exists: choose another `out`, or give `resume` x or `overwrite`"):
        check_folder(folder, OURS, SIGNS, "corpus", False, "`resume` x or ")
    check_folder(folder, OURS, SIGNS, "corpus", True)
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(FileExistsError, match="is a link, which is not replaced"):
        check_folder(tmp_path / "link", OURS, SIGNS, "corpus", True)
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    with pytest.raises(FileExistsError, match="is a broken link"):
        check_folder(tmp_path / "dangling", OURS, SIGNS, "corpus", True)
    for name in ("notes.txt", "parts/a.txt", "parts/7/deep/sums.bin", ".index.json"):
        make(folder, name)
        with pytest.raises(FileExistsError, match="which is not part of a corpus: it will not be overwritten"):
            check_folder(folder, OURS, SIGNS, "corpus", True)
        with pytest.raises(FileExistsError, match="exists: choose another `out`: it holds"):
            check_folder(folder, OURS, SIGNS, "corpus", False)
        (folder / name).unlink()
    (folder / "parts" / "b.npy").symlink_to(tmp_path / "thesis.npy")
    with pytest.raises(FileExistsError, match=r"parts/b\.npy"):
        check_folder(folder, OURS, SIGNS, "corpus", True)
    with pytest.raises(FileExistsError, match="is a file: `out` names a folder"):
        check_folder(folder / "index.json", OURS, SIGNS, "corpus", True)


NAMES = st.sampled_from(
    [
        "index.json",
        "notes.txt",
        "parts/a.npy",
        "parts/a.txt",
        "parts/x/sums.bin",
        "parts/x/y/z",
        ".index.json.0123abcd-7-0.writing",
        ".index.json.writing",
        "thesis/index.json",
        "parts/.a.npy.0123abcd-7-12.writing",
    ]
)


@settings(max_examples=60, deadline=None)
@given(st.sets(NAMES))
def test_only_what_fits_is_deleted(tmp_path_factory, names):
    folder = tmp_path_factory.mktemp("any") / "folder"
    folder.mkdir()
    make(folder, *names)
    (folder.parent / "elsewhere").mkdir()
    make(folder.parent / "elsewhere", "index.json", "a.npy")
    (folder / "parts").mkdir(exist_ok=True)
    (folder / "parts" / "link").symlink_to(folder.parent / "elsewhere")
    not_ours = ("notes.txt", "parts/a.txt", "parts/x/y/z", "thesis/index.json", ".index.json.writing")
    foreign = {name for name in names if name in not_ours}
    assert set(strangers(folder, OURS)) == foreign | {"parts/link"}
    delete(folder, OURS)
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() or path.is_symlink()}
    assert {name for name in left if not name.startswith("parts/link")} == foreign
    assert sorted(os.listdir(folder.parent / "elsewhere")) == ["a.npy", "index.json"]
    (folder / "parts" / "link").unlink()
    delete(folder, [*OURS, *foreign])
    assert not folder.exists()
