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
from statewise.tasks import variable_order
from statewise.tasks.baselines import accuracies, scored_tokens

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


def slow_longest_match(training, sequence, place, longest, common):
    past = sequence[:place]
    for length in range(min(longest, place), 0, -1):
        stretch = past[-length:]
        own = [past[end] for end in range(length, place) if past[end - length : end] == stretch]
        if own:
            return own[-1], length
        followers = Counter(
            training[row][0][at]
            for row, at in asked(training)
            if at >= length and training[row][0][at - length : at] == stretch
        )
        if followers:
            return first_best(followers), length
    return common, 0


def slow_variable_order(training, depth, unigram):
    """The definition in the module's docstring; -1 is the beginning of a sequence."""
    after = defaultdict(Counter)
    for row, place in asked(training):
        past = [-1, *training[row][0][:place]]
        for length in range(len(past) + 1):
            after[tuple(past[len(past) - length :])][training[row][0][place]] += 1

    def given(past):
        past = [-1, *past]
        chances, before = unigram, None
        for length in range(1, min(depth, len(past)) + 1):
            counts = after[tuple(past[len(past) - length :])]
            total, types = sum(counts.values()), len(counts)
            if not total:
                break
            if before is None or total < before:
                chances = {s: Fraction(counts[s] + types * chances[s], total + types) for s in chances}
            before = total
            if types == 1:
                break
        return chances

    return given


def slow_tried(training, longest, every_so_many):
    """The share of right predictions by the length of a match, and nats by the depth of contexts, where some of the
    training sequences are predicted from the others."""
    unique = list(dict.fromkeys((prompt, tuple(tokens)) for tokens, prompt in training))
    copies = Counter((prompt, tuple(tokens)) for tokens, prompt in training)
    known = [
        (list(tokens), prompt)
        for place, (prompt, tokens) in enumerate(unique)
        if place % every_so_many != every_so_many - 1
    ]
    known = [one for one in known for _ in range(copies[one[1], tuple(one[0])])]
    right, every, lost = Counter(), Counter(), Counter()
    unigram = slow_unigram(training)
    for prompt, tokens in unique[every_so_many - 1 :: every_so_many]:
        for place in range(max(1, prompt), len(tokens)):
            chosen, length = slow_longest_match(known, list(tokens), place, longest, first_best(unigram))
            group = min(bound for bound in (0, 1, 2, 3, 4, 8, 16, 32) if bound >= length)
            every[group] += 1
            right[group] += chosen == tokens[place]
            for depth in range(1, 17):
                chance = slow_variable_order(known, depth, unigram)(list(tokens[:place]))[tokens[place]]
                lost[depth] -= math.log(chance)

    def share(length):
        group = min(bound for bound in (0, 1, 2, 3, 4, 8, 16, 32) if bound >= length)
        return Fraction(right[group] + 1, every[group] + 2)

    return share, lost


sequences = st.lists(
    st.tuples(st.lists(st.integers(0, SYMBOLS - 1), min_size=1, max_size=9), st.integers(0, 3)), min_size=1, max_size=6
)


def examples_of(rows):
    return Examples.of([np.array(tokens) for tokens, _ in rows], [prompt for _, prompt in rows])


def ragged_of(rows):
    return Ragged.unpadded(examples_of(rows), SYMBOLS + 1)


