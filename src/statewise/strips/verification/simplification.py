"""The simplest equivalent action model: conditions, effects and atoms are removed one by one, each with a proof.

Different action models accept the same traces, and a learner has no reason to find the simplest one: it may require
what other preconditions imply, or delete what is already known to be false. Four steps find a model that single changes
cannot make smaller:

1. every atom is made as strict as possible: deletes and preconditions are added, and adds removed, as long as it
rejects nothing that the model accepts. So one atom can replace several; 2. atoms that the others imply are removed; 3.
single entries (a precondition, add or delete of an action) are removed, until no further one can be; 4. atoms are
removed once more.

The searches of the verifier prove each change. What they cannot decide within their limits is not changed and is
reported. For schemas, step 3 removes literals, and the other steps are skipped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal as OneOf
from typing import get_args

from statewise.runtime.json_files import TEXT, read_json
from statewise.runtime.overwriting import claimed_folder
from statewise.strips.model.heads import Head, as_model, heads, uncovered
from statewise.strips.model.learned import (
    FILES,
    SCHEMAS,
    SEEN_FILE,
    SIGNS,
    read_learned_model,
    schemas_as_json,
    schemas_of,
    write_model,
)
from statewise.strips.model.model import Action, ActionModel, bits
from statewise.strips.model.schemas import Literal, Schema, arguments, ground, signature, with_variables
from statewise.strips.trace_data.domains import Domain
from statewise.strips.verification.containment import KnownFalseSearch, RealStates, RealStateSearch, contained, implied
from statewise.strips.verification.mapping import match_atoms, renamed
from statewise.strips.verification.search import MAX_STATES, LimitReached, Limits, Search, shortest
from statewise.strips.verification.verification import verify

SECONDS = 300.0
"""Default time limit in seconds."""
EACH = 5.0
"""Time limit of one proof in seconds."""

Notion = OneOf["definition 1", "real states", "drawn traces"]
Kind = OneOf["pre", "add", "delete"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Progress = Callable[[int, int], None]
"""Called with the number of entries that were tried in this round, and their total."""


@dataclass(frozen=True)
class Simplified:
    """A simpler model, equivalent to the one given."""

    model: ActionModel
    schemas: dict[str, Schema] | None
    """The simplified schemas, if schemas were given."""
    notion: Notion
    """The notion of equivalence that was proven at each step."""
    entries: tuple[int, int]
    """The number of preconditions, adds and deletes before and after; for schemas, of literals."""
    atoms: tuple[int, int]
    """The number of atoms before and after; for schemas, of predicates."""
    undecided: tuple[str, ...]
    """Entries and atoms that were kept because the verifier reached its limits."""
    before: dict[str, Schema] | None
    """The original schemas, if the result accepts the same traces in all instances with actions of the same kinds."""
    stopped: OneOf["time", "interrupted"] | None
    """Why simplification ended early, so that more entries may be unnecessary. None: every remaining entry was
    tried."""
    seconds: float

    def summary(self) -> dict[str, object]:
        """The result as plain data, without the model."""
        return {
            "notion": self.notion,
            "entries_before": self.entries[0],
            "entries": self.entries[1],
            "atoms_before": self.atoms[0],
            "atoms": self.atoms[1],
            "undecided": list(self.undecided),
            "stopped": self.stopped,
            "seconds": round(self.seconds, 2),
        }


def claimed(folder: Path, overwrite: bool = False) -> AbstractContextManager[Path]:
    """Keeps other processes from writing to `folder` (`statewise.runtime.overwriting`), and gives a scratch folder for
    the new model. Raises `FileExistsError` if the folder holds another model and `overwrite` is not given, or anything
    else."""
    return claimed_folder(folder, FILES, SIGNS, "learned model", overwrite)


def write_simplified(simplified: Simplified, folder: Path, source: str, overwrite: bool = False) -> None:
    """Writes the model as a learned folder. `source` names the original model; if that is a learned folder, what its
    training traces show is copied, so that `check` knows what is certain. Raises what `claimed` raises."""
    with claimed(folder, overwrite) as scratch:
        seen = Path(source) / SEEN_FILE
        files = {SEEN_FILE: seen.read_bytes()} if seen.is_file() else {}
        report = {"settings": {"simplified": source}, **simplified.summary()}
        if simplified.schemas is not None and simplified.before is not None:
            content = {
                "schemas": json.loads(schemas_as_json(simplified.before)),
                "simplified": sha256(schemas_as_json(simplified.schemas)).hexdigest(),
            }
            files["before.json"] = json.dumps(content).encode()
        write_model(scratch, simplified.model, report, files, schemas=simplified.schemas)


def before_simplification(folder: Path, actions: Sequence[str]) -> dict[str, Schema] | None:
    """The schemas from which those of the folder were simplified, if they accept the same traces over `actions`:
    simplified under Definition 1, not changed since, and proven for actions of these kinds, which are those of the
    folder's model. Raises `ValueError` if a file is damaged."""
    path = folder / "before.json"
    if not path.is_file() or not signature({}, read_learned_model(folder).names).covers(actions):
        return None
    content = read_json(path, {"schemas": SCHEMAS, "simplified": TEXT})
    if sha256((folder / "schemas.json").read_bytes()).hexdigest() != content["simplified"]:
        return None
    return schemas_of(content["schemas"], path)


