"""A run that was cut after any of its file operations can be gone on with, or made again."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from doubles import SMALL_RUN

from statewise.cli import main
from statewise.experiments.jobs import RunsOutcome
from statewise.run import Run

pytestmark = pytest.mark.usefixtures("forked")

WORDS = [
    "train",
    "path-star-small",
    *SMALL_RUN,
    "--backbone.width=8",
    "--task.held_out_graphs=4",
    "--trainer.steps=2",
    "--trainer.checkpoint_every=1",
    "--trainer.evaluate_every=1",
    "--trainer.warmup_steps=0",
]

RECORD = '''
"""Trains, and copies the folder before each operation on the disk and at the end: `BASE/N/run` for each N."""
import shutil, sys, os
from pathlib import Path
from statewise.cli import main

base, words = Path(sys.argv[1]), sys.argv[2:]
work, copies, copying = base / "work", 0, False
changing = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate")

def copy():
    global copies, copying
    copying = True
    shutil.copytree(work, base / str(copies))
    copies, copying = copies + 1, False

def hook(event, arguments):
    changes = event in changing or (
        event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    )
    if changes and not copying and str(work) in str(arguments[0]):
        copy()

sys.addaudithook(hook)
assert main(words) == 0
copy()
print(copies - 1)
'''


def run_nothing(folder, *_):
    return RunsOutcome(folder, [])


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source") / "run"
    assert main([*WORDS, "--out", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("how", ["new", "replaces"])
def test_every_beginning_of_a_run_has_a_way_on(tmp_path, capsys, source, how):
    run = tmp_path / "work" / "run"
    run.parent.mkdir()
    words = [*WORDS, "--out", str(run)]
    if how == "replaces":
        shutil.copytree(source, run)
        words.append("--overwrite")
    done = subprocess.run([sys.executable, "-c", RECORD, tmp_path, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    operations = int(done.stdout.splitlines()[-1])
    assert operations > 25
    seen, resumed, made = set(), 0, 0
    for number in range(operations + 1):
        folder = tmp_path / str(number) / "run"
        run = Run(folder)
        state = (
            run.exists(),
            (folder / ".creating").exists(),
            (folder.parent / ".replaced-run").exists(),
            len(run.checkpoints()),
            len(run.metrics()) > 0,
            run.report("evaluation") is not None,
        )
        if state in seen:  # the command line is asked once for each kind of state, the run directory for all
            if run.exists():
                assert Run.open(folder).recipe() == Run(source).recipe()
                assert not run.checkpoints() or run.find_checkpoint("last").step in (1, 2)
            else:
                assert Run.create(folder, {}, {}, overwrite=state[2]).recipe() == {}
                assert [path.name for path in folder.parent.iterdir()] == ["run"]
            continue
        seen.add(state)
        code = main(["train", "--resume", str(folder)])
        error = capsys.readouterr().err
        assert "Traceback" not in error
        resumed += code == 0
        if code:
            made += 1
            assert code == 2
            assert f"{folder} is not a run directory" in error
            if state[2]:  # without --overwrite the old run is back, and stays
                assert main([*WORDS, "--out", str(folder)]) == 2
                assert "or --overwrite" in capsys.readouterr().err
                assert Run.open(folder).recipe() == Run(source).recipe()
                assert run.complete()
            again = [*WORDS, "--out", str(folder), *["--overwrite"] * state[2]]
            assert main(again) == 0, (number, state, capsys.readouterr().err)
            assert [path.name for path in folder.parent.iterdir()] == ["run"]
        assert run.complete()
        assert run.find_checkpoint("best").step in (1, 2)
    assert resumed > 3
    assert made >= 2
    assert main([*WORDS, "--out", str(folder), "--overwrite"]) == 0, capsys.readouterr().err
    assert [path.name for path in folder.parent.iterdir()] == ["run"]


def test_runs_of_seeds_that_never_began_are_begun_by_the_same_command(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "group"
    words = [*WORDS, "--seeds", "1", "--out", str(folder)]
    monkeypatch.setattr("statewise.experiments.seeds._run_all", run_nothing)
    recipe, listed = (f".{name}.0123abcd-7-0.writing" for name in ("recipe.yaml", "seeds.json"))
    for left, more in (("", []), (recipe, []), (listed, ["--resume-if-there"])):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        capsys.readouterr()
        if left:
            assert main([*WORDS, "--print_config"]) == 0
            (folder / "recipe.yaml").write_text(capsys.readouterr().out)
            (folder / left).write_text("{")
            assert main(["train", "--resume", str(folder)]) == 2
            assert "run the command that created it again" in capsys.readouterr().err
            assert main([*words, *more, "--trainer.steps=3"]) == 2
            assert "or --overwrite" in capsys.readouterr().err
        assert main([*words, *more]) == 0
        assert json.loads((folder / "seeds.json").read_text()) == {"seeds": [1]}


def test_runs_of_seeds_are_given_up_only_for_those_that_came_to_be(tmp_path, capsys, monkeypatch, source):
    folder = tmp_path / "group"
    monkeypatch.setattr("statewise.experiments.seeds._run_all", run_nothing)
    words = [*WORDS, "--seeds", "1", "--out", str(folder)]
    assert main(words) == 0
    shutil.copytree(source, folder / "seed-1")

    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert main([*words, "--overwrite"]) == 1
    assert "No space left" in capsys.readouterr().err
    monkeypatch.undo()
    assert Run(folder / "seed-1").complete()
    (folder / "seed-1" / "notes.txt").write_text("years of work")
    assert main([*words, "--overwrite"]) == 2
    assert "seed-1/notes.txt, which is not part of a group of runs" in capsys.readouterr().err
    assert Run(folder / "seed-1").complete()
    (folder / "seed-1" / "notes.txt").unlink()
    monkeypatch.setattr("statewise.experiments.seeds._run_all", run_nothing)
    assert main([*words, "--overwrite"]) == 0
    assert not (folder / "seed-1").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["group"]
