"""The atoms of an action model one by one. A head is one atom with the actions that require, add and delete it: a
binary column of theta. `Head` stores these sets of actions as bits; `Heads` stores those of many atoms as arrays.

A model accepts a trace iff all of its heads do, so each head can be judged alone: it is *sound* if it rejects no valid
action, and it *catches* the negative traces whose last action it rejects. Learners offer more heads than a model needs:
`Candidates`, of which those are chosen that the traces support, and the fewest that explain the negative traces.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from statewise.strips.model.model import Action, ActionModel, Atoms, bits
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
    def parts(self) -> tuple[ActionSet, ActionSet, ActionSet]:
        """The actions that require, add and delete the atom."""
        return self.pre, self.add, self.delete

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
        for which, atoms in enumerate(action.parts):
            for atom in bits(atoms):
                columns[atom][which] |= 1 << number
    return [Head(name, *column) for name, column in zip(model.atoms, columns)]


def as_model(heads: Sequence[Head], actions: Sequence[str]) -> ActionModel:
    """The action model with these atoms."""

    def atoms(part: int, action: int) -> Atoms:
        return sum((head.parts[part] >> action & 1) << place for place, head in enumerate(heads))

    made = (Action(name, *(atoms(part, at) for part in range(3))) for at, name in enumerate(actions))
    return ActionModel(tuple(head.name for head in heads), tuple(made))


def uncovered(wanted: Iterable[Head], covering: Sequence[Head]) -> list[Head]:
    """The heads of `wanted` that are neither idle nor covered by one of `covering`: only these need a search."""
    same = {head.parts for head in covering}
    return [
        head
        for head in wanted
        if not head.idle and head.parts not in same and not any(other.covers(head) for other in covering)
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
        """The heads of theta [..., L, A, 3] by equation 19 and Definition 5; leading axes are joined."""
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

        made = (Action(name, *(as_bits(each[:, at]) for each in self.parts)) for at, name in enumerate(actions))
        return ActionModel(tuple(names or (f"p{number}" for number in range(len(self)))), tuple(made))

    def only(self, places: np.ndarray | Sequence[int]) -> Heads:
        """The heads at `places`."""
        return Heads(self.pre[places], self.add[places], self.delete[places])

    def unique(self) -> np.ndarray:
        """Places of the distinct heads that can reject an action: some action requires and some action deletes the
        atom."""
        flat = np.concatenate(self.parts, axis=1)
        _, first = np.unique(np.packbits(flat, axis=1), axis=0, return_index=True)
        can_reject: np.ndarray = np.logical_and(self.pre.any(1), self.delete.any(1))
        return np.sort(first[can_reject[first]])

    def size(self) -> np.ndarray:
        """[H] the number of preconditions, adds and deletes of each head."""
        return np.sum([part.sum(1) for part in self.parts], axis=0)

    @property
    def parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The arrays `pre`, `add` and `delete`."""
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


EVIDENCE = 4.0
"""Evidence that a head needs, in units of its description length."""


def accuracy(heads: Heads, judge: Judge) -> float:
    """The share of the traces that the heads together classify correctly."""
    verdicts = judge.verdicts(heads)
    return float(judge.right(verdicts.alarms, verdicts.catches).mean())


@dataclass(frozen=True)
class Candidates:
    """Heads to choose from, alone or in groups that are chosen together: the ground heads of a lifted predicate."""

    heads: Heads
    group: np.ndarray
    """[H] the number of the candidate that each head belongs to: from 0, sorted, without gaps."""
    size: np.ndarray
    """[G] the number of nonzero weights of each candidate."""
    places: np.ndarray
    """[G] the number of weights of each candidate."""

    @classmethod
    def alone(cls, heads: Heads) -> Candidates:
        """Each head is its own candidate."""
        return cls(heads, np.arange(len(heads)), heads.size(), np.full(len(heads), 3 * heads.pre.shape[1]))

    def __len__(self) -> int:
        return len(self.size)

    def only(self, kept: np.ndarray) -> Candidates:
        """The candidates `kept`, in ascending order."""
        new = np.full(len(self), -1)
        new[kept] = np.arange(len(kept))
        mine = new[self.group] >= 0
        return Candidates(
            self.heads.only(np.flatnonzero(mine)), new[self.group[mine]], self.size[kept], self.places[kept]
        )

    def verdicts(self, judge: Judge) -> tuple[np.ndarray, np.ndarray]:
        """(alarms, catches) [G, N]: whether any of a candidate's heads raises one."""
        verdicts = judge.verdicts(self.heads)
        return self._any(verdicts.alarms), self._any(verdicts.catches)

    def rejects(self, judge: Judge) -> np.ndarray:
        """[G] the share of all actions, over the valid prefixes, that each candidate would reject; for a group the sum
        over its heads, which rarely overlap."""
        at_risk = judge.verdicts(self.heads).at_risk / max(1, judge.valid)
        return np.bincount(self.group, at_risk * self.heads.pre.mean(1), minlength=len(self))

    def _any(self, of_heads: np.ndarray) -> np.ndarray:
        if not len(self):
            return np.zeros((0, of_heads.shape[1]), dtype=bool)
        return np.logical_or.reduceat(of_heads, np.searchsorted(self.group, np.arange(len(self))), axis=0)


