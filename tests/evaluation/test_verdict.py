"""Verdicts on models whose knowledge is known: exact predictions of processes, and mixtures of them with less."""

import numpy as np
import pytest

from statewise import beliefs
from statewise.data_types import Examples, Ragged
from statewise.evaluation.verdict import FEW, Curve, learning_curve, verdict
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


def records(losses, every=100):
    """Evaluations as a run has them, among other lines."""
    lines = [
        {"kind": "train", "step": 50, "loss": 9.0},
        {"kind": "end", "step": every * len(losses), "reason": "steps"},
    ]
    return lines + [{"kind": "evaluation", "step": every * (1 + at), "loss": loss} for at, loss in enumerate(losses)]


def test_a_curve_falls_if_the_last_half_of_the_steps_lowered_the_loss():
    falling = learning_curve(records([3.0, 2.0, 1.6, 1.5]))
    assert (falling.falls, falling.step, falling.best_step) == ("falling", 400, 400)
    assert falling.gain == pytest.approx(0.5)  # from step 200 on
    odd = learning_curve(records([3.0, 2.0, 1.6, 1.5, 1.4]))
    assert odd.gain == pytest.approx((2.0 + 1.6) / 2 - 1.4)
    assert learning_curve(records([3.0, 1.502, 1.5, 1.499])).falls == "level"
    rising = learning_curve(records([3.0, 1.5, 1.2, 1.3, 1.4]))
    assert (rising.falls, rising.best_step, rising.gain) == ("rising", 300, pytest.approx(0.2))
    assert learning_curve(records([3.0, 1.5, 1.502, 1.508])).falls == "level"
    for unknown in ([], [2.0, 1.0, 0.5], [2.0, float("inf"), 1.0, 0.5]):
        assert learning_curve(records(unknown)).falls == "unknown"
    assert learning_curve([{"kind": "evaluation", "step": 900 + at, "loss": 1.0} for at in range(9)]).falls == "unknown"
    assert (
        learning_curve([{"kind": "evaluation", "step": at, "exact_match": 1.0} for at in range(9)]).falls == "unknown"
    )


def test_advice_goes_by_the_curve_and_then_by_what_was_learned():
    known = {process: Known(process()) for process in (coin, walk, pairs, remembering)}

    def advice(process, curve, share=1.0):
        return known[process].verdict(known[process].mixed(share), curve).advice

    falling, rising = Curve("falling", 200, 0.05, 200), Curve("rising", 200, 0.04, 120)
    for process in known:
        assert "fell by 0.050 nats" in advice(process, falling)
        assert "train 4 times as long, with --trainer.steps 800" in advice(process, falling)
        assert "rose by 0.040 nats after step 120" in advice(process, rising)
    assert "order of the symbols tells little" in advice(coin, LEVEL)
    assert "little beyond the last event" in advice(walk, LEVEL)
    assert "variable order does the same" in advice(pairs, LEVEL)
    assert "Longer training would change little" in advice(remembering, LEVEL)
    assert "larger model" in advice(walk, LEVEL, 0.4)
    assert advice(walk, Curve(), 0.4) == "Train longer, with more --trainer.steps."
    assert "--trainer.evaluate_every" in advice(remembering, Curve())


def test_intervals_hold_the_true_difference_about_as_often_as_they_say():
    rng = np.random.default_rng(3)
    examples = Examples(np.arange(240).reshape(40, 6), np.full(40, 6), np.zeros(40, np.int64))
    scored, held = np.tile(np.arange(6) > 0, (40, 1)), 0
    for _ in range(60):
        bigram = rng.gamma(2, 1, (40, 6))
        nats = bigram + 0.1 + rng.normal(0, 0.5, (40, 1)) + rng.normal(0, 0.2, (40, 6))  # cases differ as a whole
        found = verdict(examples, nats, scored, {"unigram": bigram, "bigram": bigram}, LEVEL).comparisons[0]
        held += found.low <= 0.1 <= found.high
    assert 51 <= held <= 59  # 57 expected


def test_copies_of_a_case_are_drawn_together_and_few_cases_have_no_interval():
    rng = np.random.default_rng(0)
    tokens = np.arange(10)[:, None] + np.zeros((10, 3), np.int64)
    copies = rng.integers(10, size=400)
    examples = Examples(tokens[copies], np.full(400, 3), np.zeros(400, np.int64))
    scored = np.tile(np.arange(3) > 0, (400, 1))
    nats, baseline = rng.normal(1, 0.3, (10, 3))[copies], np.full((400, 3), 1.0)
    wide = verdict(examples, nats, scored, {"unigram": baseline, "bigram": baseline}, LEVEL).comparisons[0]
    different = Examples(np.arange(1200).reshape(400, 3), examples.lengths, examples.prompt_lengths)
    narrow = verdict(different, nats, scored, {"unigram": baseline, "bigram": baseline}, LEVEL).comparisons[0]
    assert wide.difference == pytest.approx(narrow.difference)
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)
    few = verdict(examples[:FEW], nats[:FEW], scored[:FEW], {"unigram": nats[:FEW], "bigram": baseline[:FEW]}, LEVEL)
    assert len(np.unique(copies[:FEW])) < FEW
    assert few.learned == "unknown"
    assert all(one.low is None is one.high for one in few.comparisons)
    assert "different cases cannot show" in few.sentence
    assert f"at least {FEW} different cases" in few.advice
    with pytest.raises(ValueError, match="no token to score"):
        verdict(examples, nats, scored & False, {"unigram": baseline, "bigram": baseline}, LEVEL)
