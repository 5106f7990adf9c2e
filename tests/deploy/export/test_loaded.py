"""What transformers loads computes what our model does. Models are made from configurations, without a network."""

import copy
import json
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import pytest
import torch
from doubles import MAPPED_BLOCKS, path_star_model, random_examples, small_corpus, spread_weights
from safetensors.torch import load_file, save_file

transformers = pytest.importorskip("transformers", reason="needs the extra hf")

import statewise.hf  # noqa: E402
from statewise.backbones import BACKBONES  # noqa: E402
from statewise.backbones.hf.key_values import CACHE  # noqa: E402
from statewise.cli import main  # noqa: E402
from statewise.data_types import Batch  # noqa: E402
from statewise.deploy.export.export import export  # noqa: E402
from statewise.deploy.export.layouts import NotPlain, plain  # noqa: E402
from statewise.deploy.export.registered import StatewiseConfig, StatewiseForCausalLM, objective_of  # noqa: E402
from statewise.model.model import new_model  # noqa: E402
from statewise.model.recipes import read_recipe  # noqa: E402
from statewise.objectives import OBJECTIVES, activations  # noqa: E402
from statewise.tasks.text.bpe import BPE, END  # noqa: E402

transformers.logging.disable_progress_bar()
every_block = pytest.mark.parametrize(("architecture", "fields"), MAPPED_BLOCKS, ids=str)
SHAPES = {
    "gpt": {"positions": "learned"},  # with RMSNorm, which no architecture has
    "two_stream": {"window": 3},
    "belief_slots": {"chunk": 4, "slots": 2},
    "recurrent": {},
    "deltanet": {},
}
PAIRS = [
    *((objective, backbone) for backbone in SHAPES for objective in ("belief_state", "joint_multi_token")),
    ("next_token", "gpt"),
    ("latent_multi_token", "gpt"),
    ("semantic_tube", "two_stream"),
    ("token_order", "two_stream"),
    ("next_latent", "belief_slots"),
    ("future_summary", "recurrent"),
    ("multi_token", "recurrent"),
    ("next_token", "deltanet"),
]
"""Objectives that read by a head of their own, on each backbone; the others, which read by the backbone's, on one."""


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder)


def whole_rows(model, rows=5):
    """(rows, T) whole sequences of the task."""
    return torch.from_numpy(model.task.held_out(rows).tokens)


def ours_of(model, tokens):
    return model.predictor().logits(Batch.plain(tokens))


def same(found, wanted, share=1e-5):
    """Equal up to `share` of the largest logit, or of 1."""
    torch.testing.assert_close(found, wanted, rtol=0, atol=share * max(1.0, float(wanted.abs().max())))


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


def test_every_backbone_and_objective_is_tried():
    assert set(SHAPES) == set(BACKBONES) - {"hf"}, "models of transformers are in test_tuned.py"
    assert {objective for objective, _ in PAIRS} == set(OBJECTIVES) - {"teacherless"}
    assert {backbone for objective, backbone in PAIRS if objective not in ("belief_state", "joint_multi_token")} == set(
        SHAPES
    )


@pytest.fixture(scope="module", params=PAIRS, ids=" on ".join)
def registered(request, tmp_path_factory):
    """A model that no architecture represents, and what transformers loads."""
    objective, backbone = request.param
    model = path_star_model(objective, backbone, **SHAPES[backbone])
    with pytest.raises(NotPlain):
        plain(model.objective)
    folder = tmp_path_factory.mktemp("exported") / "out"
    assert export(model, folder).architecture == "StatewiseForCausalLM"
    theirs = load(folder)
    assert type(theirs) is StatewiseForCausalLM
    return model, theirs


