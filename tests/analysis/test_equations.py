import dataclasses

import pytest
import torch
from doubles import MarkovPredictor, subject

from statewise.analysis import make_analysis
from statewise.data_types import Completion
from statewise.tasks.countdown import Countdown, CountdownConfig
from statewise.tasks.path_star import PathStar, PathStarConfig

LINES = ["1,2,4,12|1+2=3,3*4=12", "1,2,4,12|2-1=1,3*4=12", "1,2,4,12|2-1=1,4+1=12", "1,2,4,12|2*1=2,4*2=12"]


def test_each_equation_is_looked_at_by_itself():
    task = Countdown(CountdownConfig(numbers=3, largest_input=9, highest_target=12, largest=60, held_out_targets=0))
    examples = task.held_out(4)
    answers = [Completion(task.encode(line.partition("|")[2]), 0.0) for line in LINES]
    asked = []

    def complete(examples):
        asked.append(examples)
        return answers

    looked_at = subject(MarkovPredictor(torch.eye(len(task.vocab))), task)
    found = make_analysis("equations", sequences=4).analyze(dataclasses.replace(looked_at, complete=complete))
    (curve,) = found.panels[0].curves
    assert (curve.label, curve.x, curve.y) == ("step 9", [1.0, 2.0], [1.0, 0.5])
    assert found.panels[0].shares
    assert (found.metrics["equation_1_valid"], found.metrics["equation_2_valid"]) == (1.0, 0.5)
    assert found.metrics["num"] == 4
    assert {"accuracy", "legal_operands", "reaches_target"} < set(found.metrics)
    assert len(asked) == 1
    assert (asked[0].tokens == examples.tokens).all()


def test_the_model_itself_is_asked_greedily():
    """It says the next token id after any: no equation holds, and every answer has the full length."""
    task = Countdown(CountdownConfig(numbers=3, largest_input=9, highest_target=12, largest=20, held_out_targets=0))
    predictor = MarkovPredictor(torch.eye(len(task.vocab)).roll(1, dims=1).clamp(min=1e-3))
    completions = subject(predictor, task).complete(task.held_out(3))
    assert [completion.tokens.tolist() for completion in completions] == [list(range(11))] * 3
    found = make_analysis("equations", sequences=3).analyze(subject(predictor, task))
    assert found.panels[0].curves[0].y == [0.0, 0.0]


def test_tasks_without_equations_and_settings_without_sense_are_refused():
    star = PathStar(PathStarConfig(held_out_graphs=5))
    with pytest.raises(ValueError, match="not equations"):
        make_analysis("equations").analyze(subject(MarkovPredictor(torch.eye(len(star.vocab))), star))
    with pytest.raises(ValueError, match="sequences must be at least 1, not 0"):
        make_analysis("equations", sequences=0)
