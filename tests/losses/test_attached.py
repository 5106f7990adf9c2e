"""A loss attached to a model of transformers, in the Trainer of transformers and saved with the model."""

import os
import sys
import tempfile
from pathlib import Path

import pytest
import torch
import transformers
from processes import run_as_two
from safetensors.torch import load_file, save_file

from statewise.hf import loss_for, with_loss
from statewise.losses import NextLatentLoss
from statewise.losses.attached import attach_kept

SIZES = {"vocab_size": 17, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}


def model_of(**fields):
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, num_key_value_heads=2, **fields))


def rows(number: int) -> list[dict]:
    generator = torch.Generator().manual_seed(1)
    return [{"input_ids": (ids := torch.randint(17, (12,), generator=generator)), "labels": ids} for _ in range(number)]


OPTIONS, RATE = {"horizon": 2, "latent_weight": 0.5}, 0.05


def start_model():
    """A model with its loss, and the function that computes it."""
    model = model_of()
    torch.manual_seed(2)
    return model, loss_for(model, "next_latent", **OPTIONS)


def train(processes=1):
    """The Trainer's model after two steps of four rows, accumulated over two batches."""
    model, compute = start_model()
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            max_steps=2,
            per_device_train_batch_size=2 // processes,
            gradient_accumulation_steps=2,
            learning_rate=RATE,
            lr_scheduler_type="constant",
            optim="sgd",
            max_grad_norm=0.0,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            train_sampling_strategy="sequential",
        )
        transformers.Trainer(model, arguments, train_dataset=rows(8), compute_loss_func=compute).train()
    return model


def test_a_trainer_trains_as_a_plain_loop():
    data, options, rate = rows(8), OPTIONS, RATE
    start = {key: tensor.clone() for key, tensor in start_model()[0].state_dict().items()}
    model = train()

    plain = model_of()
    loss = plain.statewise_loss = NextLatentLoss(16, **options)
    plain.load_state_dict(start)
    for first in (0, 4):
        tokens = torch.stack([row["input_ids"] for row in data[first : first + 4]])
        hidden = plain.model(tokens).last_hidden_state
        embedding = plain.get_input_embeddings()
        loss(hidden, tokens, head_weight=plain.lm_head.weight, embedding=embedding).loss.backward()
        with torch.no_grad():
            for parameter in plain.parameters():
                parameter -= rate * parameter.grad
                parameter.grad = None
    changed = False
    for key, tensor in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[key], tensor, rtol=1e-4, atol=1e-6, msg=key)
        changed |= not torch.equal(tensor, start[key])
    assert changed


def test_a_saved_model_gets_its_loss_back(tmp_path):
    model = model_of()
    loss_for(model, "next_latent", horizon=3)
    model.save_pretrained(tmp_path)
    again = with_loss(tmp_path)
    assert again.statewise_loss.config.horizon == 3
    for key, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], tensor)
    model_of().save_pretrained(tmp_path / "plain")
    with pytest.raises(ValueError, match="saved without a loss"):
        with_loss(tmp_path / "plain")
    assert all(parameter.requires_grad for parameter in again.statewise_loss.parameters())
    for change, message in [
        ({"name": "nope"}, "there is no loss 'nope'"),
        ({"horizon": "3"}, "horizon must be a whole number"),
        ({"dynamics_factor": 1e12}, "weights of its loss do not fit"),  # which no memory would hold
        ({"<b>": 1}, "unexpected keyword argument '<b>'"),
    ]:
        again.config.statewise_loss = {**model.config.statewise_loss, **change}
        again.config.save_pretrained(tmp_path)
        with pytest.raises(ValueError, match=message):
            with_loss(tmp_path)
    model.config.save_pretrained(tmp_path)
    for index in ("{", "[]", "{}", '{"weight_map": [1]}', '{"weight_map": {"a": 1}}', '{"weight_map": {"a": "../b"}}'):
        (tmp_path / "model.safetensors.index.json").write_text(index)
        with pytest.raises(ValueError, match=r"index\.json"):
            attach_kept(model, tmp_path)


def test_of_weights_only_those_that_nobody_uses_or_has_are_warned_of(tmp_path, recwarn, capfd):
    model = model_of()
    loss_for(model, "next_latent")
    model.save_pretrained(tmp_path)
    with_loss(tmp_path)
    assert not recwarn
    assert "statewise_loss" not in capfd.readouterr().err
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.own.weight"] = weights.pop("model.norm.weight")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with_loss(tmp_path)
    missing, unused = (str(each.message) for each in recwarn)
    assert missing.endswith("are missing and random now: 1, such as model.norm.weight")
    assert unused.endswith("are not used: 1, such as model.own.weight")


