"""Messages name the file at fault, what is wrong in it, and what to do."""

import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest
from command_line import called, refused, two_steps
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import statewise.cli
from statewise.runtime.messages import escaped, to_install


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return two_steps(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def run(trained, tmp_path):
    """A copy, to be damaged."""
    return shutil.copytree(trained, tmp_path / "run")


def edit(run, **parts):
    """Changes values of config.json; a part is merged."""
    recipe = json.loads((run / "config.json").read_text())
    for part, value in parts.items():
        recipe[part] = {**recipe[part], **value} if isinstance(value, dict) else value
    (run / "config.json").write_text(json.dumps(recipe))


READERS = [
    ["evaluate", "RUN"],
    ["generate", "RUN", "--prompt", "a"],
    ["analyze", "RUN", "effective-rank"],
    ["embed", "RUN", "graphs.txt", "--out", "OUT/e.npy"],
    ["score", "RUN", "OUT/questions.jsonl"],
    ["bench-decode", "RUN"],
    ["compare", "RUN", "--out", "OUT/report"],
    ["train", "--config", "RUN", "--out", "OUT/again"],
    ["fill", "RUN", "--out", "OUT/fills.jsonl"],
]
"""Commands that read a run's config.json."""


@pytest.mark.parametrize("words", [words for words in READERS if "--config" not in words], ids=lambda words: words[0])
def test_a_model_of_hugging_face_is_no_run(capsys, tmp_path, words):
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "questions.jsonl").write_text('{"context": "a", "choices": ["b", "c"], "answer": 0}\n')
    folder = str(tmp_path / "exported")
    said = refused(capsys, *(word.replace("RUN", folder).replace("OUT", str(tmp_path)) for word in words))
    assert f"{folder} is not a run directory, but a Hugging Face model: give the run that it was exported from" in said


@pytest.mark.parametrize("words", READERS, ids=lambda words: words[0])
def test_a_config_nested_too_deeply_is_refused(capsys, run, tmp_path, words):
    (run / "config.json").write_text("[" * 200_000)
    (tmp_path / "questions.jsonl").write_text('{"context": "a", "choices": ["b", "c"], "answer": 0}\n')
    said = refused(capsys, *(word.replace("RUN", str(run)).replace("OUT", str(tmp_path)) for word in words))
    assert f"{run / 'config.json'}: not JSON: brackets are nested too deeply" in said


@pytest.mark.parametrize("words", READERS, ids=lambda words: words[0])
@pytest.mark.parametrize("part", ["task", "backbone", "objective"])
@pytest.mark.parametrize("name", [["path_star"], {"a": 1}, 5])
def test_a_name_that_is_no_text_is_refused(capsys, run, tmp_path, words, part, name):
    edit(run, **{part: {"name": name}})
    (tmp_path / "questions.jsonl").write_text('{"context": "a", "choices": ["b", "c"], "answer": 0}\n')
    said = refused(capsys, *(word.replace("RUN", str(run)).replace("OUT", str(tmp_path)) for word in words))
    assert f"{run / 'config.json'}: {part}.name must be text, not" in said


def test_a_name_that_is_no_text_is_refused_in_a_recipe_file(capsys, tmp_path):
    (tmp_path / "mine.yaml").write_text("task: {name: [path_star]}")
    said = refused(capsys, "train", "--config", tmp_path / "mine.yaml", "--out", tmp_path / "out")
    assert 'mine.yaml: task.name must be text, not ["path_star"]' in said


@pytest.mark.parametrize("value", [10**400, "9" * 401, [10**400]])
def test_long_values_are_cut(capsys, run, value):
    for part, key in (("backbone", "width"), ("trainer", "learning_rate"), ("task", "training_graphs")):
        edit(run, **{part: {key: value}})
        said = refused(capsys, "evaluate", run)
        assert len(said) < len(str(run)) + 220, said
        assert key in said
        edit(run, **{part: {key: 8}})


@pytest.mark.parametrize("value", [10**30, 10**400])
def test_a_seed_out_of_bounds_names_the_file(capsys, run, value):
    edit(run, seed=value)
    said = refused(capsys, "evaluate", run)
    assert f"{run / 'config.json'}: seed must be at least 0" in said
    assert "--" not in refused(capsys, "train", "path-star-small", "--out", run / "x", f"--seed={value}")


