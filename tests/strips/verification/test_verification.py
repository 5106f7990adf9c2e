"""Verification against the slow search over both models at once, on random small models and on known domains."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from product_search import product_search, real_search
from rewritten import flipped, permuted, split, two_of_three, with_needless_adds

from statewise.strips.model.heads import heads
from statewise.strips.model.model import Action, ActionModel, bits
from statewise.strips.trace_data.domains import Domain, domain
from statewise.strips.verification import containment, verification
from statewise.strips.verification.containment import contained, implied
from statewise.strips.verification.verification import Verdict, difference_on, verify


@st.composite
def models(draw, atoms=None, actions=None):
    atoms = draw(st.integers(3, 4)) if atoms is None else atoms
    actions = draw(st.integers(3, 4)) if actions is None else actions
    sets = st.integers(0, (1 << atoms) - 1)
    sparse = st.builds(int.__and__, sets, sets)
    made = []
    for number in range(actions):
        delete = draw(sparse)
        made.append(Action("abcd"[number], draw(sparse), draw(sets) & ~delete, delete))
    return ActionModel(tuple(f"x{atom}" for atom in range(atoms)), tuple(made))


@st.composite
def pairs(draw):
    """Two models over the same actions, often nearly equal."""
    reference = draw(models())
    if draw(st.integers(0, 3)) == 0:
        return draw(models(actions=len(reference.actions))), reference
    flips = st.tuples(
        st.integers(0, len(reference.atoms) - 1), st.integers(0, len(reference.actions) - 1), st.integers(0, 2)
    )
    learned = flipped(reference, draw(st.lists(flips, max_size=4)))
    return permuted(learned, lambda numbers: draw(st.permutations(numbers))), reference


def agrees(verdict: Verdict, found, learned: ActionModel, reference: ActionModel) -> None:
    """The verdict is that of the slow search, and its counterexample is one."""
    if found is None:
        assert verdict.outcome == "equivalent"
        assert verdict
        assert verdict.counterexample is verdict.accepted_by is verdict.head is verdict.start is None
        return
    assert verdict.outcome == "different"
    assert not verdict
    assert verdict.shortest
    assert len(verdict.counterexample) == len(found)
    is_counterexample(verdict, learned, reference)


def is_counterexample(verdict: Verdict, learned: ActionModel, reference: ActionModel) -> None:
    """One model accepts all of it, the other, and its head alone, all but the last action."""
    by_name = {"learned": learned, "reference": reference}
    accepting = by_name.pop(verdict.accepted_by)
    (rejecting,) = by_name.values()
    assert accepting.first_rejected(accepting.number[name] for name in verdict.counterexample) is None
    trace = [rejecting.number[name] for name in verdict.counterexample]
    assert rejecting.first_rejected(trace) == len(trace) - 1
    alone = rejecting.with_atoms([rejecting.atoms.index(verdict.head)])
    assert alone.first_rejected(trace) == len(trace) - 1


@settings(max_examples=150, deadline=None)
@given(pairs())
def test_verdicts_are_those_of_the_product_search(pair):
    learned, reference = pair
    agrees(verify(learned, reference), product_search(learned, reference)[0], learned, reference)


@settings(max_examples=150, deadline=None)
@given(pairs(), st.lists(st.integers(0, 15), min_size=1, max_size=2), st.booleans())
def test_with_real_states_too(pair, start, drawn_only):
    learned, reference = pair
    mask = (1 << len(reference.atoms)) - 1
    where = Domain("random", reference, tuple(state & mask for state in start))
    verdict = verify(learned, where, real_states=True, drawn_only=drawn_only)
    found, _ = real_search(learned, where, undone=not drawn_only)
    agrees(verdict, found, learned, reference)
    if found is not None:
        state = sum(1 << reference.atoms.index(atom) for atom in verdict.start)
        assert state in where.states
        for name in verdict.counterexample[:-1]:
            number = reference.number[name]
            assert number in reference.applicable(state)
            state = reference.result(state, number)
        if drawn_only and verdict.accepted_by == "reference":
            assert reference.number[verdict.counterexample[-1]] in reference.applicable(state)


@settings(max_examples=100, deadline=None)
@given(pairs(), st.lists(st.integers(0, 7), min_size=1, max_size=2), st.integers(1, 12), st.booleans())
def test_what_is_found_within_a_limit_is_true(pair, start, max_states, drawn_only):
    learned, reference = pair
    where = Domain("random", reference, tuple(start))
    found = product_search(learned, reference)[0], real_search(learned, where, undone=not drawn_only)[0]
    verdicts = (
        verify(learned, reference, max_states=max_states),
        verify(learned, where, real_states=True, drawn_only=drawn_only, max_states=max_states),
    )
    for right, verdict in zip(found, verdicts):
        if verdict.outcome == "different":
            is_counterexample(verdict, learned, reference)
            assert len(verdict.counterexample) >= len(right)
            assert not verdict.shortest or len(verdict.counterexample) == len(right)
        else:
            assert verdict.outcome == "unknown" or right is None


@settings(max_examples=120, deadline=None)
@given(pairs())
def test_two_containments_are_an_equivalence(pair):
    learned, reference = pair
    both = contained(learned, reference), contained(reference, learned)
    assert all(both) == (product_search(learned, reference)[0] is None)


@settings(max_examples=150, deadline=None)
@given(models(atoms=4), st.integers(0, 3), st.integers(0, 15))
def test_an_implied_atom_is_one_that_changes_nothing(model, atom, among):
    without = model.with_atoms([at for at in bits(among) if at != atom])
    with_it = model.with_atoms(list(bits(among | 1 << atom)))
    assert implied(model, atom, among) == (product_search(without, with_it)[0] is None)


@settings(max_examples=100, deadline=None)
@given(models(atoms=4))
def test_a_head_that_covers_another_rejects_all_that_it_rejects(model):
    columns = heads(model)
    for one, covering in enumerate(columns):
        for other, covered in enumerate(columns):
            if one != other and covering.covers(covered):
                assert product_search(model.with_atoms([one]), model.with_atoms([one, other]))[0] is None


@settings(max_examples=100, deadline=None)
@given(pairs())
def test_what_pairs_exclude_is_never_found(pair):
    learned, reference = pair
    reference = reference.with_actions(learned.names)
    for head in heads(reference):
        search = containment.KnownFalseSearch(learned, head)
        if search.excluded(containment.Limits()):
            alone = reference.with_atoms([reference.atoms.index(head.name)], ["the head"])
            assert product_search(learned, joined(learned, alone))[0] is None


def joined(one: ActionModel, other: ActionModel) -> ActionModel:
    """One model with the atoms of two."""
    actions = []
    for first, second in zip(one.actions, other.actions):
        sets = zip((first.pre, first.add, first.delete), (second.pre, second.add, second.delete))
        actions.append(Action(first.name, *(mine | theirs << len(one.atoms) for mine, theirs in sets)))
    return ActionModel((*one.atoms, *other.atoms), tuple(actions))


@pytest.mark.parametrize("spec", ["simple", "blocksworld:2", "blocksworld:3", "ferry:2x2", "gripper:2", "hanoi:3"])
def test_equivalent_models(spec):
    where = domain(spec)
    mirrored = permuted(where.model, lambda numbers: list(numbers)[::-1])
    needless = with_needless_adds(where.model)
    for learned in (where.model, mirrored, split(where.model, 1), needless, split(with_needless_adds(mirrored), 2)):
        assert verify(learned, where)
        assert verify(learned, split(where.model, 3))
        assert verify(learned, where, real_states=True)
        assert verify(learned, where, drawn_only=True)


def test_a_split_model_without_one_of_its_parts():
    where = domain("blocksworld:2")
    parts = split(where.model, 1)
    everything = (1 << len(parts.atoms)) - 1
    for atom in range(len(parts.atoms)):
        fewer = parts.with_atoms([at for at in range(len(parts.atoms)) if at != atom])
        found, _ = product_search(fewer, where.model)
        agrees(verify(fewer, where), found, fewer, where.model)
        assert implied(parts, atom, everything) == (found is None)
        agrees(verify(fewer, where, real_states=True), real_search(fewer, where, undone=True)[0], fewer, where.model)


def test_pruning_one_atom_after_the_other():
    where = domain("blocksworld:3")
    doubled = joined(split(where.model, 1), where.model)
    among = (1 << len(doubled.atoms)) - 1
    for atom in range(len(doubled.atoms)):
        if implied(doubled, atom, among):
            among &= ~(1 << atom)
    left = doubled.with_atoms(list(bits(among)))
    assert left.atoms == where.model.atoms
    assert verify(left, where)


def test_single_bit_errors_of_blocksworld_that_real_states_hide():
    where = domain("blocksworld:2")
    counts = {"nothing changed": 0, "definition 1": 0, "real states": 0, "drawn traces": 0}
    for atom in range(9):
        for number in range(8):
            for which in range(3):
                wrong = flipped(where.model, [(atom, number, which)])
                if wrong == where.model:
                    counts["nothing changed"] += 1
                    continue
                exact = verify(wrong, where)
                real = verify(wrong, where, real_states=True)
                drawn = verify(wrong, where, drawn_only=True)
                for verdict in (exact, real, drawn):
                    counts[verdict.notion] += bool(verdict)
                agrees(exact, product_search(wrong, where.model)[0], wrong, where.model)
                agrees(real, real_search(wrong, where, undone=True)[0], wrong, where.model)
                agrees(drawn, real_search(wrong, where)[0], wrong, where.model)
    assert counts == {"nothing changed": 36, "definition 1": 0, "real states": 16, "drawn traces": 24}


def test_different_models_may_accept_the_same_traces():
    """theta is not unique: once b is accepted its precondition is fine, so that adding it changes nothing."""
    one = ActionModel.of(["p"], {"a": ([], [], ["p"]), "b": (["p"], [], []), "c": ([], ["p"], [])})
    other = ActionModel.of(["p"], {"a": ([], [], ["p"]), "b": (["p"], ["p"], []), "c": ([], ["p"], [])})
    assert one != other
    assert verify(one, other)
    more = ActionModel.of(["p", "q"], {"a": ([], ["q"], ["p"]), "b": (["p", "q"], [], []), "c": ([], ["p"], [])})
    assert verify(more, one), "nothing deletes q, so it can reject nothing"


def test_an_atom_added_and_deleted_is_added():
    both = ActionModel(("p",), (Action("a", 0, 1, 1), Action("b", 1, 0, 0)))
    added = ActionModel(("p",), (Action("a", 0, 1, 0), Action("b", 1, 0, 0)))
    deleted = ActionModel(("p",), (Action("a", 0, 0, 1), Action("b", 1, 0, 0)))
    assert both == added
    assert verify(both, added)
    assert verify(both, deleted).counterexample == ("a", "b")
    assert verify(both, Domain("x", both, (1,)), real_states=True)


def test_what_a_verdict_says():
    where = domain("simple")
    lenient = where.model.with_atoms([0, 1])  # without r, which keeps a c between a and b
    verdict = verify(lenient, where)
    assert (verdict.outcome, verdict.accepted_by, verdict.head) == ("different", "learned", "r")
    assert verdict.counterexample == ("a", "b")
    assert verdict.start is None
    real = verify(lenient, where, real_states=True)
    assert (real.notion, real.counterexample, real.head) == ("real states", ("a", "b"), "r")
    assert set(real.start) >= {"p", "r"}
    strict = flipped(where.model, [(0, 2, 0)])  # c requires p
    verdict = verify(strict, where)
    assert (verdict.counterexample, verdict.accepted_by, verdict.head) == (("a", "c"), "reference", "p")


def test_limits_make_it_unknown():
    learned, reference = two_of_three()
    where = Domain("two of three", reference, ((1 << 10) - 1,))
    assert verify(learned, reference).states > 20
    for limits, reason in (({"max_states": 20}, "20 states"), ({"seconds": 0.0}, "0 s")):
        for verdict in (verify(learned, reference, **limits), verify(learned, where, real_states=True, **limits)):
            assert verdict.outcome == "unknown"
            assert not verdict
            assert verdict.counterexample is verdict.proven is None
            assert verdict.depth >= 1
            assert reason in verdict.reason
        assert contained(learned, reference, **limits) is None
    assert implied(reference, 9, (1 << 9) - 1, max_states=0) is None
    assert verify(reference, where, seconds=0.0, max_states=0), "nothing needs to be searched"


def test_many_real_states_are_given_up_in_time(monkeypatch):
    monkeypatch.setattr(verification, "cut_off", lambda *models: None)
    monkeypatch.setattr(verification._Verification, "_prove_here", lambda *given: None)
    where = domain("blocksworld:8")
    verdict = verify(split(where.model, 1), where, real_states=True, seconds=0.5)
    assert (verdict.outcome, verdict.reason) == ("unknown", "undecided within 0.5 s")


def test_a_difference_found_before_the_limit_counts_but_may_not_be_the_shortest():
    """The learned model's q forbids a cheap trace of five actions, its r one of four that takes more states to find."""
    many = range(8)
    effects = {
        "a": ([], [], ["x1", "x2", "x3"]),
        "s1": ([], ["x1"], []),
        "s2": (["x1"], ["x2"], []),
        "s3": (["x2"], ["x3"], []),
        "c": (["x3"], [], []),
        **{f"d{at}": ([], [], [f"y{at}", "z"]) for at in many},
        **{f"f{at}": ([], [f"y{at}"], []) for at in many},
        "g": ([f"y{at}" for at in many], ["z"], []),
        "e": (["z"], [], []),
    }
    atoms = ["x1", "x2", "x3", "z", *(f"y{at}" for at in many)]
    reference = ActionModel.of(atoms, effects)
    effects["a"][2].append("q")
    effects["c"][0].append("q")
    effects["e"][0].append("r")
    for at in many:
        effects[f"d{at}"][2].append("r")
    learned = ActionModel.of([*atoms, "q", "r"], effects)

    full = verify(learned, reference)
    assert (full.head, len(full.counterexample), full.shortest, full.reason) == ("r", 4, True, None)
    cut = verify(learned, reference, max_states=full.states - 1)
    assert (cut.outcome, cut.head, cut.shortest) == ("different", "q", False)
    assert cut.counterexample == ("a", "s1", "s2", "s3", "c")
    assert "states" in cut.reason
    assert verify(learned, reference, max_states=10).outcome == "unknown"


