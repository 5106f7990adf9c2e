"""Writes a learned action model as PDDL. Needs the extra `planning`."""

from __future__ import annotations

from pathlib import Path

from statewise.strips.mapping import match_atoms, renamed
from statewise.strips.model import ActionModel
from statewise.strips.pddl import write_pddl


def export(learned: ActionModel, path: Path, *, reference: ActionModel | None = None) -> ActionModel:
    """Writes a ground PDDL domain and returns the model with the names that were used.

    Atoms are called `p0`, `p1`, ...; with `reference`, a model of the same actions, by the names of the atoms they are
    matched to (`mapping.match_atoms`). Raises `ValueError` for other actions, and without the extra.
    """
    numbered = ActionModel(tuple(f"p{place}" for place in range(len(learned.atoms))), learned.actions)
    named = renamed(numbered, match_atoms(numbered, reference)) if reference is not None else numbered
    write_pddl(named, path, "learned")
    return named
