"""Tensors in pieces on disk, and checkpoints of which a sharded model's processes write the parts."""

import hashlib
import json

import pytest
import torch
from safetensors.torch import load_file, save

from statewise.run import DamagedCheckpoint, Run
from statewise.training.checkpoint import join_weights, load_training, load_weights
from statewise.training.stored import Piece, open_stored, pieces_as_bytes, write_joined

TENSORS = {
    "matrix": torch.arange(15.0).view(5, 3),
    "halves": torch.arange(8, dtype=torch.bfloat16).view(2, 2, 2),
    "vector": torch.arange(7, dtype=torch.int64),
    "scalar": torch.tensor(3.5),
    "flag": torch.tensor([True, False, True]),
}
WHOLE = ("scalar", "flag")


def of_process(number, processes):
    """What one process writes: rows as `torch.chunk` divides them, and the first also what is not divided."""
    found = {}
    for name, tensor in TENSORS.items():
        if name not in WHOLE:
            rows = -(-len(tensor) // processes)
            found[name] = Piece(
                tensor[number * rows : (number + 1) * rows], min(number * rows, len(tensor)), len(tensor)
            )
        elif number == 0:
            found[name] = tensor
    return pieces_as_bytes(found)


def moments_of_process(number, processes):
    matrix, rows = TENSORS["matrix"], -(-5 // processes)
    pieces = {"exp_avg.layer.weight": Piece(matrix[number * rows : (number + 1) * rows], number * rows, 5)}
    return pieces_as_bytes(pieces if number else {**pieces, "step.layer.weight": TENSORS["scalar"]})


def write_parts(folder, processes, kind="weights"):
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{kind}-{number + 1:05d}-of-{processes:05d}.safetensors" for number in range(processes)]
    for number, path in enumerate(paths):
        path.write_bytes(of_process(number, processes))
    return paths


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_any_rows_are_read_from_pieces_of_any_number_of_processes(tmp_path, processes):
    found = open_stored(write_parts(tmp_path, processes))
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name][:], tensor)
        for first in range(len(tensor) if tensor.dim() else 0):
            for end in range(first, len(tensor) + 1):
                assert torch.equal(found[name][first:end], tensor[first:end])
                assert found[name][first:end].dtype == tensor.dtype


@pytest.mark.parametrize("most", [1, 20, 2**20])
def test_joined_pieces_are_a_file_that_safetensors_reads(tmp_path, most):
    found = open_stored(write_parts(tmp_path, 3))
    with open(tmp_path / "joined.safetensors", "wb") as file:
        write_joined(found, file, most)
    joined = load_file(tmp_path / "joined.safetensors")
    assert joined.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert joined[name].dtype == tensor.dtype
        assert torch.equal(joined[name], tensor)


def test_rows_that_are_missing_or_there_twice_are_an_error(tmp_path):
    paths = write_parts(tmp_path, 3)
    with pytest.raises(ValueError, match=f"{tmp_path}: rows from 1 on of halves are missing or stored twice"):
        open_stored([paths[0], paths[2]])
    with pytest.raises(ValueError, match="missing or stored twice"):
        open_stored([*paths, paths[1]])
    (tmp_path / "torn").write_bytes(paths[0].read_bytes()[:-3])
    with pytest.raises(ValueError, match="torn is not a readable safetensors file"):
        open_stored([tmp_path / "torn"])
    (tmp_path / "odd").write_bytes(save({"a": torch.ones(2)}, metadata={"rows": '{"a": {"first": -1, "of": 2}}'}))
    with pytest.raises(ValueError, match=r"odd: rows: a\.first must be a whole number of at least 0"):
        open_stored([tmp_path / "odd"])


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name, tensor in TENSORS.items():
            self.register_buffer(name, torch.zeros_like(tensor))

    def is_loaded(self):
        return all(torch.equal(getattr(self, name), tensor) for name, tensor in TENSORS.items())


@pytest.fixture
def run(tmp_path):
    environment = {"device": "cpu", "precision": "fp32", "threads": 1}
    return Run.create(tmp_path / "run", {"seed": 1}, {}, environment, overwrite=False)


