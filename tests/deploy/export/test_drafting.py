"""Drafts inside transformers' `generate` change nothing but the number of passes. Models are tiny and random."""

import functools
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from doubles import path_star_model
from torch import nn

transformers = pytest.importorskip("transformers", reason="needs the extra hf")

import statewise.hf  # noqa: E402
from statewise.backbones.hf.key_values import CACHE  # noqa: E402
from statewise.deploy.export import drafting  # noqa: E402
from statewise.deploy.export.export import export  # noqa: E402
from statewise.losses.next_latent import LatentDynamics  # noqa: E402

V, D = 13, 16
SIZES = {"vocab_size": V, "hidden_size": D, "intermediate_size": 32, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64}
SIZES |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
FAMILIES = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=V, n_embd=D, n_layer=2, n_head=2, n_positions=64, bos_token_id=None, eos_token_id=None
    ),
    "a window": lambda: transformers.MistralConfig(**SIZES, sliding_window=4),
    "two kinds of layers": lambda: transformers.Gemma3TextConfig(
        **SIZES, head_dim=8, sliding_window=4, layer_types=["sliding_attention", "full_attention"]
    ),
}


class Attached(nn.Module):
    """What `statewise.hf.loss_for` attaches, as far as drafts see it."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.dynamics = LatentDynamics(D, D, 24, "rms", init=0.3, norm_eps=1e-5)


def model_of(family="llama", scale=12.0):
    """A model whose greedy text varies; its dynamics are random, so that drafts are accepted now and then."""
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family]()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale if parameter.dim() > 1 else 1.0)
    model.statewise_loss = Attached()
    return model.double()


def prompts(rows=3, length=7, padding=0):
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(1, V, (rows, length), generator=generator)
    mask = torch.ones_like(tokens)
    for row in range(rows):
        mask[row, : padding * row] = 0
    return {"input_ids": tokens.masked_fill(mask == 0, 0), "attention_mask": mask}


def passes(model, **options):
    """What `generate` returns, and the number of passes that it takes."""
    made = []
    hook = model.register_forward_hook(lambda *_: made.append(1))
    try:
        return model.generate(**options), len(made)
    finally:
        hook.remove()


class Shortcut(nn.Module):
    """Dynamics of `markov`: the model's own state after a token, and noise that makes drafts wrong."""

    def __init__(self, model, noise):
        super().__init__()
        self.norm, self.noise, self.generator = model.model.norm, noise, torch.Generator().manual_seed(5)

    def forward(self, state, embedded):
        exact = self.norm(embedded)
        return exact + self.noise * torch.randn(exact.shape, generator=self.generator, dtype=exact.dtype)


def markov(noise=0.0):
    """A Llama whose layers add nothing, so that the next token depends on the last one alone, and (V, V) its
    log-probabilities after each."""
    model = model_of(scale=1.0)
    for layer in model.model.layers:
        nn.init.zeros_(layer.self_attn.o_proj.weight)
        nn.init.zeros_(layer.mlp.down_proj.weight)
    nn.init.normal_(model.lm_head.weight, std=0.3)
    model.statewise_loss.dynamics = Shortcut(model, noise)
    with torch.no_grad():
        return model, model(torch.arange(V)[:, None]).logits[:, 0].log_softmax(-1)


def drafted(model, drafts=4, **options):
    return model.generate(custom_generate=statewise.hf.draft, drafts=drafts, **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_is_the_same(family):
    model = model_of(family)
    for rows, padding in ((1, 0), (3, 2)):
        given = {**prompts(rows, padding=padding), "max_new_tokens": 20, "do_sample": False}
        wanted = model.generate(**given)
        assert len(set(wanted.flatten().tolist())) > 4
        for drafts in (0, 1, 4, 30, "auto"):
            assert torch.equal(drafted(model, drafts, **given), wanted)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.7, "top_k": 5, "top_p": 0.9},
        {"repetition_penalty": 1.5, "no_repeat_ngram_size": 3, "min_new_tokens": 6},
        {"num_return_sequences": 2, "min_p": 0.05},
    ],
    ids=lambda options: "+".join(options) or "plain",
)
def test_a_seed_gives_the_samples_that_it_gives_without_drafts(options):
    model = model_of()
    given = {**prompts(), "max_new_tokens": 16, "do_sample": True, "eos_token_id": 5, **options}
    wanted = []
    for number in range(2):
        torch.manual_seed(number)
        wanted.append(model.generate(**given))
    for number, one in enumerate(wanted):
        torch.manual_seed(number)
        assert torch.equal(drafted(model, **given), one)
    assert not torch.equal(wanted[0], wanted[1])


