"""The belief in arrays of activations: against belief-geometry, controls, warnings, bad files."""

import itertools
import json
import zipfile

import numpy as np
import pytest

import statewise
from statewise import beliefs
from statewise.analysis.beliefs.least_squares import fit, r2
from statewise.cli import main

RRXOR = beliefs.named("rrxor")


def drawn(n=300, length=12, process=RRXOR, seed=0):
    tokens = process.draw(np.random.default_rng(seed), n, length)
    return tokens, process.posteriors(tokens)[0]


def linear(posteriors, width=9, noise=0.0, seed=1):
    rng = np.random.default_rng(seed)
    return posteriors @ rng.normal(size=(posteriors.shape[-1], width)) + noise * rng.normal(size=width)


def test_all_words_by_probability_are_weighted_least_squares_over_prefixes():
    """From scratch, prefix by prefix."""
    tokens = np.array(
        [word for word in itertools.product(range(2), repeat=8) if RRXOR.posteriors(np.array([word]))[1].all()]
    )
    posteriors, _ = RRXOR.posteriors(tokens)
    activations = np.tanh(linear(posteriors, width=3))
    probed = statewise.probe_beliefs(activations[:, 1:], tokens, "rrxor", weighting="probability")
    truth, features, weights = {}, {}, {}
    for row, word in enumerate(tokens):
        for t in range(1, 5):
            prefix = tuple(word[:t])
            truth[prefix], features[prefix] = posteriors[row, t], activations[row, t]
            weights[prefix] = RRXOR.posteriors(np.array([prefix]))[1].prod() / 4
    Y, X, w = (np.array(list(each.values())) for each in (truth, features, weights))
    assert probed.prefixes == len(w)
    assert w.sum() == pytest.approx(1)
    predicted = fit(X, Y, w, 1e-6)(X)
    assert probed.metrics["r2"] == pytest.approx(r2(predicted, Y, w))
    lengths = np.array([len(prefix) for prefix in truth])
    for length, found in probed.by_length.items():
        here = lengths == length
        assert found == pytest.approx(r2(predicted[here], Y[here], w[here]))
    assert probed.longest == 4
    assert not probed.warnings


def test_rows_count_equally_and_several_layers_are_concatenated():
    tokens, posteriors = drawn(400)
    first, second = (linear(posteriors[:, 1:, part], seed=seed) for seed, part in ((1, [0, 1]), (2, [2, 3])))
    noise = np.random.default_rng(3).normal(size=(400, 12, 4))
    found = statewise.probe_beliefs(
        {"one": first, "two": second}, tokens, RRXOR, untrained={"one": noise, "two": 2 * noise}
    )
    assert found.metrics["r2_concat"] == pytest.approx(1)
    assert max(found.metrics["r2"], found.metrics["r2_one"]) < 0.9
    assert found.metrics["r2_untrained"] == pytest.approx(found.metrics["r2_untrained_one"])
    assert 0.15 < found.metrics["r2_next_token"] < 0.35
    assert "the last state of an untrained model explains" in found.verdict
    assert {"r2_history_1", "r2_history_all", "r2_shuffled", "r2_shuffled_concat"} <= set(found.metrics)
    alone = statewise.probe_beliefs(second, tokens, RRXOR)
    assert alone.metrics["r2"] == found.metrics["r2"]
    assert alone.metrics["r2_held_out"] <= alone.metrics["r2"]
    assert "exact next-token probabilities alone explain" in alone.verdict
    assert f"{alone.metrics['r2']:.4f}" in str(alone)


def test_states_may_begin_with_an_opening_token_or_be_of_whole_rows():
    tokens, posteriors = drawn(400, 6)
    opened = statewise.probe_beliefs(linear(posteriors), tokens, RRXOR)
    assert opened.metrics["r2"] == pytest.approx(1)
    assert opened.longest == 3
    whole = statewise.probe_beliefs(linear(posteriors)[:, -1], tokens, RRXOR, trained_length=12)
    assert whole.metrics["r2"] == pytest.approx(1)
    assert (whole.longest, list(whole.by_length)[-1]) == (6, 6)
    assert not whole.warnings
    ends = posteriors[:, -1]
    distinct = {tuple(row): place for place, row in enumerate(tokens.tolist())}
    assert whole.prefixes == len(distinct)
    tiger = beliefs.named("tiger")
    tokens, posteriors = drawn(300, 12, tiger)
    found = statewise.probe_beliefs(linear(tiger.told(posteriors))[:, 1:], tokens, "tiger")
    assert found.metrics["r2"] == pytest.approx(1)
    assert [length for length, value in found.by_length.items() if value == value] == [2, 4, 6], "observations"
    assert ends.shape == (400, 5)


