"""Known planning domains of any size, grounded: `simple`, `blocksworld:3`, `ferry:2x1`, ...

A domain is an action model and the full states in which its traces may start. Ground actions are written
`schema object object`, as planners print them, so that lifted learning can parse them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations, product

import numpy as np

from statewise.strips.model import ActionModel, Atoms

Effects = dict[str, tuple[list[str], list[str], list[str]]]
"""For each action its preconditions, add effects and delete effects."""


@dataclass(frozen=True)
class Domain:
    """An action model with its real initial states."""

    name: str
    model: ActionModel
    start: tuple[Atoms, ...]
    """States from which every real state of the domain can be reached."""

    @cached_property
    def states(self) -> list[Atoms]:
        """Every real state, computed on first use: there may be many."""
        return self.model.reachable(self.start)

    def initial_states(self, count: int, states_seed: int = 0) -> list[Atoms]:
        """`count` real states, drawn without replacement: the paper uses four, two for training and two for testing.

        They are drawn from the first 10,000 states in breadth-first order. Raises `ValueError` if there are too few.
        """
        known = self.model.reachable(self.start, limit=10_000)
        if len(known) < count:
            raise ValueError(
                f"{self.name} has {len(known)} states, and walks are to begin in {count} different ones: take a larger "
                "instance"
            )
        chosen = np.random.default_rng([states_seed, 2024]).choice(len(known), count, replace=False)
        return [known[place] for place in chosen]


MOST = 100
"""The largest size of a domain: all of its ground actions are listed."""


def domain(spec: str) -> Domain:
    """The domain that `spec` names, such as `blocksworld:3`. Raises `ValueError` with the choices."""
    family, _, size = spec.partition(":")
    if family not in FAMILIES:
        raise ValueError(f"{spec!r} is not a domain; choices: {', '.join(domain_usage(name) for name in FAMILIES)}")
    known = FAMILIES[family]
    if not re.fullmatch(r"\d+(x\d+)*" if known.sizes else "", size):
        raise ValueError(f"{spec!r}: the domain is written {domain_usage(family)}, such as {known.example}")
    sizes = [int(part) for part in size.split("x")] if size else []
    if len(sizes) != len(known.sizes):
        raise ValueError(f"{spec!r}: the domain is written {domain_usage(family)}, such as {known.example}")
    for what, value, (_, least) in zip(known.sizes, sizes, known.sizes.items()):
        if value < least:
            raise ValueError(f"{spec!r}: {what.lower()} must be at least {least}, not {value}")
        if value > MOST:
            raise ValueError(f"{spec!r}: {what.lower()} must be at most {MOST}, not {value}")
    atoms, actions, start = known.build(*sizes)
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
    actions: Effects = {}
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
    actions: Effects = {}
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
    actions: Effects = {}
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
    actions: Effects = {}
    for disc in names:
        for source, target in permutations(under[disc], 2):
            leaves, comes = f"on {disc} {source}", f"on {disc} {target}"
            actions[f"move {disc} {source} {target}"] = (
                [f"clear {disc}", leaves, f"clear {target}"], [comes, f"clear {source}"], [leaves, f"clear {target}"]
            )  # fmt: skip
    start = [f"on {x} {y}" for x, y in zip(names, [*names[1:], pegs[0]])]
    return atoms, actions, [[*start, f"clear {names[0]}", "clear peg2", "clear peg3"]]


def miconic(floors: int, passengers: int) -> tuple[list[str], Effects, list[list[str]]]:
    """A lift that carries passengers between floors.

    Unlike in the original, passengers may enter and leave at any floor, so that random walks have no dead ends.
    """
    levels, people = [f"f{number}" for number in range(floors)], [f"p{number}" for number in range(passengers)]
    atoms = [f"lift-at {f}" for f in levels] + [f"waits {p} {f}" for p in people for f in levels]
    atoms += [f"boarded {p}" for p in people]
    actions: Effects = {}
    for x, y in permutations(levels, 2):
        actions[f"ride {x} {y}"] = ([f"lift-at {x}"], [f"lift-at {y}"], [f"lift-at {x}"])
    for p, f in product(people, levels):
        waits, inside = [f"waits {p} {f}"], [f"boarded {p}"]
        actions[f"enter {p} {f}"] = ([f"lift-at {f}", *waits], inside, waits)
        actions[f"leave {p} {f}"] = ([f"lift-at {f}", *inside], waits, inside)
    return atoms, actions, [[f"lift-at {levels[0]}", *(f"waits {p} {levels[0]}" for p in people)]]


@dataclass(frozen=True)
class Family:
    """A domain of any size."""

    build: Callable[..., tuple[list[str], Effects, list[list[str]]]]
    sizes: dict[str, int]
    """What its sizes count, each with its minimum."""
    example: str


FAMILIES = {
    "simple": Family(simple, {}, "simple"),
    "blocksworld": Family(blocksworld, {"BLOCKS": 1}, "blocksworld:3"),
    "ferry": Family(ferry, {"PORTS": 2, "CARS": 1}, "ferry:2x1"),
    "gripper": Family(gripper, {"BALLS": 1}, "gripper:2"),
    "hanoi": Family(hanoi, {"DISCS": 1}, "hanoi:3"),
    "miconic": Family(miconic, {"FLOORS": 2, "PASSENGERS": 1}, "miconic:3x2"),
}
