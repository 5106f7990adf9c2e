"""Preconditions by description length, against a plain loop."""

from math import comb, log2

import numpy as np
import pytest
from hypothesis import given, settings
from strips_oracle import effects, false_before, some_traces

from statewise.strips.exact.features import Feature, alternating
from statewise.strips.exact.preconditions import Occasions, alternation_evidence, as_heads, bits_to_code, preconditions
from statewise.strips.exact.windows import Windows
from statewise.strips.model.heads import Judge
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces


@settings(max_examples=60, deadline=None)
@given(some_traces())
def test_occasions_are_those_of_a_plain_loop(given_traces):
    features = [Feature(*each) for each in effects(3)]
    found = Occasions.at(given_traces, features)
    false = found.of(np.arange(len(features)))
    valid, negatives = [], [set(), set(), set()]
    for row, label in zip(given_traces.rows, given_traces.labels):
        known = np.array([false_before(row, *each) for each in features])
        for at, action in enumerate(row):
            if label and at == len(row) - 1:
                negatives[action].add(tuple(known[:, at]))
            else:
                valid.append((action, tuple(known[:, at])))
    assert found.valid == len(valid)
    assert found.counts.tolist() == [sum(action == a for action, _ in valid) for a in range(3)]
    for place, times in enumerate(found.times):
        assert times == sum(known == tuple(false[:, place]) for _, known in valid)
    assert [{tuple(false[:, at]) for at in places} for places in found.negatives] == negatives
    assert found.excluded().tolist() == [sum(known[at] for _, known in valid) for at in range(len(features))]


def slow_bits(count, positions):
    """The logarithm of one over the likelihood of the best Bernoulli parameter."""
    if count in (0, positions):
        return 0.0
    share = count / positions
    return -count * np.log2(share) - (positions - count) * np.log2(1 - share)


@pytest.mark.parametrize(("count", "positions"), [(0, 0), (0, 5), (5, 5), (1, 2), (3, 17), (40, 10_000)])
def test_bits_to_code(count, positions):
    assert float(bits_to_code(count, positions)) == pytest.approx(slow_bits(count, positions), abs=1e-6)


def slow_choice(able, sure, found, c):
    """The same greedy choice for one action, over single positions."""
    places = [at for at, times in enumerate(found.times) for _ in range(times)]
    false = found.of(np.arange(len(able)))
    allowed = [at for at in places if not any(sure[k] >> c & 1 and false[k, at] for k in range(len(able)))]
    chosen, price = set(), np.log2(max(2, len(able))) + np.log2(max(2, found.valid)) / 2
    while True:
        gains = {}
        for k in range(len(able)):
            if able[k] >> c & 1 and not sure[k] >> c & 1:
                rest = sum(not false[k, at] for at in allowed)
                gains[k] = slow_bits(found.counts[c], len(allowed)) - slow_bits(found.counts[c], rest)
        best = max(gains, key=lambda k: (gains[k], -k), default=None)
        if best is None or gains[best] < price:
            return chosen
        chosen.add(best)
        allowed = [at for at in allowed if not false[best, at]]


@pytest.mark.parametrize(("name", "count"), [("simple", 60), ("blocksworld:2", 30), ("ferry:2x1", 60)])
def test_the_choice_is_that_of_a_plain_loop(name, count):
    drawn = traces(domain(name), count, 10, 3).valid_only()
    windows = Windows.of(drawn)
    features = alternating(windows).features
    able = [windows.required(*each) for each in features]
    found = Occasions.at(drawn, features)
    for sure in ([0] * len(features), [each.delete & can for each, can in zip(features, able)]):
        chosen = preconditions(able, sure, found)
        for c in range(len(drawn.actions)):
            wanted = slow_choice(able, sure, found, c)
            got = {k for k in range(len(features)) if (chosen[k] & ~sure[k]) >> c & 1}
            assert got == wanted


def test_every_negative_that_can_be_is_covered():
    drawn = traces(domain("ferry:2x2"), 60, 20, 2)
    windows = Windows.of(drawn)
    features = alternating(windows).features
    able = [windows.required(*each) for each in features]
    found = Occasions.at(drawn, features)
    judge, actions = Judge(drawn), len(drawn.actions)
    widest = judge.verdicts(as_heads(features, able, actions))
    chosen = judge.verdicts(as_heads(features, preconditions(able, [0] * len(features), found), actions))
    assert not chosen.alarms.any()
    assert np.array_equal(chosen.catches.any(0), widest.catches.any(0))
    assert widest.catches.any()


def test_out_of_time_only_the_sure_ones_are_left():
    drawn = traces(domain("ferry:2x1"), 60, 20, 2)
    windows = Windows.of(drawn)
    features = alternating(windows).features
    able, sure = [windows.required(*each) for each in features], [each.delete for each in features]
    assert preconditions(able, sure, Occasions.at(drawn, features), has_time=lambda: False) == sure


def test_evidence_of_alternation_is_what_it_excludes():
    drawn = traces(domain("blocksworld:2"), 40, 10, 1)
    features = alternating(Windows.of(drawn)).features
    found = Occasions.at(drawn, features)
    swapped = Occasions.at(drawn, [Feature(each.add, each.delete) for each in features])
    worth = alternation_evidence(features, found, swapped)
    rows = drawn.valid_only().rows
    total = sum(map(len, rows))
    for place in (0, len(features) // 2, len(features) - 1):
        delete, add = features[place]
        saved = 0.0
        for mine, other in ((delete, add), (add, delete)):
            excluded = sum(sum(false_before(row, mine, other)[: len(row)]) for row in rows)
            saved += sum(
                slow_bits(found.counts[a], total) - slow_bits(found.counts[a], total - excluded)
                for a in range(len(drawn.actions))
                if mine >> a & 1
            )
        assert worth[place] > 0
        description = saved / worth[place]
        size = delete.bit_count() + add.bit_count()
        assert description == pytest.approx(log2(comb(2 * len(drawn.actions), size)))