def simplify(
    model: ActionModel,
    *,
    schemas: Mapping[str, Schema] | None = None,
    reference: ActionModel | Domain | None = None,
    notion: Notion = "definition 1",
    seconds: float = SECONDS,
    stop: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
) -> Simplified:
    """The simplest equivalent of a model, with names for its atoms.

    Under `definition 1` the result of every step accepts exactly the same traces. `real states` and `drawn traces`
    compare with the domain `reference`, to which the model must be equivalent in that sense (`verification.verify`);
    then more can be removed, since only traces that really occur count.

    With `schemas`, from which `model` must be grounded over the actions of training, literals of schemas are removed.
    Under `definition 1` the proof must be valid for instances of any size, with actions of the kinds that training and
    the reference have; otherwise for the actions of the domain. A schema without such actions is not changed.

    Atoms get the names of the atoms of `reference` that they match (`mapping.renamed`). All others are named after the
    actions that add them, `after-pickup-unstack b1`, or if there are none, after those that delete them, `until-load
    p`. After `seconds`, or once `stop()` is true, the best model so far is returned. Raises `ValueError` if the notion
    needs a domain, if the model is not proven equivalent to it in the first place, and if no action of the reference
    belongs to one of the schemas.
    """
    true = reference.model if isinstance(reference, Domain) else reference
    names = model.names
    if schemas is not None and true is not None:
        model = ground(schemas, _compared(names, true.names, schemas, training=notion == "definition 1"))
    if notion != "definition 1":
        if not isinstance(reference, Domain):
            raise ValueError(f"equivalence on {notion} needs a domain as reference")
        verdict = verify(model, reference, **_how(notion), seconds=seconds)
        if not verdict:
            raise ValueError(
                f"the model is not proven equivalent to {reference.name} on {notion} ({verdict.outcome}): "
                "simplify under Definition 1 instead"
            )
    if true is not None and set(model.names) - set(true.names):
        true = None  # it affects neither the order of steps nor the names
    domain = reference if isinstance(reference, Domain) and notion != "definition 1" else None
    if domain is not None:
        model = model.covering(domain.model.names)
    work = _Work(model, dict(schemas) if schemas is not None else None, true, domain, notion, seconds, stop, progress)
    stopped: OneOf["time", "interrupted"] | None = None
    try:
        if work.schemas is None:
            work.strengthen()
            work.drop_atoms()
        while work.drop_entries():
            pass
        if work.schemas is None:
            work.drop_atoms()
    except _Ended:
        stopped = "interrupted" if stop() else "time"
    small, literals = work.model, work.schemas
    small = _named(small, true) if literals is None else ground(literals, names)
    return Simplified(
        small,
        literals,
        notion,
        (work.size_before, work.size()),
        (work.atoms_before, work.atoms()),
        tuple(work.undecided),
        dict(schemas) if schemas is not None and domain is None else None,
        stopped,
        time.monotonic() - work.began,
    )


