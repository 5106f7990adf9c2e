"""statewise strips verify: decide whether two models are equivalent."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from statewise.runtime.arguments import Parser, above, at_least
from statewise.runtime.json_files import printable
from statewise.runtime.messages import say

CODES = {"equivalent": 0, "different": 1, "unknown": 3}


def run(words: list[str]) -> int:
    """Runs the command: 0 equivalent, 1 different, 3 unknown."""
    from statewise.cli.strips.sources import AGAINST

    parser = Parser(
        "strips verify",
        "Decides whether two action models accept the same traces, with a shortest counterexample if not. The report\n"
        "says whether an equivalence is proven for all instances or for this one, or else how far the search came.\n"
        "Exit code: 0 equivalent, 1 different, 3 unknown (a limit was reached).\n\n"
        "  statewise strips verify learned/ --against blocksworld:3\n"
        "  statewise strips verify learned/ --against blocksworld:3 --real-states\n"
        "  statewise strips verify learned/ --against blocksworld:10  # learned lifted\n"
        "  statewise strips verify exported.pddl --against blocksworld:3\n"
        "  statewise strips verify one.pddl --against other.pddl  # a few objects",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a learned folder, a model.json, DOMAIN.pddl over the actions of the reference, or "
        "DOMAIN.pddl,PROBLEM.pddl",
    )
    parser.add_argument("--against", metavar="REFERENCE", required=True, help=AGAINST)
    parser.add_argument(
        "--real-states",
        action="store_true",
        help="compare only traces that are valid from a real state, up to their last action",
    )
    parser.add_argument(
        "--drawn-only",
        action="store_true",
        help="compare only those of these traces that `strips traces` can draw: the last action is applicable in the "
        "real state or rejected by Definition 1",
    )
    parser.add_argument("--seconds", type=above(0), default=60.0, help="time limit in seconds (default: 60)")
    parser.add_argument("--states", type=at_least(1), default=1_000_000, help="state limit (default: a million)")
    parser.add_argument("--json", action="store_true", help="print JSON instead")
    options = parser.parse_args(words)

    from statewise.cli.strips.sources import is_domain, model_of, read_aligned, read_model, read_reference, say_left_out
    from statewise.strips import before_simplification, ground, verify

    alone = is_domain(options.against)  # has neither objects nor initial states of its own
    if alone and (options.real_states or options.drawn_only):
        raise ValueError(f"{options.against} has no initial state: give a problem, too, as DOMAIN.pddl,PROBLEM.pddl")
    for path in (options.model, options.against):
        say_left_out(path)
    reference = read_reference(options.against, read_model(options.model).names if alone else None)
    names = model_of(reference).names
    place = Path(options.model)
    implicit = read_aligned(options.model, reference)
    learned = implicit or read_model(options.model, names)
    before = before_simplification(place, names) if place.is_dir() and implicit is None else None
    if before is not None:
        learned = ground(before, names)  # accepts the same traces, and proofs by pairs of atoms are easier
    verdict = verify(
        learned,
        reference,
        real_states=options.real_states,
        drawn_only=options.drawn_only,
        seconds=options.seconds,
        max_states=options.states,
    )
    if options.json:
        say(printable(dataclasses.asdict(verdict)))
        return CODES[verdict.outcome]
    if implicit is not None:
        say("arguments that the log left out are compared with those of the domain that the same objects are")
    proven = f"; proven for {verdict.proven}" if verdict.proven is not None else ""
    say(f"{verdict.outcome} ({verdict.notion}; {verdict.states} states, {verdict.seconds:.2f} s){proven}")
    if before is not None:
        say("compared by the schemas before simplification, whose steps were proven for all instances")
    if verdict.excluded:
        many = len(verdict.excluded)
        say(
            "for any number of objects, from every state without "
            + (f"any of these {many} pairs:" if many > 1 else "this pair:")
        )
        say(*(f"  {pair}" for pair in verdict.excluded), sep="\n")
    if verdict.depth is not None:
        say(
            f"they agree on all traces of up to {verdict.depth} actions"
            + (f", and on all over {', '.join(verdict.objects)}" if verdict.objects else "")
        )
    if verdict.counterexample is not None:
        say(
            f"counterexample: {', '.join(verdict.counterexample)}"
            + ("" if verdict.shortest else "   (there may be a shorter one)")
        )
        if verdict.start is not None:
            say(f"from the state: {', '.join(verdict.start)}")
        other = "the reference" if verdict.accepted_by == "learned" else "the learned model"
        whose = "the reference's" if verdict.accepted_by == "learned" else "the learned model's"
        first = "the learned model" if verdict.accepted_by == "learned" else "the reference"
        say(f"{first} accepts it, {other} rejects its last action; at fault: {whose} atom {verdict.head}")
    if verdict.reason is not None:
        say(verdict.reason)
    return CODES[verdict.outcome]
