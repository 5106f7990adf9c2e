"""Random heads, and the traces that heads accept."""

from itertools import product

import numpy as np

from statewise.strips.model.heads import Candidates, Heads
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces

NAMES = ("a", "b", "c")


def random_heads(seed, count, actions=3, density=0.4):
    """Heads of which many hold few weights."""
    return Heads.of_theta((np.random.default_rng(seed).random((count, actions, 3)) < density).astype(float))


def joined(*heads):
    return Heads(*(np.concatenate([getattr(each, part) for each in heads]) for part in ("pre", "add", "delete")))


def language(heads: Heads, longest=5):
    model = heads.model(NAMES[: heads.pre.shape[1]])
    return {
        row
        for length in range(1, longest + 1)
        for row in product(range(heads.pre.shape[1]), repeat=length)
        if model.first_rejected(row) is None
    }


def true_and_junk(spec, num, junk, seed=1):
    """Traces of a domain, and its heads hidden among others; returns the true ones' places, too."""
    world = domain(spec)
    given_traces = traces(world, num, 20, seed)
    true = Heads.of_model(world.model)
    false = random_heads(seed, junk, len(world.model.actions), 0.25)
    order = np.random.default_rng(seed).permutation(len(true) + junk)
    heads = joined(true, false).only(order)
    return world, given_traces, heads, np.flatnonzero(order < len(true))


def grouped(heads: Heads, group):
    numbers = np.array(group)
    size = np.bincount(numbers, heads.size())
    return Candidates(heads, numbers, size, 9 * np.bincount(numbers))
