"""A run that was cut after any of its file operations can be gone on with, or made again."""

import json
import os
import subprocess
import sys

import pytest
from doubles import SMALL_RUN

from statewise.cli import main
from statewise.run import Run

WORDS = ["train", "path-star-small", *SMALL_RUN, "--backbone.width=8", "--task.held_out_graphs=4", "--trainer.steps=2",
         "--trainer.checkpoint_every=1", "--trainer.evaluate_every=1", "--trainer.warmup_steps=0"]  # fmt: skip

CUT = '''
"""Does what training does to the disk, cut before each of its operations in turn: `BASE/N/run` for each N."""
import itertools, os, shutil, sys
from pathlib import Path
from statewise.run import Run

source, base, replaces = Run(Path(sys.argv[1])), Path(sys.argv[2]), sys.argv[3] == "replaces"
os.fsync = lambda number: None  # which no kill of a process can undo
steps = [(one.step, {"weights.safetensors": one.weights.read_bytes(), "training.pt": one.training.read_bytes()})
         for one in source.checkpoints()]

def work(folder):
    run = Run.create(folder, source.recipe(), source.task_files(), source.environment(), overwrite=replaces)
    with run.lock():
        run.forget_after(0)
        for (step, files) in steps:
            for record in source.metrics():
                if record["step"] == step and record["kind"] != "end":
                    run.log(record)
            run.write_checkpoint(step, files)
            run.mark_best(step, "x", 1.0)
            run.drop_checkpoints(newest=1, keeps=lambda step: False)
        run.log(source.metrics()[-1])
        run.write_report("evaluation", source.report("evaluation"))

def count_down(left):
    def hook(event, arguments):
        nonlocal left
        changes = event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate") or (
            event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        )
        if changes and str(base) in str(arguments[0]):
            if not left:
                os._exit(9)
            left -= 1
    sys.addaudithook(hook)

for number in itertools.count():
    folder = base / str(number) / "run"
    folder.parent.mkdir(parents=True)
    if replaces:
        shutil.copytree(source.folder, folder)
    child = os.fork()
    if not child:
        count_down(number)
        work(folder)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 9:
        break
assert code == 0
print(number)
'''


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source") / "run"
    assert main([*WORDS, "--trainer.keep=every:1", "--out", str(folder)]) == 0
    return folder


@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
@pytest.mark.parametrize("how", ["new", "replaces"])
def test_every_beginning_of_a_run_has_a_way_on(tmp_path, capsys, source, how):
    done = subprocess.run([sys.executable, "-c", CUT, source, tmp_path, how], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    operations = int(done.stdout)
    assert operations > 25
    seen, resumed, made = set(), 0, 0
    for number in range(operations + 1):
        folder = tmp_path / str(number) / "run"
        run = Run(folder)
        state = (run.exists(), (folder / ".creating").exists(), (folder.parent / ".replaced-run").exists(),
                 len(run.checkpoints()), len(run.metrics()) > 0, run.report("evaluation") is not None)  # fmt: skip
        if state in seen:  # the command line is asked once for each kind of state, the run directory for all
            if run.exists():
                assert Run.open(folder).recipe() == Run(source).recipe()
                assert not run.checkpoints() or run.find_checkpoint("last").step in (1, 2)
            else:
                assert Run.create(folder, {}, {}, overwrite=False).recipe() == {}
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
            assert f"{folder} is no run" in error
            assert main([*WORDS, "--out", str(folder)]) == 0, (number, state, capsys.readouterr().err)
            assert [path.name for path in folder.parent.iterdir()] == ["run"]
        assert run.complete()
        assert run.find_checkpoint("best").step in (1, 2)
    assert resumed > 3
    assert made >= 2
    assert main([*WORDS, "--out", str(folder), "--overwrite"]) == 0, capsys.readouterr().err
    assert [path.name for path in folder.parent.iterdir()] == ["run"]


def test_runs_of_seeds_that_never_began_are_begun_with_overwrite(tmp_path, capsys):
    folder = tmp_path / "group"
    folder.mkdir()
    assert main([*WORDS, "--print_config"]) == 0
    (folder / "recipe.yaml").write_text(capsys.readouterr().out)
    (folder / ".seeds.json.writing").write_text("{")
    words = [*WORDS, "--seeds", "1", "--out", str(folder)]
    assert main(words) == 2
    assert "or --overwrite" in capsys.readouterr().err
    assert main([*words, "--overwrite"]) == 0
    assert json.loads((folder / "seeds.json").read_text()) == {"seeds": [1]}
    (folder / "seed-1" / "notes.txt").write_text("years of work")
    assert main([*words, "--overwrite"]) == 2
    assert "seed-1/notes.txt, which is not part of a group of runs" in capsys.readouterr().err
    assert Run(folder / "seed-1").complete()
