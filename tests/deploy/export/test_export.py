"""`statewise export`: what it writes, what it refuses, what it leaves alone. Nothing here needs transformers."""

import ast
import importlib
import json
import os
import random
import re
import shutil
import stat
import sys

import pytest
import torch
import yaml
from doubles import MAPPED_BLOCKS, SMALL_RUN, path_star_model
from safetensors import safe_open
from safetensors.torch import load_file

import statewise
from statewise.cli import main
from statewise.deploy.export import hf_folder, tokenizer
from statewise.deploy.export.export import export
from statewise.deploy.export.folder_files import FILES
from statewise.runtime.overwriting import strangers

pytest.importorskip("tokenizers")
FLAGS = ["--task.held_out_graphs=20", "--trainer.steps=2", "--trainer.warmup_steps=0"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for objective in ("next_latent", "belief_state", "teacherless"):
        words = ["train", "path-star-small", *SMALL_RUN, *FLAGS, f"--objective={objective}"]
        assert main([*words, "--out", str(folder / objective)]) == 0
    return folder


def called(capsys, *words):
    capsys.readouterr()
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def content(folder):
    return json.loads((folder / "config.json").read_text())


def test_the_command_writes_a_folder_of_an_existing_architecture(capsys, runs, tmp_path):
    out = tmp_path / "deep" / "out"
    code, said, _ = called(capsys, "export", runs / "next_latent", "--to", "hf", "--out", out)
    assert code == 0
    assert said.splitlines()[0].startswith(f"wrote {out}: LlamaForCausalLM, ")
    assert "note: heads are 8 wide" in said
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert names == {
        "config.json",
        "model.safetensors",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "README.md",
        "statewise.json",
        "extra/dynamics.safetensors",
    }
    assert strangers(out, FILES) == []
    assert {path.name for path in out.parent.iterdir()} == {"out"}
    model = statewise.load(runs / "next_latent", device="cpu")
    ours = json.loads((out / "statewise.json").read_text())
    assert (ours["fingerprint"], ours["recipe"]) == (model.fingerprint(), model.recipe.as_dict())
    dynamics = load_file(out / "extra" / "dynamics.safetensors")
    assert all(torch.equal(dynamics[name], tensor) for name, tensor in model.objective.dynamics.state_dict().items())
    with safe_open(out / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    modes = {stat.S_IMODE(os.stat(path).st_mode) for path in out.rglob("*") if path.is_file()}
    assert len(modes) == 1, "some files can be read by their owner alone"


def test_what_a_killed_export_left_does_not_stop_the_next(runs, tmp_path):
    """safetensors writes to a file of another name first, which a killed process leaves."""
    scratch = tmp_path / ".out.writing"
    for name in (".tmpAb3xYz", "extra/.tmpAb3xYz", "adapter/.tmpAb3xYz", "config.json"):
        (scratch / name).parent.mkdir(parents=True, exist_ok=True)
        (scratch / name).write_bytes(b"half of it")
    statewise.export(runs / "next_latent", tmp_path / "out")
    assert strangers(tmp_path / "out", FILES) == []
    assert not scratch.exists()


def test_the_card_has_recipe_metrics_and_the_command(capsys, runs, tmp_path):
    words = ["export", runs / "next_latent", "--checkpoint", "last", "--out", tmp_path / "my model"]
    assert called(capsys, *words)[0] == 0
    card = (tmp_path / "my model" / "README.md").read_text()
    _, metadata, text = card.split("---\n", 2)
    assert yaml.safe_load(metadata)["tags"] == ["statewise", "path_star", "next_latent", "gpt"]
    report = statewise.load(runs / "next_latent").run.report("evaluation")
    for name, value in report["metrics"].items():
        assert f"| {name} | {value:.6g} |" in text
    recipe = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    assert recipe == statewise.load(runs / "next_latent").recipe.as_dict()
    assert f"statewise export {runs / 'next_latent'} --checkpoint last --out '{tmp_path}/my model'" in text
    assert "import statewise.hf" not in text
    assert called(capsys, "export", runs / "belief_state", "--out", tmp_path / "bst")[0] == 0
    assert "import statewise.hf  # registers" in (tmp_path / "bst" / "README.md").read_text()


def test_a_folder_with_an_odd_name_breaks_no_card(tmp_path):
    out = tmp_path / 'q"x # y\\z'
    export(path_star_model(), out)
    (code,) = re.findall(r"```python\n(.*?)```", (out / "README.md").read_text(), re.DOTALL)
    (named,) = re.findall(r"AutoModelForCausalLM\.from_pretrained\((.*)\)", code)
    assert ast.literal_eval(named) == out.name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metrics": {"loss": None}}, "evaluation.json: metrics.loss must be a number"),
        ({"metrics": [1]}, "evaluation.json: metrics must be an object"),
        ({"checkpoint": None}, "evaluation.json: checkpoint must be a whole number"),
        ({"metrics": {"a|<b>\nc": 1.0}}, None),
    ],
)
def test_a_report_that_was_changed_breaks_no_card(capsys, runs, tmp_path, change, message):
    copied = tmp_path / "run"
    shutil.copytree(runs / "next_latent", copied)
    path = copied / "reports" / "evaluation.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    code, _, err = called(capsys, "export", copied, "--out", tmp_path / "out")
    if message is None:
        assert "\n| a&#124;&lt;b&gt; c | 1 |\n" in (tmp_path / "out" / "README.md").read_text()
    else:
        assert (code, message in err) == (2, True), err


