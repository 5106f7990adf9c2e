"""statewise evaluate: metrics of a trained run."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statewise.cli.arguments import Parser, at_least, pairs
from statewise.cli.counter import shown_progress
from statewise.cli.reports import keep_report
from statewise.data_types import Evaluation, Examples
from statewise.decoding.carried_state import PROTOCOLS, Asked, ask_each, seeing_targets
from statewise.evaluation.token_losses import token_losses
from statewise.run import Run, evaluation_of, evaluation_on, named, report_of
from statewise.runtime.durable import replacing
from statewise.runtime.json_files import printable
from statewise.runtime.messages import say
from statewise.runtime.overwriting import claimed_file
from statewise.runtime.progress import announced
from statewise.tasks import TASKS

if TYPE_CHECKING:
    import numpy as np

    from statewise.decoding.base import Decoder
    from statewise.model.model import Model
    from statewise.tasks.base import Task


SHOWN = 10
"""How many of the sequences that are left out are named."""
GREEDY = "greedy"
"""The decoder of answers unless another is asked for."""

DESCRIPTION = """Scores a run on the held-out data of its task, or on a file in the task's format.

Writes a report into the run's folder reports: evaluation.json of all held-out examples of the best checkpoint, which
`statewise compare` reads; any other evaluation under a name of its own, such as evaluation-first-50.json with --num 50.
Of those `compare --metrics all` reads the ones of --data and of other held-out sets, if they are of all examples, the
best checkpoint and greedy decoding.

--losses OUT.jsonl also writes the nats of every token, a JSON line for each sequence: {"sequence": 0, "nats": 1.7,
"scored": 2, "tokens": ["a", "b", "c"], "nats_by_token": [null, 0.5, 1.2]}, with null where a token is not scored."""


def run(words: list[str]) -> int:
    """Runs the command."""
    options, by = options_of(words)
    decoder, how = decoder_of(options)  # wrong fields fail before the model is loaded
    if not options.losses:
        return _evaluate(options, by, decoder, how, None)
    out = Path(options.losses)
    if not out.parent.is_dir():
        raise ValueError(f"there is no folder {out.parent} to write --losses into")
    with claimed_file(out, options.overwrite, "--losses") as scratch:
        code = _evaluate(options, by, decoder, how, scratch)
    if not options.json:
        say(f"wrote {out}: the nats of every token, a JSON line for each sequence")
    return code


def _evaluate(
    options: argparse.Namespace,
    by: tuple[str, str] | None,
    decoder: str | Decoder,
    how: Mapping[str, Any],
    losses_file: Path | None,
) -> int:
    """Evaluates, prints, and writes the report and the losses."""
    from statewise.model.loading import load_model

    model = load_model(options.run, options.checkpoint, options.device)
    if options.fills:
        return _referee(model, Path(options.fills), options)
    check_decoded(how, model.recipe.task.name, model.task)
    asked = _asked(model, options)
    own_notes = list(model.task.notes)
    if options.losses and len(asked) > 1:
        raise ValueError("--losses are those of one protocol: give --protocol carried or fresh")

    losses: list[tuple[Examples, np.ndarray, np.ndarray]] = []

    def keep_losses(examples: Examples, nats: np.ndarray, scored: np.ndarray) -> None:
        losses.append((examples, nats, scored))

    keep = keep_losses if options.losses else None
    if options.comprehensive:
        from statewise.evaluation.evaluate import evaluate_whole_texts

        with shown_progress(), model.asking() as predictor:
            found = {
                one.label: evaluate_whole_texts(model.task, predictor, one)
                for one in announced(asked, "protocols", len(asked))
            }
    else:
        with shown_progress():
            found = {
                one.label: model.evaluate(
                    options.num,
                    options.data,
                    decoder,
                    by,
                    one.protocol,
                    one.passes or None,
                    details=not place,
                    losses=keep,
                )
                for place, one in enumerate(announced(asked, "protocols", len(asked)))
            } or {"": model.evaluate(options.num, options.data, decoder, by, losses=keep)}
    evaluation = next(iter(found.values()))
    data = Path(options.data).resolve() if options.data else None
    name = report_name(options, by, how)
    if how and not evaluation.samples:
        say("no example has a prompt: the decoder has no part in these figures", file=sys.stderr)
    for note in model.task.notes:
        if not data or note not in own_notes:  # notes on the run's own data do not concern a file
            say(note, file=sys.stderr)
    code = _show(model, evaluation, name, options, data, found if asked else {}, by, how)
    for one in losses:  # after the report, which a full disk must not take along
        assert losses_file is not None
        with replacing(losses_file) as file:
            for record in token_losses(model.task, *one):
                file.write((printable(record, indent=None) + "\n").encode())
    return code


def report_name(options: argparse.Namespace, by: tuple[str, str] | None, how: Mapping[str, Any]) -> str:
    """Of the run's report on what `options_of` returns, with `how` of `decoder_of`.

    `compare` reads "evaluation", which must mean the same for every run; other evaluations get other names."""
    data = Path(options.data).resolve() if options.data else None
    deviations = ["comprehensive"] if options.comprehensive else []
    deviations += [] if options.checkpoint == "best" else [f"checkpoint-{options.checkpoint}"]
    deviations += [] if options.num is None else [f"first-{options.num}"]
    deviations += [] if options.protocol in (None, "all") else [f"protocol-{options.protocol}"]
    deviations += [] if options.warmup in (None, 1) else [f"warmup-{options.warmup}"]
    deviations += ["-".join(["decoder", *_words(how)]).replace(" ", "-")] if how else []
    whole = evaluation_of(data) if data else evaluation_on(*by) if by else "evaluation"
    return "-".join([whole, *([named("-".join(deviations))] if deviations else [])])


def decoder_of(options: argparse.Namespace) -> tuple[Decoder, dict[str, Any]]:
    """The decoder that the options name; and if it is not greedy its name, and its fields that differ from their
    defaults. Raises `ValueError` for unknown names, fields and values."""
    from statewise.model.building import make_decoder

    decoder = make_decoder(options.decoder, **options.fields)
    if options.decoder == GREEDY:
        return decoder, {}
    chosen = {
        field.name: getattr(decoder.config, field.name)
        for field in dataclasses.fields(decoder.config)
        if getattr(decoder.config, field.name) != field.default
    }
    return decoder, {"name": options.decoder, **chosen}


def _words(how: Mapping[str, Any]) -> list[str]:
    """The decoder's name, then each field with its value."""
    return [how["name"], *(f"{key} {'null' if how[key] is None else how[key]}" for key in how if key != "name")]


