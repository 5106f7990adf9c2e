"""statewise strips export: write a model as PDDL."""

from __future__ import annotations

from pathlib import Path

from statewise.cli.arguments import Parser
from statewise.overwriting import check_file


def run(words: list[str]) -> int:
    """Runs the command."""
    from statewise.cli.strips.sources import AGAINST

    parser = Parser(
        "strips export",
        "Writes an action model as a ground PDDL domain. Atoms are named p0, p1, ..., or with --names-from after\n"
        "the atoms that they match there. Needs the extra `planning`.\n\n"
        "  statewise strips export learned/ --out out.pddl\n"
        "  statewise strips export learned/ --out out.pddl --names-from blocksworld:3",
    )
    parser.add_argument("model", metavar="MODEL", help="a learned folder or a model.json")
    parser.add_argument("--out", metavar="FILE", required=True)
    parser.add_overwrite()
    parser.add_argument("--names-from", metavar="REFERENCE", help=AGAINST)
    options = parser.parse_args(words)
    check_file(Path(options.out), options.overwrite)

    from statewise.cli.strips.sources import model_of, read_model, read_reference
    from statewise.strips import export

    reference = model_of(read_reference(options.names_from)) if options.names_from else None
    model = read_model(options.model, reference.names if reference is not None else None)
    named = export(model, Path(options.out), reference=reference)
    print(f"wrote {options.out}: {len(named.atoms)} atoms, {len(named.actions)} actions")
    return 0
