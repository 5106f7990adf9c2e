"""`statewise doctor`: what it says of this machine, and that it finds what does not work."""

import json

import pytest
from command_line import called

from statewise.experiments import doctor
from statewise.runtime import messages


def test_it_says_what_is_here_and_that_it_works(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = called(capsys, "doctor", "--json", "--out", str(tmp_path))
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["passed"] is True
    assert [check["passed"] for check in found["checks"]] == [True] * 3
    assert sum(check["seconds"] for check in found["checks"]) > 0
    assert {"statewise", "Python", "torch"} <= found["versions"].keys()
    assert {"processor", "instructions", "memory", "trains on"} <= found["machine"].keys()
    assert all(sentence.endswith(".") for sentence in found["slow"])
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"


def test_what_fails_is_named_and_the_exit_code_is_1(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    made = [doctor.Check("a tiny run trains", True, 1.5, ""), doctor.Check("it resumes", False, 0.5, "ValueError: no")]
    monkeypatch.setattr(doctor, "self_test", lambda folder: made)
    code, out, _ = called(capsys, "doctor", "--out", str(tmp_path))
    assert code == 1
    assert "a tiny run trains  passed (1.5 s)" in out
    assert "FAILED: ValueError: no" in out
    assert out.endswith("This does not work here: it resumes.\n")
    assert max(map(len, out.splitlines())) <= 80


def test_errors_of_a_check_are_told_with_their_kind(monkeypatch, tmp_path):
    def broken(*_, **__):
        raise OSError("no space")

    monkeypatch.setattr("statewise.experiments.launch.train", broken)
    checks = doctor.self_test(tmp_path)
    assert [check.passed for check in checks] == [False] * 3
    assert checks[0].message == "OSError: no space"


def test_extras_name_their_packages_and_how_to_install_what_is_missing(monkeypatch):
    required = ["torch>=2", 'absent-one>=1; extra == "lone"', 'numpy>=1; extra == "full"', 'x; extra == "dev"']
    monkeypatch.setattr(messages.metadata, "requires", lambda name: required)

    class Metadata:
        def get_all(self, key):
            return ["lone", "full", "dev"]

    monkeypatch.setattr(doctor.metadata, "metadata", lambda name: Metadata())
    full, lone = doctor.extras()
    assert (full.name, full.install, *full.packages) == ("full", "", "numpy")
    assert lone.packages == {"absent-one": None}
    assert lone.install.endswith('-m pip install "absent-one>=1"')


@pytest.mark.parametrize("words", [["more"], ["--out", "no/such/folder"], ["--out", ""], ["--jsn"]])
def test_bad_words_are_refused(capsys, words):
    code, out, err = called(capsys, "doctor", *words)
    assert (code, out) == (2, "")
    assert err.startswith("statewise: ")


def test_slow_things_are_said(monkeypatch, tmp_path):
    monkeypatch.setattr("statewise.training.machine.choose_device", lambda wanted: "cpu")
    monkeypatch.setattr("statewise.training.machine.choose_precision", lambda wanted, device: "fp32")
    monkeypatch.setattr("statewise.training.machine.machine_bytes", lambda: 2**30)
    monkeypatch.setattr(doctor, "_sync", lambda folder: 0.25)
    told = " ".join(doctor.slow(tmp_path))
    assert "no bf16 instructions" in told
    assert "250 ms" in told
    assert "1.0 GiB of memory" in told