ALWAYS = {
    "bos_token_id": None,
    "pad_token_id": None,
    "eos_token_id": None,
    "dtype": "float32",
    "torch_dtype": "float32",
}


@pytest.mark.parametrize(("architecture", "fields"), MAPPED_BLOCKS, ids=str)
def test_config_leaves_no_field_to_defaults_that_differ(architecture, fields, tmp_path):
    """Loaders fill in what is absent, each in its own way: some tie the head, some give ids to special tokens."""
    model = path_star_model(**fields)
    export(model, tmp_path / "out")
    config = content(tmp_path / "out")
    assert config["architectures"] == [architecture]
    assert {key: config.get(key, "absent") for key in ALWAYS} == ALWAYS
    assert config["tie_word_embeddings"] is fields.get("tied", True)
    assert config["vocab_size"] == 16
    assert fields.get("norm_eps", 1e-5) in config.values()
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert ("lm_head.weight" in tensors) is not fields.get("tied", True)
    if "positions" not in fields:
        assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 10000.0
        assert config["num_key_value_heads"] == config["num_attention_heads"] == 2
        assert config["max_position_embeddings"] == model.task.context
        assert config["intermediate_size"] == model.objective.backbone.config.hidden_width
    assert config.get("activation_function", config.get("hidden_act")) == {"swiglu": "silu"}.get(
        fields.get("mlp", "swiglu"), fields.get("mlp")
    )
    by_name = {
        "LlamaForCausalLM": {
            "attention_bias": fields.get("bias", False),
            "mlp_bias": fields.get("bias", False),
            "head_dim": 8,
        },
        "StableLmForCausalLM": {"partial_rotary_factor": 1.0, "use_parallel_residual": False, "use_qkv_bias": False},
        "Starcoder2ForCausalLM": {"use_bias": fields.get("bias", False), "sliding_window": None},
        "GPT2LMHeadModel": {"n_positions": model.task.context, "n_inner": 48, "resid_pdrop": 0.0},
    }
    assert {key: config[key] for key in by_name[architecture]} == by_name[architecture]


