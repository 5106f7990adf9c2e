"""statewise strips export: write a model as PDDL."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from statewise.runtime.arguments import Parser
from statewise.runtime.durable import write_atomically
from statewise.runtime.messages import say
from statewise.runtime.overwriting import check_file, claimed_files
from statewise.runtime.text_files import read_text


def run(words: list[str]) -> int:
    """Runs the command."""
    from statewise.cli.strips.sources import AGAINST, add_ignore_states, left_out_comment

    parser = Parser(
        "strips export",
        "Writes an action model as PDDL: ground, or with --lifted the learned schemas as a typed domain with negative\n"
        "preconditions. A trace becomes a problem: its initial atoms are those that the beginning of the trace\n"
        "requires, its goal is what is true after the trace. Predicates are named p0, p1, ..., or with --names-from\n"
        "after those of the reference that they match. Needs the extra `planning`.\n\n"
        "  statewise strips export learned/ --out out.pddl\n"
        "  statewise strips export m/ --lifted --problem-from t.csv --no-negative\n"
        "  statewise strips export learned/ --out out.pddl --names-from blocksworld:3",
    )
    parser.add_argument("model", metavar="MODEL", help="a learned folder or a model.json")
    parser.add_argument("--to", choices=["pddl"], default="pddl", help="the format (default: pddl)")
    parser.add_argument(
        "--lifted", action="store_true", help="a lifted domain, from a model that was learned with --lifted"
    )
    parser.add_argument(
        "--no-negative",
        "--positive-preconditions",
        dest="positive_preconditions",
        action="store_true",
        help="for planners without negative preconditions, such as pyperplan: write predicates `not-...` instead (a "
        "ground domain has no negative preconditions)",
    )
    parser.add_argument(
        "--problem-from",
        metavar="FILE",
        help="a file of traces: the first becomes a problem; any objects with --lifted",
    )
    add_ignore_states(parser)
    parser.add_argument(
        "--out",
        metavar="FILE",
        default="domain.pddl",
        help="file of the domain (default: domain.pddl); the problem is written beside it",
    )
    parser.add_overwrite()
    parser.add_argument("--names-from", metavar="REFERENCE", help=AGAINST)
    options = parser.parse_args(words)
    out = Path(options.out)
    beside = out.with_name("problem.pddl" if out.name == "domain.pddl" else f"{out.stem}-problem.pddl")
    written = [out, beside] if options.problem_from else [out]

    def check() -> None:
        for path in written:
            check_file(path, options.overwrite)

    with claimed_files(out.parent, [path.name for path in written], check, options.overwrite) as scratch:
        size, source = _export(options, scratch / out.name, scratch / beside.name)
        if comment := left_out_comment(options.model):
            write_atomically(scratch / out.name, (comment + read_text(scratch / out.name)).encode())
    say(f"wrote {out}: {size}")
    if options.problem_from:
        say(f"wrote {beside}: from {source}")
    return 0


def _export(options: Namespace, out: Path, beside: Path) -> tuple[str, str]:
    """Writes the domain to `out` and the problem to `beside`. Returns a description of each."""
    from statewise.cli.strips.sources import model_of, read_example, read_model, read_reference
    from statewise.strips import export, export_lifted, read_schemas

    reference = model_of(read_reference(options.names_from)) if options.names_from else None
    examples, source = read_example(options.problem_from, options.ignore_states) if options.problem_from else ([], "")
    example = examples[0] if examples else None
    of_problem = f"{source}, {len(example)} actions" if example is not None else ""
    if not options.lifted:
        model = read_model(options.model, reference.names if reference is not None else None)
        named = export(model, out, reference=reference, trace=example, problem_path=beside, source=source)
        return f"{len(named.atoms)} atoms, {len(named.actions)} actions", of_problem
    training = read_model(options.model)
    schemas = read_schemas(Path(options.model)) if Path(options.model).is_dir() else None
    if schemas is None:
        raise ValueError(f"{options.model} has no schemas: learn with --lifted, or export without --lifted")
    lifted = export_lifted(
        schemas,
        training.names,
        out,
        trace=example,
        others=examples[1:],
        problem_path=beside,
        reference=reference,
        source=source,
        positive_preconditions=options.positive_preconditions,
    )
    size = (
        f"{len(lifted.predicates)} predicates, {lifted.schemas} schemas; {len(lifted.folded)} more predicates are "
        "complements or copies of these"
    )
    if ":negative-preconditions" in out.read_text(encoding="utf-8"):
        size += "\nit has negative preconditions, which pyperplan's own command refuses: --no-negative writes none"
    if example is not None:
        size += (
            f"\ninitial atoms: {len(lifted.known)} required by the trace, {len(lifted.assumed)} assumed from its "
            f"effects, {len(lifted.unknown)} unknown and assumed to be false"
        )
    return size, of_problem
