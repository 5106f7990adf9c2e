import contextlib
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
from disk import in_thread, tree
from doubles import tiny_objective

from statewise.run import DamagedCheckpoint, Replaced, Run, evaluation_of
from statewise.run import folder as run_folder
from statewise.training import checkpoint as checkpoints

pytestmark = pytest.mark.usefixtures("forked")

ENVIRONMENT = {"device": "cpu", "precision": "fp32", "threads": 1}


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path / "run", {"seed": 1}, {"vocab.json": b"[]"}, ENVIRONMENT, overwrite=False)


def save(run, step):
    objective = tiny_objective("next_token", seed=step)
    optimizer = torch.optim.AdamW(objective.parameters())
    objective.embedded = None
    return checkpoints.save(
        run, step, objective.state_dict(), {"optimizer": optimizer.state_dict(), "progress": {"step": step}}
    )


def test_a_run_opens_as_it_was_made(run):
    again = Run.open(run.folder)
    assert again.recipe() == {"seed": 1}
    assert again.task_files() == {"vocab.json": b"[]"}
    with pytest.raises(FileNotFoundError, match="is not a run directory"):
        Run.open(run.folder / "reports")


def test_a_linked_run_has_reports_of_its_own(run, tmp_path):
    run.write_report("one", {"value": 1})
    (run.reports_folder / "secret.json").symlink_to(tmp_path / "secret")
    linked = run.linked(tmp_path / "linked")
    assert linked.recipe() == run.recipe()
    assert linked.reports() == ["one"]
    linked.write_report("one", {"value": 2})
    assert run.report("one") == {"value": 1}
    with pytest.raises(FileExistsError):
        run.linked(tmp_path / "linked")
    assert sorted(path.name for path in tmp_path.glob(".linking-*")) == []


def test_existing_directories_are_refused(run, tmp_path):
    with pytest.raises(FileExistsError, match="`resume`"):
        Run.create(run.folder, {}, {}, overwrite=False)
    Run.create(run.folder, {"seed": 2}, {}, overwrite=True)
    assert Run.open(run.folder).recipe() == {"seed": 2}
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match=r"chapter\.tex, which is not part of a run: it will not be overwritten"):
        Run.create(tmp_path / "thesis", {}, {}, overwrite=True)


def test_a_run_is_given_up_only_for_one_that_came_to_be(run, monkeypatch):
    save(run, 5)

    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        Run.create(run.folder, {"seed": 2}, {}, overwrite=True)
    with pytest.raises(OSError, match="No space left"):
        Run.create(run.folder.with_name("other"), {"seed": 2}, {}, overwrite=False)
    monkeypatch.undo()
    assert run.recipe() == {"seed": 1}
    assert run.find_checkpoint().step == 5
    Run.create(run.folder, {"seed": 2}, {}, overwrite=True)
    assert not run.checkpoints()
    assert [path.name for path in run.folder.parent.iterdir()] == ["run"]


def test_two_processes_that_overwrite_a_run_do_not_mix(run, monkeypatch):
    """The second is refused while the first writes, and neither touches what the first has written."""
    write, refused = run_folder.write_atomically, []

    def slow(path, content):
        write(path, content)
        if not refused:
            refused.append(1)
            with pytest.raises(BlockingIOError, match="is being written by another process"):
                in_thread(lambda: Run.create(run.folder, {"seed": 3}, {}, overwrite=True))

    save(run, 5)
    monkeypatch.setattr(run_folder, "write_atomically", slow)
    Run.create(run.folder, {"seed": 2}, {}, overwrite=True)
    assert refused
    assert Run.open(run.folder).recipe() == {"seed": 2}
    assert not run.checkpoints()
    assert [path.name for path in run.folder.parent.iterdir()] == ["run"]


def test_what_a_killed_process_was_to_overwrite_is_there_again(run):
    save(run, 5)
    os.rename(run.folder, run.folder.with_name(".replaced-run"))  # and killed
    with pytest.raises(FileExistsError, match="or `overwrite`"):
        Run.create(run.folder, {"seed": 2}, {}, overwrite=False)
    assert run.find_checkpoint().step == 5
    assert [path.name for path in run.folder.parent.iterdir()] == ["run"]


