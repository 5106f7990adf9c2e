"""Effects from elsewhere with preconditions found exactly, from noisy traces."""

import pytest

from statewise.strips.exact.features import Feature
from statewise.strips.exact.frame import Work
from statewise.strips.exact.noisy import fitted, learn_noisy
from statewise.strips.hybrid import effects_of, learn_hybrid
from statewise.strips.methods import learn, learn_schemas
from statewise.strips.model.heads import Heads
from statewise.strips.model.learned import read_learned_model
from statewise.strips.model.model import ActionModel
from statewise.strips.neural.learning import Settings
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces, with_noise
from statewise.strips.verification.verification import verify

QUICK = Settings(restarts=2, steps=50, check_every=25)
SIMPLE = domain("simple")


def test_effects_are_those_of_the_heads():
    model = ActionModel.of(
        ["p", "q", "r"], {"a": (["p"], ["q"], ["p"]), "b": (["q"], ["p"], []), "c": ([], ["r"], ["q"])}
    )
    twice = Heads.of_model(model).only([0, 1, 0, 2])
    assert effects_of(twice) == [Feature(0b001, 0b010), Feature(0b100, 0b001)]  # nothing deletes r


@pytest.mark.parametrize("kind", ["labels", "actions"])
def test_effects_that_do_not_alternate_are_taken_where_they_are_worth_it(kind):
    """In `simple` one action adds an atom twice: without its effect no noisy traces give the model."""
    noisy = with_noise(traces(SIMPLE, 300, 10, 1), 0.1, kind, 1)
    offered = effects_of(Heads.of_model(SIMPLE.model))
    assert verify(fitted(Work("hybrid", noisy), offered).model, SIMPLE, drawn_only=True)
    assert not verify(learn_noisy(noisy).model, SIMPLE, drawn_only=True)


def test_wrong_effects_beside_the_right_ones_do_no_harm():
    noisy = with_noise(traces(SIMPLE, 300, 10, 1), 0.05, "labels", 1)
    right = effects_of(Heads.of_model(SIMPLE.model))
    wrong = [Feature(delete, add) for delete in range(1, 8) for add in range(8) if not delete & add]
    assert verify(fitted(Work("hybrid", noisy), [*right, *wrong]).model, SIMPLE, drawn_only=True)


def test_training_and_refitting_together(tmp_path):
    noisy = with_noise(traces(domain("ferry:2x1"), 300, 20, 1), 0.05, "labels", 1)
    learned = learn(noisy, QUICK, method="hybrid", folder=tmp_path / "out")
    assert (learned.report["method"], learned.report["chosen"]) == ("hybrid", "requested")
    assert learned.report["training_accuracy"] == pytest.approx(0.95)
    assert len(learned.report["restarts"]) == 2
    assert read_learned_model(tmp_path / "out") == learned.model
    assert not (tmp_path / "out" / "seen.json").exists()
    with pytest.raises(FileExistsError):
        learn(noisy, QUICK, method="hybrid", folder=tmp_path / "out")
    assert learn_hybrid(noisy, QUICK).model == learned.model


def test_stopped_training_gives_a_model_that_says_so():
    noisy = with_noise(traces(domain("ferry:2x1"), 300, 20, 1), 0.05, "labels", 1)
    unfinished = learn_hybrid(noisy, QUICK, stop=lambda: True).report["unfinished"]
    assert "training: 0 of at most 50 steps" in unfinished


def test_what_it_cannot_learn_is_refused():
    walks = traces(domain("ferry:2x1"), 20, 10, 1, negatives=0.0)
    with pytest.raises(ValueError, match="without negative traces"):
        learn(walks, QUICK, method="hybrid")
    with pytest.raises(ValueError, match="ground models only"):
        learn_schemas(walks, QUICK, method="hybrid")
