"""Next-latent prediction in a plain PyTorch loop: a GRU on bits, each third of which is the parity of two. The
lines that a loss of statewise needs are marked."""

import torch
from statewise.losses import NextLatentLoss  # statewise
from torch import nn


class Model(nn.Module):
    """Any model that turns tokens (B, T) into hidden states (B, T, D) and has a head without bias."""

    def __init__(self, vocabulary: int = 2, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.body = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.body(self.embed(tokens))[0]


def draw(rows: int = 64, thirds: int = 6) -> torch.Tensor:
    """(rows, 3 thirds): two random bits, then their parity, and again."""
    bits = torch.randint(2, (rows, thirds, 2))
    return torch.cat((bits, bits.sum(-1, keepdim=True) % 2), -1).flatten(1)


def main(steps: int = 400) -> dict[str, float]:
    """Trains, and returns the parts of the last step's loss. The next token costs at least 2/3 ln 2 = .46 nats."""
    torch.manual_seed(1)
    model = Model()
    latent = NextLatentLoss(width=32, horizon=2)  # statewise
    optimizer = torch.optim.AdamW([*model.parameters(), *latent.parameters()], lr=3e-3)  # statewise
    for step in range(1, steps + 1):
        tokens = draw()
        out = latent(model(tokens), tokens, head_weight=model.head.weight, embedding=model.embed)  # statewise
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
        if step % 100 == 0 or step == steps:
            print(f"step {step}: " + "  ".join(f"{name} {value:.3f}" for name, value in out.parts.items()))
    return {name: float(value) for name, value in out.parts.items()}


if __name__ == "__main__":
    main()
