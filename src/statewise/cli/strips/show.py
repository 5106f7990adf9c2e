"""statewise strips show: an action model as text and plots."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from statewise.cli.commands import terminal_width
from statewise.runtime.arguments import Parser
from statewise.runtime.messages import counted, say
from statewise.runtime.overwriting import check_files, claimed_files


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser(
        "strips show",
        "Shows an action model as text and plots, and its B-RASP program on a trace. Plots: model.png, what each\n"
        "action requires, adds and deletes; schemas.png, the same for schemas, with the numbers of their arguments;\n"
        "models.png, beside the model --against; theta.png, what the best restart learned; attention.png, on the\n"
        "trace.\n\n"
        "  statewise strips show learned/\n"
        "  statewise strips show learned/ --against blocksworld:3  # atoms matched\n"
        '  statewise strips show simple --trace "a c c b c a"  # Figures 1 and 3',
    )
    parser.add_argument("model", metavar="MODEL", help="a learned folder, a model.json, or a domain such as simple")
    parser.add_argument("--trace", help="actions, separated by spaces or commas")
    parser.add_argument("--against", metavar="REFERENCE", help="a domain, PDDL files, or another model")
    parser.add_argument("--ground", action="store_true", help="for schemas: also show their ground actions and atoms")
    parser.add_argument("--out", metavar="DIR", help="folder for the plots (default: the learned folder)")
    parser.add_overwrite("replace plots in --out")
    options = parser.parse_args(words)

    if not options.out:
        place = Path(options.model)
        written = _show(options, place if place.is_dir() else None)
    else:
        from statewise.strips import PICTURE_SIGNS, PICTURES

        out = Path(options.out)

        def check() -> None:
            check_files(out, PICTURES, PICTURE_SIGNS, options.overwrite)

        with claimed_files(out, PICTURES, check, options.overwrite) as scratch:
            written = [out / path.name for path in _show(options, scratch)]
    if written:
        say(f"wrote {', '.join(map(str, written))}")
    return 0


def _show(options: Namespace, into: Path | None) -> list[Path]:
    """Prints the model, and draws pictures into the folder `into`."""
    from statewise.cli.strips.sources import model_of, read_model, read_reference
    from statewise.strips import (
        MOST_DRAWN,
        Learned,
        match_atoms,
        parse_trace,
        read_schemas,
        renamed,
        save_attention,
        save_model,
        save_models,
        save_schemas,
        save_theta,
        schema_lines,
        show,
    )

    place = Path(options.model)
    reference = model_of(read_reference(options.against)) if options.against else None
    if place.exists():
        model = read_model(options.model, reference.names if reference is not None else None)
    else:
        model = model_of(read_reference(options.model))
    sizes = {(len(each.names), len(each.atoms)) for each in (model, reference) if each is not None}
    drawn = into is not None and all(max(size) <= MOST_DRAWN for size in sizes)
    written: list[Path] = []

    def picture(name: str) -> Path:
        assert into is not None
        written.append(into / name)
        return written[-1]

    if reference is not None:
        match = match_atoms(model, reference)
        model = renamed(model, match)
        pairs = [mine for mine, _ in match.pairs] + list(match.unmatched_learned)
        theirs = [true for _, true in match.pairs] + list(match.unmatched_reference)
        say(match.as_text(), "", sep="\n")
        if drawn:
            save_models(
                model.with_atoms(pairs), reference.with_atoms(theirs).with_actions(model.names), picture("models.png")
            )
    trace = parse_trace(model, options.trace) if options.trace else None
    width = terminal_width()
    schemas = read_schemas(place) if place.is_dir() else None
    if schemas is not None:
        say("learned lifted:", *schema_lines(schemas, width), sep="\n")
        grounded = trace is not None or options.ground
        ground = f"{counted(len(model.names), 'ground action')} and {counted(len(model.atoms), 'atom')}"
        say("" if grounded else f"\nOver the objects of training: {ground}; --ground shows them")
    if schemas is None or grounded:
        say(show(model, trace, width))
    if into is not None:
        if schemas is not None and any(schema.pre or schema.add or schema.delete for schema in schemas.values()):
            save_schemas(schemas, picture("schemas.png"))
        elif drawn and schemas is None and model.atoms and model.actions:
            save_model(model, picture("model.png"))
        if trace is not None:
            save_attention(model, trace, picture("attention.png"))
        if drawn and (place / "theta.npz").exists():
            learned = Learned.load(place)
            best = learned.report["best_restart"]
            theta = learned.theta[best]
            if len(theta):
                names = [f"head {head}" for head in range(len(theta))]
                save_theta(theta, picture("theta.png"), names, learned.model.names)
    if into is not None and not drawn:
        actions, atoms = max(sizes, key=max)
        say(
            f"no plot of the model: it has {actions:,} actions and {atoms:,} atoms, and plots show up to "
            f"{MOST_DRAWN:,} of each"
        )
    return written
