"""The metrics of predictive process monitoring, on models and logs whose answers are known."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from doubles import FixedTask, MarkovPredictor, random_examples, subject

from statewise.analysis import make_analysis
from statewise.analysis.suffixes import NANOSECONDS_OF_A_DAY, distance, similarity
from statewise.runtime.messages import LacksCapability
from statewise.tasks.own_files.sequences import Sequences, SequencesConfig

LETTERS = "abcdef"


def slow_distance(one, other):
    """The cheapest way, tried exhaustively: each step of an alignment keeps, replaces, inserts or deletes a symbol, or
    exchanges two, between which others are inserted or deleted."""
    if not one or not other:
        return len(one) + len(other)
    costs = [slow_distance(one[1:], other[1:]) + (one[0] != other[0])]
    costs += [slow_distance(one[1:], other) + 1, slow_distance(one, other[1:]) + 1]
    for i, j in itertools.product(range(1, len(one)), range(1, len(other))):
        if one[0] == other[j] and one[i] == other[0]:
            costs.append(slow_distance(one[i + 1 :], other[j + 1 :]) + 1 + (i - 1) + (j - 1))
    return min(costs)


def test_distances_are_the_fewest_changes():
    words = ["".join(word) for size in range(5) for word in itertools.product("ab", repeat=size)]
    words += ["ca", "abc", "acb", "cab", "bca", "abcd", "badc"]
    for one, other in itertools.product(words[::2], words):
        assert distance([*map(ord, one)], [*map(ord, other)]) == slow_distance(one, other), (one, other)
    assert distance([1, 2], [2, 3, 1]) == 2  # unrestricted: a symbol between two that are exchanged
    assert similarity([], []) == 1
    assert similarity([1, 2, 3, 4], [1, 2]) == 0.5


def sequences(tmp_path, training, held_out):
    for name, lines in (("training.txt", training), ("held-out.txt", held_out)):
        (tmp_path / name).write_text("".join(" ".join(line) + "\n" for line in lines))
    paths = {"path": str(tmp_path / "training.txt"), "held_out_path": str(tmp_path / "held-out.txt")}
    return Sequences(SequencesConfig(**paths))


def alphabet(task):
    """A model that is certain of the next letter of the alphabet, and of the end after f."""
    table = torch.full((len(task.vocab), len(task.vocab)), 1e-9)
    for one, other in zip(LETTERS, [*LETTERS[1:], "<end>"]):
        table[task.vocab.ids[one], task.vocab.ids[other]] = 1.0
    return MarkovPredictor(table / table.sum(1, keepdim=True), context=task.context)


def by_hand(held_out, training):
    """The expected metrics of `alphabet`."""
    similar, base, off, after, by_length, right = [], [], [], [], [], []
    for line in held_out:
        right += [other == (LETTERS + "$")[LETTERS.index(one) + 1] for one, other in zip(line, line[1:] + "$")]
        for cut in range(1, len(line) + 1):
            last, rest, guess = line[cut - 1], line[cut:], LETTERS[LETTERS.index(line[cut - 1]) + 1 :]
            similar.append(1 - slow_distance(guess, rest) / max(1, len(guess), len(rest)))
            off.append(abs(len(guess) - len(rest)))
            followed = [one[at + 1 :] for one in training for at in range(len(one)) if one[at] == last]
            most = max(dict.fromkeys(followed), key=followed.count, default="")
            base.append(1 - slow_distance(most, rest) / max(1, len(most), len(rest)))
            lengths = [len(one) for one in followed]
            every = [len(one) - at for one in training for at in range(1, len(one) + 1)]
            after.append(abs(np.median(lengths or every) - len(rest)))
            same = [len(one) - cut for one in training if len(one) >= cut]
            by_length.append(abs(np.median(same or every) - len(rest)))
    return {
        "next_accuracy": np.mean(right),
        "prefixes": len(off),
        "suffix_similarity": np.mean(similar),
        "suffix_similarity_last_symbol": np.mean(base),
        "remaining_steps_error": np.mean(off),
        "remaining_steps_error_last_symbol": np.mean(after),
        "remaining_steps_error_by_length": np.mean(by_length),
    }


TRAINING = ["abcdef", "abcdef", "bcdf", "acf", "cdefa", "fa", "abdf"]
HELD_OUT = ["abcdf", "bcdef", "cab", "f", "acdef"]


def test_metrics_are_those_counted_by_hand(tmp_path):
    task = sequences(tmp_path, TRAINING, HELD_OUT)
    found = make_analysis("suffixes", samples=3).analyze(subject(alphabet(task), task))
    assert found.metrics == pytest.approx(by_hand(HELD_OUT, TRAINING))
    assert found.notes == []
    accuracy = found.panels[0].curves[0]
    assert accuracy.label == "this model"
    assert accuracy.x == [1.0]  # five cases have a first symbol and more; four a second one
    assert accuracy.y == [pytest.approx(np.mean([True, True, False, True, False]))]


def test_a_few_prefixes_are_chosen_by_a_seed(tmp_path):
    task = sequences(tmp_path, TRAINING, HELD_OUT)
    few = [
        make_analysis("suffixes", samples=1, prefixes=4, seed=seed).analyze(subject(alphabet(task), task)).metrics
        for seed in (0, 0, 1)
    ]
    assert few[0] == few[1] != few[2]
    assert few[0]["prefixes"] == 4


def test_unfinished_cases_are_scored_for_their_symbols_alone(tmp_path):
    task = sequences(tmp_path, TRAINING, [*HELD_OUT, "abc", "ac"])
    whole = task.held_out()
    scored = np.arange(whole.tokens.shape[1]) >= 1
    scored = np.tile(scored, (len(whole), 1)) & (np.arange(scored.size) < whole.lengths[:, None])
    for row in (5, 6):
        scored[row, whole.lengths[row] - 1] = False
    task.held_out = lambda n=None: dataclasses.replace(whole, scored=scored)[: n if n is not None else len(whole)]
    found = make_analysis("suffixes", samples=1).analyze(subject(alphabet(task), task))
    expected = by_hand(HELD_OUT, TRAINING)
    right = round(expected["next_accuracy"] * expected["prefixes"])  # each prefix has a next token
    expected["next_accuracy"] = (right + 2 + 0) / (expected["prefixes"] + 3)  # of abc: b, c; of ac: c, where b is said
    assert found.metrics == pytest.approx(expected)
    assert found.notes == ["2 held-out cases unfinished, whose suffix is unknown"]
    task.held_out = lambda n=None: dataclasses.replace(whole, scored=scored & ~(whole.tokens == task.end))
    with pytest.raises(ValueError, match="every held-out case is unfinished"):
        make_analysis("suffixes").analyze(subject(alphabet(task), task))


def test_remaining_days_are_read_off_the_state(tmp_path):
    """A letter is two days after the one before it, and f seven."""
    training = ["".join(one) for size in (2, 3, 4) for one in itertools.combinations(LETTERS, size)]
    held_out = [LETTERS, "abcde", "acdef", "bcdef", "abdef", "abcef"]
    task = sequences(tmp_path, [*training, "bcdef"], held_out)
    given = task.log

    def log(path=None):
        """Lines of text with times."""
        read = given(path)
        days = np.array([5.0 if read.symbols[code] == "f" else 0.0 for code in read.codes])
        starts = np.repeat(read.offsets[:-1], np.diff(read.offsets))
        order = np.arange(len(read.codes)) - starts
        return dataclasses.replace(read, times=((order * 2 + days) * NANOSECONDS_OF_A_DAY).astype(np.int64))

    task.log = log
    found = make_analysis("suffixes", samples=1).analyze(subject(alphabet(task), task))
    metrics = found.metrics
    assert metrics["remaining_days_error"] < metrics["remaining_days_error_by_length"]
    assert set(metrics) >= {f"remaining_days_error{name}" for name in ("", "_elapsed", "_with_elapsed", "_by_length")}
    assert found.notes == []
    assert len(task.held_out()) == len(held_out) - 1  # bcdef is in training, too
    lengths, errors = [], []
    mean = {}
    for line in [*training, "bcdef"]:
        for at in range(len(line)):
            left = 2 * (len(line) - 1 - at) + 5 * (line[-1] == "f") * (at < len(line) - 1)
            mean.setdefault(at + 1, []).append(left)
    for line in (line for line in held_out if line != "bcdef"):
        for at in range(len(line)):
            left = 2 * (len(line) - 1 - at) + 5 * (line[-1] == "f") * (at < len(line) - 1)
            every = [one for values in mean.values() for one in values]
            lengths.append(at + 1)
            errors.append(abs(np.mean(mean.get(at + 1, every)) - left))
    assert metrics["remaining_days_error_by_length"] == pytest.approx(np.mean(errors))


def test_other_tasks_are_refused():
    task = FixedTask(random_examples(np.random.default_rng(0), n=3))
    with pytest.raises(LacksCapability, match="a user's own sequences"):
        make_analysis("suffixes").analyze(subject(MarkovPredictor(torch.eye(11) * 0.5 + 0.05), task))
