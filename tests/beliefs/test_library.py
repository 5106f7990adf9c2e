"""`statewise.beliefs` and its command: exact posteriors, entropy rates, files, without torch."""

import itertools
import json
import subprocess
import sys

import numpy as np
import pytest

from statewise import beliefs
from statewise.beliefs import entropy
from statewise.cli import main


def test_the_library_and_its_command_need_no_torch(tmp_path):
    code = f"""
import sys
sys.modules["torch"] = None
from statewise import beliefs, probe_beliefs
process = beliefs.named("mess3")
import numpy as np
process.posteriors(process.draw(np.random.default_rng(0), 3, 4)), beliefs.entropy_rate(beliefs.named("z1r"))
from statewise.cli import main
main(["beliefs", "tiger", "--num", "40", "--length", "8", "--out", r"{tmp_path / "t.npz"}"])
data = dict(np.load(r"{tmp_path / "t.npz"}"))
print(probe_beliefs(data["beliefs"], data["tokens"], "tiger").metrics["r2"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) == pytest.approx(1)


def bayes(T, start, word):
    """The distribution of the last hidden state, and the probability of the word, as sums over all paths."""
    found = np.zeros(T.shape[1])
    for path in itertools.product(range(T.shape[1]), repeat=len(word) + 1):
        weight = start[path[0]]
        for before, token, after in zip(path, word, path[1:]):
            weight *= T[token, before, after]
        found[path[-1]] += weight
    return found / max(found.sum(), 1e-300), found.sum()


def test_what_is_written_is_bayes_rule_over_hidden_paths(tmp_path, capsys):
    out = tmp_path / "data.npz"
    matrices = np.random.default_rng(0).dirichlet(np.full(6, 0.5), 3).reshape(3, 2, 3).transpose(1, 0, 2)
    start = np.array([0.2, 0.5, 0.3])
    own = {"matrices": matrices.tolist(), "tokens": ["tick", "tock"], "start": start.tolist()}
    (tmp_path / "own.json").write_text(json.dumps(own))
    words = ["beliefs", str(tmp_path / "own.json"), "--num", "6", "--length", "5", "--out", str(out)]
    assert main([*words, "--seed", "3"]) == 0
    assert "6 sequences of 5 tokens, beliefs of 3 coordinates" in capsys.readouterr().out
    data = dict(np.load(out, allow_pickle=False))
    assert {key: array.shape for key, array in data.items()} == {
        "tokens": (6, 5), "beliefs": (6, 5, 3), "next_tokens": (6, 5, 2), "entropy": (6, 5), "nats": (6, 5),
        "start": (3,), "start_next_tokens": (2,), "floors": (5,), "token_names": (2,),
    }  # fmt: skip
    assert data["token_names"].tolist() == ["tick", "tock"]
    for row, word in enumerate(data["tokens"]):
        whole = 1.0
        for t in range(1, 6):
            belief, probability = bayes(matrices, start, word[:t])
            np.testing.assert_allclose(data["beliefs"][row, t - 1], belief, atol=1e-12)
            assert data["nats"][row, t - 1] == pytest.approx(-np.log(probability / whole))
            whole = probability
            ahead = np.einsum("s,zst->z", belief, matrices)
            np.testing.assert_allclose(data["next_tokens"][row, t - 1], ahead, atol=1e-12)
            assert data["entropy"][row, t - 1] == pytest.approx(-(ahead * np.log(ahead)).sum())
    each = [bayes(matrices, start, word)[1] for word in itertools.product(range(2), repeat=2)]
    first = [bayes(matrices, start, [token])[1] for token in range(2)]
    expected = -sum(p * np.log(p) for p in each) + sum(p * np.log(p) for p in first)
    assert data["floors"][1] == pytest.approx(expected)
    made = beliefs.from_matrices(matrices, ["tick", "tock"], start)
    again = beliefs.known_beliefs(made, made.draw(np.random.default_rng(3), 6, 5))
    np.testing.assert_array_equal(again["tokens"], data["tokens"])
    before = out.read_bytes()
    assert main(words) == 2
    assert "exists: choose another --out, or give --overwrite" in capsys.readouterr().err
    assert out.read_bytes() == before
    assert main([*words, "--overwrite"]) == 0
    assert out.read_bytes() != before


RATES = {
    "mess3": 0.79346, "mess3(0.15, 0.6)": 1.08889, "rrxor": np.log(2) * 2 / 3, "z1r": np.log(2) / 3,
    "golden-mean": np.log(2) * 2 / 3, "even": np.log(2) * 2 / 3, "sns": 0.46986, "checksum(n=3, m=2)": 0.75 * np.log(2),
    "mess3 * rrxor": 0.79346 + np.log(2) * 2 / 3, "0.25 z1r + 0.75 even": np.log(2) * (0.25 / 3 + 0.75 * 2 / 3),
}  # fmt: skip


@pytest.mark.parametrize("text", RATES)
def test_entropy_rates_lie_within_their_bounds(text):
    rate = beliefs.entropy_rate(beliefs.named(text))
    assert rate.value == pytest.approx(RATES[text], abs=rate.within + 6e-6)
    assert rate.within < 1e-4


def test_the_rate_does_not_depend_on_the_start_and_generalised_ones_are_bounds(monkeypatch):
    (rrxor,) = beliefs.named("rrxor").factors
    begun = beliefs.from_matrices(rrxor.matrices[0], start=np.eye(5)[0])
    assert beliefs.entropy_rate(begun).value == pytest.approx(np.log(2) * 2 / 3, abs=1e-8)
    walk = beliefs.entropy_rate(beliefs.named("bloch-walk"))
    assert walk.within is None
    assert 1.29 < walk.value < 1.29962, "published for eight tokens"
    monkeypatch.setattr(entropy, "MOST_BELIEFS", 10)
    cut_short = beliefs.entropy_rate(beliefs.named("mess3"))
    assert abs(cut_short.value - 0.79346) < cut_short.within
    assert cut_short.within > 1e-3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mess4"], "unknown process 'mess4'"),
        (["mess3", "--noise", "2"], "noise must be between 0 and 1"),
        (["tiger", "--noise", "0.1"], "noise is not defined for a POMDP"),
        (["mess3", "--num", "-1"], "--num must be"),
        (["mess3", "--num", "1000000000", "--out", "{}/a.npz"], "are too many"),
        (["mess3", "--out", "{}/a.csv"], "--out must end in .npz"),
        (["mess3", "--out", "{}/no/a.npz"], "there is no folder"),
        (["{}", "--out", "{}/a.npz"], "character 1 must be the name of a process"),
        (["{}/none.json"], "none.json"),
        (["{}/folder.pomdp"], "folder.pomdp"),
    ],
)
def test_what_cannot_be_written_is_refused_in_a_sentence(words, message, tmp_path, capsys):
    (tmp_path / "folder.pomdp").mkdir()
    assert main(["beliefs", *(word.format(tmp_path) for word in words)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert not list(tmp_path.glob("*.npz"))


def test_the_table_describes_a_process(capsys):
    assert main(["beliefs", "rrxor"]) == 0
    said = capsys.readouterr().out
    assert "hidden states                5" in said
    assert "distinct beliefs             36" in said
    assert "0.46210 nats per token" in said


def test_tokens_that_are_no_tokens_are_refused_or_not_possible():
    process = beliefs.named("golden-mean")
    found, probabilities = process.posteriors(np.array([[0, 1, 1, 0], [0, 7, 0, 0], [0, -1, 0, 0]]))
    assert np.isnan(found[0, 3:]).all()
    assert np.isnan(found[1:, 2:]).all()
    assert (probabilities[:, 0] > 0).all()
    assert (probabilities[0, 2:] == 0).all()
    for bad in (np.zeros((2, 2)), np.zeros(3, int), np.array([["a"]])):
        with pytest.raises(ValueError, match="tokens must be whole numbers"):
            process.posteriors(bad)
        with pytest.raises(ValueError, match="tokens must be whole numbers"):
            beliefs.known_beliefs(process, bad)
