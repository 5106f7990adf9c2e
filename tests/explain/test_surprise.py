"""Surprise of tokens, calibration, prefix lengths, drift and states, against sums by hand."""

import numpy as np
import pytest
import torch

from statewise.data_types import Examples
from statewise.explain.calibration import LEAST_TOKENS, by_prefix, prefix_panel, reliability, reliability_panel
from statewise.explain.states import nearest, plane, states_at
from statewise.explain.surprise import drift, drift_sentence, likeliest, read


class Table:
    """A predictor whose next token depends on the last one alone; its state is that token and the number before it."""

    vocabulary = 3
    P = torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.0, 1.0], [0.1, 0.2, 0.7]])

    def logits(self, batch):
        return self.P[batch.tokens].log()

    def states(self, batch):
        places = torch.arange(batch.tokens.shape[1]).expand(batch.tokens.shape)
        state = torch.stack([batch.tokens.float(), places.float()], -1)
        return type("Hidden", (), {"state": state})()


EXAMPLES = Examples.of([np.array(row) for row in ([0, 1, 2], [2, 2, 0, 0], [1, 2])], [0, 2, 0])


def test_surprise_is_minus_log_probability_and_its_expectation_the_entropy():
    reading = read(Table(), EXAMPLES)
    assert reading.scored.tolist() == [
        [False, True, True, False],
        [False, False, True, True],
        [False, True, False, False],
    ]
    assert reading.nats[0] == pytest.approx([0, np.log(4), 0, 0], abs=1e-6)
    assert reading.nats[1] == pytest.approx([0, 0, np.log(10), np.log(2)], abs=1e-6)
    halves = 0.5 * np.log(2) + 0.5 * np.log(4)
    mixed = -(0.1 * np.log(0.1) + 0.2 * np.log(0.2) + 0.7 * np.log(0.7))
    assert reading.entropy[1] == pytest.approx([0, 0, mixed, halves], abs=1e-6)
    assert reading.entropy[0, 2] == pytest.approx(0, abs=1e-6)  # a certain event, whose p log p is 0 log 0
    assert reading.chosen.tolist() == [[-1, 0, 2, -1], [-1, -1, 2, 0], [-1, 2, -1, -1]]
    assert reading.chance[1] == pytest.approx([0, 0, 0.7, 0.5])
    assert reading.per_token == pytest.approx([np.log(4) / 2, np.log(20) / 2, 0], abs=1e-6)
    assert reading.excess[1] == pytest.approx(np.log(20) - mixed - halves, abs=1e-6)
    assert [token for token, _ in likeliest(Table(), EXAMPLES, 1, 2, 9)] == [2, 1, 0]
    assert np.isnan(read(Table(), Examples.of([np.array([1])], [0])).per_token).all()


def test_reliability_by_hand():
    found = reliability(np.array([0.95, 0.91, 0.95, 1.0, 0.35]), np.array([True, True, True, False, True]))
    assert [(one.low, one.high, one.count) for one in found.bins] == [(0.3, 0.4, 1), (0.9, 1.0, 4)]
    assert found.bins[1].right == 0.75
    assert found.error == pytest.approx(0.8 * (0.9525 - 0.75) + 0.2 * 0.65)
    assert found.sureness == pytest.approx(0.832 - 0.8)
    assert reliability_panel(found).curves[1].y == [1.0, 0.75]


def test_prefix_lengths_are_pooled_until_points_have_enough_tokens():
    scored = np.zeros((40, 30), bool)
    scored[:, 1] = scored[:, 2] = True
    scored[:3, 3:20] = True
    values = np.broadcast_to(np.arange(30.0), scored.shape)
    found = by_prefix(scored, {"model": values, "other": 2 * values})
    assert sum(found.counts) == scored.sum()
    assert min(found.counts) >= LEAST_TOKENS
    assert found.lengths[:2] == [1.0, 2.0]
    assert found.means["model"] == pytest.approx(found.lengths)
    assert found.means["other"] == pytest.approx([2 * length for length in found.lengths])
    panel = prefix_panel(found, "nats", shares=False)
    assert [curve.band is None for curve in panel.curves] == [False, True]
    alone = by_prefix(np.ones((2, 1), bool), {"model": np.ones((2, 1))})
    assert (alone.counts, alone.means) == ([2], {"model": [1.0]})


def test_drift_is_found_where_it_is_and_only_there():
    rng = np.random.default_rng(0)
    false_alarms = sum(drift(rng.gamma(2, size=80), rng.gamma(2, size=120)).drifts for _ in range(200))
    assert false_alarms <= 20  # of 200 at a level of .05: more with a probability of .002
    covered = 0
    for _ in range(200):
        found = drift(rng.gamma(2, size=80) + 0.5, rng.gamma(2, size=120))
        covered += found.low <= 0.5 <= found.high
    assert covered >= 180
    found = drift(np.append(rng.gamma(2, size=300) + 2, np.nan), rng.gamma(2, size=300))
    assert found.drifts
    assert found.cases == 300
    assert found.above > 0.8
    assert drift_sentence(found, "june.csv", "may.csv").startswith(
        "The cases of june.csv surprise the model more than those of may.csv"
    )
    same = drift(np.ones(10), np.ones(10))
    assert (same.p_value, same.low, same.high, same.above) == (1.0, 0.0, 0.0, 0.5)
    assert drift_sentence(same, "a", "b").startswith("No drift found")
    assert drift(np.ones(10), np.zeros(10)).p_value == 0.0
    with pytest.raises(ValueError, match="at least 10 scored cases in each file, and there are 10 and 9"):
        drift(np.ones(10), np.append(np.ones(9), np.nan))


@pytest.mark.filterwarnings("error")
def test_copies_of_one_case_do_not_alarm_a_reader():
    mixed = np.tile([1.5, 2.0], 10)
    assert drift(mixed, np.full(12, 2.0)).drifts
    assert not drift(np.full(12, 2.0), np.full(10, 2.0)).drifts


def test_states_are_those_of_their_places():
    places = np.array([[1, 3], [0, 0], [1, 0], [2, 1]])
    assert states_at(Table(), EXAMPLES, places).tolist() == [[0, 3], [0, 0], [2, 0], [2, 1]]


def test_the_plane_has_the_most_variance():
    rng = np.random.default_rng(0)
    states = rng.normal(size=(200, 5)) * [3, 0.1, 2, 0.1, 0.1] + 7
    found = plane(states)
    assert sum(found.shares) > 0.99
    assert abs(np.corrcoef(found.places[:, 0], states[:, 0])[0, 1]) > 0.99
    assert found.places.var(axis=0) / states.var(axis=0).sum() == pytest.approx(found.shares)
    assert plane(np.ones((3, 4))).shares == (0, 0)
    assert plane(np.array([[1.0], [2.0]])).places[:, 1].tolist() == [0, 0]


def test_nearest_states_by_hand():
    order, distances = nearest(np.array([[0.0], [1.0], [5.0]]), 9)
    assert order.tolist() == [[1, 2], [0, 2], [1, 0]]
    assert distances.tolist() == [[1, 5], [1, 4], [4, 5]]
    assert nearest(np.zeros((1, 2)), 5)[0].shape == (1, 0)
