import numpy as np
import pytest
import torch

from statewise.backbones.nn.cache import KeyValueCache, PlaceStore


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


def read(store, drawn, counts):
    """Reads `counts[b]` random vectors in row b."""
    store.begin(int(counts.max()), counts)
    for layer in range(2):
        store.append(layer, [torch.randn(len(counts), 1, int(counts.max()), 2, generator=drawn) for _ in range(2)])
    store.advance()


def used(store):
    """The vectors of each row in the order of their positions, and those positions."""
    places = store._all_places()
    return [
        (part[:, row][:, :, places[row] >= 0], places[row][places[row] >= 0])
        for part in store.contents()
        for row in range(len(places))
    ]


@pytest.mark.parametrize("span", [None, 5])
@pytest.mark.parametrize("seed", range(10))
def test_rows_that_move_in_place_or_join_spare_ones_are_those_that_are_copied(span, seed, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda self, *shape: self.new_full(shape, torch.nan))
    ways = {"in place": torch.no_grad, "copied": torch.enable_grad}  # the latter never writes into known rows
    stores, in_place = {way: PlaceStore(4, layers=2, span=span) for way in ways}, 0
    steps = np.random.default_rng(seed)
    for step in range(60):
        rows, act = len(stores["copied"].lengths), steps.integers(4)
        counts = steps.integers(1, 4, rows if act else 3)
        chosen = np.arange(rows)
        if act == 1 and rows > 2:  # one leaves, and the last row takes its place
            chosen = chosen[:-1]
            chosen[steps.integers(len(chosen))] = rows - 1
        elif act == 2:
            chosen = steps.integers(0, rows, steps.integers(1, rows + 3))
        back = np.minimum(steps.integers(0, 3, rows), stores["copied"].lengths)
        before = [part.data_ptr() for part in stores["in place"].contents()]
        for way, mode in ways.items():
            store, drawn = stores[way], torch.Generator().manual_seed(step)
            with mode():
                if act == 0:
                    other = PlaceStore(3, layers=2, span=span)
                    read(other, drawn, counts)
                    store.join(other)
                elif act < 3:
                    store.reorder(torch.from_numpy(chosen))
                else:
                    read(store, drawn, counts)
                    store.rewind(back)
        in_place += act < 3 and before == [part.data_ptr() for part in stores["in place"].contents()]
        assert stores["in place"].lengths.tolist() == stores["copied"].lengths.tolist()
        for (got, places), (expected, expected_places) in zip(*map(used, stores.values()), strict=True):
            assert torch.equal(got, expected)
            assert places.tolist() == expected_places.tolist()
    assert in_place > 3


def test_rows_join_and_leave_without_a_copy_of_the_others():
    store, drawn = PlaceStore(8, layers=2), torch.Generator().manual_seed(0)
    with torch.no_grad():
        read(store, drawn, np.full(8, 20))
        for turn in range(6):
            one = PlaceStore(1, layers=2)
            read(one, drawn, np.array([3 + turn]))
            store.join(one)
            if turn == 0:
                held = [part.data_ptr() for part in store.contents()]
            store.reorder(torch.tensor([8 if place == turn else place for place in range(8)]))
            assert [part.data_ptr() for part in store.contents()] == held
    assert store.lengths.tolist() == [3, 4, 5, 6, 7, 8, 20, 20]


def test_what_many_rows_needed_is_given_back():
    store, drawn = PlaceStore(16, layers=2), torch.Generator().manual_seed(0)
    with torch.no_grad():
        read(store, drawn, np.full(16, 5))
        many = store.bytes
        store.reorder(torch.arange(4))
        assert store.bytes == many
        store.reorder(torch.arange(3))
        assert store.bytes == many * 3 // 16


def test_chosen_rows_are_a_copy():
    store, drawn = PlaceStore(4, layers=2), torch.Generator().manual_seed(0)
    with torch.no_grad():
        read(store, drawn, np.array([3, 1, 4, 2]))
        before = [(part.clone(), places) for part, places in used(store)]
        some = store.chosen(torch.tensor([0, 1, 3]))
        read(some, drawn, np.array([2, 2, 2]))
        some.reorder(torch.tensor([2, 1, 0]))
    assert some.lengths.tolist() == [4, 3, 5]
    for (got, places), (expected, expected_places) in zip(used(store), before, strict=True):
        assert torch.equal(got, expected)
        assert places.tolist() == expected_places.tolist()


def test_what_autograd_has_recorded_is_not_overwritten():
    store = PlaceStore(3, layers=1)
    vectors = torch.arange(6.0, dtype=torch.float64).reshape(3, 1, 1, 2).requires_grad_()
    store.begin(1)
    loss = store.append(0, (vectors, vectors)).square().sum()
    store.advance()
    with torch.no_grad():
        store.reorder(torch.tensor([0, 2]))
    loss.backward()
    torch.testing.assert_close(vectors.grad, 4 * vectors.detach())
