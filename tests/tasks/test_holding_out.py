"""What tasks of fresh examples hold out, and that it stays what it was: else old runs were trained on new test sets."""

import hashlib

import numpy as np
import pytest

from statewise.tasks import TASKS
from statewise.tasks.holding_out import ONE_IN, chosen, collect, hash_prefixes, hash_rows

DIGESTS = {
    "countdown": ({"held_out_problems": 200}, "9dcc9afde95df25c", "ca15c8eaa8c59cd0"),
    "manhattan": (
        {"rows": 6, "columns": 7, "max_moves": 20, "held_out_moves": 12, "held_out_rides": 80},
        "8418e886de79be1b",
        "91f8bd78a9e5dca7",
    ),
    "path_star": (
        {"degree": 3, "length": 4, "nodes": 30, "held_out_graphs": 200},
        "cc568008be0fd18e",
        "06b3e94095969505",
    ),
    "recall": ({"held_out_sequences": 200}, "d7af5e993d82492e", "00cad420856fa66d"),
    "strips_traces": ({"held_out_traces": 100}, "a8d6d0bd5aa9180e", "ee0045e101ededf3"),
}
"""Fields of a task, and digests of its test set and of what training draws, all from version 0.1.0."""


def digest(examples):
    arrays = (examples.tokens, examples.lengths, examples.prompt_lengths)
    return hashlib.sha256(b"".join(np.ascontiguousarray(one, "<i8").tobytes() for one in arrays)).hexdigest()[:16]


@pytest.mark.parametrize("name", DIGESTS)
def test_held_out_sets_are_what_they_were(name):
    fields, held_out, training = DIGESTS[name]
    task = TASKS[name](TASKS[name].Config(**fields))
    assert digest(task.held_out()) == held_out
    assert digest(task.sample(np.random.default_rng(5), 100)) == training


def test_one_in_so_many_is_held_out():
    rows = np.arange(2 * 160_000).reshape(-1, 2)
    share = chosen(hash_rows(rows)).mean()
    assert share == pytest.approx(1 / ONE_IN, rel=0.03)


def test_hashes_of_prefixes_are_those_of_rows():
    rows = np.random.default_rng(0).integers(0, 9, (20, 5))
    found = hash_prefixes(rows)
    for length in range(1, 6):
        np.testing.assert_array_equal(found[:, length - 1], hash_rows(rows[:, :length]))


def test_rows_are_collected_until_there_are_enough():
    asked = []

    def draw(missing):
        asked.append(missing)
        return np.array([[len(asked)], [len(asked) // 2]])

    assert collect(draw, 5, width=1).tolist() == [[1], [0], [2], [1], [3]]
    assert asked == [5, 3, 1]
    asked.clear()
    assert collect(draw, 4, width=1, different=True).tolist() == [[1], [0], [2], [3]]
    assert collect(draw, 0, width=1).shape == (0, 1)


def test_collecting_ends_where_nothing_more_comes():
    asked = []

    def draw(missing):
        asked.append(missing)
        return np.array([[7]])

    assert collect(draw, 3, width=1, different=True, patience=4).tolist() == [[7]]
    assert asked == [3, 2, 2, 2, 2]
