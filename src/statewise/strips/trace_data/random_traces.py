"""Action traces, and how they are drawn from a domain as in the STRIPS Transformer paper."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from statewise.strips.model.model import ActionModel, Atoms
from statewise.strips.trace_data.domains import Domain

Trace = tuple[int, ...]
"""Numbers of actions."""

PATIENCE = 20_000
"""After this many draws in a row without a new trace, few or none are left."""


@dataclass(frozen=True)
class Traces:
    """Traces over named actions. A trace with label 1 ends in its one invalid action; with label 0 all are valid."""

    actions: tuple[str, ...]
    rows: tuple[Trace, ...]
    labels: tuple[int, ...]
    lines: tuple[int, ...] = field(default=(), compare=False, repr=False)
    """The line of its file at which each trace begins; empty if they were not read from a file."""
    files: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """The name of its file, of traces that were read from a folder."""
    unread: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """What the file holds besides, such as `the column 'note'`."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def positives(self) -> int:
        """The number of traces with label 0."""
        return self.labels.count(0)

    @property
    def longest(self) -> int:
        """The length of the longest trace."""
        return max(map(len, self.rows), default=0)

    @property
    def sha256(self) -> str:
        """A checksum of actions, rows and labels."""
        return hashlib.sha256(json.dumps([self.actions, self.rows, self.labels]).encode()).hexdigest()

    def where(self, place: int) -> str:
        """How messages call a trace: by its file, its line, or its number from 1."""
        if self.files:
            return self.files[place]
        return f"line {self.lines[place]}" if self.lines else f"trace {place + 1}"

    def padded(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Action numbers [N, T], padded with -1; lengths [N]; labels [N]."""
        lengths = np.array([len(row) for row in self.rows], dtype=np.int64)
        numbers = np.full((len(self.rows), self.longest), -1, dtype=np.int64)
        for place, row in enumerate(self.rows):
            numbers[place, : len(row)] = row
        return numbers, lengths, np.array(self.labels, dtype=np.int64)

    def only(self, places: Iterable[int]) -> Traces:
        """The traces at `places`."""
        kept = list(places)
        rows, labels = tuple(self.rows[at] for at in kept), tuple(self.labels[at] for at in kept)
        return Traces(self.actions, rows, labels, *self._origins(kept))

    def _origins(self, kept: Sequence[int]) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Lines and files of some traces."""
        lines = tuple(self.lines[at] for at in kept) if self.lines else ()
        return lines, tuple(self.files[at] for at in kept) if self.files else ()

    def with_actions(self, actions: Sequence[str]) -> Traces:
        """The same traces, numbered by another list of actions. Raises `ValueError` if an action is not in it."""
        number = {name: place for place, name in enumerate(actions)}
        used = {at for row in self.rows for at in row}
        unknown = sorted(self.actions[at] for at in used if self.actions[at] not in number)
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not an action of the model ({len(unknown)} such actions)")
        move = [number.get(name, -1) for name in self.actions]
        rows = tuple(tuple(move[at] for at in row) for row in self.rows)
        return Traces(tuple(actions), rows, self.labels, self.lines, self.files)

    def valid_only(self) -> Traces:
        """The valid actions alone, all labelled 0; a trace that has none is left out."""
        kept = [
            (row[: len(row) - label], place)
            for place, (row, label) in enumerate(zip(self.rows, self.labels))
            if len(row) > label
        ]
        origins = self._origins([place for _, place in kept])
        return Traces(self.actions, tuple(row for row, _ in kept), (0,) * len(kept), *origins)


def traces(
    domain: Domain,
    num: int,
    max_length: int,
    seed: int,
    *,
    negatives: float = 0.8,
    split: str = "train",
    start: str = "random",
    without: Traces | None = None,
) -> Traces:
    """Unique random traces (section *Data generation* of the paper).

    With `start` `random`, as in the paper, walks begin in four states drawn from those reachable: the split `train`
    uses two, `test` the other two, and `all` all four. A domain with two or three states has fewer for each split, and
    of one with a single state all walks begin there. With `init` walks of every split begin in the domain's own initial
    state, with `both` each walk in either. Lengths are uniform from 1 to `max_length`, for negatives from 2. A share
    `negatives` ends in one action that Definition 1 rejects, drawn from all that it rejects there; an action that is
    merely inapplicable in the walk's current state does not make a negative. Traces in `without` are excluded. Raises
    `ValueError` if the domain does not have enough.
    """
    if num < 1 or max_length < 1 or not 0 <= negatives <= 1:
        raise ValueError(
            f"num and max_length must be at least 1 and negatives a share, not {num}, {max_length}, {negatives}"
        )
    if num > MOST or max_length > MOST:
        raise ValueError(f"num and max_length must be at most {MOST:,}, not {num:,} and {max_length:,}")
    if split not in SPLITS:
        raise ValueError(f"the split must be one of {', '.join(SPLITS)}, not {split!r}")
    if start not in STARTS:
        raise ValueError(f"the start must be one of {', '.join(STARTS)}, not {start!r}")
    begins = domain.start if start == "init" else begin_states(domain, split)
    rng = np.random.default_rng(seed)
    walker = _Walker(domain.model, rng)
    wanted = {1: round(num * negatives)}
    wanted[0] = num - wanted[1]
    seen = set(without.with_actions(domain.model.names).rows) if without is not None else set()
    rows: list[tuple[Trace, int]] = []
    for label, count in wanted.items():
        found, idle = 0, 0
        while found < count:
            length = int(rng.integers(1 + label, max_length + 1)) if max_length > label else 0
            of = domain.start if start == "both" and rng.integers(2) else begins
            trace = walker.walk(of[rng.integers(len(of))], length, label) if length else None
            if trace is None or trace in seen:
                idle += 1
                if idle == PATIENCE:
                    kind = "negative" if label else "positive"
                    raise ValueError(
                        f"{domain.name} has not enough unique {kind} traces of at most {max_length} actions: "
                        f"{count} were requested, {found} were found. Request fewer, or longer ones."
                    )
                continue
            idle, found = 0, found + 1
            seen.add(trace)
            rows.append((trace, label))
    order = rng.permutation(len(rows))
    chosen = [rows[place] for place in order]
    return Traces(domain.model.names, tuple(row for row, _ in chosen), tuple(label for _, label in chosen))


MOST = 10_000_000
"""The largest number of traces per call, and of actions per trace."""


SPLITS = {"train": slice(0, 2), "test": slice(2, 4), "all": slice(0, 4)}


STARTS = ("init", "random", "both")
"""Where walks begin: in the domain's initial state, in states drawn at random, or in either."""


def begin_states(domain: Domain, split: str) -> list[Atoms]:
    """The states drawn at random in which walks of a split begin: of the four, or of all if there are fewer."""
    four = domain.some_states(4)
    middle = -(-len(four) // 2)
    return {"train": four[:middle], "test": four[middle:] or four, "all": four}[split]


class _Walker:
    """Random walks; caches the applicable actions of each state."""

    def __init__(self, model: ActionModel, rng: np.random.Generator) -> None:
        self.model, self.rng = model, rng
        self.applicable: dict[Atoms, list[int]] = {}

    def walk(self, state: Atoms, length: int, label: int) -> Trace | None:
        """`length` actions; None at a dead end, or if Definition 1 rejects no action."""
        model, known_false, trace = self.model, 0, []
        for _ in range(length - label):
            possible = self.applicable.get(state)
            if possible is None:
                possible = self.applicable[state] = model.applicable(state)
            if not possible:
                return None
            number = possible[int(self.rng.integers(len(possible)))]
            action = model.actions[number]
            state = (state | action.add) & ~action.delete
            known_false = known_false & ~action.add | action.delete
            trace.append(number)
        if label:
            rejected = [place for place, action in enumerate(model.actions) if action.pre & known_false]
            if not rejected:
                return None
            trace.append(rejected[int(self.rng.integers(len(rejected)))])
        return tuple(trace)


def with_noise(clean: Traces, share: float, kind: str, seed: int) -> Traces:
    """Adds noise to a share of the traces, drawn without replacement: kind `labels` flips the label, `actions` replaces
    one action by another. Raises `ValueError` for another kind, for a share outside [0, 1], and if there is only one
    action."""
    if kind not in ("labels", "actions"):
        raise ValueError(f"the kind of noise must be labels or actions, not {kind!r}")
    if not 0 <= share <= 1:
        raise ValueError(f"the noise must be a share from 0 to 1, not {share}")
    if kind == "actions" and len(clean.actions) < 2:
        raise ValueError("there is only one action: it cannot be replaced by another")
    rng = np.random.default_rng(seed)
    rows, labels = list(clean.rows), list(clean.labels)
    for place in rng.choice(len(rows), round(share * len(rows)), replace=False):
        if kind == "labels":
            labels[place] = 1 - labels[place]
        else:
            row = list(rows[place])
            at = int(rng.integers(len(row)))
            row[at] = (row[at] + 1 + int(rng.integers(len(clean.actions) - 1))) % len(clean.actions)
            rows[place] = tuple(row)
    return Traces(clean.actions, tuple(rows), tuple(labels))
