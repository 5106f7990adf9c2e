"""Belief geometry and dynamics: closed forms against least squares, published controls, models with known answers."""

import dataclasses
import itertools
import json
from types import SimpleNamespace

import doubles
import numpy as np
import pytest
import torch

from statewise.analysis.beliefs import nonlinear
from statewise.analysis.beliefs.bayes_rule import BeliefDynamics, BeliefDynamicsConfig
from statewise.analysis.beliefs.controls import Known, history
from statewise.analysis.beliefs.geometry import BeliefGeometry, BeliefGeometryConfig, overlap
from statewise.analysis.beliefs.least_squares import fit, held_out_r2, r2
from statewise.analysis.beliefs.nonlinear import mlp_r2
from statewise.analysis.beliefs.pictures import planes
from statewise.cli import main
from statewise.config.recipes import recipe_names, recipe_text
from statewise.data_types import Hidden
from statewise.decoding.predictor import Predictor, StateDynamics
from statewise.model.recipes import read_recipe
from statewise.reporting.figures import Curve, Drawing, Panel, over_steps, stored
from statewise.tasks import TASKS

Hmm = TASKS["hmm"]


def task(text, **fields):
    return Hmm(Hmm.Config(process=text, **fields))


def test_the_closed_form_is_weighted_least_squares():
    rng = np.random.default_rng(0)
    x, y, w = rng.normal(size=(60, 5)) @ rng.normal(size=(5, 7)), rng.normal(size=(60, 3)), rng.random(60)  # rank 5
    made = fit(x, y, w, 1e-9)
    root = np.sqrt(w)[:, None]
    slow = np.linalg.lstsq(np.hstack([x, np.ones((60, 1))]) * root, y * root, rcond=1e-9)[0]
    expected = x @ slow[:-1] + slow[-1]
    np.testing.assert_allclose(made(x), expected, atol=1e-9)
    mean = np.average(y, axis=0, weights=w)
    errors, spread = ((y - expected) ** 2).sum(1) @ w, ((y - mean) ** 2).sum(1) @ w
    assert r2(made(x), y, w) == pytest.approx(1 - errors / spread)
    folds = np.arange(60) % 3
    slow = np.empty_like(y)
    for fold in range(3):
        slow[folds == fold] = fit(x[folds != fold], y[folds != fold], w[folds != fold], 1e-9)(x[folds == fold])
    assert held_out_r2(x, y, w, 1e-9, folds) == pytest.approx(r2(slow, y, w))
    assert r2(slow, y, w) < r2(expected, y, w)
    small = np.hstack([x, 1e-9 * rng.normal(size=(60, 2))])
    np.testing.assert_allclose(fit(small, y, w, 1e-6)(small), expected, atol=1e-6)
    assert np.isnan(r2(y, np.full((60, 3), 0.1), w))


@pytest.fixture
def few_steps(monkeypatch):
    """Of networks, which these small problems do not need."""
    monkeypatch.setattr(nonlinear, "STEPS", 250)


def test_a_network_finds_what_no_linear_map_does_and_the_same_again(few_steps):
    rng = np.random.default_rng(0)
    x, weights, folds = rng.normal(size=(600, 5)), rng.random(600), np.arange(600) % 3 - 1
    x[:, 4] = 7.0  # has no spread to divide by
    y = np.stack([np.abs(x[:, 0]), x[:, 1]], 1)
    found = mlp_r2(x, y, weights, folds, 1)
    assert held_out_r2(x, y, weights, 1e-6, folds) < 0.85 < 0.97 < found[1] < found[0] < 1
    with torch.autocast("cpu", torch.bfloat16):
        assert mlp_r2(x, y, weights, folds, 1) == found
    noise = rng.normal(size=(600, 2))
    assert mlp_r2(x, noise, weights, folds, 1)[1] < 0.05, "what is held out is not fitted"


def test_the_network_is_measured_where_it_is_asked_for(few_steps):
    world = task("rrxor", length=6)
    metrics = (
        BeliefGeometry(BeliefGeometryConfig(layers=None, longest=6, probe="mlp"))
        .analyze(subject(world, Bayesian(world)))
        .metrics
    )
    assert metrics["r2_mlp"] > 0.98
    assert metrics["r2_mlp_untrained_held_out"] < 0.6 < metrics["r2_mlp_held_out"]


