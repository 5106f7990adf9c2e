"""Theorems 1, 3 and 4 of the Belief State Transformer paper and 3.2 of next-latent prediction, on their small cases."""

import contextlib
import io
import itertools
import math
from collections import Counter
from fractions import Fraction

import pytest
import torch
from pages import example, run_code

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


@pytest.mark.parametrize(
    ("theorem", "questions", "may_merge"),
    [
        (3, next_token, True),
        (3, multi_token, False),
        (3, pairs, False),
        (4, next_token, True),
        (4, multi_token, True),
        (4, pairs, False),
    ],
)
def test_who_may_merge_the_two_prefixes_at_no_cost(theorem, questions, may_merge):
    asked = questions(WORDS[theorem])
    cost = least_loss(WORDS[theorem], asked, MERGED[theorem]) - least_loss(WORDS[theorem], asked, set())
    assert cost >= -1e-12
    assert (cost < 1e-12) == may_merge


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
