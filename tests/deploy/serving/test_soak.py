"""The benchmark's soak ends with 0 where every text is the one that its request gets alone, and only there."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import serving

from statewise.deploy.serving.choosing import Choices


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return serving.make_model(tmp_path_factory.mktemp("soak"), small=True)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(serving, "TOKENS", 16)


def soak(model):
    with ThreadPoolExecutor(1) as pool:
        return serving.run_soak(model, pool, 0.1, 8, least=30)


def test_a_server_whose_rows_are_independent_passes(model, capsys):
    assert soak(model) == 0
    assert "wrong: 0 []; rows left: False" in capsys.readouterr().out


@pytest.mark.parametrize("size", [0.0, 0.3])
def test_a_dependence_on_neighbours_is_found(model, monkeypatch, capsys, size):
    check = Choices.check

    def disturbed(self, logits, error=0.0):
        if size == 0:  # a row draws by its place in the batch
            self.first = self.first + sum(self.first[:-1].tolist())
        elif len(logits) > 2:  # its logits depend on the number of rows
            logits = logits + size * logits.roll(1, -1)
        return check(self, logits, error)

    monkeypatch.setattr(Choices, "check", disturbed)
    assert soak(model) == 1
    assert "another text" in capsys.readouterr().out
