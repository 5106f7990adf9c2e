"""Drawing traces as the paper does, damaging them, and the domains that they are drawn from."""

from collections import Counter

import numpy as np
import pytest

from statewise.strips.model.model import ActionModel
from statewise.strips.model.traces import Traces
from statewise.strips.trace_data import domains
from statewise.strips.trace_data.domains import FAMILIES, Domain, domain
from statewise.strips.trace_data.random_traces import SPLITS, traces, with_noise

SPECS = ["simple", "blocksworld:2", "blocksworld:3", "ferry:2x1", "ferry:2x2", "gripper:1", "hanoi:2", "miconic:2x1"]


def drawn(spec, **more):
    few = {"num": 60, "max_length": 12, "seed": 3}
    return traces(domain(spec), **(few | more))


def rejections(found: Traces, spec: str) -> list[int | None]:
    model = domain(spec).model
    assert found.actions == model.names
    return [model.first_rejected(row) for row in found.rows]


def begins(found: Traces, spec: str) -> list[set[int]]:
    """The initial states from which each walk, without the invalid action of a negative, can be done."""
    world = domain(spec)
    four = world.initial_states(4)
    possible = []
    for row, label in zip(found.rows, found.labels):
        walk = row[: len(row) - label]
        able = set()
        for place, state in enumerate(four):
            for number in walk:
                if number not in world.model.applicable(state):
                    break
                state = world.model.result(state, number)
            else:
                able.add(place)
        possible.append(able)
    return possible


@pytest.mark.parametrize("spec", SPECS)
def test_labels_are_those_of_definition_1(spec):
    found = drawn(spec)
    for row, label, rejected in zip(found.rows, found.labels, rejections(found, spec)):
        assert rejected == (len(row) - 1 if label else None)


@pytest.mark.parametrize("spec", SPECS)
def test_traces_are_unique_mixed_and_four_fifths_negative(spec):
    found = drawn(spec)
    assert len(set(found.rows)) == len(found) == 60
    assert found.labels.count(1) == 48
    assert found.positives == 12
    assert 1 in found.labels[:12]  # in no order of the labels
    assert 1 in found.labels[-12:]
    assert 0 in found.labels[:40]


def test_lengths_are_uniform_within_the_bound():
    found = drawn("blocksworld:3", num=1500, negatives=0.5)
    for label, least in ((0, 1), (1, 2)):
        lengths = [len(row) for row, of in zip(found.rows, found.labels) if of == label]
        assert max(lengths) == 12
        assert min(lengths) == least
        # drawn uniformly; only the shortest are fewer, since they run out
        share = np.bincount(lengths, minlength=13)[5:] / len(lengths)
        assert share.min() > 0.05
        assert share.max() < 0.14


def walks(spec, split, longest):
    """Every walk of 1 to `longest` actions from the initial states of a split."""
    world = domain(spec)
    ends = {((), state) for state in world.initial_states(4)[SPLITS[split]]}
    for _ in range(longest):
        ends = {
            ((*walk, number), world.model.result(state, number))
            for walk, state in ends
            for number in world.model.applicable(state)
        }
        yield from {walk for walk, _ in ends}


@pytest.mark.parametrize("split", ["train", "test"])
def test_all_that_there_is_can_be_drawn_and_nothing_else(split):
    model = domain("blocksworld:2").model
    positives = set(walks("blocksworld:2", split, 4))
    found = drawn("blocksworld:2", split=split, num=len(positives), negatives=0.0, max_length=4)
    assert set(found.rows) == positives
    negatives = {
        (*walk, number)
        for walk in walks("blocksworld:2", split, 3)
        for number in set(range(8)) - set(model.possible(model.after(walk)))
    }
    found = drawn("blocksworld:2", split=split, num=len(negatives), negatives=1.0, max_length=4)
    assert set(found.rows) == negatives


@pytest.mark.parametrize("negatives", [0.0, 1.0, 0.25])
def test_the_share_of_negatives_can_be_chosen(negatives):
    assert drawn("ferry:2x2", negatives=negatives, num=40).labels.count(1) == 40 * negatives


