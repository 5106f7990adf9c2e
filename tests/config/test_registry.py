"""Parts of other packages: by `module:Class`, by entry points, and trained from the command line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import statewise
from statewise.analysis import ANALYSES
from statewise.backbones import BACKBONES
from statewise.cli import main
from statewise.decoding import DECODERS, make_decoder
from statewise.model.model import load_model
from statewise.model.recipes import read_recipe
from statewise.objectives import OBJECTIVES
from statewise.objectives.next_token import NextToken
from statewise.tasks import TASKS

EXAMPLE = Path(__file__).parent.parent / "example_package"
TINY = [
    "--backbone.width=16",
    "--backbone.heads=2",
    "--backbone.layers=1",
    "--trainer.batch_size=8",
    "--trainer.steps=3",
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the example package, installed as pip installs it."""
    folder = tmp_path_factory.mktemp("installed")
    source = shutil.copytree(EXAMPLE, tmp_path_factory.mktemp("source") / "example")  # a build leaves files behind
    options = [
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "--no-compile",
    ]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


COMMANDS = """
import contextlib, io, json, sys
from statewise.cli import main

said = []
for words in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        code = main(words)
    said.append((code, out.getvalue()))
print(json.dumps(said))
"""


def called(folder, installed, *commands):
    """(exit code, what it printed) of each command line, in a process that finds the example package."""
    path = os.pathsep.join([str(installed), str(Path(statewise.__file__).parent.parent)])
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        check=True,
    )
    return json.loads(done.stdout)


def announce(folder, monkeypatch, *lines, name="other", group="statewise.objectives"):
    """Makes `folder` one that holds an installed package with these entry points."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    if str(folder) not in sys.path:
        monkeypatch.syspath_prepend(str(folder))


@pytest.mark.usefixtures("forked")
def test_a_package_of_its_own_is_trained_from_the_command_line(installed, tmp_path):
    (tmp_path / "mine.yaml").write_text("{task: {name: counting, numbers: 40}, backbone: gpt, objective: next_token}")
    flags = ["--config", "mine.yaml", "--objective", "short_embeddings", "--objective.penalty", "0.5", *TINY]
    commands = [
        ["list"],
        ["train", *flags, "--out", "run"],
        ["evaluate", "run", "--beginning-with", "even"],
        ["evaluate", "run", "--begining-with", "even"],
    ]
    codes, (listed, _, evaluated, mistaken) = zip(*called(tmp_path, installed, *commands))
    assert codes == (0, 0, 0, 2), (listed, evaluated, mistaken)
    assert "example_parts.counting:Counting, from statewise-example 0.3" in " ".join(listed.split())
    assert "example_parts.short_embeddings:ShortEmbeddings, from statewise-example 0.3" in " ".join(listed.split())
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert "length" in records[0]
    assert evaluated.count("run, step 3, 20 examples") == 1
    assert "did you mean --beginning-with?" in mistaken
    missing = called_without(tmp_path, "evaluate", "run")
    assert "unknown task 'counting'" in missing
    assert "Names from other packages need these packages installed" in missing


def called_without(folder, *words):
    """The error of a command line in a process that does not find the example package."""
    source = str(Path(statewise.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-m", "statewise", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    return done.stderr


def test_a_class_goes_where_a_name_does_and_is_kept_with_the_run(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from statewise.analysis.effective_rank import EffectiveRank\n"
        "from statewise.backbones.gpt import GPT\n"
        "from statewise.decoding.sample import Greedy\n"
        "from statewise.objectives.next_token import NextToken\n"
        "from statewise.tasks.path_star import PathStar\n"
        "class Task(PathStar): pass\nclass Backbone(GPT): pass\nclass Objective(NextToken): pass\n"
        "class Decoder(Greedy): pass\nclass Analysis(EffectiveRank): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("{task: 'mine:Task', backbone: {name: 'mine:Backbone'}, objective: next_token}")
    flags = ["--objective=mine:Objective", "--task.held_out_graphs=20", *TINY]
    assert main(["train", "--config", "mine.yaml", *flags, "--out", "run"]) == 0
    parts = json.loads((tmp_path / "run" / "config.json").read_text())
    assert [parts[kind]["name"] for kind in ("task", "backbone", "objective")] == [
        "mine:Task",
        "mine:Backbone",
        "mine:Objective",
    ]
    model = load_model("run")
    assert [type(part).__name__ for part in (model.task, model.objective)] == ["Task", "Objective"]
    prompt = model.task.decode(model.task.held_out(1).prompt(0))
    assert main(["generate", "run", "--prompt", prompt, "--decoder", "mine:Decoder"]) == 0
    assert main(["analyze", "run", "mine:Analysis", "--sequences", "8"]) == 0
    assert (tmp_path / "run" / "reports" / "mine.Analysis.json").is_file()
    capsys.readouterr()
    assert main(["analyze", "mine:Analysis", "--help"]) == 0
    assert "options of mine:Analysis" in capsys.readouterr().out


AWKWARD = """
from dataclasses import dataclass
from statewise.objectives.base import Objective
from statewise.objectives.next_token import NextToken, NextTokenConfig

