"""The logs of the experiment on event logs, and their exact predictions."""

import math

import event_logs
import numpy as np
import pytest
from event_logs import END, LOGS, cases, exactly

from statewise.data_types import Examples
from statewise.experiments.suite import Chosen


def examples_of(process, some):
    rows = [np.array([process.tokens.index(symbol) for symbol in [*case, END]]) for case in some]
    return Examples.of(rows, [0] * len(rows))


def test_exact_predictions_are_those_of_the_process():
    process = event_logs.orders(noise=0.1)
    tasks = ["bill", "insure", "label", "pack", "pick", "weigh"]
    case = ["register", "ask", "answer", "accept", *tasks, "note", "ship"]
    _, chances = exactly(process, process.tokens, examples_of(process, [case, ["register"]]))
    seen = [1, 0.35, 1, 0.65, *(1 / left for left in range(6, 0, -1))]
    expected = [seen[0], *(0.9 * each for each in seen[1:]), 0.1, 0.9, 0.9 * 0.85]
    np.testing.assert_allclose(chances[0], expected)
    assert chances[1, 1] == 0  # an order is never only registered

    ways = event_logs.loans()
    forward = ["car", "desk 0", "desk 1", "desk 2", "desk 3", "approve"]
    beliefs, chances = exactly(ways, ways.tokens, examples_of(ways, [forward]))
    likelier = 0.7**3 / (0.7**3 + 0.1**3)  # of the way that was seen three times
    assert chances[0, 5] == pytest.approx(0.08 * 0.9)
    assert chances[0, 4] == pytest.approx(0.92 * (0.7**3 + 0.1**3) / (0.7**2 + 0.1**2))
    assert beliefs[0, 5].max() == pytest.approx(likelier)


@pytest.mark.parametrize("name", LOGS)
def test_cases_are_drawn_as_often_as_the_process_says(name):
    process = LOGS[name]()
    drawn = cases(process, np.random.default_rng(0), 400)
    assert max(map(len, drawn)) <= event_logs.LONGEST
    firsts = [case[0] if case else END for case in drawn]
    for token, chance in zip(process.tokens, process.probabilities(process.start[None])[0]):
        assert firsts.count(token) / 400 == pytest.approx(chance, abs=5 * math.sqrt(chance * (1 - chance) / 400) + 1e-9)


def test_the_suite_has_four_models_a_log_and_five_seeds(tmp_path, monkeypatch):
    monkeypatch.setattr(event_logs, "TRAINING", 20)
    monkeypatch.setattr(event_logs, "HELD_OUT", 10)
    chosen = Chosen.of(str(event_logs.write(tmp_path)))
    assert len(chosen.cells) * len(chosen.seeds) == 60
    assert (tmp_path / "loans-held-out.jsonl").read_text().count("\n") == 10
