"""The inductive bias probe against its definitions: all pairs, each row left out in turn, and states that are known."""

import json

import numpy as np
import pytest
import torch
from doubles import FixedTask, MarkovPredictor, random_examples, subject

from statewise.analysis import make_analysis
from statewise.analysis.beliefs.least_squares import PENALTIES, ridge
from statewise.analysis.world_models.inductive_bias import Pairs, Prefixes
from statewise.cli import main
from statewise.data_types import Examples, Hidden
from statewise.tasks.hmm import Hmm, HmmConfig
from statewise.tasks.state_tracking.task import StateTracking, StateTrackingConfig


def automaton(process="s3", **fields):
    small = {"length": 12, "longest": 12, "held_out_sequences": 200, "reveal_rate": 0.3}
    return StateTracking(StateTrackingConfig(process=process, **{**small, **fields}))


class OfState(MarkovPredictor):
    """Its states are rows of `table` (S, D), by the true state."""

    def __init__(self, task, table):
        super().__init__(torch.ones(len(task.vocab), len(task.vocab)), task.context)
        self.task, self.rows = task, torch.as_tensor(table, dtype=torch.float32)

    def states(self, batch):
        tokens = batch.tokens.numpy()
        examples = Examples(tokens, batch.real.sum(1).numpy(), np.zeros(len(tokens), np.int64))
        state = self.rows[np.maximum(self.task.labels(examples), 0)]
        return Hidden(state, state)


def analyze(predictor, task, **fields):
    other = MarkovPredictor(torch.ones(len(task.vocab), len(task.vocab)), task.context)
    return make_analysis("inductive-bias", **{"datasets": 40, "examples": 48, **fields}).analyze(
        subject(predictor, task, other)
    )


def test_shares_of_pairs_are_those_of_all_pairs():
    rng = np.random.default_rng(0)
    states, following = rng.integers(0, 4, 40), rng.integers(0, 2, 40)
    predicted, values = rng.choice([-1.0, 1.0], 40), rng.choice([-1.0, 1.0], 40)
    nothing = random_examples(rng, n=1)
    pairs = Pairs.of(Prefixes(nothing, np.zeros(40, np.int64), np.zeros(40, np.int64), states, following))
    kinds = {"one": [], "apart": [], "same": [], "other": []}
    for i in range(40):
        for j in range(i):
            differ = predicted[i] != predicted[j]
            if states[i] == states[j]:
                kinds["one"].append(differ)
            else:
                kinds["apart"].append(differ)
                kinds["same" if following[i] == following[j] else "other"].append(differ)
    assert pairs.counts.tolist() == [len(kinds[name]) for name in ("one", "same", "other")]
    share = {name: np.mean(found) for name, found in kinds.items()}
    wanted = [
        1 - 2 * share["one"],
        2 * share["apart"],
        2 * share["same"],
        2 * share["other"],
        np.mean(predicted == values),
    ]
    np.testing.assert_allclose(pairs.bias(predicted, values), wanted, rtol=1e-12)


@pytest.mark.parametrize(("width", "noise"), [(3, 1), (30, 30)])
def test_ridge_is_the_regression_whose_penalty_misses_least_with_each_row_left_out(width, noise):
    rng = np.random.default_rng(width)
    features, tested = rng.normal(size=(12, width)) * rng.uniform(0.1, 5, width), rng.normal(size=(5, width))
    targets = features @ rng.normal(size=width) + noise * rng.normal(size=12)
    features[:, 0], tested[0, 0] = 0.1, 7.0  # it does not vary
    centre, spread = features.mean(0), features.std(0)
    spread[0] = 1.0
    scaled, asked = (features - centre) / spread, (tested - centre) / spread

    def solve(rows, penalty, at):
        """Of some rows, with an offset that is not penalised."""
        X, y = scaled[rows], targets[rows]
        with_one = np.column_stack([X, np.ones(len(X))])
        weight = penalty * np.eye(width + 1)
        weight[-1, -1] = 0
        found = np.linalg.solve(with_one.T @ with_one + weight, with_one.T @ y)
        return at @ found[:-1] + found[-1]

    penalties = PENALTIES * (scaled**2).sum() / 12
    missed = [
        sum((targets[i] - solve(np.arange(12) != i, penalty, scaled[i])) ** 2 for i in range(12))
        for penalty in penalties
    ]
    best = int(np.argmin(missed))
    assert 0 < best < len(PENALTIES) - 1, "the choice is not trivial"
    np.testing.assert_allclose(
        ridge(features, targets, tested), solve(np.arange(12), penalties[best], asked), rtol=1e-6
    )


def test_ridge_of_features_that_do_not_vary_is_the_mean():
    assert (
        ridge(np.full((4, 2), 0.1, np.float32), np.array([1.0, 1.0, -1.0, 1.0]), np.ones((3, 2))).tolist() == [0.5] * 3
    )


def test_states_that_are_the_true_state_have_its_bias_and_constant_ones_none():
    task = automaton()
    found = analyze(OfState(task, np.eye(6)), task).metrics
    for name in ("respects_state", "distinguishes_state", "distinguishes_state_same_next", "accuracy"):
        assert found[name] == found[f"{name}_true_state"]
    assert (found["respects_state"], found["accuracy"], found["states"]) == (1.0, 1.0, 6)
    assert abs(found["distinguishes_state"] - 1) < 4 * found["distinguishes_state_standard_error"]
    found = analyze(OfState(task, np.full((6, 3), 0.1)), task).metrics
    assert (found["respects_state"], found["distinguishes_state"]) == (1.0, 0.0)
    assert "respects_state_untrained_standard_error" not in found


