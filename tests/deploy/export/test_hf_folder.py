"""Folders of known architectures compute what our model does. Models are made without a network."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")


import pytest
import torch
from doubles import MAPPED_BLOCKS, path_star_model
from exported import load, ours_of, same, whole_rows

transformers = pytest.importorskip("transformers", reason="needs the extra hf")

from statewise.deploy.export.export import export  # noqa: E402

transformers.logging.disable_progress_bar()

every_block = pytest.mark.parametrize(("architecture", "fields"), MAPPED_BLOCKS, ids=str)


@every_block
def test_a_mapped_export_gives_our_logits_and_our_text(architecture, fields, tmp_path):
    model = path_star_model(**fields)
    assert export(model, tmp_path / "out").architecture == architecture
    theirs = load(tmp_path / "out")
    assert type(theirs).__name__ == architecture
    tokens = whole_rows(model)
    with torch.no_grad():
        same(theirs(tokens).logits, ours_of(model, tokens))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    examples = model.task.held_out(8)
    prompts = [model.task.decode(examples.prompt(row)) for row in range(8)]
    found = theirs.generate(**tokenizer(prompts, return_tensors="pt"))
    wanted = [prompt + model.task.decode(one.tokens) for prompt, one in zip(prompts, model.generate(prompts, limit=4))]
    assert [tokenizer.decode(row) for row in found] == wanted
    assert len(set(wanted)) > 4


def angles(positions, width):
    """(..., width/2) in float64 (Su et al. 2021)."""
    return positions[..., None].double() / 10000.0 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)


@pytest.fixture
def all_float64(monkeypatch):
    """Neither library computes any step in float32: both round the angles of rotary positions, and Llama its norms."""
    from transformers.models.llama import modeling_llama
    from transformers.models.stablelm import modeling_stablelm
    from transformers.models.starcoder2 import modeling_starcoder2

    from statewise.backbones import gpt

    def ours(positions, width):
        found = angles(positions, width)
        return torch.cat((found.cos(),) * 2, -1), torch.cat((-found.sin(), found.sin()), -1)

    def theirs(self, x, position_ids):
        found = torch.cat((angles(position_ids, self.inv_freq.numel() * 2),) * 2, -1)
        return found.cos(), found.sin()

    def norm(self, x):
        return self.weight * x / (x.square().mean(-1, keepdim=True) + self.variance_epsilon).sqrt()

    monkeypatch.setattr(gpt, "rotary_angles", ours)
    monkeypatch.setattr(modeling_llama.LlamaRMSNorm, "forward", norm)
    monkeypatch.setattr(modeling_llama.LlamaRotaryEmbedding, "forward", theirs)
    monkeypatch.setattr(modeling_stablelm.StableLmRotaryEmbedding, "forward", theirs)
    monkeypatch.setattr(modeling_starcoder2.Starcoder2RotaryEmbedding, "forward", theirs)


@every_block
@pytest.mark.usefixtures("all_float64")
def test_in_float64_a_mapped_export_is_exact(architecture, fields, tmp_path):
    model = path_star_model(**fields)
    export(model, tmp_path / "out")
    theirs = load(tmp_path / "out").double()
    model.objective.double()
    tokens = whole_rows(model)
    with torch.no_grad():
        same(theirs(tokens).logits, ours_of(model, tokens), share=1e-12)


OWN_FLOAT32 = {"LlamaForCausalLM": 1e-6}
"""How far off architectures are that compute steps in float32 whatever the model's type: Llama its norms."""


@every_block
def test_in_float64_an_export_is_as_exact_as_the_architecture(architecture, fields, tmp_path):
    model = path_star_model(**fields)
    export(model, tmp_path / "out")
    theirs = load(tmp_path / "out").double()
    model.objective.double()
    tokens = whole_rows(model)
    with torch.no_grad():
        same(theirs(tokens).logits, ours_of(model, tokens), share=OWN_FLOAT32.get(architecture, 1e-12))


@every_block
def test_padding_on_the_left_changes_nothing(architecture, fields, tmp_path):
    model = path_star_model(**fields)
    export(model, tmp_path / "out")
    theirs, tokens = load(tmp_path / "out"), whole_rows(model)[:, :18]
    mask = torch.ones_like(tokens)
    mask[1, :5] = mask[3, :1] = 0
    found = theirs.generate(tokens, attention_mask=mask, max_new_tokens=4)[:, 18:]
    prompts = [row[keep.bool()].numpy() for row, keep in zip(tokens, mask)]
    for row, prompt in enumerate(prompts):
        alone = theirs.generate(
            torch.from_numpy(prompt)[None], attention_mask=mask[:1, : len(prompt)] ** 0, max_new_tokens=4
        )
        assert alone[0, len(prompt) :].tolist() == found[row].tolist()


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "StatewiseForCausalLM"])
def test_what_transformers_saves_again_is_the_same_model(architecture, tmp_path):
    model = path_star_model("next_token" if architecture.startswith("Llama") else "belief_state")
    assert export(model, tmp_path / "one").architecture == architecture
    load(tmp_path / "one").save_pretrained(tmp_path / "two")
    tokens = whole_rows(model)
    with torch.no_grad():
        same(load(tmp_path / "two")(tokens).logits, ours_of(model, tokens))
