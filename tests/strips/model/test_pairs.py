from itertools import combinations_with_replacement

from hypothesis import example, given, settings
from hypothesis import strategies as st

from statewise.strips.model.model import Action, ActionModel, bits
from statewise.strips.model.pairs import closed, pairs_of_states, together
from statewise.strips.trace_data.domains import domain


@st.composite
def tasks(draw, atoms=5):
    masks = st.integers(0, 2**atoms - 1)
    actions = []
    for number in range(draw(st.integers(1, 6))):
        pre, add, delete = draw(masks) & draw(masks), draw(masks) & draw(masks), draw(masks)
        actions.append(Action(f"a{number}", pre, add & ~delete, delete))
    model = ActionModel(tuple(f"p{place}" for place in range(atoms)), tuple(actions))
    return model, draw(st.lists(masks, min_size=1, max_size=2))


def reachable_pairs(model, *starts):
    return closed(pairs_of_states(starts, len(model.atoms)), model.actions)


def possible_actions(model, beside):
    return [number for number, action in enumerate(model.actions) if together(beside, action.pre) is not None]


def slow_pairs(model, starts):
    """The same fixpoint over a set of pairs of numbers, by its definition."""

    def pairs(one, other):
        return {tuple(sorted((p, q))) for p in one for q in other}

    known = set().union(*(pairs(bits(state), list(bits(state))) for state in starts))
    while True:
        news = set()
        for action in model.actions:
            pre, add, delete = (set(bits(atoms)) for atoms in (action.pre, action.add, action.delete))
            add -= delete
            if not pairs(pre, pre) <= known:
                continue
            news |= pairs(add, add)
            for other in set(range(len(model.atoms))) - delete:
                if pairs(pre | {other}, pre | {other}) <= known:
                    news |= pairs(add, {other})
        if news <= known:
            return known
        known |= news


NEW_BESIDE_ANOTHER = ActionModel(
    ("p0", "p1", "p2"), (Action("a0", pre=0, add=0b100, delete=0), Action("a1", pre=0, add=0b011, delete=0b100))
)
"""a1 makes p1 true beside p0, which it adds, too; then a0 makes p2 true beside p1."""


@given(tasks())
@example((NEW_BESIDE_ANOTHER, [0b101]))
@settings(max_examples=150, deadline=None)
def test_the_masks_are_the_fixpoint_over_pairs(task):
    model, starts = task
    beside = reachable_pairs(model, *starts)
    known = slow_pairs(model, starts)
    for p, q in combinations_with_replacement(range(len(model.atoms)), 2):
        assert bool(beside[p] >> q & 1) == bool(beside[q] >> p & 1) == ((p, q) in known)


@given(tasks())
@example((NEW_BESIDE_ANOTHER, [0b101]))
@settings(max_examples=100, deadline=None)
def test_nothing_reachable_is_ruled_out(task):
    model, starts = task
    beside = reachable_pairs(model, *starts)
    possible = set(possible_actions(model, beside))
    for state in model.reachable(starts):
        holds = together(beside, state)
        assert holds is not None
        assert not state & ~holds
        assert set(model.applicable(state)) <= possible


def test_blocksworld_knows_what_excludes_what():
    model = domain("blocksworld:3").model
    start = domain("blocksworld:3").start[0]
    beside = reachable_pairs(model, start)
    number = {name: place for place, name in enumerate(model.atoms)}

    def may_be_true(one, other):
        return bool(beside[number[one]] >> number[other] & 1)

    assert len(possible_actions(model, beside)) == 18
    assert not may_be_true("handempty", "holding b1")
    assert not may_be_true("on b1 b2", "clear b2")
    assert may_be_true("on b1 b2", "on b2 b3")


def test_what_is_needed_together_but_excludes_each_other_is_never_done():
    model = ActionModel.of(
        ["p", "q", "goal"],
        {"to-q": (["p"], ["q"], ["p"]), "to-p": (["q"], ["p"], ["q"]), "both": (["p", "q"], ["goal"], [])},
    )
    beside = reachable_pairs(model, 0b001)
    assert possible_actions(model, beside) == [0, 1]
    assert beside[2] == 0
    assert together(beside, 0b011) is None


def test_several_starts_are_not_mixed():
    model = ActionModel.of(["p", "q"], {"none": ([], [], [])})
    assert reachable_pairs(model, 0b01, 0b10) == [0b01, 0b10]
    assert reachable_pairs(model, 0b11) == [0b11, 0b11]
    assert reachable_pairs(model) == [0, 0]
