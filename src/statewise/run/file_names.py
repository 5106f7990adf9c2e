"""Names of reports and of files that are named after something else."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path


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
