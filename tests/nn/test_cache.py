import pytest
import torch

from statewise.nn.cache import KeyValueCache


def fill(cache, start, n, rows=3):
    numbers = torch.arange(start, start + n).float()
    key = (torch.arange(rows).float()[:, None] * 1000 + numbers)[:, None, :, None].expand(rows, 1, n, 2)
    got = [cache.append(layer, key + 0.25 * layer, -key) for layer in range(2)]
    cache.advance(n)
    return got


def test_extends_rewinds_and_grows():
    cache = KeyValueCache(layers=2)
    fill(cache, 0, 3)
    keys, values = fill(cache, 3, 100)[1]  # more than was set aside at first
    assert keys.shape == (3, 1, 103, 2)
    torch.testing.assert_close(keys[2, 0, :, 0], 2000.25 + torch.arange(103.0))
    torch.testing.assert_close(values[0, 0, :, 1], -torch.arange(103.0))
    cache.rewind(100)
    keys, _ = fill(cache, 50, 2)[0]
    assert keys[0, 0, :, 0].tolist() == [0, 1, 2, 50, 51]
    with pytest.raises(ValueError, match="cannot go back 6"):
        cache.rewind(6)


def test_reorders_rows_and_may_repeat_them():
    cache = KeyValueCache(layers=2)
    fill(cache, 0, 2)
    cache.reorder(torch.tensor([2, 0, 0, 1]))
    keys, _ = fill(cache, 7, 1, rows=4)[0]
    assert keys[:, 0, 0, 0].tolist() == [2000, 0, 0, 1000]
    assert keys[:, 0, 2, 0].tolist() == [7, 1007, 2007, 3007]
