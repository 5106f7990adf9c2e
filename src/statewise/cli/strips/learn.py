"""statewise strips learn: learn an action model from traces."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statewise.cli.commands import terminal_width
from statewise.cli.counter import interruptible
from statewise.runtime.arguments import Parser, above, at_least, with_flags
from statewise.runtime.messages import counted, say, say_in_place

if TYPE_CHECKING:
    import argparse

    import numpy as np

    from statewise.cli.strips.sources import StatesRead
    from statewise.strips import Learned, LiftedModel, Observed

QUESTIONS = 3
"""The largest number of open questions that are shown."""
OF_TRAINING = ("atoms", "restarts", "steps", "pool")
"""Options that only training has: giving one of them chooses training."""


def run(words: list[str]) -> int:
    """Runs the command."""
    from statewise.cli.strips.sources import READ_STATES, add_ignore_states, read_named, read_with_states

    parser = Parser(
        "strips learn",
        "Learns an action model from traces. From noise-free traces it learns exactly, by SAT over what was seen.\n"
        "If the traces contradict each other, it learns from what recurs, and if that explains too few of them, also\n"
        "by training restarts of the STRIPS Transformer and pooling their sound heads. Then it writes the model that\n"
        "explains most of a fifth of the traces, held out, and says why. Negative traces help, but plans or logs\n"
        "that worked are enough. After --seconds, or Ctrl-C, the best model so far is written, and the same command\n"
        "continues (training with --lifted, hybrid, sift and locm start over).\n\n"
        "  statewise strips learn train.csv --out learned/\n"
        "  statewise strips learn plans.txt --positive-only --out learned/\n"
        "  statewise strips learn train.csv --method neural --restarts 10 --out learned/\n"
        "  statewise strips learn train.csv --lifted --out learned/  # any size\n"
        "  statewise strips learn trajectories/ --lifted --out learned/  # with states\n"
        "  statewise strips learn moves.jsonl --implicit-arguments --out m/  # up, down",
    )
    parser.add_argument(
        "traces",
        metavar="FILE",
        help="CSV with trace_id,action[,label], JSON, plans, or trajectories with states: a file or a folder",
    )
    parser.add_argument(
        "--states",
        choices=READ_STATES,
        default="auto",
        help="how observed states are read: full: atoms that a state does not list are false, and no predicate is "
        "hidden; some: they are unknown; none: states are ignored; auto (default): false, unless states list false "
        "atoms, and predicates may be hidden",
    )
    parser.add_argument(
        "--names-from",
        metavar="DOMAIN.pddl",
        help="read types, constants and predicates from the declarations of a domain; its actions' conditions and "
        "effects are not read",
    )
    add_ignore_states(parser)
    parser.add_argument(
        "--implicit-arguments",
        action="store_true",
        help="actions leave out arguments that the state determines, as `up` does; learn schemas with all of them",
    )
    parser.add_argument(
        "--answers",
        metavar="FILE",
        action="append",
        default=[],
        help="answers to the questions of `strips ask`, as more traces; may be given several times",
    )
    parser.add_argument(
        "--method",
        default="auto",
        choices=["auto", "exact", "neural", "hybrid", "sift", "locm"],
        help="exact: SAT; neural: training; auto (default): exact if the traces are free of noise; hybrid: effects by "
        "both, from noisy traces; for comparison, from only the valid actions: sift, all alternating atoms; locm, "
        "state machines of objects",
    )
    parser.add_argument("--positive-only", action="store_true", help="use only the valid actions of the traces")
    parser.add_argument(
        "--symmetry",
        action="store_true",
        help="add the traces with objects of one sort permuted, unless the traces contradict this",
    )
    parser.add_argument(
        "--seconds", type=above(0), help="time limit in seconds (default: 60 for exact, none for neural)"
    )
    parser.add_argument("--atoms", help="neural: heads per restart, or auto (default): find the number")
    parser.add_argument("--restarts", type=at_least(1), help="neural: restarts (default: 10)")
    parser.add_argument("--steps", type=at_least(1), help="neural: maximum training steps per restart (default: 20000)")
    parser.add_argument(
        "--noise",
        metavar="SHARE",
        help="share of noisy traces to tolerate, or of wrong atoms in observed states and of misread actions; auto if "
        "it is unknown (default: no noise, unless the traces contradict each other)",
    )
    parser.add_argument(
        "--pool", action="store_true", default=None, dest="pool", help="neural: always use the pooled model"
    )
    parser.add_argument("--no-pool", action="store_false", dest="pool", help="neural: use the best single restart")
    parser.add_argument("--lifted", action="store_true", help="learn schemas; actions are named `schema object object`")
    parser.add_argument("--seed", type=at_least(0), default=1)
    parser.add_argument("--out", metavar="DIR", required=True)
    parser.add_overwrite("replace an earlier result")
    options = parser.parse_args(words)
    trained = [f"--{name}" for name in OF_TRAINING if getattr(options, name) is not None]
    if trained and options.method in ("exact", "sift", "locm"):
        raise ValueError(f"{trained[0]} is an option of training: give --method neural, or omit it")
    if options.lifted and (options.atoms not in (None, "auto") or options.pool is not None):
        raise ValueError(
            "--lifted always finds the number of predicates and pools them: omit --atoms, --pool and --no-pool"
        )

    if options.implicit_arguments:
        _refuse_unsuited(options, trained)

    from statewise.strips import Settings

    settings = Settings(
        atoms=None if options.atoms in (None, "auto") else _whole(options.atoms),
        restarts=options.restarts or Settings.restarts,
        steps=options.steps or Settings.steps,
        noise=_share(options.noise),
        pool=options.pool,
        seed=options.seed,
    )
    if options.ignore_states and options.states != "auto":
        raise ValueError("--ignore-states says the same as --states none: give only one of them")
    reading: StatesRead = "none" if options.ignore_states else options.states
    observed = read_with_states(options.traces, reading)
    traces = observed.traces
    say(
        f"{options.traces}: {counted(len(traces), 'trace')} ({traces.positives} positive), "
        f"{counted(len(traces.actions), 'action')}, "
        f"up to {traces.longest} long",
        file=sys.stderr,
    )
    if not len(traces.valid_only()):
        raise ValueError(
            f"{options.traces}: no trace has a valid action: label 1 marks a trace whose last action is invalid, "
            "label 0 one that is valid to its end. A first action cannot be rejected, since the initial state is "
            "unknown (Definition 1)"
        )
    if options.positive_only:
        observed = observed.valid_only()
        traces = observed.traces
    if options.answers and observed.count:
        raise ValueError("--answers have no states: give them as traces, or ignore the states (--states none)")
    for path in options.answers:
        from statewise.strips import read_answers, with_answers

        answers = read_answers(path)
        traces = with_answers(traces, answers)
        say(f"{path}: {counted(len(answers), 'answer')}, {counted(len(traces), 'trace')} in all", file=sys.stderr)
    if options.symmetry:
        if observed.count:
            raise ValueError("--symmetry permutes actions, not states: omit it, or ignore the states (--states none)")
        from statewise.strips import symmetric

        symmetries = symmetric(traces)
        traces = symmetries.traces
        say(
            f"{symmetries.used} symmetries used, {symmetries.refused} contradicted by the traces: {len(traces)} traces",
            file=sys.stderr,
        )
    if options.implicit_arguments:
        return _implicit(options, observed, hidden=reading != "full")
    from statewise.strips import learn, learn_schemas

    names = read_named(options.names_from, observed) if options.names_from else None
    with interruptible() as stop:
        learned = (learn_schemas if options.lifted else learn)(
            traces,
            settings,
            method="neural" if trained and options.method == "auto" else options.method,
            observed=observed if observed.count else None,
            hidden=reading != "full",
            names=names,
            noisy=options.noise == "auto",
            seconds=options.seconds,
            stop=stop,
            folder=Path(options.out),
            overwrite=options.overwrite,
            say=_say,
            progress=_progress(),
        )
    _show_model(learned)
    _unfinished(learned.report, Path(options.out))
    seconds = "" if options.lifted else f"{learned.report['seconds']:.1f} s; "
    say(f"{seconds}wrote {options.out}")
    _nothing_learned(learned.report, options.lifted)
    return 0


def _refuse_unsuited(options: argparse.Namespace, trained: Sequence[str]) -> None:
    """Refuses options that do not suit a log that leaves arguments out."""
    unsuited = [
        *trained,
        *(
            f"--{name.replace('_', '-')}"
            for name in ("names_from", "answers", "symmetry", "noise")
            if getattr(options, name)
        ),
        *(["--method"] if options.method != "auto" else []),
    ]
    if unsuited:
        raise ValueError(f"--implicit-arguments reads a log as noise-free and by itself: omit {', '.join(unsuited)}")


def _implicit(options: argparse.Namespace, observed: Observed, *, hidden: bool) -> int:
    """Learns from a log that leaves arguments out."""
    from statewise.strips import learn_implicit

    with interruptible() as stop:
        learned = learn_implicit(
            observed,
            hidden=hidden,
            folder=Path(options.out),
            overwrite=options.overwrite,
            stop=stop,
            progress=_say,
            **({} if options.seconds is None else {"seconds": options.seconds}),
        )
    _show_model(learned)
    _unfinished(learned.report, Path(options.out))
    say(f"{learned.report['seconds']:.1f} s; wrote {options.out}")
    _nothing_learned(learned.report, True)
    return 0


def _left_out(report: dict[str, Any]) -> None:
    """The arguments that the log left out, and what determines them."""
    from statewise.cli.strips.sources import left_out_lines

    if "implicit" not in report:
        return
    implicit = report["implicit"]
    lines = left_out_lines(implicit)
    for number, line in enumerate(lines):
        _entry("" if number else "left out", line)
    if not lines:
        _entry("left out", "no argument was found that the log leaves out")
    if "registers" in implicit:
        _entry("chosen", "from actions alone: they predict the log best, which is no proof. States show them")
    for name, (predicate, place) in implicit["nothing_there"].items():
        _entry("absence", f"{name} x is true if no atom of {predicate} has x as argument {place + 1}")
    if implicit["unresolved"]:
        _entry(
            "unknown", f"{counted(implicit['unresolved'], 'action')} whose arguments are not known: not learned from"
        )
    if implicit["negatives_unused"]:
        _entry("unused", f"{counted(implicit['negatives_unused'], 'invalid action')}: only valid actions are read")


def _show_model(learned: Learned | LiftedModel) -> None:
    from statewise.strips import Learned, model_table

    report = learned.report
    ground = isinstance(learned, Learned)
    say(
        model_table(learned.model, terminal_width())
        if isinstance(learned, Learned)
        else "\n".join(learned.as_lines(terminal_width()))
    )
    say()
    _entry("method", with_flags(f"{report['method']}: {report['chosen']}"))
    if ground:
        exact = _by_schemas if "predicates" in report else _noisy if "support" in report else _exact
        show = {"neural": _trained, "hybrid": _hybrid, "sift": _sift, "locm": _locm}.get(report["method"], exact)
        show(report)
        _states(report)
    else:
        _left_out(report)
        _states(report)
        if report["method"] == "locm":
            _locm(report)
        _supported(report)
    _open(report)
    size = f"{report['atoms']} atoms" if ground else f"{report['predicates']} predicates"
    _entry("model", f"{size}; {_right(report)}")


def _nothing_learned(report: dict[str, Any], lifted: bool) -> None:
    if report["predicates" if lifted else "atoms"]:
        return
    more = (
        "--steps, --restarts or traces"
        if lifted and report["method"] == "neural"
        else "--seconds"
        if report.get("unfinished")
        else "or longer traces"
    )
    what = "no predicate was found" if lifted else "no atom was found, so the model accepts every trace"
    say(f"{what}: give more {more}", file=sys.stderr)


def _exact(report: dict[str, Any]) -> None:
    _entry(
        "features",
        f"{report['features']} alternating{'' if report['all_features'] else ' (not all are listed)'}, "
        f"{report['supported']} well supported, from {report['windows']} seen windows",
    )
    _unseen(report)


def _by_schemas(report: dict[str, Any]) -> None:
    kinds = f", {report['not_alternating']} of them not alternating" if "not_alternating" in report else ""
    _entry(
        "schemas", f"{report['predicates']} predicates{kinds}; this is their ground model (--lifted writes the schemas)"
    )
    _supported(report)
    _unseen(report)


def _states(report: dict[str, Any]) -> None:
    """What the states decided."""
    if "states" not in report:
        return
    seen, bounds = report["states"], report["bounds"]
    hidden = f", and {seen['hidden']} hidden ones" if seen["hidden"] else ""
    _entry("states", f"{seen['observed']} observed; {len(seen['complete']) + len(seen['partial'])} predicates{hidden}")
    certain, open_effects = (
        sum(len(each[part][which]) for each in bounds.values() for part in ("add", "delete"))
        for which in ("certain", "possible")
    )
    required = sum(len(each["pre"]["possible"]) + len(each["pre"]["certain"]) for each in bounds.values())
    all_required = "" if "noise" in seen else ", and required by the model"
    _entry(
        "decided",
        f"{certain} effects are certain, {open_effects} more are possible; {required} preconditions are possible"
        f"{all_required}; all others are excluded (report.json lists them)",
    )
    if "noise" in seen:
        _entry(
            "noise",
            f"with probability {seen['confidence']:g} none of this is wrong, if at most {seen['noise']:.1%} of the "
            "atoms are wrong and of the actions misread; the model has what is likeliest",
        )
    if unseen := report["never_valid_schemas"]:
        _entry(
            "unseen", f"{', '.join(unseen)}: never valid between two states, so nothing is known about their effects"
        )


def _supported(report: dict[str, Any]) -> None:
    """How many windows of noisy traces count."""
    if "support" in report:
        _entry(
            "windows",
            f"{report['windows']} that at least {report['support']} traces imply; the others are treated as noise",
        )


def _open(report: dict[str, Any]) -> None:
    """Prints what the traces leave open about schemas."""
    for at, each in enumerate(report.get("open", ())[:QUESTIONS]):
        without = f" without {', '.join(each['without'])} between" if each["without"] else ""
        _entry(
            "" if at else "open",
            f"may {each['action']} follow {each['after']}{without}? The model allows it. It never happened in "
            f"{each['places']} places, where chance predicts {each['expected']:.1f} times",
        )
    if more := report.get("open", ())[QUESTIONS:]:
        _entry("", f"and {len(more)} more in report.json: more traces would decide them")
    if report.get("open") == [] and not report["unfinished"]:
        _entry("open", "no open question about what the model allows in the places that the traces reach")
    if "assumed" in report:
        _entry("assumed", report["assumed"])
    if few := report.get("few_objects"):
        _entry(
            "few",
            f"{'; '.join(map(', '.join, few))}: there are fewer than three objects of a sort, so the model may be "
            "wrong for more",
        )


def _unfinished(report: dict[str, Any], folder: Path) -> None:
    if left := report.get("unfinished"):
        kept = (folder / "checkpoint.npz").is_file()
        again = "the same command continues, best with more --seconds" if kept else "give more --seconds"
        _entry("unfinished", f"{'; '.join(left)}: the best model so far; {again}")


def _sift(report: dict[str, Any]) -> None:
    _entry("features", f"{report['features']} alternating, from {report['windows']} seen windows; all are atoms")


def _locm(report: dict[str, Any]) -> None:
    of = report["machines"]
    states, parameters, flawed = (sum(each[key] for each in of) for key in ("states", "parameters", "flawed"))
    _entry(
        "machines", f"{len(of)}, with {states} states and {parameters} parameters ({flawed} more were not consistent)"
    )
    _entry(
        "limits",
        "LOCM finds no conditions that never change (such as which place is next to which), and only one aspect of "
        "each object",
    )


def _hybrid(report: dict[str, Any]) -> None:
    _entry("training", f"{report['effects']} effects, from {len(report['restarts'])} restarts")
    _noisy(report, ": these, and the alternating ones in")


def _noisy(report: dict[str, Any], which: str = " alternating, from") -> None:
    _entry(
        "features",
        f"{report['features']}{which} {report['windows']} windows that at least {report['support']} traces imply; the "
        "others are treated as noise",
    )
    _unseen(report)


def _unseen(report: dict[str, Any]) -> None:
    if names := report["never_valid"]:
        _entry(
            "unseen",
            f"{', '.join(names[:5])}{', ...' if names[5:] else ''}: never valid in the traces, so their effects are "
            "unknown; the model has none",
        )


def _trained(report: dict[str, Any]) -> None:
    restarts = report["restarts"]
    accuracies = [each["accuracy"] for each in restarts]
    _entry(
        "restarts",
        f"{sum(value == 1 for value in accuracies)} of {len(restarts)} classify all training traces correctly; "
        f"accuracies {', '.join(format(value, '.3f') for value in accuracies)}",
    )
    if report["pool"] is not None:
        pool = report["pool"]
        _entry(
            "pool",
            f"{pool['sound']} sound heads, {pool['supported']} well supported; they catch "
            f"{pool['negatives_caught']:.4f} of the negatives"
            + ("" if report["pooled"] else ": the best single restart is used"),
        )


def _right(report: dict[str, Any]) -> str:
    """The share of the training traces that the model explains, and of those held out."""
    text = f"{report['training_accuracy']:.4f} of the training traces right"
    held = report.get("held_out")
    if held is None or not held["traces"]:
        return text
    return f"{text}, {held['explained'][held['taken']]:.4f} of {held['traces']} held-out ones"


def _entry(label: str, text: str) -> None:
    """A line of the report, wrapped beside its label."""
    say(
        textwrap.fill(
            f"{label:10} {text}",
            max(40, terminal_width()),
            subsequent_indent=" " * 11,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def _say(text: str) -> None:
    say(with_flags(text), file=sys.stderr, flush=True)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"--atoms must be a number or auto, not {text!r}") from None


def _share(text: str | None) -> float:
    """The share of noisy traces; 0 if it is not set or unknown."""
    if text in (None, "auto"):
        return 0.0
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--noise must be a share or auto, not {text!r}") from None


def _progress() -> Callable[[int, int, np.ndarray, int], None]:
    """Shows progress: on a terminal one line that changes, elsewhere a line every tenth call."""
    began, calls = time.monotonic(), 0

    def show(step: int, steps: int, accuracy: np.ndarray, active: int) -> None:
        nonlocal calls
        calls += 1
        right = int((accuracy == 1).sum())
        line = (
            f"step {step:>6}/{steps}  right on all traces: {right} of {len(accuracy)} restarts  mean accuracy "
            f"{accuracy.mean():.3f}  {active} active  {time.monotonic() - began:.0f} s"
        )
        if sys.stderr.isatty():
            say_in_place(line)
            if not active or step >= steps:
                say(file=sys.stderr)
        elif calls % 10 == 1 or not active or step >= steps:
            say(line, file=sys.stderr, flush=True)

    return show
