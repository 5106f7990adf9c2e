"""Explores a simulator: chooses the steps that show most about what actions require.

A step tries an action; a simulator says whether it was possible. What it shows are windows (`exact.windows`; for
schemas `exact.predicates`): x, the actions W after it, and c, which was possible, so that no atom is deleted by x,
required by c and added by none of W. To these come windows of the beginning, for each tuple of objects: an atom may be
false in the initial state until it is added. So an action is certainly possible if all its windows contain seen ones,
and certainly not if a failure had no other windows than these. What is certain is never tried for what it shows.

If the simulator says which actions are possible, each step is the possible one with most new windows, and what is not
possible is known without a step. Otherwise undecided actions are tried, those with the fewest windows first, since
these say most if they fail, in turn with moves that are certainly possible.

An action that was possible in a walk, and later in the same walk is not, was made impossible by what happened in
between: this part of the walk is a negative trace by Definition 1 of the STRIPS Transformer paper, whatever the initial
state is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from statewise.strips.exact.predicates import Event, Recent, events, latest_first, signatures, windows_of_event
from statewise.strips.exact.windows import any_inside
from statewise.strips.model.heads import ActionSet
from statewise.strips.model.model import Atoms
from statewise.strips.model.traces import Trace, Traces
from statewise.strips.trace_data.domains import Domain

ARITY = 2
"""The most arguments of the predicates for which windows are counted."""
MOVES, TRIED = 8, 40
"""The most moves that are compared, and the most actions that are tried in thought after each."""
BEGINNING = -1
"""The slot x of windows of the beginning."""

Pair = tuple[int, tuple[str, ...], int, int]
"""(signature, objects, x, c): two slots of a signature; the objects are only given at the beginning."""
Option = tuple[Pair, ActionSet]
"""A pair and a window."""
Touch = tuple[int, tuple[str, ...], Event]
"""A signature, a tuple of objects, and the slots that an action has of it."""


class Simulator(Protocol):
    """What can be explored."""

    @property
    def actions(self) -> Sequence[str]:
        """The names of all actions, for schemas written `schema object object`."""

    def reset(self) -> None:
        """Returns to the initial state, the same one each time."""

    def step(self, action: str) -> bool:
        """Whether the action is possible now; if so, it happens."""


class OpenSimulator(Simulator, Protocol):
    """A simulator that says which actions are possible."""

    def possible(self) -> Collection[str] | None:
        """The names of the actions that are possible now; None if it does not say."""


class DomainSimulator:
    """A domain whose state is hidden, in its first initial state after `reset`. With `tells` it says which actions are
    possible."""

    def __init__(self, domain: Domain, *, tells: bool = True) -> None:
        self.domain, self.tells = domain, tells
        self.state: Atoms = domain.start[0]

    @property
    def actions(self) -> tuple[str, ...]:
        """The names of the actions."""
        return self.domain.model.names

    def reset(self) -> None:
        """Returns to the initial state."""
        self.state = self.domain.start[0]

    def possible(self) -> list[str] | None:
        """The names of the actions that are possible now; None unless it tells."""
        model = self.domain.model
        return None if not self.tells else [model.names[at] for at in model.applicable(self.state)]

    def step(self, action: str) -> bool:
        """Whether the action is possible now; if so, it happens."""
        model = self.domain.model
        number = model.number[action]
        if model.actions[number].pre & ~self.state:
            return False
        self.state = model.result(self.state, number)
        return True


@dataclass(frozen=True)
class Explored:
    """What was found."""

    traces: Traces
    """The walks, and negative traces for the actions that became impossible."""
    steps: int
    """The number of steps, with those that were not possible."""
    impossible: int
    """The number of steps that were not possible."""
    resets: int


def simulator_of(name: str) -> Simulator:
    """The simulator that a function returns, named `module:function`. The function is called without arguments. Raises
    `ValueError` if there is no such module or function, and if what it returns has no `actions`, `reset` or `step`."""
    import importlib

    module, _, function = name.partition(":")
    try:
        made = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{name!r} is not a function of a module, as in package.module:function: {error}") from None
    try:
        simulator = made() if callable(made) else made
    except Exception as error:
        raise ValueError(f"{name} failed: {type(error).__name__}: {error}") from error
    missing = [each for each in ("actions", "reset", "step") if not hasattr(simulator, each)]
    if missing:
        raise ValueError(f"what {name} returns is no simulator: it has no {', no '.join(missing)}")
    return simulator


def explore(simulator: Simulator, steps: int, *, lifted: bool = False, max_length: int = 30, seed: int = 1) -> Explored:
    """Explores a simulator for a number of steps, or until no action is possible at its beginning, in walks of at most
    `max_length` actions. With `lifted` what is seen
    of some objects counts for all of their sort. Raises `ValueError` for numbers below 1, for a simulator without
    actions or with one twice, for an answer of its that is neither true nor false, and with `lifted` if a schema occurs
    with different numbers of arguments."""
    if steps < 1 or max_length < 1:
        raise ValueError(f"steps and max_length must be at least 1, not {steps} and {max_length}")
    names = tuple(simulator.actions)
    if not names or len(set(names)) < len(names) or not all(isinstance(name, str) and name.strip() for name in names):
        raise ValueError("a simulator needs actions with different names")
    explorer = _Explorer(simulator, names, lifted, np.random.default_rng(seed))
    while explorer.steps < steps and explorer.walk(steps, max_length):
        pass
    rows = explorer.rows
    return Explored(
        Traces(names, tuple(rows), tuple(rows.values())), explorer.steps, explorer.impossible, explorer.resets
    )


class _Explorer:
    """What is known so far, and the walk."""

    def __init__(self, simulator: Simulator, names: tuple[str, ...], lifted: bool, rng: np.random.Generator) -> None:
        self.simulator, self.names, self.rng = simulator, names, rng
        self.number = {name: at for at, name in enumerate(names)}
        if lifted:
            kinds = [each for count in range(ARITY + 1) for each in signatures(names, count)]
            by_kind = [events(each, names) for each in kinds]
            self.touched: list[list[Touch]] = [
                [(number, of, event) for number, each in enumerate(by_kind) for of, event in each[at].items()]
                for at in range(len(names))
            ]
        else:
            self.touched = [[(0, (), (at,))] for at in range(len(names))]
        self.seen: dict[Pair, list[ActionSet]] = {}
        """The minimal seen windows."""
        self.failed: dict[frozenset[Option], frozenset[Pair]] = {}
        """For each failure the windows that may explain it, and their pairs; without those that another one implies."""
        self.rows: dict[Trace, int] = {}
        self.steps = self.impossible = self.resets = 0
        self.taken = [0] * len(names)
        self.recent: dict[tuple[int, tuple[str, ...]], Recent] = {}
        self.trace: list[int] = []
        self.last: dict[int, int] = {}
        """The place in the walk where each action happened last."""

    def walk(self, until: int, max_length: int) -> bool:
        """One walk, up to a number of steps in all; whether there was a step to try."""
        before = self.steps
        self.simulator.reset()
        self.resets += 1
        self.recent, self.trace, self.last = {}, [], {}
        while len(self.trace) < max_length and self.steps < until:
            at = self._next()
            if at is None:
                break
            answer = self.simulator.step(self.names[at])
            if not isinstance(answer, bool | np.bool_):
                raise ValueError(f"step({self.names[at]!r}) must return True or False, not {answer!r}")
            self.steps += 1
            if answer:
                self._happened(at)
            else:
                self.impossible += 1
                self._failed(at)
        if self.trace:
            self.rows[tuple(self.trace)] = 0
        return self.steps > before

    def options(self, at: int) -> list[Option]:
        """The windows of an action, if it happened now, that contain no seen window."""
        return [each for each in self._windows(at) if not any_inside(each[1], self.seen.get(each[0], ()))]

    def _windows(self, at: int) -> Iterator[Option]:
        for number, of, event in self.touched[at]:
            recent = self.recent.get((number, of), [])
            for x, between, c in windows_of_event(event, recent):
                yield (number, (), x, c), between
            whole = sum(1 << x for x, _ in recent)
            for c in event:
                yield (number, of, BEGINNING, c), whole

    def impossible_for_sure(self, options: Sequence[Option]) -> bool:
        """Whether a failure had no other windows than such that are inside of these."""
        mine: dict[Pair, list[ActionSet]] = {}
        for pair, between in options:
            mine.setdefault(pair, []).append(between)
        return any(
            pairs <= mine.keys() and all(any_inside(between, mine[pair]) for pair, between in each)
            for each, pairs in self.failed.items()
        )

    def _take(self, at: int) -> None:
        for number, of, event in self.touched[at]:
            self.recent[number, of] = latest_first(event, self.recent.get((number, of), []))

    def _happened(self, at: int) -> None:
        new = self.options(at)
        for pair, between in new:
            known = self.seen.get(pair, ())
            self.seen[pair] = [*(each for each in known if between & each != between), between]
        if new:
            shown = {pair for pair, _ in new}
            for each in [each for each, pairs in self.failed.items() if pairs & shown]:
                if self.failed.pop(each, None) is not None:  # unless another one was found to imply it
                    self._add_failure(each)
        self._take(at)
        self.last[at] = len(self.trace)
        self.trace.append(at)
        self.taken[at] += 1

    def _failed(self, at: int) -> None:
        self._add_failure(self.options(at))
        if at in self.last:
            self.rows[(*self.trace[self.last[at] :], at)] = 1

    def _add_failure(self, options: Iterable[Option]) -> None:
        left = frozenset(each for each in options if not any_inside(each[1], self.seen.get(each[0], ())))
        if not any(each <= left for each in self.failed):
            for each in [each for each in self.failed if left <= each]:
                del self.failed[each]
            self.failed[left] = frozenset(pair for pair, _ in left)

    def _next(self) -> int | None:
        """The action to try; None if none is possible."""
        order = [int(at) for at in self.rng.permutation(len(self.names))]
        possible = self.simulator.possible() if hasattr(self.simulator, "possible") else None
        if possible is not None:
            unknown = next((name for name in possible if name not in self.number), None)
            if unknown is not None:
                raise ValueError(f"possible() of the simulator names {unknown!r}, which is not one of its actions")
            return self._most_new(order, {self.number[name] for name in possible})
        undecided, sure = [], []
        for at in order:
            options = self.options(at)
            if not options:
                sure.append(at)
            elif not self.impossible_for_sure(options):
                undecided.append((len(options), at))
        if undecided:
            return min(undecided)[1]
        return max(sure[:MOVES], key=lambda at: (self._promise(at), -self.taken[at])) if sure else None

    def _most_new(self, order: Sequence[int], possible: Collection[int]) -> int | None:
        for at in order:
            if at not in possible and (options := self.options(at)) and not self.impossible_for_sure(options):
                self._failed(at)
        new = {at: len(self.options(at)) for at in order if at in possible}
        best = sorted(new, key=new.__getitem__, reverse=True)[:MOVES]
        return max(best, key=lambda at: (new[at], self._promise(at), -self.taken[at]), default=None)

    def _promise(self, at: int) -> int:
        """How many actions are undecided after a move."""
        before, self.recent = self.recent, dict(self.recent)
        self._take(at)
        count = 0
        for each in self.rng.permutation(len(self.names))[:TRIED]:
            options = self.options(int(each))
            count += bool(options) and not self.impossible_for_sure(options)
        self.recent = before
        return count