CONTROLS = {
    ("mess3", 8): ([0.834, 0.943, 0.962, 0.965, 0.966], 1.0),
    ("mess3(0.15, 0.6)", 8): ([0.804, 0.955, 0.983, 0.988, 0.989], 1.0),
    ("rrxor", 10): ([0.149, 0.149, 0.149, 0.149, 0.149], 0.246),
    ("z1r", 10): ([0.367, 0.652, 0.759, 0.782, 0.810], 0.478),
    ("even", 10): ([0.330, 0.507, 0.609, 0.671, 0.752], 1.0),
    ("golden-mean", 10): ([1.0], 1.0),
    ("sns", 10): ([0.879, 0.976, 0.988, 0.990, 0.990], 1.0),
    ("bloch-walk(1, 3)", 6): ([0.524, 0.527], 1.0),
    (f"bloch-walk(1, {51**0.5})", 6): ([0.337], 1.0),
}
"""R^2 from one-hot vectors of the last 1, 2, 3, 4 and all tokens, and from the true next-token distribution."""


@pytest.mark.parametrize(("text", "length"), CONTROLS)
def test_controls_are_those_of_the_fact_sheet(text, length):
    by_history, by_next = CONTROLS[text, length]
    world = task(text, length=length)
    prefixes = world.prefixes(3**8, 1)
    assert prefixes.exact
    assert prefixes.columns.max() == length - 1
    known = Known.of(world, prefixes)
    for count, expected in zip((1, 2, 3, 4, length), by_history):
        features = history(prefixes, count)
        found = r2(fit(features, known.beliefs, known.weights, 1e-6)(features), known.beliefs, known.weights)
        assert found == pytest.approx(expected, abs=6e-4)
    features = known.next_tokens
    found = r2(fit(features, known.beliefs, known.weights, 1e-6)(features), known.beliefs, known.weights)
    assert found == pytest.approx(by_next, abs=6e-4)


def test_a_history_of_few_prefixes_is_scored_on_others_or_left_out():
    world = task("mess3", length=40)
    found = {}
    for words in (800, 2):
        config = BeliefGeometryConfig(layers=None, longest=40, words=words)
        found[words] = BeliefGeometry(config).analyze(subject(world, Bayesian(world)))
    metrics, prefixes = found[800].metrics, world.prefixes(800, 1)
    known, features = Known.of(world, prefixes), history(prefixes, 40)
    assert metrics["r2_history_all"] > metrics["r2_history_4"] > metrics["r2_history_all_held_out"]
    folds = np.random.default_rng(1).integers(5, size=len(known.weights))
    expected = held_out_r2(features, known.beliefs, known.weights, 1e-6, folds)
    assert metrics["r2_history_all_held_out"] == pytest.approx(expected)
    assert len(found[800].notes) == 2
    assert "reach into the last third" in found[800].notes[1]
    assert {"r2_history_1", "r2_history_4"} <= set(found[2].metrics)
    assert not {"r2_history_all", "r2_history_all_held_out"} & set(found[2].metrics)
    assert "r2_history_all is left out: a map from the last 40 tokens" in found[2].notes[2]


def test_guessing_the_mean_has_the_error_of_the_fact_sheet():
    for text, expected in (("mess3", 0.160), ("mess3(0.15, 0.6)", 0.044)):
        world = task(text, length=8)
        known = Known.of(world, world.prefixes(3**8, 1))
        mean = np.broadcast_to(known.weights @ known.beliefs, known.beliefs.shape)
        assert known.errors(mean)["mse"] == pytest.approx(expected, abs=6e-4)


def test_distances_between_the_beliefs_of_rrxor_are_hardly_those_of_their_predictions():
    states = task("rrxor")._finite
    count = len(states.beliefs)
    known = Known(states.beliefs, states.next_tokens, np.full(count, 1 / count))
    found = known.correlations(states.beliefs)
    assert found["distances_r2"] == pytest.approx(1)
    assert found["next_token_distances_r2"] == pytest.approx(0.239, abs=6e-4)
    pairs = [
        [np.linalg.norm(one - other) for one, other in itertools.combinations(points, 2)]
        for points in (states.beliefs, states.next_tokens)
    ]
    assert found["next_token_distances_r2"] == pytest.approx(np.corrcoef(*pairs)[0, 1] ** 2, abs=1e-12)


def test_equal_beliefs_with_different_next_tokens_count_by_their_mean():
    rng = np.random.default_rng(0)
    beliefs, next_tokens, weights = rng.random((5, 3)), rng.random((5, 4)), np.full(5, 0.2)
    twice = Known(
        beliefs[[0, 0, 1, 2, 3, 4]],
        next_tokens[[0, 0, 1, 2, 3, 4]] + np.array([[0.3], [-0.1], [0], [0], [0], [0]]),
        np.array([0.05, 0.15, 0.2, 0.2, 0.2, 0.2]),
    )
    once = Known(beliefs, next_tokens, weights).correlations(beliefs)
    assert twice.correlations(twice.beliefs) == pytest.approx(once)


