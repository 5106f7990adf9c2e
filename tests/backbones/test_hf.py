"""Models of transformers as backbones: families, windows, LoRA, what is refused."""

import dataclasses
import functools
import importlib.util
import json
import os
from contextlib import nullcontext
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import pytest
import torch
from doubles import VOCABULARY, pack, random_batch, small_corpus, tiny_folder, tiny_hf, tiny_objective
from safetensors.torch import load_file, save_file

from statewise.backbones.hf.loading import HuggingFaceConfig, LoRAConfig
from statewise.data_types import Batch
from statewise.model.building import make_objective, make_task
from statewise.model.recipes import read_recipe
from statewise.objectives import OBJECTIVES

transformers = pytest.importorskip("transformers", reason="needs the extra hf")
if importlib.util.find_spec("peft") is None:  # its import takes seconds, and only tests with LoRA need it
    pytest.skip("needs the extra hf", allow_module_level=True)

from statewise.backbones.hf.backbone import HuggingFace  # noqa: E402
from statewise.backbones.leaks.checks import find  # noqa: E402
from statewise.backbones.leaks.readers import ModuleReader  # noqa: E402

ROWS, CONTEXT = 20, 40
SIZES = {
    "vocab_size": ROWS,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
WHOLE_HEADS = {**SIZES, "num_key_value_heads": 2}
MIXED = {"sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]}
GPT2 = {
    "vocab_size": ROWS,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": CONTEXT,
    "bos_token_id": None,
    "eos_token_id": None,
}
FAMILIES = {
    "Llama": SIZES,
    "GPT2": GPT2,
    "Starcoder2": {**SIZES, "sliding_window": 3},
    "StableLm": WHOLE_HEADS,
    "Mistral": {**SIZES, "sliding_window": 3},
    "Qwen2": {**SIZES, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    "Qwen3": {**SIZES, "head_dim": 8},
    "Gemma3Text": {**SIZES, "head_dim": 8, **MIXED},
    "Olmo2": SIZES,
    "Olmo3": {**SIZES, **MIXED},
    "SmolLM3": SIZES,
    "Phi3": SIZES,
    "GPTNeoX": {name: size for name, size in SIZES.items() if name != "num_key_value_heads"},
    "Cohere": {**SIZES, "logit_scale": 0.1},
    "Granite": {**SIZES, "logits_scaling": 8.0, "embedding_multiplier": 3.0},
}
"""The families that docs/fine-tuning.md names, with the fields of a tiny one of each."""
STATE = {"standardised_state": False}


def saved(folder, name, fields):
    """A folder of a random model, whose numbers are large enough to show what they do; and the model."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**fields)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    transformers.logging.disable_progress_bar()
    model.save_pretrained(folder)
    return str(folder), model


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    folder, model = saved(tmp_path_factory.mktemp(request.param), request.param, FAMILIES[request.param])
    backbone = HuggingFace(HuggingFaceConfig(model=folder), vocabulary=ROWS, context=CONTEXT)
    return model, backbone.eval()


def same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5 * max(1.0, float(wanted.abs().max())))


@torch.no_grad()
def test_a_family_gives_its_own_logits_also_in_parts_and_beside_other_documents(family):
    model, backbone = family
    tokens = torch.randint(0, ROWS, (3, 24), generator=torch.Generator().manual_seed(1))
    wanted = model(tokens, use_cache=False).logits
    hidden = backbone.encode(Batch.plain(tokens))
    same(backbone.logits(hidden.readout), wanted)
    same(hidden.readout @ backbone.head_weight().T, wanted)
    same(backbone.logits(backbone.state_for_head(hidden.state)), wanted)
    lengths = [5, 9, 1, 9]
    documents = torch.repeat_interleave(torch.arange(1, 5), torch.tensor(lengths))[None]
    packed = backbone.logits(backbone.encode(Batch.plain(tokens[:1], documents)).readout)[0]
    alone = [model(part[None], use_cache=False).logits[0] for part in tokens[0].split(lengths)]
    same(packed, torch.cat(alone))
    cache, counts = backbone.make_cache(3), np.array([7, 2, 4])
    found = backbone.logits(backbone.extend(tokens[:, :7], cache, counts).readout)
    for row, count in enumerate(counts):
        same(found[row, :count], wanted[row, :count])
    cache.rewind(np.array([5, 0, 2]))
    order = torch.tensor([2, 0])
    cache.reorder(order)
    for start, stop in ((2, 3), (3, 16), (16, 24)):
        same(backbone.logits(backbone.extend(tokens[order, start:stop], cache).readout), wanted[order, start:stop])


def test_states_are_standardised_and_the_head_reads_what_it_did():
    plain, scaled = tiny_hf(**STATE), tiny_hf()
    batch = Batch.plain(torch.randint(0, VOCABULARY, (16, 24), generator=torch.Generator().manual_seed(2)))
    with torch.no_grad():
        raw, found = plain.encode(batch), scaled.encode(batch)
    assert raw.state is raw.readout
    torch.testing.assert_close(found.readout, raw.readout)
    torch.testing.assert_close(scaled.state_for_head(found.state), raw.readout)
    assert (found.state.flatten(0, 1).std(0) - 1).abs().max() < 0.35
    assert found.state.flatten(0, 1).mean(0).abs().max() < 0.35


def test_the_latent_loss_does_not_depend_on_the_scale_of_single_features(tmp_path):
    """The same function with an outlier feature: a larger gain of the last norm, a smaller column of the head."""
    losses = {}
    _, model = saved(tmp_path / "one", "Llama", SIZES)
    for name in ("one", "outlier"):
        if name == "outlier":
            with torch.no_grad():
                model.model.norm.weight[3] *= 100
                model.lm_head.weight[:, 3] /= 100
            model.save_pretrained(tmp_path / name)
        for standardised in (False, True):
            fields = {"model": str(tmp_path / name), "standardised_state": standardised}

            def make(fields=fields, **more):
                return HuggingFace(HuggingFaceConfig(**fields), vocabulary=ROWS, context=CONTEXT)

            parts = tiny_objective("next_latent", make_backbone=make)(random_batch(prompts=False)).parts
            losses[name, standardised] = {part: found.mean().item() for part, found in parts.items()}
    for name in ("one", "outlier"):
        assert losses[name, True]["next_token"] == pytest.approx(losses["one", False]["next_token"], rel=1e-4)
    assert losses["outlier", True]["latent"] == pytest.approx(losses["one", True]["latent"], rel=1e-3)
    assert losses["outlier", False]["latent"] > 2 * losses["one", False]["latent"]


LORA = {"lora": LoRAConfig(rank=2)}


def stepped(objective, seed=0):
    """After one step of training."""
    optimizer = torch.optim.SGD([one for one in objective.parameters() if one.requires_grad], lr=0.5)
    objective.train()(random_batch(seed)).value().backward()
    optimizer.step()
    return objective.eval()


@pytest.mark.parametrize("name", ["next_latent", "belief_state"])
def test_a_run_with_lora_holds_adapters_and_a_digest_alone(name, tmp_path):
    objective = tiny_objective(name, make_backbone=tiny_hf, backbone=LORA)
    before = {key: tensor.clone() for key, tensor in objective.named_parameters()}
    stepped(objective)
    for key, tensor in objective.named_parameters():
        changed = not torch.equal(tensor, before[key])
        assert changed == (tensor.requires_grad and "lora_A" not in key), key  # B is 0 at first, so A gets no gradient
    held = objective.state_dict()
    kept = {key for key, tensor in objective.named_parameters() if not tensor.requires_grad}
    assert kept
    assert not kept & set(held)
    save_file({key: tensor.contiguous() for key, tensor in held.items()}, tmp_path / "weights.safetensors")
    other = tiny_objective(name, 3, make_backbone=tiny_hf, backbone=LORA).eval()
    other.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    batch = random_batch()
    torch.testing.assert_close(other.predictor().logits(batch), objective.predictor().logits(batch))


def test_another_model_than_the_one_trained_on_is_refused(tmp_path):
    """Of a frozen one the weights count; of one that is trained whole, which the run holds, the configuration does."""
    folder, model = saved(tmp_path / "one", "Llama", SIZES)
    of = {"vocabulary": ROWS, "context": CONTEXT}
    adapted = HuggingFace(HuggingFaceConfig(model=folder, **LORA), **of).state_dict()
    whole = HuggingFace(HuggingFaceConfig(model=folder), **of).state_dict()
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] += 1e-3
    model.save_pretrained(folder)
    HuggingFace(HuggingFaceConfig(model=folder), **of).load_state_dict(whole)
    with pytest.raises(ValueError, match=r"not the model that this run was trained on: .* and weights"):
        HuggingFace(HuggingFaceConfig(model=folder, **LORA), **of).load_state_dict(adapted)
    content = json.loads((tmp_path / "one" / "config.json").read_text())
    (tmp_path / "one" / "config.json").write_text(json.dumps({**content, "rms_norm_eps": 1e-3}))
    with pytest.raises(ValueError, match="not the model that this run was trained on"):
        HuggingFace(HuggingFaceConfig(model=folder), **of).load_state_dict(whole)


def test_recomputing_layers_changes_no_gradient():
    gradients = []
    for checkpointing in (False, True):
        objective = tiny_objective(
            "next_latent", make_backbone=tiny_hf, backbone={"gradient_checkpointing": checkpointing, **LORA}
        ).train()
        objective(pack(random_batch())).value().backward()
        gradients.append({name: one.grad for name, one in objective.named_parameters() if one.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)


def test_heads_are_tied_or_not_as_asked_and_layers_are_the_first(tmp_path):
    folder, model = saved(tmp_path / "one", "Llama", SIZES)
    untied, tied = (
        HuggingFace(HuggingFaceConfig(model=folder, tied=tied), vocabulary=ROWS, context=CONTEXT)
        for tied in (None, True)
    )
    torch.testing.assert_close(untied.head_weight(), model.lm_head.weight)
    torch.testing.assert_close(tied.head_weight(), model.model.embed_tokens.weight)
    assert sum(one.numel() for one in untied.parameters()) - sum(one.numel() for one in tied.parameters()) == ROWS * 16
    (_, gpt2), tokens = saved(tmp_path / "gpt2", "GPT2", GPT2), Batch.plain(torch.arange(6)[None])
    apart = HuggingFace(HuggingFaceConfig(model=str(tmp_path / "gpt2"), tied=False), vocabulary=ROWS, context=CONTEXT)
    assert apart.head_weight() is not gpt2.transformer.wte.weight
    assert len([one for one in apart.parameters() if one.shape == (ROWS, 16)]) == 2
    one = HuggingFace(HuggingFaceConfig(model=folder, layers=1), vocabulary=ROWS, context=CONTEXT)
    with torch.no_grad():
        wanted = model.model.norm(model(tokens.tokens, output_hidden_states=True).hidden_states[1])
        same(one.encode(tokens).readout, wanted)


def test_fewer_tokens_than_the_table_and_more(tmp_path):
    folder, model = saved(tmp_path / "one", "Llama", SIZES)
    few = HuggingFace(HuggingFaceConfig(model=folder), vocabulary=ROWS - 3, context=CONTEXT)
    assert few.head_weight().shape == (ROWS - 3, 16)
    assert any("3 tokens of the model's table have no text" in note for note in few.notes(steps=9))
    more = HuggingFace(HuggingFaceConfig(model=folder), vocabulary=ROWS + 2, context=CONTEXT)
    assert more.head_weight().shape == (ROWS + 2, 16)
    embedded = more.embed(torch.tensor([0, ROWS - 1, ROWS, ROWS + 1]))
    torch.testing.assert_close(embedded[:2], model.model.embed_tokens.weight[[0, ROWS - 1]])
    torch.testing.assert_close(embedded[2:], more.tokens.extra)
    embedded.sum().backward()
    assert more.tokens.extra.grad.abs().min() > 0


REFUSED = {
    "Gemma2": ({**SIZES, "head_dim": 8}, "caps its logits by a tanh"),
    "Phi": (SIZES, "its vocabulary head has a bias"),
    "Bert": ({name: size for name, size in SIZES.items() if name != "num_key_value_heads"}, "cannot be a backbone"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_families_that_do_not_fit_are_refused_with_the_reason(name, tmp_path):
    fields, reason = REFUSED[name]
    folder, _ = saved(tmp_path / name, name, fields)
    with pytest.raises(ValueError, match=f"{name} .*{reason}|{name}: .*{reason}"):
        HuggingFace(HuggingFaceConfig(model=folder), vocabulary=ROWS, context=CONTEXT)


LINEAR = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
HYBRIDS = {
    "OlmoHybrid": {**SIZES, **LINEAR},
    "Qwen3Next": {**SIZES, **LINEAR, "head_dim": 8, "num_experts": 0, "mlp_only_layers": [0, 1, 2, 3]},
    "Mamba2": {**SIZES, "num_heads": 4, "head_dim": 8, "state_size": 8, "n_groups": 1},
    "Mamba": {"vocab_size": ROWS, "hidden_size": 16, "num_hidden_layers": 2},
}
"""Families whose recurrent layers do not begin anew where a document does."""


@pytest.fixture(scope="module")
def hybrids(tmp_path_factory):
    """Each model once, since a fixture with parameters makes it anew for each objective."""

    @functools.cache
    def made(name):
        folder, model = saved(tmp_path_factory.mktemp(name), name, HYBRIDS[name])
        backbone = HuggingFace(HuggingFaceConfig(model=folder), vocabulary=ROWS, context=CONTEXT)
        return model, backbone.eval()

    return made


@pytest.fixture(params=HYBRIDS)
def hybrid(request, hybrids):
    return hybrids(request.param)


@torch.no_grad()
def test_a_hybrid_reads_each_document_in_a_row_of_its_own(hybrid):
    model, backbone = hybrid
    assert any("each document is read in a row of its own" in note for note in backbone.notes(steps=9))
    tokens = torch.randint(0, ROWS, (2, 16), generator=torch.Generator().manual_seed(1))
    documents = torch.tensor([[1] * 5 + [2] * 9 + [0] * 2, [3] + [4] * 15])
    packed = backbone.logits(backbone.encode(Batch.plain(tokens, documents)).readout)
    for row, first, end in ((0, 0, 5), (0, 5, 14), (1, 0, 1), (1, 1, 16)):
        same(packed[row, first:end], model(tokens[row : row + 1, first:end], use_cache=False).logits[0])


@torch.no_grad()
def test_a_hybrid_reads_token_by_token_what_it_reads_at_once(hybrid):
    """By its own cache while all rows go on together, and from the tokens after a rewind, a change of rows, a row that
    joins, and a pass that some rows do not read."""
    model, backbone = hybrid
    tokens = torch.randint(0, ROWS, (2, 16), generator=torch.Generator().manual_seed(1))
    wanted = model(tokens, use_cache=False).logits
    cache, lengths = backbone.make_cache(2), []
    handle = backbone.body.register_forward_pre_hook(
        lambda module, given, named: lengths.append(named["inputs_embeds"].shape[1]), with_kwargs=True
    )
    parts = [backbone.extend(part, cache).readout for part in tokens.split([6, 1, 2, 7], dim=1)]
    same(backbone.logits(torch.cat(parts, dim=1)), wanted)
    assert lengths == [6] + [1] * 10
    cache.rewind(np.array([9, 13]))
    found = backbone.extend(tokens[:, 3:8].roll(0), cache, np.array([0, 5])).readout
    same(backbone.logits(found)[1], wanted[1, 3:8])
    cache.reorder(torch.tensor([1, 0, 0]))
    found = backbone.extend(tokens[[1, 0, 0], 8:9].where(torch.tensor([[True], [False], [False]]), tokens[0, 7]), cache)
    same(backbone.logits(found.readout)[:, 0], torch.stack([wanted[1, 8], wanted[0, 7], wanted[0, 7]]))
    other = backbone.make_cache(1)
    backbone.extend(tokens[1:, :4], other)
    cache.join(other)
    next_tokens = torch.stack([tokens[1, 9], tokens[0, 8], tokens[0, 8], tokens[1, 4]])[:, None]
    found = backbone.extend(next_tokens, cache).readout
    same(backbone.logits(found)[:, 0], torch.stack([wanted[1, 9], wanted[0, 8], wanted[0, 8], wanted[1, 4]]))
    handle.remove()


# Whatever the family, documents are given rows of their own in the same way: one family is tried with every objective.
READ_STATES = [name for name in OBJECTIVES if name not in ("multi_token", "latent_multi_token")]
TRIED = [
    pytest.param(family, name, marks=[] if family == "Mamba" or name == "next_token" else pytest.mark.slow)
    for family in HYBRIDS
    for name in READ_STATES
]


@pytest.mark.parametrize(("hybrid", "name"), TRIED, indirect=["hybrid"])
def test_every_objective_that_reads_states_trains_a_hybrid_from_packed_rows(name, hybrid):
    """The loss of packed rows is that of the same documents in rows of their own, and it has gradients everywhere."""
    _, backbone = hybrid

    def make(*, extra_tokens=0, embedding_of=None, **fields):
        config = dataclasses.replace(backbone.config, standardised_state=False)
        return HuggingFace(config, vocabulary=ROWS + extra_tokens, context=CONTEXT, embedding_of=embedding_of)

    objective = tiny_objective(name, make_backbone=make).eval()
    alone = random_batch()
    losses = []
    for batch in (alone, pack(alone)):
        loss = objective(batch).value()
        losses.append(loss.item())
    loss.backward()
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    body = next(part for part in objective.modules() if isinstance(part, HuggingFace)).body
    assert all(one.grad is not None and one.grad.isfinite().all() for one in body.layers.parameters())


def test_attention_that_is_not_pytorchs_is_refused(tmp_path):
    folder, _ = saved(tmp_path / "bloom", "Bloom", {"vocab_size": ROWS, "hidden_size": 16, "n_layer": 2, "n_head": 2})
    for fields in ({}, {"from_scratch": True}):
        with pytest.raises(ValueError, match=r"\(bloom\) cannot be a backbone: its attention is not .* families"):
            HuggingFace(HuggingFaceConfig(model=folder, **fields), vocabulary=ROWS, context=CONTEXT)


def test_what_is_compared_are_logits_masks_and_steps(tmp_path, monkeypatch):
    """A head that is not linear, documents that see each other, and a wrong cache are each found."""
    folder, _ = saved(tmp_path / "one", "Llama", SIZES)
    made = {"config": HuggingFaceConfig(model=folder), "vocabulary": ROWS, "context": CONTEXT}
    HuggingFace(**made)
    with monkeypatch.context() as patch:
        patch.setattr(HuggingFace, "head_weight", lambda self: 1.01 * self.head)
        with pytest.raises(ValueError, match="its logits are not a matrix times its last hidden states"):
            HuggingFace(**made)
    with monkeypatch.context() as patch:
        kind = transformers.models.llama.modeling_llama.LlamaModel
        patch.setattr(kind, "forward", unmasked(kind.forward))
        leaking = HuggingFace(**made)
        assert leaking.apart
        assert any("each document is read in a row of its own" in note for note in leaking.notes(steps=9))
    with monkeypatch.context() as patch:
        patch.setattr(HuggingFace, "extend", lambda self, tokens, cache, counts=None: forgetful(self, tokens, cache))
        with pytest.raises(ValueError, match="reading step by step gives other numbers"):
            HuggingFace(**made)


def unmasked(forward):
    return lambda self, *given, attention_mask=None, position_ids=None, **more: forward(self, *given, **more)


def forgetful(backbone, tokens, cache):
    cache.lengths = cache.lengths + tokens.shape[1]
    return backbone.encode(Batch.plain(tokens))


def load_of(model, **fields):
    return HuggingFace(HuggingFaceConfig(model=str(model), **fields), vocabulary=ROWS, context=CONTEXT)


def test_what_is_no_model_is_refused_in_a_sentence(tmp_path):
    folder, _ = saved(tmp_path / "one", "Llama", SIZES)
    with pytest.raises(ValueError, match=r"backbone.model is not set"):
        HuggingFace(HuggingFaceConfig(), vocabulary=ROWS, context=CONTEXT)
    with pytest.raises(ValueError, match="there is no such folder, and the hub did not give such a model") as error:
        load_of("nobody/nothing")
    assert "\n" not in str(error.value)
    for path in ("./nothing", "/no/thing", "a b", str(tmp_path / "nothing")):
        with pytest.raises(ValueError, match="there is no such folder, and no model on the hub has such a name"):
            load_of(path)
    with pytest.raises(ValueError, match=r"backbone.revision is v2, and .*one is a folder: omit it"):
        load_of(folder, revision="v2")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty: not a Hugging Face model: it has no config.json"):
        load_of(tmp_path / "empty")
    for folder_with_adapter in (tmp_path / "empty", tmp_path / "one"):
        (folder_with_adapter / "adapter_config.json").write_text("{}")
        with pytest.raises(ValueError, match=r"it has an adapter .*: merge it with its model first"):
            load_of(folder_with_adapter)
        (folder_with_adapter / "adapter_config.json").unlink()
    for content, message in (
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON: brackets are nested too deeply"),
        ("{}", "has no model_type"),
        ('{"model_type": "t5"}', "no causal language model"),
        ('{"model_type": "nonsense"}', "config.json cannot be used"),
        ('{"task": {}, "backbone": {}, "objective": {}}', "a run of statewise, not a Hugging Face model"),
        ('{"model_type": "llama"}', "its weights cannot be loaded"),
    ):
        (tmp_path / "empty" / "config.json").write_text(content)
        with pytest.raises(ValueError, match=message):
            HuggingFace(HuggingFaceConfig(model=str(tmp_path / "empty")), vocabulary=ROWS, context=8)
    weights = load_file(f"{folder}/model.safetensors")
    save_file({name: one for name, one in weights.items() if "layers.1" not in name}, f"{folder}/model.safetensors")
    with pytest.raises(ValueError, match=r"its weights are incomplete: .* are missing, and 6 more"):
        load_of(folder)
    load_of(folder, layers=1)
    load_of(folder, from_scratch=True)
    (tmp_path / "one" / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ValueError, match="its weights cannot be loaded"):
        load_of(folder)
    with pytest.raises(ValueError, match=r"41 tokens, and .* reads 40: set task.context lower"):
        HuggingFace(HuggingFaceConfig(model=folder), vocabulary=ROWS, context=41)
    with pytest.raises(ValueError, match="has 2 layers"):
        load_of(folder, layers=3)


@pytest.mark.parametrize(("kind", "runs"), [("mine", False), ("llama", True)])
def test_code_of_a_model_is_neither_run_nor_asked_about(tmp_path, monkeypatch, kind, runs):
    """A type that transformers has is loaded without the code."""
    folder, _ = saved(tmp_path / "one", "Llama", SIZES)
    path = tmp_path / "one" / "config.json"
    names = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": kind, "auto_map": names}))
    (tmp_path / "one" / "code.py").write_text(f"open({str(tmp_path / 'victim')!r}, 'w')\nclass Config: pass\n")
    asked = []
    monkeypatch.setattr("builtins.input", lambda question="": asked.append(question) or "y")
    with nullcontext() if runs else pytest.raises(ValueError, match="code of its own, which statewise never runs"):
        load_of(folder)
    assert not asked
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("tied", [True, False])
def test_special_tokens_of_a_configuration_mean_nothing_for_new_weights(tmp_path, tied):
    fields = {**SIZES, "bos_token_id": 390, "eos_token_id": 391, "pad_token_id": 3, "vocab_size": 400}
    transformers.LlamaConfig(**fields, tie_word_embeddings=tied).save_pretrained(tmp_path)
    config = HuggingFaceConfig(model=str(tmp_path), from_scratch=True)
    backbone = HuggingFace(config, vocabulary=ROWS, context=CONTEXT)
    backbone.encode(Batch.plain(torch.tensor([[3, 7]]))).readout.square().sum().backward()
    gradient = backbone.unwrapped.get_input_embeddings().weight.grad
    assert gradient[3].any(), "the padding of the configuration is a symbol of the task"
    assert gradient[7].any()
    transformers.Phi3Config(**{**SIZES, "pad_token_id": 32000, "vocab_size": 32064}).save_pretrained(tmp_path)
    HuggingFace(config, vocabulary=ROWS, context=CONTEXT)


def test_angles_that_depend_on_the_length_of_a_pass_limit_the_context(tmp_path):
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [2.0, 3, 4, 8]}
    fields = {**SIZES, "original_max_position_embeddings": 16, "rope_parameters": rope}
    folder, model = saved(tmp_path, "Phi3", fields)
    config = HuggingFaceConfig(model=folder)
    with pytest.raises(ValueError, match=r"more than 16 \(longrope\).*set task\.context lower"):
        HuggingFace(config, vocabulary=ROWS, context=17)
    backbone = HuggingFace(config, vocabulary=ROWS, context=16).eval()
    tokens = torch.arange(16)[None]
    with torch.no_grad():
        same(backbone.logits(backbone.encode(Batch.plain(tokens)).readout), model(tokens).logits)


def changed(folder, **fields):
    """The folder, with other fields of config.json."""
    path = Path(folder) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return folder


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"hidden_act": "nope"}, "its config.json does not describe a model"),
        *(
            ({name: value}, f"{name} of its config.json must be a whole number from 1 to 16,777,216, not ")
            for name, value in {
                "num_attention_heads": -2,
                "hidden_size": -16,
                "head_dim": 0,
                "num_key_value_heads": 0,
                "num_hidden_layers": 0,
                "vocab_size": 10**12,
            }.items()
        ),
        *(
            ({name: 10**9}, f"{name} of its config.json must be at most 10,000, not 1000000000")
            for name in ("num_hidden_layers", "n_layer", "num_local_experts")
        ),
        ({"logits_scaling": 0}, "logits_scaling of its config.json must be a number other than 0, not 0"),
        ({"logit_scale": "x"}, 'logit_scale of its config.json must be a number other than 0, not "x"'),
        ({"attention_dropout": 5.0}, "attention_dropout of its config.json must be a number from 0 to 1, not 5"),
    ],
    ids=str,
)
def test_configurations_of_no_model_are_refused_for_new_weights(tmp_path, fields, said):
    transformers.LlamaConfig(**SIZES).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=said):
        load_of(changed(tmp_path, **fields), from_scratch=True)


@pytest.mark.parametrize("name", ["Llama", "GPT2"])
def test_weights_without_a_place_in_the_model_are_refused(tmp_path, name):
    folder, _ = saved(tmp_path, name, FAMILIES[name])
    layers, first = ("n_layer", "h.1.attn") if name == "GPT2" else ("num_hidden_layers", "layers.1.input_layernorm")
    with pytest.raises(ValueError, match=rf"with num_hidden_layers 1, has no place: .*{first}.* more. Give"):
        load_of(changed(folder, **{layers: 1}))
    for wrong in (0, -1, 10**9):
        with pytest.raises(
            ValueError,
            match=rf"({layers}|num_hidden_layers) of its config.json must be (at most|a whole number from 1)",
        ):
            load_of(changed(folder, **{layers: wrong}))
    load_of(changed(folder, **{layers: 2}), layers=1)
    weights, path = load_file(f"{folder}/model.safetensors"), f"{folder}/model.safetensors"
    save_file({**weights, "v_head.summary.weight": torch.ones(2)}, path, {"format": "pt"})
    for fields in ({}, {"layers": 1}):
        with pytest.raises(
            ValueError, match=r'with num_hidden_layers [12], has no place: "v_head.summary.weight". Give'
        ):
            load_of(folder, **fields)
    constants = {"h.0.attn.bias", "h.0.attn.masked_bias"} if name == "GPT2" else {"model.layers.0.rotary_emb.inv_freq"}
    save_file({**weights, **{one: torch.ones(2) for one in constants}}, path, {"format": "pt"})
    assert load_of(folder).layers == 2


@pytest.mark.parametrize("given", [{"quant_method": "nonsense"}, {"quant_method": "bitsandbytes"}, {}], ids=str)
@pytest.mark.parametrize("field", ["quantization_config", "compression_config"])
def test_quantised_weights_are_refused_and_new_weights_are_not_quantised(tmp_path, field, given):
    folder, _ = saved(tmp_path, "Llama", SIZES)
    with pytest.raises(
        ValueError, match=rf"its weights are quantised \({field}.*\), and quantised weights cannot be trained: give"
    ):
        load_of(changed(folder, **{field: given}))
    assert not hasattr(load_of(folder, from_scratch=True).unwrapped.config, field)


def test_weights_that_are_not_finite_are_named(tmp_path):
    folder, model = saved(tmp_path, "Llama", SIZES)
    with torch.no_grad():
        model.lm_head.weight[3, 4] = float("nan")
    model.save_pretrained(folder)
    with pytest.raises(ValueError, match=r"its weights are damaged: lm_head.weight has numbers that are not finite"):
        load_of(folder)


def test_weights_are_safetensors_of_the_folder(tmp_path):
    """Neither files of other folders that an index names, nor pickles."""
    saved(tmp_path / "other", "Llama", SIZES)
    folder, model = saved(tmp_path / "one", "Llama", SIZES)
    (tmp_path / "one" / "model.safetensors").unlink()
    for name in ("../other/model.safetensors", str(tmp_path / "other" / "model.safetensors")):
        index = {"metadata": {}, "weight_map": dict.fromkeys(model.state_dict(), name)}
        (tmp_path / "one" / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(ValueError, match=r"index.json: .* is not in the model's folder"):
            load_of(folder)
    (tmp_path / "one" / "model.safetensors.index.json").unlink()
    torch.save(model.state_dict(), tmp_path / "one" / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"its weights cannot be loaded: .*safetensors"):
        load_of(folder)


def test_lora_is_refused_where_it_makes_no_sense(tmp_path):
    with pytest.raises(ValueError, match="exclude each other"):
        HuggingFaceConfig(model="x", from_scratch=True, lora=LoRAConfig(rank=2))
    with pytest.raises(ValueError, match=r"backbone.lora.rank must be at least 1, not 0"):
        LoRAConfig(rank=0)
    with pytest.raises(ValueError, match=r"backbone.lora.targets nothing: .* has no such layers"):
        tiny_hf(lora=LoRAConfig(rank=2, targets="nothing"))
    for layer, what in {"embed_tokens": "the embedding", "lm_head": "the vocabulary head"}.items():
        with pytest.raises(ValueError, match=f"backbone.lora.targets names {what}, .*: leave it out"):
            tiny_hf(lora=LoRAConfig(rank=2, targets=layer))


def of_text(corpus, model, **backbone):
    recipe = {
        "task": {"name": "text", "path": str(corpus.folder), "context": 32},
        "backbone": {"name": "hf", "model": str(model), **backbone},
        "objective": "next_token",
    }
    recipe = read_recipe(json.dumps(recipe))
    return recipe, make_objective(recipe, make_task(recipe))


def test_the_tokenizer_of_the_data_must_be_the_models(tmp_path):
    corpus = small_corpus(tmp_path)
    tokens = len(corpus.bpe.symbols)
    folder, _ = saved(tmp_path / "one", "Llama", {**SIZES, "vocab_size": tokens + 2})
    _, objective = of_text(corpus, folder)  # without a tokenizer.json ids are taken as they are
    assert objective.backbone.vocabulary == tokens
    assert of_text(corpus, folder, lora={"rank": 4})[0].backbone.config.lora == LoRAConfig(rank=4)
    content = json.loads(corpus.bpe.content)
    (tmp_path / "one" / "tokenizer.json").write_text(json.dumps(content))
    of_text(corpus, folder)
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (tmp_path / "one" / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"does not fit .*: token \d+ is 'a' in the task and 'b' in the model; .* hf:"):
        of_text(corpus, folder)
    content["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}  # where the package panics
    (tmp_path / "one" / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="not a tokenizer file"):
        of_text(corpus, folder)
    folder, _ = saved(tmp_path / "small", "Llama", {**SIZES, "vocab_size": tokens - 1})
    with pytest.raises(ValueError, match=f"a vocabulary of {tokens} tokens, and .* one of {tokens - 1}"):
        of_text(corpus, folder)
    assert of_text(corpus, folder, from_scratch=True)[1].backbone.rows == tokens


def test_every_field_survives_a_recipe():
    config = HuggingFaceConfig(model=tiny_folder(), layers=1, lora=LoRAConfig(rank=3, targets="q_proj,v_proj"))
    recipe = {"task": "path_star", "objective": "next_token", "backbone": {"name": "hf", **dataclasses.asdict(config)}}
    parsed = read_recipe(json.dumps(recipe), ["--backbone.lora.alpha=5"])
    assert parsed.backbone.config == dataclasses.replace(config, lora=dataclasses.replace(config.lora, alpha=5.0))
    assert read_recipe(json.dumps(parsed.as_dict())) == parsed


def test_without_the_extra_the_message_installs_it(monkeypatch):
    folder = tiny_folder()
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ValueError, match=r"-m pip install .*transformers"):
        load_of(folder)


OTHERS = {"Gemma2": {**SIZES, "head_dim": 8}, "Phi": WHOLE_HEADS, "Mixtral": {**SIZES, "num_local_experts": 4}}
"""Families that cannot be backbones, but whose states depend on the past alone."""
FIRST = ("Llama", "GPT2")
LEAK = {
    "OPT": (
        {"hidden_size": 16, "ffn_dim": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "word_embed_proj_dim": 16},
        {"packed"},
        "model.decoder.layers.0.self_attn",
    ),
    "GptOss": (
        {**SIZES, "head_dim": 8, "num_local_experts": 4, "sliding_window": 3},
        {"packed"},
        "model.layers.0.self_attn",
    ),
    "Mamba2": (
        {"hidden_size": 16, "num_heads": 4, "head_dim": 8, "state_size": 8, "num_hidden_layers": 2, "n_groups": 1},
        {"packed"},
        "backbone.layers.0.mixer",
    ),
    "OlmoHybrid": (
        {
            **SIZES,
            **{"num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 2},
            **{"linear_key_head_dim": 8, "linear_value_head_dim": 8},
        },
        {"packed"},
        "model.layers.0.linear_attn",
    ),
    "Qwen3Next": (
        {
            **SIZES,
            **{"num_hidden_layers": 4, "head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 2},
            **{"linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_experts": 0, "mlp_only_layers": [0, 1, 2, 3]},
        },
        {"packed"},
        "model.layers.0.linear_attn",
    ),
    "Bert": (
        {name: size for name, size in SIZES.items() if name != "num_key_value_heads"},
        {"future", "packed"},
        "bert.encoder.layer.0.attention.self",
    ),
}
"""Families whose states depend on more: in transformers they ignore that positions begin anew, or see later tokens."""


def leaks_of(name, fields):
    config = getattr(transformers, f"{name}Config")(**{"vocab_size": ROWS, **fields})
    return find(ModuleReader(transformers.AutoModelForCausalLM.from_config(config).float()))


@pytest.mark.parametrize(
    "name", [name if name in FIRST else pytest.param(name, marks=pytest.mark.slow) for name in (*FAMILIES, *OTHERS)]
)
def test_states_of_these_families_depend_on_the_past_alone(name):
    leaks = leaks_of(name, {**FAMILIES, **OTHERS}[name])
    assert leaks.clean, leaks.as_text()
    assert leaks.precision == "float64", leaks.as_text()
    assert all(one.why_not is None for one in leaks.results), leaks.as_text()


@pytest.mark.parametrize(
    "name", [name if name == "OPT" else pytest.param(name, marks=pytest.mark.slow) for name in LEAK]
)
def test_states_of_these_families_depend_on_more(name):
    fields, expected, module = LEAK[name]
    leaks = leaks_of(name, fields)
    assert {one.check for one in leaks.found()} == expected, leaks.as_text()
    assert {one.module for one in leaks.found()} == {module}
