"""Hidden Markov processes: beliefs, floors and finite sets, against brute force over hidden paths."""

import itertools
import json
import math
import random
import zipfile
from fractions import Fraction

import numpy as np
import pytest

from statewise.analysis.world_models.prefix_pairs import Compression, CompressionConfig
from statewise.beliefs import sources
from statewise.beliefs.process import Process, factor
from statewise.beliefs.reachable import distinct, finite, levels
from statewise.beliefs.sources import process
from statewise.cli import main
from statewise.data_types import Examples
from statewise.evaluation.evaluate import teacher_forced
from statewise.tasks import TASKS
from statewise.tasks.batches import Stream, collate

Hmm = TASKS["hmm"]


def task(text="mess3", **fields):
    return Hmm(Hmm.Config(process=text, **fields))


def sequences(words):
    words = np.array(words)
    return Examples(words, np.full(len(words), words.shape[1]), np.zeros(len(words), np.int64))


# The slow twin: everything from sums over hidden paths of plain matrices


def plain(text, noise=0.0):
    """The process as one matrix per token: Kronecker products, and noise from its definition."""
    made = process(text)
    matrices = []
    for token in range(made.vocabulary):
        digits = np.unravel_index(token, made.radix)
        whole = np.ones((1, 1))
        for place, each in enumerate(made.factors):
            whole = np.kron(whole, each.matrices[digits[place - 1] if each.variants > 1 else 0, digits[place]])
        matrices.append(whole)
    start, right = np.ones(1), np.ones(1)
    for each in made.factors:
        start, right = np.kron(start, each.start), np.kron(right, each.right)
    heard = (1 - noise) * np.eye(len(matrices)) + noise / len(matrices)
    return np.einsum("oz,zst->ost", heard, np.array(matrices)), start, right


def path_probabilities(T, start, word):
    """{last state: probability} of a word, a sum over all paths of hidden states."""
    S = T.shape[1]
    found = np.zeros(S)
    for path in itertools.product(range(S), repeat=len(word) + 1):
        weight = start[path[0]]
        for before, token, after in zip(path, word, path[1:]):
            weight *= T[token, before, after]
        found[path[-1]] += weight
    return found


SMALL = [
    ("mess3", {}),
    ("rrxor(0.3, 0.6)", {}),
    ("z1r", {"noise": 0.2}),
    ("checksum(1, 3)", {}),
    ("golden-mean * even", {}),
    ("golden-mean * (even | even(0.2))", {"noise": 0.1}),
    ("sns * golden-mean(0.3)", {"noise": 0.3}),
    ("sns(0.3, 0.6) + even", {}),
    ("0.9 even + 0.1 golden-mean(0.3)", {"noise": 0.1}),
]


@pytest.mark.parametrize(("text", "fields"), SMALL, ids=str)
@pytest.mark.parametrize("bos", [False, True])
def test_beliefs_probabilities_and_floors_are_sums_over_hidden_paths(text, fields, bos):
    made = task(text, length=4, bos=bos, **fields)
    T, start, right = plain(text, **fields)
    V = len(T)
    words = np.array(list(itertools.product(range(V), repeat=3)))
    rows = np.concatenate([np.full((len(words), 1), V), words], axis=1) if bos else words
    found, ahead = made.beliefs(sequences(rows)), made.next_tokens(sequences(rows))
    entropy = np.zeros(4)
    seen = set()
    for row, word in enumerate(words):
        for t in range(1 - bos, 4):
            joint = path_probabilities(T, start, word[:t])
            total = joint @ right
            column = t - 1 + bos
            if total < 1e-12:
                assert np.isnan(found[row, column]).all()
                assert np.isnan(ahead[row, column, :V]).all()
                continue
            belief = (joint / total).reshape(made.process.joint)
            axes = range(belief.ndim)
            marginals = np.concatenate([belief.sum(tuple(a for a in axes if a != kept)) for kept in axes])
            np.testing.assert_allclose(found[row, column], marginals, atol=1e-12)
            given = [path_probabilities(T, joint / total, [token]).sum() for token in range(V)]
            np.testing.assert_allclose(ahead[row, column, :V], given, atol=1e-12)
            if (tuple(word[:t])) not in seen:
                seen.add(tuple(word[:t]))
                entropy[t] -= total * sum(p * math.log(p) for p in given if p > 0)
    entropy[0] = -sum(p * math.log(p) for p in (start @ T @ right) if p > 0)
    np.testing.assert_allclose(made.floors(), [*([0.0] * bos), *entropy], atol=1e-10)


def test_the_parts_of_a_mixture_have_the_probabilities_that_were_given():
    parts = {"even": 0.2, "golden-mean(0.3)": 0.5, "sns": 0.3}
    whole = plain(" + ".join(f"{share} {text}" for text, share in parts.items()))
    equal = plain(" + ".join(parts))
    for word in itertools.product(range(2), repeat=4):
        found = {text: path_probabilities(*plain(text)[:2], word).sum() for text in parts}
        weighted = sum(share * found[text] for text, share in parts.items())
        assert path_probabilities(*whole[:2], word).sum() == pytest.approx(weighted, abs=1e-14)
        assert path_probabilities(*equal[:2], word).sum() == pytest.approx(sum(found.values()) / 3, abs=1e-14)
    assert process("1 even").start.tolist() == process("even").start.tolist()