def test_the_tokenizer_is_of_a_class_that_leaves_it_as_it_is(runs, tmp_path):
    statewise.export(runs / "next_latent", tmp_path / "out")
    facts = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert facts["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert facts["clean_up_tokenization_spaces"] is False
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation == {"do_sample": False, "max_new_tokens": 3}


def test_without_a_tokenizer_there_is_a_note(tmp_path):
    model = path_star_model()
    model.task.text_format = None
    found = export(model, tmp_path / "out")
    assert any("no tokenizer: the text of the task path_star" in note for note in found.notes)
    assert not (tmp_path / "out" / "tokenizer.json").exists()
    assert "the folder has no tokenizer" in (tmp_path / "out" / "README.md").read_text()


def test_models_of_no_architecture_say_why_and_keep_all_weights(capsys, runs, tmp_path):
    code, said, _ = called(capsys, "export", runs / "belief_state", "--out", tmp_path / "out")
    assert code == 0
    assert "BeliefState does not predict by a matrix on the output of its backbone" in said
    assert "import statewise.hf" in said
    assert content(tmp_path / "out")["architectures"] == ["StatewiseForCausalLM"]
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    ours = statewise.load(runs / "belief_state", device="cpu").objective.state_dict()
    assert {f"objective.{name}" for name in ours} == set(tensors)
    assert all(torch.equal(tensors[f"objective.{name}"], tensor) for name, tensor in ours.items())


def test_an_export_says_which_classes_of_others_it_needs(capsys, tmp_path, monkeypatch):
    (tmp_path / "exported_part.py").write_text(
        "from statewise.objectives.next_token import NextToken\nclass Mine(NextToken):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = ["--objective=exported_part:Mine", "--backbone=recurrent", "--backbone.width=16", "--trainer.batch_size=4"]
    assert main(["train", "path-star-small", *FLAGS, *words, "--out", str(tmp_path / "run")]) == 0
    code, said, _ = called(capsys, "export", tmp_path / "run", "--out", tmp_path / "out")
    assert code == 0
    assert "note: exported_part:Mine must also be importable where the model is loaded" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["export", "nowhere", "--out", "out"], "nowhere is not a run directory"),
        (["export", ".", "--out", "out"], "is not a run directory: it has no config.json"),
        (["export", "RUNS/teacherless", "--out", "out"], "teacherless predicts whole answers .* train next_token"),
        (["export", "RUNS/teacherless", "--to", "gguf", "--out", "out"], "teacherless predicts whole answers"),
        (["export", "RUNS/belief_state", "--to", "gguf", "--out", "out"], "BeliefState does .* export it with --to hf"),
        (["export", "RUNS/next_latent", "--to", "onnx", "--out", "out"], "onnx"),
        (["export", "RUNS/next_latent"], "--out"),
        (["export", "RUNS/next_latent", "--out", "out", "--checkpoint", "7"], "no checkpoint of step 7"),
        (["export", "RUNS/next_latent", "--out", "theirs"], "theirs exists: .* it holds thesis.tex"),
        (["export", "RUNS/next_latent", "--out", "theirs", "--overwrite"], "theirs holds thesis.tex"),
        (["export", "RUNS/next_latent", "--out", "foreign", "--overwrite"], "no statewise.json in it shows"),
        (["export", "RUNS/next_latent", "--out", "file"], "file is a file: --out names a folder"),
        (["export", "RUNS/next_latent", "--to", "gguf", "--out", "file"], "file exists"),
        (["export", "RUNS/next_latent", "--to", "gguf", "--out", "theirs"], "theirs is a folder: --out names a file"),
        (
            ["export", "RUNS/next_latent", "--out", "RUNS/next_latent", "--overwrite"],
            "not part of a Hugging Face folder",
        ),
    ],
)
def test_what_cannot_be_exported_is_refused_in_a_sentence(capsys, runs, tmp_path, monkeypatch, words, said):
    if "gguf" in words and "RUNS/next_latent" not in words:
        pytest.importorskip("gguf")
    monkeypatch.chdir(tmp_path)
    for name in ("theirs/config.json", "theirs/thesis.tex", "foreign/config.json", "foreign/model.safetensors"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "file").write_text("mine")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    code, _, err = called(capsys, *[word.replace("RUNS", str(runs)) for word in words])
    assert code == 2
    assert err.count("\n") == 1
    assert err.startswith("statewise: ")
    assert re.search(said, err), err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"bias": True}, "biases of a Llama"),
        ({"norm": "layer", "positions": "learned", "mlp": "gelu"}, "this one is a GPT2LMHeadModel"),
        ({"norm": "layer"}, "this one is a StableLmForCausalLM"),
        ({"positions": "learned"}, "no architecture has norm rms, positions learned"),
    ],
)
def test_gguf_is_refused_where_its_engines_compute_something_else(fields, said, tmp_path):
    pytest.importorskip("gguf", reason="needs the extra hf")
    with pytest.raises(ValueError, match=f"{said}.*export it with `to` hf"):
        export(path_star_model(**fields), tmp_path / "model.gguf", "gguf")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(("to", "package"), [("gguf", "gguf"), ("hf", "tokenizers")])