def _compared(
    names: Sequence[str], others: Sequence[str], schemas: Mapping[str, Schema], *, training: bool
) -> Sequence[str]:
    """The actions that proofs about schemas refer to: those of the reference, `others`, that belong to the schemas, and
    if `training`, those of training, `names`. Raises `ValueError` if the reference has no such action."""
    known = [name for name in others if arguments(name)[0] in schemas]
    if not known:
        raise ValueError(
            f"the schemas and the reference have different actions: there is no schema for {others[0]!r}"
            if others
            else "the reference has no actions"
        )
    if not training:
        return others
    # Another instance may use the same name for an object of another sort, which would mix the two sorts: so the
    # actions of the reference are left out if those of training represent them.
    return names if signature({}, names).covers(known) else list(dict.fromkeys((*names, *known)))


class _Ended(Exception):
    """The time is up, or simplification was stopped."""


class _Work:
    """The model so far, and the changes that could not be decided."""

    def __init__(
        self,
        model: ActionModel,
        schemas: dict[str, Schema] | None,
        true: ActionModel | None,
        domain: Domain | None,
        notion: Notion,
        seconds: float,
        stop: Callable[[], bool],
        progress: Progress | None,
    ) -> None:
        self.model, self.schemas, self.true, self.domain, self.notion = model, schemas, true, domain, notion
        self.stop, self.progress = stop, progress
        self.began = time.monotonic()
        self.end = self.began + seconds
        self.undecided: dict[str, None] = {}
        self.size_before, self.atoms_before = self.size(), self.atoms()
        self.real = RealStates(domain, model.names, Limits(seconds, MAX_STATES)) if domain is not None else None

    def size(self) -> int:
        """The number of preconditions, adds and deletes."""
        parts = self.model.actions if self.schemas is None else self.schemas.values()
        return sum(_count(getattr(each, kind)) for each in parts for kind in KINDS)

    def atoms(self) -> int:
        """The number of atoms, or of predicates."""
        if self.schemas is None:
            return len(self.model.atoms)
        return len({predicate for each in self.schemas.values() for predicate, _ in each.pre | each.add | each.delete})

    def strengthen(self) -> None:
        """Makes each atom as strict as possible."""
        columns = heads(self.model)
        try:
            for place in range(len(columns)):
                for stricter in self._stricter(columns[place]):
                    columns[place] = stricter
        finally:
            self.model = as_model(columns, self.model.names)

    def _stricter(self, head: Head) -> Iterator[Head]:
        """The atom after each sound change."""
        for kind in ("add", "delete", "pre"):
            for number in range(len(self.model.actions)):
                bit = 1 << number
                if (kind == "delete" and head.touching & bit) or bool(getattr(head, kind) & bit) != (kind == "add"):
                    continue
                changed = replace(head, **{kind: getattr(head, kind) ^ bit})
                if self._sound(changed):
                    head = changed
                    yield head

    def _sound(self, head: Head) -> bool | None:
        """Whether an atom alone rejects nothing that the model accepts; None if undecided."""
        if self.domain is None or self.real is None:
            return self._finds_nothing([KnownFalseSearch(self.model, head)])
        last_is_done = self.notion == "drawn traces"
        return self._finds_nothing([RealStateSearch(self.domain.model, head, self.real, last_is_done=last_is_done)])

    def _finds_nothing(self, searches: list[Search]) -> bool | None:
        limits = Limits(self._left(), MAX_STATES)
        try:
            result = shortest(searches, limits, lambda trace: trace[:0])  # any trace is enough
        except LimitReached:
            return None
        return False if result.found is not None else True if result.limit is None else None

    def drop_atoms(self) -> None:
        """Removes the atoms that reject nothing more than the others, in this order: those least like an atom of the
        reference first, and among these those with the most entries."""
        columns = heads(self.model)
        sizes = [sum(map(int.bit_count, head.parts)) for head in columns]
        among = (1 << len(columns)) - 1
        like, whole = self._overlaps(), self.model
        for atom in sorted(range(len(columns)), key=lambda atom: (not columns[atom].idle, like[atom], -sizes[atom])):
            rest = among & ~(1 << atom)
            fewer = whole.with_atoms(list(bits(rest)))
            if self.domain is None:
                needless = implied(whole, atom, among, seconds=self._left())
            else:
                needless = self._like_the_domain(fewer)
            self._note(f"the atom {whole.atoms[atom]}", needless)
            if needless:
                among, self.model = rest, fewer

    def drop_entries(self) -> bool:
        """Tries to remove each entry once; returns whether any was removed."""
        tried = list(self._entries())
        dropped = False
        for place, (action, kind, entry) in enumerate(tried):
            if self.progress is not None:
                self.progress(place, len(tried))
            if self.schemas is None:
                smaller, lists = _without(self.model, action, kind, entry), None
            else:
                lists = {**self.schemas, action: _lacking(self.schemas[action], kind, entry)}
                smaller = ground(lists, self.model.names)
            needless = self._equivalent(smaller, kind)
            self._note(f"{kind} of {action}: {self._spelled(entry)}", needless)
            if needless:
                self.model, self.schemas, dropped = smaller, lists, True
        return dropped

    def _entries(self) -> Iterator[tuple[str, Kind, int | Literal]]:
        """All entries. First those that the matching atom of the reference does not have, then those that textbook
        models lack: adds of what is required, deletes of what is not required, conditions that the action does not
        delete."""
        theirs = self._theirs()
        ranked: list[tuple[int, str, Kind, int | Literal]] = []
        for name, each in self._parts():
            pre, add, delete = (set(_members(getattr(each, kind))) for kind in KINDS)
            ranked += [(0 if entry in pre else 3, name, "add", entry) for entry in add]
            ranked += [(4 if entry in pre else 1, name, "delete", entry) for entry in delete]
            ranked += [(5 if entry in delete else 2, name, "pre", entry) for entry in pre]
        for _, name, kind, entry in sorted(
            ranked, key=lambda each: ((each[1], each[2], each[3]) in theirs, each[0], str(each[3]), each[1])
        ):
            yield name, kind, entry

    def _overlaps(self) -> list[float]:
        """How much each atom is like the reference's atom that it matches, from 0 to 1."""
        overlaps = [0.0] * len(self.model.atoms)
        if self.true is not None:
            match = match_atoms(self.model, self.true)
            for (mine, _), score in zip(match.pairs, match.scores):
                overlaps[mine] = score
        return overlaps

    def _theirs(self) -> set[tuple[str, Kind, int | Literal]]:
        """The entries that matching atoms of the reference share."""
        if self.true is None or self.schemas is not None:
            return set()
        true = self.true
        return {
            (action.name, kind, mine)
            for mine, other in match_atoms(self.model, true).pairs
            for action in true.actions
            for kind in KINDS
            if getattr(action, kind) >> other & 1
        }

    def _parts(self) -> Iterator[tuple[str, Action | Schema]]:
        if self.schemas is None:
            yield from ((action.name, action) for action in self.model.actions)
        else:
            proven = {arguments(name)[0] for name in self.model.names}  # a proof says nothing about other schemas
            yield from ((name, schema) for name, schema in self.schemas.items() if name in proven)

    def _equivalent(self, smaller: ActionModel, kind: Kind) -> bool | None:
        if self.domain is not None:
            if self.schemas is None and kind == "add":
                return self._sound(next(head for head in heads(smaller) if head not in heads(self.model)))
            return self._like_the_domain(smaller)
        if self.schemas is not None:
            verdict = verify(smaller, self.model, seconds=self._left())
            if verdict and verdict.proven != "all instances":
                return None
            return None if verdict.outcome == "unknown" else bool(verdict)
        # without an add a model rejects more, without a precondition or a delete less
        inner, outer = (self.model, smaller) if kind == "add" else (smaller, self.model)
        return contained(inner, outer, seconds=self._left())

    def _like_the_domain(self, smaller: ActionModel) -> bool | None:
        assert self.domain is not None
        assert self.real is not None
        if self.schemas is not None:
            verdict = verify(smaller, self.domain, **_how(self.notion), seconds=self._left())
            return None if verdict.outcome == "unknown" else bool(verdict)
        # its atoms are sound: the only question is whether it still rejects what the domain rejects
        wanted = uncovered(heads(self.domain.model), heads(smaller))
        return self._finds_nothing([RealStateSearch(smaller, head, self.real, last_is_done=False) for head in wanted])

    def _left(self) -> float:
        """Seconds for the next proof. Raises `_Ended` if there is no time left."""
        left = self.end - time.monotonic()
        if left <= 0 or self.stop():
            raise _Ended
        return min(EACH, left)

    def _note(self, what: str, needless: bool | None) -> None:
        self.undecided.pop(what, None)
        if needless is None:
            self._left()  # raises if the time is up: then the proof was not too hard
            self.undecided[what] = None

    def _spelled(self, entry: int | Literal) -> str:
        if isinstance(entry, int):
            return self.model.atoms[entry]
        return with_variables(entry)


