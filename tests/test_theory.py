"""Theorems 1, 3 and 4 of the Belief State Transformer paper, and theorem 3.2 and proposition A.2 of next-latent
prediction, on small cases."""

import contextlib
import io
import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from pages import example, run_code

from statewise import beliefs
from statewise.beliefs.reachable import distinct, levels

WORDS = {3: ["ACA", "BCB"], 4: ["DAA", "DBB", "SAB", "SBA"]}
MERGED = {3: {"A", "B"}, 4: {"D", "S"}}


def least_loss(words, questions, merged):
    """Bits: the least mean loss of a model that answers all `questions` (prefix, rest of the input, answer) while the
    prefixes in `merged` look alike to it: the entropy of the answers given what it can tell apart."""
    seen = {}
    for prefix, rest, answer in questions:
        seen.setdefault(("merged" if prefix in merged else prefix, rest), Counter())[answer] += 1
    total = 0.0
    for answers in seen.values():
        for count in answers.values():
            total -= count * math.log2(Fraction(count, sum(answers.values())))
    return total / len(questions)


def next_token(words):
    return [(word[:t], "next", word[t]) for word in words for t in range(1, 3)]


def multi_token(words):
    return [(word[:t], ahead, word[t + ahead]) for word in words for t in range(1, 3) for ahead in range(3 - t)]


def pairs(words):
    """Both questions about every gap word[i:j]."""
    gaps = [(word, i, j) for word in words for i in range(3) for j in range(i + 1, 4)]
    return [
        (word[:i], (side, word[j:]), word[i] if side == "next" else word[j - 1])
        for word, i, j in gaps
        for side in ("next", "previous")
    ]


def joint(words):
    """Joint multi-token prediction with one further token: each token given those before it in the joint."""
    return [
        (word[:t], word[t : t + more], word[t + more]) for word in words for t in range(1, 3) for more in range(3 - t)
    ]


@pytest.mark.parametrize(
    ("theorem", "questions", "may_merge"),
    [
        (3, next_token, True),
        (3, multi_token, False),
        (3, joint, False),
        (3, pairs, False),
        (4, next_token, True),
        (4, multi_token, True),
        (4, joint, False),
        (4, pairs, False),
    ],
)
def test_who_may_merge_the_two_prefixes_at_no_cost(theorem, questions, may_merge):
    asked = questions(WORDS[theorem])
    cost = least_loss(WORDS[theorem], asked, MERGED[theorem]) - least_loss(WORDS[theorem], asked, set())
    assert cost >= -1e-12
    assert (cost < 1e-12) == may_merge


def joints(process, states, k):
    """(n, V^k): the exact joint distribution of the next k tokens after each belief (n, S)."""
    if not k:
        return np.ones((len(states), process.vocabulary**k))
    shares, parts = process.probabilities(states), []
    for token in range(process.vocabulary):
        possible = np.flatnonzero(shares[:, token])
        rest = np.zeros((len(states), process.vocabulary ** (k - 1)))
        if len(possible):
            after = process.update(states[possible], np.full(len(possible), token))[0]
            rest[possible] = shares[possible, token, None] * joints(process, after, k - 1)
        parts.append(rest)
    return np.concatenate(parts, axis=1)


def merged_by(process, states, weights, k):
    """The class of each belief if those with the same joint distribution of the next k tokens are merged, and the mean
    divergence, in nats, of the next k + 3 tokens from what a state of the class can know of them."""
    classes = distinct(joints(process, states, k))[1]
    far = joints(process, states, k + 3)
    mixed = np.zeros((classes.max() + 1, far.shape[1]))
    np.add.at(mixed, classes, weights[:, None] * far)
    mixed = (mixed / np.bincount(classes, weights)[:, None])[classes]
    logs = np.log(np.divide(far, mixed, out=np.ones_like(far), where=far > 0))
    return classes, float(weights @ (far * logs).sum(1))


@pytest.mark.parametrize(
    ("name", "observable"), [("golden-mean", 1), ("mess3", 1), ("rrxor", 2), ("z1r", 2), ("checksum", 3)]
)
def test_the_joint_of_the_next_k_tokens_is_a_belief_state_where_the_process_is_k_observable(name, observable):
    """Proposition A.2: a model that recovers the joint has states that determine the whole future, from k on and not
    before."""
    process = beliefs.named(name)
    read = list(levels(process, 3, 200))
    states = np.concatenate([level.beliefs for level in read])
    weights = np.concatenate([level.weights for level in read]) / len(read)
    assert states.dtype == np.float64
    _, future = distinct(joints(process, states, process.states))  # more tokens than states tell no more of a state
    for k in range(observable + 2):
        classes, lost = merged_by(process, states, weights, k)
        pairs_of_classes = {*zip(classes.tolist(), future.tolist())}
        assert len({one for _, one in pairs_of_classes}) == future.max() + 1
        determined = len(pairs_of_classes) == classes.max() + 1
        assert determined == (k >= observable)
        assert (lost < 1e-12) == determined, "what the state cannot know of the next tokens"


@pytest.fixture(scope="module")
def guide():
    """The names that the example of small languages defines, after it ran."""
    models = {}
    definitions, loop, rest = example("small_languages").partition("\nfor theorem")
    names = run_code(definitions, "small_languages.py")
    train = names["trained"]

    def trained(name, words, **fields):
        """Each model is trained once, for as few steps as the bounds below allow."""
        fields = {"steps": 150, **fields}
        key = (name, *words, *fields.items())
        if key not in models:
            models[key] = train(name, words, **fields)
        return models[key]

    names["trained"] = trained
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        run_code(loop + rest, "small_languages.py", names)
    names["printed"] = printed.getvalue()
    return names


def test_belief_states_tell_the_future_by_themselves(guide):
    errors = [float(line.split()[-1]) for line in guide["printed"].splitlines()]
    assert len(errors) == 4
    assert max(errors) < 0.05, guide["printed"]


@pytest.mark.parametrize("theorem", [3, 4])
def test_an_untrained_model_does_not(guide, theorem):
    words = WORDS[theorem]
    assert guide["error"](guide["trained"]("belief_state", words, steps=0), words) > 0.4


@pytest.mark.parametrize("theorem", [3, 4])
def test_belief_states_of_the_two_prefixes_lie_apart(guide, theorem):
    words = WORDS[theorem]
    batch, _ = guide["batch_of"](words)
    states = guide["trained"]("belief_state", words).states(batch).state[:, 0]
    alike = [torch.dist(a, b) for (a, u), (b, v) in itertools.combinations(zip(states, words), 2) if u[0] == v[0]]
    apart = [torch.dist(a, b) for (a, u), (b, v) in itertools.combinations(zip(states, words), 2) if u[0] != v[0]]
    assert max(alike, default=torch.zeros(())) < 1e-5
    assert min(apart) > 1


def test_the_first_step_of_the_parity_star_is_the_parity(capsys):
    run_code(example("parity_star"), "parity_star.py")
    assert "all 16 graphs" in capsys.readouterr().out
