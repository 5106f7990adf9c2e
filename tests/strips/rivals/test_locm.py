"""LOCM against a slow twin that follows each object through its machine, without schemas."""

from itertools import pairwise

import pytest

from statewise.strips.methods import learn, learn_schemas
from statewise.strips.model.learned import read_schemas
from statewise.strips.model.schemas import Schema
from statewise.strips.model.traces import Traces
from statewise.strips.neural.learning import Settings
from statewise.strips.planning.metrics import trace_accuracy
from statewise.strips.rivals.locm import learn_locm, machines
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces
from statewise.strips.verification.verification import verify


def of_names(*rows: str) -> Traces:
    """Valid traces, actions separated by commas."""
    named = [[action.strip() for action in row.split(",")] for row in rows]
    actions = tuple(dict.fromkeys(action for row in named for action in row))
    return Traces(actions, tuple(tuple(actions.index(action) for action in row) for row in named), (0,) * len(rows))


def literals(schema: Schema) -> tuple[set, set, set]:
    return set(schema.pre), set(schema.add), set(schema.delete)


def merged(sets: list[set]) -> list[set]:
    """Joins sets that share an element, until none do."""
    while True:
        pair = next(((one, other) for one in sets for other in sets if one is not other and one & other), None)
        if pair is None:
            return sets
        sets = [each for each in sets if each is not pair[0] and each is not pair[1]] + [pair[0] | pair[1]]


class Twin:
    """Machines by their definition: rows of words, objects looked up one by one."""

    def __init__(self, rows: list[list[list[str]]]) -> None:
        steps = [(words, at) for row in rows for words in row for at in range(len(words))]
        follows: dict[tuple, list[tuple]] = {}
        for row in rows:
            for name in {"", *(name for words in row for name in words[1:])}:
                own = [(words, words.index(name) if name else 0) for words in row if not name or name in words[1:]]
                for (before, i), (after, j) in pairwise(own):
                    follows.setdefault(((before[0], i), (after[0], j)), []).append((before, after))
        points = [{(words[0], at, end)} for words, at in steps for end in ("start", "end")]
        self.states = merged(
            list({frozenset(each): each for each in points}.values())
            + [{(*one, "end"), (*other, "start")} for one, other in follows]
        )
        self.ignored = {(words[0], 0, end) for words, _ in steps for end in ("start", "end")}
        if sum(bool(state & self.ignored) for state in self.states) > 1:
            self.ignored = set()
        self.parameters: list[tuple[dict, dict]] = []
        for state in self.states:
            into, out = ({each[:2] for each in state if each[2] == end} for end in ("end", "start"))
            if state & self.ignored:
                continue
            links = []
            for (one, other), times in follows.items():
                if one in into:
                    links += [
                        {(*one, "set", i), (*other, "read", j)}
                        for i in range(1, len(times[0][0]))
                        for j in range(1, len(times[0][1]))
                        if i != one[1] and j != other[1] and all(b[i] == c[j] for b, c in times)
                    ]
            for found in merged(links):
                sets = {each[:2]: each[3] for each in found if each[2] == "set"}
                reads = {each[:2]: each[3] for each in found if each[2] == "read"}
                if (
                    set(sets) == into
                    and set(reads) == out
                    and len(sets) + len(reads) == len(found)
                    and all(
                        b[sets[one]] == c[reads[other]]
                        for (one, other), times in follows.items()
                        if one in into
                        for b, c in times
                    )
                ):
                    self.parameters.append((sets, reads))

    def first_rejected(self, row: list[list[str]]) -> int | None:
        """The first action for which an object is in another state, or has another parameter."""
        where: dict[str, set] = {}
        false: set[tuple] = set()
        for step, words in enumerate(row):
            own = [("", 0), *((name, at) for at, name in enumerate(words) if at)]
            for name, at in own:
                start = next(each for each in self.states if (words[0], at, "start") in each)
                if not start & self.ignored and where.get(name, start) is not start:
                    return step
                if any(
                    (number, name, words[reads[words[0], at]]) in false
                    for number, (_, reads) in enumerate(self.parameters)
                    if (words[0], at) in reads
                ):
                    return step
            for name, at in own:
                where[name] = next(each for each in self.states if (words[0], at, "end") in each)
                for number, (_, reads) in enumerate(self.parameters):
                    if (words[0], at) in reads:
                        false.add((number, name, words[reads[words[0], at]]))
                for number, (sets, _) in enumerate(self.parameters):
                    if (words[0], at) in sets:
                        false.discard((number, name, words[sets[words[0], at]]))
        return None


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        ("simple", 40),
        ("ferry:2x2", 40),
        ("ferry:2x2", 8),
        ("blocksworld:2", 40),
        ("blocksworld:3", 60),
        ("gripper:2", 6),
        ("gripper:2", 40),
        ("hanoi:3", 15),
        ("logistics:2x2x2", 30),
    ],
)
def test_the_schemas_judge_as_the_twin_that_follows_objects(spec, count):
    world = domain(spec)
    drawn = traces(world, count, 20, 1, negatives=0.0)
    model = learn_locm(drawn).ground(drawn.actions)
    twin = Twin([[drawn.actions[at].split() for at in row] for row in drawn.rows])
    known = {drawn.actions[at].split()[0] for row in drawn.rows for at in row}
    outcomes = set()
    for row in traces(world, 300, 15, 2, negatives=0.7).rows:
        named = [drawn.actions[at].split() for at in row]
        if all(words[0] in known for words in named):
            assert model.first_rejected(row) == twin.first_rejected(named)
            outcomes.add(model.first_rejected(row) is None)
    assert outcomes == ({True, False} if spec != "simple" else {True})