@pytest.mark.parametrize("spec", ["blocksworld:2", "blocksworld:3", "ferry:2x2"])
def test_the_splits_begin_in_different_states(spec):
    for split, allowed in (("train", {0, 1}), ("test", {2, 3}), ("all", {0, 1, 2, 3})):
        possible = begins(drawn(spec, split=split), spec)
        assert all(able & allowed for able in possible)
        needed = [able for able in possible if len(able) == 1]
        assert set().union(*needed) == allowed  # every state of the split begins a walk that no other could


def test_walks_go_everywhere():
    found = drawn("blocksworld:3", num=300)
    assert {number for row in found.rows for number in row[:-1]} == set(range(18))


@pytest.mark.parametrize("spec", ["hanoi:3", "logistics:2x2x1", "satellite:1x3"])
def test_aimed_walks_take_more_of_the_actions(spec):
    few = {"num": 12, "max_length": 12, "split": "all", "start": "init"}
    aimed = drawn(spec, aimed=True, **few)
    assert aimed == drawn(spec, aimed=True, **few)
    for row, label, rejected in zip(aimed.rows, aimed.labels, rejections(aimed, spec)):
        assert rejected == (len(row) - 1 if label else None)
    world = domain(spec)
    for row, label in zip(aimed.rows, aimed.labels):
        state = world.start[0]
        for at in row[: len(row) - label]:
            assert at in world.model.applicable(state)
            state = world.model.result(state, at)
    counts = [
        len({at for row, label in zip(each.rows, each.labels) for at in row[: len(row) - label]})
        for each in (aimed, drawn(spec, **few))
    ]
    assert counts[0] > counts[1]


def test_an_aimed_walk_goes_the_shortest_way_to_a_schema_that_no_walk_has_taken():
    corridor = ActionModel.of(
        [f"at {at}" for at in range(9)],
        {
            **{f"go {at}": ([f"at {at}"], [f"at {at + 1}"], [f"at {at}"]) for at in range(8)},
            **{f"back {at}": ([f"at {at + 1}"], [f"at {at}"], [f"at {at + 1}"]) for at in range(8)},
            "rest": (["at 0"], [], []),
            "open": (["at 8"], [], []),
        },
    )
    world = Domain("corridor", corridor, (1,))
    found = traces(world, 8, 12, 1, negatives=0, start="init", aimed=True)
    walks = [[corridor.names[at] for at in row] for row in found.rows]
    assert [f"go {at}" for at in range(8)] + ["open"] in [walk[-9:] for walk in walks] + [walk[:9] for walk in walks]


def test_initial_states_differ_and_depend_on_their_own_seed_only():
    world = domain("blocksworld:3")
    four = world.initial_states(4)
    assert len(set(four)) == 4
    assert set(four) <= set(world.states)
    assert four == domain("blocksworld:3").initial_states(4)
    assert four != world.initial_states(4, states_seed=1)
    assert set(domain("simple").initial_states(4)) == set(domain("simple").states)


def test_what_must_not_occur_does_not_occur():
    first = drawn("ferry:2x1", split="all")
    assert set(first.rows) & set(drawn("ferry:2x1", split="all", seed=4).rows)
    second = drawn("ferry:2x1", split="all", seed=4, without=first)
    assert len(second) == 60
    assert not set(first.rows) & set(second.rows)


def test_what_must_not_occur_may_number_its_actions_otherwise():
    first = drawn("ferry:2x1", split="all")
    turned = first.with_actions(first.actions[::-1])
    second = drawn("ferry:2x1", split="all", seed=4, without=turned)
    assert not set(first.rows) & set(second.rows)


def test_the_seed_is_all_that_chance_depends_on():
    assert drawn("gripper:2") == drawn("gripper:2")
    assert drawn("gripper:2").rows != drawn("gripper:2", seed=4).rows


def test_a_domain_can_run_out_of_traces():
    with pytest.raises(
        ValueError,
        match=r"simple does not have enough unique negative traces of at most 4 actions: 400 were "
        r"requested, \d+ were found",
    ):
        traces(domain("simple"), 500, 4, 1)
    with pytest.raises(ValueError, match="not have enough unique positive traces"):
        traces(domain("simple"), 200, 4, 1, negatives=0.0)
    with pytest.raises(ValueError, match="not have enough unique negative"):  # one action alone is never rejected
        traces(domain("simple"), 1, 1, 1, negatives=1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num": 0}, "not 0 and 12"),
        ({"max_length": 0}, "not 60 and 0"),
        ({"negatives": 1.5}, "share from 0 to 1, not 1.5"),
        ({"negatives": -0.1}, "-0.1"),
        ({"split": "dev"}, "train, test, all, not 'dev'"),
    ],
)
def test_bad_wishes_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        drawn("simple", **change)


