"""statewise strips extract: extract the action model that a trained sequence model implies."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from statewise.cli.counter import shown_progress
from statewise.runtime.arguments import Parser, above, at_least
from statewise.runtime.messages import counted, say

if TYPE_CHECKING:
    from statewise.strips import Acceptance, ActionModel, ActionPredictor, Domain, Extracted

VERIFYING = 20.0
"""The most seconds for comparing with the true domain."""


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
        "  statewise strips extract runs/logs --actions names.txt --out model/",
    )
    parser.add_run("run directory of a model of actions: of the task strips_traces, or of logs of your own")
    parser.add_argument("--out", metavar="DIR", required=True, help="folder for the action model")
    parser.add_overwrite("replace a model that statewise wrote")
    parser.add_argument("--questions", type=at_least(1), default=1000, help="number of questions (default: 1000)")
    parser.add_argument(
        "--seconds", type=above(0), default=60.0, help="time limit in seconds, without proofs (default: 60)"
    )
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
    parser.add_argument(
        "--against", metavar="REFERENCE", help=f"the true model, if the task does not know it: {AGAINST}"
    )
    options = parser.parse_args(words)

    from statewise.strips import Acceptance, extract

    acceptance = Acceptance(options.accept, options.share)
    names = None if options.actions is None else _names(Path(options.actions))
    out = Path(options.out)
    from statewise.cli.strips.sources import model_of, read_reference

    reference = None if options.against is None else read_reference(options.against, names)

    from statewise.extraction import SequencePredictor
    from statewise.model.model import load_model

    model = load_model(options.run, options.checkpoint, options.device)
    step = None if model.checkpoint is None else model.checkpoint.step
    with model.asking() as inference, shown_progress():
        predictor = SequencePredictor(model, inference, names)
        if reference is not None:  # before the questions, which take their time
            model_of(reference).with_actions(predictor.actions, options.against, "the sequence model")
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
        found = predictor.truth if reference is None else reference
        _show(made, acceptance.described())
        if found is not None:
            _compare(made, found, predictor, acceptance)
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


def _show(made: Extracted, accepted: str) -> None:
    from statewise.cli.commands import terminal_width
    from statewise.strips import model_table

    width, agreed = terminal_width(), made.agreement
    say("\n".join(made.schemas.as_lines(width)) if made.schemas is not None else model_table(made.model, width))
    say()
    _entry("accepted", f"{accepted}; {made.uncertain:.2%} of the probabilities are within a factor of 3 of it")
    contradict = "some of which are treated as wrong" if made.noisy else "without contradictions"
    _entry("answers", f"{counted(made.questions, 'question')}, {contradict}")
    by_both, rejected = (
        _share(agreed.accepted_by_both, agreed.accepted),
        _share(agreed.rejected_by_both, agreed.rejected),
    )
    promised = _share(agreed.promised_and_accepted, agreed.promised)
    _entry("fidelity", f"{by_both} of the actions that the sequence model accepts are accepted")
    _entry("", f"{rejected} of those that it rejects, and accepted earlier in the trace, are rejected")
    _entry("", f"{promised} of those that the extracted model knows to be possible are accepted by the sequence model")
    kind = "schemas" if made.schemas is not None else "ground atoms"
    say(
        f"A STRIPS model of {kind} agrees with the sequence model in {agreed.share:.2%} of the answers in fresh traces."
    )


def _entry(label: str, text: str) -> None:
    """A line of the report, wrapped beside its label."""
    from statewise.cli.commands import terminal_width

    width = max(40, terminal_width())
    say(textwrap.fill(f"{label:10} {text}", width, subsequent_indent=" " * 11, break_on_hyphens=False))


def _share(part: int, of: int) -> str:
    return f"{part:,} of {of:,}" + (f" ({part / of:.2%})" if of else "")


def _compare(
    made: Extracted, reference: ActionModel | Domain, predictor: ActionPredictor, acceptance: Acceptance
) -> None:
    """Says whether the extracted model is the true one, and of a difference what the sequence model itself says."""
    from statewise.strips import Domain, verify

    drawn = isinstance(reference, Domain)
    verdict = verify(made.model, reference, drawn_only=drawn, seconds=VERIFYING)
    if verdict.outcome == "equivalent":
        of = "all traces that can be drawn from the true domain" if drawn else "all traces"
        _entry("truth", f"equivalent on {of}; proven for {verdict.proven}")
    elif verdict.counterexample is None:
        _entry("truth", f"unknown: {verdict.reason}; equal on all traces of up to {verdict.depth} actions")
    else:
        does = "accepts" if verdict.accepted_by == "learned" else "rejects"
        shortest = "the shortest trace" if verdict.shortest else "a trace"
        trace = [made.model.number[name] for name in verdict.counterexample]
        itself = ""
        if 2 <= len(trace) <= predictor.longest + 1:
            logs = predictor.log_probabilities([tuple(trace[:-1])])
            accepted = bool((logs >= acceptance.least(logs))[0, trace[-1]])
            itself = f"; the sequence model {'accepts' if accepted else 'rejects'} it"
        _entry(
            "truth",
            f"different; {shortest} that shows it: {', '.join(verdict.counterexample)}. The extracted model {does} the "
            f"last action, wrongly{itself}",
        )
