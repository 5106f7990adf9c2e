"""statewise explain: one page on what a model of your own sequences has learned."""

from __future__ import annotations

from pathlib import Path

from statewise.cli.commands import say_lines
from statewise.cli.counter import shown_progress
from statewise.runtime.arguments import Parser, at_least
from statewise.runtime.messages import cut, say

DESCRIPTION = """Did the model understand your data? Writes one web page into a folder, OUT/index.html, which needs no
network, and its figures, OUT/explanation.json:

  statewise explain runs/mine --out page

A verdict; a process map of the data beside that of sequences that the model generates; how well it predicts by the
number of events before, beside simple baselines; whether its probabilities are right; the cases that surprise it most;
its states in two dimensions, coloured by any column of the file; and similar cases. The run's task must be sequences,
and its file must still be there."""


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser("explain", DESCRIPTION)
    parser.add_run()
    parser.add_argument("--out", metavar="DIR", required=True, help="folder to write into")
    parser.add_overwrite("replace a page that statewise wrote")
    parser.add_argument("--num", type=at_least(1), help="only the first N held-out cases (default: all)")
    parser.add_argument(
        "--samples",
        type=at_least(10),
        default=1000,
        help="how many sequences the model generates for the process map (default: 1000)",
    )
    parser.add_argument("--seed", type=at_least(0), default=1, help="seed of all that is drawn (default: 1)")
    options = parser.parse_args(words)
    out = Path(options.out)

    from statewise.explain.page import claimed, save

    with claimed(out, options.overwrite):  # errors come before the model is loaded
        from statewise.explain.explanation import explain
        from statewise.model.model import load_model

        model = load_model(options.run, options.checkpoint, options.device)
        with shown_progress():
            made = explain(model, options.num, options.samples, options.seed)
        page, figures = save(made, out, overwrite=options.overwrite)
    say_lines(made.verdict.sentence, made.verdict.advice)
    differing = sum(edge.differs for edge in made.process_map.edges)
    say(f"process map: {differing:,} of {made.process_map.compared:,} compared edges differ between data and model")
    if made.surprising:
        first = made.surprising[0]
        name = cut(" ".join(first.name.split()))
        say(f"most surprising case: {name}, {first.nats:.1f} nats where {first.expected_nats:.1f} were expected")
    if made.notes:
        say_lines(*made.notes)
    say(f"wrote {page} ({page.stat().st_size / 1000:,.0f} kB) and {figures}")
    return 0
