"""Tuned models of transformers whose objective has a head of its own, as `StatewiseForCausalLM` loads them."""

import json
import os
import shutil

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from doubles import path_star_model, spread_weights

transformers = pytest.importorskip("transformers", reason="needs the extra hf")
pytest.importorskip("peft", reason="needs the extra hf")

import statewise.hf  # noqa: E402, F401 -- registers the class
from statewise.data_types import Batch  # noqa: E402
from statewise.deploy.export.export import export  # noqa: E402

transformers.logging.disable_progress_bar()
SYMBOLS = 16
"""Of the task; belief_state adds two."""
SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}
BASES = {
    "llama": lambda: transformers.LlamaConfig(
        vocab_size=SYMBOLS + 5, tie_word_embeddings=False, pad_token_id=19, **SHAPE
    ),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=SYMBOLS, n_embd=16, n_layer=2, n_head=2, n_positions=64),
    # which multiplies its embedding by a constant, and has a window
    "gemma3": lambda: transformers.Gemma3TextConfig(vocab_size=SYMBOLS, head_dim=8, sliding_window=8, **SHAPE),
}
LORA = {"whole": None, "lora": 2}


@pytest.fixture(
    scope="module",
    params=[
        ("belief_state", "llama", "whole"),
        ("belief_state", "gpt2", "whole"),
        ("belief_state", "gpt2", "lora"),
        ("belief_state", "gemma3", "lora"),
        ("joint_multi_token", "llama", "lora"),
        ("joint_multi_token", "gpt2", "whole"),
        ("joint_multi_token", "gemma3", "whole"),
    ],
    ids=" ".join,
)
def tuned(request, tmp_path_factory):
    """A model of random weights; the folder that was exported, from which the base model is gone; what is loaded."""
    objective, base, kind = request.param
    folder = tmp_path_factory.mktemp("own")
    torch.manual_seed(0)
    theirs = transformers.AutoModelForCausalLM.from_config(BASES[base]())
    spread_weights(theirs)
    theirs.save_pretrained(folder / "base")
    more = {"lora": {"rank": LORA[kind]}, "backward_from": "copy" if base == "gpt2" else "fresh"}
    model = path_star_model(objective, "hf", model=str(folder / "base"), **more)
    before = {name: tensor.clone() for name, tensor in model.objective.state_dict().items()}
    found = export(model, folder / "out")
    assert found.architecture == "StatewiseForCausalLM"
    assert any("LoRA adapters merged" in note for note in found.notes) == (kind == "lora")
    after = model.objective.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    shutil.rmtree(folder / "base")
    loaded, facts = transformers.AutoModelForCausalLM.from_pretrained(folder / "out", output_loading_info=True)
    assert not any(facts.values()), facts
    return model, folder / "out", loaded


def whole_rows(model, rows=5):
    return torch.from_numpy(model.task.held_out(rows).tokens)


def same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5 * max(1.0, float(wanted.abs().max())))


def test_it_gives_our_logits_and_our_text(tuned):
    model, _, theirs = tuned
    tokens = whole_rows(model)
    wanted = model.predictor().logits(Batch.plain(tokens))
    assert wanted.shape[-1] == SYMBOLS
    assert wanted.std() > 0.1
    same(theirs(tokens).logits, wanted)
    prompts = tokens[:, :21]
    texts = [one.tokens.tolist() for one in model.generate([model.task.decode(row) for row in prompts], limit=4)]
    for options in ({}, {"use_cache": False}):
        found = theirs.generate(prompts, attention_mask=torch.ones_like(prompts), **options)
        assert found[:, 21:].tolist() == texts


def test_padding_on_the_left_changes_nothing(tuned):
    model, _, theirs = tuned
    tokens, mask = whole_rows(model)[:, :18], torch.ones(5, 18, dtype=torch.long)
    mask[1, :5] = mask[3, :1] = 0
    found = theirs(tokens, attention_mask=mask, use_cache=True).logits
    for row, keep in enumerate(mask.bool()):
        same(found[row, keep], model.predictor().logits(Batch.plain(tokens[row : row + 1, keep]))[0])


def test_goals_and_drafts_are_those_of_the_run(tuned):
    model, _, theirs = tuned
    ours, loaded, prompts = model.predictor(), theirs.objective.predictor(), whole_rows(model)[:, :12]
    cursors = [predictor.start(prompts)[0] for predictor in (ours, loaded)]
    if model.recipe.objective.name == "belief_state":
        goal = torch.tensor([3, 1])
        same(loaded.score_goal(cursors[1], goal), ours.score_goal(cursors[0], goal))
        return
    token = torch.tensor([1, 2, 3, 4, 5])
    drafts = [next(predictor.guesses(cursor, token)) for predictor, cursor in zip((ours, loaded), cursors)]
    same(*drafts)


def test_what_transformers_saves_again_is_the_same_model(tuned, tmp_path):
    model, _, theirs = tuned
    theirs.save_pretrained(tmp_path / "again")
    again, facts = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again", output_loading_info=True)
    assert not any(facts.values()), facts
    tokens = whole_rows(model)
    same(again(tokens).logits, theirs(tokens).logits)


def test_a_damaged_architecture_is_refused_with_a_sentence(tuned, tmp_path):
    _, out, _ = tuned
    shutil.copytree(out, tmp_path / "out")
    path = tmp_path / "out" / "config.json"
    content = json.loads(path.read_text())
    for wrong, said in ((3, "pretrained_config"), ({}, "model_type"), ({"model_type": "nonsense"}, "nonsense")):
        path.write_text(json.dumps({**content, "pretrained_config": wrong}))
        with pytest.raises(ValueError, match=said):
            transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