def test_splits_are_named_where_they_are_refused():
    assert set(SPLITS) == {"train", "test", "all"}


def test_padded():
    numbers, lengths, labels = Traces(("a", "b"), ((0,), (1, 0, 1)), (0, 1)).padded()
    assert numbers.tolist() == [[0, -1, -1], [1, 0, 1]]
    assert lengths.tolist() == [1, 3]
    assert labels.tolist() == [0, 1]


def test_renumbering_keeps_the_names():
    given = Traces(("a", "b", "unused"), ((0,), (1, 0, 1)), (0, 1))
    again = given.with_actions(["b", "c", "a"])
    assert [[again.actions[at] for at in row] for row in again.rows] == [["a"], ["b", "a", "b"]]
    assert again.labels == given.labels
    with pytest.raises(ValueError, match="'a' is not an action of the model"):
        given.with_actions(["b", "c"])
    assert given.only([1]) == Traces(given.actions, ((1, 0, 1),), (1,))


# noise


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_noise_of_labels_flips_as_many_as_asked_for(share):
    clean = drawn("blocksworld:2")
    noisy = with_noise(clean, share, "labels", 5)
    assert noisy.rows == clean.rows
    flips = [before != after for before, after in zip(clean.labels, noisy.labels)]
    assert sum(flips) == 60 * share
    assert noisy == with_noise(clean, share, "labels", 5)
    if 0 < share < 1:
        assert noisy != with_noise(clean, share, "labels", 6)


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_noise_of_actions_changes_one_action_of_as_many_as_asked_for(share):
    clean = drawn("blocksworld:2")
    noisy = with_noise(clean, share, "actions", 5)
    assert noisy.labels == clean.labels
    changes = [sum(x != y for x, y in zip(before, after)) for before, after in zip(clean.rows, noisy.rows)]
    assert [len(row) for row in noisy.rows] == [len(row) for row in clean.rows]
    assert set(changes) <= {0, 1}
    assert sum(changes) == 60 * share
    assert all(0 <= number < 8 for row in noisy.rows for number in row)


def test_noise_of_actions_puts_any_other_action_at_any_place():
    clean = Traces(("a", "b", "c"), tuple((0, 0, 0, 0) for _ in range(200)), (0,) * 200)
    rows = set(with_noise(clean, 1.0, "actions", 1).rows)
    assert len(rows) == 4 * 2


def test_noise_of_both_kinds_damages_separate_shares():
    clean = drawn("blocksworld:2")
    noisy = with_noise(clean, 0.5, "both", 5)
    assert sum(before != after for before, after in zip(clean.labels, noisy.labels)) == 30
    changed = [(before, after) for before, after in zip(clean.rows, noisy.rows) if before != after]
    assert len(changed) == 30
    for before, after in changed:
        same = next((at for at, (x, y) in enumerate(zip(before, after)) if x != y), min(len(before), len(after)))
        assert {-1: before[same + 1 :], 0: before[same + 1 :], 1: before[same:]}[len(after) - len(before)] in (
            after[same:],
            after[same + 1 :],
        )
    assert {len(after) - len(before) for before, after in changed} == {-1, 0, 1}
    assert with_noise(clean, 0.0, "both", 5) == clean == with_noise(clean, 0.0, "steps", 5)


def test_noise_of_steps_damages_a_share_of_all_actions():
    count, length = 400, 10
    clean = Traces(("a", "b", "c"), tuple((0,) * length for _ in range(count)), (0,) * count)
    noisy = with_noise(clean, 0.06, "steps", 5)
    assert noisy.labels == clean.labels
    wrong = sum(action != 0 for row in noisy.rows for action in row) / (count * length)
    assert 0.03 < wrong < 0.05  # two of three kinds of damage put a wrong action
    lengths = Counter(map(len, noisy.rows))
    assert lengths[length] > lengths[length - 1] > 0 < lengths[length + 1]
    alone = Traces(("a", "b"), ((0,), (1,)), (0, 0))
    assert all(with_noise(alone, 1.0, "steps", seed).rows[0] for seed in range(20))  # no trace becomes empty


