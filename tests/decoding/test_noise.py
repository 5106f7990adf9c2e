"""Noise: the same function of seed, row, position and token, written with Python's integers."""

import math

import numpy as np
import pytest
import torch

from statewise.decoding.noise import gumbel

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
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=1e-14)
    one = gumbel([seed, 1, seed, 2], rows, positions, 4)
    torch.testing.assert_close(one[[0, 2]], found[[0, 2], :4], rtol=0, atol=0)


def test_noise_has_the_gumbel_distribution():
    noise = gumbel(1, np.arange(50), np.zeros(50, np.int64), 2000)
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.02)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=0.04)
