"""statewise strips explore: draw the traces from a simulator that show most."""

from __future__ import annotations

import sys
from pathlib import Path

from statewise.runtime.arguments import Parser, at_least
from statewise.runtime.messages import counted, say
from statewise.runtime.overwriting import claimed_file


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser(
        "strips explore",
        "Explores a simulator in as few steps as possible, and writes what happened as traces for `learn`. A\n"
        "simulator is a domain, whose state is hidden, or what a Python function returns: an object with `actions`\n"
        "(names), `reset()`, and `step(name)`, which returns whether the action was possible. If it also has\n"
        "`possible()`, the names of the possible actions, no step is tried in vain.\n\n"
        "  statewise strips explore blocksworld:3 --steps 60 --lifted --out walks.csv\n"
        "  statewise strips explore --domain d.pddl --problem p.pddl --lifted --out w.csv\n"
        "  statewise strips explore --simulator my.robot:make --lifted --out walks.csv",
    )
    parser.add_argument("name", metavar="DOMAIN", nargs="?", help="such as blocksworld:3")
    parser.add_argument("--domain", metavar="FILE", help="a PDDL domain instead")
    parser.add_argument("--problem", metavar="FILE", help="its PDDL problem, with objects and initial state")
    parser.add_argument("--simulator", metavar="MODULE:FUNCTION", help="a Python function that returns a simulator")
    parser.add_argument("--steps", type=at_least(1), required=True, help="number of steps, also those not possible")
    parser.add_argument("--max-length", type=at_least(1), default=30, help="maximum actions per walk (default: 30)")
    parser.add_argument(
        "--lifted", action="store_true", help="actions are named `schema object object`: one object stands for others"
    )
    parser.add_argument(
        "--attempts", action="store_true", help="do not use which actions of a domain are possible: try them"
    )
    parser.add_argument("--seed", type=at_least(0), default=1)
    parser.add_argument("--out", metavar="FILE", required=True, help="CSV, or JSON lines if it ends in .jsonl")
    parser.add_overwrite()
    options = parser.parse_args(words)
    given = (options.domain, options.problem)
    if options.simulator is not None and (options.name is not None or given != (None, None)):
        raise ValueError("give either a domain or --simulator")

    from statewise.cli.strips.sources import read_world
    from statewise.strips import DomainSimulator, Simulator, explore, simulator_of, write_traces

    simulator: Simulator
    if options.simulator is not None:
        sys.path.insert(0, str(Path.cwd()))
        simulator = simulator_of(options.simulator)
    else:
        simulator = DomainSimulator(read_world(options.name, given), tells=not options.attempts)
    with claimed_file(Path(options.out), options.overwrite) as scratch:
        try:
            found = explore(
                simulator, options.steps, lifted=options.lifted, max_length=options.max_length, seed=options.seed
            )
        except ValueError:
            raise
        except Exception as error:  # of the user's function
            if options.simulator is None:
                raise
            raise ValueError(f"the simulator {options.simulator} failed: {type(error).__name__}: {error}") from error
        if not len(found.traces):
            raise ValueError("no action was possible in any step")
        write_traces(found.traces, scratch)
    traces = found.traces
    say(
        f"{found.steps} steps, {found.impossible} of them not possible, in {found.resets} walks\n"
        f"wrote {counted(len(traces), 'trace')} ({traces.positives} positive, {len(traces) - traces.positives} "
        f"negative) to {options.out}"
    )
    return 0