@given(sequences, sequences, st.sampled_from([2, 32]), st.sampled_from([1, 2**20]), st.sampled_from([2, 3, 10]))
@settings(max_examples=50, deadline=None)
def test_baselines_are_as_defined(training, held_out, longest, block, tried):
    training, held_out = (
        [([*tokens, END], min(prompt, len(tokens))) for tokens, prompt in rows] for rows in (training, held_out)
    )
    examples = examples_of(held_out)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(room, "LONGEST", longest)
        patched.setattr(room, "BLOCK", block)
        patched.setattr(room, "TRIED", tried)
        patched.setattr(variable_order, "TABLE", 2**24 if block == 1 else 0)
        made = room.predictions(ragged_of(training), examples, SYMBOLS + 1, END, "<end>")
    unigram, bigram = slow_unigram(training), slow_bigram(training)
    share, lost = slow_tried(training, longest, tried)
    order = slow_variable_order(training, made["variable order"].depth, unigram)
    if lost:
        assert lost[made["variable order"].depth] <= min(lost.values()) + 1e-9
    assert sum(unigram.values()) == 1
    truth, chosen, nats = [], defaultdict(list), defaultdict(list)
    for number, (row, place) in enumerate(asked(held_out)):
        tokens = held_out[row][0]
        last, token = tokens[place - 1], tokens[place]
        match, length = slow_longest_match(training, tokens, place, longest, first_best(unigram))
        contexts, after_last = order(tokens[:place]), bigram(last)
        matched = {
            other: (1 - share(length)) * chance / (1 - after_last[match]) for other, chance in after_last.items()
        }
        matched[match] = share(length)
        best = made["variable order"].chosen[number]  # of nearly equal ones the first after rounding
        assert contexts[best] >= max(contexts.values()) * (1 - Fraction(1, 10**12))
        truth.append(token)
        chosen["unigram"].append(first_best(unigram))
        chosen["bigram"].append(first_best(after_last))
        chosen["longest match"].append(match)
        chosen["variable order"].append(best)
        chosen["repeat last"].append(last)
        chosen["always <end>"].append(END)
        every = {"unigram": unigram, "bigram": after_last, "longest match": matched, "variable order": contexts}
        for name, chances in every.items():
            assert sum(chances.values()) == 1
            nats[name].append(-math.log(chances[token]))
    found, by_token = room.metrics(made, examples, END), room.nats(made, examples)
    assert set(found) == set(chosen)
    assert set(by_token) == set(nats)
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
            expected["loss"] = np.mean(nats[name])
            np.testing.assert_allclose(by_token[name][scored_tokens(examples)], nats[name])
            assert not by_token[name][~scored_tokens(examples)].any()
        assert given_metrics == pytest.approx(expected), name


def test_an_accuracy_that_is_all_end_shows():
    targets = np.array([END] * 8 + [1, 2])
    found = accuracies(targets, np.full(10, END), END)
    assert found == {"token_accuracy": 0.8, "symbol_accuracy": 0.0, "end_accuracy": 1.0}


def test_cached_predictions_that_cannot_be_right_are_made_again():
    training, held_out = ragged_of([([0, 1, END], 0), ([1, 1, END], 0)]), examples_of([([0, 1, 1, END], 0)])
    kept, calls = {}, []

    def remember(key, make):
        calls.append(key)
        return kept[key] if key in kept else kept.setdefault(key, make())

    def asked():
        return room.remembered(remember, training, held_out, SYMBOLS + 1, END, "<end>")

    first = asked()
    (key,) = kept
    right = kept[key]
    wrong = [right[:-1], right[:, :-1], right.astype(np.float32), right.astype(str), np.zeros_like(right)]
    for place, value in (
        ((0, 0), SYMBOLS + 1),
        ((0, 0), 0.5),
        ((2, 1), np.nan),
        ((1, 1), -0.1),
        ((3, 0), 2.0),
        ((1, 0), 0),
    ):
        wrong.append(right.copy())
        wrong[-1][place] = value
    for damaged in wrong:
        kept[key] = damaged
        again = asked()
        assert list(again) == list(first)
        for name, one in again.items():
            np.testing.assert_array_equal(one.chosen, first[name].chosen)
            if one.probabilities is not None:
                np.testing.assert_array_equal(one.probabilities, first[name].probabilities)
        assert again["repeat last"].probabilities is None
    assert set(calls) == {key}


def test_a_copied_sequence_is_matched_within_itself():
    word = [0, 1, 2, 3, 1, 0]
    held_out = examples_of([([*word, *word, END], 0)])
    found = room.predictions(ragged_of([([3, END], 0)]), held_out, SYMBOLS + 1, END, "<end>")["longest match"].chosen
    slow = [slow_longest_match([([3, END], 0)], [*word, *word, END], place, 32, END)[0] for place in range(1, 13)]
    assert slow[7:11] == word[2:6]
    assert found.tolist() == slow
