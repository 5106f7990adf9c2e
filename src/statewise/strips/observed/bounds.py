"""Bounds on the schemas that full states allow, and the schema that is chosen within them.

What `evidence.Evidence` demands is monotone: more added literals never contradict it. So each verdict is exact: a
literal is certain if the evidence cannot be explained without it, excluded if it cannot be explained with it, and
possible otherwise. The chosen schema requires all that it may, and changes the least: it forbids whatever never
happened.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from statewise.strips.model.schemas import Literal, Schema
from statewise.strips.observed.evidence import Evidence, Images

Literals = frozenset[Literal]


@dataclass(frozen=True)
class Bounds:
    """What is certain about a part of a schema, and what is possible; all else is excluded."""

    certain: Literals = frozenset()
    possible: Literals = frozenset()
    """Includes what is certain."""

    def verdict(self, literal: Literal) -> str:
        """`certain`, `possible` or `excluded`."""
        return "certain" if literal in self.certain else "possible" if literal in self.possible else "excluded"


@dataclass(frozen=True)
class SchemaBounds:
    """Bounds on the parts of a schema. Of what is possible to delete, literals are left out that no state showed to be
    true: nothing is known about them."""

    pre: Bounds = field(default_factory=Bounds)
    add: Bounds = field(default_factory=Bounds)
    delete: Bounds = field(default_factory=Bounds)
    chosen: Schema = field(default_factory=Schema)
    constants: tuple[str, ...] = ()
    """The objects that literals name at the places after the arguments; of `chosen`, only those that it names."""
    kept: Literals = frozenset()
    """The literals that are certainly not deleted. Of those that are neither here nor possible nothing is known."""


class Contradiction(ValueError):
    """No schema explains the states."""

    def __init__(self, message: str, predicate: str) -> None:
        super().__init__(message)
        self.predicate = predicate


def bounded(evidence: Evidence, fits: Callable[[Literal], bool] = lambda literal: True) -> SchemaBounds:
    """The bounds of a schema. `fits` says whether types allow a literal. Raises `Contradiction`, which names a
    predicate, if no schema explains the states."""
    before = frozenset(filter(fits, evidence.before))
    after = frozenset(filter(fits, evidence.after))
    named = {one for images in (*evidence.deleted, *evidence.true_after) for one in images} | evidence.false_before
    named = set(filter(fits, named | before))
    deletable = _deletable(named, after, evidence.true_after)
    for images in evidence.added:
        _explained(images, after, "becomes true", evidence)
    for images in evidence.deleted:
        _explained(images, deletable, "becomes false", evidence)
    certain_delete = frozenset(one for one in deletable if _needed(one, deletable, evidence.deleted))
    certain_add = frozenset(
        one
        for one in after
        if _needed(one, after, evidence.added)
        or not _all_met(evidence.deleted, _deletable(named, after - {one}, evidence.true_after))
    )
    delete = _fewest(evidence.deleted, deletable, certain_delete)
    wanted = [*evidence.added, *(images - {one} for one in delete for images in evidence.true_after if one in images)]
    add = _fewest(wanted, after, certain_add)
    may_delete = deletable | _replaceable(named, after - certain_add, after, evidence.true_after)
    return SchemaBounds(
        Bounds(frozenset(), before),
        Bounds(certain_add, after),
        Bounds(certain_delete, may_delete),
        schema_of(before, add, delete - add, evidence.arity, evidence.constants),
        evidence.constants,
        frozenset(one for images in evidence.true_after for one in images if fits(one)) - may_delete,
    )


def schema_of(pre: Literals, add: Literals, delete: Literals, arity: int, constants: Sequence[str]) -> Schema:
    """A schema of `arity` arguments, whose literals may name `constants` after these; it keeps those that they name."""
    used = sorted({at for part in (pre, add, delete) for _, places in part for at in places if at >= arity})
    new = {at: arity + number for number, at in enumerate(used)}

    def moved(part: Literals) -> Literals:
        return frozenset((predicate, tuple(new.get(at, at) for at in places)) for predicate, places in part)

    kept = tuple(constants[at - arity] for at in used)
    return Schema(moved(pre), moved(add), moved(delete), constants=kept, arity=arity if kept else None)


def _explained(images: Images, able: Collection[Literal], what: str, evidence: Evidence) -> None:
    if images.isdisjoint(able):
        predicate, _ = min(images)
        raise Contradiction(
            f"an atom of {predicate!r} {what} at some occurrences of an action and not at others", predicate
        )


def _deletable(named: Iterable[Literal], after: Collection[Literal], true_after: Collection[Images]) -> Literals:
    """The literals that may be deleted: wherever an atom of one was true afterwards, another image of it was added."""
    refuted = {
        one for images in true_after for one in images if not any(other in after for other in images if other != one)
    }
    return frozenset(one for one in named if one not in refuted and one not in after)


def _replaceable(
    named: Collection[Literal], able: Literals, after: Literals, true_after: Collection[Images]
) -> Literals:
    """The literals that are true after every occurrence and may be deleted: another image was added each time."""
    return frozenset(
        one
        for one in able
        if one in named and all(one not in images or len(images & after) > 1 for images in true_after)
    )


def _needed(one: Literal, able: Literals, clauses: Iterable[Images]) -> bool:
    """Whether a clause has only this literal among those that are possible."""
    return any(one in images and images & able == {one} for images in clauses)


def _all_met(clauses: Iterable[Images], able: Collection[Literal]) -> bool:
    return not any(images.isdisjoint(able) for images in clauses)


def _fewest(clauses: Iterable[Images], able: Literals, certain: Literals) -> Literals:
    """A small set of possible literals that meets all clauses: the certain ones, and then whatever meets most."""
    chosen = set(certain)
    left = [images & able for images in clauses if images.isdisjoint(chosen)]
    while left:
        counts: dict[Literal, int] = {}
        for images in left:
            for one in images:
                counts[one] = counts.get(one, 0) + 1
        best = min(counts, key=lambda one: (-counts[one], one))
        chosen.add(best)
        left = [images for images in left if best not in images]
    return frozenset(chosen)