def test_a_registered_model_gives_our_logits_and_our_text(registered):
    model, theirs = registered
    tokens = whole_rows(model)
    same(theirs(tokens).logits, ours_of(model, tokens))
    same(theirs(tokens, logits_to_keep=2).logits, ours_of(model, tokens)[:, -2:])
    prompts = tokens[:, :21]
    wanted = [one.tokens.tolist() for one in model.generate([model.task.decode(row) for row in prompts], limit=4)]
    for options in ({}, {"use_cache": False}):
        found = theirs.generate(prompts, attention_mask=torch.ones_like(prompts), **options)
        assert found[:, 21:].tolist() == wanted


def test_columns_without_attention_are_not_read(registered):
    model, theirs = registered
    rng = np.random.default_rng(0)
    examples = random_examples(rng, 4, 12)
    tokens = torch.from_numpy(rng.integers(0, 12, (4, 16)))
    mask = torch.zeros(4, 16, dtype=torch.long)
    for row, length in enumerate(examples.lengths.tolist()):
        places = np.sort(rng.permutation(16)[:length])
        tokens[row, places] = torch.from_numpy(examples.tokens[row, :length])
        mask[row, places] = 1
    logits = theirs(tokens, attention_mask=mask).logits
    again = theirs(tokens, attention_mask=mask, use_cache=True).logits
    for row, length in enumerate(examples.lengths.tolist()):
        wanted = ours_of(model, torch.from_numpy(examples.tokens[row : row + 1, :length]))[0]
        same(logits[row, mask[row].bool()], wanted)
        same(again[row, mask[row].bool()], wanted)
    assert not logits[mask == 0].any()


def test_steps_with_a_cache_give_the_logits_of_the_whole(registered):
    model, theirs = registered
    tokens = whole_rows(model)
    mask = torch.ones_like(tokens)
    mask[1, :4] = 0  # padding on the left
    whole = theirs(tokens, attention_mask=mask).logits
    first = theirs(tokens[:, :9], attention_mask=mask[:, :9], use_cache=True, logits_to_keep=1)
    same(first.logits[:, 0], whole[:, 8])
    cache = first[CACHE]
    assert cache.get_seq_length() == 9
    for start, stop in ((9, 10), (10, 13)):
        found = theirs(tokens[:, start:stop], attention_mask=mask[:, :stop], **{CACHE: cache})
        same(found.logits, whole[:, start:stop])
    order = torch.tensor([1, 1, 3, 0, 2])
    cache.reorder_cache(order)
    found = theirs(tokens[order, 13:14], attention_mask=mask[order, :14], **{CACHE: cache})
    same(found.logits, whole[order, 13:14])
    if model.recipe.backbone.name != "belief_slots":  # which reads any length
        with pytest.raises(ValueError, match="does not fit the context"):
            theirs(tokens[order][:, :12], **{CACHE: cache})


def test_a_cache_that_generation_returned_goes_on(registered):
    model, theirs = registered
    prompts = whole_rows(model)[:3, :18]
    options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    whole = theirs.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=4, **options)
    first = theirs.generate(
        prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=2, return_dict_in_generate=True, **options
    )
    mask, cache = torch.ones_like(first.sequences), first[CACHE]
    rest = theirs.generate(first.sequences, attention_mask=mask, **{CACHE: cache}, max_new_tokens=2, **options)
    assert torch.equal(rest, whole)


def test_arguments_that_would_be_ignored_are_refused(registered):
    _, theirs = registered
    tokens = whole_rows(registered[0])[:, :8]
    cache = theirs(tokens, use_cache=True)[CACHE]
    other = {"cache": "past_key_values", "past_key_values": "cache"}[CACHE]
    for given, said in (
        ({"token_type_ids": tokens}, "does not have the argument token_type_ids"),
        ({"inputs_embeds": torch.zeros(5, 8, 16), "cu_seq_lens_q": None}, "does not have the argument inputs_embeds"),
        ({CACHE: cache, other: cache}, f"give the cache once, .*: {CACHE}"),
    ):
        with pytest.raises(ValueError, match=said):
            theirs(tokens, **given)
    same(theirs(tokens, inputs_embeds=None).logits, theirs(tokens).logits)


