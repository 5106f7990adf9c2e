"""Seen windows say exactly which atoms accept the valid traces, and what every such model accepts."""

from hypothesis import given, settings
from hypothesis import strategies as st
from strips_oracle import can_require, effects, false_before, some_traces

from statewise.strips.exact.windows import Windows, holders_of, longest, windows_of


def test_the_windows_of_a_trace():
    found = list(windows_of((0, 1, 0, 2)))
    assert found == [[], [(0, 0, 1)], [(1, 0, 0), (0, 2, 0)], [(0, 0, 2), (1, 1, 2)]]


def test_windows_from_a_position_on():
    row = (0, 1, 0, 2, 1)
    assert list(windows_of(row, start=3)) == list(windows_of(row))[3:]


def test_only_minimal_windows_are_kept():
    windows = Windows(3)
    windows.add((0, 1, 2))
    assert windows.minimal[0, 2] == [0b10]
    windows.add((0, 2))
    assert windows.minimal[0, 2] == [0]
    windows.insert(0, 0b10, 2)
    assert windows.minimal[0, 2] == [0]
    assert len(windows) == len(list(windows)) == 3
    assert windows.seen == 0b111


def test_rows_that_begin_others_are_left_out():
    assert longest([(0, 1), (0,), (0, 1, 2), (1,), ()]) == [(0, 1, 2), (1,)]


@settings(max_examples=100, deadline=None)
@given(some_traces())
def test_atoms_may_require_what_never_happened_while_they_were_false(traces):
    windows = Windows.of(traces)
    for delete, add in effects(3):
        if delete:
            assert windows.required(delete, add) == can_require(traces, delete, add)


@settings(max_examples=60, deadline=None)
@given(some_traces(), some_traces())
def test_an_action_is_certain_iff_no_sound_atom_rejects_it(traces, others):
    windows = Windows.of(traces)
    sound = [(delete, add, can_require(traces, delete, add)) for delete, add in effects(3)]
    for row in others.rows:
        rejected = any(
            required >> row[-1] & 1 and false_before(row, delete, add)[len(row) - 1] for delete, add, required in sound
        )
        assert bool(windows.new(row)) == rejected


@settings(max_examples=60, deadline=None)
@given(some_traces(), st.integers(1, 3))
def test_a_window_counts_if_enough_traces_imply_it(traces, support):
    """Straight from the definition: an atom accepts the windows that count iff it accepts each seen window that lies
    above windows of `support` traces."""
    windows = Windows.supported(3, holders_of(traces), support)
    mine = [
        {w for at in windows_of(row[: len(row) - label]) for w in at} for row, label in zip(traces.rows, traces.labels)
    ]
    for x, between, c in set().union(*mine):
        implying = sum(any((a, b) == (x, c) and w & between == w for a, w, b in some) for some in mine)
        assert windows.contains_seen(x, between, c) == (implying >= support)


@given(some_traces())
def test_windows_of_one_trace_are_all_windows(traces):
    as_sets = [
        {pair: set(some) for pair, some in each.minimal.items()}
        for each in (Windows.supported(3, holders_of(traces), 1), Windows.of(traces))
    ]
    assert as_sets[0] == as_sets[1]