@pytest.mark.parametrize("digits", [401, 5001])
def test_no_message_passes_on_the_advice_to_change_pythons_limit(capsys, run, tmp_path, digits):
    number = "9" * digits
    (tmp_path / "mine.yaml").write_text(f"task: path_star\nbackbone: gpt\nobjective: next_token\nseed: {number}\n")
    records = (run / "metrics.jsonl").read_text()
    said = [
        refused(capsys, "train", "--config", tmp_path / "mine.yaml", "--out", tmp_path / "out"),
        refused(capsys, "train", "path-star-small", "--out", tmp_path / "out", f"--seed={number}"),
        refused(capsys, "train", "path-star-small", "--out", tmp_path / "out", f"--trainer.learning_rate={number}"),
        refused(capsys, "train", number, "--out", tmp_path / "out"),
        refused(capsys, "evaluate", run, "--num", number),
        refused(capsys, "evaluate", run, "--checkpoint", number),
        refused(capsys, "generate", run, "--decoder", "sample", "--temperature", number),
        refused(capsys, "analyze", run, "future-probe", "--learning_rate", number),
        refused(capsys, "analyze", run, "future-probe", "--offsets", number),
        refused(capsys, "analyze", run, "future-probe", "--offsets", f"1-{number}"),
        refused(capsys, "analyze", run, "future-probe", "--checkpoints", number, "--training_sequences", 10),
    ]
    (run / "metrics.jsonl").write_text(records.replace('"step": 2', f'"step": {number}'))
    said.append(refused(capsys, "compare", run, "--out", tmp_path / "report"))
    assert "metrics.jsonl:" in said[-1]
    (run / "metrics.jsonl").write_text(records)
    config = (run / "config.json").read_text()
    (run / "config.json").write_text(config.replace('"seed": 1', f'"seed": {number}'))
    said.append(refused(capsys, "evaluate", run))
    assert "config.json" in said[-1]
    for one in said:
        assert "sys." not in one
        assert len(one) < len(str(run)) + 800, one


def test_an_absurd_width_names_the_file(capsys, run):
    edit(run, backbone={"width": 10**9})
    assert f"{run / 'config.json'}: this model" in refused(capsys, "evaluate", run)


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("backbone.width", "1e+99", "a whole number"),
        ("trainer.learning_rate", "nan", "a finite number"),
        ("backbone.tied", "5", "true or false"),
        ("task.training_graphs", "x", "a whole number or null"),
        ("trainer.betas", "[1]", "a list of 2 values"),
    ],
)
def test_types_are_named_in_words(capsys, tmp_path, key, value, kind):
    said = refused(capsys, "train", "path-star-small", "--out", tmp_path / "x", f"--{key}={value}")
    assert f"{key}: expected {kind}, not '{value}'" in said


STEP = "checkpoints/step-00000002"


@pytest.mark.parametrize("name", ["manifest.json", "weights.safetensors", "training.pt"])
def test_a_file_of_a_checkpoint_that_is_missing_or_a_folder_is_named(capsys, run, name):
    (run / STEP / name).unlink()
    said = refused(capsys, "evaluate", run)
    assert f"checkpoint {run / STEP} is damaged: its {name} is missing" in said
    assert "restore it from a copy, or train again" in said
    (run / STEP / name).mkdir()
    assert f"its {name} is a folder, not a file" in refused(capsys, "evaluate", run)


def test_a_folder_in_place_of_a_file_is_said(capsys, run, tmp_path):
    assert f"{tmp_path} is a folder: give a file" in refused(
        capsys, "embed", run, tmp_path, "--out", tmp_path / "e.npy"
    )
    (run / "config.json").unlink()
    (run / "config.json").mkdir()
    assert "its config.json is a folder, not a file" in refused(capsys, "evaluate", run)


def test_a_block_that_is_not_there_is_answered_with_those_that_are(capsys, run, tmp_path):
    (tmp_path / "g.txt").write_text("1,2|2,3/1,3=\n")
    words = ["embed", run, tmp_path / "g.txt", "--prompts", "--out", tmp_path / "e.npy", "--layer"]
    said = refused(capsys, *words, "blocks.7.hook_resid_post")
    assert said == "statewise: blocks.7.hook_resid_post: there are blocks 0 to 0, and no block 7\n"


def test_compare_names_the_command_that_evaluates_on_the_same_examples(capsys, run, tmp_path):
    other = shutil.copytree(run, tmp_path / "other")
    edit(other, seed=2)
    report = json.loads((other / "reports" / "evaluation.json").read_text())
    report["num"] = 7
    (other / "reports" / "evaluation.json").write_text(json.dumps(report))
    words = ["compare", run, other, "--out", tmp_path / "report"]
    assert f"`statewise evaluate {other}` evaluates it on all held-out examples" in refused(capsys, *words)
    code, out, _ = called(capsys, "evaluate", other, "--num", "5")
    assert (code, out.splitlines()[-1]) == (0, f"wrote {other / 'reports' / 'evaluation-first-5.json'}")
    refused(capsys, *words)
    code, out, _ = called(capsys, "evaluate", other)
    assert (code, out.splitlines()[-1]) == (0, f"wrote {other / 'reports' / 'evaluation.json'}")
    assert called(capsys, *words)[0] == 0
    edit(other, task={"data_seed": 9})
    report["num"] = 7
    (other / "reports" / "evaluation.json").write_text(json.dumps(report))
    assert "so do the held-out sets of the tasks" in refused(capsys, *words, "--overwrite")


