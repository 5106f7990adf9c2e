"""Next-latent prediction in a loop of accelerate. Needs the extra `hf`; from statewise only PyTorch. The lines that a
loss of statewise needs are marked."""

try:
    import torch
    from accelerate import Accelerator
    from statewise.losses import NextLatentLoss  # statewise
    from torch.utils.data import DataLoader
    from transformers import LlamaConfig, LlamaForCausalLM
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}. This example needs: pip install accelerate transformers") from None


def train(model: LlamaForCausalLM, rows: list[torch.Tensor], steps: int, rate: float) -> list[float]:
    """Trains on rows of token ids, and returns the loss of each step."""
    accelerator = Accelerator(cpu=True)
    latent = NextLatentLoss(model.config.hidden_size, horizon=2)  # statewise
    weights = [*model.parameters(), *latent.parameters()]  # statewise
    optimizer = torch.optim.AdamW(weights, rate, weight_decay=0)
    loader = DataLoader(torch.stack(rows), batch_size=4)
    model, latent, optimizer, loader = accelerator.prepare(model, latent, optimizer, loader)  # statewise
    plain, losses = accelerator.unwrap_model(model), []
    while True:
        for tokens in loader:
            if len(losses) == steps:
                return losses
            hidden = model(tokens, output_hidden_states=True).hidden_states[-1]  # statewise
            head, embedding = plain.lm_head.weight, plain.get_input_embeddings()  # statewise
            out = latent(hidden, tokens, head_weight=head, embedding=embedding)  # statewise
            accelerator.backward(out.loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(out.loss.item())


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
