"""Runs a planner on a propositional problem, in a subprocess that is killed at the time limit.

Planners are called through unified-planning, if they are installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from statewise.runtime.messages import to_install
from statewise.runtime.system import ended_with_parent, kill_group
from statewise.strips.model.model import ActionModel, Atoms

PLANNERS = {"fast-downward": "up_fast_downward", "pyperplan": "up_pyperplan"}
"""Name in unified-planning, and the module that provides it; the first installed one is the default."""
PARAMETERS = {
    # Fast Downward looks for invariants of predicates, and takes seconds to minutes for many without arguments
    "fast-downward": {"fast_downward_translate_options": ["--invariant-generation-max-time", "0"]}
}
"""Parameters of the planners."""


class PlannerTimeout(ValueError):
    """The planner found neither a plan nor a proof that there is none within the time limit."""


def installed() -> list[str]:
    """Names of the installed planners, the default first."""
    return [name for name, module in PLANNERS.items() if importlib.util.find_spec(module)]


def chosen(planner: str) -> str:
    """The name of the planner for `planner`, a name or `auto`. Raises `ValueError` with the choices."""
    if importlib.util.find_spec("unified_planning") is None:
        raise ValueError(f"planning needs unified-planning: {to_install('planning')}")
    choices = installed()
    if not choices:
        raise ValueError(f"planning needs a planner, such as up-pyperplan: {to_install('planning')}")
    if planner == "auto":
        return choices[0]
    if planner not in choices:
        raise ValueError(f"no planner {planner!r} is installed; choices: {', '.join(['auto', *choices])}")
    return planner


def find_plan(model: ActionModel, initial: Atoms, goal: Atoms, planner: str, timeout: float) -> list[int] | None:
    """Numbers of the actions that lead from `initial` to `goal`, both sets of true atoms; None if there is no plan.

    `timeout` is in seconds, including the planner's start. Raises `PlannerTimeout`, and `ValueError` if the planner
    fails, or gives up without a proof that there is no plan.
    """
    if not timeout > 0:
        raise ValueError(f"the time limit must be above 0 seconds, not {timeout}")
    if not goal & ~initial:
        return []
    problem_data = {
        "planner": planner,
        # sets of atoms in hexadecimal: Python reads and writes only 4,300 decimal digits
        "initial": hex(initial),
        "goal": hex(goal),
        "atoms": len(model.atoms),
        # actions without add effects are never needed, and some planners cannot parse actions without effects
        "actions": {
            number: [hex(atoms) for atoms in action.parts] for number, action in enumerate(model.actions) if action.add
        },
    }
    with (
        tempfile.TemporaryDirectory() as scratch,  # also removes files left by a killed planner
        subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": scratch},
            start_new_session=True,  # so that the planner's own subprocesses are killed with it
            preexec_fn=ended_with_parent(),
        ) as child,
    ):
        try:
            output, complaints = child.communicate(json.dumps(problem_data), timeout=timeout)
        except BaseException as error:
            kill_group(child)
            if isinstance(error, subprocess.TimeoutExpired):
                raise PlannerTimeout(f"the planner found nothing within {timeout:g} seconds") from None
            raise
    if child.returncode:
        last = (complaints.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        raise ValueError(f"the planner {planner} failed: {last}")
    answer = json.loads(output)
    if answer["status"] not in ("solved", "unsolvable"):
        raise ValueError(f"the planner {planner} gave up: {answer['status']}")
    plan: list[int] | None = answer["plan"]
    return plan


def _solve(problem_data: dict[str, Any]) -> dict[str, Any]:
    """Runs in the child process: returns a status, and the plan if there is one."""
    from unified_planning.engines import PlanGenerationResultStatus as Status

    from statewise.strips.model.model import Action
    from statewise.strips.pddl.pddl import as_planning_problem

    atoms = [f"f{place}" for place in range(problem_data["atoms"])]
    actions = [f"a{number}" for number in problem_data["actions"]]
    sets = ([int(atoms, 16) for atoms in three] for three in problem_data["actions"].values())
    made = tuple(Action(name, *three) for name, three in zip(actions, sets))
    model = ActionModel(tuple(atoms), made)
    initial, goal = (int(problem_data[name], 16) for name in ("initial", "goal"))
    problem = as_planning_problem(model, initial, goal, "task", atoms, actions)
    with problem.environment.factory.OneshotPlanner(
        name=problem_data["planner"], params=PARAMETERS.get(problem_data["planner"], {})
    ) as planner:
        result = planner.solve(problem)
    if result.plan is not None:
        return {"status": "solved", "plan": [int(step.action.name[1:]) for step in result.plan.actions]}
    # an exhaustive search found no plan: Fast Downward's default calls these "incompletely" unsolvable, too
    over = result.status in (Status.UNSOLVABLE_PROVEN, Status.UNSOLVABLE_INCOMPLETELY)
    return {"status": "unsolvable" if over else result.status.name.lower().replace("_", " "), "plan": None}


def main() -> None:
    """The child process: reads a problem from standard input and writes the answer to standard output.

    What planners print is redirected to standard error, so that the output holds only the answer.
    """
    answer_to = os.dup(1)
    os.dup2(2, 1)
    answer = _solve(json.load(sys.stdin))
    with os.fdopen(answer_to, "w") as out:
        json.dump(answer, out)


if __name__ == "__main__":
    main()
