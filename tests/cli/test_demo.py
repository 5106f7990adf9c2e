"""statewise demo."""

import json
import shutil

import pytest
from command_line import called, refused

from statewise.cli import demo as command
from statewise.cli import served
from statewise.experiments import demo


def test_the_page_is_written_as_one_file(capsys, tmp_path):
    path = tmp_path / "demo.html"
    code, out, err = called(capsys, "demo", "--export", path)
    assert (code, f"wrote {path}" in out) == (0, True), err
    before = path.read_bytes()
    assert b"Star graph" in before
    assert "exists" in refused(capsys, "demo", "--export", path)
    assert called(capsys, "demo", "--export", path, "--overwrite")[0] == 0
    assert path.read_bytes() == before


def test_without_the_extra_the_recorded_page_opens(capsys, tmp_path, monkeypatch):
    def missing():
        raise ValueError("serving needs the extra `serve`: pip install it")

    shown = []
    monkeypatch.setattr(command, "server_module", missing)
    monkeypatch.setattr(command, "opened", shown.append)
    monkeypatch.setattr(command.tempfile, "mkdtemp", lambda prefix: str(tmp_path))
    code, out, err = called(capsys, "demo")
    assert (code, err) == (0, "")
    assert "pip install it" in out
    assert "statewise demo --train" in out
    assert shown == [(tmp_path / "demo.html").as_uri()]
    assert b"Star graph" in (tmp_path / "demo.html").read_bytes()


def test_the_server_has_the_shipped_models_and_says_how_to_train_them(capsys, monkeypatch):
    def start(models, settings, bound, *, show, recorded, after):
        bound.close()
        after()
        assert [one.name for one in models] == ["next-token", "next-latent", "belief-state"]
        assert (show, recorded["live"], len(recorded["groups"])) == (True, 0, 3)
        return 0

    monkeypatch.setattr(command, "start", start)
    code, out, err = called(capsys, "demo")
    assert (code, "To train these models here: statewise demo --train" in out) == (0, True), err


def test_training_ends_with_the_finding_and_the_report(capsys, tmp_path, monkeypatch, two_steps):
    """The models are runs of two steps, made elsewhere."""
    monkeypatch.setattr(demo, "statewise", lambda *words: ["true"])
    for seed, name in enumerate(demo.OBJECTIVES):
        shutil.copytree(two_steps, tmp_path / name)
        config = tmp_path / name / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "seed": seed}))
    code, out, err = called(capsys, "demo", "--train", "--out", tmp_path)
    assert (code, err) == (0, "")
    assert "branch accuracy" in out or "path accuracy" in out
    assert (tmp_path / "report" / "table.md").exists()


def test_a_model_that_cannot_be_trained_is_named(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "statewise", lambda *words: ["false"])
    assert "could not be trained" in refused(capsys, "demo", "--train", "--out", tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--export", "x.html", "--train"], "not both"),
        (["--seed", "2"], "--seed is for --train"),
        (["--out", "x"], "--out is for --train"),
        (["--overwrite"], "--overwrite is for --export"),
        (["--port", "70000"], "at most 65535"),
        (["--seed", "x", "--train"], "--seed"),
        (["--export", "none/x.html"], "is not a folder"),
        (["--export", "."], "is a folder"),
    ],
)
def test_wrong_options_are_refused_with_a_sentence(capsys, words, message):
    assert message in refused(capsys, "demo", *words)


def test_enter_ends_the_server(monkeypatch):
    raised = []
    monkeypatch.setattr(command.signal, "raise_signal", raised.append)
    wanted = command.threading.Event()
    for line, times in (("", 0), ("\n", 1)):
        monkeypatch.setattr(command.sys, "stdin", type("Keyboard", (), {"readline": lambda self, line=line: line})())
        command._wait(wanted)
        assert len(raised) == times
    assert wanted.is_set()
    assert served.opened is command.opened