def test_generalised_processes_follow_their_matrices():
    for text in ("bloch-walk(1, 3)", "post-quantum", "fanizza"):
        made, (T, start, right) = process(text), plain(text)
        np.testing.assert_allclose(start @ T.sum(0), start, atol=1e-9)
        np.testing.assert_allclose(T.sum(0) @ right, right, atol=1e-9)
        rng = np.random.default_rng(0)
        for word in made.draw(rng, 20, 6):
            belief, raw = made.start[None], start
            for token in word:
                belief, _ = made.update(belief, np.array([token]))
                raw = raw @ T[token]
                np.testing.assert_allclose(belief[0], raw / (raw @ right), rtol=1e-7, atol=1e-9)


# The figures of the fact sheet


@pytest.mark.parametrize(
    ("text", "word", "expected"),
    [
        (
            "mess3",
            [0, 0, 1, 2],
            [
                [0.85, 0.075, 0.075],
                [0.974673, 0.012664, 0.012664],
                [0.539637, 0.423036, 0.037327],
                [0.275785, 0.222053, 0.502162],
            ],
        ),
        (
            "rrxor",
            [0, 1, 1, 0, 0],
            [
                [1 / 3, 1 / 3, 0, 1 / 6, 1 / 6],
                [1 / 3, 0, 1 / 3, 1 / 3, 0],
                [0.5, 0, 0.25, 0, 0.25],
                [0.4, 0.4, 0, 0.2, 0],
                [0, 0.5, 0, 0, 0.5],
            ],
        ),
        ("bloch-walk(1, 3)", [0, 2, 1], [[0, 0.6], [0.6, -0.48], [-0.372671, -0.838509]]),
    ],
)
def test_beliefs_after_the_sheets_words(text, word, expected):
    found = task(text, length=len(word)).beliefs(sequences([word]))[0]
    np.testing.assert_allclose(found, expected, atol=5e-7)


def test_matrices_and_stationary_distributions_are_the_published_ones():
    (mess3,) = process("mess3").factors
    expected = [[0.765, 0.00375, 0.00375], [0.0425, 0.0675, 0.00375], [0.0425, 0.00375, 0.0675]]
    np.testing.assert_allclose(mess3.matrices[0, 0], expected)
    for text, x in (("mess3", 0.05), ("mess3(0.15, 0.6)", 0.15)):
        values = np.linalg.eigvals(plain(text)[0].sum(0))
        np.testing.assert_allclose(np.sort(values.real), [1 - 3 * x, 1 - 3 * x, 1])
        np.testing.assert_allclose(process(text).start, np.full(3, 1 / 3), atol=1e-12)
    phases = np.linalg.eigvals(plain("rrxor")[0].sum(0))  # of length 1: the process has a period of three tokens
    thirds = np.exp(2j * math.pi / 3 * np.arange(3))
    np.testing.assert_allclose(np.sort_complex(phases[abs(phases) > 0.5]), np.sort_complex(thirds), atol=1e-12)
    np.testing.assert_allclose(process("rrxor").start, np.array([2, 1, 1, 1, 1]) / 6, atol=1e-12)
    np.testing.assert_allclose(process("z1r").start, np.full(3, 1 / 3), atol=1e-12)
    np.testing.assert_allclose(process("even").start, [2 / 3, 1 / 3], atol=1e-12)
    np.testing.assert_allclose(process("golden-mean").start, [2 / 3, 1 / 3], atol=1e-12)
    np.testing.assert_allclose(process("golden-mean(0.25)").start, [1 / 1.25, 0.25 / 1.25], atol=1e-12)
    assert process("checksum(2, 2)").states == 5
    rrxor, checksum = (list(levels(process(text), 8, 1000)) for text in ("rrxor", "checksum(2, 2)"))
    np.testing.assert_allclose([one.entropy for one in rrxor], [one.entropy for one in checksum])
    leaky = plain("leaky-rrxor(0.2)")[0]
    np.testing.assert_allclose(leaky, 0.8 * plain("rrxor")[0] + 0.02)


FLOORS = {
    "mess3(0.05, 0.85)": [1.09861, 0.85772, 0.81336, 0.79812, 0.79474, 0.79378, 0.79354, 0.79348, 0.79346, 0.79346],
    "mess3(0.15, 0.6)": [1.09861, 1.09107, 1.08939, 1.08900, 1.08891, 1.08889],
    "rrxor": [0.69315, 0.69315, 0.63651, 0.62849, 0.59868, 0.57762, 0.56146, 0.53985, 0.52694, 0.51582, 0.50334],
    "z1r": [0.69315, 0.63651, 0.46210, 0.23105, 0.23105, 0.23105],
    "golden-mean": [0.63651, 0.46210, 0.46210],
    "even": [0.63651, 0.60594, 0.54931, 0.53402, 0.50570, 0.49806, 0.48390, 0.48008, 0.47300],
    "sns": [0.56234, 0.47739, 0.47137, 0.47025, 0.46997, 0.46990],
    "bloch-walk(1, 3)": [1.38629, 1.35316, 1.33412, 1.32136, 1.31282, 1.30682, 1.30262, 1.29961],
}


@pytest.mark.parametrize("text", FLOORS)
def test_floors_of_the_sheet(text):
    found = [level.entropy for level in levels(process(text), len(FLOORS[text]) - 1, 10**5)]
    np.testing.assert_allclose(found, FLOORS[text], atol=6e-6)