class Bayesian(StateDynamics):
    """States are the joint beliefs behind a random linear map; `damage` moves each step's belief towards the start."""

    device = "cpu"
    capability = Predictor.capability

    def __init__(self, world, damage=0.0):
        self.world, self.damage = world, damage
        S = world.process.states
        self.into = np.random.default_rng(3).normal(size=(S, S + 2))
        self.back = np.linalg.pinv(self.into)

    def states(self, batch):
        examples = SimpleNamespace(tokens=batch.tokens.numpy())
        state = torch.from_numpy(self.world._walk(examples)[0] @ self.into).float()
        return Hidden(state, state)

    def logits(self, batch):
        state = self.states(batch).state
        return self.read_states(state.flatten(0, 1)).view(*state.shape[:2], -1)

    def advance(self, states, tokens):
        before = states.double().numpy() @ self.back
        process = self.world.process
        opens = (tokens.numpy() >= process.vocabulary)[:, None]
        after, _ = process.update(before, np.where(opens[:, 0], 0, tokens.numpy()))
        after = (1 - self.damage) * after + self.damage * process.start
        return torch.from_numpy(np.where(opens, before, after) @ self.into).float()

    def read_states(self, states):
        given = self.world.process.probabilities(states.double().numpy() @ self.back)
        spare = np.zeros((len(given), len(self.world.vocab) - given.shape[1]))
        return torch.from_numpy(np.log(np.maximum(np.hstack([given, spare]), 1e-30)))


class ReadoutOfItsOwn(Bayesian):
    """The head knows nothing of the states that the backbone computes, only those that `advance` returned."""

    def __init__(self, world):
        super().__init__(world)
        self.returned = []

    def logits(self, batch):
        state = self.states(batch).state
        return super().read_states(state.flatten(0, 1)).view(*state.shape[:2], -1)

    def advance(self, states, tokens):
        self.returned.append(super().advance(states, tokens))
        return self.returned[-1]

    def read_states(self, states):
        assert any(torch.equal(states, one) for one in self.returned)
        return super().read_states(states)


class Faint(Bayesian):
    """Beliefs on a coarse grid, and what these lack in directions of little variance, where `advance` is inexact."""

    def __init__(self, world):
        super().__init__(world)
        self.into = self.back = np.eye(world.process.states)

    def states(self, batch):
        belief = super().states(batch).state
        coarse = (belief * 30).round() / 30
        state = torch.cat([coarse, 1e-3 * (belief - coarse)], -1)
        return Hidden(state, state)

    def logits(self, batch):
        state = self.states(batch).state
        return self.read_states(state.flatten(0, 1)).view(*state.shape[:2], -1)

    def advance(self, states, tokens):
        belief = super().advance(states[:, :3] / states[:, :3].sum(1, keepdim=True), tokens)
        return torch.cat([belief, 1e-3 * torch.sin(1e4 * belief)], -1)

    def read_states(self, states):
        return super().read_states(states[:, :3] / states[:, :3].sum(1, keepdim=True))


class Blank(Bayesian):
    """States are noise, and predictions uniform."""

    def states(self, batch):
        noise = torch.rand(*batch.tokens.shape, 3, generator=torch.Generator().manual_seed(int(batch.tokens.sum())))
        return Hidden(noise, noise)


def subject(world, predictor):
    return doubles.subject(predictor, world, Blank(world), step_2=Blank(world), step_9=predictor)


