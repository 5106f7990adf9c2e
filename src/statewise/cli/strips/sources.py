"""Models and domains named on the command line of `statewise strips`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from statewise.runtime.arguments import Parser
from statewise.runtime.json_files import COUNT, TEXT, Shape, check, read_json
from statewise.runtime.messages import say
from statewise.runtime.text_files import read_text

if TYPE_CHECKING:
    from statewise.strips import ActionModel, Domain, Names, Observed, Traces

CONSTANTS = (
    "the objects, separated by commas, that an action may require or change without having them as arguments, "
    "or none (default: any object of the training traces)"
)
AGAINST = "a domain such as blocksworld:3, DOMAIN.pddl,PROBLEM.pddl, DOMAIN.pddl, a learned folder or a model.json"
PDDL = ".pddl"


def read_model(path: str, actions: Sequence[str] | None = None) -> ActionModel:
    """The action model of a learned folder, a model file, or PDDL (`DOMAIN.pddl`, or with a problem,
    `DOMAIN.pddl,PROBLEM.pddl`). A lifted model, or a PDDL domain alone, is grounded over `actions`.

    With `actions`, a message names those that were not seen in training; the model has them without conditions and
    effects. Raises `ValueError` if `actions` is empty, the model has none of them, or its log left arguments out."""
    if actions is None:
        return _read_model(path)
    if not actions:
        raise ValueError(
            f"the model that {path} is compared with has no actions; in PDDL files, none is reachable from the initial "
            "state"
        )
    from statewise.strips import compared_with, ground, read_schemas

    place = Path(path)
    schemas = read_schemas(place) if place.is_dir() else None
    if schemas is not None:
        compared_with(place, None)  # refuses arguments whose places in `actions` are not known
        unseen = [name for name in actions if name.split()[0] not in schemas]
        if len(unseen) == len(actions):
            raise _different(path, list(schemas), list(dict.fromkeys(name.split()[0] for name in unseen)))
        _say_unseen(unseen)
        return ground(schemas, actions)
    if is_domain(path):
        from statewise.strips import model_of_domain

        model = model_of_domain(path, actions)
    else:
        model = _read_model(path)
    unseen = model.unseen(actions)
    if len(unseen) == len(actions):
        raise _different(path, model.names, unseen)
    _say_unseen(unseen)
    return model.covering([*model.names, *unseen])


def _different(path: str, mine: Sequence[str], theirs: Sequence[str]) -> ValueError:
    """The error if the model, whose actions or schemas are `mine`, has none of `theirs`."""
    folded = {name.casefold(): name for name in mine}
    name = next((name for name in theirs if name.casefold() in folded), theirs[0])
    text = f"{path} and the model it is compared with have different actions: {path} has no {name!r}"
    if same := folded.get(name.casefold()):
        text += (
            f". It has {same!r}: PDDL ignores the case of letters, but here names are compared as they are "
            "written. Write both alike, and learn again"
        )
    return ValueError(text)


def _say_unseen(actions: Sequence[str]) -> None:
    """Names actions that were not seen in training on standard error, with what is assumed about them."""
    if actions:
        named = ", ".join(map(repr, actions[:8])) + (f" and {len(actions) - 8} more" if actions[8:] else "")
        say(
            f"not seen in training: {named}. Nothing is known about {'it' if len(actions) == 1 else 'them'}: assumed "
            "to be always possible and without effects",
            file=sys.stderr,
        )


def _read_model(path: str) -> ActionModel:
    from statewise.strips import ActionModel

    if "," in path and path.partition(",")[0].endswith(PDDL):
        from statewise.strips import read_domain

        first, _, second = path.partition(",")
        return read_domain(Path(first), Path(second)).model
    if is_domain(path):
        from statewise.strips import actions_of_domain, model_of_domain

        return model_of_domain(path, actions_of_domain(path))
    place = Path(path)
    if place.is_dir():
        from statewise.strips import read_learned_model

        return read_learned_model(place)
    return ActionModel.from_json(read_text(place), path)


def is_domain(path: str) -> bool:
    """Whether a model is given as a PDDL domain without a problem."""
    return "," not in path and path.endswith(PDDL) and not Path(path).is_dir()


def read_aligned(path: str, reference: Domain | ActionModel) -> ActionModel | None:
    """The model of a learned folder whose log left arguments out, over the actions of a domain; None of any other model
    or reference. Raises `ValueError` if the domain does not determine these arguments."""
    from statewise.strips import Domain, compared_with

    return compared_with(path, reference) if Path(path).is_dir() and isinstance(reference, Domain) else None


def read_model_for(path: str, actions: Sequence[str]) -> ActionModel:
    """The action model of a learned folder or a model file, for traces with these actions. A lifted model is grounded
    over their objects, if training lacked one of the actions. Raises `ValueError` for an action with equal arguments
    that were not equal in any action of training."""
    from statewise.strips import ground, read_schemas, signature

    model = read_model(path)
    schemas = read_schemas(Path(path)) if Path(path).is_dir() else None
    if schemas is None or all(name in model.number for name in actions):
        return model
    known = signature(schemas, model.names)
    possible = known.actions_over(known.objects_of(actions))
    for name in sorted(set(actions) - set(possible)):
        raise ValueError(
            f"{name!r} has the same object in several places, unlike any action of this schema in training: nothing is "
            "known about it"
        )
    return ground(schemas, possible)


LEFT_OUT = "; The log left arguments out. These were found, and stand after those that it names:"
"""The first line of a PDDL domain whose actions have such arguments."""


def left_out_lines(implicit: Mapping[str, Any]) -> list[str]:
    """The arguments that a log left out, and what determines them, a line for each schema that has some; `implicit` is
    what the report says of them."""
    lines = []
    for schema, some in implicit["arguments"].items():
        if some:
            names = " ".join(f"x{at + 1}" for at in range(implicit["shown"][schema] + len(some)))
            lines.append(f"{schema} {names}: {'; '.join(each['definition'] for each in some)}")
    return lines


def left_out_comment(path: str) -> str:
    """Comments of PDDL that say which arguments a log left out; empty for other models. Raises `ValueError` for a
    damaged report."""
    report = Path(path) / "report.json"
    if not report.is_file():
        return ""
    implicit = read_json(report, {}).get("implicit")
    if implicit is None:
        return ""
    shape: Shape = {"shown": {...: COUNT}, "arguments": {...: [{"definition": TEXT}]}}
    lines = left_out_lines(check(implicit, shape, f"{report}: its implicit arguments"))
    return "".join(f"{line}\n" for line in [LEFT_OUT, *(f";   {' '.join(each.split())}" for each in lines)] if lines)


def say_left_out(path: str) -> None:
    """Says of a PDDL domain with such comments on standard error that its arguments are those of the log."""
    place = Path(path.partition(",")[0])
    if place.suffix == PDDL and place.is_file() and LEFT_OUT in read_text(place):
        say(
            f"{place}: its actions have arguments in the order in which they were found, which may be another than in "
            "the other model: give the folder of the model, which states align",
            file=sys.stderr,
        )


def add_ignore_states(parser: Parser) -> None:
    """Adds the option of all commands that read traces."""
    parser.add_argument(
        "--ignore-states", action="store_true", help="read only the actions of files that also hold observed states"
    )


def read_given(path: str, ignore_states: bool) -> Traces:
    """The traces of a file; a message on standard error says what else the file holds."""
    from statewise.strips import read_traces

    traces = read_traces(Path(path), ignore_states=ignore_states)
    if traces.unread:
        say(f"{path}: not read: {', '.join(traces.unread)}", file=sys.stderr)
    return traces


StatesRead = Literal["auto", "none", "some", "full"]
READ_STATES: tuple[StatesRead, ...] = ("auto", "none", "some", "full")
"""The ways to read observed states."""


def read_with_states(path: str, reading: StatesRead) -> Observed:
    """The traces of a file or folder with their states, which are read in one of the ways `READ_STATES`. Raises
    `ValueError` if states are asked for and the file holds none."""
    from statewise.strips import Observed, read_observed

    if reading == "none":
        traces = read_given(path, True)
        return Observed(traces, tuple((None,) * (len(row) + 1) for row in traces.rows))
    observed = read_observed(Path(path), reading)
    if observed.traces.unread:
        say(f"{path}: not read: {', '.join(observed.traces.unread)}", file=sys.stderr)
    if observed.count:
        known = observed.predicates
        say(
            f"{path}: {observed.count} observed states, {len(known)} predicates: "
            + ", ".join(f"{name}/{arity}" for name, arity in list(known.items())[:12])
            + (", ..." if known.keys() - list(known)[:12] else "")
            + (
                "; atoms that a state does not list are false"
                if observed.complete
                else "; atoms that a state does not list are unknown"
            ),
            file=sys.stderr,
        )
    elif reading != "auto":
        raise ValueError(f"{path}: --states {reading}, but the file holds no observed states")
    return observed


def read_named(path: str, observed: Observed) -> Names:
    """What a PDDL domain declares. Raises `ValueError` if the observed predicates or the actions are others, or have
    another number of arguments."""
    from statewise.strips import Names, read_declared

    declared = read_declared(Path(path))
    for name, number in observed.predicates.items():
        if name not in declared.predicates:
            raise ValueError(f"{path}: the domain declares no predicate {name!r}, which the states hold")
        if declared.predicates[name] != number:
            raise ValueError(
                f"{path}: the predicate {name!r} has {declared.predicates[name]} arguments here, and {number} in the "
                "states"
            )
    for action in observed.traces.actions:
        name, *objects = action.split()
        if name not in declared.actions:
            raise ValueError(f"{path}: the domain declares no action {name!r}, as in {action!r}")
        if len(declared.actions[name]) != len(objects):
            raise ValueError(
                f"{path}: the action {name!r} has {len(declared.actions[name])} parameters here, and {len(objects)} "
                f"arguments in {action!r}"
            )
    return Names(declared.constants, declared.fits, tuple(declared.predicates))


def read_example(path: str, ignore_states: bool) -> tuple[list[list[str]], str]:
    """The traces of a file as names of actions, without invalid actions, and the name of the first trace in messages.
    Raises `ValueError` if the first trace ends in an invalid action."""
    traces = read_given(path, ignore_states)
    if traces.labels[0]:
        raise ValueError(f"{path}: the first trace ends in an invalid action: give a valid one")
    rows = [[traces.actions[at] for at in row[: len(row) - label]] for row, label in zip(traces.rows, traces.labels)]
    return rows, f"{path}" if len(rows) == 1 else f"{path}, the first of {len(rows)} traces"


def read_reference(spec: str, actions: Sequence[str] | None = None) -> Domain | ActionModel:
    """The domain or model that `--against` gives; a PDDL domain without a problem over `actions`, or a few objects of
    each type."""
    if actions is not None and is_domain(spec):
        return read_model(spec, actions)
    if "," in spec and spec.partition(",")[0].endswith(PDDL):
        from statewise.strips import read_domain

        first, _, second = spec.partition(",")
        return read_domain(Path(first), Path(second))
    from statewise.strips import compared_with, domain

    if Path(spec).exists():
        if Path(spec).is_dir():
            compared_with(spec, None)  # refuses arguments whose places in other models are not known
        return read_model(spec)

    return domain(spec)


def read_world(name: str | None, files: tuple[str | None, str | None]) -> Domain:
    """A domain by name, or by its PDDL domain and problem."""
    if (name is None) == (files == (None, None)):
        raise ValueError("name a domain, such as blocksworld:3, or give --domain D.pddl and --problem P.pddl")
    if name is not None:
        from statewise.strips import domain

        return domain(name)
    if files[0] is None or files[1] is None:
        raise ValueError("give both --domain and --problem")
    from statewise.strips import read_domain

    return read_domain(Path(files[0]), Path(files[1]))


def model_of(reference: Domain | ActionModel) -> ActionModel:
    """The action model of a reference."""
    from statewise.strips import Domain

    return reference.model if isinstance(reference, Domain) else reference
