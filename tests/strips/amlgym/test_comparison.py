"""The tables and the measures of the comparison; AMLGym itself is not needed."""

import pytest

from statewise.strips.amlgym.comparison import amlgym_methods, amlgym_summary, amlgym_trajectories
from statewise.strips.amlgym.exactness import exact_on
from statewise.strips.amlgym.measures import plain_actions, predictive, read_task, shares, syntactic

DOMAIN = """(define (domain d) (:requirements :strips) (:predicates (at ?x) (link ?x ?y))
 (:action go :parameters (?x ?y) :precondition (and (at ?x) {more}) :effect (and (at ?y) (not (at ?x)))))"""
PROBLEM = (
    "(define (problem q) (:domain d) (:objects a b c) (:init (at a) (link a b) (link b a) (link b c)) (:goal (at c)))"
)


@pytest.fixture
def files(tmp_path):
    def write(name, more):
        path = tmp_path / name
        path.write_text(DOMAIN.format(more=more))
        return path

    problem = tmp_path / "problem.pddl"
    problem.write_text(PROBLEM)
    return write, problem


def test_measures_of_a_domain_that_lacks_a_precondition(files):
    write, problem = files
    true, lenient = write("true.pddl", "(link ?x ?y)"), write("lenient.pddl", "")
    strict = write("strict.pddl", "(link ?x ?y) (link ?y ?x)")
    assert exact_on(true, true, problem).outcome == "equivalent"
    assert exact_on(lenient, true, problem).accepted_by == "learned"
    assert exact_on(strict, true, problem).accepted_by == "reference"
    task = read_task(true, problem)
    mine, theirs = plain_actions(read_task(lenient, problem)), plain_actions(task)
    found = syntactic(mine, theirs)
    assert (found["pre_precision"], found["pre_recall"], found["effects_recall"]) == (1.0, 0.5, 1.0)
    state = frozenset({("at", "a"), ("link", "a", "b"), ("link", "b", "a")})
    counts = predictive(mine, theirs, task, [state])
    assert counts["applicable"]["go"] == (1, 2, 0)  # a to b; also to a and c
    assert shares([counts, counts])["applicable_precision"] == pytest.approx(1 / 3)
    assert shares([counts])["changes_precision"] == 1.0


def test_lists_of_methods_and_numbers():
    assert amlgym_methods("ours, sam") == ["actions", "names", "half", "full", "SAM"]
    assert amlgym_trajectories("10,1-3") == [10, 1, 2, 3]
    for text in ("", "0", "3-", "11", "a", "9" * 30):
        with pytest.raises(ValueError, match="--trajectories"):
            amlgym_trajectories(text)
    with pytest.raises(ValueError, match="did you mean"):
        amlgym_methods("SAMM")


def test_tables():
    row = {
        "domain": "ferry",
        "method": "full",
        "trajectories": 10,
        "exact": "equivalent",
        "seconds": 0.5,
        "pre_recall": 1.0,
    }
    lost = {"domain": "ferry", "method": "SAM", "trajectories": 10, "error": "TypeError"}
    text = amlgym_summary([row, lost, {**row, "trajectories": 1, "exact": "different"}])
    assert "| ferry | = 0.50 | ! |" in text
    assert "| full | 0 of 1 | 1 of 1 |" in text
    assert amlgym_summary([]) == "\n"
