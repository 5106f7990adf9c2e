"""Safe overwriting of files and folders.

Files are only overwritten on request, only files that statewise wrote are deleted, and nothing is replaced through a
symbolic link. The files that statewise writes into a folder are given as patterns of relative paths, such as
`checkpoints/*/training.pt`, where `*` matches any part of one name. A folder may be replaced if all its files match and
the content of one of them shows that statewise wrote it: other programs write files named config.json, too. For that a
format has `Signs`, patterns with a test of the file's content.
"""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

from statewise.durable import lock, temporary_of
from statewise.json_files import ANYTHING, read_json

Sign = Callable[[Path], bool]
"""Whether the content of a file shows that statewise wrote it. May raise `ValueError` or `OSError` if not."""
Signs = Mapping[str, Sign]
"""Patterns of relative paths; a file that fits one and passes its test is recognised."""


def json_with(*keys: str) -> Sign:
    """A JSON object with these keys."""
    return lambda path: isinstance(read_json(path, dict.fromkeys(keys, ANYTHING)), dict)


def begins_with(*beginnings: bytes) -> Sign:
    """A file that begins with one of these."""

    def begins(path: Path) -> bool:
        with open(path, "rb") as file:
            return file.read(max(map(len, beginnings))).startswith(beginnings)

    return begins


def arrays_with(name: str) -> Sign:
    """An .npz file with this array."""

    def holds(path: Path) -> bool:
        with zipfile.ZipFile(path) as archive:
            return f"{name}.npy" in archive.namelist()

    return holds


def check_file(path: Path, overwrite: bool, option: str = "--out") -> None:
    """Raises `FileExistsError` unless a file may be written at `path`: it does not exist, or is a file and `overwrite`
    is set."""
    if path.is_symlink():
        raise FileExistsError(f"{path} is a link, which is not replaced: give {option} the file that it points to")
    if path.is_dir():
        raise FileExistsError(f"{path} is a folder: {option} names a file")
    if path.exists() and not path.is_file():
        raise FileExistsError(f"{path} is not a regular file, and is not replaced: choose another {option}")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists: choose another {option}, or give --overwrite")


def check_derived(path: Path, ledger: Path) -> None:
    """Raises `FileExistsError` unless a file that is derived from a ledger may be written: it does not exist, or the
    ledger does."""
    check_file(path, overwrite=True)
    if path.exists() and not ledger.exists():
        raise FileExistsError(f"{path} exists, but its ledger {ledger} does not: choose another --out")


def check_files(folder: Path, names: Iterable[str], signs: Signs, overwrite: bool) -> None:
    """Raises `FileExistsError` unless files with these names may be written into `folder`: none exists, or with
    `overwrite` a file is recognised by `signs`. Other files stay."""
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: --out names a folder")
    names = list(names)
    for name in names:
        check_file(folder / name, overwrite)
    there = [name for name in names if (folder / name).exists()]
    if there and not recognised(folder, signs):
        raise FileExistsError(
            f"{folder / there[0]} is not replaced: {_which(signs)} beside it shows that statewise wrote it. Move it "
            "away, or choose another --out"
        )


def check_folder(
    folder: Path, files: Iterable[str], signs: Signs, what: str, overwrite: bool, instead: str = ""
) -> None:
    """Raises `FileExistsError` unless a folder may be written at `folder`: it does not exist, is empty, or with
    `overwrite` holds only `files`, the patterns of a `what`'s files, and one that `signs` recognise."""
    if folder.is_symlink() and not folder.exists():
        raise FileExistsError(f"{folder} is a broken link: choose another --out")
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: --out names a folder")
    for parent in folder.parents:
        if parent.is_file():
            raise FileExistsError(f"{folder}: {parent} is a file: choose another --out")
    if not folder.exists() or not any(folder.iterdir()):
        return
    foreign = strangers(folder, files, most=4)  # not all: the folder may be a whole disk
    some = f"{', '.join(foreign[:3])}{', ...' * (len(foreign) > 3)}, which is not part of a {what}"
    if not overwrite:
        ways = f": it holds {some}" if foreign else f", or give {instead}--overwrite"
        raise FileExistsError(f"{folder} exists: choose another --out{ways}")
    if folder.is_symlink():
        raise FileExistsError(f"{folder} is a link, which is not replaced: give --out the folder that it points to")
    if foreign:
        raise FileExistsError(
            f"{folder} holds {some}: it will not be overwritten. Move that away, or choose another --out"
        )
    if not recognised(folder, signs):
        raise FileExistsError(
            f"{folder} will not be overwritten: {_which(signs)} in it shows that statewise wrote a {what}. Move it "
            "away, or choose another --out"
        )


