"""Which actions require an atom with given effects: two-part description length, one action at a time.

Every action that never occurred while the atom was known to be false *can* require it (`Windows.required`); the largest
such set rejects too much, since rare actions have few occasions. A precondition is worth its description if it shortens
the description of the valid actions. Code these position by position, each action c by whether it occurs where the
preconditions chosen so far allow it. With n positions that allow c and k occurrences of c this takes n h(k / n) bits, h
the binary entropy. A further precondition lowers n and never k, at a price of log2 F bits to name one of F atoms and
(1/2) log2 V bits for a parameter fitted to V positions (Rissanen, 1978). In noisy traces it excludes some j of the k,
which are coded among the e excluded positions by e h(j / e) bits. So what counts is what a precondition excludes in
addition to the others, at the rate at which c occurs where it may: walks are correlated, and an action that is rare
because something else is missing is no evidence.

An atom whose effect alternates is deleted only while true, so the actions that delete it may require it at no price.
Alternation must be worth its description, too: `EVIDENCE` times the bits that describe the effect.

The remaining negative traces are covered by the fewest further preconditions.

For schemas, whether a ground action may happen depends only on its literals, so all ground actions of a schema are
evidence about the same preconditions. The occasions of a schema are the positions of the traces, each once with every
one of its ground actions; equal ones, by the literals known to be false, are stored once with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from statewise.strips.exact.features import Feature
from statewise.strips.exact.predicates import Predicate, ground_entries, grounded
from statewise.strips.model.heads import ActionSet, Heads, smallest_cover
from statewise.strips.model.model import bits
from statewise.strips.model.schemas import arguments
from statewise.strips.model.traces import Traces

EVIDENCE = 4.0
"""Bits that alternation must save, in units of the description of the effect."""


@dataclass(frozen=True)
class Occasions:
    """Which atoms are known to be false at each position of the traces; equal positions are stored once."""

    false: np.ndarray
    """[F, ceil(U / 8)] uint8: packed bits over U distinct sets of atoms known to be false."""
    times: np.ndarray
    """[U] the number of valid actions that follow each set."""
    counts: np.ndarray
    """[A] the number of valid occurrences of each action."""
    negatives: list[np.ndarray]
    """For each action the distinct places in U where it ends a negative trace."""
    occurs: list[tuple[np.ndarray, np.ndarray]]
    """For each action the places in U where it occurs validly, and how often."""

    @property
    def valid(self) -> int:
        """The number of valid actions."""
        return int(self.counts.sum())

    def of(self, features: Sequence[int] | np.ndarray) -> np.ndarray:
        """[f, U] bool: where each of these atoms is known to be false."""
        return np.unpackbits(self.false[features], axis=1, count=len(self.times)).astype(bool)

    def excluded(self) -> np.ndarray:
        """[F] the number of valid actions before which each atom is known to be false."""
        blocks = [
            self.of(np.arange(first, min(first + 64, len(self.false)))) @ self.times
            for first in range(0, len(self.false), 64)
        ]
        return np.concatenate([np.zeros(0, dtype=np.int64), *blocks])

    @classmethod
    def at(cls, traces: Traces, features: Sequence[Feature], has_time: Callable[[], bool] = lambda: True) -> Occasions:
        """Walks through all traces at once; once `has_time()` is false, only through their beginnings."""
        actions = len(traces.actions)
        delete, add = (as_array([each[which] for each in features], actions).T for which in (0, 1))
        act, end, known = known_false(traces, delete, add, has_time)
        first, place = distinct(known)
        return cls(
            transposed(known[first])[: len(features)],
            np.bincount(place[~end], minlength=len(first)),
            np.bincount(act[~end], minlength=actions),
            [np.unique(place[end & (act == c)]) for c in range(actions)],
            [np.unique(place[~end & (act == c)], return_counts=True) for c in range(actions)],
        )


def alternation_evidence(features: Sequence[Feature], occasions: Occasions, swapped: Occasions) -> np.ndarray:
    """[F] the bits that alternation saves, in units of the description of the effect: no action deletes the atom while
    it is false, and none adds it while it is true. `swapped` are the occasions of the complements, which the additions
    delete."""
    from scipy.special import gammaln

    actions, valid = len(occasions.counts), occasions.valid
    saved = np.zeros(len(features))
    for which, of in ((0, occasions), (1, swapped)):
        chosen = as_array([each[which] for each in features], actions)
        gain = bits_to_code(of.counts[None], valid) - bits_to_code(of.counts[None], valid - of.excluded()[:, None])
        saved += np.where(chosen, gain, 0.0).sum(1)
    size = np.array([each.delete.bit_count() + each.add.bit_count() for each in features], dtype=float)
    places = 2 * actions
    description = (gammaln(places + 1) - gammaln(size + 1) - gammaln(places - size + 1)) / np.log(2)
    return saved / description


def preconditions(
    able: Sequence[ActionSet],
    sure: Sequence[ActionSet],
    occasions: Occasions,
    *,
    support: int = 1,
    has_time: Callable[[], bool] = lambda: True,
) -> list[ActionSet]:
    """For each atom the actions that require it, among those that can (`able`); `sure` ones are chosen at no price. A
    remaining negative trace is explained if at least `support` of them share an atom. Once `has_time()` is false, the
    remaining actions get only the sure ones."""
    chosen = list(sure)
    price = np.log2(max(2, len(able))) + np.log2(max(2, occasions.valid)) / 2
    for c in range(len(occasions.counts)):
        sure_of_c = [place for place, each in enumerate(sure) if each >> c & 1]
        free = [place for place, each in enumerate(able) if each >> c & 1 and not sure[place] >> c & 1]
        if free and has_time():
            for place in _of_action(c, sure_of_c, np.array(free), occasions, price, support):
                chosen[place] |= 1 << c
    return chosen


def _of_action(
    c: int, sure: Sequence[int], free: np.ndarray, occasions: Occasions, price: float, support: int
) -> list[int]:
    """The atoms of `free` that action `c` requires in addition to those `sure`."""
    left = occasions.times.astype(np.float64)
    ends = occasions.negatives[c]
    places, times = occasions.occurs[c]
    own = np.zeros_like(left)
    own[places] = times
    if sure:
        rejected: np.ndarray = np.logical_or.reduce(occasions.of(sure))
        left[rejected] = own[rejected] = 0
        ends = ends[~rejected[ends]]
    false = occasions.of(free)
    chosen: list[int] = []
    weights = false.astype(np.float32)
    while True:
        excluded, among = weights @ left.astype(np.float32), weights @ own.astype(np.float32)
        gain = (
            bits_to_code(own.sum(), left.sum())
            - bits_to_code(own.sum() - among, left.sum() - excluded)
            - bits_to_code(among, excluded)
        )
        best = int(np.argmax(gain))
        if gain[best] < price:
            break
        chosen.append(int(free[best]))
        left[false[best]] = own[false[best]] = 0
        ends = ends[~false[best, ends]]
    catches = false[:, ends]
    catches &= catches.sum(1, keepdims=True) >= support
    catches = catches[:, catches.any(0)]
    if catches.size:
        chosen += [int(free[place]) for place in smallest_cover(catches, np.maximum(gain, 0), seconds=2.0)[0]]
    return chosen


def bits_to_code(count: np.ndarray | float, positions: np.ndarray | float) -> np.ndarray:
    """n h(k / n): the bits that say at which of n positions the k occurrences are."""
    n = np.maximum(np.asarray(positions, dtype=float), np.asarray(count, dtype=float))
    share = np.clip(np.asarray(count) / np.maximum(n, 1), 1e-15, 1 - 1e-15)
    return np.asarray(n * -(share * np.log2(share) + (1 - share) * np.log2(1 - share)))


def as_array(sets: Sequence[ActionSet], actions: int) -> np.ndarray:
    """[S, A] bool: which of the `actions` are in each set."""
    out = np.zeros((len(sets), actions), dtype=bool)
    for place, each in enumerate(sets):
        out[place, list(bits(each))] = True
    return out


def as_heads(features: Sequence[Feature], required: Sequence[ActionSet], actions: int) -> Heads:
    """The atoms with these effects and preconditions."""
    delete, add = (as_array([each[which] for each in features], actions) for which in (0, 1))
    return Heads(as_array(required, actions), add, delete)


def known_false(
    traces: Traces, delete: np.ndarray, add: np.ndarray, has_time: Callable[[], bool] = lambda: True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Walks through all traces at once; once `has_time()` is false, only through their beginnings.

    Returns for M positions the action [M], whether it is the invalid end of a negative trace [M], and which atoms are
    known to be false before it [M, ceil(F / 8)], as packed bits. `delete` and `add` [A, F] are the effects."""
    keep, enter = np.packbits(~(delete | add), axis=1), np.packbits(delete, axis=1)
    numbers, lengths, labels = traces.padded()
    state = np.zeros((len(numbers), keep.shape[1]), dtype=np.uint8)
    states, acts, ends = [], [], []
    for at in range(numbers.shape[1]):
        going = np.flatnonzero(lengths > at)
        act, before = numbers[going, at], state[going]
        states.append(before)
        acts.append(act)
        ends.append((labels[going] == 1) & (lengths[going] == at + 1))
        state[going] = before & keep[act] | enter[act]
        if not has_time():
            break
    return np.concatenate(acts), np.concatenate(ends), np.concatenate(states)


