"""Noisy traces: what recurs is learned, the rest is left unexplained."""

import json

import pytest

from statewise.strips.exact.noisy import learn_noisy
from statewise.strips.methods import learn
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces, with_noise
from statewise.strips.verification.verification import verify

FERRY = domain("ferry:2x1")
CLEAN = traces(FERRY, 300, 20, 1)


@pytest.mark.parametrize("kind", ["labels", "actions"])
@pytest.mark.parametrize("spec", ["blocksworld:2", "ferry:2x1"])
def test_the_domain_is_found_in_noisy_traces(spec, kind):
    clean = traces(domain(spec), 500, 20, 1)
    noisy = with_noise(clean, 0.05, kind, 1)
    learned = learn_noisy(noisy)
    assert verify(learned.model, domain(spec), drawn_only=True)
    assert 0.94 < learned.report["training_accuracy"] < 0.97  # what is noisy stays unexplained


def test_clean_traces_are_learned_too():
    learned = learn_noisy(CLEAN)
    assert learned.report["training_accuracy"] == 1
    assert verify(learned.model, FERRY, drawn_only=True)


def test_a_window_of_too_few_traces_does_not_count(tmp_path):
    report = learn(with_noise(CLEAN, 0.05, "labels", 1), method="exact", noisy=True, folder=tmp_path / "out").report
    tried = {int(support): accuracy for support, accuracy in report["accuracies"].items()}
    assert tried[report["support"]] == max(tried.values()) > tried[2]
    assert json.loads((tmp_path / "out" / "report.json").read_text())["support"] == report["support"]
    with pytest.raises(FileExistsError):
        learn(CLEAN, method="exact", noisy=True, folder=tmp_path / "out")


def test_what_is_stopped_says_what_is_missing():
    noisy = with_noise(CLEAN, 0.05, "labels", 1)
    report = learn_noisy(noisy, stop=lambda: True).report
    assert any("trying windows" in text for text in report["unfinished"])


def test_without_negatives_damage_is_not_told_from_rarity():
    with pytest.raises(ValueError, match="without negative traces"):
        learn_noisy(CLEAN.valid_only())