def test_other_noise_is_unknown():
    with pytest.raises(ValueError, match="labels, actions, both, steps, not 'states'"):
        with_noise(drawn("simple"), 0.1, "states", 1)
    for share in (-0.1, 1.1):
        with pytest.raises(ValueError, match=f"must be a share from 0 to 1, not {share}"):
            with_noise(drawn("simple"), share, "labels", 1)
    with pytest.raises(ValueError, match="there is only one action"):
        with_noise(Traces(("a",), ((0,),), (0,)), 1.0, "actions", 1)


# domains


@pytest.mark.parametrize(
    ("spec", "atoms", "actions"),
    [
        ("simple", 3, 3),
        ("blocksworld:2", 9, 8),  # the paper's figures
        ("blocksworld:3", 16, 18),
        ("ferry:2x1", 6, 6),
        ("ferry:2x2", 9, 10),
        ("blocksworld:1", 4, 2),
        ("ferry:3x2", 3 + 6 + 2 + 1, 6 + 6 + 6),
        ("gripper:2", 2 + 4 + 2 + 4, 2 + 8 + 8),
        ("hanoi:2", 4 + 3 + 5, 12 + 6),
        ("miconic:3x2", 3 + 6 + 2, 6 + 6 + 6),
        ("logistics:3x2x2", 3 * 2 + 3 + 2 * 6 + 2 * 4, 3 * 2 + 6 + 2 * 2 * 6 + 2 * 2 * 3),
        ("tiles:2x3", 5 * 6 + 6, 5 * 14),
    ],
)
def test_domains_have_the_sizes_that_they_should(spec, atoms, actions):
    model = domain(spec).model
    assert (len(model.atoms), len(model.actions)) == (atoms, actions)
    assert all(action.add for action in model.actions)
    assert all(any(action.pre >> place & 1 for action in model.actions) for place in range(atoms))


@pytest.mark.parametrize(
    ("spec", "states", "steps"),
    [
        ("simple", 4, 2 + 1 + 2 + 1),
        ("blocksworld:1", 2, 2),
        ("blocksworld:2", 5, 2 + 2 * 2 + 2 * 1),
        ("blocksworld:3", 13 + 3 * 3, 21 + 21),  # every block that is picked up can be put back
        ("ferry:2x1", 2 * 3, 6 + 2 + 2),  # the ferry's place, and the car's or that it is aboard
        ("ferry:3x2", 3 * (9 + 2 * 3), 45 * 2 + 18 + 18),  # both cars ashore, or one aboard
        ("gripper:1", 2 * 4, 8 + 4 + 4),
        ("hanoi:3", 27, 3 * 27 - 3),  # three moves, but two where all discs are on one peg
        ("miconic:3x2", 3 * 16, 48 * 2 + 24 + 24),
        ("logistics:2x1x1", 2 * (2 + 3), 10 + 4 + 2 + 4 + 2),  # fly; a truck is always there, the plane half the time
        ("tiles:2x2", 12, 12 * 2),  # half of 4! arrangements; the empty cell has two neighbours
        ("visit-all:2x2", 1 + 2 * 2 + 3 * 3 + 4, 2 * 18),  # marked cells are connected; the start is one
        ("satellite:1x2", 2 * 12 * 4, 96 + 64 + 64 + 32 + 32),  # directions, power with calibration, images
    ],
)
def test_domains_have_as_many_real_states_and_steps_as_their_stories(spec, states, steps):
    world = domain(spec)
    assert len(world.states) == states
    assert sum(len(world.model.applicable(state)) for state in world.states) == steps


