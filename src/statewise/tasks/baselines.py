"""Baselines on sequences: simple predictors estimated from the training sequences.

They predict the tokens that are scored: all but the first of a sequence and those of prompts. Ties are broken by the
order of the vocabulary.

- `unigram`: frequencies of scored tokens in training, p(s) = (c(s) + 1) / (N + V): add-one smoothing.
- `bigram`: given the previous token, p(s|r) = (c(r, s) + T(r) unigram(s)) / (c(r) + T(r)), where T(r) is the number of
  different tokens that follow r in training: Witten-Bell smoothing (Witten and Bell 1991). If T(r) is 0, the unigram.
- `longest match`: the longest suffix of the preceding tokens, up to `LONGEST`, that occurs earlier in the same
  sequence, or before a scored token of a training sequence. If the longest match is in the same sequence, predicts what
  followed its last occurrence; otherwise what followed it most often in training. Without a match, the unigram.
- `repeat last`: the previous token.
- `always END`: the end token.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from statewise.data_types import Examples, Ragged

LONGEST = 32
"""Longest match that is searched: longer ones hardly ever predict something else."""
BLOCK = 2**20
"""Positions whose matches in their own sequence are searched at a time."""


def baselines(
    training: Ragged, examples: Examples, vocabulary: int, end: int, end_symbol: str
) -> dict[str, dict[str, float]]:
    """The `accuracies` of each baseline on `examples`, and the `loss` (nats per token) of those with probabilities.

    One sequence per row. Takes a few seconds for a million tokens.
    """
    rows, columns = np.nonzero(scored_tokens(examples))
    targets, before = examples.tokens[rows, columns], examples.tokens[rows, columns - 1]
    seen, _ = _scored_places(training)
    followers = training.tokens[seen].astype(np.int64)
    pairs = training.tokens[seen - 1].astype(np.int64) * vocabulary + followers

    counts = np.bincount(followers, minlength=vocabulary) + 1
    unigram = counts / counts.sum()
    common = int(counts.argmax())
    bigram, after = _bigram(pairs, counts, before, targets)
    matched = _longest_match(training, examples, vocabulary, common)
    predictions = {
        "unigram": np.full(len(targets), common),
        "bigram": after,
        "longest match": matched,
        "repeat last": before,
        f"always {end_symbol}": np.full(len(targets), end),
    }
    metrics = {name: accuracies(targets, chosen, end) for name, chosen in predictions.items()}
    for name, probabilities in {"unigram": unigram[targets], "bigram": bigram}.items():
        metrics[name] = {"loss": float(-np.log(probabilities).mean()), **metrics[name]}
    return metrics


def scored_tokens(examples: Examples) -> np.ndarray:
    """(n, T) bool: the scored tokens, where each row is one sequence."""
    column = np.arange(examples.tokens.shape[1])
    return (column >= np.maximum(examples.prompt_lengths, 1)[:, None]) & (column < examples.lengths[:, None])


def accuracies(targets: np.ndarray, chosen: np.ndarray, end: int) -> dict[str, float]:
    """`token_accuracy` of predictions (m,), and its parts `symbol_accuracy` and `end_accuracy`, where the true token is
    a symbol or the end; a part without tokens is omitted."""
    right, ends = chosen == targets, targets == end
    parts = {"token_accuracy": right, "symbol_accuracy": right[~ends], "end_accuracy": right[ends]}
    return {name: float(part.mean()) for name, part in parts.items() if len(part)}


def _bigram(
    pairs: np.ndarray, counts: np.ndarray, before: np.ndarray, targets: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(m,) probabilities of the targets, and (m,) the most likely tokens.

    `pairs`: previous token * V + token, in training; `counts`: smoothed unigram counts."""
    vocabulary, total = len(counts), counts.sum()
    seen, times = np.unique(pairs, return_counts=True)
    first = seen // vocabulary
    types = np.bincount(first, minlength=vocabulary)
    norm = types + np.bincount(first, weights=times, minlength=vocabulary)
    pair = before * vocabulary + targets
    index = np.minimum(np.searchsorted(seen, pair), len(seen) - 1)
    known = np.where(seen[index] == pair, times[index], 0)
    back_off = counts[targets] / total
    conditional = np.where(norm[before] > 0, (known + types[before] * back_off) / np.maximum(norm[before], 1), back_off)
    # The most likely token after r has followed it, or is the most likely of all. In integers, so that ties are exact.
    best = np.full(vocabulary, counts.argmax())
    every = np.unique(np.concatenate([seen, first * vocabulary + best[0]]))
    weights = types[every // vocabulary] * counts[every % vocabulary]
    weights[np.searchsorted(every, seen)] += times * total
    first, token = _heaviest(every, weights, vocabulary)
    best[first] = token
    return conditional, best[before]


def _heaviest(pairs: np.ndarray, weights: np.ndarray, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """For sorted distinct pairs (first * V + second): the distinct firsts, and the second of most weight of each."""
    firsts = pairs // vocabulary
    order = np.lexsort((pairs, -weights, firsts))
    heads = order[np.diff(firsts[order], prepend=-1) > 0]
    return firsts[heads], pairs[heads] % vocabulary


def _longest_match(training: Ragged, examples: Examples, vocabulary: int, common: int) -> np.ndarray:
    """(m,) predictions of the longest matches for all scored tokens."""
    rows, columns = np.nonzero(scored_tokens(examples))
    lengths, chosen = _in_training(training, examples, vocabulary, common)
    own_lengths, own = np.empty_like(lengths), np.empty_like(chosen)
    size = max(1, BLOCK // examples.tokens.shape[1])
    for start in range(0, len(examples), size):
        part = slice(start, start + size)
        matched, follower = _in_sequence(examples.tokens[part])
        here = (rows >= start) & (rows < start + size)
        own_lengths[here] = matched[rows[here] - start, columns[here]]
        own[here] = follower[rows[here] - start, columns[here]]
    return np.where((own_lengths > 0) & (own_lengths >= lengths), own, chosen)


def _in_training(training: Ragged, examples: Examples, vocabulary: int, common: int) -> tuple[np.ndarray, np.ndarray]:
    """(m,) lengths of the longest matches in training, and (m,) what followed most often; 0 and `common` without one.

    Contexts are numbered and extended by one token at a time; those that do not occur in both sets are dropped.
    """
    unique, copies = _different(training)
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
        contexts, number = np.unique(key, return_inverse=True)
        if not len(contexts):
            break
        seen_number = np.minimum(np.searchsorted(contexts, seen_key), len(contexts) - 1)
        known = contexts[seen_number] == seen_key
        seen, seen_number = seen[known], seen_number[known]
        best = np.full(len(contexts), -1)
        pairs, index = np.unique(seen_number * vocabulary + followers[seen], return_inverse=True)
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
