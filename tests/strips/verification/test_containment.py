"""Heads that others make superfluous are left out; the language stays."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from random_heads import NAMES, grouped, language, random_heads

from statewise.strips.model.heads import Candidates, Heads
from statewise.strips.verification.containment import prune, undominated
from statewise.strips.verification.verification import verify


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.sampled_from([0.2, 0.4, 0.6]))
def test_undominated_heads_keep_the_language(seed, count, density):
    rng = np.random.default_rng(seed)
    one = (rng.random((1, 3, 3)) < density).repeat(count, 0)
    heads = Heads.of_theta((one ^ (rng.random((count, 3, 3)) < 0.12)).astype(float))  # alike, so that some cover others
    kept = undominated(heads)
    assert len(kept) >= 1
    assert language(heads.only(kept), 4) == language(heads, 4)


def test_a_head_that_another_covers_goes_and_of_equal_ones_one_stays():
    weak = ([0, 0, 1], [1, 1, 0], [1, 0, 0])
    strong = ([0, 0, 1], [0, 1, 0], [1, 0, 0])
    other = ([1, 0, 0], [0, 1, 0], [0, 0, 1])
    heads = Heads(*(np.array(columns, dtype=bool) for columns in zip(weak, strong, other, strong)))
    kept = undominated(heads)
    assert len(kept) == 2
    assert 2 in kept
    assert 0 not in kept


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.sampled_from([0.2, 0.4, 0.6]))
def test_pruned_heads_keep_the_language_and_none_is_left_that_could_go(seed, count, density):
    heads = random_heads(seed, count, density=density)
    kept = prune(Candidates.alone(heads), NAMES)
    whole = language(heads)
    assert language(heads.only(kept)) == whole
    for place in kept:
        rest = heads.only([other for other in kept if other != place])
        assert not verify(rest.model(NAMES), heads.model(NAMES))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_pruned_groups_go_whole(seed):
    heads = random_heads(seed, 6, density=0.5)
    candidates = grouped(heads, [0, 0, 1, 1, 2, 3])
    kept = candidates.only(prune(candidates, NAMES))
    assert language(kept.heads) == language(heads)
    assert len(kept.heads) == sum({0: 2, 1: 2, 2: 1, 3: 1}[place] for place in prune(candidates, NAMES))


def test_what_cannot_be_decided_in_time_stays():
    heads = random_heads(1, 4).only([0, 0, 1, 1])
    assert len(prune(Candidates.alone(heads), NAMES)) <= 2
    assert prune(Candidates.alone(heads), NAMES, seconds=0.0).tolist() == [0, 1, 2, 3]