@pytest.mark.parametrize("text", ["rrxor", "mess3", "bloch-walk", "even * z1r"])
@pytest.mark.parametrize("bos", [False, True])
def test_states_that_are_beliefs_are_found_out(text, bos):
    world = task(text, length=6, bos=bos)
    config = BeliefGeometryConfig(layers=None, longest=6, checkpoints="all")
    found = BeliefGeometry(config).analyze(subject(world, Bayesian(world)))
    metrics = found.metrics
    for key in ("r2", "r2_held_out", "distances_r2"):
        assert metrics[key] == pytest.approx(1, abs=1e-5)
    assert metrics["mse"] == pytest.approx(0, abs=1e-6)
    assert metrics["excess"] == pytest.approx(0, abs=1e-5)
    assert metrics["r2_constrained"] == pytest.approx(metrics["r2_constrained_belief"], abs=1e-5)  # alike: linear maps
    assert metrics["r2_constrained"] < 0.9
    assert metrics["r2_untrained"] < 0.3
    assert metrics["r2_shuffled"] < 0.3
    assert found.main[0] == "r2"
    steps = next(panel for panel in found.panels if panel.x_title == "training step")
    assert steps.curves[0].x == [2.0, 9.0]
    assert steps.curves[0].y[1] > 0.99 > steps.curves[0].y[0]
    controls = {curve.label: (curve.x, curve.y) for curve in steps.curves if curve.role == "control"}
    assert controls["untrained"] == ([2.0, 9.0], [metrics["r2_untrained"]] * 2)
    assert controls["shuffled beliefs"][1] == [metrics["r2_shuffled"]] * 2
    factors = len(world.widths)
    titles = [drawing.title for drawing in found.drawings]
    named = [f"factor {place + 1}, " for place in range(factors)] if factors > 1 else [""]
    assert len(titles) == 3 * factors + 2 * factors
    strip = [f"{name}step {step}: R2 " for name in named for step in (2, 9)]
    assert all(title.startswith(start) for title, start in zip(titles[3 * factors :], strip, strict=True))
    assert any("kept 2 checkpoints: for more of its training" in note for note in found.notes)
    assert [drawing.step for drawing in found.drawings] == [None] * 3 * factors + [2, 9] * factors
    assert [drawing.true for drawing in found.drawings] == [True, False, False] * factors + [False] * 2 * factors
    for drawing in found.drawings:
        assert "in the colour of the true one" in drawing.note
        assert bool(drawing.x_title) != bool(drawing.texts), "axes have titles, the corners of a simplex names"
    first, second = found.drawings[:2]
    for one, other in zip(first.points, second.points):
        np.testing.assert_allclose(one.places, other.places, atol=1e-3)
        assert one.colours == other.colours
    plain = json.loads(json.dumps(dataclasses.asdict(first)))
    assert stored(Drawing, plain) == first
    if factors > 1:
        assert metrics["dimensions_factored"] == (2 - 1) + (3 - 1)
        assert metrics["dimensions_joint"] == 2 * 3 - 1
        assert metrics["components"] <= 5
        assert metrics["r2_factor_1"] == pytest.approx(1, abs=1e-5)
        assert 0 <= metrics["overlap"] <= 1


@pytest.mark.parametrize(("text", "expected"), [("post-quantum", 2), ("fanizza", 3), ("bloch-walk", 2), ("even", 1)])
def test_beliefs_have_one_dimension_less_than_states(text, expected):
    world = task(f"mess3 * {text}", length=4)
    beliefs = Known.of(world, world.prefixes(1500, 1)).beliefs
    parts = np.split(beliefs - beliefs.mean(0), [3], axis=1)
    assert [np.linalg.matrix_rank(each, tol=1e-9) for each in parts] == [2, expected]
    found = BeliefGeometry(BeliefGeometryConfig(layers=None, words=300)).analyze(subject(world, Bayesian(world)))
    assert found.metrics["dimensions_factored"] == 2 + expected
    assert world.dimensions == [2, expected]


def test_states_that_are_sums_over_tokens_are_told_from_beliefs():
    class Summing(Bayesian):
        def states(self, batch):
            found = self.world._constrained(self.world._examples(batch.tokens.numpy()))
            state = torch.from_numpy(found @ self.into).float()
            return Hidden(state, state)

    world = task("mess3", length=6)
    config = BeliefGeometryConfig(layers=None, longest=6)
    metrics = BeliefGeometry(config).analyze(subject(world, Summing(world))).metrics
    assert metrics["r2_constrained"] == pytest.approx(1, abs=1e-5)
    assert metrics["r2"] < 0.9


def test_overlap_of_subspaces():
    axes = np.eye(4)
    assert overlap(axes[:2], axes[:2]) == 1
    assert overlap(axes[:2], axes[2:]) == 0
    assert overlap(axes[:2], axes[1:2]) == overlap(axes[1:2], axes[:2]) == 1, "a line within a plane"
    turned = np.array([[1, 1, 0, 0], [0, 0, 1, 1]]) / 2**0.5
    assert overlap(axes[:1], turned[:1]) == pytest.approx(0.5)


def test_factors_that_vary_alone_leave_the_others_as_they_are():
    world = task("even * z1r * golden-mean", length=7, bos=True)
    rows = world.vary(np.random.default_rng(0), 1, 30).tokens
    assert (rows[:, 0] == 8).all()
    digits = np.unravel_index(rows[:, 1:], (2, 2, 2))
    assert (digits[0] == digits[0][0]).all()
    assert (digits[2] == digits[2][0]).all()
    assert len(np.unique(digits[1], axis=0)) > 3