def test_a_cache_that_is_cut_back_reads_on_as_if_it_had_read_no_more(registered):
    model, theirs = registered
    tokens = whole_rows(model)
    mask = torch.ones_like(tokens)
    mask[1, :4] = 0  # padding on the left
    whole = theirs(tokens, attention_mask=mask).logits
    cache = theirs(tokens[:, :9], attention_mask=mask[:, :9], use_cache=True, logits_to_keep=1)[CACHE]
    other = (tokens[:, 9:12] + 1) % model.predictor().vocabulary
    theirs(other, attention_mask=mask[:, :12], **{CACHE: cache})
    cache.crop(-3)
    assert cache.get_seq_length() == 9
    found = theirs(tokens[:, 9:13], attention_mask=mask[:, :13], **{CACHE: cache})
    same(found.logits, whole[:, 9:13])
    cache.crop(0)
    for wrong in (1, -14):
        with pytest.raises(ValueError, match="cannot forget"):
            cache.crop(wrong)
    assert cache.get_seq_length() == 13


def test_hidden_states_are_those_of_the_backbone(registered):
    model, theirs = registered
    tokens, layers = whole_rows(model), model.recipe.backbone.config.layers
    mask = torch.ones_like(tokens)
    mask[1, :4] = 0  # padding on the left
    found = theirs(tokens, attention_mask=mask, output_hidden_states=True)
    assert theirs(tokens).hidden_states is None
    assert [tuple(state.shape) for state in found.hidden_states] == [(5, 25, 16)] * (layers + 1)
    alone = tokens[1:2, 4:]
    for row, columns, batch in ((0, slice(None), tokens[:1]), (1, slice(4, None), alone)):
        same(found.hidden_states[-1][row, columns], model.predictor().states(Batch.plain(batch)).readout[0])
        read = activations.read(model.predictor().backbone, Batch.plain(batch), ["blocks.*hook_resid_*"])
        first, second = (
            next(
                value
                for name, value in read.items()
                if name.startswith(f"blocks.{layer}.") and "prediction" not in name and name.endswith(where)
            )
            for layer, where in ((0, "resid_pre"), (0, "resid_post"))
        )
        same(found.hidden_states[0][row, columns], first[0])
        same(found.hidden_states[1][row, columns], second[0])
    assert not found.hidden_states[0][1, :4].any()
    options = {"attention_mask": torch.ones_like(tokens[:, :20]), "max_new_tokens": 3, "return_dict_in_generate": True}
    steps = theirs.generate(tokens[:, :20], output_hidden_states=True, **options)
    again = theirs(steps.sequences[:, :22], output_hidden_states=True).hidden_states
    for number, whole in enumerate(again):
        same(torch.cat([step[number] for step in steps.hidden_states], dim=1), whole)
    with pytest.raises(ValueError, match="no weights"):
        theirs(tokens, output_attentions=True)


def test_the_model_without_its_head_is_loaded_as_such(registered, tmp_path):
    model, theirs = registered
    theirs.save_pretrained(tmp_path)
    bare = transformers.AutoModel.from_pretrained(tmp_path)
    assert type(bare) is statewise.hf.StatewiseModel
    tokens = whole_rows(model)
    wanted = theirs(tokens, output_hidden_states=True).hidden_states
    found = bare(tokens, output_hidden_states=True)
    assert torch.equal(found.last_hidden_state, wanted[-1])
    assert all(map(torch.equal, found.hidden_states, wanted))
    assert torch.equal(bare(tokens, return_dict=False)[0], wanted[-1])


