"""A loss attached to a model of transformers, in the Trainer of transformers and saved with the model."""

import pytest
import torch
import transformers

from statewise.hf import loss_for, with_loss
from statewise.losses import NextLatentLoss

SIZES = {"vocab_size": 17, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}


def model_of(**fields):
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, num_key_value_heads=2, **fields))


def rows(number: int) -> list[dict]:
    generator = torch.Generator().manual_seed(1)
    return [{"input_ids": (ids := torch.randint(17, (12,), generator=generator)), "labels": ids} for _ in range(number)]


def test_a_trainer_trains_as_a_plain_loop(tmp_path):
    options = {"horizon": 2, "latent_weight": 0.5}
    data, rate = rows(8), 0.05
    model = model_of()
    torch.manual_seed(2)
    compute = loss_for(model, "next_latent", **options)
    start = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=2,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=rate,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=0.0,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        train_sampling_strategy="sequential",
    )
    transformers.Trainer(model, arguments, train_dataset=data, compute_loss_func=compute).train()

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
    with pytest.raises(ValueError, match="unexpected keyword"):
        loss_for(model_of(), "next_token", horizon=1)
    torch.manual_seed(0)
    config = transformers.Gemma2Config(**SIZES, num_key_value_heads=2, head_dim=8, final_logit_softcapping=0.01)
    capped = transformers.Gemma2ForCausalLM(config)
    compute = loss_for(capped, "next_latent")
    tokens = torch.randint(17, (1, 8))
    with pytest.raises(ValueError, match="not a linear map"):
        compute(capped(input_ids=tokens), tokens)
