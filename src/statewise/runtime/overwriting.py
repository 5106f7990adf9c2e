"""Which names statewise may write, and one writer for each.

Files are only overwritten on request, only files that statewise wrote are deleted, and nothing is replaced through a
symbolic link. The files that statewise writes into a folder are given as patterns of relative paths, such as
`checkpoints/*/training.pt`, where `*` matches any part of one name. A folder may be replaced if all its files match and
the content of one of them shows that statewise wrote it: other programs write files named config.json, too. For that a
format has `Signs`, patterns with a test of the file's content.

A **claim** on a name is the right of one thread to write it. Whoever writes what a user names claims the name before
the work begins (`claimed`, and the three below, which also write): a lock, `.NAME.lock` beside it, that ends with the
process. Others are refused at once. Whether the name may be written is checked under the claim twice: before the work,
and when the result is published. Without `overwrite`, publication replaces nothing, not even what appeared in the
meantime. The work goes into the folder `.NAME.writing` beside it, and so is deleted as a whole if it fails, or by the
next claim if its process was killed.

- `claimed_file`: a file gets its name by one step of the file system.
- `claimed_files`: files that belong together in a folder where others may be. Once all are on disk, a journal says
  which there are; then each gets its name. If the process is killed in between, the next claim completes the
  publication.
- `claimed_folder`: a folder is renamed as a whole. One that it replaces waits as `.NAME.dropped`, and is back if the
  process is killed before the new one has the name.
- Folders that are written in place, because training fills them for days: runs and groups of runs (`replacing`).
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import glob
import os
import re
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

from statewise.runtime.durable import lock, stem, temporary_of, write_atomically
from statewise.runtime.json_files import ANYTHING, FLAG, TEXT, Shape, json_bytes, read_json
from statewise.runtime.system import sync_folder

Sign = Callable[[Path], bool]
"""Whether the content of a file shows that statewise wrote it. May raise `ValueError` or `OSError` if not."""
Signs = Mapping[str, Sign]
"""Patterns of relative paths; a file that fits one and passes its test is recognised."""
Check = Callable[[], None]
"""Raises `FileExistsError` unless a name may be written."""

JOURNAL = ".journal"
"""The file in `.NAME.writing` that lists the files to publish. Once it exists, the next writer completes the work of a
killed one."""
OLD = ".old"
"""The folder in `.NAME.writing` that holds the files to be replaced until all are."""
_JOURNAL: Shape = {"files": [TEXT], "dropped": [TEXT], "overwrite": FLAG}
INSIDE = (".claim", ".claim-holder")
"""The lock of a folder that cannot have one beside it, such as a mounted one."""
_BESIDE = re.compile(r"\.(?P<name>.+)\.(?:lock|lock-holder|writing)", re.DOTALL)
"""What a claim keeps beside the name."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EMLINK, errno.EXDEV)
"""Errors of file systems on which a file cannot have two names."""


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


_UNITS: dict[str, tuple[tuple[str, ...], Signs]] = {}
"""The files and signs of folders whose files belong together, by what such a folder is called."""


def protect(what: str, files: Iterable[str], signs: Signs) -> None:
    """Makes `check_file` refuse, from now on, the names `files` in every folder that `signs` recognise as a `what`."""
    _UNITS[what] = tuple(files), signs


def _check_unit(path: Path, option: str) -> None:
    """Raises `FileExistsError` if the name `path` is one of a protected folder's own."""
    place = path.absolute().parent.resolve() / path.name
    for what, (files, signs) in _UNITS.items():
        patterns = [pattern.split("/") for pattern in files]
        for folder in place.parents:
            if _fits(place, folder, patterns) and any(
                _passes(sign, candidate) for pattern, sign in signs.items() for candidate in folder.glob(pattern)
            ):
                raise FileExistsError(
                    f"{path} belongs to the {what} in {folder}, which is not changed: choose another {option}"
                )


def check_file(path: Path, overwrite: bool, option: str = "`out`") -> None:
    """Raises `FileExistsError` unless a file may be written at `path`: it does not exist, or is a file and `overwrite`
    is set. A name that a protected folder keeps for itself is refused in any case (`protect`)."""
    _check_unit(path, option)
    if path.is_symlink():
        raise FileExistsError(f"{path} is a link, which is not replaced: give {option} the file that it points to")
    if path.is_dir():
        raise FileExistsError(f"{path} is a folder: {option} names a file")
    if path.exists() and not path.is_file():
        raise FileExistsError(f"{path} is not a regular file, and is not replaced: choose another {option}")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists: choose another {option}, or give `overwrite`")


