"""Runs a real planner on a propositional problem, in a process of its own that is killed when its time is over.

Planners are reached through unified-planning; which are installed is looked up, not assumed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from statewise.strips.model import ActionModel, Atoms
from statewise.system import kill_group

PLANNERS = {"fast-downward": "up_fast_downward", "pyperplan": "up_pyperplan"}
"""Name in unified-planning, and the module that brings it; the first that is installed is the default."""


class PlannerTimeout(ValueError):
    """The planner found neither a plan nor that there is none in the time it was given."""


def installed() -> list[str]:
    """Names of the planners that can be used here, the default first."""
    return [name for name, module in PLANNERS.items() if importlib.util.find_spec(module)]


def chosen(planner: str) -> str:
    """The planner that `planner`, a name or `auto`, stands for. Raises `ValueError` with the choices."""
    if importlib.util.find_spec("unified_planning") is None:
        raise ValueError("planning needs unified-planning: pip install 'statewise[planning]'")
    choices = installed()
    if not choices:
        raise ValueError("planning needs a planner, such as up-pyperplan: pip install 'statewise[planning]'")
    if planner == "auto":
        return choices[0]
    if planner not in choices:
        raise ValueError(f"{planner!r} is no planner that is installed here; there are {', '.join(['auto', *choices])}")
    return planner


def find_plan(model: ActionModel, initial: Atoms, goal: Atoms, planner: str, timeout: float) -> list[int] | None:
    """Numbers of the actions that lead from `initial` to `goal`, both sets of true atoms; None: there is no plan.

    `timeout` is in seconds, the start of the planner included. Raises `PlannerTimeout`, and `ValueError` when the
    planner fails or gives up without having shown that there is no plan.
    """
    if not timeout > 0:
        raise ValueError(f"the time limit must be above 0 seconds, not {timeout}")
    if not goal & ~initial:
        return []
    told = {
        "planner": planner,
        "initial": initial,
        "goal": goal,
        "atoms": len(model.atoms),
        # what adds nothing helps no plan, and not every planner can read an action without effects
        "actions": {
            number: [action.pre, action.add, action.delete]
            for number, action in enumerate(model.actions)
            if action.add & ~action.delete
        },
    }
    with (
        tempfile.TemporaryDirectory() as scratch,  # what a killed planner leaves lying goes with it
        subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": scratch},
            start_new_session=True,  # a planner may start programs of its own: they are killed with it
        ) as child,
    ):
        try:
            said, complaints = child.communicate(json.dumps(told), timeout=timeout)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                kill_group(child)
            if isinstance(error, subprocess.TimeoutExpired):
                raise PlannerTimeout(f"the planner found nothing within {timeout:g} seconds") from None
            raise
    if child.returncode:
        last = (complaints.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        raise ValueError(f"the planner {planner} failed: {last}")
    answer = json.loads(said)
    if answer["status"] not in ("solved", "unsolvable"):
        raise ValueError(f"the planner {planner} gave up: {answer['status']}")
    plan: list[int] | None = answer["plan"]
    return plan


def _solve(told: dict[str, Any]) -> dict[str, Any]:
    """What the child answers: a status, and the plan if there is one."""
    from unified_planning.engines import PlanGenerationResultStatus as Status

    from statewise.strips.model import Action
    from statewise.strips.pddl import as_planning_problem

    atoms = [f"f{place}" for place in range(told["atoms"])]
    actions = [f"a{number}" for number in told["actions"]]
    made = tuple(Action(name, *masks) for name, masks in zip(actions, told["actions"].values()))
    model = ActionModel(tuple(atoms), made)
    problem = as_planning_problem(model, told["initial"], told["goal"], "task", atoms, actions)
    with problem.environment.factory.OneshotPlanner(name=told["planner"]) as planner:
        result = planner.solve(problem)
    if result.plan is not None:
        return {"status": "solved", "plan": [int(step.action.name[1:]) for step in result.plan.actions]}
    # searches without a limit that end without a plan: Fast Downward's default says "incompletely" of these as well
    over = result.status in (Status.UNSOLVABLE_PROVEN, Status.UNSOLVABLE_INCOMPLETELY)
    return {"status": "unsolvable" if over else result.status.name.lower().replace("_", " "), "plan": None}


def main() -> None:
    """The child process: reads a problem from its input, and writes the answer where its output was.

    Planners print; what they print goes to the error stream, so that the output holds the answer alone.
    """
    answer_to = os.dup(1)
    os.dup2(2, 1)
    answer = _solve(json.load(sys.stdin))
    with os.fdopen(answer_to, "w") as out:
        json.dump(answer, out)


if __name__ == "__main__":
    main()
