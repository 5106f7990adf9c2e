"""statewise strips traces: draw random traces from a domain."""

from __future__ import annotations

from pathlib import Path

from statewise.runtime.arguments import Parser, at_least
from statewise.runtime.messages import counted, say
from statewise.runtime.overwriting import claimed_file


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser(
        "strips traces",
        "Draws unique random traces and writes them as CSV or JSON lines. Walks begin in the initial state or in\n"
        "states drawn at random; with --start random only in the latter, as in the STRIPS Transformer paper.\n\n"
        "  statewise strips traces blocksworld:3 --num 1000 --max-length 30 \\\n"
        "      --seed 1 --out train.csv\n"
        "  statewise strips traces blocksworld:3 --num 10000 --max-length 50 \\\n"
        "      --negatives 0.5 --split test --out test.csv\n"
        "  statewise strips traces --domain d.pddl --problem p.pddl \\\n"
        "      --num 500 --out train.csv",
    )
    parser.add_argument("name", metavar="DOMAIN", nargs="?", help="such as simple, blocksworld:3, ferry:2x1")
    parser.add_argument("--domain", metavar="FILE", help="a PDDL domain instead")
    parser.add_argument("--problem", metavar="FILE", help="its PDDL problem, with objects and initial state")
    parser.add_argument("--num", type=at_least(1), required=True, help="number of traces")
    parser.add_argument("--max-length", type=at_least(1), default=20, help="maximum actions per trace (default: 20)")
    parser.add_argument("--negatives", type=float, help="share of traces that end in an invalid action (default: 0.8)")
    parser.add_argument(
        "--states",
        metavar="PREDICATES",
        help="also write the states, as JSON lines: the atoms of these predicates, separated by commas, or all",
    )
    parser.add_argument(
        "--implicit",
        action="store_true",
        help="leave out the arguments that the state determines; of the known domains, and without negatives",
    )
    parser.add_argument(
        "--split",
        default="train",
        choices=["train", "test", "all"],
        help="which of the four states drawn at random: the first two, the last two, or all",
    )
    parser.add_argument(
        "--start",
        default="both",
        choices=["init", "random", "both"],
        help="walks begin in the initial state, in states drawn at random, or in either (default: both)",
    )
    parser.add_argument(
        "--aimed", action="store_true", help="walks go to actions that no walk has taken yet, if one is near"
    )
    parser.add_argument("--noise", type=float, help="share of noisy traces (default: 0)")
    parser.add_argument(
        "--noise-of",
        choices=["labels", "actions", "both", "steps"],
        help="kind of noise: flip the label; replace an action; flip labels and, in as many traces, replace, leave out "
        "or insert an action; or damage this share of all actions so (default: labels)",
    )
    parser.add_argument("--seed", type=at_least(0), default=1)
    parser.add_argument("--out", metavar="FILE", required=True, help="CSV, or JSON lines if it ends in .jsonl")
    parser.add_overwrite()
    options = parser.parse_args(words)

    from statewise.cli.strips.sources import read_world
    from statewise.strips import (
        implicit_log,
        named_arguments,
        traces,
        with_noise,
        with_states,
        write_observed,
        write_traces,
    )

    if options.noise_of is not None and options.noise is None:
        raise ValueError("--noise-of names a kind of noise: give its share, too, such as --noise 0.05")
    special = [flag for flag, given in (("--states", options.states), ("--implicit", options.implicit)) if given]
    if special and options.noise:
        raise ValueError(f"{special[0]} is for traces without noise: omit --noise")
    if options.implicit and options.negatives:
        raise ValueError(
            "--implicit leaves out arguments, so whether an action is impossible cannot be said: omit --negatives"
        )
    if options.states is not None and not options.out.endswith((".jsonl", ".json")):
        raise ValueError(f"states are written as JSON lines: give an --out that ends in .jsonl, not {options.out}")
    negatives = 0.0 if options.implicit else 0.8 if options.negatives is None else options.negatives

    with claimed_file(Path(options.out), options.overwrite) as scratch:
        world = read_world(options.name, (options.domain, options.problem))
        drawn = traces(
            world,
            options.num,
            options.max_length,
            options.seed,
            negatives=negatives,
            split=options.split,
            start=options.start,
            aimed=options.aimed,
        )
        if options.noise:
            drawn = with_noise(drawn, options.noise, options.noise_of or "labels", options.seed)
        if special:
            shown = [name.strip() for name in (options.states or "").split(",")]
            observed = with_states(world, drawn, None if "all" in shown else shown if options.states else ())
            if options.implicit:
                observed = implicit_log(observed, named_arguments(world))
            drawn = observed.traces
            if options.states:
                write_observed(observed, scratch)
        if not options.states:
            write_traces(drawn, scratch)
    say(
        f"{world.name}: {counted(len(world.model.atoms), 'atom')}, {counted(len(drawn.actions), 'action')}\n"
        f"wrote {counted(len(drawn), 'trace')} ({drawn.positives} positive, {len(drawn) - drawn.positives} negative, "
        f"up to {counted(drawn.longest, 'action')}) to {options.out}"
    )
    return 0