@pytest.mark.filterwarnings("ignore")
def test_a_model_of_eight_bits_runs(registered):
    model, theirs = registered
    tokens, smaller = whole_rows(model), copy.deepcopy(theirs)
    torch.ao.quantization.quantize_dynamic(smaller, {torch.nn.Linear}, dtype=torch.qint8, inplace=True)
    found = smaller(tokens).logits
    assert found.shape == theirs(tokens).logits.shape
    assert bool(found.isfinite().all())
    if model.recipe.backbone.name != "recurrent":  # which has none of these modules
        assert not torch.equal(found, theirs(tokens).logits)
    assert smaller.generate(tokens[:, :21], attention_mask=torch.ones_like(tokens[:, :21])).shape == (5, 25)


ANY_LENGTH = [
    ("belief_state", "gpt"),
    ("joint_multi_token", "gpt"),
    ("multi_token", "gpt"),
    ("belief_state", "two_stream"),
]


@pytest.mark.parametrize(
    ("objective", "backbone"),
    [ANY_LENGTH[0], *(pytest.param(*pair, marks=pytest.mark.slow) for pair in ANY_LENGTH[1:])],
)
@pytest.mark.filterwarnings("ignore")
def test_torch_exports_a_model_of_any_length(objective, backbone, tmp_path):
    model = path_star_model(objective, backbone, **SHAPES[backbone])
    export(model, tmp_path / "out")
    theirs, tokens = load(tmp_path / "out"), whole_rows(model)
    mask = torch.ones_like(tokens)
    sizes = {0: torch.export.Dim("rows", max=64), 1: torch.export.Dim("columns", max=25)}
    whole = torch.export.export(theirs, (tokens, mask), dynamic_shapes=(sizes, sizes), strict=False).module()
    mask[1, :3] = 0
    same(whole(tokens[:2, :7], mask[:2, :7]).logits, theirs(tokens[:2, :7], mask[:2, :7]).logits)


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "backbone"), ANY_LENGTH[:2])
@pytest.mark.filterwarnings("ignore")
def test_onnx_takes_any_length(objective, backbone, tmp_path):
    pytest.importorskip("onnxscript", reason="needs onnxscript")
    runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    model = path_star_model(objective, backbone, **SHAPES[backbone])
    export(model, tmp_path / "out")
    theirs, tokens = load(tmp_path / "out"), whole_rows(model)
    mask = torch.ones_like(tokens)
    sizes = {0: torch.export.Dim("rows", max=64), 1: torch.export.Dim("columns", max=25)}
    given = {"input_ids": tokens, "attention_mask": mask}
    torch.onnx.export(
        theirs,
        kwargs=given,
        f=str(tmp_path / "model.onnx"),
        dynamo=True,
        dynamic_shapes=dict.fromkeys(given, sizes),
        input_names=list(given),
        output_names=["logits"],
    )
    mask[1, :3] = 0
    given = {name: tensor[:2, :7] for name, tensor in given.items()}
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"))
    (found,) = session.run(None, {name: tensor.numpy() for name, tensor in given.items()})
    same(torch.from_numpy(found), theirs(**given).logits)


def test_training_our_class_is_refused_in_a_sentence(tmp_path):
    pytest.importorskip("accelerate", reason="transformers needs it to train")
    model = path_star_model("belief_state")
    export(model, tmp_path / "out")
    theirs, row = load(tmp_path / "out"), whole_rows(model, 1)[0]
    settings = transformers.TrainingArguments(str(tmp_path / "new"), max_steps=1, report_to=[], use_cpu=True)
    trainer = transformers.Trainer(theirs, settings, train_dataset=[{"input_ids": row, "labels": row}] * 8)
    with pytest.raises(ValueError, match="transformers cannot train it: `statewise train` does"):
        trainer.train()


def test_ids_that_the_model_lacks_are_refused_unless_they_are_padding(registered):
    model, theirs = registered
    tokens, V = whole_rows(model)[:, :8].clone(), theirs.config.vocab_size
    mask = torch.ones_like(tokens)
    tokens[1, :2], mask[1, :2] = V + 1, 0
    wanted = theirs(tokens[1:2, 2:]).logits
    same(theirs(tokens, attention_mask=mask).logits[1:2, 2:], wanted)
    same(theirs(tokens, attention_mask=mask, use_cache=True, logits_to_keep=1).logits[1], wanted[0, -1:])
    tokens[2, 3] = V
    with pytest.raises(ValueError, match=f"input_ids holds {V}, and this model has the ids 0 to {V - 1}"):
        theirs(tokens, attention_mask=mask)


