"""Baselines on sequences: simple predictors estimated from the training sequences.

They predict the tokens that are scored: all but the first of a sequence and those of prompts. Ties are broken by the
order of the vocabulary.

- `unigram`: frequencies of scored tokens in training, p(s) = (c(s) + 1) / (N + V): add-one smoothing.
- `bigram`: given the previous token, p(s|r) = (c(r, s) + T(r) unigram(s)) / (c(r) + T(r)), where T(r) is the number of
  different tokens that follow r in training: Witten-Bell smoothing (Witten and Bell 1991). If T(r) is 0, the unigram.
- `longest match`: the longest suffix of the preceding tokens, up to `LONGEST`, that occurs earlier in the same
  sequence, or before a scored token of a training sequence. If the longest match is in the same sequence, predicts what
  followed its last occurrence; otherwise what followed it most often in training. Without a match, the unigram. Its
  probability is the share of right predictions of matches of that length, (right + 1) / (all + 2), where a tenth of the
  different training sequences is predicted from the others; the rest is divided as by the bigram.
- `variable order`: contexts of any length (`statewise.tasks.variable_order`), up to the depth of the lowest loss where
  that tenth is predicted.
- `repeat last`: the previous token.
- `always END`: the end token.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from statewise.data_types import Examples, Ragged
from statewise.tasks.variable_order import Places, distinct, variable_order

LONGEST = 32
"""Longest match that is searched: longer ones hardly ever predict something else."""
BLOCK = 2**20
"""Positions whose matches in their own sequence are searched at a time."""
TRIED = 10
"""One of so many different training sequences is predicted from the others, to find what cannot be counted."""
MOST_TRIED = 2**15
"""Most tokens that are predicted so."""
BINS = np.array([0, 1, 2, 3, 4, 8, 16, LONGEST])
"""Lengths of matches up to each of these have one share of right predictions."""


VERSION = 1
"""Number of the definitions above: caches of others are not read."""


class Prediction(NamedTuple):
    """A baseline's predictions of m tokens."""

    chosen: np.ndarray
    """(m,): the most likely tokens."""
    probabilities: np.ndarray | None = None
    """(m,) float64 of the true tokens; None for a baseline without probabilities."""
    depth: int | None = None
    """Most symbols of a context, of `variable order`."""


def predictions(
    training: Ragged, examples: Examples, vocabulary: int, end: int, end_symbol: str
) -> dict[str, Prediction]:
    """Predictions of each baseline for the `scored_tokens` of `examples`, row by row. One sequence per row. Takes some
    seconds for a million training tokens."""
    rows, columns = np.nonzero(scored_tokens(examples))
    before, targets = examples.tokens[rows, columns - 1], examples.tokens[rows, columns]
    unique, copies = _different(training)
    places = _places(unique, copies)
    counts = np.bincount(places.targets, weights=places.weights, minlength=vocabulary).astype(np.int64) + 1
    unigram, common = counts / counts.sum(), int(counts.argmax())
    pairs = _Bigram(places, counts)
    matched, lengths = _longest_match(unique, copies, examples, vocabulary, common)
    trusted, depth = _tried(unique, copies, unigram)
    order = variable_order(places, _asked(examples, rows, columns), unigram, depth)[-1]
    bigram, rest = pairs.probabilities(before, targets), 1 - pairs.probabilities(before, matched)
    share = trusted[lengths]
    return {
        "unigram": Prediction(np.full(len(targets), common), unigram[targets]),
        "bigram": Prediction(pairs.best[before], bigram),
        "longest match": Prediction(matched, np.where(matched == targets, share, (1 - share) * bigram / rest)),
        "variable order": Prediction(order.chosen, order.probabilities, depth),
        "repeat last": Prediction(before),
        f"always {end_symbol}": Prediction(np.full(len(targets), end)),
    }


