"""Train on a small language, then read the futures out of the state after its first token."""

import itertools

import numpy as np
import torch
from statewise.backbones.gpt import GPT, GPTConfig
from statewise.data_types import Examples
from statewise.objectives import OBJECTIVES
from statewise.tasks.batches import collate

LANGUAGES = {"theorem 3": ["ACA", "BCB"], "theorem 4": ["DAA", "DBB", "SAB", "SBA"]}


def batch_of(words):
    """The words of a language, each once: a batch that is the distribution itself."""
    letters = sorted(set("".join(words)))
    tokens = np.array([[letters.index(letter) for letter in word] for word in words])
    return collate(Examples(tokens, np.full(len(words), 3), np.zeros(len(words), np.int64))), letters


def trained(name, words, steps=400, **fields):
    """A model of the language."""
    torch.manual_seed(0)
    batch, letters = batch_of(words)
    config = GPTConfig(width=32, heads=2, layers=1)

    def make_backbone(*, extra_tokens=0, embedding_of=None, **_):
        return GPT(config, vocabulary=len(letters) + extra_tokens, context=3, embedding_of=embedding_of)

    objective = OBJECTIVES[name](OBJECTIVES[name].Config(**fields), make_backbone)
    optimizer = torch.optim.Adam(objective.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        objective(batch).value().backward()
        optimizer.step()
    return objective.eval().predictor()


def error(predictor, words):
    """The largest total variation, over first letters, between the futures in the state and the true ones."""
    batch, letters = batch_of(words)
    states = predictor.states(batch).state
    futures = torch.tensor(list(itertools.product(range(len(letters)), repeat=2)))
    worst = 0.0
    for row, word in enumerate(words):
        given = predictor.future(states[row, 0].expand(len(futures), -1), futures).exp()
        after = [other[1:] for other in words if other[0] == word[0]]
        true = torch.tensor([after.count("".join(letters[t] for t in future)) / len(after) for future in futures])
        worst = max(worst, float((given - true).abs().sum() / 2))
    return worst


for theorem, words in LANGUAGES.items():
    for name, fields in {"belief_state": {}, "next_latent": {"horizon": 2}}.items():
        wrong = error(trained(name, words, **fields), words)
        print(f"{theorem}: {name:12} computes the future from the state with an error of {wrong:.3f}")