def check_decoded(how: Mapping[str, Any], name: str, task: Task) -> None:
    """Raises `ValueError` for another decoder than greedy, `how` (see `decoder_of`), if the task `name` decodes no
    answers."""
    if how and not task.decoded:
        raise ValueError(f"task {name} is scored without decoding, so a decoder changes nothing: omit --decoder")


def options_of(words: Sequence[str], task: str | None = None) -> tuple[argparse.Namespace, tuple[str, str] | None]:
    """The options of the command's `words`, and the other held-out set that they ask for; `task`: the run's, if it is
    not there yet. Raises `ValueError` for unknown options and for such as do not go together."""
    parser = Parser("evaluate", DESCRIPTION)
    parser.add_run()
    parser.add_argument("--num", type=at_least(1), help="examples to evaluate (default: all held out)")
    parser.add_argument("--data", metavar="FILE", help="a file or corpus to evaluate on instead")
    parser.add_argument("--fills", metavar="FILE", help="score what `statewise fill` wrote, by likelihood under RUN")
    parser.add_argument(
        "--protocol",
        choices=[*PROTOCOLS, "all"],
        help="origin of each chunk's state, for models that carry one (default: all, one line each)",
    )
    parser.add_argument(
        "--warmup",
        type=at_least(1),
        metavar="N",
        help="with same-chunk: passes over a chunk before it is scored (default: 1)",
    )
    parser.add_argument(
        "--comprehensive",
        action="store_true",
        help="read whole held-out documents (models with a carried state, task text)",
    )
    parser.add_argument(
        "--decoder",
        default=GREEDY,
        metavar="NAME",
        help="decoder of answers, with its fields: --decoder beam --beams 8 (default: greedy; `statewise generate "
        "--help` lists them)",
    )
    parser.add_argument("--losses", metavar="OUT.jsonl", help="also write the nats of every token to this file")
    parser.add_overwrite("replace the file of --losses")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    others = _other_held_out(words, task)
    for option, sets in others.items():
        parser.add_argument(f"--{option}", dest=option, metavar="SET", help=f"evaluate another held-out set: {sets}")
    options, fields = parser.split(words)
    if options.decoder == GREEDY:
        options = parser.parse_args(words)  # whatever is left over is unknown, and is told with its near misses
    options.fields = pairs(fields)

    by = [(option, _in_order(value)) for option in others if (value := getattr(options, option)) is not None]
    if options.fills and (options.data or options.num is not None or by):
        raise ValueError("--fills scores the whole file: omit --data, --num and other sets")
    ignored = [f"--{name}" for name in ("protocol", "warmup", "comprehensive") if getattr(options, name)]
    if options.fills and ignored:
        raise ValueError(f"--fills scores what was filled in, without chunks or documents: omit {ignored[0]}")
    if options.decoder != GREEDY and (options.fills or options.comprehensive):
        raise ValueError(f"--{'fills' if options.fills else 'comprehensive'} decodes nothing: omit --decoder")
    for what in ("fills", "comprehensive") if options.losses else ():
        if getattr(options, what):
            raise ValueError(f"--losses are those of an evaluation on examples: omit --{what}")
    if options.losses and options.protocol == "same-chunk":
        raise ValueError("same-chunk sees its own targets, so that it gives no likelihood: omit --losses")
    if options.overwrite and not options.losses:
        raise ValueError("--overwrite is for the file of --losses: reports replace reports of the same name")
    if len(by) > 1:
        raise ValueError(f"{' and '.join(f'--{option}' for option, _ in by)} are different sets: give one")
    if options.comprehensive and (options.data or options.num is not None or by):
        raise ValueError("--comprehensive reads all held-out documents: omit --data, --num and other sets")
    return options, by[0] if by else None


