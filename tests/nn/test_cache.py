import pytest
import torch

from statewise.nn.cache import KeyValueCache


def fill(cache, start, n, rows=3):
    numbers = torch.arange(start, start + n).float()
    key = (torch.arange(rows).float()[:, None] * 1000 + numbers)[:, None, :, None].expand(rows, 1, n, 2)
    cache.begin(n)
    got = [cache.append_keys(layer, key + 0.25 * layer, -key) for layer in range(2)]
    cache.advance()
    return got


def test_extends_rewinds_and_grows():
    cache = KeyValueCache(3, layers=2)
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


def test_sets_no_more_aside_than_there_will_ever_be():
    cache = KeyValueCache(3, layers=2, most=70)
    fill(cache, 0, 40)
    held = cache.contents()[0].untyped_storage().nbytes()
    assert held == 2 * 3 * 70 * 2 * 4  # keys and values, rows, positions, width, bytes
    fill(cache, 40, 30)
    assert cache.contents()[0].untyped_storage().nbytes() == held
    keys, _ = fill(cache, 70, 1)[0]  # whoever said too little is served all the same
    assert keys[1, 0, :, 0].tolist() == list(range(1000, 1071))


def test_more_may_be_read_behind_what_is_kept():
    cache, plain = KeyValueCache(2, layers=2, most=9), KeyValueCache(2, layers=2)
    drawn = torch.Generator().manual_seed(0)
    for new, more in ((3, 2), (1, 5), (4, 1), (1, 30)):
        parts = [torch.randn(2, 3, n, 4, generator=drawn) for n in (new, new, more, more)]
        for one in (cache, plain):
            one.begin(new)
        for layer in range(2):
            found = cache.append(layer, parts[:2], parts[2:])
            for got, kept, behind in zip(found, plain.append(layer, parts[:2]), parts[2:]):
                torch.testing.assert_close(got, torch.cat((kept, behind), dim=2))
        for one in (cache, plain):
            one.advance()
    for one, other in zip(cache.contents(), plain.contents()):
        torch.testing.assert_close(one, other)


def test_whatever_stands_in_new_memory_is_never_read(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda self, *shape: self.new_full(shape, torch.nan))
    cache, other = KeyValueCache(3, layers=2), KeyValueCache(2, layers=2)
    fill(cache, 0, 5)
    fill(other, 0, 2, rows=2)
    for one, rows in ((cache, [2, 0, 0]), (other, [1, 0])):
        one.reorder(torch.tensor(rows))
    cache.join(other)
    cache.join(KeyValueCache(1, layers=2))  # which has read nothing
    for new in (3, 100):
        assert all(part.isfinite().all() for got in fill(cache, 5, new, rows=6) for part in got)
        cache.reorder(torch.tensor([5, 4, 3, 2, 1, 0]))


def test_reorders_rows_and_may_repeat_them():
    cache = KeyValueCache(3, layers=2)
    fill(cache, 0, 2)
    cache.reorder(torch.tensor([2, 0, 0, 1]))
    keys, _ = fill(cache, 7, 1, rows=4)[0]
    assert keys[:, 0, 0, 0].tolist() == [2000, 0, 0, 1000]
    assert keys[:, 0, 2, 0].tolist() == [7, 1007, 2007, 3007]