@pytest.mark.parametrize(
    ("text", "from_the_second"),
    [
        ("bloch-walk(1, 4.3)", [1.37676, 1.36961, 1.36397]),
        (f"bloch-walk(1, {51**0.5})", [1.38487, 1.38360, 1.38245]),
        ("post-quantum", [0.71209, 0.70680, 0.70244, 0.70087, 0.69996]),
        ("fanizza", [0.67641, 0.67591, 0.65861, 0.64857, 0.64746]),
    ],
)
def test_floors_published_for_generalised_processes(text, from_the_second):
    found = [level.entropy for level in levels(process(text), len(from_the_second), 10**4)][1:]
    np.testing.assert_allclose(found, from_the_second, atol=6e-6)


def test_floors_go_on_as_estimates_where_there_are_too_many_beliefs(monkeypatch):
    exact = task("mess3", length=9).floors()
    monkeypatch.setattr("statewise.beliefs.entropy.DISTINCT", 100)
    made = task("mess3", length=9)
    np.testing.assert_allclose(made.floors()[:5], exact[:5])
    assert (made.floors()[5:] != exact[5:]).all()
    np.testing.assert_allclose(made.floors(), exact, atol=0.02)
    assert made.summary()[0].startswith("mess3: 3 hidden states")
    assert "estimated" in made.summary()[0]


def test_the_matrices_of_the_bloch_walk_follow_from_an_angle():
    """Another parametrisation: an axis is contracted by cos(theta), what is seen of it has strength sin(theta), with
    theta = 2 arctan(alpha / beta) and, for beta above alpha, the contraction negative."""
    (factor,) = process("bloch-walk(1, 3)").factors
    theta = 2 * math.atan(1 / 3)
    strength, contraction = math.sin(theta), -math.cos(theta)
    assert (strength, contraction) == (pytest.approx(0.6), pytest.approx(-0.8))
    for token, sign in enumerate((1, -1)):  # tokens 0 and 1 read the z axis, and contract x
        expected = np.array([[1, 0, sign * strength], [0, contraction, 0], [sign * strength, 0, 1]]) / 4
        np.testing.assert_allclose(factor.matrices[0, token], expected, atol=1e-12)


def test_entropy_rates():
    for text, rate in (("mess3", 0.79346), ("mess3(0.15, 0.6)", 1.08889)):
        *_, last = levels(process(text), 10, 10**5)
        assert last.entropy == pytest.approx(rate, abs=6e-6)
    flat = [level.entropy for level in levels(process("mess3(0.15, 0.6)"), 10, 10**5)]
    assert round(flat[0] - flat[-1], 4) == 0.0097, "all that there is to know about the next token"
    for text, rate in (("rrxor", 2 / 3), ("z1r", 1 / 3), ("golden-mean", 2 / 3), ("even", 2 / 3)):
        *_, last = levels(process(text), 300, 1000)
        assert last.entropy == pytest.approx(rate * math.log(2), abs=1e-6)
    rrxor = [round(level.entropy, 5) for level in levels(process("rrxor"), 60, 1000)]
    assert (rrxor[20], rrxor[30], rrxor[60]) == (0.46657, 0.46255, 0.46210)
    *_, last = levels(process("sns"), 40, 1000)
    assert round(last.entropy, 5) == 0.46986


def test_rrxor_has_more_beliefs_than_predictions():
    """Why it is the test of belief states: 36 beliefs, and 11 next-token distributions, counted by exact fractions.
    (Descriptions of it say 14.)"""
    (factor,) = process("rrxor").factors
    matrices = [
        [[Fraction(x).limit_denominator(10) for x in row] for row in one] for one in factor.matrices[0].tolist()
    ]
    start = tuple(Fraction(x).limit_denominator(10) for x in factor.start.tolist())
    ahead, left = {}, [start]
    while left:
        belief = left.pop()
        if belief in ahead:
            continue
        joint = [[sum(b * row[state] for b, row in zip(belief, one)) for state in range(5)] for one in matrices]
        ahead[belief] = tuple(map(sum, joint))
        left += [tuple(x / total for x in each) for each, total in zip(joint, ahead[belief]) if total]
    assert len(ahead) == 36
    assert len(set(ahead.values())) == 11
    world = task("rrxor", length=10)
    prefixes = world.prefixes(59049, 1)
    found = world.beliefs(prefixes.examples)[prefixes.rows, prefixes.columns]
    assert len(np.unique(found.round(5), axis=0)) == 35, "all but that before the first token"


@pytest.mark.parametrize(
    ("text", "bos", "floor"),
    [
        ("mess3", False, 0.80352),
        ("mess3(0.15, 0.6)", False, 1.08920),
        ("rrxor", False, 0.58650),
        ("mess3", True, 0.83303),
        ("mess3(0.15, 0.6)", True, 1.09014),
        ("rrxor", True, 0.59717),
    ],
)
def test_floor_of_a_row_of_ten(text, bos, floor):
    made = task(text, bos=bos, held_out_sequences=10)
    nats = np.zeros((10, 10 + bos))
    scored = np.ones(nats.shape, bool)
    scored[:, 0] = False
    assert made.score_nats(made.held_out(), nats, scored)["floor"] == pytest.approx(floor, abs=6e-6)


