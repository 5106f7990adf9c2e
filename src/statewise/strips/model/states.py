"""Traces with what was observed of their states.

A state is observed in part: some atoms are known to be true, some to be false. Of a *complete* predicate each atom that
a state does not list as true is false there; of the others it is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from statewise.runtime.messages import counted
from statewise.strips.model.traces import Traces


class State(NamedTuple):
    """What was observed of a state: atoms, written `predicate object object`."""

    true: frozenset[str]
    false: frozenset[str] = frozenset()
    """The atoms that are explicitly false."""

    def value(self, atom: str, complete: bool) -> bool | None:
        """Whether an atom is true; None if this was not observed. `complete`: whether its predicate is complete."""
        return True if atom in self.true else False if complete or atom in self.false else None


States = tuple[State | None, ...]
"""The states of a trace of n actions: n + 1, each before the action of the same number; None if not observed."""


@dataclass(frozen=True)
class Observed:
    """Traces with the observed states of each."""

    traces: Traces
    states: tuple[States, ...]
    """As many as traces; the states of a trace of n actions are n + 1."""
    complete: frozenset[str] = frozenset()
    """The predicates whose atoms are false in a state that does not list them."""

    def __post_init__(self) -> None:
        """Raises `ValueError` unless each trace of n actions has n + 1 states."""
        if len(self.states) != len(self.traces):
            raise ValueError(f"{len(self.states)} lists of states for {len(self.traces)} traces")
        for place, (row, states) in enumerate(zip(self.traces.rows, self.states)):
            if len(states) != len(row) + 1:
                raise ValueError(
                    f"{self.traces.where(place)}: {len(row)} actions have {len(row) + 1} states between and around "
                    f"them, not {len(states)}"
                )

    @property
    def predicates(self) -> dict[str, int]:
        """The number of arguments of each observed predicate, sorted by name. Raises `ValueError` if a predicate occurs
        with different numbers of arguments."""
        arity: dict[str, tuple[int, str]] = {}
        atoms = {atom for states in self.states for state in states if state for part in state for atom in part}
        for atom in sorted(atoms):
            name, *objects = atom.split()
            number, example = arity.setdefault(name, (len(objects), atom))
            if number != len(objects):
                many = counted(number, "argument")
                raise ValueError(f"the predicate {name!r} has {many} in {example!r}, and {len(objects)} in {atom!r}")
        return {name: arity[name][0] for name in sorted(arity)}

    @property
    def count(self) -> int:
        """The number of observed states."""
        return sum(state is not None for states in self.states for state in states)

    def only(self, places: Sequence[int]) -> Observed:
        """The traces at `places`."""
        return Observed(self.traces.only(places), tuple(self.states[at] for at in places), self.complete)

    def valid_only(self) -> Observed:
        """Only the valid actions, like `Traces.valid_only`, with the states before and after them."""
        kept = [place for place in range(len(self.traces)) if self.traces.valid(place)]
        states = tuple(self.states[at][: len(self.traces.valid(at)) + 1] for at in kept)
        return Observed(self.traces.valid_only(), states, self.complete)

    def with_complete(self, predicates: frozenset[str]) -> Observed:
        """The same traces with other complete predicates."""
        return Observed(self.traces, self.states, predicates)
