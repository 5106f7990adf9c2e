"""Arguments that a log leaves out, from the actions alone.

Without states, an argument can only be an object that earlier actions named: `board c0` happens where the ferry is,
that is, at the port that the last `sail l1` named. A *register* holds such an object, or one for each object that is
its key: `unstack b1` takes b1 off the block on which it was last stacked. Slots of actions set it, other actions read
it.

Which registers there are is decided by how well the schemas that are learned with their arguments predict the log: the
bits to name each action among those that the schemas allow, and those to describe the registers (minimum description
length). This is a choice, not a proof: the log never contradicts what is learned, but other arguments may explain it,
too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from math import log2
from typing import Any, NamedTuple

from statewise.runtime.json_files import COUNT, Leaf, Shape, check
from statewise.runtime.messages import counted
from statewise.strips.exact.frame import Clock
from statewise.strips.exact.lifted import learn_lifted_exact
from statewise.strips.model.heads import EVIDENCE
from statewise.strips.model.schemas import Schema, arguments, sorts_of
from statewise.strips.model.traces import Traces

MOST_JUDGED = 60
"""The most traces in which the bits of actions are counted."""
MOST_LEARNED = 200
"""The most traces from which the schemas of a candidate are learned."""
MOST_SETTERS = 4
"""With more slots that may set a register, only all of them and single ones are tried, not all subsets."""
PER_PART = 2 * EVIDENCE
"""The bits for each argument that is left out, and for each slot that sets a register."""
RESOLVED = 0.5
"""The share of its occurrences at which a reader must find a value."""


class Slot(NamedTuple):
    """Arguments of a schema that set a register: its key, and the value."""

    schema: str
    key: tuple[int, ...]
    value: int


class Register(NamedTuple):
    """What the last action named for a key."""

    sort: int
    keys: tuple[int, ...]
    """The sorts of its key: none, or one."""
    setters: frozenset[Slot]


class Read(NamedTuple):
    """An argument that is left out: the value of a register, by its number, for the arguments that are its key."""

    register: int
    key: tuple[int, ...]


_SETTER = Leaf(
    "a schema, the places of the key, and the place of the value",
    lambda value: (
        isinstance(value, list)
        and len(value) == 3
        and isinstance(value[0], str)
        and isinstance(value[1], list)
        and all(map(COUNT.holds, (*value[1], value[2])))
    ),
)
_READ = Leaf(
    "a register and the places of the key",
    lambda value: (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[1], list)
        and all(map(COUNT.holds, (value[0], *value[1])))
    ),
)
REGISTERS: Shape = {"setters": [[_SETTER]], "reads": {...: [_READ]}}
"""What is read of `report["implicit"]["registers"]`."""


@dataclass(frozen=True)
class Registers:
    """Registers, and the arguments that read them."""

    shown: dict[str, int]
    registers: tuple[Register, ...] = ()
    reads: dict[str, tuple[Read, ...]] = field(default_factory=dict)
    """Of each schema the arguments that the log leaves out, after those that it names."""

    @classmethod
    def of_plain(cls, shown: Mapping[str, int], plain: Mapping[str, Any], source: str) -> Registers:
        """The registers of a report. Raises `ValueError`, which names `source`, if it is damaged."""
        content = check(dict(plain), REGISTERS, f"{source}: its registers")
        registers = tuple(
            Register(-1, (), frozenset(Slot(schema, tuple(key), value) for schema, key, value in each))
            for each in content["setters"]
        )
        reads = {
            schema: tuple(Read(number, tuple(key)) for number, key in some) for schema, some in content["reads"].items()
        }
        for schema, some in reads.items():
            for at, read in enumerate(some):
                if (
                    schema not in shown
                    or read.register >= len(registers)
                    or any(place >= shown[schema] + at for place in read.key)
                    or any(len(slot.key) != len(read.key) for slot in registers[read.register].setters)
                ):
                    raise ValueError(f"{source}: damaged: what is read of {schema!r}")
        return cls(dict(shown), registers, reads)

    def as_plain(self) -> dict[str, Any]:
        """The registers as plain data, for a report."""
        return {
            "setters": [
                sorted([slot.schema, list(slot.key), slot.value] for slot in each.setters) for each in self.registers
            ],
            "reads": {
                schema: [[read.register, list(read.key)] for read in some] for schema, some in self.reads.items()
            },
        }

    def of(self, schema: str) -> tuple[Read, ...]:
        """The arguments of a schema that the log leaves out."""
        return self.reads.get(schema, ())

    def as_text(self, schema: str, at: int) -> str:
        """What determines an argument that is left out, in words."""
        read = self.of(schema)[at]
        slots = sorted(self.registers[read.register].setters)
        words = [
            f"x{slot.value + 1} of {slot.schema}"
            + "".join(f" with x{place + 1} = x{mine + 1}" for place, mine in zip(slot.key, read.key))
            for slot in slots
        ]
        return f"the last {' or '.join(words)}"


class Memory:
    """The values of registers during a trace."""

    def __init__(self, of: Registers) -> None:
        self.of = of
        self.values: list[dict[tuple[str, ...], str]] = [{} for _ in of.registers]

    def resolved(self, schema: str, objects: Sequence[str]) -> tuple[str, ...] | None:
        """All arguments of an action; None if a register has no value yet."""
        every = [*objects]
        for read in self.of.of(schema):
            value = self.values[read.register].get(tuple(every[at] for at in read.key))
            if value is None:
                return None
            every.append(value)
        return tuple(every)

    def after(self, schema: str, objects: Sequence[str], every: tuple[str, ...] | None) -> None:
        """Goes on after an action; `every`: all its arguments, or None if they are not known."""
        known = objects if every is None else every
        for values, register in zip(self.values, self.of.registers):
            for slot in register.setters:
                if slot.schema != schema:
                    continue
                if any(at >= len(known) for at in slot.key):
                    values.clear()
                    continue
                key = tuple(known[at] for at in slot.key)
                if slot.value < len(known):
                    values[key] = known[slot.value]
                else:
                    values.pop(key, None)


def explicit_rows(traces: Traces, of: Registers) -> tuple[list[list[str]], list[int], dict[str, list[int]]]:
    """The stretches of valid actions whose arguments are known, the trace of each, and for each schema how often its
    arguments were known, and how often it occurred."""
    rows: list[list[str]] = []
    origin: list[int] = []
    counts: dict[str, list[int]] = {}
    split = [arguments(name) for name in traces.actions]
    for place in range(len(traces)):
        memory, begun = Memory(of), False
        for number in traces.valid(place):
            schema, objects = split[number]
            every = memory.resolved(schema, objects)
            count = counts.setdefault(schema, [0, 0])
            count[1] += 1
            if every is not None:
                count[0] += 1
                if not begun:
                    rows.append([])
                    origin.append(place)
                rows[-1].append(" ".join((schema, *every)))
            begun = every is not None
            memory.after(schema, objects, every)
    return rows, origin, counts


def as_traces(rows: Sequence[Sequence[str]], origin: Sequence[int], of: Traces) -> Traces:
    """Rows of action names as valid traces, each from a trace of another log."""
    names = tuple(sorted({name for row in rows for name in row}))
    number = {name: at for at, name in enumerate(names)}
    return Traces(
        names,
        tuple(tuple(number[name] for name in row) for row in rows),
        (0,) * len(rows),
        tuple(of.lines[at] for at in origin) if of.lines else (),
        tuple(of.files[at] for at in origin) if of.files else (),
    )


class Knowledge:
    """What is known to be false during a trace.

    Of a *functional* place of a predicate, at most one object is true at a time for the same other objects: where it
    adds `at c0 l1`, all other `at c0 _` are false."""

    def __init__(self, schemas: Mapping[str, Schema], functional: frozenset[tuple[str, int]]) -> None:
        self.schemas, self.functional = schemas, functional
        self.clear()

    def clear(self) -> None:
        """Forgets everything."""
        self.false: set[Atom] = set()
        self.only: dict[tuple[str, int, tuple[str, ...]], str] = {}

    def parts(self, schema: str, every: tuple[str, ...]) -> list[list[Atom]]:
        """The preconditions, adds and deletes of an action."""
        one = self.schemas.get(schema, Schema())
        named = (*every, *one.constants)
        return [[(name, tuple(named[at] for at in places)) for name, places in part] for part in one.parts]

    def conflicts(self, atom: Atom) -> list[tuple[str, int]]:
        """The functional places by which an atom is false."""
        name, objects = atom
        return [
            (name, at)
            for at, one in enumerate(objects)
            if (name, at) in self.functional and self.only.get((name, at, objects[:at] + objects[at + 1 :]), one) != one
        ]

    def allows(self, schema: str, every: tuple[str, ...]) -> bool:
        """Whether no precondition of an action is known to be false."""
        pre = self.parts(schema, every)[0]
        return not any(atom in self.false or self.conflicts(atom) for atom in pre)

    def after(self, schema: str, every: tuple[str, ...]) -> None:
        """Goes on after an action."""
        pre, add, delete = self.parts(schema, every)
        self.false.difference_update(pre)
        self.false.update(delete)
        self.false.difference_update(add)
        for name, objects in (*pre, *add):
            for at, one in enumerate(objects):
                self.only[name, at, objects[:at] + objects[at + 1 :]] = one


Atom = tuple[str, tuple[str, ...]]


def functional(schemas: Mapping[str, Schema], rows: Sequence[Sequence[str]]) -> frozenset[tuple[str, int]]:
    """The places of predicates that no row shows not to be functional."""
    literals = [literal for schema in schemas.values() for part in schema.parts for literal in part]
    places = frozenset((name, at) for name, of in literals for at in range(len(of)))
    known = Knowledge(schemas, places)
    for row in rows:
        known.clear()
        for action in row:
            schema, every = arguments(action)
            for atom in known.parts(schema, every)[0]:
                known.functional -= {*known.conflicts(atom)}
            known.after(schema, every)
    return known.functional


def bits(traces: Traces, of: Registers, schemas: Mapping[str, Schema], places: frozenset[tuple[str, int]]) -> float:
    """The bits that name each action of the log among those that the schemas allow there. `places`: those that are
    functional."""
    labels = [arguments(name) for name in traces.actions]
    known = Knowledge(schemas, places)
    total, read = 0.0, 0
    for place in range(0, len(traces), max(1, len(traces) // MOST_JUDGED)):
        memory = Memory(of)
        known.clear()
        read += 1
        for number in traces.valid(place):
            allowed = 0
            for schema, objects in labels:
                every = memory.resolved(schema, objects)
                allowed += every is None or known.allows(schema, every)
            total += log2(max(1, allowed))
            schema, objects = labels[number]
            every = memory.resolved(schema, objects)
            if every is None:
                known.clear()
            else:
                known.after(schema, every)
            memory.after(schema, objects, every)
    return total * len(traces) / max(1, read)


@dataclass
class _Search:
    """The search for registers."""

    traces: Traces
    clock: Clock
    say: Callable[[str], None]
    sorts: Mapping[tuple[str, int], int]
    learned: dict[tuple[tuple[str, ...], ...], tuple[dict[str, Schema], frozenset[tuple[str, int]]]] = field(
        default_factory=dict
    )
    """The schemas of logs with all arguments, and their functional places: many registers make the same log."""

    def cost(self, of: Registers) -> float:
        """The bits of the log with these registers; infinite if a schema has no arguments to learn from."""
        rows, origin, counts = explicit_rows(self.traces, of)
        if any(known < RESOLVED * all_ for known, all_ in counts.values()):
            return float("inf")
        key = tuple(map(tuple, rows))
        if key not in self.learned:
            schemas = learn_lifted_exact(
                as_traces(rows[:MOST_LEARNED], origin[:MOST_LEARNED], self.traces),
                seconds=max(1.0, min(10.0, self.clock.left())),
                stop=self.clock.stop,
            ).schemas
            self.learned[key] = schemas, functional(schemas, rows)
        size = sum(map(len, of.reads.values())) + sum(len(each.setters) for each in of.registers)
        return bits(self.traces, of, *self.learned[key]) + PER_PART * size

    def sort(self, of: Registers, schema: str, at: int) -> int:
        count = of.shown[schema]
        if at < count:
            return self.sorts[schema, at]
        return of.registers[of.of(schema)[at - count].register].sort

    def places(self, of: Registers, schema: str, sort: int) -> list[int]:
        """The arguments of a schema that have a sort."""
        count = of.shown[schema] + len(of.of(schema))
        return [at for at in range(count) if self.sort(of, schema, at) == sort]

    def candidates(self, of: Registers) -> Iterator[Register]:
        """Registers that arguments of the log may set."""
        sorts = sorted(set(self.sorts.values()))
        for sort in sorts:
            for keys in [(), *((each,) for each in sorts)]:
                slots = [
                    Slot(schema, key, value)
                    for schema in of.shown
                    for value in self.places(of, schema, sort)
                    for key in product(*(self.places(of, schema, each) for each in keys))
                    if value not in key
                ]
                sizes = range(len(slots), 0, -1) if len(slots) <= MOST_SETTERS else (len(slots), 1)
                for size in sizes:
                    for some in combinations(slots, size):
                        register = Register(sort, keys, frozenset(some))
                        if register not in of.registers:
                            yield register

    def with_readers(self, of: Registers, register: Register) -> list[Registers]:
        """The registers with one more: which all schemas read that can, or only one."""
        number = len(of.registers)
        base = replace(of, registers=(*of.registers, register))
        found, together = [], base
        for schema in of.shown:
            for key in product(*(self.places(of, schema, each) for each in register.keys)):
                read = Read(number, key)
                alone = replace(base, reads={**of.reads, schema: (*of.of(schema), read)})
                known, count = explicit_rows(self.traces, alone)[2].get(schema, [0, 0])
                if known >= RESOLVED * count and self.informs(alone, schema):
                    found.append(alone)
                    together = replace(together, reads={**together.reads, schema: (*together.of(schema), read)})
        return [together, *found] if len(found) > 1 else found

    def informs(self, of: Registers, schema: str) -> bool:
        """Whether the last argument of a schema is not always one of the others."""
        rows, _, _ = explicit_rows(self.traces, of)
        same: set[int] | None = None
        for row in rows:
            for name in row:
                one, objects = arguments(name)
                if one == schema:
                    equal = {at for at, other in enumerate(objects[:-1]) if other == objects[-1]}
                    same = equal if same is None else same & equal
        return not same

    def pruned(self, of: Registers, cost: float) -> Registers:
        """Without the arguments, slots and registers that do not pay."""
        for schema in of.shown:
            for at in reversed(range(len(of.of(schema)))):
                tried = without_argument(of, schema, at)
                if tried is None or not self.clock.has_time():
                    continue
                new = self.cost(tried)
                if new <= cost:
                    of, cost = tried, new
        return of

    def run(self, of: Registers) -> Registers:
        """Adds the register that saves most, until none does."""
        cost = self.cost(of)
        while self.clock.has_time():
            found: list[tuple[float, int, Registers, float]] = []
            for register in self.candidates(of):
                if not self.clock.has_time():
                    self.clock.cut.append("looking for arguments that the log leaves out")
                    break
                costs = [(self.cost(each), each) for each in self.with_readers(of, register)]
                if costs:
                    lowest, best = min(costs, key=lambda each: each[0])
                    # what all schemas read may save only with a later register: the rest goes at the end
                    first, together = costs[0]
                    found.append((lowest, len(found), together if first < cost else best, min(first, cost)))
            # one of many saves some bits by chance
            saving = [each for each in found if each[0] + log2(len(found)) + EVIDENCE < cost]
            if not saving:
                break
            lowest, _, chosen, first = min(saving)
            of, cost = chosen, first if first < cost else lowest
            self.say(f"{counted(sum(map(len, of.reads.values())), 'argument')} found so far: {cost:.0f} bits")
        return self.pruned(of, cost)


def without_argument(of: Registers, schema: str, at: int) -> Registers | None:
    """Without one of the arguments that the log leaves out of a schema; None if another one or a register needs it."""
    gone = of.shown[schema] + at
    reads = of.of(schema)
    if any(gone in read.key for read in reads):
        return None

    def moved(places: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(place - (place > gone) for place in places)

    registers = []
    for register in of.registers:
        setters = set()
        for slot in register.setters:
            if slot.schema == schema:
                if gone in (*slot.key, slot.value):
                    return None
                setters.add(Slot(schema, moved(slot.key), slot.value - (slot.value > gone)))
            else:
                setters.add(slot)
        registers.append(register._replace(setters=frozenset(setters)))
    kept = tuple(read._replace(key=moved(read.key)) for number, read in enumerate(reads) if number != at)
    return Registers(of.shown, tuple(registers), {**of.reads, schema: kept})


def registers_of(traces: Traces, clock: Clock, say: Callable[[str], None] = lambda text: None) -> Registers:
    """The registers that explain a log of actions best. Raises `ValueError` if a schema occurs with different numbers
    of arguments, and if no action has any."""
    sorts, _ = sorts_of(traces.actions)
    shown = {schema: len(objects) for schema, objects in map(arguments, traces.actions)}
    if not any(shown.values()):
        raise ValueError(
            "the actions name no objects, so actions alone cannot show which ones they leave out: give states before "
            "the actions, of some predicates"
        )
    return _Search(traces, clock, say, sorts).run(Registers(shown))
