"""statewise strips evaluate: score a model on traces and against a true model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from statewise.runtime.arguments import Parser, above, at_least
from statewise.runtime.json_files import printable
from statewise.runtime.messages import say


def run(words: list[str]) -> int:
    """Runs the command."""
    from statewise.cli.strips.sources import AGAINST, add_ignore_states, read_given

    parser = Parser(
        "strips evaluate",
        "Scores an action model: the share of traces of which every prefix is classified correctly; and against a\n"
        "true model, precision and recall of preconditions and effects (after matching atoms), precision and recall\n"
        "of applicable actions on random walks, and exact equivalence.\n\n"
        "  statewise strips evaluate learned/ --traces test.csv\n"
        "  statewise strips evaluate learned/ --traces test.csv \\\n"
        "      --against blocksworld:3 --json",
    )
    parser.add_argument("model", metavar="MODEL", help="a learned folder or a model.json")
    parser.add_argument("--traces", metavar="FILE", help="test traces with labels")
    add_ignore_states(parser)
    parser.add_argument("--against", metavar="REFERENCE", help=AGAINST)
    parser.add_argument("--walks", type=at_least(1), default=100, help="random walks for applicability (default: 100)")
    parser.add_argument("--walk-length", type=at_least(1), default=50, help="actions per walk (default: 50)")
    parser.add_argument("--seed", type=at_least(0), default=1)
    parser.add_argument(
        "--seconds",
        type=above(0),
        default=60.0,
        help="time limit in seconds of the search for the simplest equivalent model (default: 60)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args(words)
    if options.traces is None and options.against is None:
        raise ValueError("give --traces FILE, --against REFERENCE, or both")

    from statewise.cli.strips.sources import model_of, read_aligned, read_model, read_reference
    from statewise.reporting.tables import metrics_table
    from statewise.strips import Domain, applicability, check, read_seen, simplify, syntactic, trace_accuracy, verify

    reference = read_reference(options.against) if options.against else None
    scores: dict[str, dict[str, Any]] = {}
    if options.traces:
        test_traces = read_given(options.traces, options.ignore_states)
        scores["traces"] = trace_accuracy(read_model(options.model, test_traces.actions), test_traces)
        if (Path(options.model) / "seen.json").is_file():
            scores["certainty"] = check(read_seen(Path(options.model)), test_traces).against_labels()
    if reference is not None:
        model = read_aligned(options.model, reference) or read_model(options.model, model_of(reference).names)
        scores["equivalence"] = {"definition_1": verify(model, reference).outcome}
        if isinstance(reference, Domain):
            scores["applicability"] = applicability(
                model, reference, num=options.walks, length=options.walk_length, seed=options.seed
            )
            scores["equivalence"] |= {
                "real_states": verify(model, reference, real_states=True).outcome,
                "drawn_traces": verify(model, reference, drawn_only=True).outcome,
            }
        # many models are equivalent, so the entries of a simplest one are compared
        like = isinstance(reference, Domain) and scores["equivalence"]["drawn_traces"] == "equivalent"
        simple = simplify(
            model, reference=reference, notion="drawn traces" if like else "definition 1", seconds=options.seconds
        )
        scores["syntactic"] = syntactic(simple.model, model_of(reference))
        scores["syntactic_as_learned"] = syntactic(model, model_of(reference))
    if options.json:
        say(printable({"model": options.model, **scores}))
        return 0
    titles = {
        "traces": "traces classified correctly at every prefix",
        "certainty": "share of the traces with a certain verdict, and the share of these verdicts that is right",
        "syntactic": "preconditions and effects of the simplest equivalent model, atoms matched",
        "syntactic_as_learned": "preconditions and effects of the model as it was learned, atoms matched",
        "applicability": "applicable actions on random walks, against Definition 1 and the real state",
        "equivalence": "exact equivalence",
    }
    for part, title in titles.items():
        if part in scores:
            say(title)
            if part == "equivalence":
                say(*(f"{notion.replace('_', ' '):14} {outcome}" for notion, outcome in scores[part].items()), sep="\n")
            else:
                say(metrics_table(scores[part]))
            say()
    return 0
