"""Where processes come from: the literature, your own matrices, and expressions that combine processes.

Literature, with published parameters as defaults. mess3, rrxor: Shai et al. 2024. z1r, golden-mean, even, sns: Jurgens
and Crutchfield; Marzen and Crutchfield. bloch-walk, post-quantum, fanizza: Riechers et al. 2025 (after Fanizza et al.
2024). RRXOR is checksum(n=2, m=2).

Expressions, `mess3(x=0.15, a=0.6)` for parameters, products, conditional products and mixtures:

    mess3 * bloch-walk(1, 3)                          two factors side by side: a token is a pair
    mess3 * (mess3 | mess3(0.11, 0.79) | mess3(0.5, 0.6))
                                                      the second factor's matrices depend on the first one's token
    mess3 + mess3(0.15, 0.6)                          a sequence comes from one of the two
    0.9 mess3 + 0.1 mess3(0.15, 0.6)                  the same, with these probabilities

Files, JSON or NPZ; nothing is unpickled. JSON: `{"matrices": [[[...]]], "tokens": ["a", "b"], "start": [...], "right":
[...]}`, where only the matrices are required: one square matrix per token. NPZ: arrays of the same names.
"""

from __future__ import annotations

import inspect
import io
import json
import math
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from statewise.beliefs.process import Factor, NotAProcess, Process, alternatives, factor, mixture
from statewise.config.recipe import unknown
from statewise.runtime.json_files import NUMBER, TEXT, Shape, check, check_keys, parse_json
from statewise.runtime.messages import short, without_advice
from statewise.runtime.text_files import read_whole

LARGEST_CHECKSUM = 1024
"""States of `checksum`."""


def mess3(x: float = 0.05, a: float = 0.85) -> Factor:
    """Three states; each step moves to each other state with probability x, and the state arrived at names itself with
    probability a. The beliefs form a fractal."""
    _check("mess3", x=(x, 0, 0.5), a=(a, 0, 1))
    move = np.full((3, 3), x) + np.eye(3) * (1 - 3 * x)
    speak = np.full((3, 3), (1 - a) / 2) + np.eye(3) * (a - (1 - a) / 2)
    return factor(move[None] * speak[:, None], what="mess3")


def rrxor(p1: float = 0.5, p2: float = 0.5) -> Factor:
    """Two random bits, then their exclusive or. States: start, 0, 1, "the bits differ", "they are equal"."""
    _check("rrxor", p1=(p1, 0, 1), p2=(p2, 0, 1))
    return factor(_rrxor(p1, p2), what="rrxor")


def leaky_rrxor(e: float = 0.1, p1: float = 0.5, p2: float = 0.5) -> Factor:
    """RRXOR in which, with probability e, a step emits a random bit and goes to a random state: every word is
    possible."""
    _check("leaky-rrxor", e=(e, 0, 1), p1=(p1, 0, 1), p2=(p2, 0, 1))
    return factor((1 - e) * _rrxor(p1, p2) + e / 10, what="leaky-rrxor")


def _rrxor(p1: float, p2: float) -> np.ndarray:
    T = np.zeros((2, 5, 5))
    start, zero, one, differ, equal = range(5)
    T[0, start, zero], T[1, start, one] = p1, 1 - p1
    T[0, zero, equal], T[1, zero, differ] = p2, 1 - p2
    T[0, one, differ], T[1, one, equal] = p2, 1 - p2
    T[1, differ, start] = T[0, equal, start] = 1
    return T


