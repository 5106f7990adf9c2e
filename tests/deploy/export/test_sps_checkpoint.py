"""Checkpoints in the layout of the State-Prediction Separation paper's code, against a forward pass in that layout."""

import json

import numpy as np
import pytest
import torch
from doubles import small_corpus
from safetensors.torch import save_file
from sps_layout import logits, random_checkpoint

from statewise import load
from statewise.backbones.two_stream import VARIANTS, TwoStream, TwoStreamConfig
from statewise.cli import convert, main
from statewise.data_types import Batch
from statewise.deploy.export.sps_checkpoint import convert_sps, model_of_sps, read_config, read_tensors
from statewise.run import Run
from statewise.tasks.batches import collate

V = 30
CONFIG = {
    "n_layer": 3,
    "n_head": 2,
    "hidden_size": 16,
    "intermediate_size": 48,
    "vocab_size": 64,
    "block_size": 20,
    "window_size": 3,
    "predict_token_id": 41,
    "eos_token_id": 29,
    "pad_token_id": 42,
}


def made(tensors, config=CONFIG, variant=None):
    converted = convert_sps(tensors, config, V, variant)
    backbone = TwoStream(TwoStreamConfig(**converted.backbone), vocabulary=V, context=config["block_size"])
    backbone.load_state_dict(converted.weights)
    return backbone.eval()


def tokens_of(rows=3, places=17):
    tokens = torch.randint(0, V - 1, (rows, places), generator=torch.Generator().manual_seed(0))
    tokens[0, [4, 9]] = V - 1
    tokens[1, 0] = V - 1
    return tokens


def documents_of(tokens):
    ended = (tokens == V - 1).long()
    return 1 + ended.cumsum(1) - ended


@pytest.mark.parametrize("window", [0, 3, 16])
@pytest.mark.parametrize("variant", list(VARIANTS))
def test_logits_are_those_of_the_other_layout(variant, window, float64):
    config = {**CONFIG, "window_size": window}
    tensors, tokens = random_checkpoint(config), tokens_of()
    backbone = made(tensors, config, variant)
    with torch.no_grad():
        found = backbone.logits(backbone.encode(Batch.plain(tokens, documents_of(tokens))).readout)
    for row in range(len(tokens)):
        torch.testing.assert_close(found[row], logits(tensors, config, tokens[row], variant)[:, :V])


def test_the_command_knows_all_variants():
    assert set(convert.VARIANTS) == set(VARIANTS)


def test_a_window_as_long_as_the_context_is_double_memory(float64):
    config = {**CONFIG, "window_size": CONFIG["block_size"]}
    tensors, tokens = random_checkpoint(config), tokens_of()
    backbone = made(tensors, config)
    assert backbone.config.variant == "double_memory"
    with torch.no_grad():
        found = backbone.logits(backbone.encode(Batch.plain(tokens[2:])).readout)
    torch.testing.assert_close(found[0], logits(tensors, config, tokens[2], "sps")[:, :V])


def test_a_model_of_one_stream_needs_no_predict(float64):
    config = {key: CONFIG[key] for key in CONFIG if key not in ("predict_token_id", "window_size")}
    tensors, tokens = random_checkpoint(config), tokens_of()
    backbone = made(tensors, config)
    assert backbone.config.variant == "standard"
    with torch.no_grad():
        found = backbone.logits(backbone.encode(Batch.plain(tokens[2:])).readout)
    torch.testing.assert_close(found[0], logits(tensors, config, tokens[2], "standard")[:, :V])


@pytest.mark.parametrize(
    ("harm", "variant", "message"),
    [
        (lambda t, c: t.pop("transformer.h.2.attn.c_proj.weight"), None, "has no transformer.h.2.attn.c_proj.weight"),
        (lambda t, c: c.update(n_layer=2), None, "has unexpected tensors: transformer.h.2"),
        (lambda t, c: c.update(intermediate_size=56), None, r"has the shape \(48, 16\), not \(56, 16\)"),
        (lambda t, c: c.update(intermediate_size=44), None, "intermediate_size 44 is not a multiple of 8"),
        (lambda t, c: c.update(n_head=3), None, "hidden_size 16 does not make 3 heads"),
        (lambda t, c: c.update(n_head=16), None, "16 heads"),
        (lambda t, c: c.update(eos_token_id=40), None, "the tokenizer has 30 tokens"),
        (lambda t, c: c.update(predict_token_id=29), None, "predict_token_id 29 must be a row after the 30 tokens"),
        (lambda t, c: c.update(predict_token_id=64), None, "below 64"),
        (lambda t, c: c.update(predict_token_id=None), "sps", "variant sps needs a predict_token_id"),
        (lambda t, c: c.update(window_size=None), "delayed_state", "variant delayed_state needs a window_size"),
        (
            lambda t, c: t.update({"lm_head.weight": t["transformer.wte.weight"] + 1}),
            None,
            "lm_head.weight differs from transformer.wte.weight",
        ),
    ],
)
def test_what_does_not_fit_is_named(harm, variant, message):
    config = dict(CONFIG)
    tensors = random_checkpoint(config)
    harm(tensors, config)
    with pytest.raises(ValueError, match=message):
        convert_sps(tensors, config, V, variant)


class Code:
    def __reduce__(self):
        return print, ("run",)


