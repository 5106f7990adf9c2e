"""Initialisations crossed with orders of data."""

import numpy as np
import seed_crossing
import torch

from statewise.model.model import load_model
from statewise.run import Run


def test_weights_come_from_one_seed_and_data_from_the_other(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(seed_crossing, "TINY", (*seed_crossing.TINY, "--trainer.keep=0"))
    words = [str(tmp_path), "--inits", "1-2", "--orders", "1-2", "--smoke"]
    assert seed_crossing.main(words) == 0
    printed = capsys.readouterr().out
    assert printed.count("finished") == 4
    assert printed.count("The initialisation explains") == 2
    assert "| 1 | 2 | 2 |" in printed  # no branch is right after two steps, so all of them count

    def start(init, order):
        return load_model(str(seed_crossing.folder_of(tmp_path, init, order)), "0", "cpu").objective.state_dict()

    first = start(1, 1)
    assert all(torch.equal(first[name], value) for name, value in start(1, 2).items())
    assert not all(torch.equal(first[name], value) for name, value in start(2, 1).items())
    folders = [seed_crossing.folder_of(tmp_path, 1, order) for order in (1, 2)]
    losses = [[record["loss"] for record in Run(folder).metrics() if "loss" in record] for folder in folders]
    assert losses[0] != losses[1]
    assert seed_crossing.main([*words, "--hours", "0", "--length", "5"]) == 0
    assert "finished" not in capsys.readouterr().out


def test_what_explains_the_variance():
    rng = np.random.default_rng(0)
    by_init = {(init, order): float(init % 2) for init in range(1, 5) for order in range(1, 5)}
    assert seed_crossing.explained(by_init, 0, rng)[0] == 1
    share, p = seed_crossing.explained(by_init, 0, rng)
    assert (share, p < 0.01) == (1, True)
    assert seed_crossing.explained(by_init, 1, rng) == (0, 1)
    assert seed_crossing.explained(dict.fromkeys(by_init, 0.5), 0, rng) == (0, 1)
