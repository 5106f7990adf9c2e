"""Simplified models against searches through the product of both models, which know nothing of heads and proofs."""

from random import Random

import pytest
from product_search import product_search, real_search
from rewritten import flipped, split, with_needless_adds
from schemas_by_hand import FERRY, as_schemas

from statewise.strips.model.learned import schemas_as_json
from statewise.strips.model.model import Action, ActionModel, bits
from statewise.strips.model.schemas import Schema, ground
from statewise.strips.planning.metrics import syntactic
from statewise.strips.trace_data.domains import Domain, domain
from statewise.strips.verification import simplification
from statewise.strips.verification.simplification import before_simplification, simplify, write_simplified
from statewise.strips.verification.verification import verify


def random_model(seed: int) -> ActionModel:
    rng = Random(seed)
    actions = []
    for number in range(4):
        pre, add, delete = (sum((rng.random() < 0.35) << at for at in range(4)) for _ in range(3))
        actions.append(Action(f"a{number}", pre, add, delete & ~add))
    return ActionModel(("p", "q", "r", "s"), tuple(actions))


def size(model: ActionModel) -> int:
    return sum(each.bit_count() for action in model.actions for each in (action.pre, action.add, action.delete))


def one_less(model: ActionModel):
    """The model without one entry, and without one atom, each in turn."""
    for number, action in enumerate(model.actions):
        for kind in ("pre", "add", "delete"):
            for atom in bits(getattr(action, kind)):
                sets = {each: getattr(action, each) & ~((each == kind) << atom) for each in ("pre", "add", "delete")}
                changed = Action(action.name, **sets)
                yield ActionModel(model.atoms, (*model.actions[:number], changed, *model.actions[number + 1 :]))
    for atom in range(len(model.atoms)):
        yield model.with_atoms([at for at in range(len(model.atoms)) if at != atom])


@pytest.mark.parametrize("seed", range(25))
def test_a_simplified_model_accepts_the_same_traces_and_has_nothing_to_spare(seed):
    model = random_model(seed)
    found = simplify(model)
    assert product_search(found.model, model)[0] is None
    assert not found.undecided
    assert found.stopped is None
    assert found.entries[1] == size(found.model)
    assert found.atoms == (4, len(found.model.atoms))
    for smaller in one_less(found.model):
        assert product_search(smaller, model)[0] is not None


@pytest.mark.parametrize("spec", ["simple", "blocksworld:2", "ferry:2x1"])
def test_a_model_written_at_length_becomes_as_short_as_the_true_one(spec):
    true = domain(spec).model
    long = split(with_needless_adds(true), 3)
    found = simplify(long)
    assert product_search(found.model, true)[0] is None
    assert found.atoms[1] <= len(true.atoms) < found.atoms[0]
    assert found.entries[1] <= size(true) < found.entries[0]


def test_real_states_need_less_than_all_traces():
    """An error of theta that no real state shows is left out, though it changes the language."""
    where = domain("blocksworld:2")
    wrong = next(
        model
        for atom in range(9)
        for number in range(8)
        for which in range(3)
        if verify(model := flipped(where.model, [(atom, number, which)]), where, real_states=True)
        and not verify(model, where)
    )
    for notion, undone in (("real states", True), ("drawn traces", False)):
        found = simplify(wrong, reference=where, notion=notion)
        assert real_search(found.model, where, undone=undone)[0] is None
        assert found.entries[1] < simplify(wrong).entries[1]
        for smaller in one_less(found.model):
            assert real_search(smaller, where, undone=undone)[0] is not None


def test_a_model_that_differs_from_the_domain_is_not_measured_by_it():
    where = domain("simple")
    lenient = where.model.with_atoms([0, 1])
    with pytest.raises(ValueError, match="not proven equivalent to simple on real states \\(different\\)"):
        simplify(lenient, reference=where, notion="real states")
    with pytest.raises(ValueError, match="needs a domain"):
        simplify(lenient, reference=where.model, notion="real states")
    assert product_search(simplify(lenient, reference=where).model, lenient)[0] is None


def test_atoms_get_the_names_that_they_match_or_those_of_their_actions():
    where = domain("ferry:2x1")
    numbered = ActionModel(tuple(f"p{at}" for at in range(len(where.model.atoms))), where.model.actions)
    assert set(simplify(numbered, reference=where).model.atoms) == set(where.model.atoms)
    assert set(simplify(numbered).model.atoms) == {
        "after-sail l0 l1",
        "after-sail-2 l0 l1",
        "after-debark c0 l0",
        "after-debark c0 l1",
        "after-board c0",
        "after-debark c0",
    }
    once = ActionModel.of(["p"], {"load x": (["p"], [], ["p"])})
    assert simplify(once).model.atoms == ("until-load x",)


def test_the_simplified_model_scores_better_than_the_long_one():
    true = domain("blocksworld:2").model
    long = split(true, 1)
    assert syntactic(simplify(long, reference=true).model, true)["precision"] > syntactic(long, true)["precision"]


def test_an_end_before_time_keeps_what_was_proven():
    model = split(domain("blocksworld:2").model, 5)
    calls = 0

    def stop():
        nonlocal calls
        calls += 1
        return calls > 150

    found = simplify(model, stop=stop)
    assert found.stopped == "interrupted"
    assert product_search(found.model, model)[0] is None
    whole = simplify(model)
    assert whole.entries[1] < found.entries[1]
    assert simplify(model, seconds=1e-9).stopped == "time"
    assert simplify(model, seconds=1e-9).entries == (size(model), size(model))