def test_a_model_that_takes_states_for_one_another_respects_them_and_does_not_tell_them_apart():
    task = automaton()
    merged = np.eye(3)[[0, 0, 1, 1, 2, 2]]  # three pairs of states
    found = analyze(OfState(task, merged), task).metrics
    assert found["respects_state"] == 1.0
    # Of the 15 pairs of states 3 are never told apart; the others are where their two majorities differ.
    assert 0.5 < found["distinguishes_state"] < 0.9
    random = np.random.default_rng(0).normal(size=(6, 2))
    assert analyze(OfState(task, random), task).metrics["respects_state"] == 1.0, "whatever the states are"


def test_ends_of_sequences_are_no_prefixes_with_the_same_next_tokens():
    task = Hmm(HmmConfig(process="golden-mean", length=6, held_out_sequences=200))
    drawn = Prefixes.draw(task, task.held_out(200), {}, [1])
    assert len(drawn.rows) > 100
    for row, at in zip(drawn.rows, drawn.positions):
        assert len(task.legal(drawn.examples.tokens[row, : at + 1]))


def test_legal_next_tokens_tell_apart_no_states_that_share_them():
    found = analyze(OfState(automaton(), np.eye(6)), automaton())
    assert found.metrics["distinguishes_state_same_next_next_tokens"] == 0.0
    assert found.details["labelled"] == [6, 12, 24, 48]
    assert found.panels[0].y_title == "respects state (R-IB)"
    assert [curve.label for curve in found.panels[0].curves] == [
        "model",
        "untrained model",
        "true state",
        "legal next tokens",
    ]
    assert all(curve.x == [6, 12, 24, 48] for panel in found.panels for curve in panel.curves)
    counts = found.details["pairs"]
    n = found.metrics["prefixes"]
    assert sum(counts.values()) == n * (n - 1) / 2


def test_equal_prefixes_count_once_and_labels_follow_the_seed():
    task = automaton("parity", length=6, longest=6, ask="query", held_out_sequences=30)
    found = analyze(OfState(task, np.eye(2)), task, examples=8).metrics
    assert found["prefixes"] < 30, "some begin alike"
    first, again, other = (analyze(OfState(task, np.eye(2)), task, examples=8, seed=seed).metrics for seed in (1, 1, 2))
    assert first == again != other


def test_what_cannot_be_asked_is_refused():
    task = automaton()
    with pytest.raises(ValueError, match="fewer than the 48 labelled prefixes"):
        analyze(OfState(task, np.eye(6)), task, training_sequences=20)
    with pytest.raises(ValueError, match="no two of the 1 different held-out prefixes"):
        analyze(OfState(task, np.eye(6)), task, sequences=1)
    plain = FixedTask(random_examples(np.random.default_rng(0), n=30))
    with pytest.raises(ValueError, match="needs a task that knows its true state"):
        make_analysis("inductive-bias").analyze(subject(MarkovPredictor(torch.ones(11, 11)), plain))
    refused = [
        ({"datasets": 0}, "datasets must be at least 1"),
        ({"examples": 1}, "examples must be at least 2"),
        ({"layer": "all"}, "layer must be one name"),
        ({"layer": "blocks.*"}, "layer must be one name"),
    ]
    for fields, message in refused:
        with pytest.raises(ValueError, match=message):
            make_analysis("inductive-bias", **fields)


def test_on_a_run(tmp_path, capsys):
    run = str(tmp_path / "run")
    flags = "--task.length 8 --task.longest 8 --trainer.steps 2 --trainer.batch_size 8"
    model = "--backbone gpt --backbone.layers 2 --backbone.heads 2 --backbone.width 16"
    assert main(["train", "s3", *flags.split(), *model.split(), "--out", run]) == 0
    capsys.readouterr()
    few = ["--datasets", "5", "--examples", "20"]
    assert main(["analyze", run, "inductive-bias", *few, "--layer", "concat", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["respects_state_true_state"] == 1.0
    assert main(["analyze", run, "inductive-bias", "--layer", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_where_nothing_is_held_out_values_are_predicted_after_other_prefixes_than_are_labelled():
    task = Hmm(HmmConfig(process="rrxor", length=8, held_out_sequences=400))
    read = []

    class Seen(OfState):
        """Remembers what it was asked for, in order: the pool, then the held-out prefixes."""

        def states(self, batch):
            read.append({tuple(row[:count].tolist()) for row, count in zip(batch.tokens, batch.real.sum(1))})
            return super().states(batch)

    found = make_analysis("inductive-bias", datasets=2, examples=48).analyze(subject(Seen(task, np.eye(99)), task))
    assert "values are predicted after other prefixes than are labelled" in found.notes[0]
    assert found.metrics["respects_state"] == 1.0
    half = len(read) // 2  # the model, then the same untrained
    blocks = [len(part) for part in read[:half]]
    tested = int(found.metrics["prefixes"])
    assert sum(blocks) > tested
    ends = np.cumsum(blocks[::-1])
    last = int(np.searchsorted(ends, tested)) + 1
    of_test, of_pool = set().union(*read[half - last : half]), set().union(*read[: half - last])
    assert len(of_test) == tested
    assert not of_test & of_pool