@pytest.mark.parametrize("text", ["mess3", "rrxor", "bloch-walk", "even * z1r"])
@pytest.mark.parametrize("bos", [False, True])
def test_constrained_beliefs_add_what_each_token_says_alone(text, bos):
    world = task(text, length=5, bos=bos, noise=0.1 if "*" in text else 0.0)
    process, examples = world.process, world.held_out(3)
    total = sum(process.step(np.eye(process.states), np.full(process.states, z)) for z in range(process.vocabulary))
    found = world.constrained_beliefs(examples)
    for row, tokens in enumerate(examples.tokens[:, int(bos) :]):
        for count in range(1 - int(bos), 6):
            belief = process.start @ np.linalg.matrix_power(total, count)
            for place, token in enumerate(tokens[:count]):
                unread = process.start @ np.linalg.matrix_power(total, place)
                (alone,), _ = process.update(unread[None], np.array([token]))
                belief = belief + (alone - unread @ total) @ np.linalg.matrix_power(total, count - place - 1)
            expected = process.marginals(belief[None])[0]
            np.testing.assert_allclose(found[row, count - 1 + int(bos)], expected, atol=1e-12)


def test_the_published_factored_process_has_few_dimensions_of_factors_and_many_of_all():
    five = "mess3 * mess3 * mess3 * bloch-walk * bloch-walk"
    made, with_bos = (task(five, length=3, bos=bos, held_out_sequences=5) for bos in (False, True))
    assert (len(made.vocab), len(with_bos.vocab)) == (432, 433)
    assert sum(made.dimensions) == 10
    assert made.joint_states - 1 == 242


@pytest.mark.parametrize(
    ("text", "by_depth"),
    [
        ("rrxor", [1, 3, 7, 15, 27, 34, 36, 36, 36]),
        ("mess3", [1, 4, 13, 40, 121, 364, 1093, 3280, 9841]),
        ("bloch-walk(1, 3)", [1, 5, 17, 53, 161, 485, 1457]),
        ("bloch-walk(1, 1)", [1, 5, 5, 5]),
        ("sns", [1, 3, 4, 5, 6, 7]),
        ("golden-mean", [1, 3, 3]),
        ("even", [1, 3, 4, 4]),
        ("z1r", [1, 3, 7, 7]),
    ],
)
def test_numbers_of_distinct_beliefs(text, by_depth):
    beliefs = np.empty((0, process(text).states))
    for level, count in zip(levels(process(text), len(by_depth) - 1, 10**5), by_depth):
        beliefs = np.concatenate([beliefs, level.beliefs])
        beliefs = beliefs[distinct(beliefs)[0]]
        assert len(beliefs) == count


def test_finite_sets_have_the_transitions_of_the_beliefs():
    for text, count in (("rrxor", 36), ("z1r", 7), ("even", 4), ("golden-mean", 3)):
        made = process(text)
        found = finite(made, 100)
        assert len(found.beliefs) == count
        np.testing.assert_allclose(found.beliefs[0], made.start)
        for number, token in itertools.product(range(count), range(2)):
            after, given = made.update(found.beliefs[[number]], np.array([token]))
            assert (found.after[number, token] < 0) == (given[0] == 0)
            if given[0]:
                np.testing.assert_allclose(found.beliefs[found.after[number, token]], after[0], atol=1e-8)
    assert finite(process("mess3"), 1000) is None


def test_all_words_of_mess3_of_length_ten_are_listed():
    made = task("mess3")
    found = made.prefixes(3**10, seed=1)
    assert found.exact
    assert len(found.examples) == 59_049
    assert len(found.rows) == sum(3**t for t in range(1, 11))


# Drawing


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        *SMALL,
        ("bloch-walk(1, 3)", {}),
        ("post-quantum", {}),
        ("golden-mean * (bloch-walk | bloch-walk(1, 2))", {"noise": 0.1}),
    ],
    ids=str,
)
def test_words_are_drawn_with_their_probabilities(text, fields):
    T, start, right = plain(text, **fields)
    n, length = 40_000, 3
    words = Process(process(text).factors, **fields).draw(np.random.default_rng(1), n, length)
    counts = np.zeros([len(T)] * length)
    np.add.at(counts, tuple(words.T), 1)
    for word in itertools.product(range(len(T)), repeat=length):
        raw = start
        for token in word:
            raw = raw @ T[token]
        p = max(float(raw @ right), 0.0)
        assert abs(counts[word] - n * p) <= 5 * math.sqrt(n * p * (1 - p)) + 1e-6


def test_prefixes_have_the_weights_of_their_probabilities():
    made, (T, start, _) = task("golden-mean(0.3)", length=4), plain("golden-mean(0.3)")
    for bos in (False, True):
        found = task("golden-mean(0.3)", length=4, bos=bos).prefixes(100, seed=1)
        weights = {}
        for row, column, weight in zip(found.rows, found.columns, found.weights):
            weights[tuple(found.examples.tokens[row, bos : column + 1].tolist())] = weight
        assert len(weights) == len(found.rows)
        expected = {}
        for t in range(1 - bos, 5):
            for word in itertools.product(range(2), repeat=t):
                p = path_probabilities(T, start, word).sum()
                if p > 0:
                    expected[word] = p / (4 + bos)
        assert weights == pytest.approx(expected)
    rare = task("golden-mean", noise=0.001, length=8, bos=True)
    found = rare.prefixes(10_000, seed=1)
    T, start, _ = plain("golden-mean", noise=0.001)
    whole = found.columns == 8
    for row, weight in zip(found.rows[whole], found.weights[whole]):  # down to 1e-13, of 1 in all
        word = found.examples.tokens[row, 1:].tolist()
        assert weight * 9 == pytest.approx(path_probabilities(T, start, word).sum(), rel=1e-9)
    drawn = task("mess3", length=40).prefixes(50, seed=1)
    assert not drawn.exact
    assert drawn.weights.sum() == pytest.approx(1)
    assert len({tuple(drawn.examples.tokens[r, : c + 1]) for r, c in zip(drawn.rows, drawn.columns)}) == len(drawn.rows)
    short = made.prefixes(6, seed=1)  # of five words of three tokens; eight of four are too many
    assert short.exact
    assert short.examples.tokens.shape[1] == 3


