"""Every command that writes what the user names: it has one writer at a time, replaces nothing unasked, and survives a
full disk and a kill."""

import errno
import functools
import io
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from command_line import called
from disk import full, in_thread, tree, watched
from doubles import SMALL_RUN, small_stories

from statewise.cli import lm_eval, main
from statewise.deploy.export import folder_files
from statewise.experiments import seeds
from statewise.experiments.jobs import RunsOutcome
from statewise.model.model import load_model
from statewise.runtime import durable, overwriting
from statewise.strips import domain, learn, traces

COUNTS = ("requests", "generations", "cut", "in_pieces", "without_context", "cut_prompts")
SCORED = {"checkpoint": 2, "lm_eval": "0", "benchmarks": {}, "whole_texts": {}, "counts": dict.fromkeys(COUNTS, 0)}
LLAMA = ["--backbone.norm=rms", "--backbone.positions=rope", "--backbone.mlp=swiglu", "--backbone.bias=false"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder with all that the commands read."""
    folder = tmp_path_factory.mktemp("inputs")
    flags = ["--task.held_out_graphs=4", "--trainer.steps=1", "--trainer.warmup_steps=0"]
    for name, more in (("run", LLAMA), ("slots", ["--backbone=belief_slots", "--backbone.chunk=4"])):
        assert main(["train", "path-star-small", *SMALL_RUN, *flags, *more, "--out", str(folder / name)]) == 0
    task = load_model(folder / "run").task
    drawn = task.held_out(3)
    graphs = [task.decode(row[:length]) for row, length in zip(drawn.tokens, drawn.lengths)]
    (folder / "graphs.txt").write_text("\n".join(graphs) + "\n")
    (folder / "prompt.txt").write_text(graphs[0].partition("=")[0] + "=")
    (folder / "text.txt").write_text(small_stories(20))
    assert main(["data", "city", "--rows", "3", "--columns", "4", "--out", str(folder / "map")]) == 0
    text = ["data", "text", str(folder / "text.txt"), "--tokenizer", "bpe:270", "--held-out", "0.2"]
    assert main([*text, "--out", str(folder / "corpus")]) == 0
    ids = np.random.default_rng(1).integers(1, 200, 200, dtype=np.uint16)
    ids[19::20] = 0  # ends of texts
    np.save(folder / "ids.npy", ids)
    learn(traces(domain("simple"), 60, 8, 1), method="exact", folder=folder / "learned")
    drawn = ["strips", "traces", "simple", "--num", "60", "--max-length", "8"]
    assert main([*drawn, "--out", str(folder / "t.csv")]) == 0
    assert main([*drawn, "--negatives", "0", "--out", str(folder / "valid.csv")]) == 0
    (folder / "rides.txt").write_text("0-0 0-1 E end\n")
    return folder


CHEAP = {
    "data city": ["data", "city", "--rows", "3", "--columns", "4", "--out", "OUT"],
    "data manhattan": ["data", "manhattan", "--from", "IN/map", "--out", "OUT"],
    "data text": ["data", "text", "IN/text.txt", "--tokenizer", "bpe:270", "--held-out", "0.2", "--out", "OUT"],
    "data tokens": ["data", "tokens", "IN/ids.npy", "--tokenizer", "IN/corpus", "--held-out", "0.5", "--out", "OUT"],
    "embed": ["embed", "IN/run", "IN/graphs.txt", "--positions", "all", "--out", "OUT.npy"],
    "evaluate": ["evaluate", "IN/run", "--num", "3", "--losses", "OUT.jsonl"],
    "export gguf": ["export", "IN/run", "--to", "gguf", "--out", "OUT.gguf"],
    "export hf": ["export", "IN/run", "--out", "OUT"],
    "generate": ["generate", "IN/slots", "--prompt", "PROMPT", "--save-state", "OUT.state"],
    "lm-eval": ["lm-eval", "IN/run", "--tasks", "x", "--out", "OUT.json"],
    "playground": ["playground", "IN/run", "--examples", "1", "--export", "OUT.html"],
    "rides check": ["rides", "check", "IN/rides.txt", "--map", "IN/map", "--write-labels", "OUT.csv"],
    "strips export": ["strips", "export", "IN/learned", "--problem-from", "IN/valid.csv", "--out", "OUT.pddl"],
    "strips simplify": ["strips", "simplify", "IN/learned", "--out", "OUT"],
    "strips traces": ["strips", "traces", "simple", "--num", "20", "--max-length", "8", "--out", "OUT.csv"],
}
PICTURED = {
    "analyze": ["analyze", "IN/run", "effective-rank", "--sequences", "4", "--positions", "2", "--out", "OUT"],
    "compare": ["compare", "IN/run", "--out", "OUT"],
    "rides map": ["rides", "map", "--map", "IN/map", "--draw", "20", "--out", "OUT"],
    "strips show": ["strips", "show", "simple", "--trace", "a c c b c a", "--out", "OUT"],
}
LONG = {
    "strips learn": ["strips", "learn", "IN/t.csv", "--method", "exact", "--out", "OUT"],
    "train": [
        "train",
        "path-star-small",
        *SMALL_RUN,
        "--task.held_out_graphs=4",
        "--trainer.steps=1",
        "--trainer.warmup_steps=0",
        "--out",
        "OUT",
    ],
    "train seeds": ["train", "path-star-small", *SMALL_RUN, "--seeds", "1", "--out", "OUT"],
}
EVERY = {**CHEAP, **PICTURED, **LONG}


@pytest.fixture
def place(inputs, tmp_path, monkeypatch):
    """A folder to write into. What takes long and does not matter here is left out."""
    monkeypatch.setattr(lm_eval, "_report", lambda options: (SCORED, "{}", None))
    monkeypatch.setattr(seeds, "_run_all", lambda folder, *_: RunsOutcome(folder, []))
    monkeypatch.setattr(overwriting, "lock", functools.partial(durable.lock, patience=0))
    image = b"\x89PNG" + b"Software\0statewise"

    def drawn(figure, file, **fields):
        file.write("<svg></svg>" if fields.get("format") == "svg" else image)

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", drawn)
    for module in ("plots.panels_png", "report.panels_png", "report.drawings_png", "drawings.drawings_png"):
        monkeypatch.setattr(f"statewise.reporting.{module}", lambda *_, **__: image)
    home = tmp_path / "home"
    home.mkdir()
    return home


def command(words, inputs, home):
    prompt = (inputs / "prompt.txt").read_text()
    named = [word.replace("IN/", f"{inputs}/").replace("OUT", str(home / "out")) for word in words]
    return [prompt if word == "PROMPT" else word for word in named]


def result(home):
    """What is there, but for times."""
    return set(tree(home))


@pytest.mark.parametrize("name", EVERY)
def test_two_writers_of_one_name(capsys, inputs, place, name):
    """The second comes when the first has begun to write: it is refused, and the result is the first one's."""
    words, second = command(EVERY[name], inputs, place), []

    def other(operation, path):
        if not second and ".writing" in path:
            second.append(in_thread(lambda: main(words)))

    with watched(place, other):
        code, _, err = called(capsys, *words)
    assert (code, second) == (0, [2]), err
    assert "out" in err
    assert f"is being written by another process: wait for it, or choose another {EVERY[name][-2]}\n" in err
    first = tree(place)
    assert first
    assert not [path for path in first if Path(path).name.startswith(".out")]
    code, _, err = called(capsys, *words)
    assert code == 2
    assert "exists: choose another" in err
    assert tree(place) == first


@pytest.mark.parametrize("name", [name for name in EVERY if not name.startswith("train")])
def test_what_another_program_makes_while_a_command_works_stays(capsys, inputs, place, name):
    words = command(EVERY[name], inputs, place)
    option = words[-1]
    mine = Path(option) if Path(option).suffix else Path(option) / "thesis.tex"

    def other(operation, path):
        if not mine.exists() and ".writing" in path:
            mine.parent.mkdir(exist_ok=True)
            mine.write_text("mine")

    if name == "strips learn":
        pytest.skip("writes in place, under its claim")
    with watched(place, other):
        code, _, err = called(capsys, *words)
    assert mine.read_text() == "mine"
    if name in ("analyze", "rides map", "strips show"):  # files beside others
        assert code == 0, err
        return
    assert code == 2, err
    assert "choose another" in err
    assert [path for path, content in tree(place).items() if content is not None] == [str(mine.relative_to(place))]


class Failing:
    """What fails: the operation on the disk, or the write or sync, of this number."""

    def __init__(self, number):
        self.number, self.count = number, -1

    def __call__(self, path=None):
        self.count += 1
        if self.count == self.number:
            raise full(path)


def on_a_full_disk(monkeypatch, home, number, work):
    """The result of `work` if the operation `number` finds the disk full, and whether it came to that."""
    failing, mine = Failing(number), []
    opened, sync = open, os.fsync

    class File(io.BufferedRandom):
        def write(self, content):
            failing()
            return super().write(content)

    def file(path, mode="r", **more):
        found = opened(path, mode, **more)
        if mode != "w+b" or str(home) not in str(path):
            return found
        mine.append(found.fileno())
        return File(found.detach())

    def synced(number):
        if number in mine:
            mine.remove(number)
            failing()
        sync(number)

    def operation(what, path):
        if what in ("open", "os.rename", "os.link") or (what == "os.mkdir" and not os.path.exists(path)):
            failing(path)

    with monkeypatch.context() as patch:
        patch.setattr(durable, "open", file, raising=False)
        patch.setattr(os, "fsync", synced)
        with watched(home, operation):
            found = work()
    return found, failing.count >= number


ANEW = ("data city", "strips traces")
QUICK = [*((name, True) for name in (*CHEAP, "strips learn")), *((name, False) for name in ANEW)]
SLOW = [
    (name, overwrite)
    for name in (*CHEAP, *PICTURED, "strips learn")
    for overwrite in (True, False)
    if (name, overwrite) not in QUICK
]


@pytest.mark.parametrize(
    ("name", "overwrite"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]
)
def test_a_full_disk_leaves_what_was_there(capsys, inputs, place, monkeypatch, name, overwrite):
    """At each operation: creating, writing, syncing, renaming."""
    words = command(EVERY[name], inputs, place)
    if overwrite:
        assert called(capsys, *words)[0] == 0
        words.append("--overwrite")
    before, number = tree(place), 0
    while True:
        (code, out, err), failed = on_a_full_disk(monkeypatch, place, number, lambda: called(capsys, *words))
        if not failed:
            break
        assert code == 1, (number, err)
        assert err.splitlines()[-1].startswith(f"statewise: {place / 'out'}"), (number, err)
        assert "No space left on device" in err
        assert "Traceback" not in err
        assert f"wrote {place}" not in out
        assert tree(place) == before, number
        number += 1
    assert code == 0, err
    assert number >= 6


@pytest.mark.parametrize("name", {**CHEAP, **PICTURED})
def test_a_disk_that_drops_what_it_accepts_is_found_out(capsys, inputs, place, monkeypatch, name):
    """As when software passes over an error of the system."""
    opened = open

    class Dropping(io.BufferedRandom):
        def write(self, content):
            super().write(bytes(content)[:-1])
            return len(content)

    def file(path, mode="r", **more):
        found = opened(path, mode, **more)
        return Dropping(found.detach()) if mode == "w+b" and str(place) in str(path) else found

    words = command(EVERY[name], inputs, place)
    monkeypatch.setattr(durable, "open", file, raising=False)
    code, out, err = called(capsys, *words)
    assert code == 1, err
    assert "were written: is the disk full?" in err
    assert f"wrote {place}" not in out
    assert tree(place) == {}


@pytest.mark.parametrize("how", ["cut", "changed", "full"])
def test_what_safetensors_writes_is_compared(capsys, inputs, place, monkeypatch, how):
    save = folder_files.save_file

    def bad(tensors, path, metadata):
        if how == "full":
            raise folder_files.SafetensorError("Error while serializing: I/O error: No space left (os error 28)")
        save(tensors, path, metadata=metadata)
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        path.write_bytes(content[:-4] if how == "cut" else content)

    monkeypatch.setattr(folder_files, "save_file", bad)
    code, _, err = called(capsys, *command(EVERY["export hf"], inputs, place))
    assert code == 1
    assert f"statewise: {place / 'out' / 'model.safetensors'}: " in err
    said = {"cut": "not fully covered", "changed": "reads back differently", "full": os.strerror(errno.ENOSPC)}
    assert said[how] in err
    assert tree(place) == {}


SETS = ["embed", "strips export", *(pytest.param(name, marks=pytest.mark.slow) for name in PICTURED)]


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_kill_between_files_leaves_all_or_nothing(capsys, inputs, place, tmp_path, name, overwrite):
    """The same command then completes what was begun, or begins anew; of what was replaced the old or the new is
    there as a whole."""
    words, copies = command(EVERY[name], inputs, place), tmp_path / "copies"
    copies.mkdir()
    if overwrite:
        assert called(capsys, *words)[0] == 0
        words.append("--overwrite")

    def copy(*_):
        shutil.copytree(place, copies / str(len(os.listdir(copies))), copy_function=shutil.copy)

    with watched(place, copy):
        assert called(capsys, *words)[0] == 0
    whole = set(tree(place))
    codes = []
    for state in sorted(copies.iterdir(), key=lambda path: int(path.name)):
        code, _, err = called(capsys, *command(EVERY[name], inputs, state))
        assert code == 0 or "exists: choose another" in err, (state, err)
        assert set(tree(state)) == whole, state
        codes.append(code)
    assert codes == sorted(codes)
    assert codes[-1] == 2
    assert codes[0] == (2 if overwrite else 0)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 12 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", {**CHEAP, **PICTURED})
def test_a_disk_that_is_really_full(capsys, inputs, small_disk, monkeypatch, name):
    """With less and less room, until a file of one page fits no more."""
    monkeypatch.setattr(lm_eval, "_report", lambda options: (SCORED, "{}", None))
    words, codes, filling = command(EVERY[name], inputs, small_disk), [], small_disk / "filling"
    for free in (0, *(4 * 2**power for power in range(12))):
        filling.unlink(missing_ok=True)
        filling.write_bytes(bytes(shutil.disk_usage(small_disk).free - free * 1024))
        code, _, err = called(capsys, *words)
        assert code in (0, 1), err
        codes.append(code)
        if code == 0:
            break
        assert "No space left on device" in err or "is the disk full?" in err
        assert "Traceback" not in err
        assert os.listdir(small_disk) == ["filling"]
    assert codes[0] == 1
    assert codes[-1] == 0
    assert len(os.listdir(small_disk)) > 1
