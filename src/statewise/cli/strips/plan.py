"""statewise strips plan: plan with a learned model."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statewise.cli.commands import terminal_width
from statewise.cli.strips.sources import CONSTANTS
from statewise.runtime.arguments import Parser, above
from statewise.runtime.json_files import TEXT, printable, read_json
from statewise.runtime.messages import say

if TYPE_CHECKING:
    from statewise.strips import ActionModel, Plan

CERTAINTY = {True: "   certain", False: "   a guess"}
"""Marks for steps: whether every model that explains the training traces accepts them."""


def run(words: list[str]) -> int:
    """Runs the command. Exit code: 0 for a valid plan, 1 for none or an invalid one."""
    from statewise.cli.strips.sources import add_ignore_states, read_aligned, read_example, read_model, read_model_for

    parser = Parser(
        "strips plan",
        "Finds a plan in a learned model with an installed planner, and validates it. Needs the extra `planning`.\n\n"
        "  statewise strips plan learned/ --goal-after trace.csv  # what is true then\n"
        "  statewise strips plan learned/ --goal-possible 'stack b1 b2' --after a.csv\n"
        "  statewise strips plan learned/ --goal p3,p5 --after 'pickup b1, stack b1 b2'\n"
        "  statewise strips plan learned/ --domain d.pddl --problem p.pddl --mapping auto",
    )
    parser.add_argument("model", metavar="MODEL", help="a learned folder or a model.json")
    parser.add_argument("--goal", help="learned atoms that should be true, separated by commas")
    parser.add_argument(
        "--goal-after", metavar="FILE", help="a goal by example: what is true after the first trace of the file"
    )
    parser.add_argument("--goal-possible", metavar="ACTION", help="a plan after which this action is possible")
    parser.add_argument(
        "--after", help="the actions so far, separated by commas, or a file with them as its first trace"
    )
    add_ignore_states(parser)
    parser.add_argument(
        "--domain", metavar="FILE", help="the PDDL domain of --problem (default: domain.pddl beside it)"
    )
    parser.add_argument("--problem", metavar="FILE", help="a PDDL problem; the learned actions are its ground actions")
    parser.add_argument(
        "--mapping",
        default="auto",
        help="how learned atoms map to those of the problem: auto, meanings, names, or a JSON file "
        "{learned atom: atom of the problem}",
    )
    parser.add_argument(
        "--certain-only",
        action="store_true",
        help="plan only with steps that every model that explains the training traces accepts",
    )
    parser.add_argument("--constants", metavar="NAMES", help=f"for what is certain: {CONSTANTS}")
    parser.add_argument("--planner", default="auto", help="auto (default), or the name of an installed planner")
    parser.add_argument("--timeout", type=above(0), default=60.0, help="time limit in seconds (default: 60)")
    parser.add_argument("--json", action="store_true", help="print JSON instead")
    options = parser.parse_args(words)

    from statewise.strips import certain_plan, certain_steps, parse_trace, plan, read_seen

    goals = {
        "--goal": options.goal,
        "--goal-after": options.goal_after,
        "--goal-possible": options.goal_possible,
        "--problem": options.problem,
    }
    goal_options = [name for name, value in goals.items() if value is not None]
    if len(goal_options) != 1:
        raise ValueError(
            f"give one of {', '.join(goals)}" + (f", not {' and '.join(goal_options)}" if goal_options else "")
        )
    ignored = (
        {"--after": options.after}
        if options.problem is not None
        else {"--domain": options.domain, "--mapping": None if options.mapping == "auto" else options.mapping}
    )
    for name, value in ignored.items():
        if value is not None:
            what = "a problem has its own initial state" if options.problem is not None else "it needs --problem"
            raise ValueError(f"{name} cannot be used with {goal_options[0]}: {what}")
    if options.problem is not None:
        from statewise.strips import read_problem

        files = Path(options.domain or Path(options.problem).with_name("domain.pddl")), Path(options.problem)
        if options.domain is None and not files[0].exists():
            raise ValueError(f"--problem needs its domain: {files[0]} does not exist; give --domain FILE")
        problem = read_problem(*files)
        model = read_aligned(options.model, problem.domain) or read_model(options.model, problem.domain.model.names)
        mapping = (
            options.mapping if options.mapping in ("auto", "meanings", "names") else _mapping(Path(options.mapping))
        )
        before: list[str] = []
        goal: dict[str, Any] = {"problem": problem, "mapping": mapping}
    else:
        examples, _ = (
            read_example(options.goal_after, options.ignore_states) if options.goal_after is not None else ([], "")
        )
        example = examples[0] if examples else None
        wanted = " ".join(options.goal_possible.split()) if options.goal_possible is not None else None
        from_file = options.after is not None and Path(options.after).exists()
        so_far = (
            read_example(options.after, options.ignore_states)[0][0]
            if from_file
            else [" ".join(name.split()) for name in (options.after or "").split(",") if name.strip()]
        )
        model = read_model_for(options.model, [*(example or []), *([wanted] if wanted is not None else []), *so_far])
        after = so_far if from_file else None
        if options.after and not from_file:
            after = [model.names[at] for at in parse_trace(model, options.after)]
        atoms = [atom.strip() for atom in options.goal.split(",") if atom.strip()] if options.goal is not None else None
        if atoms == []:
            raise ValueError("--goal names no atoms: give learned atoms, separated by commas")
        before = after or []

        goal = {"goal": atoms, "goal_after": example, "goal_possible": wanted, "after": after}

    def planned(guards: ActionModel | None, timeout: float, without: Collection[str] = ()) -> Plan:
        return plan(model, **goal, guards=guards, without=without, planner=options.planner, timeout=timeout)

    folder = Path(options.model)
    certain: list[bool] | None = None
    known = options.certain_only or options.constants is not None or (folder / "seen.json").is_file()
    seen = read_seen(folder, options.constants) if known else None
    if options.certain_only and seen is not None:
        result, certain = certain_plan(model.names, seen, planned, after=before, timeout=options.timeout)
    else:
        result = planned(None, options.timeout)
        if result.actions is not None and seen is not None:
            certain = certain_steps(seen, before, result)
    good = result.actions is not None and bool(result.valid_in_model) and result.valid_in_problem is not False
    if options.json:
        say(printable({**dataclasses.asdict(result), "certain": certain}))
        return 0 if good else 1
    say("".join(f"{line}\n" for line in result.goal_lines(terminal_width())), end="")
    if result.actions is None:
        only = " with only certain steps" if options.certain_only else ""
        say(f"no plan{only} exists in the learned model ({result.planner}, {result.seconds:.1f} s)")
        return 1
    marks = [""] * len(result.actions) if certain is None else [CERTAINTY[each] for each in certain]
    say("".join(f"{at:3}  {action}{mark}\n" for at, (action, mark) in enumerate(zip(result.actions, marks), 1)), end="")
    if any(certain or ()) and seen is not None and seen.lifted is not None:
        width = terminal_width()
        say(textwrap.fill(f"certain: among schemas with {seen.assumed}", width, subsequent_indent="  "))
    if not result.actions and not result.goal and not result.mapping:
        say("the goal has no atoms, so it is true already: the example or the action needs none of the model's atoms")
    elif not result.actions and result.assumed:
        hint = "" if options.after is not None else "; --after gives the actions executed so far"
        say(f"nothing to do if these assumptions are true{hint}")
    number = f"{len(result.actions)} action{'' if len(result.actions) == 1 else 's'}"
    say(
        f"{number} ({result.planner}, {result.seconds:.1f} s); "
        f"{'valid' if result.valid_in_model else 'NOT valid'} in the learned model"
        + (
            ""
            if result.valid_in_problem is None
            else f", {'valid' if result.valid_in_problem else 'NOT valid'} in the true problem"
        )
    )
    return 0 if good else 1


def _mapping(path: Path) -> dict[str, str]:
    """The atom of the problem for each learned atom, from a JSON file."""
    mapping: dict[str, str] = read_json(path, {...: TEXT})
    return mapping
