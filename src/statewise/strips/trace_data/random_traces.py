"""Draws random traces from a domain, as in the STRIPS Transformer paper."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from statewise.strips.model.model import ActionModel, Atoms
from statewise.strips.model.traces import Trace, Traces
from statewise.strips.trace_data.domains import Domain

PATIENCE = 20_000
"""After this many draws in a row without a new trace there are few or none left."""
AHEAD = 500
"""The most states that an aimed walk looks at to find an action that no walk has taken."""


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
    aimed: bool = False,
) -> Traces:
    """Unique random traces (section *Data generation* of the paper).

    With `start` `random`, as in the paper, walks begin in four states drawn from the reachable ones: the split `train`
    uses two, `test` the other two, and `all` all four. In a domain with two or three states each split has fewer, and
    with a single state all walks begin there. With `init` walks of every split begin in the initial state of the
    domain, with `both` each walk begins in either. Lengths are uniform from 1 to `max_length`, for negatives from 2. A
    share `negatives` ends in one action that Definition 1 rejects, drawn from all that it rejects there; an action that
    is merely inapplicable in the current state of the walk does not make a negative. Traces in `without` are excluded.

    `aimed` walks first go the shortest way to an action that no walk has taken, if one is among the next few hundred
    states: of a schema that no walk has taken, or else any. Then, and where none is in sight, half of their actions are
    drawn from those that were taken least often. Walks that are not aimed draw each action uniformly.

    Raises `ValueError` if the domain does not have enough traces.
    """
    if num < 1 or max_length < 1:
        raise ValueError(f"num and max_length must be at least 1, not {num} and {max_length}")
    if not 0 <= negatives <= 1:
        raise ValueError(f"negatives must be a share from 0 to 1, not {negatives}")
    if num > MOST or max_length > MOST:
        raise ValueError(f"num and max_length must be at most {MOST:,}, not {num:,} and {max_length:,}")
    if split not in SPLITS:
        raise ValueError(f"the split must be one of {', '.join(SPLITS)}, not {split!r}")
    if start not in STARTS:
        raise ValueError(f"the start must be one of {', '.join(STARTS)}, not {start!r}")
    begins = domain.start if start == "init" else begin_states(domain, split)
    rng = np.random.default_rng(seed)
    walker = _Aimed(domain.model, rng) if aimed else _Walker(domain.model, rng)
    wanted = {1: round(num * negatives)}
    wanted[0] = num - wanted[1]
    seen = set(without.with_actions(domain.model.names).rows) if without is not None else set()
    rows: list[tuple[Trace, int]] = []
    for label, count in wanted.items():
        drawn, idle = 0, 0
        while drawn < count:
            length = int(rng.integers(1 + label, max_length + 1)) if max_length > label else 0
            of = domain.start if start == "both" and rng.integers(2) else begins
            trace = walker.walk(of[rng.integers(len(of))], length, label) if length else None
            if trace is None or trace in seen:
                idle += 1
                if idle == PATIENCE:
                    kind = "negative" if label else "positive"
                    raise ValueError(
                        f"{domain.name} does not have enough unique {kind} traces of at most {max_length} actions: "
                        f"{count} were requested, {drawn} were found. Request fewer, or longer ones."
                    )
                continue
            idle, drawn = 0, drawn + 1
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
    """The states drawn at random in which walks of a split begin: some of four, or of all if there are fewer."""
    four = domain.some_states(4)
    middle = -(-len(four) // 2)
    return {"train": four[:middle], "test": four[middle:] or four, "all": four}[split]


class _Walker:
    """Draws random walks; caches the applicable actions of each state."""

    def __init__(self, model: ActionModel, rng: np.random.Generator) -> None:
        self.model, self.rng = model, rng
        self.applicable: dict[Atoms, list[int]] = {}

    def walk(self, state: Atoms, length: int, label: int) -> Trace | None:
        """A trace of `length` actions; None at a dead end, or if Definition 1 rejects no action."""
        model, known_false, trace = self.model, 0, []
        for at in range(length - label):
            possible = self.possible(state)
            if not possible:
                return None
            number = self.next(state, possible, length - label - at)
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

    def possible(self, state: Atoms) -> list[int]:
        """The actions applicable in a state."""
        if state not in self.applicable:
            self.applicable[state] = self.model.applicable(state)
        return self.applicable[state]

    def next(self, state: Atoms, possible: Collection[int], left: int) -> int:
        """The next action of a walk that has `left` actions left, of those that are possible."""
        return list(possible)[int(self.rng.integers(len(possible)))]


class _Aimed(_Walker):
    """Draws walks towards actions that no walk has taken."""

    def __init__(self, model: ActionModel, rng: np.random.Generator) -> None:
        super().__init__(model, rng)
        self.taken = [0] * len(model.actions)
        self.schemas = [name.partition(" ")[0] for name in model.names]
        self.way: list[int] = []
        """The actions that lead to the one that the walk aims at, the next one last."""
        self.hopeless: set[Atoms] = set()
        """States from which the search has found no action that was not taken; there are fewer and fewer."""

    def walk(self, state: Atoms, length: int, label: int) -> Trace | None:
        """A trace as `_Walker` draws it."""
        self.way = []
        return super().walk(state, length, label)

    def next(self, state: Atoms, possible: Collection[int], left: int) -> int:
        """The next action on the way, or of those that were taken least often."""
        if not self.way and state not in self.hopeless:
            self.way = self._way_from(state, left)
        if self.way:
            number = self.way.pop()
        else:
            least = min(self.taken[each] for each in possible)
            rare = [each for each in possible if self.taken[each] == least]
            number = super().next(state, rare if self.rng.integers(2) else possible, left)
        self.taken[number] += 1
        return number

    def _way_from(self, state: Atoms, left: int) -> list[int]:
        """The shortest way to an action that was not taken, the last action first; empty if none is near."""
        if all(self.taken):
            return []
        known = {schema for schema, count in zip(self.schemas, self.taken) if count}
        before: dict[Atoms, tuple[Atoms, int] | None] = {state: None}
        frontier, best, depth = [state], None, 0
        while frontier and depth < left and best is None and len(before) < AHEAD:
            depth += 1
            following = []
            for at in frontier:
                possible = self.possible(at)
                new = [each for each in possible if not self.taken[each]]
                new = [each for each in new if self.schemas[each] not in known] or new
                if new and (best is None or self.schemas[new[0]] not in known):
                    best = at, new[int(self.rng.integers(len(new)))]
                    if self.schemas[best[1]] not in known:
                        break
                for each in possible:
                    after = self.model.result(at, each)
                    if after not in before:
                        before[after] = at, each
                        following.append(after)
            frontier = following
        if best is None:
            if depth < left:
                self.hopeless.add(state)
            return []
        way, step = [best[1]], before[best[0]]
        while step is not None:
            way.append(step[1])
            step = before[step[0]]
        return way


NOISE = ("labels", "actions", "both", "steps")
"""The kinds of noise."""


def with_noise(clean: Traces, share: float, kind: str, seed: int) -> Traces:
    """Adds noise to traces. The kind `labels` flips the label of a share of the traces, `actions` replaces one action
    by another in a share of them; `both` flips the labels of a share and, in a share that is drawn separately, damages
    one action; `steps` damages each action of all traces with the probability `share`. To *damage* an action is to
    replace it by another, to leave it out, or to insert any other before it, equally often; the only action of a trace
    is not left out. Shares of traces are drawn without replacement. Raises `ValueError` for another kind, for a share
    outside [0, 1], and if there is only one action."""
    if kind not in NOISE:
        raise ValueError(f"the kind of noise must be one of {', '.join(NOISE)}, not {kind!r}")
    if not 0 <= share <= 1:
        raise ValueError(f"the noise must be a share from 0 to 1, not {share}")
    if kind != "labels" and len(clean.actions) < 2:
        raise ValueError("there is only one action, which cannot be replaced by another")
    rng, count = np.random.default_rng(seed), len(clean.actions)
    rows, labels = list(clean.rows), list(clean.labels)

    def chosen() -> Iterable[int]:
        return rng.choice(len(rows), round(share * len(rows)), replace=False)

    def other(action: int) -> int:
        return (action + 1 + int(rng.integers(count - 1))) % count

    def damaged(row: Sequence[int], at: int) -> Trace:
        how = int(rng.integers(3))
        kept = () if how == 1 and len(row) > 1 else (other(row[at]), row[at])[: 1 + (how == 2)]
        return (*row[:at], *kept, *row[at + 1 :])

    if kind in ("labels", "both"):
        for place in chosen():
            labels[place] = 1 - labels[place]
    if kind in ("actions", "both"):
        for place in chosen():
            row = rows[place]
            at = int(rng.integers(len(row)))
            rows[place] = (*row[:at], other(row[at]), *row[at + 1 :]) if kind == "actions" else damaged(row, at)
    if kind == "steps":
        for place, row in enumerate(rows):
            for at in range(len(row) - 1, -1, -1):  # from the end, since places before it stay
                if rng.random() < share:
                    row = damaged(row, at)
            rows[place] = row
    return Traces(clean.actions, tuple(rows), tuple(labels))
