"""Verbs leave what is there alone unless told to, and answer for runs that may only be read."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from command_line import called, refused, two_steps
from disk import tree
from doubles import SMALL_RUN

from statewise.cli import main
from statewise.model.model import load_model
from statewise.run import FILES, Run
from statewise.runtime import durable
from statewise.runtime.overwriting import strangers
from statewise.training import optim


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return two_steps(tmp_path_factory.mktemp("runs") / "run")


MINE = "years of work"


def graphs(run):
    """Three held-out graphs of the run's task, as text."""
    task = load_model(run).task
    examples = task.held_out(3)
    return [task.decode(row[:length]) for row, length in zip(examples.tokens, examples.lengths)]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["embed", "RUN", "graphs.txt", "--prompts", "--out", "b.npy"], ["b.npy"]),
        (["embed", "RUN", "graphs.txt", "--prompts", "--out", "b.npy"], ["b.npy.json"]),
        (["embed", "RUN", "graphs.txt", "--prompts", "--out", "b.npy"], ["b.index.npy"]),
        (["embed", "RUN", "graphs.txt", "--positions", "all", "--out", "b.npy"], ["b.offsets.npy"]),
        (["generate", "RUN", "--prompt", "x", "--save-state", "state"], ["state"]),
        (["analyze", "RUN", "effective-rank", "--out", "rank"], ["rank/effective-rank.png"]),
        (["evaluate", "RUN", "--losses", "l.jsonl"], ["l.jsonl"]),
        (["compare", "RUN", "--out", "report"], ["report/report.html"]),
        (["compare", "RUN", "--out", "report"], ["report/thesis.tex"]),
        (["lm-eval", "RUN", "--tasks", "x", "--out", "found.json"], ["found.json"]),
        (["rides", "check", "rides.txt", "--map", "m", "--write-labels", "labels.csv"], ["labels.csv"]),
        (["rides", "map", "rides.txt", "--map", "m", "--out", "maps"], ["maps/map-drawing.png"]),
        (["data", "city", "--out", "city"], ["city/nodes.csv"]),
        (["strips", "traces", "simple", "--num", "20", "--out", "t.csv"], ["t.csv"]),
        (["strips", "export", "m.json", "--out", "d.pddl"], ["d.pddl"]),
        (["strips", "show", "simple", "--out", "shown"], ["shown/attention.png"]),
        (["judge", "a", "b", "--url", "http://localhost:1", "--model", "m", "--out", "j.jsonl"], ["j.summary.json"]),
        (["train", "path-star-small", "--out", "new"], ["new/thesis.tex"]),
        (["convert", "sps", "x", "--config", "c.json", "--corpus", "c", "--out", "new"], ["new/thesis.tex"]),
        (["train", "path-star-small", "--seeds", "1-2", "--out", "new"], ["new/thesis.tex"]),
    ],
)
def test_what_is_there_stays_before_any_work(capsys, run, tmp_path, monkeypatch, words, names):
    monkeypatch.chdir(tmp_path)
    for name in names:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(MINE)
    code, _, err = called(capsys, *[run if word == "RUN" else word for word in words])
    assert code == 2
    assert "exists" in err
    assert {str(path) for path in Path().rglob("*") if path.is_file()} == set(names)
    assert all(Path(name).read_text() == MINE for name in names)


@pytest.mark.parametrize(
    "words",
    [
        ["embed", "RUN", "graphs.txt", "--out", "RUN/cache/a.npy"],
        ["generate", "RUN", "--prompt", "x", "--save-state", "RUN/checkpoints/best.json"],
        ["analyze", "RUN", "effective-rank", "--out", "RUN/reports"],
        ["evaluate", "RUN", "--losses", "RUN/config.json"],
        ["export", "RUN", "--to", "gguf", "--out", "RUN/metrics.jsonl"],
        ["playground", "RUN", "--export", "RUN/environment.json"],
        ["lm-eval", "RUN", "--tasks", "x", "--out", "RUN/checkpoints/../data.json"],
        ["rides", "check", "r.txt", "--map", "m", "--write-labels", "RUN/task/vocabulary.json"],
        ["strips", "traces", "simple", "--num", "20", "--out", "RUN/config.json"],
        ["strips", "export", "m.json", "--out", "RUN/config.json"],
        ["strips", "show", "simple", "--out", "RUN/reports"],
    ],
)
def test_no_command_replaces_a_file_of_a_run_itself(capsys, run, words):
    (run / "cache").mkdir(exist_ok=True)
    before = tree(run)
    code, _, err = called(capsys, *[word.replace("RUN", str(run)) for word in words], "--overwrite")
    assert (code, f"belongs to the run in {run}, which is not changed" in err) == (2, True), err
    assert tree(run) == before