@pytest.mark.parametrize("kind", [Bayesian, ReadoutOfItsOwn])
@pytest.mark.parametrize("bos", [False, True])
def test_dynamics_that_are_bayes_rule_go_on_beyond_the_length_of_training(bos, kind):
    world = task("mess3", length=6, bos=bos)
    exact = BeliefDynamics(BeliefDynamicsConfig(sequences=200)).analyze(subject(world, kind(world)))
    for key in ("r2_backbone", "r2_dynamics", "r2_dynamics_refitted", "r2_beyond", "step_1_r2", f"step_{5 + bos}_r2"):
        assert exact.metrics[key] == pytest.approx(1, abs=1e-5)
    for key in ("excess_backbone", "excess_dynamics", "excess_beyond"):
        assert exact.metrics[key] == pytest.approx(0, abs=1e-5)
    assert exact.metrics["agreement_dynamics"] == exact.metrics["agreement_beyond"] == 1
    assert exact.panels[0].curves[1].x == [float(read + bos) for read in range(1, 13)], "after <bos> R^2 is undefined"
    assert len(exact.panels[1].curves[1].x) == 12 + bos
    assert exact.drawings[0].title == "true beliefs"
    np.testing.assert_allclose(exact.drawings[0].points[0].places, exact.drawings[2].points[0].places, atol=1e-3)
    worse = BeliefDynamics(BeliefDynamicsConfig(sequences=200)).analyze(subject(world, Bayesian(world, 0.3)))
    assert worse.metrics["r2_backbone"] == pytest.approx(1, abs=1e-5)
    assert worse.metrics["r2_dynamics"] < 0.97
    assert worse.metrics["step_3_r2"] < worse.metrics["step_1_r2"]
    assert worse.metrics["excess_dynamics"] > 0.01


def test_directions_of_little_variance_do_not_hide_what_the_dynamics_keep():
    world = task("mess3", length=6)
    found = BeliefDynamics(BeliefDynamicsConfig(sequences=200)).analyze(subject(world, Faint(world)))
    fixed = BeliefDynamics(BeliefDynamicsConfig(sequences=200, cutoff=1e-6)).analyze(subject(world, Faint(world)))
    assert fixed.details["cutoff"] == 1e-6
    assert fixed.metrics["r2_backbone"] > found.metrics["r2_backbone"] > 0.98
    assert fixed.metrics["r2_dynamics"] < 0.5
    assert found.metrics["r2_dynamics"] > 0.95
    assert found.metrics["r2_beyond"] > 0.95
    assert found.details["cutoff"] > 1e-6
    far = [drawing.title for drawing in fixed.drawings if "far outside" in drawing.title]
    assert len(far) == 1
    assert far[0].startswith("dynamics alone: R2 -")
    assert not any("far outside" in drawing.title for drawing in found.drawings)
    assert min(fixed.panels[-1].curves[0].y) < 0, "not drawn as 0"


def test_what_dynamics_keep_in_another_form_is_found_by_a_map_of_their_own():
    """However faint it is, and whichever cut-off the backbone's map needs."""

    class Elsewhere(Faint):
        def states(self, batch):
            state = super().states(batch).state
            state = torch.cat([state, torch.zeros_like(state[..., :3])], -1)
            return Hidden(state, state)

        def advance(self, states, tokens):
            own = states[:, 6:].any(1, keepdim=True)
            found = super().advance(torch.where(own, states[:, 6:] / 3e-5, states[:, :3]), tokens)
            noise = torch.rand(len(found), 3, generator=torch.Generator().manual_seed(len(found)))
            return torch.cat([found[:, :3] + 0.3 * noise, found[:, 3:], 3e-5 * found[:, :3]], -1)

        def read_states(self, states):
            return super().read_states(states[:, :6])

    world = task("mess3", length=6)
    found = BeliefDynamics(BeliefDynamicsConfig(sequences=200)).analyze(subject(world, Elsewhere(world)))
    assert found.details["cutoff"] > 1e-6
    assert found.metrics["r2_dynamics_refitted"] == pytest.approx(1, abs=1e-3)


def test_backbone_and_dynamics_are_compared_at_the_same_positions():
    """After one token the dynamics have not begun: what the backbone predicts there is no figure of theirs."""

    class Late(Bayesian):
        def logits(self, batch):
            found = super().logits(batch)
            found[:, 0] = 0
            return found

    world = task("z1r", length=6)
    late = BeliefDynamics(BeliefDynamicsConfig(sequences=200)).analyze(subject(world, Late(world)))
    assert late.metrics["excess_backbone"] == pytest.approx(0, abs=1e-5)
    assert late.panels[1].curves[0].y[0] > 0.01


