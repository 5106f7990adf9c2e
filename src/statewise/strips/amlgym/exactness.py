"""Whether a learned PDDL domain is exact on a problem: the same actions are applicable in every reachable state.

Both domains are grounded for the problem. An action `begin` before all others sets the initial state, so that atoms
which are false initially are known to be false. Then the verifier compares all traces that begin with it.
"""

from __future__ import annotations

from pathlib import Path

from statewise.strips.model.model import Action, ActionModel
from statewise.strips.pddl.pddl import Problem, read_problem
from statewise.strips.trace_data.domains import Domain
from statewise.strips.verification.verification import Verdict, verify

BEGIN, BEGUN, WAITING, NEVER = "begin", "-begun-", "-waiting-", "-never-"


def exact_on(learned: str | Path, true: str | Path, problem: str | Path, *, seconds: float = 20.0) -> Verdict:
    """Compares the learned domain with the true one on all states that are reachable in a problem; both have the same
    predicates. Raises `ValueError` if a file cannot be read."""
    mine, theirs = read_problem(learned, problem), read_problem(true, problem)
    names = list(dict.fromkeys((*theirs.domain.model.names, *mine.domain.model.names)))
    reference = _begun(theirs, names)
    start = 1 << reference.atoms.index(WAITING)
    return verify(_begun(mine, names), Domain("problem", reference, (start,)), drawn_only=True, seconds=seconds)


def _begun(problem: Problem, names: list[str]) -> ActionModel:
    """The model with the action `begin` before all others, and with unreachable actions that are never possible."""
    model = problem.domain.model
    count = len(model.atoms)
    begun, waiting, never = (1 << count + at for at in range(3))
    whole = (1 << count) - 1
    begin = Action(BEGIN, waiting, problem.initial | begun, whole & ~problem.initial | waiting | never)
    actions = [begin]
    for name in names:  # each deletes `never`, since traces may begin in any reachable state
        if name in model.number:
            each = model.actions[model.number[name]]
            actions.append(Action(name, each.pre | begun, each.add, each.delete | never))
        else:
            actions.append(Action(name, begun | never, 0, never))
    return ActionModel((*model.atoms, BEGUN, WAITING, NEVER), tuple(actions))