def test_simple_is_the_paper_s_figure_1():
    model = domain("simple").model
    assert {
        action.name: [model.spelled(x) for x in (action.pre, action.add, action.delete)] for action in model.actions
    } == {"a": [["p", "r"], ["q"], ["p", "r"]], "b": [["q", "r"], ["p"], ["q", "r"]], "c": [[], ["r"], []]}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_an_example_that_exists(family):
    world = domain(FAMILIES[family].example)
    assert world.name.startswith(family)
    assert all(world.model.applicable(state) for state in world.states)  # no dead ends for walks


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("chess:3", "'chess:3' is not a domain; choices: simple, blocksworld:BLOCKS, ferry:PORTSxCARS, gripper:BALLS"),
        ("", "choices: simple"),
        ("blocksworld", "the domain is written blocksworld:BLOCKS, such as blocksworld:3"),
        ("blocksworld:two", "written blocksworld:BLOCKS"),
        ("blocksworld:2x2", "written blocksworld:BLOCKS"),
        ("blocksworld:-1", "written blocksworld:BLOCKS"),
        ("ferry:2", "written ferry:PORTSxCARS, such as ferry:2x1"),
        ("ferry:2x1x1", "written ferry:PORTSxCARS"),
        ("ferry:1x1", "'ferry:1x1': ports must be at least 2, not 1"),
        ("ferry:2x0", "cars must be at least 1, not 0"),
        ("simple:3", "the domain is written simple, such as simple"),
    ],
)
def test_unknown_domains_and_sizes_are_answered_with_what_there_is(spec, message):
    with pytest.raises(ValueError, match=message):
        domain(spec)


def test_domains_that_do_not_fit_into_memory_are_refused(monkeypatch):
    monkeypatch.setattr(domains, "MOST_ACTIONS", 20)
    assert len(domain("visit-all:2x2").model.actions) == 8
    with pytest.raises(ValueError, match="'visit-all:3x3' has more than 20 ground actions, which is the limit"):
        domain("visit-all:3x3")
    monkeypatch.setattr(domains, "MOST_BYTES", 10)
    with pytest.raises(ValueError, match="has 8 ground actions with 8 atoms, more than fit into memory: ch"):
        domain("visit-all:2x2")


def test_domains_with_few_states_begin_in_those_that_there_are():
    for spec, few in (("blocksworld:1", 2), ("simple", 4)):
        assert len(domain(spec).some_states(9)) == few
    with pytest.raises(ValueError, match="blocksworld:1 has only 2 states, but walks should begin in 4"):
        domain("blocksworld:1").initial_states(4)
    walks = {split: traces(domain("blocksworld:1"), 3, 3, 1, negatives=0.0, split=split) for split in SPLITS}
    assert {row[0] for row in walks["all"].rows} == {0, 1}
    for split, other in (("train", "test"), ("test", "train")):  # one state for each
        assert len({row[0] for row in walks[split].rows}) == 1
        assert not set(walks[split].rows) & set(walks[other].rows)
    still = Domain("still", ActionModel.of(["p"], {"look": (["p"], [], [])}), (1,))
    for split in SPLITS:
        assert traces(still, 2, 2, 1, negatives=0.0, split=split).rows in (((0,), (0, 0)), ((0, 0), (0,)))


def one_way():
    """Three places in a row, of which the way back is closed: a walk from the first passes all."""
    actions = {f"go {at}": ([f"at {at}"], [f"at {at + 1}"], [f"at {at}"]) for at in range(3)}
    actions["wait"] = (["at 3"], [], [])
    return Domain("one-way", ActionModel.of([f"at {at}" for at in range(4)], actions), (1,))


def test_walks_may_begin_in_the_initial_state():
    world = one_way()
    later = {row[0] for row in traces(world, 3, 2, 1, negatives=0.0, split="test").rows}
    for split in SPLITS:
        rows = traces(world, 3, 3, 1, negatives=0.0, split=split, start="init").rows
        assert set(rows) == {(0,), (0, 1), (0, 1, 2)}
    assert 0 not in later
    both = traces(world, 6, 3, 1, negatives=0.0, split="test", start="both").rows
    assert {row[0] for row in both} == {0} | later
    drawn_first = [traces(domain("ferry:3x3"), 40, 9, seed, negatives=0.0, start="both") for seed in (1, 1, 2)]
    assert drawn_first[0] == drawn_first[1] != drawn_first[2]
    with pytest.raises(ValueError, match="the start must be one of init, random, both, not 'goal'"):
        traces(world, 1, 1, 1, start="goal")


def test_a_dead_end_at_the_beginning_is_said():
    stuck = Domain("stuck", ActionModel.of(["p"], {"go": (["p"], [], [])}), (0,))
    with pytest.raises(ValueError, match="stuck does not have enough unique positive traces"):
        traces(stuck, 1, 3, 1, negatives=0.0, start="both")
