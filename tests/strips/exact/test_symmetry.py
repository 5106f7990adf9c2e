"""Renamed traces: fewer are enough where the instance is symmetric, and refused where it is not."""

import pytest

from statewise.strips.exact.ground import learn_exact
from statewise.strips.exact.symmetry import symmetric, symmetries
from statewise.strips.model.traces import Traces
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces
from statewise.strips.verification.verification import verify


def test_symmetries_permute_objects_of_one_sort():
    actions = ("go a b", "go b a", "load p a", "load p b", "load q a", "load q b")
    found = symmetries(actions)
    assert len(found) == 3
    for each in found:
        assert sorted(each) == list(range(6))
        assert (each[0], each[1]) in ((0, 1), (1, 0))
    assert len(symmetries(actions, most=2)) == 2
    assert symmetries(("go a b", "load p a", "wait")) == []


def test_renamed_traces_are_traces():
    world = domain("ferry:2x2")
    drawn = traces(world, 20, 15, 1)
    found = symmetric(drawn)
    assert (found.used, found.refused) == (3, 0)
    assert len(found.traces) > 3 * len(drawn)
    for row, label in zip(found.traces.rows, found.traces.labels):
        assert world.model.first_rejected(row) == (len(row) - 1 if label else None)


def test_few_traces_are_enough_where_the_instance_is_symmetric():
    world = domain("blocksworld:3")
    learned = learn_exact(symmetric(traces(world, 30, 30, 3)).traces)
    assert verify(learned.model, world, drawn_only=True).outcome == "equivalent"


def test_what_the_traces_contradict_is_refused():
    # `use a` works once, `use b` again and again
    given = Traces(("use a", "use b"), ((0, 0), (1, 1)), (1, 0))
    found = symmetric(given)
    assert (found.used, found.refused) == (0, 1)
    assert found.traces == given
    with pytest.raises(ValueError, match="no renaming of objects"):
        symmetric(Traces(("a", "b"), ((0, 1),), (0,)))
