"""Nothing is replaced unless it is asked for and ours."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.overwriting import (
    arrays_with,
    begins_with,
    check_derived,
    check_file,
    check_files,
    check_folder,
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


def test_files_are_replaced_only_when_asked_and_only_files(tmp_path):
    path = tmp_path / "out.npy"
    check_file(path, False)
    make(tmp_path, "out.npy")
    with pytest.raises(FileExistsError, match="exists: choose another --write-labels, or give --overwrite"):
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
    with pytest.raises(FileExistsError, match="is a file: --out names a folder"):
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


def test_a_folder_that_a_killed_process_had_put_aside_is_back(tmp_path):
    out, aside = tmp_path / "corpus", tmp_path / ".corpus.dropped"
    with writing(out, ["a"]) as folder:
        (folder / "a").write_text("old")
    out.rename(aside)  # killed here, between the two renames

    def fails():
        with writing(out, ["a"]):
            assert (out / "a").read_text() == "old"
            raise OSError("later")

    with pytest.raises(OSError, match="later"):
        fails()
    assert os.listdir(tmp_path) == ["corpus"]
    aside.mkdir()  # killed after them
    make(aside, "a")
    with writing(out, ["a"]) as folder:
        (folder / "a").write_text("new")
    assert (out / "a").read_text() == "new"
    assert os.listdir(tmp_path) == ["corpus"]


def test_a_folder_whose_replacement_cannot_take_its_place_stays(tmp_path, monkeypatch):
    """As on Windows, where a folder that a program uses cannot be renamed."""
    out, rename = tmp_path / "corpus", os.rename
    with writing(out, ["a"]) as folder:
        (folder / "a").write_text("old")

    def in_use(source, target):
        if ".writing" in str(source):
            raise PermissionError(13, "in use", str(target))
        rename(source, target)

    monkeypatch.setattr(os, "rename", in_use)
    for _ in range(2):
        with pytest.raises(PermissionError), writing(out, ["a"]) as folder:
            (folder / "a").write_text("new")
        assert (out / "a").read_text() == "old"
    monkeypatch.undo()
    with writing(out, ["a"]) as folder:
        (folder / "a").write_text("new")
    assert (out / "a").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


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
    with pytest.raises(FileExistsError, match="exists: choose another --out, or give --resume x or --overwrite"):
        check_folder(folder, OURS, SIGNS, "corpus", False, "--resume x or ")
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
        with pytest.raises(FileExistsError, match="exists: choose another --out: it holds"):
            check_folder(folder, OURS, SIGNS, "corpus", False)
        (folder / name).unlink()
    (folder / "parts" / "b.npy").symlink_to(tmp_path / "thesis.npy")
    with pytest.raises(FileExistsError, match=r"parts/b\.npy"):
        check_folder(folder, OURS, SIGNS, "corpus", True)
    with pytest.raises(FileExistsError, match="is a file: --out names a folder"):
        check_folder(folder / "index.json", OURS, SIGNS, "corpus", True)


NAMES = st.sampled_from(["index.json", "notes.txt", "parts/a.npy", "parts/a.txt", "parts/x/sums.bin", "parts/x/y/z",
                         ".index.json.0123abcd-7-0.writing", ".index.json.writing", "thesis/index.json",
                         "parts/.a.npy.0123abcd-7-12.writing"])  # fmt: skip


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