FILES_OF_OURS = [
    (["train", "path-star-small", *SMALL_RUN, "--trainer.steps=2"], ["out/config.json"]),
    (["train", "path-star-small", *SMALL_RUN, "--trainer.steps=2"], ["out/config.json", "out/environment.json"]),
    (["train", "path-star-small", *SMALL_RUN, "--seeds", "1"], ["out/recipe.yaml"]),
    (["train", "path-star-small", *SMALL_RUN, "--seeds", "1"], ["out/seeds.json", "out/seed-1/config.json"]),
    (["compare", "RUN"], ["out/report.html"]),
    (["compare", "RUN"], ["out/report.json", "out/table.md"]),
    (["analyze", "RUN", "effective-rank"], ["out/effective-rank.json"]),
    (["analyze", "RUN", "effective-rank"], ["out/effective-rank.png"]),
    (["rides", "map", "r.txt", "--map", "m"], ["out/map.png"]),
    (["data", "city"], ["out/nodes.csv", "out/edges.csv"]),
    (["strips", "learn", "t.csv", "--restarts", "1", "--steps", "5"], ["out/model.json"]),
    (["strips", "learn", "t.csv", "--restarts", "1", "--steps", "5", "--lifted"], ["out/report.json"]),
    (["strips", "show", "simple"], ["out/models.png"]),
]


@pytest.mark.parametrize(("words", "names"), FILES_OF_OURS)
@pytest.mark.parametrize("content", [MINE, '{"format": "mine"}', "[]"])
def test_overwrite_replaces_no_foreign_files_of_our_names(capsys, run, tmp_path, monkeypatch, words, names, content):
    monkeypatch.chdir(tmp_path)
    if "t.csv" in words:
        assert main(["strips", "traces", "simple", "--num", "20", "--max-length", "8", "--out", "t.csv"]) == 0
    for name in names:
        Path(name).parent.mkdir(exist_ok=True, parents=True)
        Path(name).write_text(content)
    words = [str(run) if word == "RUN" else word for word in words]
    code, _, err = called(capsys, *words, "--out", "out", "--overwrite")
    assert (code, "shows that statewise wrote" in err) == (2, True), err
    assert {str(path) for path in Path("out").rglob("*") if path.is_file()} == set(names)
    assert all(Path(name).read_text() == content for name in names)


