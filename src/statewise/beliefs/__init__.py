"""Processes whose beliefs are known exactly, for any model and any training loop. Needs NumPy alone, never torch.
Of the package it imports `config`, for its messages.

from statewise import beliefs
mess3 = beliefs.named("mess3(x=0.15, a=0.6)")       # also products, mixtures, `tiger`, a file
tokens = mess3.draw(np.random.default_rng(1), 1000, 16)
posteriors, probabilities = mess3.posteriors(tokens)     # (n, T + 1, S) exact beliefs, (n, T)
beliefs.floors(mess3, 16), beliefs.entropy_rate(mess3)   # nats that no model can save

Shape letters: `n` sequences or beliefs, `T` tokens of a sequence, `S` states, `V` tokens of the vocabulary, `C`
coordinates of a belief. All numbers are float64.
"""

from statewise.beliefs.entropy import EntropyRate, entropy_rate, floors
from statewise.beliefs.named import from_matrices, known_beliefs, named
from statewise.beliefs.pomdp import Acted, Pomdp, pomdp
from statewise.beliefs.pomdp_files import read_pomdp
from statewise.beliefs.process import Factor, Process, alternatives, factor, mixture
from statewise.beliefs.reachable import Finite, Level, TooMany, finite, levels

__all__ = [
    "Acted",
    "EntropyRate",
    "Factor",
    "Finite",
    "Level",
    "Pomdp",
    "Process",
    "TooMany",
    "alternatives",
    "entropy_rate",
    "factor",
    "finite",
    "floors",
    "from_matrices",
    "known_beliefs",
    "levels",
    "mixture",
    "named",
    "pomdp",
    "read_pomdp",
]
