"""The losses in what training loops use: accumulated gradients, bf16, compilation, and two processes, replicated (DDP)
or sharded (FSDP2). Run as a script, this file is those processes."""

import sys
from pathlib import Path

import pytest
import torch
from processes import run_as_two
from torch import distributed, nn

from statewise import losses

WIDTH, VOCABULARY, RATE, STEPS = 16, 11, 0.1, 3
KINDS = {
    "next_token": lambda: losses.NextTokenLoss(),
    "next_latent": lambda: losses.NextLatentLoss(WIDTH, 2),
    "joint_multi_token": lambda: losses.JointMultiTokenLoss(WIDTH, 2),
    "multi_token": lambda: losses.MultiTokenLoss(lambda: nn.Linear(WIDTH, WIDTH), 2),
    "token_order": lambda: losses.TokenOrderLoss(WIDTH, VOCABULARY, 4),
    "future_summary": lambda: losses.FutureSummaryLoss(WIDTH, VOCABULARY, 4),
    "semantic_tube": lambda: losses.SemanticTubeLoss(0.3),
}


class Model(nn.Module):
    """A recurrent model that computes its loss in its forward pass, as wrappers of modules ask."""

    def __init__(self, name):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.body = nn.Embedding(VOCABULARY, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.loss = KINDS[name]()
        for parameter in self.loss.parameters():  # away from zero
            nn.init.uniform_(parameter, -0.3, 0.3)

    def forward(self, tokens, **where):
        hidden = self.body(self.embed(tokens))[0]
        return self.loss(hidden, tokens, head_weight=self.head.weight, embedding=self.embed, **where).loss


def rows(seed):
    """Tokens (4, 9) and documents, which are of other lengths in each row, with padding."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCABULARY, (4, 9), generator=generator)
    documents = 1 + (torch.rand(4, 9, generator=generator) < 0.2).cumsum(1)
    documents[3, 6:] = 0
    return tokens, documents


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", KINDS)
def test_accumulated_gradients_are_those_of_the_whole_batch(name):
    """Also where rows have other numbers of terms: by those of all batches."""
    model, (tokens, documents) = Model(name), rows(1)
    whole = model(tokens, documents=documents)
    wanted = torch.autograd.grad(whole, list(model.parameters()), allow_unused=True)
    halves = [slice(0, 1), slice(1, 4)]
    terms = [model.loss.terms(tokens[half], documents=documents[half]) for half in halves]
    summed = {part: sum(each[part] for each in terms) for part in terms[0]}
    parts = [model(tokens[half], documents=documents[half], num_items=summed) for half in halves]
    torch.testing.assert_close(sum(parts), whole)
    torch.testing.assert_close(torch.autograd.grad(sum(parts), list(model.parameters()), allow_unused=True), wanted)
    with pytest.raises(ValueError, match="number of terms of each part; next_token is missing"):
        model(tokens, num_items={name: term for name, term in summed.items() if name != "next_token"})


@pytest.mark.parametrize("name", KINDS)
def test_under_autocast_the_loss_is_nearly_the_same_and_in_float32(name):
    model, (tokens, documents) = Model(name), rows(1)
    exact = model(tokens, documents=documents)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(tokens, documents=documents)
    assert found.dtype == torch.float32
    assert abs(found - exact) < 0.02 * exact
    found.backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("name", ["token_order", pytest.param("next_latent", marks=pytest.mark.slow), "semantic_tube"])
def test_compiled_it_is_the_same(name):
    model, (tokens, documents) = Model(name), rows(1)
    wanted = torch.autograd.grad(expected := model(tokens, documents=documents), list(model.parameters()))
    compiled = torch.compile(model, backend="aot_eager")
    found = compiled(tokens, documents=documents)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, list(model.parameters())), wanted)


def train(name, wrap, rank, world):
    """Trains for some steps on the rows of one of `world` processes, as trainers do it that average gradients; returns
    the whole parameters."""
    model = Model(name)
    wrapped = wrap(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), RATE)
    for step in range(STEPS):
        tokens, documents = rows(step)
        terms = model.loss.terms(tokens, documents=documents)
        own = slice(rank * 4 // world, (rank + 1) * 4 // world)
        loss = wrapped(tokens[own], documents=documents[own], num_items=terms) * world
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    whole = {
        key: getattr(tensor, "full_tensor", lambda tensor=tensor: tensor)()
        for key, tensor in model.state_dict().items()
    }
    return {key: tensor.detach().clone() for key, tensor in whole.items()}


def replicated(model):
    return nn.parallel.DistributedDataParallel(model)


def sharded(model):
    from torch.distributed.fsdp import fully_shard

    fully_shard(model.loss)
    return fully_shard(model)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["replicated", "sharded"])
def test_two_processes_train_as_one(way, tmp_path):
    run_as_two(__file__, way, tmp_path / "weights.pt")
    found = torch.load(tmp_path / "weights.pt", weights_only=True)
    assert set(found) == set(KINDS)
    for name, weights in found.items():
        alone = train(name, lambda model: model, 0, 1)
        for key, tensor in alone.items():
            torch.testing.assert_close(weights[key], tensor, rtol=1e-4, atol=1e-6, msg=f"{name} {key}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, wrap = distributed.get_rank(), {"replicated": replicated, "sharded": sharded}[sys.argv[1]]
    every = {name: train(name, wrap, rank, 2) for name in KINDS}
    if rank == 0:
        torch.save(every, Path(sys.argv[2]))
    distributed.destroy_process_group()
