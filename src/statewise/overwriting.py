"""What may be replaced, and how.

Nothing is overwritten unless the caller was told to, nothing is deleted that statewise did not write, and nothing is
replaced through a symbolic link. What statewise writes into a folder is said by patterns of relative paths, such as
`checkpoints/*/training.pt`, where `*` stands for any part of one name. A folder may be replaced if all its files fit.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path


def check_file(path: Path, overwrite: bool, option: str = "--out") -> None:
    """Raises `FileExistsError` unless a file may be written at `path`: nothing is there, or with `overwrite` a file."""
    if path.is_symlink():
        raise FileExistsError(f"{path} is a link, which is not replaced: give {option} the file that it leads to")
    if path.is_dir():
        raise FileExistsError(f"{path} is a folder: {option} names a file")
    if path.exists() and not path.is_file():
        raise FileExistsError(f"{path} is no regular file, and is not replaced: choose another {option}")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists: choose another {option}, or give --overwrite")


def check_derived(path: Path, ledger: Path) -> None:
    """Raises `FileExistsError` unless a file that is made anew from a ledger may be written: nothing is there, or the
    file of that ledger."""
    check_file(path, overwrite=True)
    if path.exists() and not ledger.exists():
        raise FileExistsError(f"{path} exists, and is not of {ledger}, which does not: choose another --out")


def check_files(folder: Path, names: Iterable[str], overwrite: bool, option: str = "--out") -> None:
    """Raises `FileExistsError` unless files of these names may be written into `folder`; others there stay."""
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: {option} names a folder")
    for name in names:
        check_file(folder / name, overwrite, option)


def check_folder(folder: Path, files: Iterable[str], what: str, overwrite: bool, instead: str = "") -> None:
    """Raises `FileExistsError` unless a folder may be written at `folder`: nothing is there, an empty folder, or with
    `overwrite` one that holds nothing but `files`, patterns of what belongs to a `what`."""
    if folder.is_symlink() and not folder.exists():
        raise FileExistsError(f"{folder} is a link that leads nowhere: choose another --out")
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: --out names a folder")
    if not folder.exists() or not any(folder.iterdir()):
        return
    foreign = strangers(folder, files)
    some = f"{', '.join(foreign[:3])}{', ...' * (len(foreign) > 3)}, which is no part of a {what}"
    if not overwrite:
        ways = f": it holds {some}" if foreign else f", or give {instead}--overwrite"
        raise FileExistsError(f"{folder} exists: choose another --out{ways}")
    if folder.is_symlink():
        raise FileExistsError(f"{folder} is a link, which is not replaced: give --out the folder that it leads to")
    if foreign:
        raise FileExistsError(
            f"{folder} holds {some}: it will not be overwritten. Move that away, or choose another --out"
        )


def strangers(folder: Path, files: Iterable[str]) -> list[str]:
    """What in a folder fits none of the patterns, as paths from there; empty folders fit."""
    patterns = [pattern.split("/") for pattern in files]
    foreign = (path for path in _contents(folder) if path.is_symlink() or not _fits(path, folder, patterns))
    return sorted(str(path.relative_to(folder)) for path in foreign)


def delete(folder: Path, files: Iterable[str]) -> None:
    """Deletes the files in a folder that fit the patterns, and then, where nothing else is left, the folder. Nothing is
    said where there is none."""
    patterns = [pattern.split("/") for pattern in files]
    for path in _contents(folder):
        if not path.is_symlink() and _fits(path, folder, patterns):
            path.unlink()
    for place, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):  # something is left in it
            os.rmdir(place)


def _contents(folder: Path) -> Iterator[Path]:
    """All files, and all links, whatever they lead to."""
    for place, folders, names in os.walk(folder):
        for name in names + [name for name in folders if os.path.islink(os.path.join(place, name))]:
            yield Path(place, name)


def _fits(path: Path, folder: Path, patterns: Iterable[list[str]]) -> bool:
    parts = list(path.relative_to(folder).parts)
    forms = [parts]
    if parts[-1].startswith(".") and parts[-1].endswith(".writing"):  # left by a kill in the middle of writing
        forms.append([*parts[:-1], parts[-1][1:].removesuffix(".writing")])
    return any(
        len(form) == len(pattern) and all(fnmatchcase(part, wanted) for part, wanted in zip(form, pattern))
        for form in forms
        for pattern in patterns
    )
