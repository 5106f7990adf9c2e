"""statewise strips simplify: the simplest equivalent model."""

from __future__ import annotations

import sys
from pathlib import Path

from statewise.cli.commands import terminal_width
from statewise.cli.counter import interruptible
from statewise.runtime.arguments import Parser, above
from statewise.runtime.messages import say


def run(words: list[str]) -> int:
    """Runs the command."""
    from statewise.cli.strips.sources import AGAINST

    parser = Parser(
        "strips simplify",
        "Writes the simplest equivalent of a model: preconditions, effects and atoms are removed as long as each\n"
        "step is proven to accept the same traces. Atoms are named after the actions that add them, or with\n"
        "--against after the atoms of the reference that they match. After --seconds, or Ctrl-C, the simplest model\n"
        "so far is written.\n\n"
        "  statewise strips simplify learned/ --out simple/\n"
        "  statewise strips simplify learned/ --against blocksworld:3 --drawn-only \\\n"
        "      --out simple/",
    )
    parser.add_argument("model", metavar="MODEL", help="a learned folder or a model.json")
    parser.add_argument("--out", metavar="DIR", required=True)
    parser.add_overwrite("replace an earlier result")
    parser.add_argument("--against", metavar="REFERENCE", help=AGAINST)
    parser.add_argument(
        "--real-states",
        action="store_true",
        help="compare only traces that are valid in the domain --against, up to their last action",
    )
    parser.add_argument(
        "--drawn-only", action="store_true", help="compare only those of these traces that `strips traces` can draw"
    )
    parser.add_argument("--seconds", type=above(0), default=300.0, help="time limit in seconds (default: 300)")
    options = parser.parse_args(words)

    from statewise.cli.strips.sources import model_of, read_model, read_reference
    from statewise.strips import (
        claimed,
        ground,
        model_table,
        read_schemas,
        schema_lines,
        simplify,
        syntactic,
        write_simplified,
    )

    out = Path(options.out)
    with claimed(out, options.overwrite):
        reference = read_reference(options.against) if options.against else None
        true = model_of(reference) if reference is not None else None
        place = Path(options.model)
        schemas = read_schemas(place) if place.is_dir() else None
        model = read_model(options.model, true.names if true is not None else None)
        before = syntactic(model, true) if true is not None else {}
        if schemas is not None and true is not None:
            model = read_model(options.model)  # over the actions of training, which the result has, too

        def progress(done: int, total: int) -> None:
            if sys.stderr.isatty():
                say(f"\r{done} of {total} entries tried", end="", file=sys.stderr, flush=True)

        with interruptible() as stop:
            simpler = simplify(
                model,
                schemas=schemas,
                reference=reference,
                seconds=options.seconds,
                stop=stop,
                progress=progress,
                notion="drawn traces"
                if options.drawn_only
                else "real states"
                if options.real_states
                else "definition 1",
            )
        if sys.stderr.isatty():
            say(file=sys.stderr)
        after: dict[str, float] = {}
        if true is not None:
            compared = ground(simpler.schemas, true.names) if simpler.schemas is not None else simpler.model
            after = syntactic(compared, true)
        write_simplified(simpler, out, options.model, options.overwrite)
    width = terminal_width()
    lines = schema_lines(simpler.schemas, width) if simpler.schemas is not None else [model_table(simpler.model, width)]
    say(*lines, sep="\n")
    atoms, entries = ("atoms", "preconditions, adds and deletes")
    if simpler.schemas is not None:
        atoms, entries = ("predicates", "literals")
    say(
        f"\n{atoms}: {simpler.atoms[1]} of {simpler.atoms[0]}; {entries}: {simpler.entries[1]} of "
        f"{simpler.entries[0]}; each step proven equivalent ({simpler.notion})"
    )
    if reference is not None:
        say(
            f"against {options.against}: precision {after['precision']:.3f} (before: {before['precision']:.3f}), "
            f"recall {after['recall']:.3f} (before: {before['recall']:.3f})"
        )
    if true is not None and simpler.schemas is not None and simpler.notion != "definition 1":
        there = {name.split()[0] for name in true.names}
        if lacking := [name for name in simpler.schemas if name not in there]:
            say(f"not simplified, since {options.against} has no such actions: {', '.join(lacking)}")
    if simpler.undecided:
        say(
            f"kept, since proofs reached their limits: {', '.join(simpler.undecided[:8])}"
            + (f" and {len(simpler.undecided) - 8} more" if simpler.undecided[8:] else "")
        )
    if simpler.stopped is not None:
        why = "the time is up" if simpler.stopped == "time" else "interrupted"
        say(f"{why}: this is the simplest model so far; more may be unnecessary")
    say(f"{simpler.seconds:.1f} s; wrote {options.out}")
    return 0