def test_warnings_of_short_rows_few_prefixes_and_states_that_read_more():
    tokens, posteriors = drawn(200, 10)
    activations = linear(posteriors[:, 1:])
    assert not statewise.probe_beliefs(activations, tokens, RRXOR, longest=5).warnings
    (short,) = statewise.probe_beliefs(activations, tokens, RRXOR, longest=8).warnings
    assert "prefixes of up to 8 tokens are measured of rows of 10" in short
    assert "at least 16 tokens" in short
    assert not statewise.probe_beliefs(activations, tokens, RRXOR, longest=8, trained_length=16).warnings
    noise = np.random.default_rng(0).normal(size=(200, 10, 300))
    crowded = statewise.probe_beliefs(noise, tokens, RRXOR)
    assert "are too few for the 301 columns" in crowded.warnings[0]
    assert crowded.verdict.startswith("Too few prefixes")
    assert any("states after equal prefixes of 1 tokens differ" in one for one in crowded.warnings)
    few = statewise.probe_beliefs(linear(posteriors[:, 1:], width=60), tokens, RRXOR, longest=5)
    assert any("are few for the 61 columns" in one for one in few.warnings)


TOKENS, POSTERIORS = drawn(40, 6)
GOOD = {"tokens": TOKENS, "activations": linear(POSTERIORS)[:, 1:]}
HOLED = GOOD["activations"].copy()
HOLED[3, 2, 1] = np.nan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activations": HOLED}, "row 3, position 2, column 1 is not a finite number"),
        ({"activations": np.zeros((40, 5, 2))}, "must be (n, T, D), (n, T + 1, D) or (n, D) for tokens of shape"),
        ({"activations": np.zeros((41, 6, 2))}, "not (41, 6, 2)"),
        ({"activations": np.zeros((40, 6, 0))}, "not (40, 6, 0)"),
        ({"activations": np.zeros(40)}, "not (40,)"),
        ({"activations": np.full((40, 6, 2), "a")}, "must be numbers, not <U1"),
        ({"activations": np.zeros((40, 6, 2), complex)}, "must be numbers, not complex128"),
        ({"activations": None}, "there is no array named activations"),
        ({"tokens": None}, "there is no array named tokens"),
        ({"tokens": TOKENS + 0.0}, "tokens must be whole numbers (n, T), not float64"),
        ({"tokens": TOKENS[:, 0]}, "tokens must be whole numbers (n, T)"),
        ({"tokens": TOKENS + 5}, "token 6 does not exist"),
        ({"tokens": TOKENS - 5}, "does not exist, and the process has the tokens 0 to 1"),
        ({"tokens": np.ones_like(TOKENS)}, "has probability 0 after those before it"),
        ({"untrained": np.zeros((40, 2))}, "untrained must have the same names and positions"),
        ({"activations.7": np.zeros((40, 2))}, "must have the same positions"),
        ({"activations.concat": GOOD["activations"]}, "none before the last that is named state or concat"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_a_sentence(change, message, tmp_path, capsys):
    path = tmp_path / "[red]a.npz"
    np.savez(path, **{key: array for key, array in {**GOOD, **change}.items() if array is not None})
    assert main(["probe-beliefs", str(path), "--process", "rrxor"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert str(path) in said
    assert "Traceback" not in said


def test_files_are_not_unpickled_and_odd_ones_refused(tmp_path, capsys):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    path = tmp_path / "a.npz"

    def said():
        assert main(["probe-beliefs", str(path), "--process", "rrxor"]) == 2
        return capsys.readouterr().err

    np.savez(path, tokens=TOKENS, activations=np.array([Trap()], dtype=object))
    assert "not an NPZ file of activations" in said()
    assert not (tmp_path / "sprung").exists()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("activations.npy", b"\x93NUMPY\x01\x00\x0b\x00{'descr': (")
    assert "not an NPZ file of activations" in said()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("activations.npy", b"no array")
        archive.writestr("tokens.npy", b"")
    assert "not an NPZ file of activations" in said()
    path.write_bytes(b"")
    assert "not an NPZ file of activations" in said()
    np.save(tmp_path / "b.npy", np.zeros(3))
    path.write_bytes((tmp_path / "b.npy").read_bytes())
    assert "not an NPZ file of activations" in said()
    path.unlink()
    path.mkdir()
    assert str(path) in said()
    np.savez(tmp_path / "good.npz", **GOOD)
    for words, message in (
        (["--longest", "7"], "longest must be at most 6"),
        (["--process", "nothing"], "unknown process"),
        (["--longest", "0"], "--longest must be"),
    ):
        assert main(["probe-beliefs", str(tmp_path / "good.npz"), "--process", "rrxor", *words]) == 2
        assert message in capsys.readouterr().err
    assert main(["probe-beliefs", str(tmp_path / "good.npz"), "--process", "rrxor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["r2"] == pytest.approx(1)
    with pytest.raises(ValueError, match="at least 10 are needed"):
        statewise.probe_beliefs(GOOD["activations"][:1], TOKENS[:1], RRXOR)
    with pytest.raises(ValueError, match="weighting must be"):
        statewise.probe_beliefs(GOOD["activations"], TOKENS, RRXOR, weighting="words")
