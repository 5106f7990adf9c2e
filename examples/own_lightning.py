"""Next-latent prediction in a LightningModule. Needs `pip install lightning transformers`; from statewise only PyTorch.
The lines that a loss of statewise needs are marked."""

try:
    import lightning
    import torch
    from statewise.losses import NextLatentLoss  # statewise
    from torch import nn
    from torch.utils.data import DataLoader
    from transformers import LlamaConfig, LlamaForCausalLM
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}. This example needs: pip install lightning transformers") from None


class Learner(lightning.LightningModule):
    def __init__(self, model: nn.Module, rate: float) -> None:
        super().__init__()
        self.model, self.rate = model, rate
        self.latent = NextLatentLoss(model.config.hidden_size, horizon=2)  # statewise
        self.losses: list[float] = []

    def training_step(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.model.model(tokens).last_hidden_state
        head, embedding = self.model.lm_head.weight, self.model.get_input_embeddings()  # statewise
        out = self.latent(hidden, tokens, head_weight=head, embedding=embedding)  # statewise
        self.losses.append(out.loss.item())
        return out.loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), self.rate, weight_decay=0)


def train(model: LlamaForCausalLM, rows: list[torch.Tensor], steps: int, rate: float) -> list[float]:
    """Trains on rows of token ids, and returns the loss of each step."""
    learner = Learner(model, rate)
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(learner, DataLoader(torch.stack(rows), batch_size=4))
    return learner.losses


def main(steps: int = 200) -> float:
    """Trains a small Llama on rows that repeat with a period of five, and returns the last step's loss."""
    torch.manual_seed(1)
    rows = [torch.tensor([3, 1, 4, 1, 5]).roll(shift).repeat(4) for shift in range(5)]
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    losses = train(LlamaForCausalLM(LlamaConfig(vocab_size=8, num_key_value_heads=2, **sizes)), rows, steps, 3e-3)
    print(f"loss {losses[0]:.3f}, at last {losses[-1]:.3f}")
    return losses[-1]


if __name__ == "__main__":
    main()