def test_packed_rows_and_padding_are_read_from_what_the_model_reads():
    model = model_of()
    compute = loss_for(model, "next_latent")
    tokens = torch.randint(17, (2, 10))
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5]] * 2)
    value = compute(model(input_ids=tokens, position_ids=positions), tokens)
    hidden = model.model(tokens, position_ids=positions).last_hidden_state
    shared = {"head_weight": model.lm_head.weight, "embedding": model.get_input_embeddings()}
    torch.testing.assert_close(value, model.statewise_loss(hidden, tokens, position_ids=positions, **shared).loss)
    mask = torch.ones_like(tokens)
    mask[0, 6:] = 0
    labels = torch.where(mask.bool(), tokens, -100)
    value = compute(model(input_ids=tokens, attention_mask=mask), labels)
    hidden = model.model(tokens, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(value, model.statewise_loss(hidden, tokens, documents=mask, **shared).loss)


def test_models_that_no_loss_fits_are_refused():
    with pytest.raises(ValueError, match="there is no loss 'next'"):
        loss_for(model_of(), "next")
    with pytest.raises(ValueError, match="horizon must be"):
        loss_for(model_of(), "next_latent", horizon=0)
    with pytest.raises(ValueError, match="the loss next_token has no setting horizon"):
        loss_for(model_of(), "next_token", horizon=1)
    with pytest.raises(ValueError, match="label_smoothing must be"):
        loss_for(model_of(), "next_token", label_smoothing=2.0)
    with pytest.raises(ValueError, match="must be a causal language model"):
        loss_for("gpt2", "next_token")
    torch.manual_seed(0)
    config = transformers.Gemma2Config(**SIZES, num_key_value_heads=2, head_dim=8)
    with pytest.raises(ValueError, match="caps its logits"):
        loss_for(transformers.Gemma2ForCausalLM(config), "next_latent")
    for scale in (4.0, 1.02):
        config = transformers.GraniteConfig(**SIZES, num_key_value_heads=2, logits_scaling=scale)
        scaled = transformers.GraniteForCausalLM(config)
        compute = loss_for(scaled, "next_latent")
        tokens = torch.randint(17, (1, 8))
        with pytest.raises(ValueError, match="may be scaled"):
            compute(scaled(input_ids=tokens), tokens)


def test_the_loss_takes_label_smoothing_and_labels_that_the_model_was_given():
    model = model_of()
    compute = loss_for(model, "next_token", label_smoothing=0.2)
    tokens = torch.randint(17, (2, 10))
    labels = torch.where(torch.rand(2, 10) < 0.6, tokens, -100)
    outputs = model(input_ids=tokens, labels=labels)
    wanted = torch.nn.functional.cross_entropy(
        outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), label_smoothing=0.2
    )
    torch.testing.assert_close(compute(outputs, None), wanted)
    with pytest.raises(ValueError, match="needs input_ids and the last hidden states"):
        compute(outputs, labels)  # a second time without a pass


def test_logits_that_nothing_reads_are_not_computed():
    model, tokens = model_of(), torch.randint(17, (2, 10))
    compute = loss_for(model, "next_latent", logits=False)
    outputs = model(input_ids=tokens)
    assert outputs.logits.shape == (2, 1, 17)
    found = compute(outputs, tokens)
    model.eval()
    assert model(input_ids=tokens).logits.shape == (2, 10, 17)
    torch.testing.assert_close(found, compute(model(input_ids=tokens), tokens))


def test_the_loss_is_in_the_precision_of_the_pass():
    model, tokens = model_of(), torch.randint(17, (2, 10))
    compute = loss_for(model, "next_latent")
    exact = compute(model(input_ids=tokens), tokens)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(input_ids=tokens)
        inside = compute(outputs, tokens)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(input_ids=tokens)
    found = compute(outputs, tokens)  # as a trainer calls it, which leaves autocast to the model
    assert torch.equal(found, inside)
    assert found.dtype == torch.float32
    assert 0 < abs(found - exact) < 0.02


def test_adapters_of_peft_train_the_loss_with_them_or_say_how():
    peft = pytest.importorskip("peft")
    tokens = torch.randint(17, (2, 10))
    for kept in (None, ["statewise_loss"]):
        model = model_of()
        compute = loss_for(model, "next_latent")
        config = peft.LoraConfig(target_modules=["q_proj"], modules_to_save=kept)
        wrapped = peft.get_peft_model(model, config)
        outputs = wrapped(input_ids=tokens)
        if kept is None:
            with pytest.raises(ValueError, match=r'frozen.*modules_to_save=\["statewise_loss"\]'):
                compute(outputs, tokens)
            with pytest.raises(ValueError, match="before PEFT wraps the model"):
                loss_for(wrapped, "next_latent")
            continue
        compute(outputs, tokens).backward()
        learned = {name for name, parameter in wrapped.named_parameters() if parameter.grad is not None}
        assert any("lora_B" in name for name in learned)
        assert any("statewise_loss.modules_to_save" in name for name in learned)
        assert not any("original_module" in name or "lm_head" in name for name in learned)


@pytest.mark.slow
def test_two_processes_of_a_trainer_train_as_one(tmp_path):
    """The Trainer's DDP looks for parameters that no output depends on."""
    run_as_two(__file__, tmp_path / "weights.pt")
    found = torch.load(tmp_path / "weights.pt", weights_only=True)
    for key, tensor in train().state_dict().items():
        torch.testing.assert_close(found[key], tensor, rtol=1e-4, atol=1e-6, msg=key)


if __name__ == "__main__":
    torch.set_num_threads(1)
    trained = train(processes=2)
    if os.environ["RANK"] == "0":
        torch.save(trained.state_dict(), Path(sys.argv[1]))
    torch.distributed.destroy_process_group()
