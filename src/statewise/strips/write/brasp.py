"""The B-RASP program of an action model, as an executable (STRIPS Transformer paper, equations 1 to 7, Theorem 3).

A program computes Boolean vectors, one entry for each position of a word, from earlier ones. It has two kinds of
operations: `PositionWise`, a Boolean formula at each position, and `Attention`, where each position looks up a value at
one other position. `program(model)` is the program that decides whether a trace is negative; `run` executes it.

Positions count from 0 here, from 1 in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from statewise.strips.model.model import ActionModel, Atoms

Vectors = Mapping[str, np.ndarray]
"""Boolean vectors (n,) by name; in formulas over pairs of positions they are (n, 1) at i and (1, n) at j."""

Formula = Callable[[Vectors], np.ndarray]
"""A formula over the vectors at one position: (n,) bool."""

PairFormula = Callable[[Vectors, Vectors], np.ndarray]
"""A formula over the vectors at i and j: bool, broadcastable to (n, n). Written `lambda i, j: i["Q"] & j["K"]`."""

NOWHERE = -1
"""The attended position where there is nothing to attend to and the default applies."""


@dataclass(frozen=True)
class PositionWise:
    """P(i) := a Boolean formula over earlier vectors at i."""

    name: str
    formula: Formula

    def compute(self, earlier: Vectors) -> tuple[np.ndarray, np.ndarray | None]:
        """The vector (n,), and None since nothing is attended to."""
        return self.formula(earlier), None


@dataclass(frozen=True)
class Attention:
    """Equation 1: P(i) := V(i, j) at the leftmost or rightmost j with M(i, j) and S(i, j); D(i) if there is none."""

    name: str
    choice: Literal["leftmost", "rightmost"]
    mask: Literal["all", "before", "after"]
    """Which j may be attended to: all, j < i (strict future masking), or j > i (strict past masking)."""
    score: PairFormula
    value: PairFormula
    default: Formula

    def compute(self, earlier: Vectors) -> tuple[np.ndarray, np.ndarray | None]:
        """The vector (n,), and the position (n,) that each position attends to, or `NOWHERE`."""
        n = len(next(iter(earlier.values())))
        at_i = {name: vector[:, None] for name, vector in earlier.items()}
        at_j = {name: vector[None, :] for name, vector in earlier.items()}
        allowed = np.broadcast_to(self.score(at_i, at_j), (n, n)) & MASKS[self.mask](n)
        position = allowed.argmax(axis=1) if self.choice == "leftmost" else n - 1 - allowed[:, ::-1].argmax(axis=1)
        attends = allowed.any(axis=1)
        values = np.broadcast_to(self.value(at_i, at_j), (n, n))[np.arange(n), position]
        return np.where(attends, values, self.default(earlier)), np.where(attends, position, NOWHERE)


MASKS: dict[str, Callable[[int], np.ndarray]] = {
    "all": lambda n: np.ones((n, n), bool),
    "before": lambda n: np.tri(n, k=-1, dtype=bool),
    "after": lambda n: np.tri(n, k=-1, dtype=bool).T,
}

Operation = PositionWise | Attention


@dataclass(frozen=True)
class Execution:
    """The result of running a program on a word."""

    word: tuple[int, ...]
    """Numbers of the symbols."""
    vectors: dict[str, np.ndarray]
    """(n,) bool each, in the order of computation, the input's first."""
    attended: dict[str, np.ndarray]
    """(n,) int64 for each attention: the position that each position attends to, or `NOWHERE`."""

    @property
    def output(self) -> bool:
        """The last entry of the last vector."""
        return bool(next(reversed(self.vectors.values()))[-1])

    def __getitem__(self, name: str) -> np.ndarray:
        """(n,) bool: a vector by name."""
        return self.vectors[name]


@dataclass(frozen=True)
class Program:
    """A B-RASP program over the words of an alphabet."""

    inputs: tuple[str, ...]
    """Name of each symbol's input vector: 1 where the word has that symbol."""
    operations: tuple[Operation, ...]

    def run(self, word: Sequence[int]) -> Execution:
        """All vectors for a word of symbol numbers. Raises `ValueError` if it is empty or has unknown symbols."""
        symbols = np.array(word, np.int64)
        if not len(symbols):
            raise ValueError("a B-RASP program needs a word of one symbol or more: its output is read at the last one")
        if symbols.min() < 0 or symbols.max() >= len(self.inputs):
            wrong = next(int(symbol) for symbol in symbols if not 0 <= symbol < len(self.inputs))
            raise ValueError(f"symbol {wrong} is not in the alphabet of {len(self.inputs)}")
        vectors = {name: symbols == number for number, name in enumerate(self.inputs)}
        attended = {}
        for operation in self.operations:
            vectors[operation.name], places = operation.compute(vectors)
            if places is not None:
                attended[operation.name] = places
        return Execution(tuple(symbols.tolist()), vectors, attended)


def program(model: ActionModel) -> Program:
    """The program whose output is 1 for negative traces and 0 for positive ones (Theorem 3).

    Its vectors: `I_a` for each action a; the query `Q_p`, key `K_p`, value `V_p` and output `Y_p` of the head of each
    atom p; `Y`, the inapplicable actions; `Z`, the output. Equation 7 has no mask, so `Z` is the same at every
    position; with a mask j <= i, `Z(n)` would be the same.
    """
    inputs = tuple(f"I_{name}" for name in model.names)
    operations = [operation for place, atom in enumerate(model.atoms) for operation in _head(model, place, atom)]
    outputs = [f"Y_{atom}" for atom in model.atoms]
    operations.append(PositionWise("Y", lambda at: _any(at, outputs)))  # equation 6
    operations.append(
        Attention("Z", "leftmost", "all", lambda i, j: j["Y"], lambda i, j: np.array(True), lambda at: np.array(False))
    )  # equation 7: leftmost and rightmost give the same
    return Program(inputs, tuple(operations))


def run(model: ActionModel, trace: Sequence[int]) -> Execution:
    """Runs the program of `model` on a trace of action numbers. Raises `ValueError` if the trace is empty or has
    unknown actions."""
    return program(model).run(trace)


def _head(model: ActionModel, place: int, atom: str) -> Iterator[Operation]:
    query, key, value = (f"{letter}_{atom}" for letter in "QKV")

    def one_of(sets: list[Atoms]) -> Formula:
        names = [f"I_{action}" for action, atoms in zip(model.names, sets) if atoms >> place & 1]
        return lambda at: _any(at, names)

    yield PositionWise(query, one_of([action.pre for action in model.actions]))  # equation 2
    yield PositionWise(key, one_of([action.add | action.delete for action in model.actions]))  # equation 3
    yield PositionWise(value, one_of([action.delete for action in model.actions]))  # equation 4
    yield Attention(
        f"Y_{atom}",
        "rightmost",
        "before",
        lambda i, j: i[query] & j[key],
        lambda i, j: j[value],
        lambda at: np.array(False),
    )  # equation 5


def _any(at: Vectors, names: Sequence[str]) -> np.ndarray:
    """The OR of the vectors; all 0 if there are none."""
    nowhere = np.zeros_like(next(iter(at.values())))
    return np.logical_or.reduce([nowhere, *(at[name] for name in names)])