def checksum(n: int = 3, m: int = 2) -> Factor:
    """n random symbols of m, then their sum modulo m. The state is the number of symbols read, and their sum: 1 + nm
    states."""
    for name, value, least in (("n", n, 1), ("m", m, 2)):
        if not least <= value < LARGEST_CHECKSUM or value != int(value):
            raise ValueError(
                f"checksum: {name} must be a whole number of at least {least} and below {LARGEST_CHECKSUM:,}, not "
                f"{short(value)}"
            )
    n, m = int(n), int(m)
    if 1 + n * m > LARGEST_CHECKSUM or m > 64:
        raise ValueError(
            f"checksum: 1 + n m = {1 + n * m:,} states, m = {m}: at most {LARGEST_CHECKSUM:,}, and m at most 64"
        )
    T = np.zeros((m, 1 + n * m, 1 + n * m))

    def state(read: int, total: int) -> int:
        return 1 + (read - 1) * m + total if read else 0

    for read in range(n):
        for total in range(m if read else 1):
            for symbol in range(m):
                T[symbol, state(read, total), state(read + 1, (total + symbol) % m)] += 1 / m
    for total in range(m):
        T[total, state(n, total), 0] = 1
    return factor(T, what="checksum")


def z1r(p: float = 0.5) -> Factor:
    """Zero, one, random: 0, then 1, then a bit that is 1 with probability p."""
    _check("z1r", p=(p, 0, 1))
    T = np.zeros((2, 3, 3))
    T[0, 0, 1] = T[1, 1, 2] = 1
    T[0, 2, 0], T[1, 2, 0] = 1 - p, p
    return factor(T, what="z1r")


def golden_mean(p: float = 0.5) -> Factor:
    """No two ones in a row; else a one with probability p."""
    _check("golden-mean", p=(p, 0, 1))
    return factor(np.array([[[1 - p, 0], [1, 0]], [[0, p], [0, 0]]]), what="golden-mean")


def even(p: float = 0.5) -> Factor:
    """Ones in blocks of even length, each begun with probability p."""
    _check("even", p=(p, 0, 1))
    return factor(np.array([[[1 - p, 0], [0, 0]], [[0, p], [1, 0]]]), what="even")


def sns(p: float = 0.5, q: float = 0.5) -> Factor:
    """Simple nonunifilar source: a 1 resets to the first state; beliefs are points on a line, a new one each step."""
    _check("sns", p=(p, 0, 1), q=(q, 0, 1))
    return factor(np.array([[[1 - p, p], [0, 1 - q]], [[0, 0], [q, 0]]]), what="sns")


def bloch_walk(alpha: float = 1.0, beta: float = 3.0) -> Factor:
    """A generalised process whose belief is a point (bx, bz) of the unit disk: each token pushes it in a direction."""
    _check("bloch-walk", alpha=(alpha, -1e6, 1e6), beta=(beta, -1e6, 1e6))
    if alpha**2 + beta**2 == 0:
        raise ValueError("bloch-walk: alpha and beta must not be both 0")
    g = 1 / (4 * (alpha**2 + beta**2))
    m, o = (alpha**2 - beta**2) * g, 2 * alpha * beta * g
    T = np.zeros((4, 3, 3))
    for first, axis, other in ((0, 2, 1), (2, 1, 2)):
        for token, sign in ((first, 1), (first + 1, -1)):
            T[token, 0, 0] = T[token, axis, axis] = 1 / 4
            T[token, 0, axis] = T[token, axis, 0] = sign * o
            T[token, other, other] = m
    return factor(T, start=np.array([1.0, 0, 0]), right=np.array([1.0, 0, 0]), what="bloch-walk")


def post_quantum(alpha: float = math.e, beta: float = 0.5) -> Factor:
    """A generalised process that no finite quantum system generates."""
    _check("post-quantum", alpha=(alpha, 1e-6, 1e6), beta=(beta, 1e-6, 1e6))
    T = [np.outer([1.0, 1, 0], [1.0, -1, -1])]
    T += [np.array([[value, 0, 0], [0, 1, 0], [0, math.log(value), 1]]) for value in (alpha, beta)]
    total = sum(T)
    values, vectors = np.linalg.eig(total)
    largest = int(np.abs(values).argmax())
    if abs(values[largest].imag) > 1e-9:
        raise ValueError(f"post-quantum: alpha {alpha:g} and beta {beta:g} do not define a process")
    right = vectors[:, largest].real
    return factor(np.stack(T) / values[largest].real, right=right / np.abs(right).max(), what="post-quantum")