def _how(notion: Notion) -> dict[str, bool]:
    return {"real_states": True, "drawn_only": notion == "drawn traces"}


def _count(entries: int | frozenset[Literal]) -> int:
    return entries.bit_count() if isinstance(entries, int) else len(entries)


def _members(entries: int | frozenset[Literal]) -> Iterator[int | Literal]:
    yield from bits(entries) if isinstance(entries, int) else entries


def _without(model: ActionModel, name: str, kind: Kind, atom: int | Literal) -> ActionModel:
    assert isinstance(atom, int)
    number = model.number[name]
    action = model.actions[number]
    changed = replace(action, **{kind: getattr(action, kind) & ~(1 << atom)})
    return ActionModel(model.atoms, (*model.actions[:number], changed, *model.actions[number + 1 :]))


def _lacking(schema: Schema, kind: Kind, literal: int | Literal) -> Schema:
    return replace(schema, **{kind: getattr(schema, kind) - {literal}})


def _named(model: ActionModel, reference: ActionModel | None) -> ActionModel:
    """The model with new names for its atoms: those of matching reference atoms, otherwise after actions."""
    names: list[str] = []
    for head in heads(model):
        for name in _proposals(model, head.add, head.delete):
            if name not in names:
                names.append(name)
                break
    model = ActionModel(tuple(names), model.actions)
    if reference is not None:
        model = renamed(model, match_atoms(model, reference))
    return model


def _proposals(model: ActionModel, add: int, delete: int) -> Iterator[str]:
    """`after-SCHEMA-SCHEMA object`: the schemas that add the atom, and the objects that all actions on it mention."""
    touching = [arguments(model.names[number]) for number in bits(add | delete)]
    by = [arguments(model.names[number])[0] for number in bits(add or delete)]
    objects = [name for name in (touching[0][1] if touching else ()) if all(name in each for _, each in touching)]
    word = "after" if add else "until"
    base = "-".join((word, *dict.fromkeys(by))) if by else "always"
    yield " ".join((base, *dict.fromkeys(objects)))
    number = 2
    while True:
        yield " ".join((f"{base}-{number}", *dict.fromkeys(objects)))
        number += 1