@pytest.mark.parametrize("spec", ["blocksworld:3", "gripper:2", "miconic:3x2", "satellite:1x3", "tiles:2x2"])
def test_valid_traces_are_accepted(spec):
    for count in (3, 10, 50):
        assert learn_locm(traces(domain(spec), count, 20, count, negatives=0.0)).report["training_accuracy"] == 1


@pytest.mark.parametrize(
    ("small", "large"), [("gripper:2", "gripper:3"), ("hanoi:3", "hanoi:4"), ("miconic:3x2", "miconic:4x2")]
)
def test_where_an_object_has_one_aspect_the_schemas_are_exact(small, large):
    learned = learn_locm(traces(domain(small), 100, 30, 1, negatives=0.0))
    world = domain(large)
    assert verify(learned.ground(world.model.names), world, drawn_only=True)


def test_what_locm_cannot_see_in_the_ferry_is_that_it_is_full():
    """A car's machine knows where the car is, a port's whether the ferry is there; that one car is on board is no
    state of any single object."""
    learned = learn_locm(traces(domain("ferry:3x2"), 100, 30, 1, negatives=0.0))
    actions = ["board c0 l0", "board c1 l0", "board c0 l1"]
    model = learned.ground(actions)
    assert model.first_rejected([0, 1]) is None
    assert model.first_rejected([0, 0]) == 1
    assert model.first_rejected([0, 2]) == 1


def test_machines_and_parameters_of_a_small_example():
    """A jack is in one of two boots or in the hand; a boot is open or closed."""
    given = of_names(
        "open b, fetch j b, putaway j b, close b, open b, fetch j b, putaway j b, fetch k b, putaway k b",
        "open c, fetch j c, close c, open d, putaway j d, fetch j d, close d",
        "open c, fetch k c, putaway j c, putaway k c, fetch j c, fetch k c, open d, close c, open c, putaway k c",
    )
    found = machines(given)
    assert len(found) == 2  # actions follow one another in many orders, so their own machine has one state
    of_jack, of_boot = sorted(found, key=lambda machine: ("open", 0) in machine.ends)
    assert of_jack.states == of_boot.states == 2
    assert of_jack.ends["fetch", 0] == of_jack.ends["putaway", 0][::-1]
    assert of_boot.ends["fetch", 1] == (of_boot.ends["open", 0][1],) * 2
    assert [(each.sets, each.reads) for each in of_jack.parameters] == [({("putaway", 0): 1}, {("fetch", 0): 1})]
    assert not of_boot.parameters
    schemas = learn_locm(given).schemas
    pre, add, delete = literals(schemas["fetch"])
    assert {places for _, places in pre} == {(0,), (0, 1), (1,)}
    assert {places for _, places in add} == {(0,)}
    assert {places for _, places in delete} == {(0,), (0, 1)}


def test_a_parameter_that_one_transition_does_not_set_is_dropped():
    with_place = ["put x a, take x a", "put x b, take x b"]
    (only,) = (each for each in machines(of_names(*with_place)) if ("put", 0) in each.ends)
    assert len(only.parameters) == 1
    (spoiled,) = (each for each in machines(of_names(*with_place, "drop x, take x a")) if ("put", 0) in each.ends)
    assert (spoiled.parameters, spoiled.flawed) == ((), 1)


def test_a_parameter_that_differs_at_one_occasion_is_dropped():
    """put-take, put-peek and send-peek agree, so that all four places are joined; send and take do not."""
    agreeing = [
        "put x a, take x a",
        "put x b, peek x b, take x b",
        "send x a, peek x a, take x a",
        "send x a, take x a",
    ]
    (kept,) = (each for each in machines(of_names(*agreeing)) if ("put", 0) in each.ends)
    assert [each.sets for each in kept.parameters] == [{("put", 0): 1, ("send", 0): 1, ("peek", 0): 1}]
    (dropped,) = (each for each in machines(of_names(*agreeing, "send x a, take x b")) if ("put", 0) in each.ends)
    assert (dropped.parameters, dropped.flawed) == ((), 1)


def test_an_object_named_twice_is_refused_with_its_place():
    given = Traces(("go a b", "go b b"), ((0, 1),), (0,), (7,))
    with pytest.raises(ValueError, match=r"line 7: 'go b b' names an object twice"):
        learn_locm(given)


def test_it_is_a_method(tmp_path):
    given = traces(domain("gripper:2"), 40, 20, 1)
    lifted = learn_schemas(given, method="locm", folder=tmp_path / "lifted")
    assert read_schemas(tmp_path / "lifted") == lifted.schemas
    learned = learn(given, method="locm", folder=tmp_path / "ground")
    assert learned.report["method"] == lifted.report["method"] == "locm"
    assert trace_accuracy(learned.model, given) == trace_accuracy(lifted.ground(given.actions), given)
    assert (tmp_path / "ground" / "seen.json").is_file()
    for how in (learn, learn_schemas):
        with pytest.raises(ValueError, match="LOCM reads every trace as noise-free"):
            how(given, Settings(noise=0.1), method="locm")


def test_labels_are_read_for_the_accuracy_alone():
    given = traces(domain("ferry:2x2"), 60, 20, 1)
    learned = learn_locm(given)
    assert learned.schemas == learn_locm(given.valid_only()).schemas
    assert learned.report["training_accuracy"] == trace_accuracy(learned.ground(given.actions), given)["accuracy"] < 1
