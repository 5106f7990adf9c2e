"""SIFT's test by SAT: all alternating atoms of valid actions, as enumeration finds them."""

import pytest
from peers.enumeration import enumerate_features

from statewise.strips.exact.lifted import learn_lifted_exact
from statewise.strips.methods import learn, learn_schemas
from statewise.strips.neural.learning import Settings
from statewise.strips.rivals.sift import learn_lifted_sift, learn_sift
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces
from statewise.strips.verification.containment import contained
from statewise.strips.verification.verification import verify


@pytest.mark.parametrize(("spec", "count"), [("simple", 40), ("ferry:2x1", 30), ("blocksworld:2", 30)])
def test_the_model_is_that_of_enumeration(spec, count):
    given = traces(domain(spec), count, 10, 1)
    listed = enumerate_features(given, alternating=True)
    found = learn_sift(given).model
    assert contained(found, listed)
    assert contained(listed, found)


def test_labels_are_not_read():
    given = traces(domain("ferry:2x1"), 30, 10, 1)
    assert learn_sift(given).model == learn_sift(given.valid_only()).model


def test_valid_traces_are_accepted():
    walks = traces(domain("ferry:2x1"), 10, 20, 1, negatives=0.0)
    assert learn_sift(walks).report["training_accuracy"] == 1
    assert learn_lifted_sift(walks).report["training_accuracy"] == 1


def test_schemas_of_enough_walks_are_exact_in_larger_instances():
    walks = traces(domain("blocksworld:3"), 60, 30, 1, negatives=0.0)
    larger = domain("blocksworld:4")
    assert verify(learn_lifted_sift(walks).ground(larger.model.names), larger, drawn_only=True)


def test_it_is_a_method(tmp_path):
    given = traces(domain("ferry:2x1"), 30, 10, 1)
    for how in (learn, learn_schemas):
        assert how(given, method="sift", folder=tmp_path / how.__name__).report["method"] == "sift"
        with pytest.raises(ValueError, match="every trace as noise-free"):
            how(given, Settings(noise=0.1), method="sift")


def test_what_is_stopped_says_so():
    given = traces(domain("ferry:2x1"), 30, 10, 1)
    assert learn_sift(given, stop=lambda: True).report["unfinished"]
    assert learn_lifted_sift(given, stop=lambda: True).report["unfinished"]


@pytest.mark.parametrize("learner", [learn_lifted_sift, learn_lifted_exact])
def test_what_is_being_done_is_said_in_singular_and_plural(learner):
    said = []
    learner(traces(domain("ferry:3x2"), 20, 20, 1, negatives=0.0), progress=said.append)
    of = [text.partition(" predicate")[2].rpartition("of ")[2] for text in said if " alternating predicate" in text]
    assert of == ["0 arguments", "1 argument", "2 arguments"]
