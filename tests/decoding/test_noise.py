"""Noise: the same function of seed, row, position and token, written with Python's integers."""

import math

import numpy as np
import pytest

from statewise.decoding.noise import AT_ONCE, NoiseAhead, gumbel

GOLDEN, WORD = 0x9E3779B97F4A7C15, 2**64


def mixed(x):
    x = (x + GOLDEN) % WORD
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB % WORD
    return x ^ x >> 31


def slowly(seed, row, position, token):
    key = mixed(seed % WORD)
    for part in (row, position):
        key = mixed(key ^ mixed(part % WORD))
    bits = mixed((key + (token + 1) * GOLDEN) % WORD)
    return -math.log(-math.log(((bits >> 11) + 0.5) * 2.0**-53))


@pytest.mark.parametrize("seed", [0, 5, 2**63 + 11, -3])
def test_noise_is_that_of_the_definition(seed):
    rows, positions = np.array([0, 7, 2**40, 3]), np.array([5, 0, 12, 2**33])
    expected = [
        [slowly(seed, int(row), int(place), token) for token in range(6)] for row, place in zip(rows, positions)
    ]
    found = gumbel(seed, rows, positions, 6)
    np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-14)
    one = gumbel([seed, 1, seed, 2], rows, positions, 4)
    np.testing.assert_array_equal(one[[0, 2]], found[[0, 2], :4])


def test_noise_has_the_gumbel_distribution():
    noise = gumbel(1, np.arange(50), np.zeros(50, np.int64), 2000)
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.02)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=0.04)


@pytest.mark.parametrize("vocabulary", [5, 700, AT_ONCE + 1])
def test_noise_ahead_is_that_of_single_places(vocabulary):
    calls = []

    def make(rows, positions, vocabulary):
        calls.append(len(rows) * vocabulary)
        return gumbel(3, rows, positions, vocabulary)

    rng, ahead = np.random.default_rng(0), NoiseAhead(make, vocabulary)
    asked = 0
    for rows, even in (([4], True), ([4, 9, 1], True), ([9, 1], False), ([4], True)):
        first, left = [int(rng.integers(100))] * len(rows), 60
        while left >= 4:
            count = int(rng.integers(1, 5))
            found = ahead.at(rows, first, count, left)
            for row, place, own in zip(rows, first, found):
                expected = gumbel(3, np.full(count, row), place + np.arange(count), vocabulary)
                np.testing.assert_array_equal(own, expected)
            moves = [int(rng.integers(1, count + 1))] * len(rows)
            if not even:
                moves = rng.integers(1, count + 1, len(rows)).tolist()
            first, left = [place + move for place, move in zip(first, moves)], left - max(moves)
            asked += 1
    assert max(calls) <= max(AT_ONCE, 4 * 3 * vocabulary)
    if vocabulary == 5:
        assert len(calls) < asked / 4


def test_no_noise_is_computed_beyond_the_last_place():
    calls = []
    ahead = NoiseAhead(lambda rows, positions, vocabulary: calls.append(max(positions)) or np.zeros((len(rows), 2)), 2)
    for place in range(10, 15):
        ahead.at([0], [place], 1, 15 - place)
    assert calls == [14]
