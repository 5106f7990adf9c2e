"""Two causal models of any kind trained as a Belief State Transformer: equal to the objective, and what is refused."""

import pytest
import torch
from doubles import VOCABULARY, pack, random_batch, spread_weights, tiny_objective
from torch import nn

from statewise.batch import Batch
from statewise.losses import BeliefStatePair, belief_state_loss
from statewise.losses.belief_state.loss import read_backwards


class Encoder(nn.Module):
    """One of our backbones as somebody's model: tokens, and positions of packed rows, to hidden states."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone

    def forward(self, tokens, position_ids=None):
        documents = None if position_ids is None else (position_ids == 0).cumsum(1)
        return self.backbone.encode(Batch.plain(tokens, documents)).state


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("config", [{}, {"head": "mlp", "min_gap": 1, "pairs": "all", "previous_weight": 0.5}], ids=str)
def test_a_pair_is_the_objective(config, packed):
    objective, batch = tiny_objective("belief_state", backbone={"layers": 1}, **config), random_batch(n=4, longest=7)
    batch = pack(batch) if packed else batch
    spread_weights(objective)
    first, second = Encoder(objective.prefix_encoder), Encoder(objective.suffix_encoder)
    ids = {"begin": objective.begin, "end": objective.end}
    pair = BeliefStatePair(first, second, width=16, vocabulary=VOCABULARY, **ids, **config)
    pair.head.load_state_dict(objective.head.state_dict())
    expected = objective(batch)
    given = {"documents": batch.document_ids, "scored": batch.scored}
    out = pair(batch.tokens, **given)
    torch.testing.assert_close(out.loss, expected.value())
    torch.testing.assert_close(out.parts, {name: part.mean() for name, part in expected.parts.items()})
    theirs = torch.autograd.grad(expected.value(), list(objective.prefix_encoder.parameters()))
    torch.testing.assert_close(torch.autograd.grad(out.loss, list(first.parameters())), theirs)

    states = objective.prefix_states(batch), objective.suffix_states(batch)
    empty = {
        "empty_prefix": pair._empty(first, objective.begin, None),
        "empty_suffix": pair._empty(second, objective.end, None),
    }
    same = belief_state_loss(*states, batch.tokens, text_head=pair.head, **empty, **given, **config)
    torch.testing.assert_close(same.loss, out.loss)
    # Two batches of a step, from the numbers of terms of both.
    terms = pair.terms(batch.tokens, **given)
    halves = [slice(0, 1), slice(1, None)]
    parts = [
        pair(batch.tokens[half], **{key: value[half] for key, value in given.items()}, num_items=terms)
        for half in halves
    ]
    torch.testing.assert_close(sum(part.loss for part in parts), out.loss)


@pytest.mark.usefixtures("float64")
def test_models_of_transformers_learn_from_packed_rows():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)
    models = [transformers.LlamaForCausalLM(config).double(), transformers.LlamaModel(config).double()]
    pair = BeliefStatePair(*models)
    tokens, positions = torch.randint(9, (1, 7)), torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
    pair(tokens, position_ids=positions).loss.backward()
    assert all(parameter.grad.any() for name, parameter in pair.named_parameters() if "lm_head" not in name)
    # The suffixes of a document in a packed row are those of the document by itself.
    packed = read_backwards(models[1], Batch.plain(tokens, torch.tensor([[1, 1, 1, 2, 2, 2, 2]])))
    for document in (slice(0, 3), slice(3, 7)):
        alone = models[1](tokens[:, document].flip(1)).last_hidden_state.flip(1)
        torch.testing.assert_close(packed[:, document], alone)


def test_what_does_not_fit_is_refused():
    def embed(tokens):
        return torch.zeros(*tokens.shape, 8)

    encoder = nn.Embedding(9, 8)
    with pytest.raises(ValueError, match="width and vocabulary must be given"):
        BeliefStatePair(encoder, encoder)
    with pytest.raises(ValueError, match=r"^share must be above 0"):
        BeliefStatePair(encoder, encoder, width=8, vocabulary=9, share=0)
    with pytest.raises(ValueError, match="backward must be true"):
        BeliefStatePair(encoder, encoder, width=8, vocabulary=9, backward=False)
    tokens = torch.zeros(1, 4, dtype=torch.long)
    pair = BeliefStatePair(encoder, nn.Sequential(encoder, nn.Flatten()), width=8, vocabulary=9)
    with pytest.raises(ValueError, match=r"must return hidden states .* and returned the shape \(1, 32\)"):
        pair(tokens)
    pair = BeliefStatePair(encoder, encoder, width=8, vocabulary=9)
    with pytest.raises(ValueError, match="padded on the right"):
        pair(tokens, documents=torch.tensor([[0, 0, 1, 1]]))
    states, empty = embed(tokens), {"empty_prefix": torch.zeros(8), "empty_suffix": torch.zeros(8)}
    with pytest.raises(ValueError, match="suffix has the shape"):
        belief_state_loss(states, states[:, 1:], tokens, text_head=pair.head, **empty)
    with pytest.raises(ValueError, match="empty_suffix has the shape"):
        belief_state_loss(
            states, states, tokens, text_head=pair.head, empty_prefix=torch.zeros(8), empty_suffix=torch.zeros(1, 8)
        )