def test_what_the_verifier_cannot_decide_is_kept_and_said(monkeypatch):
    monkeypatch.setattr(simplification, "MAX_STATES", 0)
    monkeypatch.setattr(simplification, "contained", lambda *models, **limits: None)
    monkeypatch.setattr(simplification, "implied", lambda *models, **limits: None)
    true = domain("simple").model
    found = simplify(true)
    assert found.entries == (size(true), size(true))
    assert "the atom p" in found.undecided
    assert "pre of a: r" in found.undecided
    assert len(found.undecided) == size(true) + len(true.atoms)


def test_schemas_are_simplified_for_instances_of_any_size(tmp_path):
    plain = as_schemas(FERRY)
    sail, board = plain["sail"], plain["board"]
    rich = {
        **plain,
        "sail": Schema(sail.pre, sail.add | {("sea", ())}, sail.delete),
        "board": Schema(board.pre | {("sea", ())}, board.add, board.delete),
    }
    actions = domain("ferry:3x2").model.names
    found = simplify(ground(rich, actions), schemas=rich)
    assert found.schemas is not None
    assert found.model == ground(found.schemas, actions)
    assert found.entries[1] <= found.entries[0] - 2
    assert found.atoms[1] == found.atoms[0] - 1
    assert not any(literal[0] == "sea" for each in found.schemas.values() for literal in each.pre | each.add)
    for spec in ("ferry:2x1", "ferry:3x2"):
        true = domain(spec).model
        assert product_search(ground(found.schemas, true.names), true)[0] is None
    out = tmp_path / "simple"
    write_simplified(found, out, "learned/")
    # which verify judges instead: it is the same in all instances
    assert before_simplification(out, found.model.names) == rich
    (out / "schemas.json").write_bytes(schemas_as_json(rich))
    assert before_simplification(out, found.model.names) is None
    narrow = simplify(
        ground(rich, actions), schemas=rich, reference=domain("ferry:3x2"), notion="drawn traces", seconds=5
    )
    assert narrow.before is None


def without(where: Domain, schema: str) -> Domain:
    """The domain without the actions of a schema."""
    kept = tuple(action for action in where.model.actions if action.name.split()[0] != schema)
    return Domain("part", ActionModel(where.model.atoms, kept), where.start)


def test_a_schema_that_the_reference_lacks_is_proven_over_the_actions_of_training():
    plain, where = as_schemas(FERRY), domain("ferry:3x2")
    alone = simplify(where.model, schemas=plain)
    found = simplify(where.model, schemas=plain, reference=without(where, "sail"))
    assert (found.schemas, found.before) == (alone.schemas, plain)
    assert found.model.names == where.model.names
    assert found.schemas is not None
    assert product_search(ground(found.schemas, where.model.names), where.model)[0] is None


def test_a_schema_that_the_domain_lacks_stays_as_it_is():
    plain, where = as_schemas(FERRY), domain("ferry:3x2")
    part = without(where, "sail")
    found = simplify(where.model, schemas=plain, reference=part, notion="drawn traces")
    assert found.schemas is not None
    assert found.schemas["sail"] == plain["sail"]
    assert found.entries[1] < found.entries[0]
    assert verify(ground(found.schemas, part.model.names), part, drawn_only=True)
    assert found.model == ground(found.schemas, where.model.names)


def test_steps_are_proven_for_the_kinds_of_actions_that_the_reference_alone_has():
    """In training the arguments of `go` differ, so that its precondition is needless; in the reference they may be
    equal."""
    go = Schema(frozenset({("e", (0, 1))}), frozenset(), frozenset())
    schemas = {"go": go, "set": Schema(frozenset(), frozenset(), frozenset({("e", (0, 0))}))}
    names = ["go a b", "go b a", "set a", "set b"]
    assert simplify(ground(schemas, names), schemas=schemas).entries == (2, 0)
    wider = [*names, "go a a"]
    found = simplify(ground(schemas, names), schemas=schemas, reference=ground(schemas, wider))
    assert found.schemas is not None
    assert found.model.names == tuple(names)
    assert product_search(ground(found.schemas, wider), ground(schemas, wider))[0] is None


def test_schemas_are_not_simplified_by_a_reference_with_other_actions():
    plain = as_schemas(FERRY)
    with pytest.raises(ValueError, match="different actions: there is no schema for 'pickup b1'"):
        simplify(domain("ferry:3x2").model, schemas=plain, reference=domain("blocksworld:2"))


def test_the_schemas_before_count_where_the_steps_were_proven(tmp_path):
    plain, names = as_schemas(FERRY), domain("ferry:3x2").model.names
    out = tmp_path / "simple"
    write_simplified(simplify(ground(plain, names), schemas=plain), out, "learned/")
    assert before_simplification(out, domain("ferry:5x4").model.names) == plain
    assert before_simplification(out, ["sail l7 l8", "sail l8 l8"]) is None  # no such action in training
    assert before_simplification(out, ["board l0 l1", "sail l0 l1"]) is None  # nor one of a port as a car
    assert before_simplification(out, ["fly l0 l1"]) is None