def transposed(packed: np.ndarray) -> np.ndarray:
    """[8 B, ceil(U / 8)] the transposed matrix, from its packed bits [U, B]."""
    blocks = [np.zeros((0, -(-len(packed) // 8)), dtype=np.uint8)]
    for byte in range(packed.shape[1]):
        blocks.append(np.packbits(np.unpackbits(packed[:, byte : byte + 1], axis=1).T, axis=1))
    return np.concatenate(blocks)


def distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First places of the distinct rows [M, B] of bytes, and for each row the number of the distinct row that it
    equals."""
    wide = np.ascontiguousarray(rows if rows.shape[1] else np.zeros((len(rows), 1), dtype=np.uint8))
    as_one = wide.view([("", wide.dtype)] * wide.shape[1]) if wide.shape[1] == 1 else wide.view(f"V{wide.shape[1]}")
    _, first, place = np.unique(as_one.ravel(), return_index=True, return_inverse=True)
    return first, place


BLOCK = 2048
"""The number of states that are unpacked at once."""
NO_PLACES = np.zeros(0, dtype=np.int64)

Literals = list[tuple[int, int]]
"""The literals that a schema may require, each as the number of a predicate and one of its slots."""


def schema_occasions(
    predicates: Sequence[Predicate], traces: Traces, has_time: Callable[[], bool] = lambda: True
) -> Iterator[tuple[Literals, Occasions]]:
    """For each schema that can require some predicate, its literals and their occasions: action 0 of these stands for
    any ground action of the schema, action 1 for all others. Once `has_time()` is false, only the beginnings of the
    traces are read."""
    actions = traces.actions
    heads, _ = grounded(predicates, actions)
    at_action: dict[int, dict[tuple[int, int], int]] = {}
    for each in ground_entries(predicates, actions):
        if each.role == 0:
            at_action.setdefault(each.action, {})[each.owner, each.slot] = each.head
    act, end, known = known_false(traces, heads.delete.T, heads.add.T, has_time)
    first, place = distinct(known)
    valid = np.bincount(place[~end], minlength=len(first))
    by_schema: dict[str, list[int]] = {}
    for number, action in enumerate(actions):
        if number in at_action:
            by_schema.setdefault(arguments(action)[0], []).append(number)
    for mine in by_schema.values():
        literals = sorted(at_action[mine[0]])
        head = np.array([[at_action[number][literal] for literal in literals] for number in mine])  # [G, L]
        rows, where = distinct_rows(known[first], head)
        numbered = np.full(len(actions), -1)
        numbered[mine] = np.arange(len(mine))
        among = numbered[act]
        happens, fails = ((among >= 0) & which for which in (~end, end))
        occurs = where[place[happens], among[happens]]
        count = len(occurs)
        yield (
            literals,
            Occasions(
                transposed(rows)[: len(literals)],
                np.bincount(where.ravel(), np.repeat(valid, len(mine)), minlength=len(rows)).astype(np.int64),
                np.array([count, int((~end).sum()) - count]),
                [np.unique(where[place[fails], among[fails]]), NO_PLACES],
                [np.unique(occurs, return_counts=True), (NO_PLACES, NO_PLACES)],
            ),
        )


def distinct_rows(known: np.ndarray, head: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which of the heads `head` [G, L] of G actions are known to be false in the states `known` [S, ceil(H / 8)].
    Returns the distinct rows as packed bits [U, ceil(L / 8)], and the row of each state and action [S, G]."""
    rows = np.concatenate(
        [
            np.packbits(np.unpackbits(known[begin : begin + BLOCK], axis=1)[:, head], axis=2)
            for begin in range(0, len(known), BLOCK)
        ]
    )
    flat = rows.reshape(-1, rows.shape[2])
    first, where = distinct(flat)
    return flat[first], where.reshape(rows.shape[:2])