def test_right_drafts_save_passes_and_wrong_ones_change_nothing():
    for noise, samples in ((0.0, False), (0.0, True), (0.5, False), (0.5, True)):
        model, _ = markov(noise)
        given = {**prompts(1), "max_new_tokens": 21, "do_sample": samples}
        torch.manual_seed(0)
        wanted = model.generate(**given)
        torch.manual_seed(0)
        found, made = passes(model, custom_generate=statewise.hf.draft, drafts=4, **given)
        assert torch.equal(found, wanted)
        assert made == 5 if noise == 0 else 5 < made < 21  # the prompt, then four times five tokens


def test_samples_have_the_distribution_of_the_model():
    scipy = pytest.importorskip("scipy.stats")
    model, log_probabilities = markov(0.7)
    torch.manual_seed(0)
    text, made = passes(
        model, custom_generate=statewise.hf.draft, **prompts(1), max_new_tokens=900, do_sample=True, top_k=0
    )
    assert 240 < made < 780
    chain = text[0, 6:]
    counts = torch.zeros(V, V).index_put((chain[:-1], chain[1:]), torch.tensor(1.0), accumulate=True)
    expected = counts.sum(1, keepdim=True) * log_probabilities.exp()
    enough = expected >= 5
    statistic = float(((counts - expected).square() / expected)[enough].sum())
    assert 0.001 < scipy.chi2.sf(statistic, int(enough.sum()) - V) < 0.999


def test_rows_end_where_they_end_without_drafts():
    model, _ = markov(0.3)
    given = {**prompts(4, padding=1), "max_new_tokens": 24, "do_sample": True}
    for number, ends in enumerate(([5], [3, 7, 11])):
        torch.manual_seed(number)
        wanted = model.generate(**given, eos_token_id=ends)
        torch.manual_seed(number)
        assert torch.equal(drafted(model, **given, eos_token_id=ends), wanted)
        assert len({int((row[7:] == 0).sum()) for row in wanted}) > 1  # padding behind ends


def test_a_text_stops_at_a_string():
    tokenizers = pytest.importorskip("tokenizers")
    letters = {letter: number for number, letter in enumerate("abcdefghijklm")}
    words = tokenizers.Tokenizer(tokenizers.models.BPE(letters, []))
    words.pre_tokenizer, words.decoder = tokenizers.pre_tokenizers.ByteLevel(False), tokenizers.decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words)
    model, _ = markov(0.1)
    given = {**prompts(1), "max_new_tokens": 40, "do_sample": True}
    torch.manual_seed(0)
    whole = tokenizer.decode(model.generate(**given)[0, 7:])
    stop = whole[9:11]
    torch.manual_seed(0)
    wanted = model.generate(**given, stop_strings=[stop], tokenizer=tokenizer)
    assert len(wanted[0]) < 47
    torch.manual_seed(0)
    criteria = transformers.StoppingCriteriaList([transformers.StopStringCriteria(tokenizer, [stop])])
    assert torch.equal(drafted(model, **given, stopping_criteria=criteria), wanted)


def test_scores_cache_and_streams_are_those_without_drafts():
    model, _ = markov(0.3)
    given = {**prompts(1), "max_new_tokens": 12, "do_sample": False, "return_dict_in_generate": True}
    given |= {"output_scores": True, "output_logits": True}
    wanted, found = model.generate(**given), drafted(model, **given)
    assert torch.equal(found.sequences, wanted.sequences)
    for name in ("scores", "logits"):
        torch.testing.assert_close(torch.stack(found[name]), torch.stack(wanted[name]))
    assert found[CACHE].get_seq_length() == wanted[CACHE].get_seq_length() == 18
    more = {"max_new_tokens": 5, "do_sample": False, "attention_mask": torch.ones_like(found.sequences)}
    texts = [drafted(model, input_ids=one.sequences, **{CACHE: one[CACHE]}, **more) for one in (wanted, found)]
    assert torch.equal(*texts)

    class Stream:
        def __init__(self):
            self.tokens, self.ended = [], False

        def put(self, tokens):
            self.tokens += tokens.flatten().tolist()

        def end(self):
            self.ended = True

    stream = Stream()
    model.generate(
        **prompts(1), max_new_tokens=12, custom_generate=functools.partial(statewise.hf.draft, streamer=stream)
    )
    assert stream.tokens == found.sequences[0, 7:].tolist()
    assert stream.ended