def recognised(folder: Path, signs: Signs) -> bool:
    """Whether statewise wrote into the folder: a file is recognised, or there are only temporary ones of a killed
    writer."""
    contents = [path for path in _contents(folder) if not path.is_symlink()]
    return all(temporary_of(path.name) for path in contents) or any(
        _fits(path, folder, [pattern.split("/")]) and not temporary_of(path.name) and _passes(sign, path)
        for path in contents
        for pattern, sign in signs.items()
    )


def strangers(folder: Path, files: Iterable[str], most: int | None = None) -> list[str]:
    """The files in a folder that match no pattern, as relative paths, in the order of `_contents`; the first `most` of
    them. Empty folders are ignored."""
    patterns = [pattern.split("/") for pattern in files]
    foreign = (path for path in _contents(folder) if path.is_symlink() or not _fits(path, folder, patterns))
    return [str(path.relative_to(folder)) for path in islice(foreign, most)]


def delete(folder: Path, files: Iterable[str]) -> None:
    """Deletes the files in a folder that match the patterns, then the folder if it is empty. Does nothing if the folder
    does not exist."""
    patterns = [pattern.split("/") for pattern in files]
    for path in _contents(folder):
        if not path.is_symlink() and _fits(path, folder, patterns):
            path.unlink()
    for place, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):  # it is not empty
            os.rmdir(place)


@contextlib.contextmanager
def replacing(folder: Path, files: Iterable[str], there: bool) -> Iterator[None]:
    """Within, a new folder is written in place of the old one, if that is `there`, which waits beside it. Once the new
    one is whole, the old one is deleted; after an error it is back. Raises `BlockingIOError` if another process is
    replacing it."""
    if not there:
        yield
        return
    files, aside = list(files), _aside(folder)
    with _alone(folder):
        delete(aside, files)
        os.rename(folder, aside)
        try:
            yield
        except BaseException:
            delete(folder, files)
            os.rename(aside, folder)
            raise
        delete(aside, files)


def put_back(folder: Path, files: Iterable[str], whole: Callable[[], bool]) -> None:
    """After a process that was `replacing` the folder was killed: the old one is back, or deleted if the new one is
    `whole`. Raises `BlockingIOError` if that process lives."""
    aside = _aside(folder)
    if not aside.is_dir():
        return
    with _alone(folder):  # what is there may have changed until now
        if whole():
            delete(aside, files)
        elif aside.is_dir():
            delete(folder, files)
            os.rename(aside, folder)


def _aside(folder: Path) -> Path:
    """Where a folder waits while another takes its place."""
    return folder.absolute().with_name(f".replaced-{folder.absolute().name}")


def _alone(folder: Path) -> AbstractContextManager[None]:
    """Within, no other process replaces the folder."""
    return lock(
        folder.absolute().with_name(f".{folder.absolute().name}.lock"), f"{folder} is being replaced by another process"
    )


def _contents(folder: Path) -> Iterator[Path]:
    """All files and links, by name, those of a folder before those of its folders; links are not followed."""
    for place, folders, names in os.walk(folder):
        folders.sort()  # the order in which they are entered
        for name in sorted(names + [name for name in folders if os.path.islink(os.path.join(place, name))]):
            yield Path(place, name)


def _which(signs: Signs) -> str:
    return f"no {' or '.join(signs)}"


def _passes(sign: Sign, path: Path) -> bool:
    try:
        return sign(path)
    except (ValueError, OSError, zipfile.BadZipFile, NotImplementedError):  # the last: a zip file of another version
        return False


def _fits(path: Path, folder: Path, patterns: Iterable[list[str]]) -> bool:
    parts = list(path.relative_to(folder).parts)
    forms = [parts]
    if name := temporary_of(parts[-1]):
        forms.append([*parts[:-1], name])
    return any(
        len(form) == len(pattern) and all(fnmatchcase(part, wanted) for part, wanted in zip(form, pattern))
        for form in forms
        for pattern in patterns
    )
