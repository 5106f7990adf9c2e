"""Writes a learned action model as PDDL. Needs the extra `planning`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from statewise.strips.model.model import ActionModel
from statewise.strips.pddl.pddl import Problem, write_pddl
from statewise.strips.trace_data.domains import Domain
from statewise.strips.verification.evidence import accepted, evidence_of
from statewise.strips.verification.mapping import match_atoms, renamed


def export(
    learned: ActionModel,
    path: Path,
    *,
    reference: ActionModel | None = None,
    trace: Sequence[str] | None = None,
    problem_path: Path | None = None,
    source: str = "the trace",
) -> ActionModel:
    """Writes a ground PDDL domain and returns the model with the names used there.

    Atoms are called `p0`, `p1`, ...; with `reference`, matched atoms get the reference's
    names (`mapping.match_atoms`). With a valid `trace` also writes a problem to `problem_path` (default: beside the
    domain): initially true are the atoms that the trace requires, or deletes, before any other effect on them; the goal
    is what it leaves true; `source` is what messages call it. Raises `ValueError` if the reference lacks an
    action of the model, for a trace that the model rejects, and without the extra.
    """
    numbered = ActionModel(tuple(f"p{place}" for place in range(len(learned.atoms))), learned.actions)
    named = renamed(numbered, match_atoms(numbered, reference)) if reference is not None else numbered
    problem = None
    if trace is not None:
        found = evidence_of(named, accepted(named, trace, source))
        initial = found.required | found.deleted
        problem = Problem(Domain("learned", named, (initial,)), initial, found.true)
    write_pddl(named, path, "learned", problem=problem, problem_path=problem_path)
    return named
