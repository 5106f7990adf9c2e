"""Checks new traces with observed states against a model that was learned from states: valid, invalid, or undecided.

The model's folder says of each literal whether it is certain, possible or excluded (`observed`). Each choice of what is
possible is a model. An action is valid if all of them allow it in the state before it and all lead to what was observed
after it, and invalid if none does, judged atom by atom.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from statewise.runtime.json_files import ANYTHING, TEXT, Shape, read_json
from statewise.strips.exact.verdicts import Verdict
from statewise.strips.model.schemas import arguments
from statewise.strips.model.states import Observed, State
from statewise.strips.planning.checking import Checked

_PART: Shape = {"certain": [TEXT], "possible": [TEXT], "excluded?": [TEXT]}
_BOUNDS: Shape = {"bounds": {...: {"pre": _PART, "add": _PART, "delete": _PART}}, "states": {...: ANYTHING}}
MOST_IMAGES = 4
"""Of an atom that more literals of an action name, nothing is decided."""
Effect = bool | None
"""What a literal does to an atom: it becomes true, false, or stays."""


@dataclass(frozen=True)
class _Part:
    certain: frozenset[tuple[str, ...]]
    possible: frozenset[tuple[str, ...]]
    """Includes what is certain. Literals as words: the predicate, then x1, x2, ... or constants."""
    excluded: frozenset[tuple[str, ...]] = frozenset()
    """Of deletions: those that are certainly not made. Of those that are neither here nor possible nothing is known."""


@dataclass(frozen=True)
class StateBounds:
    """What the training states show about each schema."""

    schemas: Mapping[str, tuple[_Part, _Part, _Part]]
    """Preconditions, additions and deletions of each schema that was valid in training."""
    noise: float | None
    """The share of noise that the verdicts suppose, if the states were noisy."""
    confidence: float | None

    @property
    def assumed(self) -> str:
        """What verdicts assume, in words."""
        text = "STRIPS schemas whose literals name arguments of the action, or constants that were given"
        if self.noise is None:
            return f"{text}; all training states are right"
        return (
            f"{text}; at most {self.noise:.1%} of the atoms of the training states are wrong, and of their actions "
            f"misread; then the verdicts are right with probability {self.confidence or 0:g}"
        )


def read_state_bounds(folder: str | Path) -> StateBounds | None:
    """What the training states of a learned folder show; None if it was not learned from states, or its log left
    arguments out. Raises `ValueError` if its report is damaged."""
    path = Path(folder) / "report.json"
    if not path.is_file():
        return None
    report = read_json(path, {})
    if "bounds" not in report or "states" not in report or "implicit" in report:
        return None
    report = read_json(path, _BOUNDS)
    schemas = {}
    for schema, parts in report["bounds"].items():
        made = []
        for which in ("pre", "add", "delete"):
            certain, possible, excluded = (
                frozenset(tuple(each.split()) for each in parts[which].get(how, ()))
                for how in ("certain", "possible", "excluded")
            )
            made.append(_Part(certain, certain | possible, excluded))
        schemas[schema] = made[0], made[1], made[2]
    noise, confidence = (report["states"].get(key) for key in ("noise", "confidence"))
    numbers = [each if isinstance(each, int | float) else None for each in (noise, confidence)]
    return StateBounds(schemas, numbers[0], numbers[1])


def check_states(bounds: StateBounds, observed: Observed) -> Checked:
    """The verdict on each trace, by its states; labels are ignored. Of an action without a state before it nothing is
    decided; a state after it is not needed."""
    verdicts = []
    for place, row in enumerate(observed.traces.rows):
        verdict = Verdict("valid", None)
        for step, action in enumerate(row):
            states = observed.states[place]
            outcome, why = _judged(
                bounds, observed.traces.actions[action], states[step], states[step + 1], observed.complete
            )
            if outcome == "invalid":
                verdict = Verdict("invalid", step, why)
                break
            if outcome == "undecided" and verdict.outcome == "valid":
                verdict = Verdict("undecided", step, why)
        verdicts.append(verdict)
    return Checked(observed.traces, verdicts)


def _judged(
    bounds: StateBounds, action: str, before: State | None, after: State | None, complete: frozenset[str]
) -> tuple[str, str | None]:
    """Whether one action is valid, invalid or undecided, and why it is not valid."""
    schema, objects = arguments(action)
    if schema not in bounds.schemas:
        return "undecided", f"no action {schema!r} was valid between two states in training"
    if before is None:
        return "undecided", "no state was observed before it"
    pre, add, delete = bounds.schemas[schema]
    doubt: str | None = None
    for literal in sorted(pre.possible):
        atom = _atom(literal, objects)
        value = before.value(atom, atom.split()[0] in complete)
        if value is not True:
            what = "is false" if value is False else "was not observed"
            if value is False and literal in pre.certain:
                return "invalid", f"{atom!r} {what} before it, and is required"
            doubt = doubt or f"{atom!r} {what} before it, and may be required"
    if after is None:
        return ("undecided", doubt) if doubt else ("valid", None)
    own = [atom for atom in before.true if set(atom.split()[1:]) <= set(objects)]
    named = {literal for atom in own for literal in _images(atom, objects)}
    effects = _by_atom(named | add.possible | delete.possible, objects)
    for atom in sorted(_named(before, after) | effects.keys()):
        known = atom.split()[0] in complete
        old, new = before.value(atom, known), after.value(atom, known)
        if new is None:
            continue
        literals = effects.get(atom, [])
        if len(literals) > MOST_IMAGES:
            doubt = doubt or f"{atom!r} is named by {len(literals)} literals"
            continue
        results = {_after(old, chosen) for chosen in product(*(_effects(each, add, delete) for each in literals))}
        if results == {not new}:
            return "invalid", f"{atom!r} is {str(new).lower()} after it, which no model explains"
        if results != {new}:
            doubt = doubt or f"{atom!r} is {str(new).lower()} after it, which only some models explain"
    return ("undecided", doubt) if doubt else ("valid", None)


def _atom(literal: Sequence[str], objects: Sequence[str]) -> str:
    """The ground atom of a literal."""
    number = {f"x{at + 1}": name for at, name in enumerate(objects)}
    return " ".join((literal[0], *(number.get(term, term) for term in literal[1:])))


def _by_atom(literals: Iterable[tuple[str, ...]], objects: Sequence[str]) -> dict[str, list[tuple[str, ...]]]:
    """The literals that name each atom."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for literal in sorted(literals):
        found.setdefault(_atom(literal, objects), []).append(literal)
    return found


def _images(atom: str, objects: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The literals over the arguments of an action that name an atom."""
    predicate, *words = atom.split()
    places = [[f"x{at + 1}" for at, name in enumerate(objects) if name == word] for word in words]
    for chosen in product(*places):
        yield predicate, *chosen


def _named(before: State, after: State) -> frozenset[str]:
    """The atoms whose values may differ between two states."""
    return (before.true ^ after.true) | (before.false & after.true) | (after.false & before.true)


def _effects(literal: tuple[str, ...], add: _Part, delete: _Part) -> list[Effect]:
    """What a literal may do to its atom."""
    if literal in add.certain:
        return [True]
    if literal in delete.certain:
        return [False]
    may_delete = literal in delete.possible or (literal not in delete.excluded and literal not in add.possible)
    return [None, *([True] if literal in add.possible else []), *([False] if may_delete else [])]


def _after(old: bool | None, effects: Sequence[Effect]) -> bool | None:
    """The value of an atom after these effects of its literals, by PDDL; None if it is unknown."""
    return True if True in effects else False if False in effects else old
