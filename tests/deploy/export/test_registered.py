"""Our own class inside transformers computes what our model does. Models are made without a network."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import copy
import functools

import numpy as np
import pytest
import torch
from doubles import path_star_model, random_examples
from exported import load, ours_of, same, whole_rows
from safetensors.torch import load_file, save_file

transformers = pytest.importorskip("transformers", reason="needs the extra hf")

import statewise.hf  # noqa: E402
from statewise.backbones import BACKBONES  # noqa: E402
from statewise.backbones.hf.key_values import CACHE  # noqa: E402
from statewise.data_types import Batch  # noqa: E402
from statewise.deploy.export.export import export  # noqa: E402
from statewise.deploy.export.layouts import NotPlain, plain  # noqa: E402
from statewise.deploy.export.registered import StatewiseConfig, StatewiseForCausalLM, objective_of  # noqa: E402
from statewise.objectives import OBJECTIVES, activations  # noqa: E402

transformers.logging.disable_progress_bar()

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
    ("next_token", "gpt, stick_breaking"),
    ("latent_multi_token", "gpt"),
    ("semantic_tube", "two_stream"),
    ("token_order", "two_stream"),
    ("next_latent", "belief_slots"),
    ("future_summary", "recurrent"),
    ("multi_token", "recurrent"),
    ("next_token", "deltanet"),
]
"""Objectives that read by a head of their own, on each backbone; the others, which read by the backbone's, on one."""


def test_every_backbone_and_objective_is_tried():
    assert set(SHAPES) == set(BACKBONES) - {"hf"}, "models of transformers are in test_tuned.py"
    assert {objective for objective, _ in PAIRS} == set(OBJECTIVES) - {"teacherless"}
    by_backbone = {backbone for objective, backbone in PAIRS if objective not in ("belief_state", "joint_multi_token")}
    assert by_backbone == {*SHAPES, "gpt, stick_breaking"}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    @functools.cache
    def made(objective, backbone):
        backbone, _, option = backbone.partition(", ")
        fields = {"attention": option, "positions": "none"} if option else SHAPES[backbone]
        model = path_star_model(objective, backbone, **fields)
        with pytest.raises(NotPlain):
            plain(model.objective)
        folder = tmp_path_factory.mktemp("exported") / "out"
        assert export(model, folder).architecture == "StatewiseForCausalLM"
        theirs = load(folder)
        assert type(theirs) is StatewiseForCausalLM
        return model, theirs

    return made


@pytest.fixture(params=PAIRS, ids=" on ".join)
def registered(request, models):
    """A model that no architecture represents, and what transformers loads."""
    return models(*request.param)


FEW = [*(("belief_state", backbone) for backbone in SHAPES), ("next_token", "gpt, stick_breaking")]
each_backbone = pytest.mark.parametrize("registered", FEW, ids=" on ".join, indirect=True)
"""For what depends on the cache, or on our class alone, and not on the objective."""


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


@each_backbone
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


@each_backbone
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


@pytest.fixture
def registered_in_float64(registered, float64):
    model, theirs = registered
    model.objective.double()
    theirs.double()
    yield registered
    model.objective.float()
    theirs.float()


def test_hidden_states_are_those_of_the_backbone(registered_in_float64):
    """In float32, layers differ by up to 1.2e-5 with the number of rows on some processors."""
    model, theirs = registered_in_float64
    tokens, layers = whole_rows(model), model.recipe.backbone.config.layers
    mask = torch.ones_like(tokens)
    mask[1, :4] = 0  # padding on the left
    found = theirs(tokens, attention_mask=mask, output_hidden_states=True)
    assert theirs(tokens).hidden_states is None
    assert [tuple(state.shape) for state in found.hidden_states] == [(5, 25, 16)] * (layers + 1)
    alone = tokens[1:2, 4:]
    for row, columns, batch in ((0, slice(None), tokens[:1]), (1, slice(4, None), alone)):
        wanted = model.predictor().states(Batch.plain(batch)).readout[0]
        same(found.hidden_states[-1][row, columns], wanted, 1e-12)
        read = activations.read(model.predictor().backbone, Batch.plain(batch), ["blocks.*hook_resid_*"])
        first, second = (
            next(
                value
                for name, value in read.items()
                if name.startswith(f"blocks.{layer}.") and "prediction" not in name and name.endswith(where)
            )
            for layer, where in ((0, "resid_pre"), (0, "resid_post"))
        )
        same(found.hidden_states[0][row, columns], first[0], 1e-12)
        same(found.hidden_states[1][row, columns], second[0], 1e-12)
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
@each_backbone
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


@each_backbone
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


@each_backbone
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


@each_backbone
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
