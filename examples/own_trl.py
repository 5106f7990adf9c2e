"""Next-latent prediction in the SFTTrainer of TRL. Needs the extra `hf`, and `pip install trl`. The lines that a loss
of statewise needs are marked."""

import tempfile

try:
    import torch
    from datasets import Dataset
    from statewise.hf import loss_for  # statewise
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}. This example needs: pip install trl") from None


def train(model: LlamaForCausalLM, rows: list[torch.Tensor], steps: int, rate: float, folder: str) -> list[float]:
    """Trains on rows of token ids, saves the model in `folder`, and returns the loss of each step."""
    compute = loss_for(model, "next_latent", horizon=2)  # statewise
    arguments = SFTConfig(
        folder,
        max_steps=steps,
        learning_rate=rate,
        lr_scheduler_type="constant",
        per_device_train_batch_size=4,
        train_sampling_strategy="sequential",
        logging_steps=1,
        max_grad_norm=0,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
    )
    words = {str(number): number for number in range(model.config.vocab_size)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="0")), pad_token="0", eos_token="0"
    )
    trainer = SFTTrainer(
        model,
        arguments,
        train_dataset=Dataset.from_list([{"input_ids": row.tolist()} for row in rows]),
        processing_class=tokenizer,
        compute_loss_func=compute,  # statewise
    )
    trainer.train()
    model.save_pretrained(folder)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def main(steps: int = 200) -> float:
    """Trains a small Llama on rows that repeat with a period of five, and returns the last step's loss."""
    torch.manual_seed(1)
    rows = [torch.tensor([3, 1, 4, 1, 5]).roll(shift).repeat(4) for shift in range(5)]
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=8, num_key_value_heads=2, **sizes))
    with tempfile.TemporaryDirectory() as folder:
        losses = train(model, rows, steps, 3e-3, folder)
    print(f"loss {losses[0]:.3f}, at last {losses[-1]:.3f}")
    return losses[-1]


if __name__ == "__main__":
    main()
