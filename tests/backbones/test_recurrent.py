"""GRU and LSTM: documents apart, a state of constant size, dynamics that next-latent prediction can learn exactly."""

import numpy as np
import pytest
import torch
from doubles import VOCABULARY, spread_weights, tiny_objective, tiny_recurrent
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from statewise.backbones.nn.cache import SLACK
from statewise.data_types import Batch

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
    hidden = made.encode(Batch.plain(tokens))
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
    packed = (made.encode(Batch.plain(tokens, documents)).readout * weights * (documents > 0)[..., None]).sum()
    found = torch.autograd.grad(packed, list(made.parameters()), allow_unused=True)
    parts = [(0, 0, 4), (0, 4, 9), (1, 0, 1), (1, 1, 10)]
    apart = sum(
        (made.encode(Batch.plain(tokens[row : row + 1, first:end])).readout[0] * weights[first:end]).sum()
        for row, first, end in parts
    )
    torch.testing.assert_close(packed, apart)
    expected = torch.autograd.grad(apart, list(made.parameters()), allow_unused=True)
    for mine, slow in zip(found, expected):
        assert (mine is None) == (slow is None)
        if mine is not None:
            torch.testing.assert_close(mine, slow)


@pytest.fixture
def cell_inputs():
    """The number of tokens that each call of a GRU or LSTM reads."""
    read = []

    def note(module, given):
        if isinstance(module, nn.RNNBase):
            x = given[0]
            read.append(len(x.data) if isinstance(x, PackedSequence) else x.shape[:2].numel())

    handle = nn.modules.module.register_module_forward_pre_hook(note)
    yield read
    handle.remove()


@CELLS
@pytest.mark.usefixtures("float64")
def test_a_long_document_beside_many_short_ones_costs_what_whole_rows_do(cell, cell_inputs):
    """Padded to the longest document, these rows would be of 2 * 13 * 12 tokens."""
    made = tiny_recurrent(cell=cell)
    tokens = torch.randint(0, VOCABULARY, (2, 24))
    documents = torch.stack([torch.tensor([1] * 12 + list(range(2, 14))), torch.tensor([*range(1, 13), *[13] * 12])])
    readout = made.encode(Batch.plain(tokens, documents)).readout
    assert cell_inputs == [2 * 24] * 2
    for row in range(2):
        for number in range(1, 14):
            own = documents[row] == number
            alone = made.encode(Batch.plain(tokens[row, own][None])).readout[0]
            torch.testing.assert_close(readout[row, own], alone)


@CELLS
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.usefixtures("float64")
def test_long_prompts_of_different_length_are_read_at_once_and_taken_back(cell, held, cell_inputs):
    made = tiny_recurrent(cell=cell, context=200).eval()
    spread_weights(made)
    tokens, counts = torch.randint(0, VOCABULARY, (4, 160)), np.array([160, 90, 130, 70])
    with torch.no_grad():
        cache = made.make_cache(4)
        if held:
            cache.hold()
        hidden = made.extend(tokens, cache, counts)
        assert len(cell_inputs) <= 2 * 2  # layers, the part that all rows read and the rest
        back = np.array([SLACK, 0, 1, SLACK]) if not held else np.array([160, 3, 100, 69])
        cache.rewind(back)
        left = counts - back
        again = made.extend(tokens[:, :2], cache)
        for row in range(4):
            expected = made.encode(Batch.plain(tokens[row, : counts[row]][None]))
            torch.testing.assert_close(hidden.readout[row, : counts[row]], expected.readout[0])
            torch.testing.assert_close(hidden.state[row, : counts[row]], expected.state[0])
            whole = torch.cat([tokens[row, : left[row]], tokens[row, :2]])[None]
            torch.testing.assert_close(again.readout[row], made.encode(Batch.plain(whole)).readout[0, -2:])
        if not held:
            with pytest.raises(ValueError, match="cannot go back"):
                cache.rewind(SLACK + 3)


@CELLS
def test_a_pass_in_which_no_row_reads_changes_nothing(cell):
    made = tiny_recurrent(cell=cell).eval()
    with torch.no_grad():
        cache, tokens = made.make_cache(2), torch.randint(0, VOCABULARY, (2, 5))
        made.extend(tokens[:, :4], cache)
        made.extend(tokens, cache, np.zeros(2, np.int64))
        assert cache.lengths.tolist() == [4, 4]
        last = made.extend(tokens[:, 4:], cache).readout
    torch.testing.assert_close(last, made.encode(Batch.plain(tokens)).readout[:, -1:])


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
        torch.testing.assert_close(found, made.encode(Batch.plain(tokens[:, :1100])).readout[:, -1:])
        with pytest.raises(ValueError, match="cannot go back 60 positions"):
            cache.rewind(60)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_single_token_is_read_as_torchs_own_network_reads_it_and_so_are_its_gradients(cell, float64):
    layer = tiny_recurrent(cell=cell).blocks[0]
    x = torch.randn(3, 1, layer.cell.input_size, requires_grad=True)
    state = tuple(torch.randn(3, layer.cell.hidden_size, requires_grad=True) for _ in range(layer.parts))
    given = tuple(part[None] for part in state)
    wanted, after = layer.cell(x, given if cell == "lstm" else given[0])
    last = [part[0] for part in (after if cell == "lstm" else (after,))]
    hidden, states = layer.extend(x, state, None, 0)
    torch.testing.assert_close(hidden, wanted)
    torch.testing.assert_close(states[:, 0], torch.cat(last, dim=-1))
    inputs = [x, *state, *layer.cell.parameters()]
    weight = torch.randn_like(states[:, 0])
    found = torch.autograd.grad((states[:, 0] * weight).sum() + hidden.sum(), inputs)
    expected = torch.autograd.grad((torch.cat(last, dim=-1) * weight).sum() + wanted.sum(), inputs)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_float32_states_under_autocast():
    made = tiny_recurrent().eval()
    with torch.autocast("cpu", torch.bfloat16):
        hidden = made.encode(Batch.plain(torch.randint(0, VOCABULARY, (2, 6))))
    assert hidden.state.dtype == torch.float32


def test_next_latent_learns_dynamics_that_can_be_exact():
    """The state of a GRU after a token is a function of the state before and that token, so the loss can go to 0."""
    torch.manual_seed(0)
    objective = tiny_objective("next_latent", make_backbone=tiny_recurrent, backbone={"layers": 1}, dynamics_factor=4.0)
    for parameter in objective.backbone.parameters():
        parameter.requires_grad_(False)  # what moves is the dynamics alone
    optimizer = torch.optim.Adam(objective.dynamics.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(0)

    def latent_loss():
        batch = Batch.plain(torch.randint(0, VOCABULARY, (32, 12), generator=generator))
        scored = batch.real.clone()
        scored[:, 0] = False
        return objective(batch._replace(scored=scored, span=(1, 12))).parts["latent"].mean()

    before = float(latent_loss().detach())
    for _ in range(150):
        optimizer.zero_grad()
        loss = latent_loss()
        loss.backward()
        optimizer.step()
    assert float(latent_loss().detach()) < before / 100
