import itertools

import pytest
import torch
from doubles import CONTEXT, VOCABULARY, spread_weights, tiny_gpt

from statewise.backbones.nn.attention import rotary_angles, split_heads
from statewise.backbones.nn.block import BlockConfig
from statewise.data_types import Batch

CHOICES = [
    (*choice, "softmax")
    for choice in itertools.product(["rms", "layer"], ["rope", "learned"], ["swiglu", "gelu", "relu"], [False, True])
]
CHOICES += [("rms", "none", "swiglu", False, "softmax")]
CHOICES += [("rms", positions, "swiglu", False, "stick_breaking") for positions in ("rope", "learned", "none")]


@pytest.mark.parametrize(("norm", "positions", "mlp", "bias", "attention"), CHOICES)
def test_every_choice_is_causal_and_cacheable(norm, positions, mlp, bias, attention):
    model = tiny_gpt(norm=norm, positions=positions, mlp=mlp, bias=bias, tied=bias, attention=attention).eval()
    spread_weights(model)
    tokens = torch.randint(0, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = model.encode(Batch.plain(tokens)).state
        cache = model.make_cache(len(tokens))
        pieces = [model.extend(piece, cache).state for piece in tokens.split([4, 1, 3, 1], dim=1)]
        changed = tokens.clone()
        changed[:, 6] = (changed[:, 6] + 1) % VOCABULARY
        other = model.encode(Batch.plain(changed)).state
    torch.testing.assert_close(torch.cat(pieces, 1), whole)
    torch.testing.assert_close(other[:, :6], whole[:, :6])
    assert not torch.allclose(other[:, 6:], whole[:, 6:])
    assert any("bias" in name for name, _ in model.named_parameters()) == bias


def test_rotation_keeps_lengths_and_depends_on_distance_alone():
    query, key = torch.randn(2, 1, 1, 8, dtype=torch.float64)

    def product(query_position, key_position):
        turned = [
            split_heads(vector, 1, 1, turned=1, rotation=rotary_angles(torch.tensor([place]), 8))[0]
            for vector, place in ((query, query_position), (key, key_position))
        ]
        torch.testing.assert_close(turned[0].norm(), query.norm(), rtol=1e-5, atol=1e-5)
        return (turned[0] * turned[1]).sum()

    torch.testing.assert_close(product(5, 2), product(13, 10), rtol=1e-5, atol=1e-5)
    assert not torch.isclose(product(5, 2), product(5, 3))


def test_a_model_compiles_to_one_graph():
    """What is written by hand for CPUs would break it."""
    model = tiny_gpt()
    tokens = torch.randint(0, VOCABULARY, (2, 6), generator=torch.Generator().manual_seed(0))
    whole = torch.compile(lambda tokens: model.encode(Batch.plain(tokens)).state, backend="eager", fullgraph=True)
    states, compiled = (read(tokens) for read in (lambda tokens: model.encode(Batch.plain(tokens)).state, whole))
    torch.testing.assert_close(states, compiled)
    weights = torch.randn_like(states)
    gradients = [
        torch.autograd.grad((found * weights).sum(), model.embedding.matrix)[0] for found in (states, compiled)
    ]
    torch.testing.assert_close(*gradients)


def test_dropout_acts_in_training_alone():
    model = tiny_gpt(dropout=0.5)
    tokens = torch.zeros(1, 5, dtype=torch.int64)
    assert not torch.equal(model.encode(Batch.plain(tokens)).state, model.encode(Batch.plain(tokens)).state)
    model.eval()
    assert torch.equal(model.encode(Batch.plain(tokens)).state, model.encode(Batch.plain(tokens)).state)


def test_impossible_shapes_are_refused():
    with pytest.raises(ValueError, match="cannot be divided among 3 heads"):
        BlockConfig(width=16, heads=3)
    with pytest.raises(ValueError, match="even head width"):
        BlockConfig(width=15, heads=3)
    with pytest.raises(ValueError, match=f"context of {CONTEXT}"):
        tiny_gpt().encode(Batch.plain(torch.zeros(1, CONTEXT + 1, dtype=torch.int64)))


def test_expansion_counts_parameters():
    counts = {e: sum(p.numel() for p in tiny_gpt(mlp="gelu", expansion=e, layers=1).parameters()) for e in (1.0, 2.0)}
    assert counts[2.0] - counts[1.0] == 2 * 16 * 16