def check_derived(path: Path, ledger: Path) -> None:
    """Raises `FileExistsError` unless a file that is derived from a ledger may be written: the file does not exist, or
    the ledger does."""
    check_file(path, overwrite=True)
    if path.exists() and not ledger.exists():
        raise FileExistsError(f"{path} exists, but its ledger {ledger} does not: choose another `out`")


def check_files(folder: Path, names: Iterable[str], signs: Signs, overwrite: bool) -> None:
    """Raises `FileExistsError` unless files with these names may be written into `folder`: none exists, or with
    `overwrite` a file is recognised by `signs`. Other files stay."""
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: `out` names a folder")
    names = list(names)
    for name in names:
        check_file(folder / name, overwrite)
    there = [name for name in names if (folder / name).exists()]
    if there and not recognised(folder, signs):
        raise FileExistsError(
            f"{folder / there[0]} is not replaced: {_which(signs)} beside it shows that statewise wrote it. Move it "
            "away, or choose another `out`"
        )


def check_folder(
    folder: Path, files: Iterable[str], signs: Signs, what: str, overwrite: bool, instead: str = ""
) -> None:
    """Raises `FileExistsError` unless a folder may be written at `folder`: it does not exist, is empty, or with
    `overwrite` holds only `files`, the patterns of a `what`'s files, and one that `signs` recognise."""
    if folder.is_symlink() and not folder.exists():
        raise FileExistsError(f"{folder} is a broken link: choose another `out`")
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: `out` names a folder")
    for parent in folder.parents:
        if parent.is_file():
            raise FileExistsError(f"{folder}: {parent} is a file: choose another `out`")
    files = list(files)
    if not folder.exists() or _is_empty(folder, files):
        return
    foreign = strangers(folder, files, most=4)  # not all: the folder may be a whole disk
    some = f"{', '.join(foreign[:3])}{', ...' * (len(foreign) > 3)}, which is not part of a {what}"
    if not overwrite:
        ways = f": it holds {some}" if foreign else f", or give {instead}`overwrite`"
        raise FileExistsError(f"{folder} exists: choose another `out`{ways}")
    if folder.is_symlink():
        raise FileExistsError(f"{folder} is a link, which is not replaced: give `out` the folder that it points to")
    if foreign:
        raise FileExistsError(
            f"{folder} holds {some}: it will not be overwritten. Move that away, or choose another `out`"
        )
    if not recognised(folder, signs):
        raise FileExistsError(
            f"{folder} will not be overwritten: {_which(signs)} in it shows that statewise wrote a {what}. Move it "
            "away, or choose another `out`"
        )


def _is_empty(folder: Path, files: Iterable[str]) -> bool:
    """Whether a folder holds nothing besides what claims on it, or on `files` in it, keep there."""
    patterns = [pattern.split("/") for pattern in files]
    for path in folder.iterdir():
        match = _BESIDE.fullmatch(path.name)
        if path.name not in INSIDE and not (match and _fits(folder / match["name"], folder, patterns)):
            return False
    return True