def test_files_hold_tensors_and_nothing_else(tmp_path, capsys):
    tensors = random_checkpoint(CONFIG)
    save_file(tensors, tmp_path / "a.safetensors")
    torch.save(
        {"model": {f"_orig_mod.{name}": tensor for name, tensor in tensors.items()}, "step": 3}, tmp_path / "a.pt"
    )
    torch.save(tensors, tmp_path / "b.bin")
    for name in ("a.safetensors", "a.pt", "b.bin"):
        found = read_tensors(tmp_path / name)
        assert found.keys() == tensors.keys()
        assert all(torch.equal(found[key], tensors[key]) for key in tensors)
    torch.save({"model": tensors, "code": Code()}, tmp_path / "c.pt")
    (tmp_path / "d.pt").write_bytes(b"nonsense")
    (tmp_path / "d.safetensors").write_bytes(b"nonsense")
    torch.save({"model": {"a": 3}}, tmp_path / "e.pt")
    odd = {
        "keys": {1: torch.ones(2)},
        "nan": {"a": torch.tensor([1.0, torch.nan])},
        "complex": {"a": torch.ones(2) * 1j},
        "whole": {"a": torch.ones(2, dtype=torch.int64)},
        "sparse": {"a": torch.ones(2).to_sparse()},
        "meta": {"a": torch.ones(2, device="meta")},
        "float8": {"a": torch.ones(2).to(torch.float8_e4m3fn)},
        "twice": {"a": torch.ones(2), "module.a": torch.zeros(2)},
    }
    for name, content in odd.items():
        torch.save(content, tmp_path / f"{name}.pt")
    for name, message in {
        "c.pt": "are not unpickled",
        "d.pt": "not a readable PyTorch file|not unpickled",
        "d.safetensors": "not a readable safetensors file",
        "e.pt": "holds no tensors by name",
        "none.pt": "no such file",
        "keys.pt": "no tensors by name",
        "nan.pt": "a holds numbers that are not finite",
        "twice.pt": "holds a twice",
        **dict.fromkeys(("complex.pt", "whole.pt", "sparse.pt", "meta.pt", "float8.pt"), "a is not a plain matrix"),
    }.items():
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            read_tensors(tmp_path / name)
    assert capsys.readouterr().out == ""
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "n_head": None}))
    with pytest.raises(ValueError, match="n_head"):
        read_config(tmp_path / "config.json")


@pytest.fixture
def theirs(tmp_path):
    """A corpus, and a checkpoint with its configuration that has the corpus's tokenizer."""
    pytest.importorskip("tokenizers")
    corpus = small_corpus(tmp_path)
    size = len(corpus.bpe.symbols)
    config = {**CONFIG, "vocab_size": 320, "predict_token_id": size + 3, "eos_token_id": corpus.bpe.end}
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "more"}))
    tensors = random_checkpoint(config)
    save_file(tensors, tmp_path / "theirs.safetensors")
    return tensors, config


def command(folder, *more):
    return [
        "convert",
        "sps",
        str(folder / "theirs.safetensors"),
        "--config",
        str(folder / "config.json"),
        "--corpus",
        str(folder / "corpus"),
        "--out",
        str(folder / "run"),
        *more,
    ]


def test_the_command_makes_a_run(theirs, tmp_path, capsys):
    tensors, config = theirs
    assert main(command(tmp_path)) == 0, capsys.readouterr().err
    assert "variant sps" in capsys.readouterr().out
    model = load(tmp_path / "run")
    examples = model.task.held_out(4)
    with model.asking() as predictor:
        found = predictor.logits(collate(examples))
    exact = {name: tensor.double() for name, tensor in tensors.items()}
    for row in range(len(examples)):
        length = examples.lengths[row]
        true = logits(exact, config, torch.from_numpy(examples.tokens[row, :length]), "sps")[:, : found.shape[-1]]
        np.testing.assert_allclose(found[row, :length].numpy(), true.numpy(), atol=2e-4, rtol=1e-4)
    for words in (["evaluate"], ["analyze", "fetch"], ["analyze", "restricted-state", "--keep=4"]):
        assert main([words[0], str(tmp_path / "run"), *words[1:]]) == 0, capsys.readouterr().err
    assert Run(tmp_path / "run").report("evaluation")["checkpoint"] == 0
    assert main(command(tmp_path)) == 2
    assert "exists" in capsys.readouterr().err
    assert main(command(tmp_path, "--overwrite", "--variant", "delayed_state", "--context", "12")) == 0
    assert "variant delayed_state" in capsys.readouterr().out
    assert load(tmp_path / "run").task.context == 12
    assert main(["train", "--resume", str(tmp_path / "run")]) == 2
    assert "holds a model from elsewhere, not trained here" in capsys.readouterr().err
    assert main(["status", str(tmp_path / "run")]) == 0
    assert "done" in capsys.readouterr().out


def test_another_tokenizer_is_refused(theirs, tmp_path, capsys):
    _, config = theirs
    (tmp_path / "config.json").write_text(json.dumps({**config, "eos_token_id": 3}))
    assert main(command(tmp_path)) == 2
    assert "and the checkpoint with 3: encode it with the tokenizer" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_model_needs_no_run(theirs, tmp_path):
    files = (tmp_path / "theirs.safetensors", tmp_path / "config.json", tmp_path / "corpus")
    model = model_of_sps(*files, variant="delayed_state", context=12)
    assert (model.task.context, model.recipe.backbone.config.variant) == (12, "delayed_state")
    assert not (tmp_path / "run").exists()
    model = model_of_sps(*files)
    assert (model.task.context, model.recipe.backbone.config.variant) == (CONFIG["block_size"], "sps")