# Evaluation


class Bayes:
    """A model that is the exact prediction, mixed with a share of the uniform one."""

    def __init__(self, made, share):
        self.task, self.share = made, share

    def logits(self, batch):
        import torch

        given = self.task.next_tokens(sequences(batch.tokens.numpy()))
        return torch.from_numpy(np.log((1 - self.share) * given + self.share / given.shape[-1] + 1e-30))


def test_excess_is_the_divergence_from_the_exact_prediction():
    for bos in (False, True):
        made = task("rrxor", length=6, bos=bos, held_out_sequences=3000)
        examples = made.held_out()
        _, chosen, nats = teacher_forced(Bayes(made, 0.0), examples, block=1000)
        found = made.score_nats(examples, nats, chosen >= 0)
        assert found["excess"] == pytest.approx(0, abs=1e-6)
        metrics, chosen, nats = teacher_forced(Bayes(made, 0.3), examples, block=1000)
        found = made.score_nats(examples, nats, chosen >= 0)
        T, start, _ = plain("rrxor")
        V = len(made.vocab)
        for t in range(1 - bos, 6):
            divergence = 0.0
            for word in itertools.product(range(2), repeat=t):
                joint = path_probabilities(T, start, word)
                if joint.sum() > 0:
                    given = (joint / joint.sum()) @ T.sum(2).T
                    mixed = 0.7 * given + 0.3 / V
                    divergence += joint.sum() * sum(p * math.log(p / q) for p, q in zip(given, mixed) if p > 0)
            assert found[f"position_{t + 1}_excess"] == pytest.approx(divergence, abs=0.02)
        assert metrics["loss"] - found["excess"] == pytest.approx(made.baselines(examples)["exact belief"]["loss"])
        assert collate(examples).span == (1, 6 + bos)


def test_as_an_automaton_it_is_its_own_beliefs():
    for bos in (False, True):
        made = task("rrxor", length=7, bos=bos)
        rng = np.random.default_rng(0)
        rows = np.concatenate([made.sample(rng, 40).tokens, rng.integers(0, 2, (40, 7 + bos))])
        labels = made.labels(sequences(rows))
        states = made.states_after(rows[:, :0])
        beliefs = made.beliefs(sequences(rows))
        for place in range(rows.shape[1]):
            for row in range(len(rows)):
                legal = set(np.flatnonzero(made.allowed(states[[row]])[0]).tolist())
                if states[row, 0] >= 0:
                    assert legal == set(made.legal(rows[row, :place]).tolist())
            states = made.step(states, rows[:, place])
            np.testing.assert_array_equal(states, made.states_after(rows[:, : place + 1]))
            np.testing.assert_array_equal(states[:, 0], labels[:, place])
            there = states[:, 0] >= 0
            known = made._finite.beliefs[states[there, 0]]
            np.testing.assert_allclose(known, beliefs[there, place], atol=1e-8)
            np.testing.assert_array_equal(there, ~np.isnan(beliefs[:, place, 0]))
        assert (made.tokens_left(states)[states[:, 0] >= 0] == 0).all()
        for same in (True, False):
            pairs = made.draw_pairs(np.random.default_rng(1), 200, same_state=same)
            assert len(pairs) == 200
            for row in range(200):
                one, other = pairs.first.answer(row), pairs.second.answer(row)
                assert len(one) == len(other) < made.context
                assert one.tolist() != other.tolist()
                ends = [made.states_after(side[None])[0].tolist() for side in (one, other)]
                assert (ends[0] == ends[1]) == same
                assert min(ends[0]) >= 0


# Bad input


def test_prompts_that_are_impossible_are_refused():
    world = task("golden-mean", length=6)
    np.testing.assert_array_equal(world.encode("1 0 1"), [1, 0, 1])
    with pytest.raises(ValueError, match="token 2, '1', has probability 0 after 1"):
        world.encode("1 1 0")


