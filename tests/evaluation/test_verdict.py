"""Verdicts on models whose knowledge is known: exact predictions of processes, and mixtures of them with less."""

import numpy as np
import pytest

from statewise import beliefs
from statewise.data_types import Examples, Ragged
from statewise.evaluation.verdict import Curve, verdict
from statewise.tasks import baselines

ENDS = 1 / 9
"""Probability that a case ends after a symbol, whatever came before."""
LEVEL = Curve("level", 1000, 0.001, 1000)


class Known:
    """Cases of a process, half of them held out, the baselines of the others, and the exact prediction."""

    def __init__(self, process, cases=1500):
        rng = np.random.default_rng(1)
        lengths = 1 + np.minimum(rng.geometric(ENDS, cases), 60)
        tokens = process.draw(rng, cases, 60)
        tokens = np.concatenate([tokens, np.zeros((cases, 1), np.int64)], axis=1)
        tokens[np.arange(cases), lengths - 1] = end = process.vocabulary
        tokens[np.arange(61) >= lengths[:, None]] = 0
        every = Examples(tokens, lengths, np.zeros(cases, np.int64))
        self.examples, self.symbols = every[cases // 2 :], end + 1
        self.scored = baselines.scored_tokens(self.examples)
        training = Ragged.unpadded(every[: cases // 2], self.symbols)
        self.made = baselines.predictions(training, self.examples, self.symbols, end, "<end>")
        self.baselines = baselines.nats(self.made, self.examples)
        ended = self.examples.tokens == end
        _, chances = process.posteriors(np.where(ended, 0, self.examples.tokens))
        self.exact = np.where(self.scored, np.where(ended, ENDS, (1 - ENDS) * chances), 1.0)
        self.floor = -np.log(self.exact)[self.scored].mean()

    def verdict(self, chances, curve=LEVEL):
        return verdict(self.examples, -np.log(chances), self.scored, self.baselines, curve)

    def mixed(self, share, baseline=None):
        """Predictions that are a mixture of the exact one with another, by default the uniform one."""
        other = 1 / self.symbols if baseline is None else np.exp(-self.baselines[baseline])
        return share * self.exact + (1 - share) * other


def coin(p=0.7):
    return beliefs.from_matrices(np.array([[[p]], [[1 - p]]]))


def walk():
    """A Markov chain of three symbols: the last one tells everything."""
    steps = np.array([[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]])
    return beliefs.from_matrices(np.stack([steps * (np.arange(3) == to) for to in range(3)]))


def pairs():
    """Each symbol depends on the last two: it repeats the second last one with probability 0.9."""
    matrices = np.zeros((2, 4, 4))  # states: the last two symbols
    for older in range(2):
        for last in range(2):
            for new in range(2):
                matrices[new, 2 * older + last, 2 * last + new] = 0.9 if new == older else 0.1
    return beliefs.from_matrices(matrices)


def remembering():
    """The first symbol comes again with probability 0.6 where the other four come with 0.1: no context is that long."""
    matrices = np.zeros((5, 6, 6))
    for first in range(5):
        matrices[first, 5, first] = 0.2
        for new in range(5):
            matrices[new, first, first] = 0.6 if new == first else 0.1
    return beliefs.from_matrices(matrices, start=np.eye(6)[5])


@pytest.mark.parametrize(
    ("process", "learned"),
    [(coin(), "frequencies"), (walk(), "last event"), (pairs(), "recent events"), (remembering(), "more")],
)
def test_what_the_exact_prediction_has_learned_is_what_there_is_to_know(process, learned):
    known = Known(process)
    found = known.verdict(known.exact)
    assert found.learned == learned, found.sentence
    assert found.loss == pytest.approx(known.floor)
    assert (found.cases, found.symbols) == (750, known.scored.sum())
    assert [one.nats for one in found.comparisons] == sorted(one.nats for one in found.comparisons)
    for one in found.comparisons:
        nats = known.baselines[one.baseline][known.scored].mean()
        assert one.nats == pytest.approx(nats)
        assert one.difference == pytest.approx(known.floor - nats)
        assert one.low <= one.difference <= one.high
        assert f"{abs(one.difference):.3f}" in found.sentence or one.baseline not in found.sentence


def test_less_than_there_is_to_know_is_said_with_what_it_lacks():
    known = Known(pairs())
    assert known.verdict(np.full(known.exact.shape, 0.05)).learned == "nothing"
    unigram = known.verdict(np.exp(-known.baselines["unigram"]))
    assert unigram.learned == "less"
    bigram = known.verdict(known.mixed(0.1, "bigram"))
    assert bigram.learned == "less"
    assert "less than the baseline variable order" in bigram.sentence
    walked = Known(walk())
    under = walked.verdict(walked.mixed(0.4))
    assert under.learned == "less"
    assert "less than a bigram" in under.sentence