def test_embed_replaces_files_beside_its_own_only(capsys, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prompts = [line.partition("=")[0] + "=" for line in graphs(run)]
    Path("graphs.txt").write_text("\n".join(prompts))
    words = ["embed", run, "graphs.txt", "--prompts", "--out", "b.npy", "--overwrite"]
    for name in ("b.index.npy", "b.npy.json"):
        Path(name).write_text(MINE)
        code, _, err = called(capsys, *words)
        assert (code, f"{name} is not replaced: no b.npy.json" in err) == (2, True), err
        assert Path(name).read_text() == MINE
        Path(name).unlink()
    assert called(capsys, *words)[0] == 0
    Path("b.offsets.npy").write_text(MINE)
    assert called(capsys, *words)[0] == 0
    assert Path("b.offsets.npy").read_text() == MINE


def test_embed_leaves_no_offsets_of_vectors_that_it_replaced(capsys, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("graphs.txt").write_text("\n".join(graphs(run)))
    words = ["embed", run, "graphs.txt", "--out", "b.npy", "--overwrite"]
    assert called(capsys, *words, "--positions", "all")[0] == 0
    assert Path("b.offsets.npy").exists()
    assert called(capsys, *words)[0] == 0
    assert not Path("b.offsets.npy").exists()


def test_what_statewise_wrote_is_replaced(capsys, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = [
        ["compare", run],
        ["analyze", run, "effective-rank", "--sequences", "8", "--positions", "4"],
        ["data", "city", "--rows", "3", "--columns", "4"],
        ["strips", "show", "simple", "--trace", "a c c b c a"],
    ]
    for number, words in enumerate(commands):
        for _ in range(2):
            code, _, err = called(capsys, *words, "--out", f"out{number}", "--overwrite")
            assert code == 0, err


def test_analyze_replaces_nothing_where_no_folder_is_given(capsys, run):
    assert "--out, which is not given" in refused(capsys, "analyze", run, "effective-rank", "--overwrite")


def test_learning_never_deletes_what_it_did_not_write(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["strips", "traces", "simple", "--num", "60", "--max-length", "8", "--out", "t.csv"]) == 0
    Path("mine").mkdir()
    Path("mine/model.json").write_text(MINE)
    Path("mine/thesis.tex").write_text(MINE)
    words = ["strips", "learn", "t.csv", "--atoms", "3", "--restarts", "1", "--steps", "5", "--out"]
    for more in ([], ["--overwrite"], ["--overwrite", "--lifted"]):
        given = [word for word in words if more[-1:] != ["--lifted"] or word not in ("--atoms", "3")]
        code, _, err = called(capsys, *given, "mine", *more)
        assert (code, "thesis.tex, which is not part of a learned model" in err) == (2, True), err
    assert sorted(path.name for path in Path("mine").iterdir()) == ["model.json", "thesis.tex"]
    Path("mine/thesis.tex").unlink()
    os.symlink("mine", "link")
    code, _, err = called(capsys, *words, "link", "--overwrite")
    assert (code, "is a link, which is not replaced" in err) == (2, True)
    assert called(capsys, *words, "mine", "--overwrite")[0] == 2
    assert Path("mine/model.json").read_text() == MINE
    Path("mine/model.json").unlink()
    for _ in range(2):
        assert called(capsys, *words, "mine", "--overwrite")[0] == 0


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--trainer.betas=[0.9,1.0]", "trainer.betas must each be at least 0 and below 1, not [0.9, 1.0]"),
        ("--trainer.betas=[-0.1,0.9]", "trainer.betas must each be at least 0 and below 1"),
        (f"--trainer.tokens={10**30}", "give fewer tokens"),
        (f"--trainer.warmup_tokens={10**30}", "trainer.warmup_tokens"),
        ("--trainer.optimizer=muon", "choose adamw"),
        ("--trainer.device=meta", "there is no device 'meta' here"),
        ("--trainer.nodes=2", "trainer.nodes 2: start the processes"),
    ],
)
@pytest.mark.parametrize("seeds", [[], ["--seeds", "1-2"]], ids=["one", "seeds"])
def test_runs_are_given_up_only_for_those_that_can_be_trained(capsys, run, tmp_path, monkeypatch, seeds, flag, message):
    monkeypatch.setattr(optim, "hidden_matrices", lambda objective: [])
    old = tmp_path / "old"
    shutil.copytree(run, old / "seed-1" if seeds else old)
    before = sorted(path for path in tmp_path.rglob("*"))
    words = ["train", "path-star-small", *SMALL_RUN, flag, *seeds, "--out", old, "--overwrite"]
    assert message in refused(capsys, *words)
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_a_run_behind_a_link_is_not_replaced(capsys, run, tmp_path):
    (tmp_path / "link").symlink_to(run)
    code, _, err = called(capsys, "train", "path-star-small", "--out", tmp_path / "link", "--overwrite")
    assert (code, "is a link, which is not replaced" in err) == (2, True)
    assert Run.open(run).complete()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_run_that_may_only_be_read_is_answered_for(capsys, run, tmp_path, monkeypatch, number):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    opened = open

    def read_only(path, mode="r", *more, **named):
        if set(mode) & set("wa+x") and run in Path(path).parents:
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, mode, *more, **named)

    monkeypatch.setattr(durable, "open", read_only, raising=False)
    rank = ["analyze", run, "effective-rank", "--sequences", "8", "--positions", "4"]
    for words, shown in ((["evaluate", run, "--num", "5"], "path_accuracy"), (rank, "rank")):
        code, out, err = called(capsys, *words)
        assert code == 0
        assert shown in out
        assert f"no report was written: {run / 'reports'}" in err
    assert called(capsys, *rank, "--out", tmp_path / "rank")[0] == 0
    assert sorted(path.name for path in (tmp_path / "rank").iterdir()) == ["effective-rank.json", "effective-rank.png"]
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()} == {
        path: when for path, when in before.items() if path.is_file()
    }


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_trainer_whose_run_is_replaced_ends_with_a_sentence(capsys, tmp_path, monkeypatch, how):
    out, log = tmp_path / "run", Run.log

    def replaced(run, record):
        if record["step"] == 2 and record["kind"] == "evaluation":
            shutil.rmtree(out)
            if how == "replaced":
                Run.create(out, {"seed": 3}, {}, overwrite=False)
        log(run, record)

    monkeypatch.setattr(Run, "log", replaced)
    flags = ["--trainer.steps=4", "--trainer.evaluate_every=2", "--trainer.warmup_steps=0", "--task.held_out_graphs=4"]
    code, _, err = called(capsys, "train", "path-star-small", *SMALL_RUN, *flags, "--out", out)
    assert code == 2
    said = f"statewise: {out} was deleted, moved or replaced while this process was writing to it: this process ends"
    assert said in err
    assert "Traceback" not in err
    names = {"config.json", "data.json", "environment.json"} if how == "replaced" else set()
    assert {path.name for path in out.rglob("*") if path.is_file()} == names


def test_reports_are_not_written_through_a_link(capsys, run, tmp_path):
    mine, copy = tmp_path / "mine", tmp_path / "run"
    shutil.copytree(run, copy)
    shutil.move(copy / "reports", mine)
    (copy / "reports").symlink_to(mine)
    for name in ("evaluation-first-5.json", "effective-rank.json", "effective-rank.png"):
        (mine / name).write_text(MINE)
    before = tree(mine)
    rank = ["analyze", copy, "effective-rank", "--sequences", "8", "--positions", "4"]
    for words, shown in ((["evaluate", copy, "--num", "5"], "path_accuracy"), (rank, "rank")):
        code, out, err = called(capsys, *words)
        assert code == 0
        assert shown in out
        assert f"no report was written: {copy / 'reports'}: this is a link, and nothing is written through links" in err
    assert tree(mine) == before


def test_all_that_verbs_leave_in_a_run_is_known(capsys, run):
    assert called(capsys, "evaluate", run, "--num", "5")[0] == 0
    assert called(capsys, "analyze", run, "effective-rank", "--sequences", "8", "--positions", "4")[0] == 0
    assert strangers(run, FILES) == []