def test_a_missing_extra_is_answered_with_the_line_that_installs_it(to, package, tmp_path, monkeypatch):
    _without(monkeypatch, package)
    monkeypatch.setattr(tokenizer, "is_exact", tokenizer.is_exact.__wrapped__)  # not what an earlier test found
    with pytest.raises(ValueError, match=r"-m pip install .*transformers"):
        export(path_star_model(), tmp_path / "out", to)
    assert not any(tmp_path.iterdir())


def test_importing_the_classes_without_transformers_says_what_to_install(monkeypatch):
    _without(monkeypatch, "transformers")
    monkeypatch.delitem(sys.modules, "statewise.hf", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"need the extra `hf`: .* -m pip install .*transformers"):
        importlib.import_module("statewise.hf")


def _without(monkeypatch, package):
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)


def test_an_export_is_replaced_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    out = tmp_path / "out"
    export(path_star_model("next_latent"), out)
    with pytest.raises(FileExistsError, match="or give `overwrite`"):
        export(path_star_model(), out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    def stop(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(hf_folder, "model_card", stop)
        with pytest.raises(OSError, match="No space"):
            export(path_star_model("belief_state"), out, overwrite=True)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    export(path_star_model("belief_state"), out, overwrite=True)
    assert content(out)["architectures"] == ["StatewiseForCausalLM"]
    assert not (out / "extra").exists(), "a part of the former model is left"


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(ValueError, match="the format must be hf or gguf, not 'onnx'"):
        export(path_star_model(), tmp_path / "out", "onnx")


WORDS = [
    *("--to=hf", "--to=gguf", "--to", "--to=HF", "--out=out", "--out=", "--out=file", "--out=RUNS", "--out=out/\x00"),
    *("--overwrite", "--checkpoint=last", "--checkpoint=x", "--checkpoint=-1", "--checkpoint=", "--device=x"),
    *("", "-", "--", "x", "\x00", "RUNS/next_latent", "RUNS/teacherless"),
]


def test_mutated_commands_end_in_a_sentence(capsys, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    rng, codes = random.Random(0), set()
    for _ in range(60):
        words = ["export", "RUNS/next_latent", "--out", "out"]
        for _ in range(rng.randint(1, 3)):
            words.insert(rng.randint(1, len(words)), rng.choice(WORDS))
        if rng.random() < 0.3:
            del words[rng.randrange(1, len(words))]
        code, _, err = called(capsys, *[word.replace("RUNS", str(runs)) for word in words])
        codes.add(code)
        assert code in (0, 2), words
        assert (code == 2) == err.startswith("statewise: "), words
        assert "Traceback" not in err
        assert (tmp_path / "file").read_text() == "mine" or any("--out=file" in word for word in words)
    assert codes == {0, 2}
    assert (runs / "next_latent" / "config.json").is_file()