def _in_order(value: str) -> str:
    """Numbers, of which several choose one set whatever their order, each once and in ascending order; other values as
    they are."""
    numbers = {part.strip() for part in value.split(",")}
    if not all(number.isascii() and number.isdigit() for number in numbers):
        return value
    return ",".join(sorted(numbers, key=int))


def _asked(model: Model, options: argparse.Namespace) -> list[Asked]:
    """The protocols for a model that carries a state, the one reported as its metrics first; none for other models."""
    from statewise.decoding.predictor import Carrier, carrier

    predictor, chosen, warmup = model.predictor(), options.protocol, options.warmup
    if not isinstance(predictor, Carrier) and not options.comprehensive and chosen is None and warmup is None:
        return []
    with model.asking():
        carrier(predictor)
    return ask_each(chosen, warmup)


def _show(
    model: Model,
    evaluation: Evaluation,
    name: str,
    options: argparse.Namespace,
    data: Path | None = None,
    asked: Mapping[str, Evaluation] | None = None,
    by: tuple[str, str] | None = None,
    how: Mapping[str, Any] | None = None,
) -> int:
    """Prints the report and writes it into the run; `asked`: evaluations by protocol; `by`: the option and value of
    another held-out set; `how`: see `decoder_of`."""
    from statewise.evaluation.evaluate import report
    from statewise.reporting.tables import baselines_table, metrics_table, number, text_table

    protocols = {protocol: found.metrics for protocol, found in (asked or {}).items()}
    content, written = keep_report(model, name, report(model.task, evaluation, data, protocols, by, how))
    if options.json:
        shown = ["checkpoint", "num", "decoder", "metrics", "baselines", "protocols"]
        say(printable({key: content[key] for key in shown if content.get(key)}))
        return 0
    decoder, *fields = _words(how or {"name": GREEDY})
    decoding = f", {decoder} decoding" + f" ({', '.join(fields)})" * bool(fields) if evaluation.samples else ""
    asked_how = f", {next(iter(protocols))}" if len(protocols) == 1 else ""
    asked_how = ", whole documents" * options.comprehensive + asked_how
    say(f"{options.run}, step {content['checkpoint']}, {evaluation.num} examples{decoding}{asked_how}")
    if not seeing_targets(protocols) or len(protocols) > 1:
        say(verdict(model.task, evaluation, own=data is None and by is None))
    if len(protocols) < 2:
        say(metrics_table(evaluation.metrics))
    else:
        leaks = seeing_targets(protocols)
        header = ["metric", *(f"{name} *" if name in leaks else name for name in protocols)]
        rows = [[metric, *(number(found[metric]) for found in protocols.values())] for metric in evaluation.metrics]
        say(text_table(header, rows))
    if evaluation.baselines:
        say(f"\n{baselines_table(evaluation.baselines, evaluation.metrics)}")
    if by and "," in by[1]:
        say(f"metrics without a {by[0]} in their names are over all of {by[1]} together")
    if seeing_targets(protocols):
        mark = "* " if len(protocols) > 1 else ""
        say(f"{mark}same-chunk sees its own targets: no likelihood, comparable with nothing else")
    if written:
        say(f"wrote {written}")
    return 0