@pytest.mark.parametrize("name", ["short.txt", "x" * 240 + ".txt", "\u6570" * 76 + ".txt", "\udcff.txt"])
def test_reports_on_files_have_names_that_a_disk_can_hold(run, name):
    path = run.write_report(f"{evaluation_of(run.folder / name)}-checkpoint-{10**17}", {})
    assert path.is_file()


def test_an_unknown_format_is_refused(run):
    (run.folder / "config.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(ValueError, match="not written by this version"):
        run.recipe()


def test_metrics_survive_a_torn_line_and_forget_what_came_later(run):
    for step in (1, 2, 3):
        run.log({"kind": "train", "step": step, "loss": 0.5})
    run.log({"kind": "end", "step": 3, "reason": "steps"})
    with open(run.folder / "metrics.jsonl", "a") as file:
        file.write('{"kind": "train", "st')
    assert [record["step"] for record in run.metrics()] == [1, 2, 3, 3]
    assert run.end()["reason"] == "steps"
    assert run.end(run.metrics()) == run.end()
    assert run.end([]) is None
    run.forget_after(2)
    assert [record["step"] for record in run.metrics()] == [1, 2]
    assert run.end() is None


def test_only_one_process_may_write(run):
    code = (
        "from pathlib import Path\nfrom statewise.run import Run\n"
        f"with Run(Path({str(run.folder)!r})).lock(): print('got it')"
    )
    with run.lock():
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "in use by another process" in done.stderr
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "got it\n"


def test_checkpoints_round_trip(run):
    save(run, 5)
    found = run.find_checkpoint()
    objective, other = tiny_objective("next_token", seed=5), tiny_objective("next_token", seed=9)
    checkpoints.load_weights(found, other)
    for one, two in zip(objective.parameters(), other.parameters()):
        assert torch.equal(one, two)
    assert checkpoints.load_training(found)["progress"] == {"step": 5}


def test_the_newest_the_best_and_the_kept_remain(run):
    for step in range(1, 11):
        save(run, step)
        if step == 3:
            run.mark_best(3, "accuracy", 0.5)
        run.drop_checkpoints(newest=2, keeps=lambda step: step % 4 == 0)
    assert [found.step for found in run.checkpoints()] == [3, 4, 8, 9, 10]
    assert run.find_checkpoint("best").step == 3
    assert run.find_checkpoint("8").step == 8
    with pytest.raises(FileNotFoundError, match="no checkpoint of step 7"):
        run.find_checkpoint("7")
    with pytest.raises(ValueError, match="must be last, best or a step"):
        run.find_checkpoint("newest")


@pytest.mark.parametrize("file", ["weights.safetensors", "training.pt", "manifest.json"])
@pytest.mark.parametrize("harm", ["truncated", "flipped", "gone"])
def test_a_damaged_checkpoint_is_named_and_the_newest_good_one_offered(run, file, harm):
    save(run, 5)
    path = save(run, 6).folder / file
    content = path.read_bytes()
    if harm == "gone":
        path.unlink()
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]
        path.write_bytes(content[: len(content) // 2] if harm == "truncated" else flipped)
    with pytest.raises(DamagedCheckpoint, match=r"step-00000006.*newest intact one is step 5: add `checkpoint` 5"):
        run.find_checkpoint()
    assert run.find_checkpoint("5").step == 5


@pytest.mark.parametrize(
    "name", ["step-²", "step-00000007²", "step-٠٠٠٠٠٠٠٩", "step-4", "step-000000004", "step-9" + "9" * 5000]
)
def test_only_folders_named_by_us_are_checkpoints(run, name):
    save(run, 4)
    (run.checkpoints_folder / name[:250]).mkdir()
    assert [found.folder.name for found in run.checkpoints()] == ["step-00000004"]


def test_checkpoints_are_in_order_of_their_steps(run):
    for step in (10**8, 10**8 - 1):
        save(run, step)
    assert [found.step for found in run.checkpoints()] == [10**8 - 1, 10**8]


def test_what_a_killed_process_left_is_deleted_when_training_goes_on(run, tmp_path):
    for step in (4, 5, 6):
        save(run, step)
    os.rename(run.checkpoint(5).folder, run.checkpoints_folder / ".dropped-step-00000005")
    os.rename(run.checkpoint(6).folder, run.checkpoints_folder / ".writing-00000006")
    (run.checkpoints_folder / ".writing-mine").mkdir()
    (run.checkpoints_folder / ".writing-mine" / "thesis.tex").write_text("years of work")
    os.rename(save(run, 7).folder, tmp_path / "elsewhere")
    (run.checkpoints_folder / ".writing-linked").symlink_to(tmp_path / "elsewhere")
    run.forget_after(4)
    left = sorted(path.name for path in run.checkpoints_folder.iterdir())
    assert left == [".writing-linked", ".writing-mine", "step-00000004"]
    assert (tmp_path / "elsewhere" / "training.pt").exists()


LOST = "has no checkpoint, but its metrics.jsonl has records after the first one was due"


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], None),
        ([("train", 5)], None),  # killed before it was written
        ([("train", 5), ("train", 6)], LOST),
        ([("train", 2), ("evaluation", 2)], None),
        ([("evaluation", 2), ("train", 3)], LOST),
        ([("evaluation", 2), ("end", 2, "not finite")], None),
        ([("evaluation", 2), ("end", 2, "steps")], LOST),
    ],
)
def test_checkpoints_that_were_there_are_missed(run, records, message):
    for kind, step, *reason in records:
        run.log({"kind": kind, "step": step, **({"reason": reason[0]} if reason else {})})
    with pytest.raises(FileNotFoundError, match=message) if message else contextlib.nullcontext():
        run.refuse_lost(every=5)
    save(run, 2)
    run.refuse_lost(every=5)


