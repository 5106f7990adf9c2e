"""Yardsticks of sequences against slow twins that follow their definitions."""

import math
from collections import Counter, defaultdict
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data_types import Examples, Ragged
from statewise.tasks import baselines as room
from statewise.tasks.baselines import accuracies, baselines

SYMBOLS = 4
END = SYMBOLS


def asked(rows):
    """(row, place) of everything that is predicted."""
    return [(row, place) for row, (tokens, prompt) in enumerate(rows) for place in range(max(1, prompt), len(tokens))]


def first_best(weights):
    """The token of most weight, of equals the first."""
    return min(weights, key=lambda token: (-weights[token], token))


def slow_unigram(training):
    counts = Counter(training[row][0][place] for row, place in asked(training))
    total = sum(counts.values()) + SYMBOLS + 1
    return {token: Fraction(counts[token] + 1, total) for token in range(SYMBOLS + 1)}


def slow_bigram(training):
    after = defaultdict(Counter)
    for row, place in asked(training):
        after[training[row][0][place - 1]][training[row][0][place]] += 1
    unigram = slow_unigram(training)

    def given(token):
        counts = after[token]
        types, total = len(counts), sum(counts.values())
        if not total:
            return unigram
        return {other: (counts[other] + types * unigram[other]) / (total + types) for other in unigram}

    return given


def slow_longest_match(training, sequence, place, longest):
    past = sequence[:place]
    for length in range(min(longest, place), 0, -1):
        stretch = past[-length:]
        own = [past[end] for end in range(length, place) if past[end - length : end] == stretch]
        if own:
            return own[-1]
        followers = Counter(
            training[row][0][at]
            for row, at in asked(training)
            if at >= length and training[row][0][at - length : at] == stretch
        )
        if followers:
            return first_best(followers)
    return first_best(slow_unigram(training))


sequences = st.lists(
    st.tuples(st.lists(st.integers(0, SYMBOLS - 1), min_size=1, max_size=9), st.integers(0, 3)), min_size=1, max_size=6
)


def examples_of(rows):
    return Examples.of([np.array(tokens) for tokens, _ in rows], [prompt for _, prompt in rows])


def ragged_of(rows):
    return Ragged.unpadded(examples_of(rows), SYMBOLS + 1)


@given(sequences, sequences, st.sampled_from([2, 32]), st.sampled_from([1, 2**20]))
@settings(max_examples=150, deadline=None)
def test_baselines_are_as_defined(training, held_out, longest, block):
    training, held_out = (
        [([*tokens, END], min(prompt, len(tokens))) for tokens, prompt in rows] for rows in (training, held_out)
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(room, "LONGEST", longest)
        patched.setattr(room, "BLOCK", block)
        found = baselines(ragged_of(training), examples_of(held_out), SYMBOLS + 1, END, "<end>")
    unigram, bigram = slow_unigram(training), slow_bigram(training)
    assert sum(unigram.values()) == 1
    truth, chosen, nats = [], defaultdict(list), Counter()
    for row, place in asked(held_out):
        tokens = held_out[row][0]
        last, token = tokens[place - 1], tokens[place]
        assert sum(bigram(last).values()) == 1
        truth.append(token)
        chosen["unigram"].append(first_best(unigram))
        chosen["bigram"].append(first_best(bigram(last)))
        chosen["longest match"].append(slow_longest_match(training, tokens, place, longest))
        chosen["repeat last"].append(last)
        chosen["always <end>"].append(END)
        nats["unigram"] -= math.log(unigram[token])
        nats["bigram"] -= math.log(bigram(last)[token])
    assert set(found) == set(chosen)
    for name, given_metrics in found.items():
        right = [one == other for one, other in zip(chosen[name], truth)]
        symbols = [one for one, other in zip(right, truth) if other != END]
        expected = {
            "token_accuracy": np.mean(right),
            "end_accuracy": np.mean([one for one, other in zip(right, truth) if other == END]),
        }
        if symbols:
            expected["symbol_accuracy"] = np.mean(symbols)
        if name in nats:
            expected["loss"] = nats[name] / len(truth)
        assert given_metrics == pytest.approx(expected), name


def test_an_accuracy_that_is_all_end_shows():
    targets = np.array([END] * 8 + [1, 2])
    found = accuracies(targets, np.full(10, END), END)
    assert found == {"token_accuracy": 0.8, "symbol_accuracy": 0.0, "end_accuracy": 1.0}


def test_a_copied_sequence_is_matched_within_itself():
    word = [0, 1, 2, 3, 1, 0]
    held_out = examples_of([([*word, *word, END], 0)])
    found = baselines(ragged_of([([3, END], 0)]), held_out, SYMBOLS + 1, END, "<end>")["longest match"]
    slow = [slow_longest_match([([3, END], 0)], [*word, *word, END], place, 32) for place in range(1, 13)]
    assert slow[7:11] == word[2:6]
    assert found["token_accuracy"] == np.mean([one == other for one, other in zip(slow, [*word, *word, END][1:])])