def test_loading_leaves_the_callers_random_numbers_alone(tmp_path):
    export(path_star_model("next_token", "recurrent", **SHAPES["recurrent"]), tmp_path / "out")
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    load(tmp_path / "out")
    assert torch.equal(torch.rand(3), wanted)


def test_beams_and_samples_run_and_are_those_without_a_cache(registered):
    model, theirs = registered
    prompts = whole_rows(model)[:3, :18]
    given = {"attention_mask": torch.ones_like(prompts), "max_new_tokens": 4}
    for options in ({"num_beams": 3, "num_return_sequences": 2}, {"do_sample": True, "num_return_sequences": 2}):
        found = []
        for cached in (True, False):
            torch.manual_seed(0)
            found.append(theirs.generate(prompts, **given, **options, use_cache=cached))
        assert found[0].shape == (6, 22)
        assert torch.equal(*found)


def test_a_loss_is_the_mean_over_labels(registered):
    model, theirs = registered
    tokens = whole_rows(model)
    labels, mask = tokens.clone(), torch.ones_like(tokens)
    labels[:, :7], mask[0, :9] = -100, 0
    found = theirs(tokens, attention_mask=mask, labels=labels)
    nats = -found.logits.log_softmax(-1)[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0]
    counted = (labels[:, 1:] != -100) & (mask[:, 1:] == 1)
    torch.testing.assert_close(found.loss, nats[counted].mean())
    assert not found.logits.requires_grad
    with pytest.raises(NotImplementedError):
        theirs.get_input_embeddings()
    assert theirs(tokens, return_dict=False)[0].shape == found.logits.shape


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "StatewiseForCausalLM"])
def test_what_transformers_saves_again_is_the_same_model(architecture, tmp_path):
    model = path_star_model("next_token" if architecture.startswith("Llama") else "belief_state")
    assert export(model, tmp_path / "one").architecture == architecture
    load(tmp_path / "one").save_pretrained(tmp_path / "two")
    tokens = whole_rows(model)
    with torch.no_grad():
        same(load(tmp_path / "two")(tokens).logits, ours_of(model, tokens))


@pytest.mark.parametrize(("change", "said"), [("drop", "they lack objective."), ("add", "have, .* objective.other")])
def test_weights_that_do_not_fit_our_class_are_refused(change, said, tmp_path):
    export(path_star_model("belief_state"), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    if change == "drop":
        del tensors[max(tensors)]
    else:
        tensors["objective.other"] = torch.zeros(3)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=said):
        load(tmp_path)


def test_streams_that_separated_in_training_are_separate_when_loaded(tmp_path):
    """A backbone keeps on the host what its buffer says, and reads it when weights are loaded."""
    model = path_star_model("next_token", "two_stream", window=3, separate_from=0.5)
    tokens, found = whole_rows(model), []
    for fraction in (0.0, 1.0):
        model.objective.set_progress(fraction)
        export(model, tmp_path / str(fraction))
        found.append(load(tmp_path / str(fraction))(tokens).logits)
        same(found[-1], ours_of(model, tokens))
    assert not torch.allclose(*found)


@pytest.fixture(scope="module")
def of_text(tmp_path_factory):
    """A model of text whose likely tokens include the end of text."""
    corpus = small_corpus(tmp_path_factory.mktemp("text"))
    recipe = {
        "task": {"name": "text", "path": str(corpus.folder), "context": 32},
        "backbone": {"name": "gpt", "width": 16, "heads": 2, "layers": 2},
        "objective": "next_latent",
    }
    model = new_model(read_recipe(json.dumps(recipe)))
    spread_weights(model.objective)
    with torch.no_grad():
        model.objective.backbone.embedding.weight[model.task.end] *= 2
    return model


