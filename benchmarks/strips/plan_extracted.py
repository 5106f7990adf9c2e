"""Plans with action models in folders, such as those that `strips extract` writes, and checks the plans in the true
domain.

python benchmarks/strips/plan_extracted.py blocksworld:3 implied-*/ --out plans.csv
python benchmarks/strips/plan_extracted.py blocksworld:4 implied-*/ --out larger.csv

Problems are drawn at random: a state, and a walk from it. Their goals are given in three ways. *problem*: the atoms of
the true domain that the walk made true, which `strips plan --problem` translates. *example*: what is true after the
walk, by learned atoms alone, from the actions before and in it (`strips plan --goal-after --after`). *export*: the same
walk as PDDL (`strips export --lifted --no-negative --problem-from`), which pyperplan reads. A plan is *valid* if it
reaches the goal in the true domain from the true state.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np

from statewise.strips import (
    ActionModel,
    Domain,
    domain,
    export_lifted,
    ground,
    learn_schemas,
    plan,
    read_learned_model,
    read_schemas,
    traces,
)
from statewise.strips.model.model import Atoms, evidence_of
from statewise.strips.pddl.pddl import Problem
from statewise.strips.planning import planner as planners
from statewise.strips.planning import plans

BEFORE = 30
"""Actions before the state in which a problem begins: only they show this state to a model without initial states."""
OUTCOMES = ("valid", "wrong", "wrong, by an assumption that it states", "no plan", "refused")


def find_plan(model: ActionModel, initial: Atoms, goal: Atoms, planner: str, timeout: float) -> list[int] | None:
    """`planner.find_plan` in this process: a process of its own for every plan takes longer than the plan."""
    if not goal & ~initial:
        return []
    actions = {at: [hex(part) for part in each.parts] for at, each in enumerate(model.actions) if each.add}
    task = {"initial": hex(initial), "goal": hex(goal), "atoms": len(model.atoms), "actions": actions}
    found: list[int] | None = planners._solve({"planner": planner, **task})["plan"]
    return found


class Task:
    """A state, the actions before it, and a walk from it."""

    def __init__(self, world: Domain, rng: np.random.Generator) -> None:
        self.world, model = world, world.model
        states = world.states
        while True:
            self.begin = states[int(rng.integers(len(states)))]
            self.before, self.initial = self._walk(self.begin, BEFORE, rng)
            self.walk, end = self._walk(self.initial, int(rng.integers(4, 21)), rng)
            self.made_true = end & ~self.initial
            if self.made_true:
                break
        numbers = [model.number[name] for name in (*self.before, *self.walk)]
        self.shown = evidence_of(model, numbers).true
        """The atoms that both walks show to be true at the end."""
        self.shown_by_walk = evidence_of(model, numbers[BEFORE:]).true

    def _walk(self, state: Atoms, length: int, rng: np.random.Generator) -> tuple[list[str], Atoms]:
        model, names = self.world.model, []
        for _ in range(length):
            possible = model.applicable(state)
            number = possible[int(rng.integers(len(possible)))]
            state = model.result(state, number)
            names.append(model.names[number])
        return names, state

    def outcome(self, actions: Sequence[str] | None, goal: Atoms, assumed: Sequence[str] = ()) -> str:
        """Whether a plan reaches the goal."""
        if actions is None:
            return "no plan"
        if Problem(self.world, self.initial, goal).solved_by(actions):
            return "valid"
        return OUTCOMES[2] if assumed else "wrong"


def as_problem(model: ActionModel, planner: str, task: Task) -> str:
    """The outcome of a problem of the true domain."""
    goal = Problem(task.world, task.initial, task.made_true)
    return task.outcome(plan(model, problem=goal, planner=planner).actions, task.made_true)


def as_example(model: ActionModel, planner: str, task: Task) -> str:
    """The outcome of a goal by example."""
    found = plan(model, goal_after=[*task.before, *task.walk], after=task.before, planner=planner)
    return task.outcome(found.actions, task.shown, found.assumed)


def exported(folder: Path, task: Task) -> str:
    """The outcome of the exported files in pyperplan."""
    from unified_planning.io import PDDLReader

    schemas = read_schemas(folder)
    assert schemas is not None
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "domain.pddl"
        export_lifted(
            schemas, read_learned_model(folder).names, out, trace=task.walk, positive_preconditions=True, source="walk"
        )
        problem = PDDLReader().parse_problem(str(out), str(out.with_name("problem.pddl")))
        problem.environment.credits_stream = None
        with problem.environment.factory.OneshotPlanner(name="pyperplan") as planner:
            found = planner.solve(problem).plan
    steps = (
        None
        if found is None
        else [" ".join((step.action.name, *map(str, step.actual_parameters))) for step in found.actions]
    )
    return task.outcome(steps, task.shown_by_walk)


def main(words: Sequence[str] | None = None) -> int:
    """Reads the options and runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("domain", nargs="?", help="such as blocksworld:3; models with schemas plan in any instance")
    parser.add_argument("models", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--problems", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--planner", default="auto")
    parser.add_argument("--out", type=Path, default=Path("plans.csv"))
    parser.add_argument("--smoke", action="store_true", help="a model of a few walks, in seconds")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as scratch, mock.patch.object(plans, "find_plan", find_plan):
        if options.smoke:
            options.domain, options.problems, options.out = "ferry:2x1", 1, Path(scratch) / "plans.csv"
            options.models = [Path(scratch) / "model"]
            walks = traces(domain("ferry:3x2"), 20, 20, 1, negatives=0.0)
            learn_schemas(walks, folder=options.models[0])
        if not options.models:
            parser.error("give a domain and folders with models")
        run(options)
    return 0


def run(options: argparse.Namespace) -> None:
    """Plans with every model, and writes a row for each model and way."""
    world = domain(options.domain)
    tasks = [Task(world, np.random.default_rng([options.seed, at])) for at in range(options.problems)]
    with options.out.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["instance", "model", "goal", *OUTCOMES])
        for folder in options.models:
            schemas = read_schemas(folder)
            model = read_learned_model(folder) if schemas is None else ground(schemas, world.model.names)
            ways: dict[str, Callable[[Task], str]] = {
                "problem": partial(as_problem, model, options.planner),
                "example": partial(as_example, model, options.planner),
            }
            if schemas is not None:
                ways["export"] = partial(exported, folder)
            for way, outcome in ways.items():
                counts: Counter[str] = Counter()
                for task in tasks:
                    try:
                        counts[outcome(task)] += 1
                    except ValueError as error:  # a goal or an example that the model cannot express
                        counts["refused"] += 1
                        print(f"{folder.name}, {way}: {error}", file=sys.stderr)
                table.writerow([options.domain, folder.name, way, *(counts[each] for each in OUTCOMES)])
                file.flush()
                told = ", ".join(f"{counts[each]} {each}" for each in OUTCOMES if counts[each])
                print(f"{options.domain:14} {folder.name:36} {way:8} {told}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