def say(tmp_path, *words, capsys):
    code = main(["train", "hmm-rrxor", *words, "--trainer.device=cpu", "--out", str(tmp_path / "run")])
    said = capsys.readouterr().err.strip()
    assert code == 2, said
    assert not (tmp_path / "run").exists()
    return said.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rrxr", "unknown process 'rrxr'"),
        ("rrxor(2)", "rrxor: p1 must be between 0 and 1, not 2"),
        ("rrxor(p3=1)", "rrxor: unknown parameter 'p3'"),
        ("rrxor(0.1, 0.2, 0.3)", "rrxor has 2 parameters, p1, p2, not 3"),
        ("rrxor(0.1, p2=0.2)", "all by name, or all in order"),
        ("rrxor(p1=0.1, p1=0.2)", "p1 twice"),
        ("rrxor *", "character 8 must be the name of a process, but it ends there"),
        ("rrxor) + z1r", "character 6 must be `*`, `+` or the end"),
        ("rrxor * (mess3 | z1r)", "its alternatives differ in tokens or states"),
        ("rrxor * (mess3 | mess3 | mess3)", "factor 2 has 3 alternatives, but the factor before it has 2 tokens"),
        ("rrxor * (mess3 | z1r * even)", "must be `|` or `)`"),
        ("(mess3 | mess3)", "factor 1 has 2 alternatives, but there is no factor before it"),
        ("rrxor + z1r * even", "a mixture (+) combines single processes"),
        ("0.5 rrxor + z1r", "give a probability for each part of a mixture, or for none"),
        ("0.5 rrxor + 0.6 z1r", "must be above 0 and sum to 1, not 0.5, 0.6"),
        ("1 rrxor + 0 z1r", "must be above 0 and sum to 1, not 1, 0"),
        ("-1 rrxor + 2 z1r", "must be above 0 and sum to 1, not -1, 2"),
        ("1e999 rrxor + 1 z1r", "must be above 0 and sum to 1, not inf, 1"),
        ("0.5 rrxor", "must be above 0 and sum to 1, not 0.5"),
        ("0.5 * rrxor + 0.5 * z1r", "character 5 must be the name of a process, not"),
        ("golden-mean(0)", "golden-mean: state 1 is never reached from the start: choose other parameters"),
        ("mess3(0, 1)", "so there is no single stationary distribution: choose other parameters"),
        ("mess3 * mess3(1)", "mess3: x must be between 0 and 0.5"),
        ("checksum(0, 2)", "checksum: n must be a whole number of at least 1"),
        ("checksum(1.5, 2)", "checksum: n must be a whole number of at least 1"),
        ("checksum(64, 64)", "checksum: 1 + n m = 4,097 states"),
        ("checksum(8, 8) * checksum(8, 8)", "4,225 states and 64 tokens: at most 4,096"),
        ("bloch-walk(0, 0)", "not be both 0"),
        ("bloch-walk(1e300, 1)", "alpha must be between -1e+06 and 1e+06, not 1e+300"),
        ("fanizza(1e999)", "alpha must be between -1e+06 and 1e+06, not inf"),
        ("mess3(1e999)", "x must be between 0 and 0.5"),
        ("x" * 3000, "3,000 characters"),
        ("rrxor --task.length=1000000000", "task.length must be at least 2 and at most 100,000"),
    ],
)
def test_a_process_that_is_not_understood_is_refused(text, message, tmp_path, capsys):
    text, *more = text.split(" --")
    assert message in say(tmp_path, f"--task.process={text}", *(f"--{word}" for word in more), capsys=capsys)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"matrices": [[[0.5, 0.2], [0.5, 0.5]], [[0.2, 0.0], [0.0, 0.0]]]},
            "row 0 of the matrices sums to 0.9 over all tokens, 0.1 too little",
        ),
        ({"matrices": [[[1.5, 0], [0, 1]], [[-0.5, 0], [0, 0]]]}, "token 1, row 0, column 0 is -0.5"),
        (
            {"matrices": [[[0.5, 0, 0], [0.5, 0, 0], [0.5, 0, 0]], [[0, 0.5, 0], [0.5, 0, 0], [0, 0.5, 0]]]},
            "state 2 is never reached from the start",
        ),
        ({"matrices": [[[0.5, 0], [0, 0.5]], [[0.5, 0], [0, 0.5]]]}, "never reach each other"),
        (
            {"matrices": [[[0.5, 0], [0, 0.5]], [[0.5, 0], [0, 0.5]]], "start": [0.9, 0.2]},
            "2 probabilities that sum to 1",
        ),
        ({"matrices": [[[1, 0], [0]]]}, "square"),
        ({"matrices": [[[1, 0]], [[1, 0]]]}, "square"),
        ({"matrices": []}, "square"),
        ({"matrices": [[]]}, "square"),
        ({"matrices": [[[1.0]]]}, "only one token"),
        ({"matrices": [[[0.5]], [[0.5]]], "tokens": ["a"]}, "2 matrices need 2 different tokens"),
        ({"matrices": [[[0.5]], [[0.5]]], "tokens": ["a", "a"]}, "2 matrices need 2 different tokens"),
        ({"matrices": [[[0.5]], [[0.5]]], "tokens": ["a b", "c"]}, "must be a word without spaces"),
        ({"matrices": [[[0.5]], [[0.5]]], "tokens": ["<bos>", "c"]}, "not <bos>"),
        ({"matrices": [[[0.5, 0], [0, 1]], [[0.5, 0], [0, 0]]], "right": [1, 2, 3]}, "right must be 2 finite numbers"),
        ({"matrices": [[[0.5, 0], [0, 1]], [[0.5, 0], [0, 1]]], "right": [1, 1]}, "row 1 is 1 off"),
        ({"matrices": [[[1.5]], [[-0.5]]], "right": [1]}, "negative probability"),
        ({"matrix": []}, "matrices is missing"),
        ({"matrices": [[["a"]]]}, "matrices[0][0][0] must be a finite number"),
        ([1], "must be an object with keys"),
    ],
)
def test_matrices_that_are_no_process_are_refused(content, message, tmp_path, capsys):
    path = tmp_path / "own.json"
    path.write_text(json.dumps(content))
    said = say(tmp_path, f"--task.path={path}", capsys=capsys)
    assert message in said
    assert str(path) in said