@pytest.mark.parametrize("threads", [0, 4097, 2**31, 1.0, True])
def test_an_environment_with_threads_that_cannot_be_is_refused(run, threads):
    (run.folder / "environment.json").write_text(json.dumps({**ENVIRONMENT, "threads": threads}))
    with pytest.raises(ValueError, match="threads must be a whole number from 1 to 4096, not"):
        run.environment()


class Bomb:
    """Unpickling it would leave a file behind."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.parametrize("file", ["weights.safetensors", "training.pt"])
def test_a_pickle_in_its_place_is_refused_and_never_executed(run, file, tmp_path):
    found = save(run, 5)
    victim = tmp_path / "victim"
    (found.folder / file).write_bytes(pickle.dumps(Bomb(victim)))
    with pytest.raises(DamagedCheckpoint):
        run.find_checkpoint()
    objective = tiny_objective("next_token")
    load = {
        "training.pt": checkpoints.load_training,
        "weights.safetensors": lambda c: checkpoints.load_weights(c, objective),
    }
    with pytest.raises(DamagedCheckpoint):  # and if the checksum had been mended as well
        load[file](found)
    assert not victim.exists()


def test_weights_that_are_not_finite_are_refused(run):
    objective = tiny_objective("next_token")
    next(objective.parameters()).data[0] = float("nan")
    found = checkpoints.save(run, 7, objective.state_dict(), {})
    with pytest.raises(DamagedCheckpoint, match=r"step-00000007/\S+: backbone\.\S+ holds numbers that are not finite"):
        checkpoints.load_weights(found, tiny_objective("next_token"))


def test_weights_of_another_model_are_refused(run):
    found = save(run, 5)
    with pytest.raises(DamagedCheckpoint, match="does not fit the run's recipe"):
        checkpoints.load_weights(found, tiny_objective("next_token", backbone={"width": 32}))


def test_a_full_disk_costs_at_most_the_newest_checkpoint(run, monkeypatch):
    save(run, 5)

    written = 0

    def full(number):
        nonlocal written
        written += 1
        if written > 1:  # the first file fits, and then no more
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save(run, 6)
    monkeypatch.undo()
    assert [found.step for found in run.checkpoints()] == [5]
    assert run.find_checkpoint().step == 5
    assert not [path for path in run.checkpoints_folder.iterdir() if path.name.startswith(".")]


def test_what_is_remembered_is_made_again_if_a_single_bit_of_it_is_wrong(run):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    made = []

    def remembered():
        return run.remember("states of a model", lambda: made.append(1) or array)

    for _ in range(2):
        np.testing.assert_array_equal(remembered(), array)
    assert made == [1]
    (path,) = run.cache_folder.iterdir()
    whole = path.read_bytes()
    (last,) = [place for place in range(len(whole)) if whole[place : place + 4] == np.float32(5).tobytes()]
    for damaged in (
        *(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in (0, last - 20, last)),
        *(whole[:50], whole[:-1], b"", array.tobytes()),
    ):
        path.write_bytes(damaged)
        made.clear()
        np.testing.assert_array_equal(remembered(), array)
        assert made == [1]
        assert path.read_bytes() == whole


def test_a_damaged_cache_raises_nothing(run):
    """Archives raise errors of many kinds: an unknown compression, an impossible place, arrays of other shapes."""
    array = np.arange(6, dtype=np.float32)
    run.remember("key", lambda: array)
    (path,) = run.cache_folder.iterdir()
    whole = path.read_bytes()
    alone, packed, huge = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(alone, array)
    np.savez_compressed(packed, array=np.arange(3000.0))
    broken = bytearray(packed.getvalue())
    broken[200] ^= 255
    with zipfile.ZipFile(huge, "w") as archive:
        header = np.lib.format.magic(1, 0) + (118).to_bytes(2, "little")
        shape = "{'descr': '<f8', 'fortran_order': False, 'shape': (1152921504606846975,), }"
        archive.writestr("array.npy", header + shape.ljust(117).encode() + b"\n")
    flipped = [whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :] for at in range(0, len(whole), 3)]
    for damaged in (alone.getvalue(), bytes(broken), huge.getvalue(), *flipped):
        path.write_bytes(damaged)
        np.testing.assert_array_equal(run.remember("key", lambda: array), array)


# A run that is replaced, and links in it


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
@pytest.mark.parametrize(
    "write",
    [
        lambda run: run.log({"kind": "train", "step": 6}),
        lambda run: save(run, 6),
        lambda run: run.mark_best(5, "accuracy", 0.5),
        lambda run: run.write_report("evaluation", {}),
        lambda run: run.forget_after(0),
        lambda run: run.drop_checkpoints(newest=1, keeps=lambda step: False),
    ],
    ids=["log", "checkpoint", "best", "report", "forget", "drop"],
)
def test_who_lost_its_run_writes_nothing_into_another(run, how, write):
    save(run, 5)
    with run.lock():
        write(run)  # as long as it is its own
        if how == "moved":
            os.rename(run.folder, run.folder.with_name("moved"))
        else:
            shutil.rmtree(run.folder)
        if how == "replaced":
            other = Run.create(run.folder, {"seed": 3}, {}, overwrite=False)
            save(other, 7)
            other.log({"kind": "train", "step": 7})
        before = tree(run.folder)
        with pytest.raises(Replaced, match="was deleted, moved or replaced while this process was writing to it"):
            write(run)
        assert tree(run.folder) == before


def test_the_lock_of_another_run_in_its_place_stays(run):
    other = Run(run.folder)
    with contextlib.ExitStack() as stack:
        with run.lock():
            shutil.rmtree(run.folder)
            Run.create(run.folder, {"seed": 3}, {}, overwrite=False)
            stack.enter_context(other.lock())
        with pytest.raises(BlockingIOError, match="in use by another process"), Run(run.folder).lock():
            pass
    assert not run.in_use()


@pytest.mark.parametrize("name", ["reports", "checkpoints"])
def test_nothing_is_written_through_a_link_in_a_run(run, tmp_path, name):
    """A run may come from anybody, and the link may point anywhere."""
    elsewhere = tmp_path / "elsewhere"
    save(run, 5)
    (run.folder / name).mkdir(exist_ok=True)
    shutil.move(run.folder / name, elsewhere)
    (elsewhere / "evaluation.json").write_text("years of work")
    (run.folder / name).symlink_to(elsewhere)
    before = tree(elsewhere)
    writes = {
        "reports": [lambda: run.write_report("evaluation", {})],
        "checkpoints": [
            lambda: save(run, 6),
            lambda: run.forget_after(0),
            lambda: run.mark_best(5, "accuracy", 0.5),
            lambda: run.drop_checkpoints(newest=1, keeps=lambda step: False),
        ],
    }[name]
    for write in writes:
        with pytest.raises(PermissionError, match="nothing is written through links") as raised:
            write()
        assert raised.value.filename == str(run.folder / name)
    assert tree(elsewhere) == before


def test_nothing_is_cached_through_a_link(run, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    run.cache_folder.symlink_to(tmp_path / "elsewhere")
    assert run.remember("key", lambda: np.arange(3)).tolist() == [0, 1, 2]
    assert os.listdir(tmp_path / "elsewhere") == []
