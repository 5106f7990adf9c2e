"""Action models: the preconditions, add effects and delete effects of each action; and what a trace shows about atoms.

Semantics of traces (Definition 1 of the STRIPS Transformer paper): the initial state is unknown, so an atom that no
action has affected yet may be true. A trace is positive unless some action requires an atom whose last effect before it
was a delete. As an automaton: the state is the set of atoms *known to be false*, empty at the start; an action is
rejected if one of its preconditions is in the set; otherwise its add effects leave the set and its delete effects
enter.

Sets of atoms are integers, bit l for atom l, so that a step takes three operations.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from statewise.runtime.json_files import ANYTHING, TEXT, Shape, check, parse_json

FORMAT = "statewise action model 1"

SHAPE: Shape = {"atoms": [TEXT], "actions": {...: {key: [TEXT] for key in ("pre", "add", "delete")}}}

Atoms = int
"""A set of atoms, as bits."""

FEW_ACTIONS = 100
"""With fewer actions it is faster to try each one than to look up those that may be applicable."""

MOST_ACTIONS = 200_000
"""The largest number of ground actions of an instance."""


@dataclass(frozen=True)
class Action:
    """One action. An atom that is both added and deleted is added, as in PDDL: `add` and `delete` are disjoint."""

    name: str
    pre: Atoms
    add: Atoms
    delete: Atoms

    @property
    def parts(self) -> tuple[Atoms, Atoms, Atoms]:
        """Preconditions, adds and deletes."""
        return self.pre, self.add, self.delete

    def __post_init__(self) -> None:
        if self.add & self.delete:
            object.__setattr__(self, "delete", self.delete & ~self.add)


@dataclass(frozen=True)
class ActionModel:
    """A propositional STRIPS domain (F, A). Atoms are known by number, actions by name or number."""

    atoms: tuple[str, ...]
    actions: tuple[Action, ...]

    def __post_init__(self) -> None:
        for kind, names in (("atom", self.atoms), ("action", self.names)):
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise ValueError(f"the {kind} {twice!r} occurs twice")

    @classmethod
    def of(
        cls, atoms: Sequence[str], actions: Mapping[str, tuple[Iterable[str], Iterable[str], Iterable[str]]]
    ) -> ActionModel:
        """The model of actions by name, each with the names of its preconditions, adds and deletes. Raises `ValueError`
        for an unknown atom."""
        bit = {name: 1 << place for place, name in enumerate(atoms)}

        def as_bits(action: str, names: Iterable[str]) -> Atoms:
            total = 0
            for name in names:
                if name not in bit:
                    raise ValueError(f"action {action!r}: {name!r} is not an atom of the model")
                total |= bit[name]
            return total

        made = []
        for name, (pre, add, delete) in actions.items():
            made.append(Action(name, *(as_bits(name, names) for names in (pre, add, delete))))
        return cls(tuple(atoms), tuple(made))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the actions."""
        return tuple(action.name for action in self.actions)

    @cached_property
    def number(self) -> dict[str, int]:
        """The number of each action."""
        return {name: place for place, name in enumerate(self.names)}

    def spelled(self, atoms: Atoms) -> list[str]:
        """The names of a set of atoms."""
        return [self.atoms[place] for place in bits(atoms)]

    def first_rejected(self, trace: Iterable[int], known_false: Atoms = 0) -> int | None:
        """Position of the first rejected action (Definition 1), or None if the trace is positive.

        `trace` holds action numbers, `known_false` the atoms known to be false before it.
        """
        for position, number in enumerate(trace):
            action = self.actions[number]
            if action.pre & known_false:
                return position
            known_false = known_false & ~action.add | action.delete
        return None

    def after(self, trace: Iterable[int], known_false: Atoms = 0) -> Atoms:
        """The atoms known to be false after a trace, whether or not it is positive."""
        for number in trace:
            action = self.actions[number]
            known_false = known_false & ~action.add | action.delete
        return known_false

    def possible(self, known_false: Atoms) -> list[int]:
        """Numbers of the actions that are accepted next."""
        return [place for place, action in enumerate(self.actions) if not action.pre & known_false]

    def applicable(self, state: Atoms) -> list[int]:
        """Numbers of the actions applicable in a full state, given as the set of true atoms."""
        if len(self.actions) < FEW_ACTIONS:
            return [place for place, action in enumerate(self.actions) if not action.pre & ~state]
        always, keys, by_key = self._by_precondition
        numbers, true = list(always), state & keys
        while true:
            key = true & -true
            true ^= key
            numbers += [place for place in by_key[key] if not self.actions[place].pre & ~state]
        return sorted(numbers)

    @cached_property
    def _by_precondition(self) -> tuple[list[int], Atoms, dict[Atoms, list[int]]]:
        """Numbers of the actions without a precondition; the set of keys; and the numbers of the other actions by key.
        The key of an action is its rarest precondition: the one that fewest actions have."""
        having = Counter(place for action in self.actions for place in bits(action.pre))
        always: list[int] = []
        by_key: dict[Atoms, list[int]] = {}
        for place, action in enumerate(self.actions):
            if action.pre:
                by_key.setdefault(1 << min(bits(action.pre), key=having.__getitem__), []).append(place)
            else:
                always.append(place)
        return always, sum(by_key), by_key

    def result(self, state: Atoms, number: int) -> Atoms:
        """The full state after an action."""
        action = self.actions[number]
        return (state | action.add) & ~action.delete

    def reachable(self, start: Iterable[Atoms], limit: int | None = None) -> list[Atoms]:
        """All reachable full states, those of `start` first. Stops at `limit` states."""
        states = list(dict.fromkeys(start))
        seen = set(states)
        for state in states:  # grows during the loop
            for number in self.applicable(state):
                if limit is not None and len(states) >= limit:
                    return states
                after = self.result(state, number)
                if after not in seen:
                    seen.add(after)
                    states.append(after)
        return states

    def with_atoms(self, kept: Sequence[int], names: Sequence[str] | None = None) -> ActionModel:
        """The model with only the atoms `kept`, in that order, renamed if `names` is given."""
        new: dict[int, Atoms] = {}
        for place, old in enumerate(kept):
            new[old] = new.get(old, 0) | 1 << place
        moved = tuple(Action(action.name, *(_move(atoms, new) for atoms in action.parts)) for action in self.actions)
        return ActionModel(tuple(names) if names else tuple(self.atoms[place] for place in kept), moved)

    def with_actions(self, names: Sequence[str], mine: str = "the model", theirs: str = "the other") -> ActionModel:
        """The model with its actions in the order of `names`. Raises `ValueError` unless these are its actions; the
        message calls the two sides `mine` and `theirs`."""
        missing, more = self.unseen(names), sorted(set(self.names) - set(names))
        if missing or more:
            parts = [
                f"{who} has no {', '.join(map(repr, which[:3]))}{' ...' if which[3:] else ''}"
                for who, which in ((mine, missing), (theirs, more))
                if which
            ]
            raise ValueError(f"the two models have different actions: {'; '.join(parts)}")
        return ActionModel(self.atoms, tuple(self.actions[self.number[name]] for name in names))

    def unseen(self, names: Iterable[str]) -> list[str]:
        """The names that are not actions of the model, sorted."""
        return sorted(set(names) - set(self.names))

    def covering(self, names: Sequence[str]) -> ActionModel:
        """The model with the actions `names`, in that order.

        Nothing is known about an action that was not seen in training: it gets no preconditions and no effects, so it
        is never rejected and changes nothing. Raises `ValueError` if the model has actions that `names` lacks.
        """
        more = (Action(name, 0, 0, 0) for name in self.unseen(names))
        whole = ActionModel(self.atoms, (*self.actions, *more))
        return whole.with_actions(names, "the learned model", "the reference")

    def as_dict(self) -> dict[str, Any]:
        """The model as plain data, for JSON."""
        return {
            "format": FORMAT,
            "atoms": list(self.atoms),
            "actions": {
                action.name: {
                    "pre": self.spelled(action.pre),
                    "add": self.spelled(action.add),
                    "delete": self.spelled(action.delete),
                }
                for action in self.actions
            },
        }

    def as_json(self) -> str:
        """The model as JSON text."""
        return json.dumps(self.as_dict(), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> ActionModel:
        """Reads what `as_json` returns; `where` is the name of the file, for errors. Raises `ValueError`."""
        content = parse_json(text, ANYTHING, where)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f"{where} is not an action model of this version ({FORMAT!r} is missing)")
        check(content, SHAPE, where)
        for kind in ("atoms", "actions"):
            if any(not name.strip() for name in content[kind]):
                raise ValueError(f"{where}: {kind}: a name is empty")
        actions = {name: (each["pre"], each["add"], each["delete"]) for name, each in content["actions"].items()}
        try:
            return cls.of(content["atoms"], actions)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None


