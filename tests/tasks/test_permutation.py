import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.tasks.permutation import LISTED, ROUNDS, Permutation, shuffled

WORD = 2**64


def slow_mixed(word):
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB % WORD
    return word ^ word >> 31


def slow(place, size, seed):
    """One number at a time, in Python's integers."""
    keys = np.random.default_rng(seed).integers(WORD, size=ROUNDS, dtype=np.uint64).tolist()
    bits = (size - 1).bit_length()
    low = bits // 2
    while True:
        upper, lower = place >> low, place % 2**low
        for turn, key in enumerate(keys):
            if turn % 2:
                lower ^= slow_mixed(upper ^ key) % 2**low
            else:
                upper ^= slow_mixed(lower ^ key) % 2 ** (bits - low)
        place = (upper << low) + lower
        if place < size:
            return place


@pytest.mark.parametrize("size", [*range(70), 127, 128, 129, 1000, 4095, 4096, 4097, 99_991])
def test_every_number_is_at_one_place(size):
    order = Permutation(size, [3, size])
    assert len(order) == size
    np.testing.assert_array_equal(np.sort(order[np.arange(size)]), np.arange(size))


@given(st.integers(1, 2**62), st.integers(0, 2**32), st.data())
@settings(max_examples=60, deadline=None)
def test_the_formula_is_that_of_the_slow_twin(size, seed, data):
    places = data.draw(st.lists(st.integers(0, size - 1), max_size=8))
    found = Permutation(size, [seed, 1])[np.array(places, np.int64)]
    assert found.dtype == np.int64
    assert found.tolist() == [slow(place, size, [seed, 1]) for place in places]


def test_orders_look_random():
    size, m = 10**9, 200_000
    order = Permutation(size, [0, 1])
    numbers = order[np.arange(m)]
    assert len(np.unique(numbers)) == m
    cells = np.bincount(numbers * 100 // size, minlength=100)
    assert ((cells - m / 100) ** 2 / (m / 100)).sum() < 160  # chi-square of 99 degrees: exceeded once in 10,000
    steps = np.bincount(np.diff(numbers) % size * 100 // size, minlength=100)
    assert ((steps - m / 100) ** 2 / (m / 100)).sum() < 160
    other = Permutation(size, [0, 2])[np.arange(m)]
    assert (numbers == other).sum() <= 5


def test_places_that_do_not_exist_are_refused():
    order = Permutation(10, [0])
    for places in ([10], [-1]):
        with pytest.raises(IndexError, match="places of a permutation of 10 are 0 to 9"):
            order[np.array(places)]
    assert order[np.zeros(0, np.int64)].tolist() == []
    with pytest.raises(ValueError, match=r"0 to 2\^62 numbers"):
        Permutation(2**62 + 1, [0])


def test_small_sets_keep_the_order_that_they_have_had():
    order = shuffled(1000, [7, 3])
    np.testing.assert_array_equal(order, np.random.default_rng([7, 3]).permutation(1000))
    assert isinstance(shuffled(LISTED, [1]), np.ndarray)
    assert isinstance(shuffled(LISTED + 1, [1]), Permutation)
