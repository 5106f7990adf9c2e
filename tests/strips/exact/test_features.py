"""Alternating features by SAT are those found by trying all, and prices are the smallest."""

import sys

import pytest
from hypothesis import given, settings
from strips_oracle import alternates, can_require, effects, false_before, some_traces

from statewise.strips.exact.features import ALTERNATES, ANY, DELETES_WHAT_HOLDS, Feature, Pricer, alternating
from statewise.strips.exact.windows import Windows
from statewise.strips.model.heads import heads
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces


@settings(max_examples=100, deadline=None)
@given(some_traces())
def test_all_alternating_features_are_found(given_traces):
    windows = Windows.of(given_traces)
    found = alternating(windows)
    wanted = {
        (delete, add)
        for delete, add in effects(3)
        if delete and not (delete | add) & ~windows.seen and alternates(given_traces, delete, add)
    }
    assert found.complete
    assert set(found.features) == wanted
    assert len(found.features) == len(wanted)


def test_a_search_goes_on_from_what_it_found():
    windows = Windows.of(traces(domain("blocksworld:2"), 50, 20, 1))
    every = alternating(windows)
    some = alternating(windows, most=7)
    assert (len(some.features), some.complete) == (7, False)
    rest = alternating(windows, known=some.features)
    assert rest.complete
    assert rest.features[:7] == some.features
    assert sorted(rest.features) == sorted(every.features)
    assert not alternating(windows, seconds=0).complete
    assert not alternating(windows, stop=lambda: True).features


@pytest.mark.parametrize("name", ["blocksworld:2", "ferry:2x2", "gripper:2", "miconic:2x2"])
def test_the_effects_of_true_atoms_are_among_them(name):
    world = domain(name)
    found = set(alternating(Windows.of(traces(world, 100, 20, 1))).features)
    for head in heads(world.model):
        assert (head.delete, head.add) in found


@settings(max_examples=60, deadline=None)
@given(some_traces())
def test_a_price_is_the_smallest_feature_that_explains_a_negative(given_traces):
    windows = Windows.of(given_traces)
    kinds = {
        ALTERNATES: lambda delete, add: alternates(given_traces, delete, add),
        DELETES_WHAT_HOLDS: lambda delete, add: not delete & ~can_require(given_traces, delete, add),
        ANY: lambda delete, add: True,
    }
    for kind, allowed in kinds.items():
        pricer = Pricer(windows, kind)
        for row in given_traces.rows:
            explain = [
                Feature(delete, add)
                for delete, add in effects(3)
                if delete
                and allowed(delete, add)
                and can_require(given_traces, delete, add) >> row[-1] & 1
                and false_before(row, delete, add)[len(row) - 1]
            ]
            found = pricer.smallest(row)
            assert (found is None) == (not explain)
            if found is not None:
                assert found in explain
                assert size(found) == min(map(size, explain))
                other = pricer.smallest(row, without=explain[1:])
                assert other == explain[0]


def size(feature):
    return feature.delete.bit_count() + feature.add.bit_count()


def test_without_the_extra_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pysat.solvers", None)
    with pytest.raises(ValueError, match=r"-m pip install .*python-sat"):
        alternating(Windows(2))