def bits(atoms: Atoms) -> Iterator[int]:
    """The numbers of the atoms in a set."""
    while atoms:
        lowest = atoms & -atoms
        yield lowest.bit_length() - 1
        atoms ^= lowest


def _move(atoms: Atoms, new: Mapping[int, Atoms]) -> Atoms:
    moved = 0
    for old in bits(atoms):
        moved |= new.get(old, 0)
    return moved


@dataclass(frozen=True)
class Evidence:
    """Sets of atoms of a model, from one valid trace."""

    required: Atoms
    """True at the beginning: required before any effect."""
    added: Atoms
    """Added by their first effect, and not required before: assumed to be false at the beginning."""
    deleted: Atoms
    """Deleted by their first effect, and not required before: assumed to be true at the beginning."""
    true: Atoms
    """True after the trace: required or added, and not deleted since."""
    false: Atoms
    """False after the trace."""
    achieved: Atoms
    """The atoms that are true after the trace and were affected: the last effect added them."""


def evidence_of(model: ActionModel, trace: Iterable[int]) -> Evidence:
    """What a trace, given as action numbers, shows, if all its actions are valid."""
    required = added = deleted = true = false = affected = 0
    for number in trace:
        action = model.actions[number]
        add, delete = action.add, action.delete
        new = ~(affected | required)
        required |= action.pre & ~affected
        new &= ~action.pre
        added |= add & new
        deleted |= delete & new
        affected |= add | delete
        true = (true | action.pre | add) & ~delete
        false = false & ~add | delete
    return Evidence(required, added, deleted, true, false, true & affected)


def accepted(model: ActionModel, names: Sequence[str], what: str) -> list[int]:
    """The numbers of the actions of a trace. Raises `ValueError` for an unknown action, and for one that the model
    rejects; `what` names the trace in the message."""
    numbers = []
    for name in names:
        if name not in model.number:
            raise ValueError(f"{what}: {name!r} is not an action of the model")
        numbers.append(model.number[name])
    at = model.first_rejected(numbers)
    if at is not None:
        missing = model.spelled(model.actions[numbers[at]].pre & model.after(numbers[:at]))
        raise ValueError(
            f"{what}: the model rejects action {at + 1}, {names[at]!r}, which requires {', '.join(missing)}: the model "
            "is wrong, or the trace is not valid"
        )
    return numbers
