"""Activations by name, against a forward pass by hand, and patches, against a forward pass with the change in it."""

import itertools
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from doubles import (
    TINY_BACKBONES,
    VOCABULARY,
    pack,
    random_batch,
    rotate,
    spread_weights,
    tiny_gpt,
    tiny_objective,
    tiny_two_stream,
)
from torch.nn import functional as F

from statewise import load
from statewise.analysis import make_analysis
from statewise.backbones import BACKBONES
from statewise.backbones.nn.attention import rotary_angles
from statewise.backbones.nn.masks import INPUT, PREDICTION, stream_mask
from statewise.cli import main
from statewise.data_types import Batch, LacksCapability
from statewise.model import snapshots
from statewise.objectives import OBJECTIVES, activations
from statewise.run import FILES
from statewise.runtime.overwriting import strangers

STREAMS = {INPUT: "input", PREDICTION: "prediction"}


def by_hand(blocks, norm, x, place, mask, heads, changes=None, added=None):
    """All activations (B, N, ...) of blocks over N columns, the final norm's included; `mask` (N, N) says which columns
    a column reads. An activation that `changes` names goes on changed."""
    found = {}

    def point(name, x):
        found[name] = (changes or {}).get(name, lambda x: x)(x)
        return found[name]

    for layer, block in enumerate(blocks):
        name = f"blocks.{layer}."
        x = point(name + "hook_resid_pre", x if added is None else x + added[layer])
        B, N, D = x.shape
        mixed = F.linear(block.attention_norm(x), block.attention.in_proj.weight)
        query, key, value = mixed.view(B, N, 3, heads, D // heads).permute(2, 0, 3, 1, 4)
        query, key = rotate(query, rotary_angles(place, D // heads)), rotate(key, rotary_angles(place, D // heads))
        scores = (query @ key.transpose(-1, -2)) * (D // heads) ** -0.5
        seen = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ value
        seen = point(name + "attn.hook_z", seen.transpose(1, 2))
        x = x + point(name + "hook_attn_out", F.linear(seen.flatten(2), block.attention.out_proj.weight))
        x = point(name + "hook_resid_mid", x)
        gate, inner = F.linear(block.mlp_norm(x), block.mlp.in_proj.weight).chunk(2, dim=-1)
        inner = point(name + "mlp.hook_post", F.silu(gate) * inner)
        x = x + point(name + "hook_mlp_out", F.linear(inner, block.mlp.out_proj.weight))
        x = point(name + "hook_resid_post", x)
    point("ln_final.hook_out", norm(x))
    return found


def gpt_by_hand(gpt, tokens, changes=None, added=None):
    place = torch.arange(tokens.shape[1])
    mask = place[:, None] >= place
    embedded = (changes or {}).get("hook_embed", lambda x: x)(gpt.embed(tokens))
    found = by_hand(gpt.blocks, gpt.norm, embedded, place, mask, 2, changes, added)
    return {"hook_embed": embedded, **found}


def two_stream_by_hand(model, tokens, changes=None):
    """Of each stream by itself; both are columns side by side, for which one name stands in `changes`."""
    T = tokens.shape[1]
    both = torch.cat([tokens, torch.full_like(tokens, VOCABULARY)], dim=1)
    mask = stream_mask((INPUT, PREDICTION), T, model.config.reach)
    place = torch.arange(T).repeat(2)
    of_each = {}
    for name, change in (changes or {}).items():  # blocks.1.prediction.hook_z -> of all columns the second half
        head, label, tail = name.partition(".input") if ".input" in name else name.partition(".prediction")
        first = 0 if label == ".input" else T

        def within(x, first=first, change=change):
            return torch.cat([x[:, :first], change(x[:, first : first + T]), x[:, first + T :]], dim=1)

        of_each[head + tail] = within
    found = by_hand(model.blocks, model.norm, model.embed(both), place, mask, 2, of_each)
    return {
        f"{head}.{STREAMS[stream]}.{tail}": part
        for name, x in found.items()
        for head, tail in [(name[: len("blocks.0")], name[len("blocks.0.") :]) if name[0] == "b" else name.split(".")]
        for stream, part in enumerate(x.split(T, dim=1))
    }


def belief_slots_by_hand(model, tokens, changes=None):
    """Chunk by chunk, with the slots added before every block."""
    state, parts = model.initial.expand(len(tokens), -1, -1), []
    for chunk in tokens.split(model.chunk, dim=1):
        added = [inject(state)[:, None] for inject in model.injections]
        parts.append(gpt_by_hand(model.gpt, chunk, changes, added=added))
        state = model.update(state, parts[-1]["ln_final.hook_out"], None)
    return {name: torch.cat([part[name] for part in parts], dim=1) for name in parts[0]}


def recurrent_by_hand(model, tokens, changes=None):
    """A GRU by its equations (Cho et al. 2014, gates in PyTorch's order), a layer and a token at a time."""
    found = {}

    def point(name, x):
        found[name] = (changes or {}).get(name, lambda x: x)(x)
        return found[name]

    x = point("hook_embed", model.embed(tokens))
    for layer, block in enumerate(model.blocks):
        x, cell, hidden = point(f"blocks.{layer}.hook_resid_pre", x), block.cell, []
        h = torch.zeros(len(tokens), model.width)
        for token in x.unbind(1):
            r, z, n = F.linear(token, cell.weight_ih_l0, cell.bias_ih_l0).chunk(3, -1)
            hr, hz, hn = F.linear(h, cell.weight_hh_l0, cell.bias_hh_l0).chunk(3, -1)
            z = (z + hz).sigmoid()
            h = (1 - z) * (n + (r + hr).sigmoid() * hn).tanh() + z * h
            hidden.append(h)
        x = point(f"blocks.{layer}.hook_resid_post", torch.stack(hidden, 1))
    return found


def hf_by_hand(model, tokens, changes=None):
    """Layer by layer of a Starcoder2."""
    found, body = {}, model.body

    def point(name, x):
        found[name] = (changes or {}).get(name, lambda x: x)(x)
        return found[name]

    x, place = point("hook_embed", model.embed(tokens)), torch.arange(tokens.shape[1])[None]
    mask = (place[:, :, None] >= place[:, None])[:, None]
    for layer, block in enumerate(body.layers):
        x = point(f"blocks.{layer}.hook_resid_pre", x)
        x = block(x, attention_mask=mask, position_ids=place, position_embeddings=body.rotary_emb(x, place))
        x = point(f"blocks.{layer}.hook_resid_post", x)
    point("ln_final.hook_out", body.norm(x))
    return found


def deltanet_by_hand(model, tokens, changes=None):
    """Token by token and head by head, from S_t = S_(t-1) alpha_t (I - beta_t k_t k_t^T) + beta_t v_t k_t^T."""
    found = {}

    def point(name, x):
        found[name] = (changes or {}).get(name, lambda x: x)(x)
        return found[name]

    x, config = point("hook_embed", model.embed(tokens)), model.config
    H, W = config.heads, config.width // config.heads
    for layer, block in enumerate(model.blocks):
        name, mixer = f"blocks.{layer}.", block.attention
        x = point(name + "hook_resid_pre", x)
        read = block.attention_norm(x)
        inputs, gate = mixer.in_proj(read).split((3 * config.width, config.width), dim=-1)
        beta = 2 * mixer.write_proj(read).sigmoid()
        alpha = (-mixer.log_rate.exp() * F.softplus(mixer.decay_proj(read) + mixer.step)).exp()
        seen = torch.zeros(*tokens.shape, H, W)
        for row in range(len(tokens)):
            S = torch.zeros(H, W, W)
            for t in range(tokens.shape[1]):
                recent = inputs[row, max(0, t - 3) : t + 1]
                mixed = F.silu((recent * mixer.convolution.weight[4 - len(recent) :]).sum(0))
                for head, (q, k, v) in enumerate(zip(*mixed.view(3, H, W))):
                    q, k = (each / (each.square().sum() + 1e-6).sqrt() for each in (q, k))
                    strength, kept = beta[row, t, head], alpha[row, t, head]
                    S[head] = S[head] @ (kept * (torch.eye(W) - strength * torch.outer(k, k)))
                    S[head] += strength * torch.outer(v, k)
                    seen[row, t, head] = S[head] @ q / W**0.5
        seen = mixer.norm(seen) * F.silu(gate).view_as(seen)
        seen = point(name + "attn.hook_z", seen).flatten(2)
        x = point(name + "hook_resid_mid", x + point(name + "hook_attn_out", mixer.out_proj(seen)))
        gate, inner = F.linear(block.mlp_norm(x), block.mlp.in_proj.weight).chunk(2, dim=-1)
        inner = point(name + "mlp.hook_post", F.silu(gate) * inner)
        x = point(name + "hook_resid_post", x + point(name + "hook_mlp_out", block.mlp.out_proj(inner)))
    point("ln_final.hook_out", model.norm(x))
    return {name: each.detach() for name, each in found.items()}


BY_HAND = {
    "deltanet": deltanet_by_hand,
    "hf": hf_by_hand,
    "recurrent": recurrent_by_hand,
    "gpt": gpt_by_hand,
    "two_stream": two_stream_by_hand,
    "belief_slots": belief_slots_by_hand,
}


def test_every_backbone_of_the_table_is_here():
    assert set(BY_HAND) == set(BACKBONES)


@pytest.fixture
def made(request, float64):
    torch.manual_seed(0)
    model = TINY_BACKBONES[request.param]().eval()
    spread_weights(model)
    return model, BY_HAND[request.param]


def whole(B=3, T=10, seed=0):
    """A batch without padding."""
    tokens = torch.from_numpy(np.random.default_rng(seed).integers(0, VOCABULARY, (B, T)))
    real = torch.ones_like(tokens, dtype=torch.bool)
    return Batch(tokens, real, real, None, (1, T))


def hooks(module):
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules())


def named(name):
    """Says which activation differs, and how."""
    return lambda text: f"{name}: {text}"


def state_of(model, batch):
    with torch.no_grad():
        return model.encode(batch)


@pytest.mark.parametrize("made", BY_HAND, indirect=True)
def test_every_activation_is_that_of_a_forward_pass_by_hand(made):
    model, hand = made
    batch = whole()
    found, expected = activations.read(model, batch, ["*"]), hand(model, batch.tokens)
    missing = {name for name in expected if name not in found}
    assert missing == set()
    assert list(found) == list(activations.hook_points(model))
    for name, activation in found.items():
        torch.testing.assert_close(activation, expected[name], rtol=1e-10, atol=1e-10, msg=named(name))
    assert hooks(model) == 0


@pytest.mark.parametrize("made", BY_HAND, indirect=True)
def test_a_patched_model_is_one_with_the_change_in_its_forward_pass(made):
    model, hand = made
    batch, plain = whole(), state_of(made[0], whole())
    names = list(activations.hook_points(model))
    for name, change in zip(names, itertools.cycle([torch.zeros_like, lambda x: 0.5 * x + 1])):
        with activations.patched(model, {name: change}):
            patched = state_of(model, batch)
        last = hand(model, batch.tokens, {name: change})
        for key in ("readout", "state"):
            expected = readout_by_hand(last, key)
            found = patched.readout if key == "readout" else model.state_for_head(patched.state)
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9, msg=named(name))
    assert hooks(model) == 0
    torch.testing.assert_close(state_of(model, batch), plain, rtol=0, atol=0)


def readout_by_hand(found, key):
    stream = {"readout": "prediction", "state": "input"}[key]
    names = "ln_final.hook_out", f"ln_final.{stream}.hook_out", list(found)[-1]
    return next(found[name] for name in names if name in found)


@pytest.mark.parametrize("made", ["gpt"], indirect=True)
def test_several_patches_come_together_and_one_of_two_places_of_a_tensor_leaves_the_other(made):
    model, hand = made
    batch = whole()
    parts = ("hook_resid_pre", "hook_attn_out", "hook_resid_mid", "hook_resid_post")
    names = [f"blocks.{layer}.{part}" for layer in range(2) for part in parts]
    changes = {name: lambda x: 0.5 * x.mul_(2) - 1 for name in names}  # in place, which must harm nothing
    with activations.patched(model, changes):
        found = activations.read(model, batch, ["*"])
    expected = hand(model, batch.tokens, {name: lambda x: x - 1 for name in changes})
    for name, activation in found.items():
        torch.testing.assert_close(activation, expected[name], rtol=1e-10, atol=1e-10)
    with activations.patched(model, {"blocks.*.hook_mlp_out": torch.zeros_like}):
        everywhere = state_of(model, batch).state
    both = {f"blocks.{layer}.hook_mlp_out": torch.zeros_like for layer in range(2)}
    torch.testing.assert_close(everywhere, hand(model, batch.tokens, both)["ln_final.hook_out"])


@pytest.mark.parametrize("made", BY_HAND, indirect=True)
def test_packed_and_padded_rows_have_the_activations_of_each_alone(made):
    model, _ = made
    batch = random_batch(longest=10)
    lengths = batch.real.sum(1).tolist()
    padded, packed = (activations.read(model, each, ["*"]) for each in (batch, pack(batch)))
    for row, length in enumerate(lengths):
        # Belief slots cut chunks by the row's columns, so only documents that begin a row are read as if alone.
        first = 0 if row % 2 == 0 else lengths[row - 1]
        alone = activations.read(model, whole(1, length)._replace(tokens=batch.tokens[row : row + 1, :length]), ["*"])
        for name, activation in alone.items():
            torch.testing.assert_close(padded[name][row, :length], activation[0])
            if not first or not hasattr(model, "chunk"):
                torch.testing.assert_close(packed[name][row // 2, first : first + length], activation[0])


@pytest.mark.parametrize("made", BY_HAND, indirect=True)
def test_step_by_step_a_patched_model_says_what_it_says_at_once(made):
    model, _ = made
    objective = tiny_objective("next_token", make_backbone=lambda **more: model)
    batch, predictor = whole(2, 9), objective.eval().predictor()
    for name in activations.hook_points(model):
        with activations.patched(model, {name: lambda x: 0.7 * x + 0.1}):
            together = predictor.logits(batch)
            cursor, logits = predictor.start(batch.tokens[:, :4])
            steps = [logits, *(predictor.extend(cursor, batch.tokens[:, t : t + 1])[:, 0] for t in range(4, 9))]
        torch.testing.assert_close(torch.stack(steps, 1), together[:, 3:], msg=named(name))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_of_every_objective_the_reader_of_prefixes_is_looked_at(name):
    objective = tiny_objective(name).eval()
    backbone = objective.predictor().backbone
    batch = random_batch()
    found = activations.read(backbone, batch, ["blocks.*.hook_resid_post", "ln_final.hook_out"])
    assert list(found) == ["blocks.0.hook_resid_post", "blocks.1.hook_resid_post", "ln_final.hook_out"]
    torch.testing.assert_close(found["ln_final.hook_out"], state_of(backbone, batch).readout)


def test_names_that_are_not_there_are_answered_with_those_that_are():
    gpt = tiny_gpt().eval()
    with pytest.raises(
        ValueError, match=r"unknown activation 'blocks.1.hook_resid_pst': did you mean blocks.\*.hook_resid"
    ):
        activations.read(gpt, whole(), ["blocks.1.hook_resid_pst"])
    with pytest.raises(ValueError, match=r"ln_final.hook_out \(blocks 0 to 1\)$"):
        activations.read(gpt, whole(), ["block.1.hook_resid_post"])
    with pytest.raises(ValueError, match=r"^blocks.2.hook_resid_post: there are blocks 0 to 1, and no block 2$"):
        activations.read(gpt, whole(), ["blocks.2.hook_resid_post"])
    with (
        pytest.raises(ValueError, match=r"^blocks.7.\*: there are blocks 0 to 1, and no block 7$"),
        activations.patched(gpt, {"blocks.7.*": torch.zeros_like}),
    ):
        pass
    assert hooks(gpt) == 0
    delayed = activations.hook_points(tiny_two_stream(variant="delayed_state"))
    assert "blocks.1.input.hook_resid_pre" in delayed
    assert "blocks.1.input.hook_resid_post" not in delayed
    standard = activations.hook_points(tiny_two_stream(variant="standard"))
    assert {name.split(".")[2] for name in standard if name.startswith("blocks")} == {"input"}


def test_what_cannot_be_patched_is_said_and_hooks_go_in_any_case():
    gpt = tiny_gpt().eval()
    with (
        pytest.raises(
            ValueError, match=r"patch of blocks.0.hook_mlp_out must return a tensor \(3, 10, 16\), not \(3, 10, 4\)"
        ),
        activations.patched(gpt, {"blocks.0.hook_mlp_out": lambda x: x[..., :4]}),
    ):
        state_of(gpt, whole())
    with (
        pytest.raises(ValueError, match="not NoneType"),
        activations.patched(gpt, {"ln_final.hook_out": lambda x: None}),
    ):
        state_of(gpt, whole())
    with pytest.raises(KeyError), activations.patched(gpt, {"*": torch.zeros_like}):
        raise KeyError
    assert hooks(gpt) == 0
    compiled = torch.compile(gpt, backend="eager")
    with pytest.raises(ValueError, match="compiled"):
        activations.read(compiled, whole(), ["*"])
    with pytest.raises(LacksCapability):
        activations.hook_points(torch.nn.Linear(2, 2))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of three steps, its graphs in a file beside it."""
    folder = tmp_path_factory.mktemp("activations") / "run"
    words = (
        "--task.held_out_graphs=40 --backbone.width=16 --backbone.heads=2 --backbone.layers=2 --trainer.steps=3 "
        "--trainer.batch_size=8 --trainer.precision=fp32 --trainer.checkpoint_every=1 --trainer.keep=every:1"
    )
    assert main(["train", "path-star-demo", *words.split(), "--out", str(folder)]) == 0
    task = load(folder).task
    examples = task.held_out(5)
    lines = [task.decode(examples.prompt(row)) for row in range(5)]
    (folder.parent / "prompts.txt").write_text("\n".join(lines))
    return folder


def test_a_run_is_read_and_patched_whatever_it_is_asked(run):
    model = load(run)
    prompts = (run.parent / "prompts.txt").read_text().splitlines()
    found = model.activations(prompts, ["blocks.*.hook_resid_post", "ln_final.hook_out"])
    assert found["blocks.1.hook_resid_post"].shape == (5, len(model.task.encode(prompts[0])), 16)
    torch.testing.assert_close(found["ln_final.hook_out"], model.states(prompts).state)
    before = model.evaluate(20).metrics, model.generate(prompts[:1])[0].log_probability
    with model.patch({"ln_final.hook_out": torch.zeros_like}):
        assert not model.states(prompts).state.any()
        # Without a state all tokens are equally likely.
        per_token = model.generate(prompts[:1])[0]
        assert per_token.log_probability == pytest.approx(
            -len(per_token.tokens) * np.log(len(model.task.vocab)), rel=1e-5
        )
        assert model.evaluate(20).metrics != before[0]
    assert (model.evaluate(20).metrics, model.generate(prompts[:1])[0].log_probability) == before


def test_what_a_patched_model_computes_is_not_kept_as_the_runs(run):
    model = load(run)
    options = {"sequences": 20, "training_sequences": 40, "steps": 20, "offsets": "1"}
    with model.patch({"blocks.0.hook_resid_pre": torch.zeros_like}):
        model.analyze(make_analysis("future-probe", **options))
    plain = model.analyze(make_analysis("future-probe", **options))
    for path in (run / "cache").iterdir():
        path.unlink()
    assert load(run).analyze(make_analysis("future-probe", **options)) == plain


def test_probes_ask_one_layer_each_layer_or_all_side_by_side(run):
    options = {"sequences": 20, "training_sequences": 40, "steps": 20, "offsets": "1,2"}
    model = load(run)
    found = {
        layer: model.analyze(make_analysis("future-probe", layer=layer, **options))
        for layer in ("blocks.0.hook_resid_post", "blocks.1.hook_resid_post", "all", "concat", "ln_final.*")
    }
    every = found["all"]
    for layer in ("blocks.0.hook_resid_post", "blocks.1.hook_resid_post"):
        assert every.metrics[f"accuracy_{layer}"] == found[layer].metrics["accuracy"]
        assert every.details["layers"][layer] == found[layer].details
    over = every.panels[0]
    assert (over.x_title, over.curves[0].x) == ("layer", [1.0, 2.0])
    assert over.curves[0].y == [
        pytest.approx(found[f"blocks.{at}.hook_resid_post"].metrics["accuracy"]) for at in (0, 1)
    ]
    assert [curve.label for curve in every.panels[1].curves] == ["layer 1", "layer 2"]
    # The last norm's output is the state: a probe of it is that of the state.
    state = model.analyze(make_analysis("future-probe", **options))
    assert found["ln_final.*"].metrics["accuracy_ln_final.hook_out"] == state.metrics["accuracy"]
    assert found["concat"].metrics.keys() == state.metrics.keys()
    with pytest.raises(ValueError, match=r"unknown activation 'blocks\.9'"):
        model.analyze(make_analysis("future-probe", layer="blocks.9", **options))


def test_one_reading_of_each_model_serves_all_layers(run, tmp_path, monkeypatch):
    copied = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("cache"))
    model, readings, read = load(copied), [], activations.read
    monkeypatch.setattr(
        snapshots, "read", lambda backbone, batch, names: readings.append(1) or read(backbone, batch, names)
    )
    options = {"sequences": 20, "training_sequences": 40, "steps": 2, "offsets": "1"}
    counts = []
    for layer in ("ln_final.hook_out", "all", "blocks.*"):
        readings.clear()
        model.analyze(make_analysis("future-probe", layer=layer, **options))
        counts.append(len(readings))
    assert counts == [counts[0], counts[0] + 1, counts[0] + 1]  # one more, of one row, for the names of the layers


PROBES = {"future-probe": {"offsets": "1,2"}, "world-probe": {}, "prompt-probe": {}}


@pytest.mark.parametrize("name", PROBES)
def test_every_probe_asks_layers_of_every_checkpoint(run, name):
    options = {"sequences": 20, "training_sequences": 40, "steps": 20, **PROBES[name]}
    model, first = load(run), load(run, checkpoint="1")
    layer = "blocks.1.hook_resid_post"
    one = model.analyze(make_analysis(name, layer=layer, checkpoints="1,3", **options))
    alone = first.analyze(make_analysis(name, layer=layer, **options))
    curves = {curve.label: curve.y for curve in one.panels[0].curves}
    of_first = {curve.label: curve.y for curve in alone.panels[0].curves}
    assert curves["step 1"] == of_first["step 1"]
    assert {"step 1", "step 3"} <= curves.keys()
    # The model itself, and the state that is its last norm's output.
    assert one.metrics["accuracy"] == model.analyze(make_analysis(name, layer=layer, **options)).metrics["accuracy"]
    state = model.analyze(make_analysis(name, checkpoints="1,3", **options))
    normed = model.analyze(make_analysis(name, layer="ln_final.hook_out", checkpoints="1,3", **options))
    assert normed.metrics == state.metrics
    assert normed.panels == state.panels
    every = model.analyze(make_analysis(name, layer="all", checkpoints="1,3", **options))
    assert every.metrics[f"accuracy_{layer}"] == one.metrics["accuracy"]
    assert {"step 1", "step 3"} <= {curve.label for curve in every.panels[0].curves}


def test_analyses_of_layers_have_reports_of_their_own(run, capsys, tmp_path):
    words = [
        "analyze",
        str(run),
        "future-probe",
        "--sequences",
        "20",
        "--training_sequences",
        "40",
        "--steps",
        "5",
        "--offsets",
        "1",
    ]
    layers = ["blocks.0.hook_resid_post", "blocks.1.hook_resid_post", "all", "blocks.*.hook_mlp_out", None]
    names = set()
    for layer in layers:
        assert main([*words, *(["--layer", layer] if layer else []), "--out", str(tmp_path / "out")]) == 0
        (path,) = re.findall(r"wrote (\S+/reports/.*\.json)", capsys.readouterr().out)
        assert json.loads(Path(path).read_text())["settings"]["layer"] == layer
        names.add(Path(path).stem)
    assert {"future-probe", "future-probe-layer-blocks.0.hook_resid_post", "future-probe-layer-all"} < names
    assert len(names) == len(layers)
    assert {path.stem for path in (tmp_path / "out").glob("*.json")} == names
    assert main([*words, "--layer", "all", "--checkpoint", "3"]) == 0
    assert "future-probe-layer-all-checkpoint-3.json" in capsys.readouterr().out
    assert strangers(run, FILES) == []


def test_embed_writes_layers(run, capsys):
    file, out = run.parent / "prompts.txt", run.parent / "layer.npy"
    words = ["embed", str(run), str(file), "--prompts", "--out", str(out), "--overwrite", "--layer"]
    prompts = file.read_text().splitlines()
    expected = load(run).activations(prompts, ["blocks.*.hook_resid_post"])
    last = np.stack([activation[:, -1].numpy() for activation in expected.values()])
    assert main([*words, "blocks.1.hook_resid_post"]) == 0
    np.testing.assert_allclose(np.load(out), last[1], rtol=1e-5, atol=1e-6)
    assert main([*words, "all"]) == 0
    assert "2 layers, 5 vectors of 16" in capsys.readouterr().out
    np.testing.assert_allclose(np.load(out), last, rtol=1e-5, atol=1e-6)
    sidecar = json.loads((run.parent / "layer.npy.json").read_text())
    assert sidecar["layers"] == ["blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]
    assert main([*words, "concat"]) == 0
    np.testing.assert_allclose(np.load(out), np.concatenate(list(last), axis=1), rtol=1e-5, atol=1e-6)
    assert main([*words, "blocks.*.attn.hook_z"]) == 0
    assert np.load(out).shape == (2, 5, 16)
    assert main([*words, "*"]) == 2
    assert "differ in width" in capsys.readouterr().err
    assert main([*words, "all", "--of", "suffix"]) == 2
    assert main([*words, "blocks.1"]) == 2
    assert ", blocks.*.hook_resid_pre, " in capsys.readouterr().err
