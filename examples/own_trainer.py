"""Next-latent prediction in the Trainer of transformers: one function more. Needs the extra `hf`."""

import tempfile

import torch
from statewise.hf import loss_for, with_loss
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


def main(steps: int = 200) -> float:
    """Trains a small Llama on a row that repeats with a period of five, saves it, loads it again with its loss, and
    returns the loss of the last steps."""
    torch.manual_seed(1)
    pattern = torch.tensor([3, 1, 4, 1, 5])
    rows = [{"input_ids": (ids := pattern.roll(shift).repeat(4)), "labels": ids} for shift in range(5)]
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=8, num_key_value_heads=2, **sizes))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=steps,
            learning_rate=3e-3,
            logging_steps=steps,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
        )
        trainer = Trainer(
            model, arguments, train_dataset=rows, compute_loss_func=loss_for(model, "next_latent", horizon=2)
        )
        found = trainer.train().training_loss
        model.save_pretrained(folder)
        assert with_loss(folder).statewise_loss.config.horizon == 2
    print(f"loss {found:.3f}")
    return found


if __name__ == "__main__":
    main()
