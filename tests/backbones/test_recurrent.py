"""GRU and LSTM: documents apart, a state of constant size, dynamics that next-latent prediction can learn exactly."""

import pytest
import torch
from doubles import VOCABULARY, spread_weights, tiny_objective, tiny_recurrent
from torch import nn

from statewise.backbones.base import plain_batch
from statewise.nn.cache import SLACK

CELLS = pytest.mark.parametrize("cell", ["gru", "lstm"])


@CELLS
@pytest.mark.usefixtures("float64")
def test_it_is_torchs_own_stacked_network(cell):
    made = tiny_recurrent(cell=cell, layers=3)
    kind = nn.GRU if cell == "gru" else nn.LSTM
    whole = kind(16, 16, num_layers=3, batch_first=True)
    for layer, block in enumerate(made.blocks):
        for name, weight in block.cell.named_parameters():
            getattr(whole, name.replace("l0", f"l{layer}")).data.copy_(weight)
    tokens = torch.randint(0, VOCABULARY, (3, 11))
    hidden = made.encode(plain_batch(tokens))
    expected, last = whole(made.embed(tokens))
    torch.testing.assert_close(hidden.readout, expected)
    states = last if cell == "gru" else last[0]  # (L, B, D)
    torch.testing.assert_close(hidden.state[:, -1], states.flip(0).transpose(0, 1).flatten(1))


@CELLS
@pytest.mark.usefixtures("float64")
def test_documents_of_a_row_begin_with_an_empty_state_and_so_do_their_gradients(cell):
    made = tiny_recurrent(cell=cell)
    tokens = torch.randint(0, VOCABULARY, (2, 10))
    documents = torch.tensor([[1] * 4 + [2] * 5 + [0], [3] + [4] * 9])
    weights = torch.randn(10, 16)
    packed = (made.encode(plain_batch(tokens, documents)).readout * weights * (documents > 0)[..., None]).sum()
    found = torch.autograd.grad(packed, list(made.parameters()), allow_unused=True)
    parts = [(0, 0, 4), (0, 4, 9), (1, 0, 1), (1, 1, 10)]
    apart = sum(
        (made.encode(plain_batch(tokens[row : row + 1, first:end])).readout[0] * weights[first:end]).sum()
        for row, first, end in parts
    )
    torch.testing.assert_close(packed, apart)
    expected = torch.autograd.grad(apart, list(made.parameters()), allow_unused=True)
    for mine, slow in zip(found, expected):
        assert (mine is None) == (slow is None)
        if mine is not None:
            torch.testing.assert_close(mine, slow)


@CELLS
def test_the_cache_stays_as_small_as_its_slack_however_much_is_read(cell):
    made = tiny_recurrent(cell=cell, context=5000).eval()
    spread_weights(made)
    with torch.no_grad():
        cache = made.make_cache(2)
        tokens = torch.randint(0, VOCABULARY, (2, 1500))
        made.extend(tokens[:, :1000], cache)
        size = cache.bytes
        for place in range(1000, 1100):
            found = made.extend(tokens[:, place : place + 1], cache).readout
        assert cache.bytes == size
        assert size <= 4 * 2 * (1 + 2 * SLACK) * 2 * 2 * 16  # bytes, rows, positions, layers, h and c, width
        torch.testing.assert_close(found, made.encode(plain_batch(tokens[:, :1100])).readout[:, -1:])
        with pytest.raises(ValueError, match="cannot go back 60 positions"):
            cache.rewind(60)


def test_float32_states_under_autocast():
    made = tiny_recurrent().eval()
    with torch.autocast("cpu", torch.bfloat16):
        hidden = made.encode(plain_batch(torch.randint(0, VOCABULARY, (2, 6))))
    assert hidden.state.dtype == torch.float32


def test_next_latent_learns_dynamics_that_can_be_exact():
    """The state of a GRU after a token is a function of the state before and that token, so the loss can go to 0."""
    torch.manual_seed(0)
    objective = tiny_objective("next_latent", make_backbone=tiny_recurrent, backbone={"layers": 1}, dynamics_factor=4.0)
    for parameter in objective.backbone.parameters():
        parameter.requires_grad_(False)  # what moves is the dynamics alone
    optimizer = torch.optim.Adam(objective.dynamics.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)

    def latent_loss():
        batch = plain_batch(torch.randint(0, VOCABULARY, (32, 12), generator=generator))
        scored = batch.real.clone()
        scored[:, 0] = False
        return objective(batch._replace(scored=scored, span=(1, 12))).parts["latent"].mean()

    before = float(latent_loss().detach())
    for _ in range(400):
        optimizer.zero_grad()
        loss = latent_loss()
        loss.backward()
        optimizer.step()
    assert float(latent_loss().detach()) < before / 100
