"""A variable-order Markov model: the distribution of the next symbol after the longest contexts that training has.

With c(h, s) the number of times that s follows the context h in training, N(h) their sum over s, and T(h) the number of
different s, the distribution after a context h is that after its suffix h', which is one symbol shorter, mixed with the
frequencies after h:

    p(s|h) = (c(h, s) + T(h) p(s|h')) / (N(h) + T(h))

This is the escape of PPM's method C (Moffat 1990), interpolated (Witten and Bell 1991). The empty context has the
unigram. A context is extended to the left, also by the beginning of the sequence, up to a depth, until it does not
occur in training or only one symbol follows it (the shortest deterministic context: Cleary, Teahan and Witten 1995). A
context with N(h) = N(h') occurs where its suffix does and adds nothing: p(s|h) = p(s|h').
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

DEEPEST = 16
"""Most symbols of a context."""
TABLE = 2**24
"""Up to this, numbers are looked up in a table: sorting them takes ten times as long."""


class Places(NamedTuple):
    """Tokens that are predicted from those before them in their sequences; sequences lie one after the other."""

    tokens: np.ndarray
    """(sum of lengths,) all tokens of all sequences."""
    places: np.ndarray
    """(m,) where the predicted tokens are in `tokens`."""
    columns: np.ndarray
    """(m,) their places in their sequences, at least 1."""
    weights: np.ndarray
    """(m,) how often each counts."""

    @property
    def targets(self) -> np.ndarray:
        """(m,) int64: the predicted tokens."""
        return self.tokens[self.places].astype(np.int64)

    def before(self, which: np.ndarray, distance: int, beginning: int) -> np.ndarray:
        """Tokens at a distance before those `which` (indices below m); `beginning` for the place before the first."""
        inside = self.columns[which] >= distance
        return np.where(inside, self.tokens[self.places[which] - np.where(inside, distance, 0)], beginning)


class Predicted(NamedTuple):
    """Predictions of m tokens."""

    probabilities: np.ndarray
    """(m,) float64 of the true tokens."""
    chosen: np.ndarray
    """(m,) int64: the most likely tokens, of equally likely ones the first in the vocabulary."""


def variable_order(training: Places, asked: Places, unigram: np.ndarray, depth: int = DEEPEST) -> list[Predicted]:
    """Predictions of the tokens `asked` by contexts of at most 0, 1, ..., `depth` symbols; `unigram` (V,) sums to 1."""
    vocabulary, beginning = len(unigram), len(unigram)
    followers, targets = training.targets, asked.targets
    common = int(unigram.argmax())
    chances, chosen = unigram[targets], np.full(len(targets), common)
    results = [Predicted(chances, chosen)]
    # Of the contexts one symbol shorter, which have numbers: their pairs of context and follower, and more of each.
    pairs, of_pairs = np.arange(vocabulary), unigram
    totals, best, of_best = np.array([np.inf]), np.array([common]), unigram[[common]]
    left, seen = np.arange(len(targets)), np.arange(len(followers))  # what has a context of this length
    number, seen_number = np.zeros(len(left), np.int64), np.zeros(len(seen), np.int64)
    for length in range(1, depth + 1):
        left, number, keys = _extended(asked, left, number, length, beginning)
        seen, seen_number, seen_keys = _extended(training, seen, seen_number, length, beginning)
        contexts, number = distinct(keys)
        if not len(contexts) or not len(seen):
            break
        seen_number, known = _found(contexts, seen_keys)
        seen, seen_number = seen[known], seen_number[known]
        shorter = contexts // (vocabulary + 1)
        longer, inverse = distinct(seen_number * vocabulary + followers[seen])
        counts = np.bincount(inverse, weights=training.weights[seen], minlength=len(longer))
        first = longer // vocabulary
        types = np.bincount(first, minlength=len(contexts))
        sums = np.bincount(first, weights=counts, minlength=len(contexts))
        new = (sums > 0) & (sums < totals[shorter])
        backing = np.where(new, types / np.maximum(sums + types, 1), 1.0)
        place, _ = _found(pairs, shorter[first] * vocabulary + longer % vocabulary)
        of_longer = np.where(new[first], counts / (sums + types)[first], 0.0) + backing[first] * of_pairs[place]

        top, of_top = best[shorter], backing * of_best[shorter]
        order = np.lexsort((longer, -of_longer, first))
        heads = order[np.diff(first[order], prepend=-1) > 0]
        own, of_own, at = longer[heads] % vocabulary, of_longer[heads], first[heads]
        wins = (of_own > of_top[at]) | ((of_own == of_top[at]) & (own < top[at]))
        top[at[wins]], of_top[at[wins]] = own[wins], of_own[wins]

        occurs = sums[number] > 0
        left, number = left[occurs], number[occurs]
        place, there = _found(longer, number * vocabulary + targets[left])
        chances, chosen = chances.copy(), chosen.copy()
        chances[left] = np.where(there, of_longer[place], backing[number] * chances[left])
        chosen[left] = top[number]
        results.append(Predicted(chances, chosen))
        pairs, of_pairs, totals, best, of_best = longer, of_longer, sums, top, of_top
        left, number = left[types[number] > 1], number[types[number] > 1]
        seen, seen_number = seen[types[seen_number] > 1], seen_number[types[seen_number] > 1]
    return results + [results[-1]] * (depth + 1 - len(results))


def _extended(
    of: Places, which: np.ndarray, number: np.ndarray, length: int, beginning: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Those whose contexts can have this length, the numbers of their contexts, and keys of the longer ones."""
    enough = of.columns[which] + 1 >= length
    which, number = which[enough], number[enough]
    return which, number, number * (beginning + 1) + of.before(which, length, beginning)


def _found(ordered: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places of keys in an ordered array, and whether they are there."""
    place = np.minimum(np.searchsorted(ordered, keys), max(0, len(ordered) - 1))
    return place, ordered[place] == keys if len(ordered) else np.zeros(len(keys), bool)


def distinct(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct ones of keys (m,), which are at least 0, in order, and (m,) the place of each key among them."""
    most = int(keys.max(initial=0))
    if most >= TABLE:
        return np.unique(keys, return_inverse=True)
    there = np.zeros(most + 1, bool)
    there[keys] = True
    return np.flatnonzero(there), (np.cumsum(there, dtype=np.int64) - 1)[keys]
