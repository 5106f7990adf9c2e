"""The atoms of an action model one by one. A head is one atom with the actions that require, add and delete it: a
binary column of theta. `Head` stores these sets of actions as bits; `Heads` stores those of many atoms as arrays.

A model accepts a trace iff all of its heads do, so each head can be judged alone: it is *sound* if it rejects no valid
action, and it *catches* the negative traces whose last action it rejects.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from statewise.strips.model.model import Action, ActionModel, bits
from statewise.strips.model.traces import Traces

ActionSet = int
"""A set of actions, as bits."""


@dataclass(frozen=True)
class Head:
    """One atom with the actions that require, add and delete it."""

    name: str
    pre: ActionSet
    add: ActionSet
    delete: ActionSet

    @property
    def touching(self) -> ActionSet:
        """The actions that add or delete the atom: the head's keys."""
        return self.add | self.delete

    @property
    def idle(self) -> bool:
        """Whether the head can reject nothing, because no action deletes its atom or none requires it."""
        return not (self.pre and self.delete)

    def covers(self, other: Head) -> bool:
        """Whether its columns imply that it rejects everything that `other` rejects: sufficient, not necessary."""
        return not (other.pre & ~self.pre or other.delete & ~self.delete or self.add & ~other.add)


def heads(model: ActionModel) -> list[Head]:
    """The model's atoms, each with its actions."""
    columns = [[0, 0, 0] for _ in model.atoms]
    for number, action in enumerate(model.actions):
        for which, atoms in enumerate((action.pre, action.add & ~action.delete, action.delete)):
            for atom in bits(atoms):
                columns[atom][which] |= 1 << number
    return [Head(name, *column) for name, column in zip(model.atoms, columns)]


def uncovered(wanted: Iterable[Head], given: Sequence[Head]) -> list[Head]:
    """The heads of `wanted` that are neither idle nor covered by one of `given`: only these need a search."""
    same = {(head.pre, head.add, head.delete) for head in given}
    return [
        head
        for head in wanted
        if not head.idle
        and (head.pre, head.add, head.delete) not in same
        and not any(other.covers(head) for other in given)
    ]


@dataclass(frozen=True)
class Heads:
    """H heads over A actions."""

    pre: np.ndarray
    """[H, A] bool: the action requires the atom."""
    add: np.ndarray
    """[H, A] bool: the action adds the atom."""
    delete: np.ndarray
    """[H, A] bool: the action deletes the atom."""

    def __len__(self) -> int:
        return len(self.pre)

    @classmethod
    def of_theta(cls, theta: np.ndarray) -> Heads:
        """From theta [..., L, A, 3] by equation 19 and Definition 5; leading axes are joined."""
        on = np.asarray(theta).reshape(-1, *theta.shape[-2:]) >= 0.5
        return cls(on[..., 0], on[..., 1] & ~on[..., 2], on[..., 1] & on[..., 2])

    @classmethod
    def of_model(cls, model: ActionModel) -> Heads:
        """The heads of an action model."""
        places = np.arange(len(model.atoms), dtype=object)

        def columns(which: str) -> np.ndarray:
            masks = np.array([getattr(action, which) for action in model.actions], dtype=object)
            return ((masks[None, :] >> places[:, None]) & 1).astype(bool).reshape(len(places), len(model.actions))

        return cls(columns("pre"), columns("add"), columns("delete"))

    def theta(self) -> np.ndarray:
        """[H, A, 3] float32 (equations 8-10)."""
        return np.stack((self.pre, self.add | self.delete, self.delete), axis=-1).astype(np.float32)

    def model(self, actions: Sequence[str], names: Sequence[str] | None = None) -> ActionModel:
        """The action model (Definition 5), its atoms named p0, p1, ... unless names are given."""

        def as_bits(column: np.ndarray) -> int:
            return sum(1 << int(place) for place in np.flatnonzero(column))

        made = (
            Action(name, *(as_bits(each[:, at]) for each in (self.pre, self.add, self.delete)))
            for at, name in enumerate(actions)
        )
        return ActionModel(tuple(names or (f"p{number}" for number in range(len(self)))), tuple(made))

    def only(self, places: np.ndarray | Sequence[int]) -> Heads:
        """The heads at `places`."""
        return Heads(self.pre[places], self.add[places], self.delete[places])

    def unique(self) -> np.ndarray:
        """Places of the distinct heads that can reject an action: some action requires and some action deletes the
        atom."""
        flat = np.concatenate(self._parts(), axis=1)
        _, first = np.unique(np.packbits(flat, axis=1), axis=0, return_index=True)
        can_reject: np.ndarray = np.logical_and(self.pre.any(1), self.delete.any(1))
        return np.sort(first[can_reject[first]])

    def size(self) -> np.ndarray:
        """[H] the number of preconditions, adds and deletes of each head."""
        return np.sum([part.sum(1) for part in self._parts()], axis=0)

    def _parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.pre, self.add, self.delete


class Verdicts(NamedTuple):
    """The verdicts of heads on traces."""

    alarms: np.ndarray
    """[H, N] bool: the head rejects an action that is valid."""
    catches: np.ndarray
    """[H, N] bool: the head rejects the invalid last action of a negative trace."""
    at_risk: np.ndarray
    """[H] the number of valid actions before which the head's atom is known to be false."""


class Judge:
    """Traces prepared for judging heads."""

    def __init__(self, traces: Traces) -> None:
        self.traces = traces
        numbers, lengths, labels = traces.padded()
        self.labels = labels
        self.valid = int(lengths.sum() - labels.sum())
        """The number of valid actions."""
        self._order = np.argsort(-lengths, kind="stable")  # longest first, so that unfinished traces are a prefix
        self._numbers, self._lengths = numbers[self._order], lengths[self._order]
        self._bad_end = labels[self._order] == 1
        self._going = [int((lengths > at).sum()) for at in range(numbers.shape[1])]

    def verdicts(self, heads: Heads) -> Verdicts:
        """Verdicts of each head, in the order of the traces. Rejected actions have their effects, too."""
        count, width = len(self._order), len(heads)
        pre, changed = heads.pre.T.copy(), (heads.add | heads.delete).T.copy()  # [A, H]
        delete = heads.delete.T.copy()
        known_false = np.zeros((count, width), dtype=bool)
        alarms, catches = np.zeros((count, width), dtype=bool), np.zeros((count, width), dtype=bool)
        at_risk = np.zeros(width, dtype=np.int64)
        for at, going in enumerate(self._going):
            acts = self._numbers[:going, at]
            state = known_false[:going]
            rejected = state & pre[acts]
            ends = self._bad_end[:going] & (self._lengths[:going] == at + 1)
            catches[:going] |= rejected & ends[:, None]
            alarms[:going] |= rejected & ~ends[:, None]
            at_risk += (state & ~ends[:, None]).sum(0)
            state &= ~changed[acts]
            state |= delete[acts]
        back = np.empty_like(self._order)
        back[self._order] = np.arange(count)
        return Verdicts(alarms[back].T, catches[back].T, at_risk)

    def right(self, alarms: np.ndarray, catches: np.ndarray) -> np.ndarray:
        """[..., N] whether a model judges all prefixes correctly, from its heads' verdicts [..., L, N]."""
        return ~alarms.any(-2) & (catches.any(-2) == (self.labels == 1))
