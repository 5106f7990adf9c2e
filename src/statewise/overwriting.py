"""Safe overwriting of files and folders.

Files are only overwritten on request, only files that statewise wrote are deleted, and nothing is replaced through a
symbolic link. The files that statewise writes into a folder are given as patterns of relative paths, such as
`checkpoints/*/training.pt`, where `*` matches any part of one name. A folder may be replaced if all its files match.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path


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


def check_files(folder: Path, names: Iterable[str], overwrite: bool, option: str = "--out") -> None:
    """Raises `FileExistsError` unless files with these names may be written into `folder`; other files stay."""
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: {option} names a folder")
    for name in names:
        check_file(folder / name, overwrite, option)


def check_folder(folder: Path, files: Iterable[str], what: str, overwrite: bool, instead: str = "") -> None:
    """Raises `FileExistsError` unless a folder may be written at `folder`: it does not exist, is empty, or with
    `overwrite` holds only `files`, the patterns of a `what`'s files."""
    if folder.is_symlink() and not folder.exists():
        raise FileExistsError(f"{folder} is a broken link: choose another --out")
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: --out names a folder")
    if not folder.exists() or not any(folder.iterdir()):
        return
    foreign = strangers(folder, files)
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


def strangers(folder: Path, files: Iterable[str]) -> list[str]:
    """The files in a folder that match no pattern, as relative paths; empty folders are ignored."""
    patterns = [pattern.split("/") for pattern in files]
    foreign = (path for path in _contents(folder) if path.is_symlink() or not _fits(path, folder, patterns))
    return sorted(str(path.relative_to(folder)) for path in foreign)


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


def _contents(folder: Path) -> Iterator[Path]:
    """All files and links; links are not followed."""
    for place, folders, names in os.walk(folder):
        for name in names + [name for name in folders if os.path.islink(os.path.join(place, name))]:
            yield Path(place, name)


def _fits(path: Path, folder: Path, patterns: Iterable[list[str]]) -> bool:
    parts = list(path.relative_to(folder).parts)
    forms = [parts]
    if parts[-1].startswith(".") and parts[-1].endswith(".writing"):  # left by a kill during writing
        forms.append([*parts[:-1], parts[-1][1:].removesuffix(".writing")])
    return any(
        len(form) == len(pattern) and all(fnmatchcase(part, wanted) for part, wanted in zip(form, pattern))
        for form in forms
        for pattern in patterns
    )