def write_checkpoint(run, step, processes=2):
    begun, sums = run.begin_checkpoint(step), {}
    for kind in ("weights", "moments"):
        for number in range(processes):
            name = f"{kind}-{number + 1:05d}-of-{processes:05d}.safetensors"
            content = of_process(number, processes) if kind == "weights" else moments_of_process(number, processes)
            sums[name] = run.begun_checkpoint(step).write_part(name, content)
    state = {"optimizer": {"state": {}, "param_groups": []}, "progress": {"step": step}}
    torch.save(state, begun.folder / "training.pt")
    sums["training.pt"] = hashlib.sha256((begun.folder / "training.pt").read_bytes()).hexdigest()
    return begun, sums


def test_a_checkpoint_of_parts_is_none_before_its_end(run):
    _, sums = write_checkpoint(run, 5)
    assert run.checkpoints() == []
    run.end_checkpoint(5, sums)
    found = run.find_checkpoint()
    module = Module()
    load_weights(found, module)
    assert module.is_loaded()
    (kept,) = load_training(found)["optimizer"]["state"].items()
    assert kept[0] == "layer.weight"
    assert torch.equal(kept[1]["exp_avg"][:], TENSORS["matrix"])
    assert torch.equal(kept[1]["step"][:], TENSORS["scalar"])
    write_checkpoint(run, 6)  # and killed
    assert [checkpoint.step for checkpoint in run.checkpoints()] == [5]
    run.abandon_checkpoint(6)
    assert sorted(path.name for path in run.checkpoints_folder.iterdir()) == ["step-00000005"]


@pytest.mark.parametrize("part", ["weights-00002-of-00002.safetensors", "moments-00001-of-00002.safetensors"])
def test_a_part_that_is_missing_or_changed_is_found(run, part):
    _, sums = write_checkpoint(run, 5)
    path = run.end_checkpoint(5, sums).folder / part
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"\x01")
    with pytest.raises(DamagedCheckpoint, match="its checksum does not match"):
        run.find_checkpoint()
    path.unlink()
    with pytest.raises(DamagedCheckpoint, match=f"its {part} is missing"):
        run.find_checkpoint()


def kill(*given):
    raise KeyboardInterrupt


@pytest.mark.parametrize("killed", ["before", "after the file", "after the manifest", "never"])
def test_joining_may_be_killed_at_any_moment(run, killed, monkeypatch):
    _, sums = write_checkpoint(run, 5)
    made = run.end_checkpoint(5, sums)
    if killed == "after the file":
        monkeypatch.setattr("statewise.run.checkpoint.write_atomically", kill)
    if killed == "after the manifest":
        monkeypatch.setattr(type(made), "drop_replaced", kill)
    if killed in ("after the file", "after the manifest"):
        with pytest.raises(KeyboardInterrupt):
            join_weights([made])
    monkeypatch.undo()
    if killed != "never":
        module = Module()
        load_weights(run.find_checkpoint(), module)
        assert module.is_loaded()
    join_weights([made])
    module = Module()
    load_weights(run.find_checkpoint(), module)
    assert module.is_loaded()
    names = {path.name for path in made.folder.iterdir()}
    assert names == {
        "weights.safetensors",
        "moments-00001-of-00002.safetensors",
        "moments-00002-of-00002.safetensors",
        "training.pt",
        "manifest.json",
    }
    again = run.end_checkpoint(5, write_checkpoint(run, 5, processes=3)[1])
    assert len(again.parts("weights")) == 3


def test_a_manifest_that_names_other_files_is_damaged(run):
    _, sums = write_checkpoint(run, 5)
    made = run.end_checkpoint(5, sums)
    for wrong, what in (
        ({**sums, "../../config.json": "0"}, "not a file of a checkpoint"),
        ({"training.pt": sums["training.pt"]}, "names no weights"),
    ):
        (made.folder / "manifest.json").write_text(json.dumps(wrong))
        with pytest.raises(DamagedCheckpoint, match=what):
            run.find_checkpoint()
