"""Known planning domains of any size, grounded: `simple`, `blocksworld:3`, `ferry:2x1`, ...

A domain is an action model and the full states in which its traces may start. Ground actions are written
`schema object object`, as planners print them, so that lifted learning can parse them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import permutations, product

import numpy as np

from statewise.runtime.messages import cut
from statewise.strips.model.model import MOST_ACTIONS, ActionModel, Atoms

Effects = dict[str, tuple[list[str], list[str], list[str]]]
"""For each action its preconditions, add effects and delete effects."""


@dataclass(frozen=True)
class Domain:
    """An action model with its real initial states."""

    name: str
    model: ActionModel
    start: tuple[Atoms, ...]
    """States from which every real state of the domain can be reached."""
    always: tuple[str, ...] = ()
    """Atoms that are true in every state and that the model leaves out, as grounding of PDDL does."""

    @cached_property
    def states(self) -> list[Atoms]:
        """Every real state, computed on first use: there may be many."""
        return self.model.reachable(self.start)

    def initial_states(self, count: int, states_seed: int = 0) -> list[Atoms]:
        """`count` real states, drawn without replacement: the paper uses four, two for training and two for testing.

        They are drawn from the first 10,000 states in breadth-first order. Raises `ValueError` if there are too few.
        """
        chosen = self.some_states(count, states_seed)
        if len(chosen) < count:
            raise ValueError(
                f"{self.name} has only {len(chosen)} states, but walks should begin in {count} different ones: "
                "choose a larger instance"
            )
        return chosen

    def some_states(self, most: int, states_seed: int = 0) -> list[Atoms]:
        """Up to `most` real states, drawn as in `initial_states`: all of them, in random order, if there are fewer."""
        known = self.model.reachable(self.start, limit=10_000)
        count = min(most, len(known))
        chosen = np.random.default_rng([states_seed, 2024]).choice(len(known), count, replace=False)
        return [known[place] for place in chosen]


MOST = 100
"""The largest size of a domain: all of its ground actions are listed."""
MOST_BYTES = 2**30
"""The largest memory of the sets of atoms of a domain, in bytes."""


class GroundActions(Effects):
    """Ground actions, at most `MOST_ACTIONS`: many domains of `MOST` objects have more than fit into memory."""

    def __setitem__(self, name: str, effects: tuple[list[str], list[str], list[str]]) -> None:
        if len(self) >= MOST_ACTIONS:
            raise ValueError(f"more than {MOST_ACTIONS:,} ground actions, which is the limit")
        super().__setitem__(name, effects)


def domain(spec: str) -> Domain:
    """The domain that `spec` names, such as `blocksworld:3`. Raises `ValueError` with the choices."""
    family, _, size = spec.partition(":")
    if family not in FAMILIES:
        if "/" in spec or spec.endswith((".json", ".pddl")):
            raise ValueError(
                f"{spec}: no such file or folder; give a learned folder, or a domain: "
                f"{', '.join(domain_usage(name) for name in FAMILIES)}"
            )
        raise ValueError(f"{spec!r} is not a domain; choices: {', '.join(domain_usage(name) for name in FAMILIES)}")
    known = FAMILIES[family]
    if not re.fullmatch(r"[0-9]{1,18}(x[0-9]{1,18})*" if known.sizes else "", size):
        raise ValueError(f"{cut(spec)!r}: the domain is written {domain_usage(family)}, such as {known.example}")
    sizes = [int(part) for part in size.split("x")] if size else []
    if len(sizes) != len(known.sizes):
        raise ValueError(f"{spec!r}: the domain is written {domain_usage(family)}, such as {known.example}")
    for what, value, (_, least) in zip(known.sizes, sizes, known.sizes.items()):
        if value < least:
            raise ValueError(f"{spec!r}: {what.lower()} must be at least {least}, not {value}")
        if value > MOST:
            raise ValueError(f"{spec!r}: {what.lower()} must be at most {MOST}, not {value}")
    try:
        atoms, actions, start = known.build(*sizes)
        needed = len(atoms) * (len(atoms) + 3 * len(actions)) // 16  # a set stores half of its bits on average
        if needed > MOST_BYTES:
            raise ValueError(f"{len(actions):,} ground actions with {len(atoms):,} atoms, more than fit into memory")
    except ValueError as error:
        raise ValueError(f"{spec!r} has {error}: choose a smaller instance") from None
    model = ActionModel.of(atoms, actions)
    bit = {name: 1 << place for place, name in enumerate(atoms)}
    return Domain(spec, model, tuple(sum(bit[atom] for atom in state) for state in start))


def domain_usage(family: str) -> str:
    """The syntax of a family's domains."""
    sizes = "x".join(FAMILIES[family].sizes)
    return f"{family}:{sizes}" if sizes else family


