"""statewise strips extract: extract the action model that a trained sequence model implies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from statewise.cli.counter import shown_progress
from statewise.runtime.arguments import Parser, above, at_least
from statewise.runtime.messages import counted, say

if TYPE_CHECKING:
    from statewise.strips import ActionModel, Domain, Extracted


def run(words: list[str]) -> int:
    """Runs the command."""
    from statewise.cli.strips.sources import AGAINST

    parser = Parser(
        "strips extract",
        "Extracts the STRIPS model that a trained sequence model implies. A question is a beginning of a trace: which\n"
        "actions may follow? An action is accepted from a certain probability on. From the answers an action model is\n"
        "learned, exactly if they do not contradict each other. The report says how far both models agree in fresh\n"
        "traces, and if the true domain is known, a shortest trace on which the extracted model is wrong. The folder\n"
        "is one of `strips learn`: show, verify, export, plan and simplify read it, and check, unless answers\n"
        "contradict each other.\n\n"
        "  statewise strips extract runs/gpt --out model/\n"
        "  statewise strips extract runs/logs --actions names.txt --against d.pddl,p.pddl --out model/",
    )
    parser.add_run("run directory of a model of actions: of the task strips_traces, or of logs of your own")
    parser.add_argument("--out", metavar="DIR", required=True, help="folder for the action model")
    parser.add_overwrite("replace a model that statewise wrote")
    parser.add_argument("--questions", type=at_least(1), default=1000, help="number of questions (default: 1000)")
    parser.add_argument("--seconds", type=above(0), default=60.0, help="time limit in seconds (default: 60)")
    parser.add_argument("--seed", type=at_least(0), default=1, help="seed of all that is drawn (default: 1)")
    parser.add_argument(
        "--accept",
        choices=("uniform", "gap"),
        default="uniform",
        help="accept an action from a share of the uniform probability on (default), or above the largest gap",
    )
    parser.add_argument(
        "--share",
        type=above(0),
        default=0.1,
        help="this share; for `gap` the ratio of probabilities that counts as a gap (default: 0.1)",
    )
    parser.add_argument("--actions", metavar="FILE", help="names of the actions, a line each (default: all symbols)")
    parser.add_argument("--against", metavar="REFERENCE", help=f"the true model, if the task does not know it: {AGAINST}")
    options = parser.parse_args(words)

    from statewise.strips import Acceptance, extract

    acceptance = Acceptance(options.accept, options.share)
    names = None if options.actions is None else _names(Path(options.actions))
    out = Path(options.out)
    from statewise.cli.strips.sources import read_reference

    reference = None if options.against is None else read_reference(options.against, names)

    from statewise.extraction import SequencePredictor
    from statewise.model.model import load_model

    model = load_model(options.run, options.checkpoint, options.device)
    step = None if model.checkpoint is None else model.checkpoint.step
    with model.asking() as inference, shown_progress():
        predictor = SequencePredictor(model, inference, names)
        made = extract(
            predictor,
            questions=options.questions,
            seconds=options.seconds,
            seed=options.seed,
            acceptance=acceptance,
            folder=out,
            overwrite=options.overwrite,
            say=lambda text: say(text, file=sys.stderr, flush=True),
            facts={"run": options.run, "checkpoint": step},
        )
    _show(made, acceptance)
    found = predictor.truth if reference is None else reference
    if found is not None:
        _compare(made, found)
    say(f"wrote {out}")
    return 0


def _names(path: Path) -> list[str]:
    """The lines of a file. Raises `ValueError` if it has none, or one twice."""
    from statewise.runtime.text_files import read_text

    names = [" ".join(line.split()) for line in read_text(path).splitlines() if line.strip()]
    twice = next((name for name in names if names.count(name) > 1), None)
    if len(names) < 2 or twice is not None:
        raise ValueError(
            f"{path}: " + ("fewer than two actions" if twice is None else f"the action {twice!r} occurs twice")
        )
    return names


def _show(made: Extracted, acceptance: object) -> None:
    from statewise.cli.commands import terminal_width
    from statewise.strips import Acceptance, model_table

    assert isinstance(acceptance, Acceptance)
    width, agreed = terminal_width(), made.agreement
    say("\n".join(made.schemas.as_lines(width)) if made.schemas is not None else model_table(made.model, width))
    say()
    say(f"accepted   {acceptance.described()}; {made.uncertain:.2%} of the probabilities are within a factor of 3 of it")
    say(
        f"answers    {counted(made.questions, 'question')}, "
        + ("which contradict each other: treated as noisy" if made.noisy else "without contradictions")
    )
    say(f"fidelity   {_share(agreed.accepted_by_both, agreed.accepted)} of what the sequence model accepts is accepted")
    say(
        f"           {_share(agreed.rejected_by_both, agreed.rejected)} of what it rejects, and accepted earlier in the "
        "trace, is rejected"
    )
    say(
        f"           {_share(agreed.promised_and_accepted, agreed.promised)} of what the extracted model knows to be "
        "possible, in traces of its own, is accepted by the sequence model"
    )
    kind = "schemas" if made.schemas is not None else "ground atoms"
    say(f"A STRIPS model of {kind} agrees with the sequence model in {agreed.share:.2%} of the answers in fresh traces.")


def _share(part: int, of: int) -> str:
    return f"{part:,} of {of:,} ({part / of:.2%})" if of else "0 of 0"


def _compare(made: Extracted, reference: ActionModel | Domain) -> None:
    """Says whether the extracted model is the true one."""
    from statewise.strips import Domain, verify

    drawn = isinstance(reference, Domain)
    verdict = verify(made.model, reference, drawn_only=drawn, seconds=20.0)
    of = "the traces that can be drawn from the true domain" if drawn else "all traces"
    if verdict.outcome == "equivalent":
        say(f"truth      equivalent on {of}")
    elif verdict.counterexample is None:
        say(f"truth      unknown: {verdict.reason}; equal on all traces of up to {verdict.depth} actions")
    else:
        who = "accepts" if verdict.accepted_by == "learned" else "rejects"
        other = "rejects" if who == "accepts" else "accepts"
        shortest = "the shortest difference" if verdict.shortest else "a difference"
        say(
            f"truth      different; {shortest}: {', '.join(verdict.counterexample)}: the extracted model {who} the last "
            f"action, the true one {other} it"
        )