def of_symbols(name, folder, objective="next_token", **fields):
    """A model of a task of symbols."""
    if name == "sequences":
        (folder / "data.txt").write_text("view cart\ncart view cart\nview pay cart\npay cart\n" * 4)
        fields["path"] = str(folder / "data.txt")
        fields["context"] = 12
    recipe = {
        "task": {"name": name, **fields},
        "backbone": {"name": "gpt", "width": 16, "heads": 2, "layers": 2},
        "objective": objective,
    }
    model = new_model(read_recipe(json.dumps(recipe)))
    spread_weights(model.objective)
    return model


def piped(folder, prompts, **options):
    pipe = transformers.pipeline("text-generation", str(folder), device="cpu")
    return [found[0]["generated_text"] for found in pipe(prompts, **options)]


BATCHES = [
    ("sequences", {}, ["view cart", "pay", "view pay cart view"]),
    ("hmm", {"process": "mess3", "length": 12}, ["0 1", "2 2", "1 0"]),  # equally long, since nothing can pad
    ("automaton", {"process": "parity", "length": 12, "held_out_sequences": 20}, ["0 1 1", "1 0 1"]),
    ("strips_traces", {"held_out_traces": 30}, None),
    (
        "path_star",
        {"degree": 2, "length": 4, "nodes": 12, "held_out_graphs": 12},
        ["0,1|1,2|0,3|3,4|0,5|5,6/0,2=", "0,1|1,2/0,2=", "3,4/3,4="],
    ),
]


@pytest.mark.parametrize("objective", ["next_token", "belief_state"])
@pytest.mark.parametrize(
    ("name", "fields", "prompts"), BATCHES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_pipeline_appends_what_we_generate_in_batches_too(name, fields, prompts, objective, tmp_path):
    model = of_symbols(name, tmp_path, objective, **fields)
    task = model.task
    if prompts is None:
        prompts = [task.decode(task.held_out(3).tokens[row, :3]) for row in range(3)]
    if objective == "belief_state" and task.end is None and task.filler is None:  # our class reads padding of any id
        prompts = [*prompts, prompts[0] + task.continuation(prompts[0], task.encode(prompts[0])[:1])]
    notes = export(model, tmp_path / "out").notes
    assert any("as many tokens" in note for note in notes) is (
        objective == "next_token" and task.end is None and task.filler is None
    )
    found = piped(tmp_path / "out", prompts, max_new_tokens=4, batch_size=2)
    assert found == [one for prompt in prompts for one in piped(tmp_path / "out", [prompt], max_new_tokens=4)]
    for prompt, text, ours in zip(prompts, found, model.generate(prompts, limit=4)):
        kept = [token for token in ours.tokens.tolist() if token not in (task.end, task.filler)]
        assert text == prompt + task.continuation(prompt, kept)


def test_stop_strings_end_what_is_generated(tmp_path):
    for name, prompt in (("sequences", "view cart"), ("path_star", "0,1|1,2|0,3|3,4|0,5|5,6/0,2=")):
        model = of_symbols("sequences", tmp_path) if name == "sequences" else path_star_model()
        export(model, tmp_path / name)
        tokenizer, theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / name), load(tmp_path / name)
        given = tokenizer([prompt], return_tensors="pt")
        whole = theirs.generate(**given, eos_token_id=None, max_new_tokens=4)[0, given["input_ids"].shape[1] :].tolist()
        for token in set(whole):
            stop = model.task.continuation(prompt, [token])
            found = theirs.generate(
                **given, eos_token_id=None, max_new_tokens=4, stop_strings=[stop], tokenizer=tokenizer
            )
            assert found[0, given["input_ids"].shape[1] :].tolist() == whole[: whole.index(token) + 1]