def simple() -> tuple[list[str], Effects, list[list[str]]]:
    """The paper's Figure 1: a and b alternate, with at least one c in between."""
    actions: Effects = {
        "a": (["p", "r"], ["q"], ["p", "r"]),
        "b": (["q", "r"], ["p"], ["q", "r"]),
        "c": ([], ["r"], []),
    }
    return ["p", "q", "r"], actions, [["p", "r"]]


def blocksworld(blocks: int) -> tuple[list[str], Effects, list[list[str]]]:
    """Blocks on a table and a gripper that holds one."""
    names = [f"b{number}" for number in range(1, blocks + 1)]
    pairs = list(permutations(names, 2))
    atoms = [f"on {x} {y}" for x, y in pairs]
    atoms += [f"{what} {x}" for what in ("ontable", "clear", "holding") for x in names] + ["handempty"]
    actions = GroundActions()
    for x in names:
        free = [f"clear {x}", f"ontable {x}", "handempty"]
        actions[f"pickup {x}"] = (free, [f"holding {x}"], free)
        actions[f"putdown {x}"] = ([f"holding {x}"], free, [f"holding {x}"])
    for x, y in pairs:
        held, stacked = [f"holding {x}", f"clear {y}"], [f"on {x} {y}", f"clear {x}", "handempty"]
        actions[f"stack {x} {y}"] = (held, stacked, held)
        actions[f"unstack {x} {y}"] = (stacked, held, stacked)
    start = [f"{what} {x}" for what in ("ontable", "clear") for x in names] + ["handempty"]
    return atoms, actions, [start]


def ferry(ports: int, cars: int) -> tuple[list[str], Effects, list[list[str]]]:
    """A ferry that carries one car at a time between ports."""
    places, loads = [f"l{number}" for number in range(ports)], [f"c{number}" for number in range(cars)]
    atoms = [f"at-ferry {x}" for x in places] + [f"at {c} {x}" for c in loads for x in places]
    atoms += [f"on {c}" for c in loads] + ["empty-ferry"]
    actions = GroundActions()
    for x, y in permutations(places, 2):
        actions[f"sail {x} {y}"] = ([f"at-ferry {x}"], [f"at-ferry {y}"], [f"at-ferry {x}"])
    for c, x in product(loads, places):
        waiting = [f"at {c} {x}", "empty-ferry"]
        actions[f"board {c} {x}"] = ([*waiting, f"at-ferry {x}"], [f"on {c}"], waiting)
        actions[f"debark {c} {x}"] = ([f"on {c}", f"at-ferry {x}"], waiting, [f"on {c}"])
    start = [f"at-ferry {places[0]}", "empty-ferry", *(f"at {c} {places[0]}" for c in loads)]
    return atoms, actions, [start]


def gripper(balls: int) -> tuple[list[str], Effects, list[list[str]]]:
    """A robot with two hands that carries balls between two rooms."""
    rooms, hands = ["rooma", "roomb"], ["left", "right"]
    things = [f"ball{number}" for number in range(1, balls + 1)]
    atoms = [f"at-robby {room}" for room in rooms] + [f"at {ball} {room}" for ball in things for room in rooms]
    atoms += [f"free {hand}" for hand in hands] + [f"carry {ball} {hand}" for ball in things for hand in hands]
    actions = GroundActions()
    for x, y in permutations(rooms, 2):
        actions[f"move {x} {y}"] = ([f"at-robby {x}"], [f"at-robby {y}"], [f"at-robby {x}"])
    for ball, room, hand in product(things, rooms, hands):
        lying, carried = [f"at {ball} {room}", f"free {hand}"], [f"carry {ball} {hand}"]
        actions[f"pick {ball} {room} {hand}"] = ([*lying, f"at-robby {room}"], carried, lying)
        actions[f"drop {ball} {room} {hand}"] = ([*carried, f"at-robby {room}"], lying, carried)
    start = ["at-robby rooma", "free left", "free right", *(f"at {ball} rooma" for ball in things)]
    return atoms, actions, [start]