def verdict(task: Task, evaluation: Evaluation, *, own: bool) -> str:
    """The headline metric in one sentence, with what it is compared with: the value from which the task is solved,
    chance if the examples are the task's `own`, and baselines."""
    from statewise.reporting.tables import number

    headline, metrics = task.headline, evaluation.metrics
    value = metrics.get(headline.metric)
    if value is None:
        return f"These examples do not give {headline.metric}, by which the task ranks runs."
    compared = []
    if own and headline.metric in task.chance:
        compared.append(f"chance is {number(task.chance[headline.metric])}")
    for name, of_baseline in evaluation.baselines.items():
        if headline.metric in of_baseline:
            compared.append(f"{name} has {number(of_baseline[headline.metric])}")
    if headline.solved_at is not None:
        solved = "solved" if headline.solved(value) else "not solved"
        bound = "from" if headline.higher_is_better else "up to"
        compared.append(f"the task is {solved} ({bound} {headline.solved_at:g})")
    return f"{headline.metric} is {number(value)}{': ' * bool(compared)}{', '.join(compared)}."


def _other_held_out(words: Sequence[str], task: str | None) -> dict[str, str]:
    """Options that select another held-out set of a task, with their values and tasks in words.

    They come from all our tasks, from `task` and from those of the runs named in `words`, which may be of other
    packages. Known before a model is loaded, so that a mistyped option is refused with its near misses.
    """
    tasks = {name: TASKS[name] for name in [*TASKS, *([task] if task else [])]}
    for word in words:
        with suppress(OSError, ValueError, KeyError):  # reported when the run is loaded
            name = Run.open(Path(word)).recipe()["task"]["name"]
            tasks[name] = TASKS[name]
    found: dict[str, list[str]] = {}
    for name, kind in tasks.items():
        for option, values in kind.other_held_out.items():
            found.setdefault(option, []).append(f"{' or '.join(values)} (task {name})")
    return {option: ", ".join(sets) for option, sets in found.items()}


def _referee(model: Model, path: Path, options: argparse.Namespace) -> int:
    """Prints and reports the likelihood of the sequences in a file that `fill` wrote."""
    from statewise.cli.fill import read
    from statewise.data_types import LacksPower
    from statewise.evaluation.infilling import referee
    from statewise.reporting.tables import metrics_table
    from statewise.tasks.base import RunningText

    found = read(path)
    with shown_progress(), model.asking() as predictor:
        if not isinstance(model.task, RunningText):
            raise LacksPower("a referee needs a task of text under a tokenizer", RunningText)
        refereed = referee(predictor, model.task, found)
    name = report_of("fills", path.resolve()) + (
        "" if options.checkpoint == "best" else f"-checkpoint-{options.checkpoint}"
    )
    left_out = [place + 1 for place in refereed.left_out]
    num = len(found) - len(left_out)
    facts = {"file": str(path.resolve()), "num": num, "left_out": left_out, "metrics": refereed.metrics}
    content, written = keep_report(model, name, facts)
    if options.json:
        say(printable(content))
    else:
        say(f"{path}, {num} sequence{'s' * (num != 1)}, scored by {options.run}, step {content['checkpoint']}")
        if left_out:
            named = ", ".join(map(str, left_out[:SHOWN])) + ", ..." * (len(left_out) > SHOWN)
            say(f"left out: {len(left_out)} of {len(found)} sequences, too long for the referee ({named})")
        say(metrics_table(refereed.metrics))
        if written:
            say(f"wrote {written}")
    return 0