def sound(candidates: Candidates, judge: Judge, noise: float = 0.0) -> np.ndarray:
    """Places of the candidates that reject no valid action and catch a negative.

    If a share `noise` of the traces is noisy, a real head raises alarms on some of them: it may do so on up to twice
    that share of the traces on which it raises an alarm or catches, or on one trace.
    """
    by_trace = candidates.verdicts(judge)
    alarms, catches = (each.sum(1) for each in by_trace)
    allowed = np.maximum(1, 2 * noise * (alarms + catches)) if noise > 0 else 0
    return np.flatnonzero((alarms <= allowed) & (catches > alarms))


def evidence(candidates: Candidates, judge: Judge) -> np.ndarray:
    """[G] the evidence that the valid actions give for each sound candidate, in units of its description length."""
    from scipy.special import gammaln

    size, places = candidates.size, candidates.places
    description = gammaln(places + 1) - gammaln(size + 1) - gammaln(places - size + 1)
    rejects = np.minimum(candidates.rejects(judge), 1 - 1e-9)
    return -judge.valid * np.log1p(-rejects) / np.maximum(description, 1e-9)


def smallest_cover(catches: np.ndarray, worth: np.ndarray, seconds: float = 20.0) -> tuple[np.ndarray, bool]:
    """Places of the fewest rows [H, N] that cover every column, of equally few those with the greatest sum of worth;
    and whether both are proven. They are not if time runs out: the cover is then the best that the solver or a greedy
    search found."""
    end = time.monotonic() + seconds
    worth = worth / max(1e-9, float(worth.max()))
    needs = np.unique(catches.T, axis=0).astype(float)
    # The count first, then the worth: weighed in one sum, differences of worth are lost in the solver's tolerances.
    fewest, fewest_proven = _solve(np.ones(len(worth)), needs, seconds / 2)
    covers = [_greedy_cover(catches, worth)] + ([] if fewest is None else [fewest])
    least = min(map(len, covers))
    best, best_proven = _solve(-worth, needs, max(0.0, end - time.monotonic()), least)
    covers += [] if best is None else [best]
    return min(covers, key=lambda cover: (len(cover), -worth[cover].sum())), fewest_proven and best_proven


def _solve(
    cost: np.ndarray, needs: np.ndarray, seconds: float, count: int | None = None
) -> tuple[np.ndarray | None, bool]:
    """Places of the cheapest cover, of `count` rows if given, and whether that is proven. If not, it may be any cover,
    or None."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    constraints = [LinearConstraint(needs, 1, np.inf)]
    if count is not None:
        constraints.append(LinearConstraint(np.ones((1, len(cost))), count, count))
    solution = milp(
        cost,
        constraints=constraints,
        integrality=np.ones(len(cost)),
        bounds=Bounds(0, 1),
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    return (None if solution.x is None else np.flatnonzero(solution.x > 0.5)), solution.status == 0


def _greedy_cover(catches: np.ndarray, worth: np.ndarray) -> np.ndarray:
    """Places of rows that cover every column. Each is the one that covers most of the columns left; `worth`, at most 1,
    decides between equals."""
    left, places = np.ones(catches.shape[1], dtype=bool), []
    while left.any():
        places.append(int(np.argmax(catches[:, left].sum(1) + 0.5 * worth)))
        left &= ~catches[places[-1]]
    return np.array(places)