def test_a_trace_is_cut_where_the_models_part_first():
    reference = ActionModel.of(["p"], {"a": ([], [], ["p"]), "b": ([], [], []), "c": (["p"], [], [])})
    learned = ActionModel.of(["x"], {"a": ([], [], ["x"]), "b": (["x"], [], []), "c": ([], [], [])})
    found = difference_on(learned, reference, [0, 1, 2])
    assert (found.trace, found.accepted_by, found.head) == ((0, 1), "reference", "x")
    found = difference_on(reference, learned, [0, 1, 2])
    assert (found.trace, found.accepted_by, found.head) == ((0, 1), "learned", "x")
    with pytest.raises(AssertionError):
        difference_on(learned, reference, [1, 2])


def test_an_action_unseen_in_training_is_named_and_never_rejected():
    true = domain("simple").model
    known = ActionModel(true.atoms, true.actions[1:])  # without a
    found = verify(known, true)
    assert found.unseen == ("a",)
    assert found.outcome == "different"
    assert found.accepted_by == "learned"
    assert found.counterexample == ("a", "a")
    idle = ActionModel(true.atoms, (*true.actions, Action("d", 0, 0, 0)))
    assert verify(true, idle)
    assert verify(true, idle).unseen == ("d",)
    assert not verify(true, true).unseen


def test_what_cannot_be_compared():
    one, other = domain("blocksworld:2").model, domain("blocksworld:3").model
    with pytest.raises(ValueError, match="the reference has no 'pickup b3', 'putdown b3', 'stack b1 b3'"):
        verify(other, one)
    with pytest.raises(ValueError, match="different actions"):
        contained(one, other)
    with pytest.raises(ValueError, match="must be one, not just an action model"):
        verify(one, one, real_states=True)


def test_single_bit_errors_of_three_blocks():
    """Of one action of each schema: those of the others are the same with the blocks renamed."""
    where = domain("blocksworld:3")
    schemas = Counter(name.split()[0] for name in where.model.names)
    assert schemas == {"pickup": 3, "putdown": 3, "stack": 6, "unstack": 6}
    hidden = 0
    for schema, actions in schemas.items():
        number = [name.split()[0] for name in where.model.names].index(schema)
        for atom in range(16):
            for which in range(3):
                wrong = flipped(where.model, [(atom, number, which)])
                hidden += actions * (verify(wrong, where, real_states=True).outcome != verify(wrong, where).outcome)
    assert hidden == 12
