"""Every pair is computed once, with the weight that it should have, whatever the lengths, blocks and samples."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.losses.belief_state.pairs import WASTED, Pairs, Sampling, expected_weights, layout, pair_numbers


def draw_pairs(seed, B=3, T=9, documents=True):
    """Rows with documents of several lengths, padding behind them, and any tokens for targets."""
    rng = np.random.default_rng(seed)
    group = np.zeros((B, T), np.int64)
    for row in range(B):
        length = rng.integers(1, T + 1)
        cuts = np.sort(rng.choice(np.arange(1, T), rng.integers(0, 4), replace=False)) if documents else []
        group[row, :length] = 1 + np.searchsorted(cuts, np.arange(length), side="right")
    masks = [torch.from_numpy((rng.random((B, T)) < share) & (group > 0)) for share in (0.8, 0.7, 0.9)]
    return Pairs(torch.from_numpy(rng.integers(0, 50, (B, T))), torch.from_numpy(group), *masks)


def directly(pairs, sampling, closing):
    """((row, last token of the prefix, first token of the suffix, head), (weight, target)) of pairs; None: empty."""
    found = []
    group = pairs.group.numpy()
    B, T = group.shape
    for row in range(B):
        for p in range(T):
            document = np.flatnonzero(group[row] == group[row, p])
            if not group[row, p]:
                continue
            first, last = document[0], document[-1]
            before = None if p == first else p - 1
            for s in range(p, last + 1):
                behind = None if s == last else s + 1
                hidden = s - p + 1
                weight = 1.0
                if before is not None and behind is not None:
                    within = sampling.max_gap is None or hidden <= sampling.max_gap
                    weight = hidden**-sampling.exponent if within else 0.0
                following = pairs.next_targets[row, p]
                previous = pairs.prefixes[row, p] & pairs.previous_targets[row, s]
                for head, counted, token in ((0, following, p), (1, previous, s)):
                    if counted and weight:
                        found.append(((row, before, behind, head), (weight, int(pairs.tokens[row, token]))))
            if closing is not None:
                both = pairs.next_targets[row, p], pairs.previous_targets[row, p] & pairs.prefixes[row, p]
                for head, counted in enumerate(both):
                    if counted:
                        found.append(((row, before, p, head), (1.0, closing)))
                        if p == last:
                            found.append(((row, p, None, head), (1.0, closing)))
    return found


def listed(pairs, sampling, closing, cut):
    """{pair: [(weight, target), ...]} of a layout in blocks."""
    T = pairs.tokens.shape[1]

    def token(number):
        return None if number == 0 else divmod(number - 1, T)

    found = {}
    made = layout(pairs, sampling, closing)
    for group in made.groups:
        for block in cut(group):
            documents, places, suffixes = block
            weights = group.weights(block, 2)
            before = made.prefix_rows[group.prefix[documents, places]].tolist()
            behind = made.suffix_rows[group.suffix[documents, suffixes]].tolist()
            for document, place, suffix, head in weights.nonzero().tolist():
                ends, begins = token(before[document][place]), token(behind[document][suffix])
                target = group.next_tokens[documents, places][document, place]
                if head == 1:
                    target = group.previous_tokens[documents, suffixes][document, suffix]
                row = next((row for row, _ in filter(None, (ends, begins))), None)
                key = row, *(each and each[1] for each in (ends, begins)), head
                value = float(weights[document, place, suffix, head]), int(target)
                found.setdefault(key, []).append(value)
    return found


def flat(found):
    """As lists by pair, for documents between two empty sides do not say which row they are of."""
    lists = {}
    for (row, before, behind, head), value in found:
        key = (None if before is None and behind is None else row, before, behind, head)
        lists.setdefault(key, []).append(value)
    return {key: sorted(values) for key, values in lists.items()}


SAMPLINGS = [Sampling(), Sampling(max_gap=2), Sampling(exponent=0.5), Sampling(max_gap=3, exponent=1.0)]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    sampling=st.sampled_from(SAMPLINGS),
    closing=st.sampled_from([None, 50]),
    size=st.integers(1, 60),
    documents=st.booleans(),
    wasted=st.sampled_from([None, *WASTED.values()]),
)
def test_every_pair_is_computed_once_with_its_weight(seed, sampling, closing, size, documents, wasted):
    pairs = draw_pairs(seed, documents=documents)
    found = listed(
        pairs,
        sampling,
        closing,
        lambda group: group.tiles(max(2, size)) if wasted is None else group.blocks(size, wasted),
    )
    expected = flat(directly(pairs, sampling, closing))
    assert set(found) == set(expected)
    for key, values in found.items():
        assert [target for _, target in sorted(values)] == [target for _, target in expected[key]]
        np.testing.assert_allclose(sorted(w for w, _ in values), [w for w, _ in expected[key]], rtol=1e-6)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), sampling=st.sampled_from(SAMPLINGS), documents=st.booleans())
def test_expected_weights_are_the_sums_over_all_pairs(seed, sampling, documents):
    pairs = draw_pairs(seed, documents=documents)
    expected = directly(pairs, sampling, None)
    for head, total in enumerate(expected_weights(pairs, sampling)):
        assert math.isclose(float(total), sum(w for key, (w, _) in expected if key[3] == head), abs_tol=1e-9)


@pytest.mark.parametrize(
    "share", [0.15, pytest.param(0.5, marks=pytest.mark.slow), pytest.param(0.9, marks=pytest.mark.slow)]
)
def test_drawn_pairs_count_as_much_as_all_on_average(share):
    pairs = draw_pairs(3, B=2, T=10)
    full = Sampling(exponent=0.5)
    expected = flat(directly(pairs, full, None))
    draws = 400
    torch.manual_seed(0)
    sums: dict = {}
    for _ in range(draws):
        found = listed(pairs, full._replace(share=share), None, lambda group: group.blocks(30))
        for key, values in found.items():
            sums[key] = sums.get(key, 0.0) + sum(w for w, _ in values)
            if None in key[1:3]:  # an empty side: always there, as it is
                np.testing.assert_allclose(sorted(w for w, _ in values), [w for w, _ in expected[key]], rtol=1e-6)
    assert set(sums) == set(expected)
    for key, values in expected.items():
        whole = sum(w for w, _ in values)
        error = whole * ((1 - share) / share / draws) ** 0.5
        assert abs(sums[key] / draws - whole) < 5 * error + 1e-6, key
    # Keys are drawn nearly independently, so that all together are known far better than each.
    wholes = np.array([sum(w for w, _ in values) for values in expected.values()])
    error = (np.square(wholes).sum() * (1 - share) / share / draws) ** 0.5
    assert abs(sum(sums.values()) / draws - wholes.sum()) < 5 * error


def test_packed_documents_and_padding_cost_next_to_nothing():
    rng = np.random.default_rng(0)
    group = np.zeros((4, 1024), np.int64)
    for row in range(4):
        cuts = np.sort(rng.choice(np.arange(1, 1000), 5, replace=False))
        group[row, :1000] = 1 + np.searchsorted(cuts, np.arange(1000), side="right")
    everywhere = torch.from_numpy(group > 0)
    pairs = Pairs(torch.zeros(4, 1024, dtype=torch.long), torch.from_numpy(group), *[everywhere] * 3)
    counted = int(expected_weights(pairs, Sampling())[0])
    computed = 0
    for part in layout(pairs, Sampling(), None).groups:
        for documents, places, suffixes in part.blocks(4096):
            computed += math.prod(cut.stop - cut.start for cut in (documents, places, suffixes))
    assert counted <= computed < 1.25 * counted
    assert computed < 4 * 1024 * 1025 / 2 / 3  # all pairs of whole rows


def numbers_directly(pairs, sampling, closed):
    """`pair_numbers`, pair by pair."""
    group, following, previous, prefixes = (
        part.numpy() for part in (pairs.group, pairs.next_targets, pairs.previous_targets, pairs.prefixes)
    )
    number, before, behind = np.zeros(3), {None}, {None}

    def add(row, prefix, suffix, heads, times=1.0):
        if any(heads):
            before.add(None if prefix is None else (row, prefix))
            behind.add(None if suffix is None else (row, suffix))
            number[:] += times * np.array([1, *heads])

    for row, p in np.argwhere(group > 0):
        document = np.flatnonzero(group[row] == group[row, p])
        first, last = document[0], document[-1]
        prefix = None if p == first else p - 1
        for s in range(p, last + 1):
            suffix = None if s == last else s + 1
            inside = prefix is not None and suffix is not None
            far = sampling.max_gap is not None and s - p + 1 > sampling.max_gap
            heads = following[row, p], prefixes[row, p] and previous[row, s]
            add(row, prefix, suffix, heads, (0.0 if far else sampling.share) if inside else 1.0)
        if closed:
            heads = following[row, p], prefixes[row, p] and previous[row, p]
            add(row, prefix, p, heads)
            if p == last:
                add(row, p, None, heads)
    return (len(before), len(behind), *number)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    closed=st.booleans(),
    documents=st.booleans(),
    sampling=st.sampled_from([*SAMPLINGS, Sampling(share=0.25), Sampling(share=0.5, max_gap=3)]),
)
def test_pairs_are_numbered_without_being_listed(seed, closed, documents, sampling):
    pairs = draw_pairs(seed, documents=documents)
    assert pair_numbers(pairs, sampling, closed) == pytest.approx(numbers_directly(pairs, sampling, closed))
