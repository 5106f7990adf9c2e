"""Arguments that a log leaves out, from its actions alone."""

import pytest

from statewise.strips.exact.frame import Clock
from statewise.strips.implicit.alignment import compared
from statewise.strips.implicit.learning import learn_implicit
from statewise.strips.implicit.registers import (
    Memory,
    Read,
    Register,
    Registers,
    Slot,
    explicit_rows,
    functional,
    registers_of,
    without_argument,
)
from statewise.strips.model.schemas import Schema, arguments
from statewise.strips.model.states import Observed
from statewise.strips.model.traces import Traces
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.implicit_logs import named_arguments, without_implicit
from statewise.strips.trace_data.random_traces import traces
from statewise.strips.verification.verification import verify

SHOWN = {"board": 1, "debark": 0, "sail": 1}
FERRY = Registers(
    SHOWN,
    (Register(1, (), frozenset({Slot("sail", (), 0)})), Register(0, (), frozenset({Slot("board", (), 0)}))),
    {"sail": (Read(0, ()),), "board": (Read(0, ()),), "debark": (Read(1, ()), Read(0, ()))},
)
"""Where the ferry is, and which car it carries."""


def log_of(spec, num=40, seed=1):
    """Valid actions with all their arguments, and without those that the state determines."""
    world = domain(spec)
    drawn = traces(world, num, 30, seed, negatives=0, start="both")
    labels = [without_implicit(name, named_arguments(world)) for name in drawn.actions]
    names = sorted(set(labels))
    rows = tuple(tuple(names.index(labels[at]) for at in row) for row in drawn.rows)
    return drawn, Traces(tuple(names), rows, drawn.labels)


def test_registers_hold_what_the_ferry_does():
    drawn, log = log_of("ferry:3x2")
    known = 0
    for row, labels in zip(drawn.rows, log.rows):
        memory = Memory(FERRY)
        for at, label in zip(row, labels):
            schema, objects = arguments(log.actions[label])
            every = memory.resolved(schema, objects)
            memory.after(schema, objects, every)
            if every is not None:
                known += 1
                true = arguments(drawn.actions[at])[1]
                assert every == (true if schema != "sail" else (true[1], true[0]))
    rows, origin, counts = explicit_rows(log, FERRY)
    assert sum(map(len, rows)) == known == sum(each for each, _ in counts.values())
    assert len(rows) == len(origin)


@pytest.mark.parametrize(
    "spec", ["visit-all:3x3", *(pytest.param(each, marks=pytest.mark.slow) for each in ("ferry:3x2", "gripper:2"))]
)
def test_actions_alone_give_the_domain(spec):
    log = log_of(spec)[1]
    observed = Observed(log, tuple((None,) * (len(row) + 1) for row in log.rows))
    model = learn_implicit(observed, seconds=600)
    learned = compared(model.schemas, model.report["implicit"], domain(spec))
    assert verify(learned, domain(spec), drawn_only=True, seconds=30).outcome == "equivalent"


def test_what_actions_alone_cannot_show_is_said():
    with pytest.raises(ValueError, match="name no objects"):
        registers_of(log_of("npuzzle:2x2", num=5)[1], Clock(10))


def test_without_an_argument_the_others_keep_their_places():
    fewer = without_argument(FERRY, "debark", 0)
    assert fewer.of("debark") == (Read(0, ()),)
    keyed = Registers(SHOWN, FERRY.registers, {"debark": (Read(0, ()), Read(1, (0,)))})
    assert without_argument(keyed, "debark", 0) is None


def test_functional_places_are_those_that_no_row_contradicts():
    schemas = {"put": Schema(add=frozenset({("at", (0, 1))})), "take": Schema(pre=frozenset({("at", (0, 1))}))}
    assert functional(schemas, [["put a x", "put a y", "take a x"]]) == frozenset({("at", 0)})
    assert functional(schemas, [["put a x", "put a y", "take a y", "put b y", "take b y"]]) == frozenset(
        {("at", 0), ("at", 1)}
    )


def test_registers_as_plain_data_are_read_again():
    again = Registers.of_plain(SHOWN, FERRY.as_plain(), "report")
    assert again.as_plain() == FERRY.as_plain()
    assert [again.as_text("debark", at) for at in range(2)] == ["the last x1 of board", "the last x1 of sail"]
    for damaged in (
        {"setters": [], "reads": {"sail": [[0, []]]}},
        {"setters": [[["board", [], 0]]], "reads": {"sail": [[0, [5]]]}},
        {"setters": [[["board", [], -1]]], "reads": {}},
        {"setters": 3, "reads": {}},
        {"setters": [], "reads": {"jump": [[0, []]]}},
    ):
        with pytest.raises(ValueError, match="report"):
            Registers.of_plain(SHOWN, damaged, "report")