def test_own_matrices_are_kept_in_the_run_and_may_be_arrays(tmp_path):
    (even,) = process("even").factors
    content = {"matrices": even.matrices[0].tolist(), "tokens": ["tick", "tock"], "start": [1.0, 0.0]}
    (tmp_path / "own.json").write_text(json.dumps(content))
    np.savez(tmp_path / "own.npz", **{key: np.array(value) for key, value in content.items()})
    np.savez_compressed(tmp_path / "own_compressed.npz", **{key: np.array(value) for key, value in content.items()})
    rows = []
    for name in ("own.json", "own.npz", "own_compressed.npz"):
        made = task(path=str(tmp_path / name))
        assert made.vocab.symbols == ["tick", "tock"]
        kept = made.files()
        (tmp_path / name).rename(tmp_path / f"gone-{name}")
        again = Hmm(made.config, kept)
        rows.append(again.held_out(5).tokens)
        np.testing.assert_array_equal(rows[-1], made.held_out(5).tokens)
        np.testing.assert_array_equal(rows[-1], rows[0])
        np.testing.assert_allclose(again.process.start, [1, 0])
    ghost = {"matrices": plain("bloch-walk")[0].tolist(), "right": [1, 0, 0]}
    (tmp_path / "ghost.json").write_text(json.dumps(ghost))
    np.testing.assert_allclose(task(path=str(tmp_path / "ghost.json")).process.start, [1, 0, 0], atol=1e-9)


UNCLOSED = b"\x93NUMPY\x01\x00\x0b\x00{'descr': ("
"""The header of an array, of 11 characters with a bracket that is not closed."""


def test_objects_in_an_npz_file_are_never_unpickled(tmp_path, capsys):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    np.savez(tmp_path / "own.npz", matrices=np.array([Trap()], dtype=object))
    assert "not an NPZ file of matrices" in say(tmp_path, f"--task.path={tmp_path / 'own.npz'}", capsys=capsys)
    assert not (tmp_path / "sprung").exists()
    with zipfile.ZipFile(tmp_path / "own.npz", "w") as archive:
        archive.writestr("matrices.npy", UNCLOSED)
    assert "not an NPZ file of matrices" in say(tmp_path, f"--task.path={tmp_path / 'own.npz'}", capsys=capsys)
    np.savez(tmp_path / "own.npz", other=np.zeros(3))
    assert "no array named matrices" in say(tmp_path, f"--task.path={tmp_path / 'own.npz'}", capsys=capsys)
    np.save(tmp_path / "own.npy", np.zeros((2, 3, 3)))
    assert "a single array: give a JSON file" in say(tmp_path, f"--task.path={tmp_path / 'own.npy'}", capsys=capsys)
    assert "give it as task.path" in say(tmp_path, f"--task.process={tmp_path / 'own.npz'}", capsys=capsys)
    np.savez(tmp_path / "own.npz", matrices=np.eye(1)[None], strat=np.ones(1))
    assert "did you mean start?" in say(tmp_path, f"--task.path={tmp_path / 'own.npz'}", capsys=capsys)
    (tmp_path / "own.json").write_text(json.dumps({"matrices": [[[1.0]]], "rihgt": [1.0]}))
    assert "did you mean right?" in say(tmp_path, f"--task.path={tmp_path / 'own.json'}", capsys=capsys)
    (tmp_path / "own.json").write_text(json.dumps({"matrices": [[[1.0]]], "right": [1.0], "start": [-1.0]}))
    assert "start . right above 0" in say(tmp_path, f"--task.path={tmp_path / 'own.json'}", capsys=capsys)
    np.savez(tmp_path / "own.npz", matrices=np.zeros(3))
    assert "must be numbers with 3 axes" in say(tmp_path, f"--task.path={tmp_path / 'own.npz'}", capsys=capsys)


@pytest.mark.parametrize("kind", ["json", "npz"])
def test_damaged_files_are_refused_in_a_sentence(kind, tmp_path):
    """Bytes changed, cut and repeated at random: a `ValueError` with the file's name, or a process."""
    rng = random.Random(7)
    (even,) = process("even").factors
    content = {"matrices": even.matrices[0].tolist(), "tokens": ["a", "b"], "start": [0.5, 0.5]}
    path = tmp_path / f"own.{kind}"
    if kind == "json":
        path.write_text(json.dumps(content))
    else:
        np.savez_compressed(path, **{key: np.array(value) for key, value in content.items()})
    whole = path.read_bytes()
    said = []
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(damaged))
            if rng.random() < 0.6:
                damaged[at] = rng.randrange(256)
            elif rng.random() < 0.5:
                del damaged[at : at + rng.randint(1, 30)]
            else:
                damaged[at:at] = damaged[: rng.randint(1, 30)]
            damaged = damaged or bytearray(b" ")
        path.write_bytes(bytes(damaged))
        try:
            made = task(path=str(path), length=3)
        except ValueError as error:
            said.append(str(error))
        else:
            assert np.isfinite(made.floors()).all()
    assert len(said) > 100
    assert all(str(path) in one or "one token" in one for one in said)


def test_words_that_cannot_be_are_refused_with_the_token(tmp_path):
    made = task("golden-mean", length=5)
    for line, message in (
        ("0 1 1", "rows.txt:2: token 3, '1', has probability 0 after 0 1"),
        ("0", "rows.txt:2: 1 tokens, but there must be 2 to 5"),
        ("0 1 0 0 0 0", "rows.txt:2: 6 tokens, but there must be 2 to 5"),
        ("0 2", "rows.txt:2: unknown symbol '2'"),
    ):
        (tmp_path / "rows.txt").write_text(f"0 1 0 1\n{line}\n")
        with pytest.raises(ValueError, match=message):
            made.read(tmp_path / "rows.txt")
    (tmp_path / "rows.txt").write_text("0 1 0 1\n0 1\n")
    assert made.read(tmp_path / "rows.txt").lengths.tolist() == [4, 2]
    with_bos = task("golden-mean", length=5, bos=True)
    for line, message in (
        ("0 1", "sequences of this run begin with <bos>, not with '0'"),
        ("<bos> 0 <bos>", "token 3, '<bos>'"),
    ):
        (tmp_path / "rows.txt").write_text(f"<bos> 0 1\n{line}\n")
        with pytest.raises(ValueError, match=f":2: {message}"):
            with_bos.read(tmp_path / "rows.txt")


