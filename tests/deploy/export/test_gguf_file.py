"""GGUF files hold the same model: transformers reads them back."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import json

import pytest
import torch
from doubles import path_star_model, spread_weights
from exported import TEXTS, ours_of, same, whole_rows

transformers = pytest.importorskip("transformers", reason="needs the extra hf")

from statewise.cli import main  # noqa: E402
from statewise.deploy.export.export import export  # noqa: E402
from statewise.tasks.text.bpe import BPE, END  # noqa: E402

transformers.logging.disable_progress_bar()


def test_a_gguf_file_read_by_transformers_is_the_same_model(of_text, tmp_path):
    pytest.importorskip("gguf", reason="needs the extra hf")
    pytest.importorskip("accelerate", reason="transformers needs it to read GGUF files")
    for model, name, tied in ((of_text, "text.gguf", True), (path_star_model(tied=False), "graphs.gguf", False)):
        found = export(model, tmp_path / name, "gguf")
        assert (found.architecture, found.bytes) == ("llama", (tmp_path / name).stat().st_size)
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=name)
        assert theirs.config.tie_word_embeddings is tied
        tokens = torch.randint(0, len(model.task.vocab), (3, 20), generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            same(theirs(tokens).logits, ours_of(model, tokens))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="text.gguf")
    for text in [*TEXTS, "naïve — 中文 \n\t", "don't  stop"]:
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == of_text.task.encode(text).tolist()
    assert tokenizer.eos_token_id == of_text.task.end


LLAMA = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
LLAMA |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": None}


def test_a_llama_of_others_becomes_a_gguf_file(tmp_path, capsys):
    pytest.importorskip("gguf", reason="needs the extra hf")
    tokenizers = pytest.importorskip("tokenizers")
    for number, fields in enumerate(({"head_dim": 16}, {"tie_word_embeddings": True, "num_key_value_heads": 4})):
        folder, out = tmp_path / f"tuned{number}", tmp_path / f"{number}.gguf"
        theirs = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**{**LLAMA, **fields}, rope_parameters={"rope_type": "default", "rope_theta": 500})
        )
        spread_weights(theirs)
        theirs.statewise_loss = torch.nn.Linear(2, 2)  # what `statewise.hf.loss_for` keeps beside a model
        theirs.save_pretrained(folder)
        if number:
            bpe = tokenizers.ByteLevelBPETokenizer()
            bpe.train_from_iterator(TEXTS, vocab_size=290, show_progress=False)
            bpe.save(str(folder / "tokenizer.json"))
        assert main(["export", str(folder), "--to", "gguf", "--out", str(out)]) == 0
        assert ("no tokenizer" in capsys.readouterr().out) is not number
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=out.name)
        tokens = torch.randint(0, 300, (3, 20), generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            same(again(tokens).logits, theirs(tokens).logits)
    found = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="1.gguf")
    assert found(TEXTS[0])["input_ids"] == bpe.encode(TEXTS[0]).ids


def test_a_run_tuned_from_a_llama_becomes_a_gguf_file(tmp_path):
    pytest.importorskip("gguf", reason="needs the extra hf")
    transformers.LlamaConfig(**LLAMA).save_pretrained(tmp_path / "base")
    model = path_star_model("next_latent", "hf", model=str(tmp_path / "base"), from_scratch=True)
    export(model, tmp_path / "run.gguf", "gguf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="run.gguf")
    tokens = whole_rows(model)
    with torch.no_grad():
        same(theirs(tokens).logits, ours_of(model, tokens))


def test_stick_breaking_attention_is_refused(tmp_path):
    model = path_star_model(attention="stick_breaking", positions="none")
    with pytest.raises(ValueError, match="attention stick_breaking, so no engine of GGUF files has its architecture"):
        export(model, tmp_path / "out.gguf", to="gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_models_of_others_that_gguf_does_not_hold_are_refused(tmp_path, capsys):
    pytest.importorskip("gguf", reason="needs the extra hf")
    scaled = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    for kind, fields, said in (
        ("Llama", {"attention_bias": True}, "it has biases"),
        ("Llama", {"hidden_act": "gelu"}, "its activation is gelu"),
        ("Llama", {"rope_parameters": scaled}, "its rotary positions are of the type linear"),
        ("Mistral", {}, "it is of the type mistral"),
    ):
        config = getattr(transformers, f"{kind}Config")(**LLAMA, **fields)
        config.save_pretrained(tmp_path / "theirs")
        assert main(["export", str(tmp_path / "theirs"), "--to", "gguf", "--out", str(tmp_path / "out")]) == 2
        assert said in capsys.readouterr().err
    export(path_star_model("belief_state"), tmp_path / "ours")
    for content in ('{"model_type": "llama"}', '{"model_type": 3}', '{"model_type": "llama", "head_dim": -1}', "["):
        (tmp_path / "odd").mkdir(exist_ok=True)
        (tmp_path / "odd" / "config.json").write_text(content)
        assert main(["export", str(tmp_path / "odd"), "--to", "gguf", "--out", str(tmp_path / "out")]) == 2
    assert main(["export", str(tmp_path / "ours"), "--to", "gguf", "--out", str(tmp_path / "out")]) == 2
    assert main(["export", str(tmp_path / "theirs"), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 6
    assert "a folder of Hugging Face already" in said[-1]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("rules", "in_model"),
    [({}, {}), ({"lstrip": True}, {}), ({"single_word": True}, {}), ({}, {"ignore_merges": True})],
    ids=str,
)
def test_of_added_tokens_gguf_holds_what_it_can_say(of_text, tmp_path, monkeypatch, rules, in_model):
    gguf = pytest.importorskip("gguf", reason="needs the extra hf")
    content = json.loads(of_text.task.bpe.content)
    content["model"] |= in_model
    number, (end,) = len(of_text.task.vocab) - 1, content["added_tokens"]
    (symbol,) = (symbol for symbol, other in content["model"]["vocab"].items() if other == number)
    content["added_tokens"].append({**end, "id": number, "content": symbol, "special": False, **rules})
    monkeypatch.setattr(of_text.task, "bpe", BPE(json.dumps(content), "here", (END,)))
    found = export(of_text, tmp_path / "text.gguf", "gguf")
    fields = gguf.GGUFReader(tmp_path / "text.gguf").fields
    assert ("tokenizer.ggml.token_type" in fields) is not any("no tokenizer" in note for note in found.notes)
    if rules or in_model:
        assert found.notes
    else:
        types = fields["tokenizer.ggml.token_type"].contents()
        assert {token: kind for token, kind in enumerate(types) if kind != 1} == {end["id"]: 3, number: 4}