def hanoi(discs: int) -> tuple[list[str], Effects, list[list[str]]]:
    """The towers of Hanoi: a disc lies on a peg or on a larger disc, and the topmost may be moved."""
    names, pegs = [f"d{number}" for number in range(1, discs + 1)], ["peg1", "peg2", "peg3"]
    under = {disc: names[place + 1 :] + pegs for place, disc in enumerate(names)}
    atoms = [f"on {disc} {x}" for disc in names for x in under[disc]] + [f"clear {x}" for x in names + pegs]
    actions = GroundActions()
    for disc in names:
        for source, target in permutations(under[disc], 2):
            leaves, comes = f"on {disc} {source}", f"on {disc} {target}"
            actions[f"move {disc} {source} {target}"] = (
                [f"clear {disc}", leaves, f"clear {target}"],
                [comes, f"clear {source}"],
                [leaves, f"clear {target}"],
            )
    start = [f"on {x} {y}" for x, y in zip(names, [*names[1:], pegs[0]])]
    return atoms, actions, [[*start, f"clear {names[0]}", "clear peg2", "clear peg3"]]


def miconic(floors: int, passengers: int) -> tuple[list[str], Effects, list[list[str]]]:
    """A lift that carries passengers between floors.

    Unlike in the original, passengers may enter and leave at any floor, so that random walks have no dead ends.
    """
    levels, people = [f"f{number}" for number in range(floors)], [f"p{number}" for number in range(passengers)]
    atoms = [f"lift-at {f}" for f in levels] + [f"waits {p} {f}" for p in people for f in levels]
    atoms += [f"boarded {p}" for p in people]
    actions = GroundActions()
    for x, y in permutations(levels, 2):
        actions[f"ride {x} {y}"] = ([f"lift-at {x}"], [f"lift-at {y}"], [f"lift-at {x}"])
    for p, f in product(people, levels):
        waits, inside = [f"waits {p} {f}"], [f"boarded {p}"]
        actions[f"enter {p} {f}"] = ([f"lift-at {f}", *waits], inside, waits)
        actions[f"leave {p} {f}"] = ([f"lift-at {f}", *inside], waits, inside)
    return atoms, actions, [[f"lift-at {levels[0]}", *(f"waits {p} {levels[0]}" for p in people)]]


def logistics(cities: int, places: int, packages: int) -> tuple[list[str], Effects, list[list[str]]]:
    """Trucks, one in each city, and a plane between the first places of the cities carry packages."""
    at = [f"l{city}-{place}" for city in range(cities) for place in range(places)]
    airports = [f"l{city}-0" for city in range(cities)]
    goods = [f"p{number}" for number in range(packages)]
    trucks = {f"t{city}": [f"l{city}-{place}" for place in range(places)] for city in range(cities)}
    atoms = [f"at {truck} {x}" for truck, where in trucks.items() for x in where] + [f"at a0 {x}" for x in airports]
    atoms += [f"at {p} {x}" for p in goods for x in at] + [f"in {p} {v}" for p in goods for v in [*trucks, "a0"]]
    actions = GroundActions()
    for vehicle, where, verb in [*((t, x, "drive") for t, x in trucks.items()), ("a0", airports, "fly")]:
        for x, y in permutations(where, 2):
            here, there = [f"at {vehicle} {x}"], [f"at {vehicle} {y}"]
            actions[f"{verb} {vehicle} {x} {y}"] = (here, there, here)
        kind = "truck" if verb == "drive" else "plane"
        for p, x in product(goods, where):
            lies, inside = [f"at {p} {x}"], [f"in {p} {vehicle}"]
            actions[f"load-{kind} {p} {vehicle} {x}"] = ([f"at {vehicle} {x}", *lies], inside, lies)
            actions[f"unload-{kind} {p} {vehicle} {x}"] = ([f"at {vehicle} {x}", *inside], lies, inside)
    start = [f"at {t} {where[0]}" for t, where in trucks.items()] + [f"at a0 {airports[0]}"]
    return atoms, actions, [[*start, *(f"at {p} {at[number % len(at)]}" for number, p in enumerate(goods))]]


def tiles(rows: int, columns: int) -> tuple[list[str], Effects, list[list[str]]]:
    """The sliding-tile puzzle: a tile beside the empty cell is moved into it."""
    cells, steps = _grid(rows, columns)
    names = [f"t{number}" for number in range(1, len(cells))]
    actions = GroundActions()
    for tile, (x, y) in product(names, steps):
        before, after = [f"at {tile} {x}", f"empty {y}"], [f"at {tile} {y}", f"empty {x}"]
        actions[f"move {tile} {x} {y}"] = (before, after, before)
    atoms = [f"at {tile} {x}" for tile in names for x in cells] + [f"empty {x}" for x in cells]
    return atoms, actions, [[f"empty {cells[0]}", *(f"at {tile} {x}" for tile, x in zip(names, cells[1:]))]]