def test_missing_and_empty_records_of_training_are_no_failed_training(capsys, run, tmp_path):
    path = run / "metrics.jsonl"
    again = f"train again with `statewise train --config {run} --out {run}-again`"
    for state, change in (("empty", lambda: path.write_text("")), ("missing", path.unlink)):
        change()
        said = refused(capsys, "compare", run, "--out", tmp_path / "report")
        assert f"{path} is {state}" in said
        assert again in said
    path.write_text('{"kind": "end", "step": 2, "reason": "not finite"}\n')
    assert "training of" in refused(capsys, "compare", run, "--out", tmp_path / "report")


def test_a_run_without_the_checkpoints_that_it_had_is_not_trained_over(capsys, run):
    metrics, rest = (run / "metrics.jsonl"), "restore {} from a copy, or train again with --overwrite"
    (run / "reports" / "evaluation.json").unlink()
    shutil.rmtree(run / "checkpoints")
    before = metrics.read_text()
    assert rest.format(run / "checkpoints") in refused(capsys, "train", "--resume", run)
    (run / "checkpoints").write_text("mine")
    assert "checkpoints is a file, not a folder" in refused(capsys, "train", "--resume", run)
    assert metrics.read_text() == before


@pytest.mark.parametrize("words", [["train", "--resume"], ["status"]])
def test_an_end_without_a_reason_names_the_line(capsys, run, words):
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"kind": "end", "step": 2}\n')
    number = len((run / "metrics.jsonl").read_text().splitlines())
    assert f"metrics.jsonl:{number}: reason is missing" in refused(capsys, *words, run)


@pytest.mark.parametrize("missing", [{"trainer": None}, {"trainer": {}}])
def test_a_recipe_without_a_trainer_has_its_defaults(capsys, run, missing):
    """In such a run, the environment need not name the steps."""
    recipe = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**recipe, **missing}))
    assert called(capsys, "status", run)[0] == 0
    environment = json.loads((run / "environment.json").read_text())
    environment.pop("steps")
    (run / "environment.json").write_text(json.dumps(environment))
    code, out, _ = called(capsys, "status", run, "--json")
    assert code == 0
    assert json.loads(out)["runs"][0]["steps"] == 1000
    (run / "config.json").write_text(json.dumps({**recipe, "trainer": {"steps": "x"}}))
    assert "config.json: trainer.steps must be a whole number" in refused(capsys, "status", run)


def test_a_record_without_its_seconds_is_resumed_after(capsys, run):
    (run / "reports" / "evaluation.json").unlink()
    (run / "metrics.jsonl").write_text('{"kind": "train", "step": 2, "loss": 1.0}\n')
    assert called(capsys, "train", "--resume", run)[0] == 0


def test_what_might_steer_the_terminal_is_escaped():
    assert escaped("a\x1b[31mb\x11\n") == "a\\x1b[31mb\\x11\\n"
    assert escaped("a\tb\nc\x07", keep="\n\t") == "a\tb\nc\\x07"
    assert escaped("Gr\u00fc\u00dfe, \u6570") == "Gr\u00fc\u00dfe, \u6570"


def test_a_full_gpu_is_said_in_a_line(monkeypatch, capsys):
    import torch

    tried = "CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has 79.10 GiB"

    def fails(words):
        raise torch.OutOfMemoryError(f"{tried}. If reserved but unallocated memory is large ...")

    monkeypatch.setattr(statewise.cli, "_run", fails)
    assert statewise.cli.main(["list"]) == 2
    assert capsys.readouterr().err == f"statewise: this needs more memory than the device has: {tried}\n"


def package(requirement):
    parsed = Requirement(requirement)
    return canonicalize_name(parsed.name), parsed.specifier


def test_every_extra_is_installed_by_naming_its_packages(monkeypatch, tmp_path):
    """A name on no index, that of statewise, is asked for nowhere: the line works for a wheel and for a checkout."""
    with (Path(__file__).parents[2] / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    for extra, requirements in extras.items():
        if extra == "dev":
            continue
        words = shlex.split(to_install(extra))
        assert words[1:4] == ["-m", "pip", "install"]
        included = [name for one in requirements for name in re.findall(r"statewise\[(.*)\]", one)]
        every = [one for name in (extra, *included) for one in extras[name] if not one.startswith("statewise[")]
        assert {*map(package, words[4:])} == {*map(package, every)}
    monkeypatch.setattr("sys.executable", str(tmp_path / ".venv" / "bin" / "python"))
    monkeypatch.chdir(tmp_path)
    assert to_install("planning").startswith(".venv/bin/python -m pip install ")