class Half(Objective):
    Config = NextTokenConfig
    def loss(self, batch, counts): ...

@dataclass(frozen=True)
class NamedConfig:
    name: str = "mine"

class Named(NextToken):
    Config = NamedConfig
"""


@pytest.mark.parametrize(
    ("table", "name", "said"),
    [
        (OBJECTIVES, "no.such:Thing", "objective no.such:Thing: there is no module no: is it installed"),
        (OBJECTIVES, "statewise.objectives.next_token:None_", "has no attribute 'None_'"),
        (OBJECTIVES, "statewise.objectives.next_token:", "a class is named module:Class"),
        (OBJECTIVES, "../next_token:NextToken", "a class is named module:Class"),
        (OBJECTIVES, "os:system", "it must subclass statewise.objectives.base.Objective"),
        (TASKS, "statewise.objectives.next_token:NextToken", "it must subclass statewise.tasks.base.Task"),
        (BACKBONES, "statewise.backbones.base:Backbone", "has no dataclass Config"),
        (OBJECTIVES, "awkward_parts:Half", "Half is not complete: it lacks counts, predictor of statewise"),
        (OBJECTIVES, "awkward_parts:Named", "a field of its Config is called name, which names the class itself"),
        (OBJECTIVES, "leaving_parts:Any", "cannot be imported: SystemExit: 3"),
        (DECODERS, "statewise.decoding.sample:greedily", "has no attribute 'greedily'"),
        (ANALYSES, "gradient_ratio", "unknown analysis 'gradient_ratio': did you mean gradient-ratio"),
    ],
)
def test_what_is_no_part_is_said_in_a_sentence(table, name, said, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "awkward_parts.py").write_text(AWKWARD)
    (tmp_path / "leaving_parts.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(ValueError, match=said.replace("(", r"\(").replace("?", r"\?")):
        table[name]


def test_announced_parts_are_imported_only_when_they_are_asked_for(tmp_path, monkeypatch, capsys):
    (tmp_path / "broken_parts.py").write_text("raise RuntimeError('made for another torch')\n")
    (tmp_path / "half_parts.py").write_text("import no_such_dependency\n")
    announce(
        tmp_path,
        monkeypatch,
        "broken = broken_parts:Broken",
        "half = half_parts:Half",
        "fine = statewise.objectives.next_token:NextToken",
        "next_token = broken_parts:Hidden",
    )
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    assert "broken_parts:Broken, from other 1.0" in listed
    assert "Hidden" not in listed
    assert OBJECTIVES["fine"] is OBJECTIVES["next_token"] is NextToken
    with pytest.raises(ValueError, match=r"objective broken \(other 1.0\) cannot be imported: RuntimeError: made for"):
        OBJECTIVES["broken"]
    with pytest.raises(ValueError, match=r"objective half \(other 1.0\): there is no module no_such_dependency$"):
        OBJECTIVES["half"]
    with pytest.raises(ValueError, match=r"unknown objective 'brokn': did you mean broken"):
        read_recipe("{task: path_star, backbone: gpt, objective: brokn}")
    assert main(["train", "path-star-small", "--objective", "broken", "--out", str(tmp_path / "run")]) == 2
    assert "Traceback" not in capsys.readouterr().err
    announce(tmp_path, monkeypatch, "fine = example:Other", name="another")
    with pytest.raises(ValueError, match=r"fine is registered by \w+ 1.0 and by \w+ 1.0: choose one by its class"):
        OBJECTIVES["fine"]


def test_a_decoder_of_others_is_made_with_its_fields():
    decoder = make_decoder("statewise.decoding.sample:Sample", temperature="0.5")
    assert decoder.config.temperature == 0.5