def remembered(
    remember: Callable[[str, Callable[[], np.ndarray]], np.ndarray],
    training: Ragged,
    examples: Examples,
    vocabulary: int,
    end: int,
    end_symbol: str,
) -> dict[str, Prediction]:
    """`predictions`, cached by `remember` under a checksum of the training sequences and the examples. A cached array
    that cannot be theirs, because it is damaged, is not used."""
    names: list[str] = []
    every = ["unigram", "bigram", "longest match", "variable order", "repeat last", f"always {end_symbol}"]
    tokens = int(scored_tokens(examples).sum())

    def make() -> np.ndarray:
        made = predictions(training, examples, vocabulary, end, end_symbol)
        names.extend(made)
        nothing = np.full(tokens, np.nan)
        return np.stack(
            [
                part
                for one in made.values()
                for part in (one.chosen.astype(np.float64), nothing if one.probabilities is None else one.probabilities)
            ]
        )

    content = hashlib.sha256()
    known = (training.tokens, training.lengths, training.prompt_lengths)
    for part in (*known, examples.tokens, examples.lengths, scored_tokens(examples)):
        content.update(f"{part.shape} {part.dtype}".encode() + np.ascontiguousarray(part).tobytes())
    found = remember(f"baselines {VERSION} {content.hexdigest()}", make)
    if not _sound(found, len(every), tokens, vocabulary):
        names.clear()
        found = make()
    assert names in ([], every)
    return {
        name: Prediction(chosen.astype(np.int64), None if np.isnan(chances).any() else chances)
        for name, chosen, chances in zip(every, found[::2], found[1::2], strict=True)
    }


def _sound(found: np.ndarray, baselines: int, tokens: int, vocabulary: int) -> bool:
    """Whether a cached array has a token and a probability, or NaN, of each baseline and scored token."""
    if found.shape != (2 * baselines, tokens) or found.dtype != np.float64:
        return False
    chosen, chances = found[::2], found[1::2]
    are_tokens = (chosen >= 0) & (chosen < vocabulary) & (chosen == np.floor(chosen))
    absent = np.isnan(chances).all(axis=1, keepdims=True)
    return bool(are_tokens.all() and (absent | ((chances > 0) & (chances <= 1 + 1e-9))).all())


def metrics(made: Mapping[str, Prediction], examples: Examples, end: int) -> dict[str, dict[str, float]]:
    """The `accuracies` of each baseline on `examples`, and the `loss` (nats per token) of those with probabilities."""
    targets = examples.tokens[scored_tokens(examples)]
    return {
        name: ({} if one.probabilities is None else {"loss": float(-np.log(one.probabilities).mean())})
        | accuracies(targets, one.chosen, end)
        for name, one in made.items()
    }


def nats(made: Mapping[str, Prediction], examples: Examples) -> dict[str, np.ndarray]:
    """(n, T) float64: the nats of each scored token, 0 elsewhere, of each baseline with probabilities."""
    scored = scored_tokens(examples)
    every = {}
    for name, one in made.items():
        if one.probabilities is not None:
            every[name] = np.zeros(scored.shape)
            every[name][scored] = -np.log(one.probabilities)
    return every


def scored_tokens(examples: Examples) -> np.ndarray:
    """(n, T) bool: the scored tokens, where each row is one sequence."""
    column = np.arange(examples.tokens.shape[1])
    scored = (column >= np.maximum(examples.prompt_lengths, 1)[:, None]) & (column < examples.lengths[:, None])
    return scored if examples.scored is None else scored & examples.scored


def accuracies(targets: np.ndarray, chosen: np.ndarray, end: int) -> dict[str, float]:
    """`token_accuracy` of predictions (m,), and its parts `symbol_accuracy` and `end_accuracy`, where the true token is
    a symbol or the end; a part without tokens is omitted."""
    right, ends = chosen == targets, targets == end
    parts = {"token_accuracy": right, "symbol_accuracy": right[~ends], "end_accuracy": right[ends]}
    return {name: float(part.mean()) for name, part in parts.items() if len(part)}


