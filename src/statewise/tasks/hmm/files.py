"""Your own matrices, from JSON or NPZ. Nothing is unpickled.

JSON: `{"matrices": [[[...]]], "tokens": ["a", "b"], "start": [...], "right": [...]}`, where only the matrices are
required: one square matrix per token. NPZ: arrays of the same names.
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from statewise.runtime.json_files import NUMBER, TEXT, Shape, check, check_keys, parse_json
from statewise.runtime.messages import without_advice
from statewise.tasks.hmm.process import Factor, factor
from statewise.tasks.own_files.lines import read_whole

SHAPE: Shape = {"matrices": [[[NUMBER]]], "tokens?": [TEXT], "start?": [NUMBER], "right?": [NUMBER]}
"""Shape of the JSON file, and of the file that a run keeps."""
KEYS = ("matrices", "tokens", "start", "right")
"""Keys of that content."""
LARGEST = 2**28
"""Most bytes of a file, or of its arrays in memory."""


def read_matrices(path: Path) -> dict[str, Any]:
    """The content of a file, in the shape `SHAPE`. Raises `ValueError`, naming the file, and `OSError`."""
    content = read_whole(path, LARGEST)
    if path.suffix == ".npz" or content[:4] == b"PK\x03\x04":
        return _read_arrays(content, path)
    if content[:6] == b"\x93NUMPY":
        raise ValueError(f"{path}: a single array: give a JSON file, or an NPZ file with an array named `matrices`")
    found: dict[str, Any] = parse_json(content, SHAPE, str(path))
    check_keys(found, KEYS, str(path))
    return found


def as_factor(content: dict[str, Any], where: str) -> Factor:
    """The process of a file's content. Raises `ValueError`, which begins with `where`."""
    rows = {len(row) for matrix in content["matrices"] for row in matrix}
    columns = {len(matrix) for matrix in content["matrices"]}
    if len(rows) != 1 or rows != columns or rows == {0}:
        raise ValueError(f"{where}: matrices must be square and of one size, one per token")
    for token in content.get("tokens", ()):
        if not token or len(token.split()) != 1 or token == "<bos>" or not token.isprintable():
            raise ValueError(f"{where}: the token {token[:40]!r} must be a word without spaces, and not <bos>")
    matrices = np.array(content["matrices"], np.float64)
    try:
        arrays = {key: np.array(content[key], np.float64) for key in ("start", "right") if key in content}
        return factor(matrices, content.get("tokens"), **arrays, what=where)
    except np.linalg.LinAlgError as error:
        raise ValueError(f"{where}: its eigenvectors cannot be computed: {error}") from None


def as_json(content: dict[str, Any]) -> bytes:
    """The content as a run keeps it."""
    return json.dumps(content).encode()


def _read_arrays(content: bytes, path: Path) -> dict[str, Any]:
    """Arrays of an NPZ file as lists."""
    found: dict[str, Any] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > LARGEST:
            raise ValueError(f"its arrays have {size:,} bytes; at most {LARGEST:,} are read")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            names = list(arrays)
            for key in KEYS:
                if key not in names:
                    continue
                array = arrays[key]
                if not isinstance(array, np.ndarray):
                    raise ValueError(f"{key} is no array")
                kinds, axes = ("US", 1) if key == "tokens" else ("fiu", 3 if key == "matrices" else 1)
                if array.dtype.kind not in kinds or array.ndim != axes:
                    wanted = "text" if key == "tokens" else "numbers"
                    raise ValueError(f"{key} must be {wanted} with {axes} axes, not {array.dtype} {array.shape}")
                found[key] = array.astype(str if key == "tokens" else np.float64).tolist()
    except UnicodeDecodeError:
        raise ValueError(f"{path}: tokens must be text: found non-ASCII bytes") from None
    except Exception as error:  # of the archive, or of headers, which are parsed as Python and raise almost anything
        problem = without_advice(error) if isinstance(error, ValueError) else str(error) or type(error).__name__
        raise ValueError(f"{path}: not an NPZ file of matrices: {problem}") from None
    if "matrices" not in found:
        raise ValueError(f"{path}: there is no array named matrices")
    check_keys(names, KEYS, str(path))
    check(found, SHAPE, str(path))  # a run keeps it as JSON, and must be able to read it again
    return found