DRAFTING = [
    ("next_latent", "gpt"),
    ("next_latent", "two_stream"),
    ("next_latent", "belief_slots"),
    ("next_latent", "recurrent"),
    ("joint_multi_token", "gpt"),
    ("multi_token", "recurrent"),
]
OWN = {"gpt": {"positions": "learned"}, "two_stream": {"window": 3}, "belief_slots": {"chunk": 4, "slots": 2}}


@pytest.mark.parametrize(("objective", "backbone"), DRAFTING, ids=lambda name: name)
def test_exported_models_of_ours_draft(objective, backbone, tmp_path):
    ours = path_star_model(objective, backbone, **OWN.get(backbone, {}))
    export(ours, tmp_path / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokens = torch.from_numpy(ours.task.held_out(3).tokens)[:, :15]
    mask = torch.ones_like(tokens)
    mask[1, :4] = 0
    given = {"input_ids": tokens, "attention_mask": mask, "max_new_tokens": 9, "eos_token_id": None, "pad_token_id": 0}
    for samples in (False, True):
        torch.manual_seed(0)
        wanted = model.generate(**given, do_sample=samples)
        torch.manual_seed(0)
        assert torch.equal(drafted(model, 3, **given, do_sample=samples), wanted)


@pytest.mark.parametrize("backbone", ["gpt", "two_stream"])
def test_a_plain_export_drafts_with_the_dynamics_in_its_folder(backbone, tmp_path):
    ours = path_star_model("next_latent", backbone, **({"variant": "standard"} if backbone == "two_stream" else {}))
    assert export(ours, tmp_path / "out").architecture == "LlamaForCausalLM"
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    tokens = torch.from_numpy(ours.task.held_out(2).tokens)[:, :15]
    given = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "max_new_tokens": 9, "eos_token_id": None}
    wanted = model.generate(**given, pad_token_id=0)
    assert torch.equal(drafted(model, **given, pad_token_id=0), wanted)
    state, embedded = torch.randn(3, D), torch.randn(3, D)
    torch.testing.assert_close(drafting._beside(model)(state, embedded), ours.objective.dynamics(state, embedded))
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    (tmp_path / "out" / "extra" / "dynamics.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ValueError, match="not the dynamics of this model"):
        drafted(again, **given)


def test_what_cannot_be_drafted_is_refused_in_a_sentence(tmp_path):
    model, given = model_of(), {**prompts(1), "max_new_tokens": 4}
    export(path_star_model("belief_state"), tmp_path / "out")
    ours = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    bare, recurrent = (
        model_of(),
        transformers.AutoModelForCausalLM.from_config(
            transformers.MambaConfig(vocab_size=V, hidden_size=D, num_hidden_layers=1, state_size=4)
        ),
    )
    del bare.statewise_loss
    recurrent.statewise_loss = Attached()
    for one, options, said in (
        (bare, {}, "LlamaForCausalLM has nothing to draft with: tune"),
        (ours, {}, "StatewiseForCausalLM has nothing to draft with: tune"),
        (recurrent, {}, "cannot forget single tokens"),
        (model, {"use_cache": False}, "need a cache"),
        (model, {"num_beams": 2}, "ask for beam_search"),
        (model, {"prompt_lookup_num_tokens": 3}, "ask for assisted_generation"),
        (model, {"output_hidden_states": True, "return_dict_in_generate": True}, "are not collected"),
        *((model, {"drafts": wrong}, "whole number, at least 0") for wrong in (-1, True, "4", 2.0, None)),
    ):
        with pytest.raises(ValueError, match=said):
            one.generate(custom_generate=statewise.hf.draft, **given, **options)
