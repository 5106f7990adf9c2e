"""Leaks of models by name, by folder and as objects, and the command."""

import json
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from doubles import SMALL_RUN, tiny_folder, tiny_gpt, tiny_objective
from pages import blocks, run_code
from torch import nn

import statewise
from statewise.cli import main

MODULE = """
import torch
from pages import blocks, run_code
from torch import nn

class Net(nn.Module):
    def __init__(self, ahead=0):
        super().__init__()
        self.embed, self.layers = nn.Embedding(20, 16), nn.ModuleList([Mix(0), Mix(ahead)])

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return x

class Mix(nn.Module):
    def __init__(self, ahead):
        super().__init__()
        self.inner, self.ahead = nn.Linear(16, 16), ahead

    def forward(self, x):
        return self.inner(x.roll(1 - self.ahead, 1).tril(99)) * (torch.arange(x.shape[1]) > 0)[:, None]

clean = Net()

def leaking():
    return Net(2)

def failing():
    raise KeyError("no weights")

number = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_models.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture
def run(tmp_path):
    statewise.train(
        "path-star-small",
        *SMALL_RUN,
        out=tmp_path / "run",
        steps=1,
        objective="belief_state",
        **{"task.held_out_graphs": 4},
    )
    return tmp_path / "run"


def command(capsys, *words):
    code = main(["leaks", *map(str, words)])
    return code, *capsys.readouterr()


def test_modules_of_the_user_by_name(own, capsys):
    code, said, _ = command(capsys, "own_models:clean")
    assert code == 0
    assert said.startswith("Nothing but the past changes a state. Computed in float64, rows of 47 tokens.\n")
    code, said, _ = command(capsys, "own_models:leaking", "--batch", "--json")
    assert code == 1
    found = json.loads(said)
    assert {one["module"] for one in found["results"] if one["check"] == "future"} == {"layers.1"}
    assert {one["module"] for one in found["results"] if one["check"] == "batch"} == {None}


def test_runs_exports_and_folders_of_hugging_face(run, tmp_path, capsys):
    pytest.importorskip("transformers", reason="needs the extra hf")
    code, said, _ = command(capsys, run, "--checkpoint", "1")
    assert code == 0, said
    statewise.export(run, tmp_path / "exported")
    code, said, error = command(capsys, tmp_path / "exported")
    assert code == 0, said + error
    assert [line.split("  ")[0] for line in said.splitlines() if line.endswith("not checked")] == [
        "other documents (position_ids and cu_seq_lens)"  # which our class refuses
    ]
    code, said, _ = command(capsys, tiny_folder(), "--packed", "--length", 20)
    assert code == 0, said
    assert "rows of 20 tokens" in said


def test_objects_stay_as_they_are():
    model = statewise.build("path-star-small", *SMALL_RUN, **{"task.held_out_graphs": 4})
    before = model.fingerprint()
    assert statewise.leaks(model, length=20).clean
    for given in (model.objective, tiny_objective("next_latent"), tiny_gpt()):
        assert statewise.leaks(given, ["batch"], length=20).clean
    assert model.fingerprint() == before
    recurrent = nn.Sequential(nn.Embedding(9, 4), nn.LSTM(4, 4, batch_first=True))
    assert statewise.leaks(recurrent).clean
    for wrong in (3, None, [model], torch.zeros(3)):
        with pytest.raises(TypeError, match="a model is a name, a folder, a torch module or a "):
            statewise.leaks(wrong)
    with pytest.raises(TypeError, match="checks must be a list of names"):
        statewise.leaks(recurrent, "packed")


@pytest.mark.slow  # imports the compiler
def test_compiled_modules_are_checked_as_they_were():
    compiled = torch.compile(nn.Sequential(nn.Embedding(9, 4), nn.GRU(4, 4, batch_first=True, bidirectional=True)))
    assert {one.module for one in statewise.leaks(compiled).found()} == {"1"}


CONFIG = {"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 9}
BAD = {
    "own_models:nothing": "cannot be imported or made: AttributeError",
    "own_models:failing": "cannot be imported or made: KeyError: 'no weights'",
    "own_models:number": "is not a torch module, nor a function without arguments that returns one",
    "no_such_module:x": "there is no module no_such_module: is it installed",
    "": "the model is not named",
    "a b": "there is no such folder, and no model on the hub has such a name",
    "[bold]x[/bold]": "there is no such folder",
    "../../../x/y": "there is no such folder",
    "no/such": "the hub did not give such a model",
    "own_models.py": "a model is a folder, not a file",
    "empty": "it has no config.json",
    "torn": "not JSON",
    "list": "it has no model_type",
    "numbers": "hidden_size of its config.json must be a whole number",
    "weightless": "its weights cannot be loaded",
    "unknown": "config.json cannot be used",
    "t5": "has no causal language model of the type t5",
    "run": "run has no checkpoint yet",
}


@pytest.mark.parametrize("name", BAD)
def test_bad_models_are_refused_in_a_sentence(name, own, monkeypatch, capsys):
    pytest.importorskip("transformers", reason="needs the extra hf")
    contents = {
        "torn": "{",
        "list": "[1]",
        "numbers": json.dumps({**CONFIG, "hidden_size": -16}),
        "weightless": json.dumps(CONFIG),
        "unknown": json.dumps({"model_type": "nonsense"}),
        "t5": json.dumps({"model_type": "t5"}),
        "run": json.dumps({"task": 3, "backbone": [], "objective": None}),
    }
    (own / "empty").mkdir()
    for folder, content in contents.items():
        (own / folder).mkdir()
        (own / folder / "config.json").write_text(content)
    monkeypatch.chdir(own)
    code, said, error = command(capsys, name)
    assert (code, said) == (2, "")
    assert BAD[name] in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["own_models:clean", "--packed"], "other documents cannot be checked: its forward takes none of"),
        (["own_models:clean", "--padding", "--batch"], "padding cannot be checked"),
        (["own_models:clean", "--length", "3"], "length is 3, and must be at least 8 tokens"),
        (["own_models:clean", "--length", "0"], "--length must be at least 1"),
        (["own_models:clean", "--length", "9e9"], "invalid int"),
        (["own_models:clean", "--length", str(2**80)], "--length must be below"),
        ([], "the following arguments are required: MODEL"),
        (["own_models:clean", "x"], "one argument too many"),
        (["own_models:clean", "--device", "nope"], "nope"),
        (["torch:randn"], "cannot be imported or made: TypeError: randn() received an invalid combination"),
        (["own_models:clean", "--pakced"], "did you mean --packed"),
    ],
)
def test_bad_options_are_refused_in_a_sentence(words, message, own, capsys):
    code, said, error = command(capsys, *words)
    assert (code, said) == (2, "")
    assert message in error
    assert error.count("\n") == 1


def test_what_the_page_does_in_python(capsys):
    (code,) = blocks("docs/leaks.md", "python")
    names = run_code(code, "docs/leaks.md")
    assert {one.module for one in names["found"].found()} == {"1"}
    assert capsys.readouterr().out.startswith("States depend on more than the past: later tokens")
