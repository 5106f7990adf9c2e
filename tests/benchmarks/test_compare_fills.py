"""The interval of a difference between two sets of fills."""

import json

import numpy as np
import pytest
from compare_fills import interval, read

from statewise.evaluation.infilling import Filled


def test_the_interval_is_that_of_stories_and_seeds():
    rng = np.random.default_rng(1)
    story = rng.normal(size=200)
    first = story + 0.5 + 0.01 * rng.normal(size=(3, 200))
    low, high = interval(first, np.stack([story] * 3), np.random.default_rng(0))
    assert 0.49 < low < 0.5 < high < 0.51  # what stories differ by is in both
    seeds = np.array([[0.0], [1.0]]) + np.zeros((2, 200))  # two seeds that differ: means 0, .5 and 1
    assert interval(seeds, np.zeros((2, 200)), np.random.default_rng(0)) == (0, 1)


def test_files_of_other_stories_are_refused(tmp_path):
    for name, prompts in (("a", "xy"), ("b", "xz")):
        lines = [json.dumps(vars(Filled(prompt, "m", "goal", "n"))) for prompt in prompts]
        (tmp_path / name).write_text("\n".join(lines))
    assert len(read([tmp_path / "a", tmp_path / "a"])) == 2
    with pytest.raises(ValueError, match="other stories"):
        read([tmp_path / "a", tmp_path / "b"])