@pytest.mark.parametrize("bos", [False, True])
def test_a_goal_may_begin_anywhere(bos):
    made = task("golden-mean", length=5, bos=bos)
    assert made.encode_later("1 0").tolist() == [1, 0]  # after any state, not after the start alone
    with pytest.raises(ValueError, match="token 3, '1', has probability 0 after 0 1"):
        made.encode_later("0 1 1")
    with pytest.raises(ValueError, match="unknown symbol '2'"):
        made.encode_later("2")
    with pytest.raises(ValueError, match="<bos> begins a sequence" if bos else "unknown symbol '<bos>'"):
        made.encode_later("<bos> 0")
    assert task("bloch-walk", length=5, bos=bos).encode_later("0 0").tolist() == [0, 0]


def test_compression_needs_finitely_many_beliefs():
    class Subject:
        task = task("mess3")

    with pytest.raises(ValueError, match=r"more than 4,096 different beliefs.*such as rrxor"):
        Compression(CompressionConfig(trials=2)).analyze(Subject())


def test_the_scale_of_right_does_not_matter(tmp_path):
    """Only its direction: tolerances are for numbers around 1."""
    golden = [[[0.5, 0], [1, 0]], [[0, 0.5], [0, 0]]]
    summaries = []
    for size in (1.0, 1e12):
        (tmp_path / "mine.json").write_text(json.dumps({"matrices": golden, "right": [size, size]}))
        summaries.append(TASKS["hmm"](TASKS["hmm"].Config(path=str(tmp_path / "mine.json"), length=5)).summary())
    assert summaries[0] == summaries[1]
    assert "3 beliefs" in " ".join(summaries[0])
    with pytest.raises(ValueError, match="right is not a right eigenvector"):
        factor(np.array([[[0.5]], [[3]]]), start=np.array([1e6]), right=np.array([1e-6]))
    with pytest.raises(ValueError, match=r"right is not a right eigenvector|no word has a probability above 0"):
        factor(np.array([[[0.0]], [[0.0]]]), start=np.array([1.0]), right=np.array([1e-6]))


def test_matrices_must_fit():
    with pytest.raises(ValueError, match=r"must be .tokens, states, states., not"):
        factor(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="not a finite number"):
        factor(np.full((2, 1, 1), np.nan))


@pytest.mark.parametrize("seed", [0, 2])
def test_no_training_batch_is_the_held_out_set(seed):
    made = Hmm(Hmm.Config(process="mess3", length=12, held_out_sequences=64, data_seed=seed))
    stream = Stream(made, seed=seed, batch_size=64)
    held_out = made.held_out().tokens
    assert not any(np.array_equal(stream.batch(number).tokens.numpy(), held_out) for number in range(4))


def test_arrays_that_a_run_could_not_read_again_are_refused(tmp_path, capsys):
    """They were trained on, and the run was of no use afterwards."""
    halves = np.full((2, 2, 2), 0.25)
    for more, message in (
        ({"right": np.full(2, 1e308)}, "right[0] must be a finite number"),
        ({"right": np.ones(2), "start": np.full(2, 1e260)}, "start[0] must be a finite number"),
        ({"tokens": np.array([b"\xff", b"a"])}, "tokens must be text"),
    ):
        np.savez(tmp_path / "own.npz", matrices=halves, **more)
        said = say(tmp_path, f"--task.path={tmp_path / 'own.npz'}", capsys=capsys)
        assert message in said
        assert "own.npz" in said
    with zipfile.ZipFile(tmp_path / "own.npz", "w") as archive:
        archive.writestr("matrices.npy", b"no array")
    assert "own.npz: not an NPZ file of matrices: matrices is not an array" in say(
        tmp_path, f"--task.path={tmp_path / 'own.npz'}", capsys=capsys
    )


def test_no_more_is_read_than_is_allowed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sources, "MOST_BYTES", 1000)
    path = tmp_path / "own.json"
    path.write_text(" " * 1001)
    assert "own.json: more than 1,000 bytes" in say(tmp_path, f"--task.path={path}", capsys=capsys)


def test_mixtures_are_bounded_before_they_are_built(tmp_path, capsys):
    text = " + ".join(["checksum(7, 16)"] * 10)
    assert "a mixture (+) of 1,130 states and" in say(tmp_path, f"--task.process={text}", capsys=capsys)


@pytest.mark.parametrize("text", ["even", "golden-mean", "rrxor"])
def test_pairs_of_one_belief_are_of_all_beliefs(text):
    world = task(text, length=10)
    pairs = world.draw_pairs(np.random.default_rng(1), 300, same_state=True)
    rows = [row[:length] for row, length in zip(pairs.first.tokens, pairs.first.lengths)]
    found = np.array([world.states_after(row[None])[0, 0] for row in rows])
    _, counts = np.unique(found, return_counts=True)
    assert counts.max() < (0.75 if text != "rrxor" else 0.25) * 300