def test_the_prefix_that_is_bos_alone_is_not_predicted_from_others():
    """Its state is like no other, so what a map of the others says of it is no measure of them."""

    class Apart(Bayesian):
        def states(self, batch):
            state = super().states(batch).state
            noise = torch.randn(state.shape, generator=torch.Generator().manual_seed(0), dtype=state.dtype)
            first = (batch.tokens == world.process.vocabulary)[:, :, None]
            return Hidden(torch.cat([state, torch.where(first, 1e3, 1e-4 * noise)], -1), state)

        def logits(self, batch):
            state = super().states(batch).state
            return self.read_states(state.flatten(0, 1)).view(*state.shape[:2], -1)

    found = {}
    for bos in (False, True):
        world = task("mess3", length=6, bos=bos)
        made = subject(world, Apart(world))
        found[bos] = BeliefGeometry(BeliefGeometryConfig(layers=None, cutoff=1e-9)).analyze(made).metrics["r2_held_out"]
    assert found[True] == pytest.approx(found[False], abs=1e-3)


def test_prefixes_are_measured_up_to_half_a_row_and_a_note_warns_of_its_last_third():
    class Forgetful(Bayesian):
        """States of the last two tokens of a row are noise, since nothing asks about them."""

        def states(self, batch):
            known, blank = super().states(batch).state, Blank(self.world).states(batch).state
            end = torch.arange(known.shape[1]) >= known.shape[1] - 2
            return Hidden(
                torch.where(end[:, None], torch.nn.functional.pad(blank, (0, known.shape[2] - 3)), known), known
            )

        def logits(self, batch):
            return Bayesian(self.world).logits(batch)

    found = {}
    for bos in (False, True):
        world = task("rrxor", length=9, bos=bos)
        made = subject(world, Forgetful(world))
        for longest in (None, 6, 7):
            analysis = BeliefGeometry(BeliefGeometryConfig(layers=None, longest=longest))
            found[longest] = analysis.analyze(made)
        assert [found[longest].details["longest"] for longest in (None, 6, 7)] == [4, 6, 7]
        assert [len(found[longest].notes) for longest in (None, 6, 7)] == [0, 0, 1]
        assert "Train with --task.length 14 or more, or measure with `longest` 4" in found[7].notes[0]
        curve = next(panel for panel in found[7].panels if panel.x_title == "tokens read").curves[0]
        assert curve.x == [1, 2, 3, 4, 5, 6, 7]
        with pytest.raises(ValueError, match="longest must be at most 9, the tokens of a training sequence, not 10"):
            BeliefGeometry(BeliefGeometryConfig(layers=None, longest=10)).analyze(made)


def test_a_fit_of_too_few_prefixes_is_said_to_show_nothing():
    world = task("z1r", length=10, bos=True)

    class Random(Bayesian):
        """States that know nothing: as many directions as there are prefixes."""

        def states(self, batch):
            code = (batch.tokens + 1) * 3 ** torch.arange(batch.tokens.shape[1])
            state = torch.sin(code.cumsum(1)[..., None] * torch.arange(1, 41) * 0.37)
            return Hidden(state, state)

        def logits(self, batch):
            return Bayesian(self.world).logits(batch)

    few, many = (
        BeliefGeometry(BeliefGeometryConfig(layers=None, longest=longest)).analyze(subject(world, Random(world)))
        for longest in (5, 10)
    )
    assert few.metrics["r2"] > 0.99
    assert few.verdict.startswith("Too few prefixes: ")
    assert few.notes[0].startswith("31 prefixes of up to 5 tokens are too few for the 41 columns of a map")
    assert many.verdict.startswith("The last state explains ")


