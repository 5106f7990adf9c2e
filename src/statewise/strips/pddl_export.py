"""Writes a learned action model as PDDL. Needs the extra `planning`."""

from __future__ import annotations

from pathlib import Path

from statewise.strips.mapping import match_atoms, renamed
from statewise.strips.model import ActionModel
from statewise.strips.pddl import write_pddl


def export(learned: ActionModel, path: Path, *, reference: ActionModel | None = None) -> ActionModel:
    """Writes a ground PDDL domain and returns the model with the names used there.

    Atoms are called `p0`, `p1`, ...; with `reference`, matched atoms get the reference's names (`mapping.match_atoms`).
    Raises `ValueError` if the reference lacks an action of the model, and without the extra.
    """
    numbered = ActionModel(tuple(f"p{place}" for place in range(len(learned.atoms))), learned.actions)
    named = renamed(numbered, match_atoms(numbered, reference)) if reference is not None else numbered
    write_pddl(named, path, "learned")
    return named
