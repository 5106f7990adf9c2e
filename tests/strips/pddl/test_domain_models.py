"""PDDL domains without a problem: the model over given actions accepts what the definition says."""

import re
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.strips.pddl.domain_models import actions_of_domain, model_of_domain
from statewise.strips.pddl.pddl import write_pddl
from statewise.strips.trace_data.domains import domain
from statewise.strips.verification.verification import verify

FERRY = """(define (domain ferry) (:requirements :strips :typing)
 (:types car port)
 (:predicates (at-ferry ?l - port) (at ?c - car ?l - port) (on ?c - car) (loaded))
 (:action sail :parameters (?a ?b - port) :precondition (and (at-ferry ?a) (not (= ?a ?b)))
  :effect (and (at-ferry ?b) (not (at-ferry ?a))))
 (:action board :parameters (?c - car ?l - port) :precondition (and (at ?c ?l) (at-ferry ?l) (not (loaded)))
  :effect (and (on ?c) (loaded) (not (at ?c ?l))))
 (:action debark :parameters (?c - car ?l - port) :precondition (and (on ?c) (at-ferry ?l))
  :effect (and (at ?c ?l) (not (loaded)) (not (on ?c)))))
"""


def written(folder, text):
    path = folder / "d.pddl"
    path.write_text(text)
    return path


def test_a_domain_is_equivalent_to_a_known_one_of_any_size(tmp_path):
    path = written(tmp_path, FERRY)
    world = domain("ferry:4x3")
    verdict = verify(model_of_domain(path, world.model.names), world, drawn_only=True)
    assert (verdict.outcome, verdict.proven) == ("equivalent", "all instances")
    wrong = written(tmp_path, FERRY.replace(" (not (loaded))) (", " (", 1).replace("(not (loaded))", "", 1))
    assert verify(model_of_domain(wrong, world.model.names), world, drawn_only=True).outcome == "different"


def test_a_ground_model_is_read_back_under_the_names_of_its_actions(tmp_path):
    model, path = domain("blocksworld:3").model, tmp_path / "ground.pddl"
    write_pddl(model, path, "ground")
    assert "(:action stack-b1-b2" in path.read_text()
    assert set(actions_of_domain(path)) == set(model.names)
    read = model_of_domain(path, model.names)
    assert verify(read, model).outcome == "equivalent"
    path.write_text(path.read_text().replace(";", "; ;", 1))  # another comment
    assert "stack-b1-b2" in actions_of_domain(path)


def test_a_few_objects_of_each_type(tmp_path):
    names = actions_of_domain(written(tmp_path, FERRY))
    assert len(names) == 3 * 2 + 9 + 9  # ports must differ
    assert {"sail port1 port2", "board car3 port1"} <= set(names)
    assert "sail port1 port1" not in names
    with_constant = written(tmp_path, FERRY.replace("(:predicates", "(:constants dock - port) (:predicates"))
    assert "sail dock port1" in actions_of_domain(with_constant)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_model_rejects_what_requires_the_opposite_of_what_is_known(tmp_path_factory, data):
    """Known literals, simulated directly: an action is rejected if it requires the opposite of a known one."""
    literals = st.lists(
        st.tuples(st.sampled_from(["(p ?x)", "(q ?x ?y)", "(q ?y ?x)", "(q ?x c)", "(r)"]), st.booleans()), max_size=3
    )
    parts = {name: (data.draw(literals), data.draw(literals)) for name in ("go", "put")}

    def conjunction(some):
        return f"(and {' '.join(atom if value else f'(not {atom})' for atom, value in some)})"

    actions = "\n".join(
        f"(:action {name} :parameters (?x ?y) :precondition {conjunction(pre)} :effect {conjunction(effects)})"
        for name, (pre, effects) in parts.items()
    )
    path = written(
        tmp_path_factory.mktemp("d"),
        f"(define (domain d) (:constants c) (:predicates (p ?x) (q ?x ?y) (r) (not-p)) {actions})",
    )
    names = [f"{name} {x} {y}" for name in parts for x, y in product("ac", repeat=2)]
    model = model_of_domain(path, names)

    def grounded(some, x, y):
        return [(atom.replace("?x", x).replace("?y", y), value) for atom, value in some]

    for trace in data.draw(st.lists(st.lists(st.sampled_from(names), max_size=5), max_size=20)):
        known, rejected = {}, None
        for at, name in enumerate(trace):
            schema, x, y = name.split()
            pre, effects = (grounded(each, x, y) for each in parts[schema])
            if rejected is None and any(known.get(atom, value) != value for atom, value in pre):
                rejected = at
            known |= {atom: False for atom, value in effects if not value}
            known |= {atom: True for atom, value in effects if value}
        assert model.first_rejected([model.number[name] for name in trace]) == rejected


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("(not (loaded)))", "(or (loaded) (on ?c)))", 6, "the action 'board' has a disjunction, a quantifier or"),
        ("(not (= ?a ?b))", "(= ?a ?b)", 4, "the action 'sail' has a disjunction, a quantifier or an equality"),
        ("(on ?c) (loaded)", "(when (loaded) (on ?c))", 6, "has an effect with a condition or a quantifier"),
        ("(?c - car ?l - port)", "(?c - car ?l ?m - port)", 6, "'board' has 3 parameters, and the action 'board c0"),
        ("(:types car port)", "(:types car)", 3, "the type 'port' is not declared"),
    ],
)
def test_what_needs_objects_is_named_with_its_line(tmp_path, old, new, line, said):
    path = written(tmp_path, FERRY.replace(f":parameters {old}", f":parameters {new}").replace(old, new, 1))
    with pytest.raises(ValueError, match=rf"d.pddl:{line}: .*{re.escape(said)}"):
        model_of_domain(path, domain("ferry:2x1").model.names)


def test_equal_objects_that_must_differ_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"'sail l0 l0' is no action of this domain, which requires that \?a and \?b"):
        model_of_domain(written(tmp_path, FERRY), ["sail l0 l0"])
