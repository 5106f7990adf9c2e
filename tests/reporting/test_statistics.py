import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from statewise.reporting.statistics import equivalence, summarise, welch


def test_interval_is_students(tmp_path):
    summary = summarise({1: 1.0, 2: 2.0, 3: 4.0}, None)
    low, high = stats.t.interval(0.95, 2, loc=7 / 3, scale=stats.sem([1.0, 2.0, 4.0]))
    assert summary.interval == pytest.approx((low, high))
    assert summarise({1: 1.0}, [1.0, 2.0]).interval is None


def test_welch_is_silent_where_it_is_not_defined():
    assert welch([1.0], [1.0, 2.0]) is None
    assert welch([1.0, 1.0], [1.0, 1.0]) is None
    assert welch([1.0, 1.1], None) is None


def by_hand(a, b):
    """Difference of means, its standard error and the degrees of freedom (Welch and Satterthwaite)."""
    spreads = [sum((x - sum(v) / len(v)) ** 2 for x in v) / (len(v) - 1) / len(v) for v in (a, b)]
    freedom = sum(spreads) ** 2 / sum(spread**2 / (len(v) - 1) for spread, v in zip(spreads, (a, b)))
    return sum(a) / len(a) - sum(b) / len(b), sum(spreads) ** 0.5, freedom


@given(
    st.lists(st.integers(-50, 50), min_size=2, max_size=5, unique=True),
    st.lists(st.integers(-50, 50), min_size=2, max_size=5, unique=True),
    st.floats(0.1, 100),
)
def test_one_sided_tests_and_equivalence_are_as_by_hand(a, b, margin):
    difference, error, freedom = by_hand(a, b)
    tail = stats.t(freedom).sf
    assert welch(a, b, "greater") == pytest.approx(tail(difference / error))
    assert welch(a, b, "less") == pytest.approx(tail(-difference / error))
    assert welch(a, b) == pytest.approx(2 * tail(abs(difference) / error))
    expected = max(tail((difference + margin) / error), tail((margin - difference) / error))
    assert equivalence(a, b, margin) == pytest.approx(expected)
    assert equivalence(b, a, margin) == pytest.approx(expected)


def test_three_seeds_as_in_a_paper():
    """A worked case: differences of 0.0153 and margins of 0.01 at a spread of 0.001."""
    better, worse = [2.999, 3.000, 3.001], [3.0143, 3.0153, 3.0163]
    assert summarise({0: 2.999, 1: 3.0, 2: 3.001}, None).interval == pytest.approx(
        (3 - 0.002484, 3 + 0.002484), abs=1e-6
    )
    # t = 0.0153 / (0.001 sqrt(2/3)) = 18.74 with 4 degrees of freedom
    assert welch(better, worse, "less") == pytest.approx(2.39e-5, rel=0.01)
    assert equivalence(better, worse, 0.01) > 0.99
    # t = (0.01 - 0.002) / 0.000816 = 9.80
    assert equivalence(better, [3.001, 3.002, 3.003], 0.01) == pytest.approx(3.04e-4, rel=0.01)
