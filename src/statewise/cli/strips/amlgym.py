"""statewise strips amlgym: compare learners on AMLGym's domains."""

from __future__ import annotations

import sys
from pathlib import Path

from statewise.cli.counter import interruptible
from statewise.runtime.arguments import Parser, above, at_least
from statewise.runtime.messages import say


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser(
        "strips amlgym",
        "Learns each of AMLGym's 21 domains by each method from some of its trajectories, and measures what was\n"
        "learned: whether it is exact by the verifier, precision and recall of preconditions and effects, predictive\n"
        "power, problem solving, and seconds. Each result is a file of its own in OUT/cells, so the same command\n"
        "continues after an interruption. OUT/amlgym.md has the tables. Needs the extra `amlgym`.\n\n"
        "  statewise strips amlgym --methods ours,SAM --out results/\n"
        "  statewise strips amlgym --methods full,SAM --domains tpp --out results/",
    )
    parser.add_argument(
        "--methods",
        default="ours,SAM,OffLAM,NOLAM,ROSAME",
        help="separated by commas: actions (ours from actions alone), names (the same, named after the true domain), "
        "half (ours from half of the atoms), full (ours from full states), ours (these four), walks (ours from the "
        "actions of 30 walks of its own for each trajectory), noisy (ours from full states, with a twentieth of the "
        "atoms and of the actions wrong), SAM, OffLAM, NOLAM, ROSAME (default: ours and the last four)",
    )
    parser.add_argument("--domains", default="", help="separated by commas (default: all 21)")
    parser.add_argument(
        "--trajectories",
        default="10,1,3,5,2,7,4,6,8,9",
        help="how many trajectories, in this order, such as 10,1-5 (default: 10 first, then all others)",
    )
    parser.add_argument(
        "--seconds", type=above(0), default=30.0, help="limit for learning by our methods (default: 30)"
    )
    parser.add_argument("--verify-seconds", type=above(0), default=10.0, help="limit of the verifier (default: 10)")
    parser.add_argument(
        "--states", type=at_least(0), default=10, help="test states of each problem for predictive power (default: 10)"
    )
    parser.add_argument(
        "--problems", type=at_least(0), default=3, help="problems to solve, from 10 trajectories (default: 3)"
    )
    parser.add_argument("--planner-seconds", type=above(0), default=10.0, help="for each problem (default: 10)")
    parser.add_argument("--cell-seconds", type=above(0), default=600.0, help="limit of each cell (default: 600)")
    parser.add_argument("--out", metavar="DIR", required=True)
    options = parser.parse_args(words)

    from statewise.runtime.durable import write_atomically
    from statewise.strips import amlgym_methods, amlgym_summary, amlgym_trajectories, compare_on_amlgym

    out = Path(options.out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file: give a folder")
    only = [name.strip() for name in options.domains.split(",") if name.strip()]
    methods = amlgym_methods(options.methods)
    with interruptible() as stop:
        rows = compare_on_amlgym(
            out,
            methods,
            amlgym_trajectories(options.trajectories),
            only,
            {
                "seconds": options.seconds,
                "verify_seconds": options.verify_seconds,
                "states": options.states,
                "problems": options.problems,
                "planner_seconds": options.planner_seconds,
                "cell_seconds": options.cell_seconds,
            },
            lambda text: say(text, file=sys.stderr, flush=True),
            stop,
        )
    text = amlgym_summary(rows)
    write_atomically(out / "amlgym.md", text.encode())
    say(text, end="")
    say(f"{len(rows)} cells; wrote {out / 'amlgym.md'}")
    return 0