def visit_all(rows: int, columns: int) -> tuple[list[str], Effects, list[list[str]]]:
    """A robot on a grid marks the cells where it has been; no action requires or deletes a mark."""
    cells, steps = _grid(rows, columns)
    atoms = [f"at {x}" for x in cells] + [f"visited {x}" for x in cells]
    actions = GroundActions()
    for x, y in steps:
        actions[f"move {x} {y}"] = ([f"at {x}"], [f"at {y}", f"visited {y}"], [f"at {x}"])
    return atoms, actions, [[f"at {cells[0]}", f"visited {cells[0]}"]]


def satellite(satellites: int, directions: int) -> tuple[list[str], Effects, list[list[str]]]:
    """Satellites with two instruments each, of which one has power at a time, take images.

    An instrument is calibrated where it points at its target, and must be calibrated again after each time without
    power. Images are kept.
    """
    names, targets = [f"s{number}" for number in range(satellites)], [f"d{number}" for number in range(directions)]
    aboard = [(s, f"i{2 * number + which}", targets[which]) for number, s in enumerate(names) for which in range(2)]
    atoms = [f"pointing {s} {d}" for s in names for d in targets] + [f"power-avail {s}" for s in names]
    atoms += [f"{what} {i}" for what in ("power-on", "calibrated") for _, i, _ in aboard]
    atoms += [f"have-image {d}" for d in targets]
    actions = GroundActions()
    for s, (x, y) in product(names, permutations(targets, 2)):
        actions[f"turn-to {s} {y} {x}"] = ([f"pointing {s} {x}"], [f"pointing {s} {y}"], [f"pointing {s} {x}"])
    for s, i, target in aboard:
        spare, on, ready = f"power-avail {s}", f"power-on {i}", f"calibrated {i}"
        actions[f"switch-on {i} {s}"] = ([spare], [on], [spare, ready])
        actions[f"switch-off {i} {s}"] = ([on], [spare], [on])
        actions[f"calibrate {s} {i} {target}"] = ([f"pointing {s} {target}", on], [ready], [])
        for d in targets:
            actions[f"take-image {s} {d} {i}"] = ([f"pointing {s} {d}", on, ready], [f"have-image {d}"], [])
    start = [what for s in names for what in (f"pointing {s} {targets[0]}", f"power-avail {s}")]
    return atoms, actions, [start]


def npuzzle(rows: int, columns: int) -> tuple[list[str], Effects, list[list[str]]]:
    """The sliding-tile puzzle by directions: the tile above the empty cell moves down, and so on."""
    cells, steps = _directions(rows, columns)
    names = [f"t{number}" for number in range(1, len(cells))]
    beside = [f"{verb}-of {y} {x}" for verb, x, y in steps]
    actions = GroundActions()
    for tile, (verb, x, y) in product(names, steps):
        before, after = [f"at {tile} {x}", f"empty {y}"], [f"at {tile} {y}", f"empty {x}"]
        actions[f"{verb} {tile} {x} {y}"] = ([*before, f"{verb}-of {y} {x}"], after, before)
    atoms = [f"at {tile} {x}" for tile in names for x in cells] + [f"empty {x}" for x in cells] + beside
    return atoms, actions, [[f"empty {cells[0]}", *(f"at {t} {x}" for t, x in zip(names, cells[1:])), *beside]]


def grid(rows: int, columns: int) -> tuple[list[str], Effects, list[list[str]]]:
    """A robot on a grid, by directions."""
    cells, steps = _directions(rows, columns)
    beside = [f"{verb}-of {y} {x}" for verb, x, y in steps]
    actions = GroundActions()
    for verb, x, y in steps:
        actions[f"{verb} {x} {y}"] = ([f"at {x}", f"{verb}-of {y} {x}"], [f"at {y}"], [f"at {x}"])
    return [*(f"at {x}" for x in cells), *beside], actions, [[f"at {cells[0]}", *beside]]


def sokoban(rows: int, columns: int) -> tuple[list[str], Effects, list[list[str]]]:
    """A robot that walks on a grid and pushes two boxes, by directions. A cell is clear if no box is there."""
    cells, steps = _directions(rows, columns)
    boxes, start = ["box1", "box2"], [cells[columns + 1], cells[columns + 2]]
    beside = [f"{verb}-of {y} {x}" for verb, x, y in steps]
    actions = GroundActions()
    for verb, x, y in steps:
        actions[f"move-{verb} {x} {y}"] = (
            [f"robot {x}", f"clear {y}", f"{verb}-of {y} {x}"], [f"robot {y}"], [f"robot {x}"],
        )  # fmt: skip
        for box, z in ((box, z) for box in boxes for other, from_, z in steps if (other, from_) == (verb, y)):
            before, after = [f"robot {x}", f"at {box} {y}", f"clear {z}"], [f"robot {y}", f"at {box} {z}", f"clear {y}"]
            actions[f"push-{verb} {box} {x} {y} {z}"] = (
                [*before, f"{verb}-of {y} {x}", f"{verb}-of {z} {y}"], after, before,
            )  # fmt: skip
    atoms = [f"{what} {x}" for what in ("robot", "clear", *(f"at {box}" for box in boxes)) for x in cells] + beside
    lies = [f"at {box} {x}" for box, x in zip(boxes, start)]
    free = [f"clear {x}" for x in cells if x not in start]
    return atoms, actions, [[f"robot {cells[0]}", *lies, *free, *beside]]


