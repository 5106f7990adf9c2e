"""From a model of transformers to data with its tokenizer, a tuned run, and back."""

import json
import os
import subprocess
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from doubles import small_corpus
from safetensors.torch import load_file

from statewise.cli import main
from statewise.data_types import Batch
from statewise.deploy.export.folder_files import FILES
from statewise.model.model import load_model
from statewise.runtime.overwriting import strangers
from statewise.tasks.corpus import tokenizers
from statewise.tasks.corpus.folder import Corpus
from statewise.tasks.text import bpe

pytestmark = pytest.mark.usefixtures("forked")

transformers = pytest.importorskip("transformers", reason="needs the extra hf")
peft = pytest.importorskip("peft", reason="needs the extra hf")
transformers.logging.disable_progress_bar()
END = "</s>"
FLAGS = [
    "--task.context=24",
    "--trainer.precision=fp32",
    "--trainer.steps=3",
    "--trainer.batch_size=4",
    "--trainer.learning_rate=0.02",
    "--trainer.warmup_steps=0",
    "--trainer.warmup_tokens=null",
    "--trainer.evaluate_num=4",
    "--trainer.report_num=8",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model whose tokenizer ends texts by `</s>` and begins them so, too, as of some models; and a
    corpus made with it."""
    folder = tmp_path_factory.mktemp("tuned")
    small_corpus(folder)
    texts = (folder / "told.txt").read_text().split("\n<|endoftext|>\n")
    content = json.loads(bpe.train(texts, 270, (END,)).content)
    beginning = {"SpecialToken": {"id": END, "type_id": 0}}
    special = {END: {"id": END, "ids": [content["model"]["vocab"][END]], "tokens": [END]}}
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [beginning, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": special,
    }
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=272,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=64,
        bos_token_id=3,
        eos_token_id=0,
        tie_word_embeddings=False,
    )
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder / "base")
    (folder / "base" / "tokenizer.json").write_text(json.dumps(content))
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": {"content": END}}
    (folder / "base" / "tokenizer_config.json").write_text(json.dumps(facts))
    made = ["data", "text", folder / "told.txt", "--tokenizer", f"hf:{folder / 'base'}", "--held-out", "0.2"]
    assert main([*map(str, made), "--out", str(folder / "data")]) == 0
    return folder


def test_a_corpus_has_the_models_tokenizer_and_its_end(place):
    corpus = Corpus(place / "data")
    assert corpus.bpe.end_symbol == END
    assert len(corpus.bpe.symbols) == 270
    tokens = corpus.training.read(0, len(corpus.training))
    assert int((tokens == corpus.bpe.end).sum()) == corpus.training.documents


def test_without_a_network_a_tokenizer_of_the_hub_is_refused_in_a_sentence(tmp_path):
    """In a process of its own: packages that are loaded already would hide which ones this needs."""
    (tmp_path / "a.txt").write_text("some text")
    words = ["data", "text", "a.txt", "--tokenizer", "hf:nobody/nothing", "--out", "out"]
    done = subprocess.run(
        [sys.executable, "-m", "statewise", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    said = done.stderr.splitlines()[-1]
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert said.startswith(
        "statewise: nobody/nothing: there is no such folder, and the hub did not give tokenizer.json"
    )


def test_tokenizers_that_cannot_be_used_are_refused(place, tmp_path):
    with pytest.raises(ValueError, match=r"this model has no tokenizer.json"):
        tokenizers.load(f"hf:{tmp_path}")
    with pytest.raises(ValueError, match=r"nobody/nothing: there is no such folder, and the hub did not give"):
        tokenizers.load("hf:nobody/nothing")
    for path in ("./nothing", str(tmp_path / "nothing")):
        with pytest.raises(ValueError, match=r"there is no such folder, and no model on the hub has such a name"):
            tokenizers.load(f"hf:{path}")
    with pytest.raises(ValueError, match=r"`tokenizer` hf: names no model"):
        tokenizers.load("hf:")
    content = json.loads((place / "base" / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"has no token <\|endoftext\|>, which must end every text"):
        tokenizers.load(f"hf:{tmp_path}")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    assert tokenizers.load(f"hf:{tmp_path}").end_symbol == END
    (tmp_path / "tokenizer_config.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"its tokenizer cannot be used: not JSON: brackets are nested too deeply"):
        tokenizers.load(f"hf:{tmp_path}")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    vocabulary = content["model"]["vocab"]
    vocabulary["▁the"] = vocabulary.pop(next(symbol for symbol in reversed(vocabulary)))
    content["model"]["merges"].pop()
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"this tokenizer is not byte-level: .*; give a model with a byte-level one"):
        tokenizers.load(f"hf:{tmp_path}")


@pytest.fixture(scope="module", params=["whole", "lora"])
def tuned(request, place):
    """A run, and what was exported of it."""
    run, out = place / f"run-{request.param}", place / f"exported-{request.param}"
    words = [
        "train",
        "text-small",
        f"--task.path={place / 'data'}",
        "--backbone=hf",
        "--objective=next_latent",
        f"--backbone.model={place / 'base'}",
        *FLAGS,
    ]
    lora = ["--backbone.lora.rank=2"] if request.param == "lora" else []
    assert main([*words, *lora, "--out", str(run)]) == 0
    assert main(["export", str(run), "--to", "hf", "--out", str(out)]) == 0
    return request.param, run, out


@torch.no_grad()
def test_a_tuned_model_leaves_as_what_it_came_and_gives_our_logits(tuned, place):
    kind, run, out = tuned
    model = load_model(run)
    assert not strangers(out, FILES)
    assert len({path.stat().st_mode for path in out.rglob("*") if path.is_file()}) == 1
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out)
    assert type(theirs) is transformers.Qwen3ForCausalLM
    assert (theirs.config.bos_token_id, theirs.config.eos_token_id) == (3, model.task.end)
    tokens = torch.from_numpy(model.task.held_out(2).tokens)
    wanted = model.predictor().logits(Batch.plain(tokens))
    torch.testing.assert_close(theirs(tokens).logits[..., :270], wanted, rtol=0, atol=1e-5)
    base = transformers.AutoModelForCausalLM.from_pretrained(place / "base")
    assert (base(tokens).logits - theirs(tokens).logits).abs().max() > 1e-3
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    text = "Story 3: a cat"
    assert tokenizer(text)["input_ids"] == model.task.encode(text).tolist()
    assert tokenizer.eos_token == END
    assert {name.partition(".")[0] for name in load_file(out / "extra" / "dynamics.safetensors")} >= {"first", "norm"}
    (completion,) = model.generate([text], limit=6)
    prompt = tokenizer(text, return_tensors="pt")
    found = theirs.generate(**prompt, max_new_tokens=6)[0, prompt["input_ids"].shape[1] :].tolist()
    assert found == completion.tokens.tolist()
    assert (out / "adapter").exists() == (kind == "lora")
    if kind == "lora":
        alone = peft.PeftModel.from_pretrained(base, out / "adapter")
        torch.testing.assert_close(alone(tokens).logits, theirs(tokens).logits, rtol=0, atol=1e-5)
        sizes = {
            tensor.shape
            for name, tensor in load_file(next(run.glob("checkpoints/*/weights.safetensors"))).items()
            if ".body." in name
        }
        assert all(2 in size for size in sizes)


def test_a_tuned_run_needs_its_model(tuned, place, capsys):
    _, run, _ = tuned
    moved = place / "moved"
    (place / "base").rename(moved)
    try:
        assert main(["evaluate", str(run)]) == 2
    finally:
        moved.rename(place / "base")
    assert "base: there is no such folder" in capsys.readouterr().err
    assert main(["train", "--resume", str(run)]) == 0


def test_with_a_head_of_its_own_it_leaves_in_our_class(place, tmp_path, capsys):
    words = [
        "train",
        "text-small",
        f"--task.path={place / 'data'}",
        "--backbone=hf",
        "--objective=joint_multi_token",
        f"--backbone.model={place / 'base'}",
        *FLAGS,
        "--backbone.lora.rank=2",
    ]
    run, out = tmp_path / "run", tmp_path / "out"
    assert main([*words, "--out", str(run)]) == 0
    assert main(["export", str(run), "--to", "hf", "--out", str(out)]) == 0
    assert "StatewiseForCausalLM" in capsys.readouterr().out
    assert not strangers(out, FILES)
    import statewise.hf  # noqa: F401 -- registers the class

    model, theirs = load_model(run), transformers.AutoModelForCausalLM.from_pretrained(out)
    tokens = torch.from_numpy(model.task.held_out(2).tokens)
    torch.testing.assert_close(theirs(tokens).logits, model.predictor().logits(Batch.plain(tokens)), rtol=0, atol=1e-5)
    assert main(["export", str(run), "--to", "gguf", "--out", str(tmp_path / "out.gguf")]) == 2
    assert "joint_multi_token predicts by a head of its own" in capsys.readouterr().err
    assert main([*words, "--dry-run"]) == 0
    assert "parameters" in capsys.readouterr().out


def test_data_of_another_tokenizer_is_refused_before_a_run_exists(place, tmp_path, capsys):
    other = small_corpus(tmp_path)
    words = [
        "train",
        "text-small",
        f"--task.path={other.folder}",
        "--backbone=hf",
        f"--backbone.model={place / 'base'}",
        *FLAGS,
    ]
    assert main([*words, "--out", str(tmp_path / "run")]) == 2
    assert "the task's tokenizer does not fit" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