def fanizza(alpha: float = 2000.0, lamb: float = 0.49) -> Factor:
    """A renewal process: token 1 goes on, token 0 begins anew. The probability of going on t times is a decaying
    exponential times 1 plus a rotating term, so that no finite hidden Markov process generates it."""
    _check("fanizza", alpha=(alpha, -1e6, 1e6), lamb=(lamb, 0, 0.5))
    cos, sin = math.cos(alpha), math.sin(alpha)
    on = lamb * np.array([[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, cos, -sin], [0, 0, sin, cos]])
    series = 1 / (1 - lamb * complex(cos, sin))
    turning = np.array([series.real + series.imag, series.real - series.imag]) / 4
    begin = np.array([0, 1 / (2 * (1 - lamb)), *-turning])
    begin[0] = 1 - begin.sum()
    ones = np.ones(4)
    return factor(np.stack([np.outer(ones - on @ ones, begin), on]), right=ones, what="fanizza")


PUBLISHED: Mapping[str, Callable[..., Factor]] = {
    "mess3": mess3,
    "rrxor": rrxor,
    "leaky-rrxor": leaky_rrxor,
    "checksum": checksum,
    "z1r": z1r,
    "golden-mean": golden_mean,
    "even": even,
    "sns": sns,
    "bloch-walk": bloch_walk,
    "post-quantum": post_quantum,
    "fanizza": fanizza,
}


def published(name: str, parameters: Mapping[str, float] | list[float]) -> Factor:
    """The process of a name, with parameters by name or in order; others keep their defaults. Raises `ValueError`."""
    if name not in PUBLISHED:
        raise ValueError(unknown("process", name, list(PUBLISHED)))
    known = list(inspect.signature(PUBLISHED[name]).parameters)
    if not isinstance(parameters, Mapping):
        if len(parameters) > len(known):
            raise ValueError(f"{name} has {len(known)} parameters, {', '.join(known)}, not {len(parameters)}")
        parameters = dict(zip(known, parameters))
    for key in parameters:
        if key not in known:
            raise ValueError(f"{name}: {unknown('parameter', key, known)}")
    try:
        return PUBLISHED[name](**parameters)
    except NotAProcess as error:
        raise ValueError(f"{error.problem}: choose other parameters") from None


def _check(process: str, **bounds: tuple[float, float, float]) -> None:
    """Raises `ValueError`, which names the process, unless each value lies within its bounds."""
    for name, (value, least, most) in bounds.items():
        if not least <= value <= most:
            raise ValueError(f"{process}: {name} must be between {least:g} and {most:g}, not {short(value)}")


LONGEST = 2000
"""Most characters of an expression."""
DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
NAME = re.compile(r"[A-Za-z][\w-]*")


def process(text: str, noise: float = 0.0) -> Process:
    """The process that `text` describes. Raises `ValueError` with the place of an error in it."""
    if len(text) > LONGEST:
        raise ValueError(f"the process has {len(text):,} characters: at most {LONGEST:,} are read")
    return _Reader(text).whole(noise)