def _directions(rows: int, columns: int) -> tuple[list[str], list[tuple[str, str, str]]]:
    """The cells of a grid, and the directions from each to its neighbours: `up` goes from a cell to the one above."""
    cells, steps = _grid(rows, columns)
    place = {cell: tuple(map(int, cell[1:].split("-"))) for cell in cells}
    verbs = {(-1, 0): "up", (1, 0): "down", (0, -1): "left", (0, 1): "right"}
    return cells, [(verbs[place[y][0] - place[x][0], place[y][1] - place[x][1]], x, y) for x, y in steps]


def _grid(rows: int, columns: int) -> tuple[list[str], list[tuple[str, str]]]:
    """The cells of a grid, and the pairs of neighbours in both directions."""
    cells = {(row, column): f"x{row}-{column}" for row in range(rows) for column in range(columns)}
    beside = [(0, 1), (1, 0), (0, -1), (-1, 0)]
    steps = [
        (name, cells[row + down, column + right])
        for (row, column), name in cells.items()
        for down, right in beside
        if (row + down, column + right) in cells
    ]
    return list(cells.values()), steps


@dataclass(frozen=True)
class Family:
    """A domain of any size."""

    build: Callable[..., tuple[list[str], Effects, list[list[str]]]]
    sizes: dict[str, int]
    """What each size counts, with its minimum."""
    example: str
    named: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The arguments, from 0, that a log with implicit arguments names, of each schema; of the others it names all. The
    state determines the rest."""


DIRECTIONS = ("up", "down", "left", "right")

FAMILIES = {
    "simple": Family(simple, {}, "simple"),
    "blocksworld": Family(blocksworld, {"BLOCKS": 1}, "blocksworld:3", {"putdown": (), "stack": (1,), "unstack": (0,)}),
    "ferry": Family(ferry, {"PORTS": 2, "CARS": 1}, "ferry:2x1", {"sail": (1,), "board": (0,), "debark": ()}),
    "gripper": Family(gripper, {"BALLS": 1}, "gripper:2", {"move": (1,), "pick": (0, 2), "drop": (2,)}),
    "hanoi": Family(hanoi, {"DISCS": 1}, "hanoi:3", {"move": (0, 2)}),
    "miconic": Family(
        miconic, {"FLOORS": 2, "PASSENGERS": 1}, "miconic:3x2", {"ride": (1,), "enter": (0,), "leave": (0,)}
    ),
    "logistics": Family(
        logistics,
        {"CITIES": 2, "PLACES": 1, "PACKAGES": 1},
        "logistics:2x2x2",
        {
            **dict.fromkeys(("drive", "fly"), (0, 2)),
            **dict.fromkeys(("load-truck", "load-plane"), (0, 1)),
            **dict.fromkeys(("unload-truck", "unload-plane"), (0,)),
        },
    ),
    "tiles": Family(tiles, {"ROWS": 2, "COLUMNS": 2}, "tiles:2x3", {"move": (0,)}),
    "visit-all": Family(visit_all, {"ROWS": 2, "COLUMNS": 2}, "visit-all:3x3", {"move": (1,)}),
    "satellite": Family(
        satellite, {"SATELLITES": 1, "DIRECTIONS": 2}, "satellite:1x3", {"turn-to": (0, 1), "take-image": (0, 2)}
    ),
    "npuzzle": Family(npuzzle, {"ROWS": 2, "COLUMNS": 2}, "npuzzle:2x3", dict.fromkeys(DIRECTIONS, ())),
    "grid": Family(grid, {"ROWS": 2, "COLUMNS": 2}, "grid:3x3", dict.fromkeys(DIRECTIONS, ())),
    "sokoban": Family(
        sokoban,
        {"ROWS": 3, "COLUMNS": 4},
        "sokoban:3x4",
        {f"{verb}-{way}": () for verb in ("move", "push") for way in DIRECTIONS},
    ),
}