class _Bigram:
    """Counts of pairs of tokens in training, smoothed."""

    def __init__(self, places: Places, counts: np.ndarray) -> None:
        """`counts` (V,): smoothed unigram counts."""
        self.counts, vocabulary = counts, len(counts)
        pairs = places.tokens[places.places - 1].astype(np.int64) * vocabulary + places.targets
        self.seen, inverse = distinct(pairs)
        self.times = np.bincount(inverse, weights=places.weights).astype(np.int64)
        first = self.seen // vocabulary
        self.types = np.bincount(first, minlength=vocabulary)
        self.norm = self.types + np.bincount(first, weights=self.times, minlength=vocabulary)
        # The most likely token after r has followed it, or is the most likely of all. In integers, so that ties are
        # exact.
        self.best = np.full(vocabulary, counts.argmax())
        """(V,): the most likely token after each."""
        every = np.unique(np.concatenate([self.seen, first * vocabulary + self.best[0]]))
        weights = self.types[every // vocabulary] * counts[every % vocabulary]
        weights[np.searchsorted(every, self.seen)] += self.times * counts.sum()
        first, token = _heaviest(every, weights, vocabulary)
        self.best[first] = token

    def probabilities(self, before: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """(m,) float64: the probabilities of tokens (m,) after those `before` them."""
        back_off: np.ndarray = self.counts[tokens] / self.counts.sum()
        if not len(self.seen):
            return back_off
        pair = before * len(self.counts) + tokens
        index = np.minimum(np.searchsorted(self.seen, pair), len(self.seen) - 1)
        known = np.where(self.seen[index] == pair, self.times[index], 0)
        norm = self.norm[before]
        return np.where(norm > 0, (known + self.types[before] * back_off) / np.maximum(norm, 1), back_off)


def _heaviest(pairs: np.ndarray, weights: np.ndarray, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """For sorted distinct pairs (first * V + second): the distinct firsts, and the second of most weight of each."""
    firsts = pairs // vocabulary
    order = np.lexsort((pairs, -weights, firsts))
    heads = order[np.diff(firsts[order], prepend=-1) > 0]
    return firsts[heads], pairs[heads] % vocabulary


def _tried(unique: Ragged, copies: np.ndarray, unigram: np.ndarray) -> tuple[np.ndarray, int]:
    """What is found where some of the distinct training sequences are predicted from the others: the share
    of right predictions by the length of the longest match, and the best depth of contexts."""
    vocabulary, common = len(unigram), int(unigram.argmax())
    some = np.arange(len(unique)) % TRIED == TRIED - 1
    some &= np.cumsum(np.where(some, unique.lengths, 0)) <= MOST_TRIED
    right: np.ndarray = np.zeros(len(BINS))
    every, depth = right, 1
    if some.any():
        known, examples = unique.part(~some), unique[some]  # each once: a frequent case must not decide alone
        rows, columns = np.nonzero(scored_tokens(examples))
        matched, lengths = _longest_match(known, copies[~some], examples, vocabulary, common)
        bins = np.searchsorted(BINS, lengths)
        hits = matched == examples.tokens[rows, columns]
        right, every = (np.bincount(bins, weights=what, minlength=len(BINS)) for what in (hits, np.ones(len(hits))))
        orders = variable_order(_places(known, copies[~some]), _asked(examples, rows, columns), unigram)
        depth = 1 + int(np.argmin([-np.log(one.probabilities).sum() for one in orders[1:]]))
    shares: np.ndarray = (right + 1) / (every + 2)
    return shares[np.searchsorted(BINS, np.arange(BINS[-1] + 1))], depth


def _places(unique: Ragged, copies: np.ndarray) -> Places:
    """The scored tokens of distinct sequences, each as often as its sequence."""
    places, columns = _scored_places(unique)
    return Places(unique.tokens, places, columns, np.repeat(copies, unique.lengths)[places])


def _asked(examples: Examples, rows: np.ndarray, columns: np.ndarray) -> Places:
    """The tokens of `examples` in these rows and columns, each once."""
    places = rows * examples.tokens.shape[1] + columns
    return Places(examples.tokens.reshape(-1), places, columns, np.ones(len(rows), np.int64))


def _longest_match(
    unique: Ragged, copies: np.ndarray, examples: Examples, vocabulary: int, common: int
) -> tuple[np.ndarray, np.ndarray]:
    """(m,) predictions of the longest matches for all scored tokens, and (m,) lengths of the matches, 0 for none.
    `unique` are the distinct training sequences, `copies` their counts."""
    rows, columns = np.nonzero(scored_tokens(examples))
    lengths, chosen = _in_training(unique, copies, examples, vocabulary, common)
    own_lengths, own = np.empty_like(lengths), np.empty_like(chosen)
    size = max(1, BLOCK // examples.tokens.shape[1])
    for start in range(0, len(examples), size):
        part = slice(start, start + size)
        matched, follower = _in_sequence(examples.tokens[part])
        here = (rows >= start) & (rows < start + size)
        own_lengths[here] = matched[rows[here] - start, columns[here]]
        own[here] = follower[rows[here] - start, columns[here]]
    inside = (own_lengths > 0) & (own_lengths >= lengths)
    return np.where(inside, own, chosen), np.where(inside, own_lengths, lengths)


def _in_training(
    unique: Ragged, copies: np.ndarray, examples: Examples, vocabulary: int, common: int
) -> tuple[np.ndarray, np.ndarray]:
    """(m,) lengths of the longest matches in training, and (m,) what followed most often; 0 and `common` without one.

    Contexts are numbered and extended by one token at a time; those that do not occur in both sets are dropped.
    """
    places, seen_columns = _scored_places(unique)
    rows, columns = np.nonzero(scored_tokens(examples))
    followers, weights = unique.tokens[places].astype(np.int64), np.repeat(copies, unique.lengths)[places]
    lengths, chosen = np.zeros(len(rows), np.int64), np.full(len(rows), common)
    left, seen = np.arange(len(rows)), np.arange(len(places))  # positions that still match
    number, seen_number = np.zeros(len(rows), np.int64), np.zeros(len(places), np.int64)
    for length in range(1, LONGEST + 1):
        enough, seen_enough = columns[left] >= length, seen_columns[seen] >= length
        left, seen = left[enough], seen[seen_enough]
        key = number[enough] * vocabulary + examples.tokens[rows[left], columns[left] - length]
        seen_key = seen_number[seen_enough] * vocabulary + unique.tokens[places[seen] - length]
        contexts, number = distinct(key)
        if not len(contexts):
            break
        seen_number = np.minimum(np.searchsorted(contexts, seen_key), len(contexts) - 1)
        known = contexts[seen_number] == seen_key
        seen, seen_number = seen[known], seen_number[known]
        best = np.full(len(contexts), -1)
        pairs, index = distinct(seen_number * vocabulary + followers[seen])
        first, token = _heaviest(pairs, np.bincount(index, weights=weights[seen]), vocabulary)
        best[first] = token
        hit = best[number] >= 0
        left, number = left[hit], number[hit]
        lengths[left], chosen[left] = length, best[number]
    return lengths, chosen


def _different(sequences: Ragged) -> tuple[Ragged, np.ndarray]:
    """The distinct sequences and their counts: event logs repeat a few of them many times."""
    prompts = sequences.prompt_lengths.tolist()
    counts = Counter((prompts[row], sequences.row(row).tobytes()) for row in range(len(sequences)))
    kind = sequences.tokens.dtype
    rows = [np.frombuffer(content, kind) for _, content in counts]
    lengths, prompt_lengths = np.array([len(row) for row in rows]), np.array([prompt for prompt, _ in counts])
    return Ragged(np.concatenate(rows), lengths, prompt_lengths), np.array(list(counts.values()))


def _scored_places(sequences: Ragged) -> tuple[np.ndarray, np.ndarray]:
    """The scored tokens: (m,) their places in `sequences.tokens`, and (m,) in their rows."""
    columns = sequences.columns()
    places = np.flatnonzero(columns >= np.repeat(np.maximum(sequences.prompt_lengths, 1), sequences.lengths))
    return places, columns[places]


def _in_sequence(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(n, T) length of the longest earlier match before each position of (n, T) tokens, and what followed its last
    occurrence; 0 and -1 without one. Takes O(T^2) time per row."""
    n, width = tokens.shape
    lengths, followers = np.zeros((n, width), np.int64), np.full((n, width), -1)
    row = np.arange(n)
    matched = np.zeros((n, width), np.int16)  # column s: length of the common suffix of tokens to s and to `ends`
    for position in range(2, width):
        ends = position - 1  # candidates end before this column
        longer = np.zeros((n, ends), np.int16)
        longer[:, 1:] = matched[:, : ends - 1]
        longer = np.where(tokens[:, :ends] == tokens[:, ends, None], np.minimum(longer + 1, LONGEST), 0).astype(
            np.int16
        )
        matched[:, :ends] = longer
        last = ends - 1 - longer[:, ::-1].argmax(axis=1)
        lengths[:, position] = longer[row, last]
        followers[:, position] = np.where(lengths[:, position] > 0, tokens[row, last + 1], -1)
    return lengths, followers