class _Reader:
    """Reads an expression from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.place = text, 0

    def whole(self, noise: float) -> Process:
        shares, parts = [self.match(DECIMAL)], [self.product()]
        while self.take("+"):
            shares.append(self.match(DECIMAL))
            parts.append(self.product())
        if self.peek():
            self.fail("`*`, `+` or the end")
        if any(shares) and not all(shares):
            raise ValueError(f"process {short(self.text)}: give a probability for each part of a mixture, or for none")
        result = mixture(parts, [float(share or 1 / len(parts)) for share in shares])
        return Process(result.factors, noise)

    def product(self) -> Process:
        factors = [self.factor()]
        while self.take("*"):
            factors.append(self.factor())
        return Process(factors)

    def factor(self) -> Factor:
        if not self.take("("):
            return self.single()
        variants = [self.single()]
        while self.take("|"):
            variants.append(self.single())
        if not self.take(")"):
            self.fail("`|` or `)`")
        return alternatives(variants, short(self.text))

    def single(self) -> Factor:
        name = self.match(NAME) or self.fail("the name of a process")
        values: list[float] = []
        named: dict[str, float] = {}
        if self.take("(") and not self.take(")"):
            while True:
                key = self.match(NAME)
                if key and not self.take("="):
                    self.fail("`=` and a number")
                number = float(self.match(DECIMAL) or self.fail("a number"))
                if key in named:
                    raise ValueError(f"process {short(self.text)}: {name} is given {key} twice")
                if key:
                    named[key] = number
                elif named:
                    self.fail("a parameter's name, since those before it have one")
                else:
                    values.append(number)
                if self.take(")"):
                    break
                if not self.take(","):
                    self.fail("`,` or `)`")
        if values and named:
            raise ValueError(f"process {short(self.text)}: give the parameters of {name} all by name, or all in order")
        return published(name, named or values)

    def peek(self) -> str:
        while self.text[self.place : self.place + 1].isspace():
            self.place += 1
        return self.text[self.place : self.place + 1]

    def take(self, symbol: str) -> bool:
        matches = self.peek() == symbol
        self.place += matches
        return matches

    def match(self, pattern: re.Pattern[str]) -> str:
        self.peek()
        match = pattern.match(self.text, self.place)
        self.place = match.end() if match else self.place
        return match[0] if match else ""

    def fail(self, wanted: str) -> str:
        there = f"not {short(self.text[self.place :])}" if self.peek() else "but it ends there"
        raise ValueError(f"process {short(self.text)}: character {self.place + 1} must be {wanted}, {there}")


SHAPE: Shape = {"matrices": [[[NUMBER]]], "tokens?": [TEXT], "start?": [NUMBER], "right?": [NUMBER]}
"""Shape of the JSON file, and of the file that a run keeps."""
KEYS = ("matrices", "tokens", "start", "right")
"""Keys of that content."""
MOST_BYTES = 2**28
"""Most bytes of a file, or of its arrays in memory."""


def read_matrices(path: Path) -> dict[str, Any]:
    """The content of a file, in the shape `SHAPE`. Raises `ValueError`, naming the file, and `OSError`."""
    content = read_whole(path, MOST_BYTES)
    if path.suffix == ".npz" or content[:4] == b"PK\x03\x04":
        return _read_arrays(content, path)
    if content[:6] == b"\x93NUMPY":
        raise ValueError(f"{path}: a single array: give a JSON file, or an NPZ file with an array named `matrices`")
    fields: dict[str, Any] = parse_json(content, SHAPE, str(path))
    check_keys(fields, KEYS, str(path))
    return fields


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
    fields: dict[str, Any] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > MOST_BYTES:
            raise ValueError(f"its arrays have {size:,} bytes; at most {MOST_BYTES:,} are read")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            names = list(arrays)
            for key in KEYS:
                if key not in names:
                    continue
                array = arrays[key]
                if not isinstance(array, np.ndarray):
                    raise ValueError(f"{key} is not an array")
                kinds, axes = ("US", 1) if key == "tokens" else ("fiu", 3 if key == "matrices" else 1)
                if array.dtype.kind not in kinds or array.ndim != axes:
                    wanted = "text" if key == "tokens" else "numbers"
                    raise ValueError(f"{key} must be {wanted} with {axes} axes, not {array.dtype} {array.shape}")
                fields[key] = array.astype(str if key == "tokens" else np.float64).tolist()
    except UnicodeDecodeError:
        raise ValueError(f"{path}: tokens must be text: found non-ASCII bytes") from None
    except Exception as error:  # of the archive, or of headers, which are parsed as Python and raise almost anything
        problem = without_advice(error) if isinstance(error, ValueError) else str(error) or type(error).__name__
        raise ValueError(f"{path}: not an NPZ file of matrices: {problem}") from None
    if "matrices" not in fields:
        raise ValueError(f"{path}: there is no array named matrices")
    check_keys(names, KEYS, str(path))
    check(fields, SHAPE, str(path))  # a run keeps it as JSON, and must be able to read it again
    return fields