def recognised(folder: Path, signs: Signs) -> bool:
    """Whether statewise wrote into the folder: a file is recognised, or there are only temporary ones of a killed
    writer."""
    contents = [path for path in _contents(folder) if not path.is_symlink()]
    return all(temporary_of(path.name) for path in contents) or any(
        _matches(path.relative_to(folder).parts, pattern.split("/")) and _passes(sign, path)
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


@dataclass
class _Claim:
    """The state of one thread's claim."""

    scratch: Path | None = None
    """Folder in which it writes; None while it does not."""
    published: bool = False


_CLAIMS: dict[tuple[int, Path], _Claim] = {}
"""The claims of this process, by thread and path."""


@contextlib.contextmanager
def claimed(path: Path, option: str = "`out`") -> Iterator[_Claim]:
    """Claims the file or folder `path`, which the command's `option` names, for this thread within the block. Claims of
    one thread may be nested. Parent folders are created, and deleted again if they stay empty. Raises `BlockingIOError`
    if another thread or process has the claim, and `FileExistsError` if a parent folder is a file, or the lock's name
    is taken by something else."""
    place = path.absolute()
    if not place.name:
        raise FileExistsError(f"{path} is the root folder: choose another {option}")
    for parent in place.parents:
        if parent.is_file():
            raise FileExistsError(f"{path}: {parent} is a file: choose another {option}")
    missing = [parent for parent in place.parents if not parent.exists()]
    try:
        with _full_names(path):
            place.parent.mkdir(parents=True, exist_ok=True)
        key = threading.get_ident(), place.parent.resolve() / place.name
        if key in _CLAIMS:
            yield _CLAIMS[key]
            return
        with _lock(place, f"{path} is being written by another process: wait for it, or choose another {option}"):
            _CLAIMS[key] = _Claim()
            try:
                yield _CLAIMS[key]
            finally:
                del _CLAIMS[key]
    finally:
        for parent in missing:
            with contextlib.suppress(OSError):  # it is not empty
                parent.rmdir()


@contextlib.contextmanager
def _lock(path: Path, refusal: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        with _full_names(path):
            try:
                stack.enter_context(lock(_sibling(path, "lock"), refusal))
            except OSError as error:
                if error.errno not in _NO_PLACE or not path.is_dir():
                    raise
                stack.enter_context(lock(path / INSIDE[0], refusal))
        yield


@contextlib.contextmanager
def _full_names(path: Path) -> Iterator[None]:
    """Makes errors of a full disk name `path`."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            error.filename = str(path)
        raise


@contextlib.contextmanager
def claimed_file(path: Path, overwrite: bool, option: str = "`out`", check: Check | None = None) -> Iterator[Path]:
    """A place for the content of the file `path`, which has the same name; at the end of the block it is published.
    `check`: what to check besides `check_file`. Raises as `claimed` and the checks."""

    def both() -> None:
        check_file(path, overwrite, option)
        if check is not None:
            check()

    with claimed_files(path.parent, [path.name], both, overwrite, option=option) as scratch:
        yield scratch / path.name


@contextlib.contextmanager
def claimed_files(
    folder: Path,
    names: Sequence[str],
    check: Check,
    overwrite: bool,
    earlier: Mapping[str, Callable[[], bool]] | None = None,
    option: str = "`out`",
) -> Iterator[Path]:
    """A place for files with some of the `names`, which are one unit; at the end of the block they are published in
    `folder`, in this order, and files with other of the names, of an earlier result, are deleted. The claim is on the
    first name. `earlier`: names that only some results have, and whether the one that is replaced has it. Raises as
    `claimed` and `check`, such as `check_files`."""
    also = earlier or {}

    def publish(scratch: Path) -> None:
        made = [name for name in names if (scratch / name).exists()]
        every = [*names, *(name for name, has in also.items() if name not in names and has())]
        dropped = [name for name in every if name not in made and (folder / name).exists()]
        _publish(scratch, folder, made, dropped, overwrite, option)

    patterns = [glob.escape(form) for name in (*names, *also) for form in (name, stem(name))]
    with _written(folder / names[0], folder, check, patterns, publish, option) as scratch:
        yield scratch


@contextlib.contextmanager
def claimed_folder(
    out: Path, files: Sequence[str], signs: Signs, what: str, overwrite: bool, temporary: Sequence[str] = ()
) -> Iterator[Path]:
    """An empty folder, which at the end of the block gets the name `out`; a link to an empty folder is followed.
    `temporary`: patterns of what other packages leave in it when they are killed. The other arguments, and what it
    raises besides what `claimed` does, as `check_folder`."""

    def check() -> None:
        check_folder(out, files, signs, what, overwrite)

    if out.is_symlink():
        check()  # a broken link cannot be followed
    target = out.resolve()

    def restored() -> None:
        old = _sibling(target, "dropped")
        if old.is_dir() and not target.exists():
            os.rename(old, target)
        delete(old, files)
        check()

    def publish(scratch: Path) -> None:
        _rename(scratch, target, files, overwrite)

    with _written(target, target, restored, (*files, *temporary), publish) as scratch:
        yield scratch


@contextlib.contextmanager
def _written(
    path: Path, home: Path, check: Check, files: Sequence[str], publish: Callable[[Path], None], option: str = "`out`"
) -> Iterator[Path]:
    """The folder `.NAME.writing` under a claim on `path`. `files`: patterns of what may be in it; `home`: the folder
    where that will be."""
    with claimed(path, option) as claim:
        if claim.scratch is not None:  # within another claim of the same thread, which has checked and cleans up
            yield claim.scratch
            check()
            publish(claim.scratch)
            claim.published = True
            return
        scratch = _sibling(path.absolute(), "writing")
        inside = (*files, JOURNAL, *(f"{OLD}/{name}" for name in files))
        if not scratch.is_symlink():
            _complete(scratch, path.parent, files)
            delete(scratch, inside)  # left by a process that was killed
        check()
        if os.path.lexists(scratch):
            raise FileExistsError(
                f"{scratch} holds what statewise did not write, and statewise needs this name while it works: "
                "move it away"
            )
        try:
            with _named(scratch, path, home):
                scratch.mkdir()
                claim.scratch, claim.published = scratch, False
                yield scratch
                if not claim.published:
                    check()
                    publish(scratch)
        finally:
            if claim.scratch is not None:
                delete(scratch, inside)
            claim.scratch = None


@contextlib.contextmanager
def _named(scratch: Path, path: Path, home: Path) -> Iterator[None]:
    """Makes errors of files in `scratch` name their targets, and errors of a full disk that name no file name
    `path`."""
    try:
        yield
    except OSError as error:
        name = error.filename
        if isinstance(name, str) and Path(name).is_relative_to(scratch):
            inner = Path(name).relative_to(scratch)
            error.filename = str(path if JOURNAL in inner.name or inner.parts in ((), (OLD,)) else home / inner)
            error.filename2 = None
        elif name is None and error.errno in _FULL:
            error.filename = str(path)
        raise


def _publish(
    scratch: Path, folder: Path, made: Sequence[str], dropped: Sequence[str], overwrite: bool, option: str
) -> None:
    """Gives the files in `scratch` that were `made` their names in `folder`, and deletes those that are `dropped`."""
    if len(made) + len(dropped) > 1:
        journal = {"files": list(made), "dropped": list(dropped), "overwrite": overwrite}
        write_atomically(scratch / JOURNAL, json_bytes(journal))
    _settle(scratch, folder, made, dropped, overwrite, option)


def _complete(scratch: Path, folder: Path, allowed: Iterable[str]) -> None:
    """Completes a publication whose process was killed, if there is one of `allowed` names, given as patterns."""
    try:
        journal = read_json(scratch / JOURNAL, _JOURNAL)
    except (OSError, ValueError):
        return
    if not {glob.escape(name) for name in (*journal["files"], *journal["dropped"])} <= set(allowed):
        return
    with contextlib.suppress(FileExistsError):  # somebody else has made one since: theirs stays
        _settle(scratch, folder, journal["files"], journal["dropped"], journal["overwrite"])


def _settle(
    scratch: Path, folder: Path, made: Sequence[str], dropped: Sequence[str], overwrite: bool, option: str = "`out`"
) -> None:
    """Publishes the files, or after an error restores everything."""
    old = scratch / OLD
    with contextlib.ExitStack() as undo:
        for name in (*dropped, *made):
            source, target = scratch / name, folder / name
            there = os.path.lexists(target)
            if overwrite and there and len(made) + len(dropped) > 1:
                old.mkdir(exist_ok=True)
                if not os.path.lexists(old / name):  # a process that was killed may have come so far
                    _give_second_name(target, old / name)
                undo.callback(os.replace, old / name, target)
            if name in dropped:
                target.unlink(missing_ok=True)
            elif source.exists() and overwrite:
                os.replace(source, target)
            elif source.exists():
                try:
                    _give_new_name(source, target)
                except FileExistsError:
                    what = f"{target} was created by another program in the meantime: choose another {option}"
                    raise FileExistsError(what) from None
            if not there:
                undo.callback(target.unlink, missing_ok=True)
        undo.pop_all()
    sync_folder(folder)
    (scratch / JOURNAL).unlink(missing_ok=True)


def _give_second_name(path: Path, other: Path) -> None:
    """Gives a file a second name, or renames it where file systems allow only one."""
    try:
        os.link(path, other, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.rename(path, other)


def _give_new_name(source: Path, target: Path) -> None:
    """Renames a file to a new name. Raises `FileExistsError` if it is taken."""
    if target.is_file() and not target.is_symlink() and filecmp.cmp(source, target, shallow=False):
        return  # given before the process was killed
    try:
        os.link(source, target)
    except OSError as error:
        if isinstance(error, FileExistsError) or error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(target):  # no process with a claim makes it between these two
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        os.replace(source, target)


def _rename(folder: Path, out: Path, files: Sequence[str], overwrite: bool) -> None:
    """Gives a finished folder its name, then deletes the folder that it replaces, which is back if that fails."""
    old = _sibling(out, "dropped")
    try:
        if out.exists() and not overwrite:
            out.rmdir()  # fails unless it is empty
        there = out.exists()
        if there:
            os.rename(out, old)
        try:
            os.rename(folder, out)
        except BaseException:
            if there:
                os.rename(old, out)
            raise
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise FileExistsError(f"{out} was created by another program in the meantime: choose another `out`") from None
    sync_folder(out.parent)
    if there:
        delete(old, files)


@contextlib.contextmanager
def replacing(folder: Path, files: Iterable[str], there: bool) -> Iterator[None]:
    """Sets the old folder aside, if it is `there`, while a new one is written in its place. Once the new one is
    complete, the old one is deleted; after an error it is restored. Raises `BlockingIOError` if another process has the
    claim on it."""
    if not there:
        yield
        return
    files, aside = list(files), _aside(folder)
    with claimed(folder):
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
    """After `set_aside`, or after a process that was `replacing` the folder was killed: the old one is back, or deleted
    if the new one is `whole`. Raises `BlockingIOError` if that process lives."""
    aside = _aside(folder)
    if not aside.is_dir():
        return
    with claimed(folder):  # what is there may have changed until now
        if whole():
            delete(aside, files)
        elif aside.is_dir():
            delete(folder, files)
            os.rename(aside, folder)


def set_aside(folder: Path, files: Iterable[str]) -> None:
    """Moves the folder, which the caller has claimed, aside until `put_back` is called; if one is set aside already,
    deletes the files of this one. A folder that cannot be renamed, such as a mounted one, is emptied."""
    files, aside = list(files), _aside(folder)
    if folder.exists() and not aside.exists():
        try:
            with _full_names(folder):
                os.rename(folder, aside)
        except OSError as error:
            if error.errno in _FULL:
                raise
    delete(folder, files)


def _aside(folder: Path) -> Path:
    """The path of a folder that is set aside while another takes its place."""
    return folder.absolute().with_name(f".replaced-{stem(folder.absolute().name)}")


def _sibling(path: Path, what: str) -> Path:
    """`.NAME.WHAT` beside it."""
    return path.with_name(f".{stem(path.name)}.{what}")


def _contents(folder: Path) -> Iterator[Path]:
    """All files and links, by name, those of a folder before those of its subfolders; links are not followed."""
    for place, folders, names in os.walk(folder):
        folders.sort()  # the order in which they are entered
        for name in sorted(names + [name for name in folders if os.path.islink(os.path.join(place, name))]):
            if name not in INSIDE:
                yield Path(place, name)


def _which(signs: Signs) -> str:
    return f"no {' or '.join(signs)}"


def _passes(sign: Sign, path: Path) -> bool:
    try:
        return sign(path)
    except (ValueError, OSError, zipfile.BadZipFile, NotImplementedError):  # the last: a zip file of another version
        return False


def _fits(path: Path, folder: Path, patterns: Iterable[list[str]]) -> bool:
    """Whether a file matches a pattern, or is what writing such a file keeps beside it."""
    parts = list(path.relative_to(folder).parts)
    forms = [list(parts)]
    if OLD in parts[1:-1]:
        parts.remove(OLD)
    if len(parts) > 1 and (match := _BESIDE.fullmatch(parts[-2])) and parts[-2].endswith(".writing"):
        parts = [*parts[:-2], match["name"] if JOURNAL in parts[-1] else parts[-1]]
        forms.append(parts)
    if name := temporary_of(parts[-1]):
        forms.append([*parts[:-1], name])
    elif (match := _BESIDE.fullmatch(parts[-1])) and not parts[-1].endswith(".writing"):
        forms.append([*parts[:-1], match["name"]])
    return any(_matches(form, pattern) for form in forms for pattern in patterns)


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    return len(parts) == len(pattern) and all(fnmatchcase(part, wanted) for part, wanted in zip(parts, pattern))