@pytest.mark.parametrize("name", [name for name in recipe_names() if name.startswith("hmm-")])
def test_recipes_have_rows_whose_first_half_has_enough_prefixes_for_a_fit(name):
    recipe = read_recipe(recipe_text(name), source=name)
    world = Hmm(recipe.task.config)
    assert len(world.prefixes(10_000, 1, world.row_length // 2).weights) > 3 * recipe.backbone.config.width


def test_r2_by_length_is_that_of_the_common_map_within_prefixes_of_each_length():
    class Coarse(Bayesian):
        """States know the belief after three tokens, later ones only its coarse form."""

        def states(self, batch):
            state = super().states(batch).state @ torch.from_numpy(self.back).float()
            early = torch.arange(state.shape[1]) < 3
            state = torch.where(early[:, None], state, (state * 2 + 0.0137).round() / 2)
            return Hidden(state, state)

        def logits(self, batch):
            return Bayesian(self.world).logits(batch)

    world = task("rrxor", length=12)
    found = BeliefGeometry(BeliefGeometryConfig(layers=None, cutoff=1e-3)).analyze(subject(world, Coarse(world)))
    curve = next(panel for panel in found.panels if panel.x_title == "tokens read").curves[0]
    prefixes = world.prefixes(10_000, 1, 6)
    at = prefixes.rows, prefixes.columns
    beliefs = world.beliefs(prefixes.examples)[at]
    states = np.where((at[1] < 3)[:, None], beliefs, (beliefs * 2 + 0.0137).round() / 2)
    root = np.sqrt(prefixes.weights)[:, None]
    features = np.hstack([states, np.ones((len(states), 1))])
    predicted = features @ np.linalg.lstsq(features * root, beliefs * root, rcond=1e-9)[0]
    slow = []
    for column in range(6):
        here = at[1] == column
        own, mean = beliefs[here], np.average(beliefs[here], axis=0, weights=prefixes.weights[here])
        errors, spread = ((predicted[here] - own) ** 2).sum(1), ((own - mean) ** 2).sum(1)
        slow.append(1 - prefixes.weights[here] @ errors / (prefixes.weights[here] @ spread))
    assert curve.y == pytest.approx(slow, abs=1e-4)
    assert min(curve.y[:3]) > max(curve.y[3:])


def test_prefixes_count_as_they_are_likely_or_all_alike():
    world = task("z1r", length=6)
    predictor = Bayesian(world)
    predictor.into[:] = predictor.into[:, :1]  # directions are lost, so the fit is not exact
    found = {}
    for weighting in ("probability", "equal"):
        config = BeliefGeometryConfig(layers=None, longest=6, weighting=weighting)
        found[weighting] = BeliefGeometry(config).analyze(subject(world, predictor)).metrics
    prefixes = world.prefixes(10_000, 1)
    at = prefixes.rows, prefixes.columns
    beliefs = world.beliefs(prefixes.examples)[at]
    for weighting, weights in (("probability", prefixes.weights), ("equal", np.ones(len(at[0])))):
        root = np.sqrt(weights)[:, None]
        features = np.hstack([beliefs @ predictor.into, np.ones((len(beliefs), 1))])
        predicted = features @ np.linalg.lstsq(features * root, beliefs * root, rcond=1e-9)[0]
        mean = np.average(beliefs, axis=0, weights=weights)
        spread = weights @ ((beliefs - mean) ** 2).sum(1)
        slow = 1 - weights @ ((beliefs - predicted) ** 2).sum(1) / spread
        assert found[weighting]["r2"] == pytest.approx(slow, abs=1e-4)
    assert abs(found["equal"]["r2"] - found["probability"]["r2"]) > 1e-3
    assert found["equal"]["excess"] == found["probability"]["excess"]
    with pytest.raises(ValueError, match="weighting equal counts each prefix once, but there are too many to list"):
        BeliefGeometry(BeliefGeometryConfig(layers=None, longest=6, weighting="equal", words=5)).analyze(
            subject(world, predictor)
        )


def test_drawings_of_factors_have_the_r2_of_the_factor():
    world = task("mess3 * bloch-walk", length=4)
    predictor = Bayesian(world)
    predictor.into[:, 0] = predictor.into[:, 1]  # a direction is lost
    found = BeliefGeometry(BeliefGeometryConfig(layers=None, words=300)).analyze(subject(world, predictor))
    for factor in (1, 2):
        title = f"factor {factor}, last state: R2 {found.metrics[f'r2_factor_{factor}']:.3f}"
        assert title in [drawing.title for drawing in found.drawings]


@pytest.mark.filterwarnings("error")
def test_means_over_no_position_are_left_out():
    world = task("mess3", length=2)
    found = BeliefDynamics(BeliefDynamicsConfig(sequences=20)).analyze(subject(world, Bayesian(world)))
    assert not {"excess_backbone", "excess_dynamics", "agreement_dynamics"} & set(found.metrics)
    assert "excess_beyond" in found.metrics
    assert np.isfinite(list(found.metrics.values())).all()
    assert found.main == ["r2_dynamics", "r2_backbone", "r2_beyond"]


SMALL = [
    "--trainer.batch_size=8",
    "--backbone.width=16",
    "--backbone.heads=2",
    "--backbone.layers=2",
    "--trainer.steps=2",
]


def test_models_and_tasks_that_have_none_are_told_which_do(tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["train", "hmm-rrxor", *SMALL, "--task.held_out_sequences=20", "--out", str(run)]) == 0
    capsys.readouterr()
    assert main(["analyze", str(run), "belief-dynamics"]) == 2
    said = capsys.readouterr().err
    assert "latent dynamics: such models, with default fields, have the objective next_latent" in said
    assert main(["analyze", str(run), "belief-geometry", "--layers", "blocks.7.hook_resid_post"]) == 2
    assert "there are blocks 0 to 1" in capsys.readouterr().err
    assert main(["analyze", str(run), "belief-geometry", "--words", "1"]) == 2
    assert "words must be at least 2" in capsys.readouterr().err
    graphs = tmp_path / "graphs"
    assert main(["train", "path-star-small", *SMALL, "--task.held_out_graphs=20", "--out", str(graphs)]) == 0
    capsys.readouterr()
    for name in ("belief-geometry", "belief-dynamics"):
        assert main(["analyze", str(graphs), name]) == 2
        assert "beliefs are known exactly: such tasks are hmm and pomdp" in capsys.readouterr().err


def test_layers_of_a_real_model_are_fitted_one_by_one(tmp_path, capsys):
    run = tmp_path / "run"
    flags = ["--task.held_out_sequences=20", "--task.length=5", "--trainer.keep=0,log:2"]
    assert main(["train", "hmm-rrxor", *SMALL, *flags, "--objective", "next_latent", "--out", str(run)]) == 0
    capsys.readouterr()
    assert main(["analyze", str(run), "belief-geometry", "--checkpoints", "all", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    names = [f"blocks.{layer}.hook_resid_post" for layer in range(2)]
    assert found["details"]["layers"] == [*names, "concat", "state"]
    for name in names:
        assert found["metrics"][f"r2_{name}"] <= found["metrics"]["r2_concat"] + 1e-6
        assert found["metrics"][f"mse_{name}"] >= found["metrics"]["mse_concat"] - 1e-9
        assert found["metrics"][f"distance_{name}"] > 0
    assert any("the run kept 3 checkpoints: for more" in note for note in found["notes"])
    metrics, (trained, untrained, *controls) = found["metrics"], found["panels"][0]["curves"]
    assert trained["x"] == untrained["x"] == [1, 2, 3, 4]
    assert found["panels"][0]["x_title"] == "layer (3: last state, 4: all layers)"
    assert trained["y"][2:] == [metrics["r2"], metrics["r2_concat"]]
    assert untrained["y"][2:] == [metrics["r2_untrained"], metrics["r2_untrained_concat"]]
    (shuffled,) = [curve for curve in controls if curve["label"] == "shuffled beliefs"]
    assert shuffled["y"][2:] == [metrics["r2_shuffled"], metrics["r2_shuffled_concat"]]
    assert main(["analyze", str(run), "belief-dynamics", "--length", "100000"]) == 2
    assert "2,000 sequences of 100,000 tokens have " in capsys.readouterr().err
    assert main(["analyze", str(run), "belief-dynamics", "--sequences", "30", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["details"]["length"] == 10


def test_steps_far_apart_have_a_logarithmic_axis_without_step_0():
    untrained = Curve("untrained", [0.0, 40.0], [0.1, 0.1], "control")
    panel = Panel("training step", "R2", [Curve("last state", [0.0, 1.0, 40.0], [0.1, 0.2, 0.3]), untrained])
    found = over_steps(panel)
    assert (found.log_x, [curve.x for curve in found.curves]) == (True, [[1.0, 40.0]] * 2)
    assert [curve.y for curve in found.curves] == [[0.2, 0.3], [0.1, 0.1]]
    near = dataclasses.replace(panel, curves=[Curve("last state", [0.0, 5.0, 10.0], [0.1, 0.2, 0.3])])
    assert over_steps(near) == near


@pytest.mark.parametrize("text", ["rrxor", "z1r * even", "checksum"])
def test_drawings_of_other_prefixes_of_a_process_are_not_mirrored(text):
    world = task(text, length=6)
    drawn = []
    for words in (40, 300):
        prefixes = world.prefixes(words, 1)
        truth = world.beliefs(prefixes.examples)[prefixes.rows, prefixes.columns]
        drawn.append(planes(world, truth, prefixes.weights))
    for one, other in zip(*drawn, strict=True):
        assert np.einsum("kd,kd->k", one.axes[:1], other.axes[:1]) > 0.9