def test_a_pipeline_extracts_the_features_of_our_class(tmp_path):
    model = path_star_model("belief_state")
    export(model, tmp_path / "out")
    text = model.task.decode(model.task.held_out(1).tokens[0])
    found = transformers.pipeline("feature-extraction", str(tmp_path / "out"), device="cpu")(text)
    same(torch.tensor(found), model.states([text]).readout)


def test_unknown_text_has_a_token_of_its_own(tmp_path):
    export(path_star_model("belief_state"), tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.convert_ids_to_tokens(tokenizer("0,1|nonsense")["input_ids"][3:]) == ["[UNK]"] * 8
    with pytest.raises(ValueError, match="not one of the task's symbols"):
        load(tmp_path / "out").generate(**tokenizer("0,1|x", return_tensors="pt"))


TEXTS = ["Story 1: the cat", "Story 7: a boat,", "it sank. 3 dogs"]


def test_text_ends_where_ours_does_and_converts_to_the_same_ids(of_text, tmp_path):
    export(of_text, tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    theirs = load(tmp_path / "out")
    for text in [*TEXTS, "naïve — 中文 \n\t<|endoftext|>x", "  two  spaces ", "don't"]:
        ids = tokenizer(text)
        assert ids["input_ids"] == of_text.task.encode(text).tolist()
        assert set(ids) == {"input_ids", "attention_mask"}
        assert tokenizer.decode(ids["input_ids"]) == text
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id) == (of_text.task.end,) * 2 + (None,)
    assert (tokenizer.padding_side, tokenizer.model_max_length) == ("left", 32)
    with torch.no_grad():
        given = tokenizer(TEXTS, return_tensors="pt", padding=True)
        found = theirs.generate(**given)[:, given["input_ids"].shape[1] :].tolist()
    wanted = [one.tokens.tolist() for one in of_text.generate(TEXTS)]
    end = of_text.task.end
    assert any(row[-1] == end for row in wanted)
    for text, ids, row in zip(TEXTS, found, wanted):
        length = min(len(row), len(ids))  # rows padded on the left have less room
        assert ids[:length] == row[:length], text
        assert set(ids[length:]) <= {end}


def test_ids_in_config_are_null_where_the_architecture_has_defaults(of_text, tmp_path):
    export(of_text, tmp_path / "text")
    export(path_star_model(), tmp_path / "graphs")
    for folder, end in (("text", of_text.task.end), ("graphs", None)):
        config = transformers.AutoConfig.from_pretrained(tmp_path / folder)
        assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (None, end, None)


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


def test_a_damaged_config_is_refused_with_a_sentence():
    model = path_star_model("belief_state")
    fields = {"name": "gpt", "width": 16, "heads": 2, "layers": 2}
    good = {"backbone": fields, "objective": {"name": "belief_state"}, "vocab_size": 16, "max_position_embeddings": 25}
    assert objective_of(StatewiseConfig(**good)).state_dict().keys() == model.objective.state_dict().keys()
    for key, value, said in [
        ("backbone", {}, "backbone"),
        ("backbone", {"name": "gtp"}, "did you mean gpt"),
        ("backbone", 3, "backbone"),
        ("backbone", {**fields, "width": "x"}, "width"),
        ("backbone", {**fields, "depth": 2}, "unknown field 'depth'"),
        ("objective", {"name": 4}, "objective"),
        ("objective", {"name": "x"}, "unknown objective"),
        ("vocab_size", "x", "vocab_size"),
        ("vocab_size", -1, "vocab_size"),
        ("vocab_size", 0, "vocab_size"),
        ("max_position_embeddings", None, "max_position_embeddings"),
        ("rows", "sideways", "rows"),
    ]:
        with pytest.raises(ValueError, match=said):
            objective_of(StatewiseConfig(**{**good, key: value}))


def test_importing_it_twice_is_harmless():
    import importlib

    importlib.reload(statewise.hf)
