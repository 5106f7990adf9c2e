"""Evaluations and analyses of runs, as the words of `statewise evaluate` and `statewise analyze` request them.

The files of suites hold the same words, so they are read here and not in `cli`.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statewise.data_types import Evaluation, Examples
from statewise.decoding.carried_state import PROTOCOLS, StateReading, seeing_targets, state_readings
from statewise.reporting.tables import number
from statewise.run import Run, check_checkpoint, evaluation_of, evaluation_on, named, report_of
from statewise.runtime.arguments import Parser, at_least, pairs
from statewise.runtime.messages import LacksCapability
from statewise.runtime.progress import announced
from statewise.tasks import TASKS

if TYPE_CHECKING:
    import numpy as np

    from statewise.analysis.base import Analysis
    from statewise.decoding.base import Decoder
    from statewise.evaluation.evaluate import Losses
    from statewise.evaluation.verdict import Verdict
    from statewise.model.model import Model
    from statewise.objectives.base import Objective
    from statewise.tasks.base import Task

GREEDY = "greedy"
"""The decoder of answers unless another is chosen."""


@dataclass(frozen=True)
class AnalysisRequest:
    """An analysis of a run, as the words of `statewise analyze` request it."""

    options: argparse.Namespace
    analysis: Analysis

    @classmethod
    def read(cls, words: Sequence[str], description: str = "") -> AnalysisRequest:
        """The request in `words`, of which the first is the run. Raises `ValueError` for unknown options, fields and
        values."""
        options, fields = cls.parser(description).split(words)
        if options.overwrite and options.out is None:
            raise ValueError(
                "--overwrite replaces files in --out, which is not given; those in the run are always renewed"
            )
        from statewise.analysis import make_analysis

        return cls(options, make_analysis(options.analysis, **pairs(fields)))

    @staticmethod
    def parser(description: str) -> Parser:
        """The parser of the command."""
        parser = Parser("analyze", description, add_help=False)
        parser.add_run()
        parser.add_argument("analysis", metavar="ANALYSIS", help="one of those above, or module:Class")
        parser.add_argument("--out", metavar="DIR", help="write report and plots here as well")
        parser.add_overwrite("replace files of the same names in --out")
        parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
        return parser

    @property
    def report_name(self) -> str:
        """Name of the report in the run."""
        from statewise.analysis.base import report_name

        return report_name(self.options.analysis, self.analysis.config) + _checkpoint_suffix(self.options.checkpoint)

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of the analysis, as its report holds them."""
        return dataclasses.asdict(self.analysis.config)

    def check(self, task: Task, task_name: str, objective: Objective) -> None:
        """Raises `ValueError` unless the analysis suits models of the objective on the task, and this machine has the
        device."""
        from statewise.model.building import check_analysis

        check_analysis(self.analysis, task, objective)
        _check_where(self.options)


@dataclass(frozen=True)
class EvaluationRequest:
    """An evaluation of a run, as the words of `statewise evaluate` request it."""

    options: argparse.Namespace
    held_out_set: tuple[str, str] | None
    """The option and the value that choose another held-out set of the task."""
    decoder: Decoder
    decoding: Mapping[str, Any]
    """Name of a decoder other than greedy, with its fields that differ from their defaults; empty for greedy."""

    @classmethod
    def read(cls, words: Sequence[str], description: str = "", task: str | None = None) -> EvaluationRequest:
        """The request in `words`, of which the first is the run; `task`: the name of the run's task, if the run does
        not exist yet. Raises `ValueError` for unknown options, fields and values, and for options that exclude each
        other."""
        sets = _other_held_out(words, task)
        options, held_out_set = _checked(cls.parser(description, sets), words, sets)
        return cls(options, held_out_set, *_decoder(options))

    @staticmethod
    def parser(description: str, sets: Mapping[str, str]) -> Parser:
        """The parser of the command; `sets`: options that choose other held-out sets, with their values in words."""
        parser = Parser("evaluate", description)
        parser.add_run()
        parser.add_argument("--num", type=at_least(1), help="examples to evaluate (default: all held out)")
        parser.add_argument("--data", metavar="FILE", help="a file or corpus to evaluate on instead")
        parser.add_argument(
            "--fills", metavar="FILE", help="score what `statewise fill` wrote, by likelihood under RUN"
        )
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
        for option, values in sets.items():
            parser.add_argument(
                f"--{option}", dest=option, metavar="SET", help=f"evaluate another held-out set: {values}"
            )
        return parser

    @property
    def data(self) -> Path | None:
        """Absolute path of the file or corpus to evaluate on, if one was chosen."""
        return Path(self.options.data).resolve() if self.options.data else None

    @property
    def report_name(self) -> str:
        """Name of the report in the run. `compare` reads `evaluation`, which must mean the same for every run; other
        evaluations get other names."""
        options = self.options
        deviations = ["comprehensive"] if options.comprehensive else []
        deviations += [] if options.checkpoint == "best" else [f"checkpoint-{options.checkpoint}"]
        deviations += [] if options.num is None else [f"first-{options.num}"]
        deviations += [] if options.protocol in (None, "all") else [f"protocol-{options.protocol}"]
        deviations += [] if options.warmup in (None, 1) else [f"warmup-{options.warmup}"]
        deviations += ["-".join(["decoder", *self.decoder_words()]).replace(" ", "-")] if self.decoding else []
        whole = "evaluation" if self.held_out_set is None else evaluation_on(*self.held_out_set)
        whole = whole if self.data is None else evaluation_of(self.data)
        return "-".join([whole, *([named("-".join(deviations))] if deviations else [])])

    def decoder_words(self) -> list[str]:
        """The decoder's name, then each of its fields that differs from its default, with the value."""
        fields = dict(self.decoding) or {"name": GREEDY}
        name = fields.pop("name")
        return [name, *(f"{key} {'null' if value is None else value}" for key, value in fields.items())]

    def check(self, task: Task, task_name: str, objective: Objective | None = None) -> None:
        """Raises `ValueError` unless the task has what is requested, and this machine the files and the device."""
        for option, file in (("--data", self.options.data), ("--fills", self.options.fills)):
            if file and not Path(file).exists():
                raise ValueError(f"{option} {file}: no such file or folder")
            if file and option == "--fills" and not Path(file).is_file():
                raise ValueError(f"{option} {file} is a folder: give a file")
        self.check_decoder(task, task_name)
        if self.held_out_set:
            task.held_out_by(*self.held_out_set, 1)
        _check_where(self.options)

    def check_decoder(self, task: Task, task_name: str) -> None:
        """Raises `ValueError` for another decoder than greedy if the task decodes no answers."""
        if self.decoding and not task.decoded:
            raise ValueError(
                f"task {task_name} is scored without decoding, so a decoder changes nothing: omit --decoder"
            )

    def protocols(self, model: Model) -> list[StateReading]:
        """The protocols for a model that carries a state, the one reported as its metrics first; none for other
        models."""
        from statewise.decoding.predictor import Carrier, require

        options, predictor = self.options, model.predictor()
        carries = predictor.capability(Carrier) is not None
        if not carries and not options.comprehensive and options.protocol is None and options.warmup is None:
            return []
        with model.asking():
            require(predictor, Carrier)
        return state_readings(options.protocol, options.warmup)

    def evaluate(self, model: Model, losses: Losses | None = None) -> dict[str, Evaluation]:
        """Evaluations of the model by the label of their protocol, the reported one first; a single one, with an empty
        label, for models that carry no state. `losses` receives the losses of all tokens, of the reported one."""
        options = self.options
        self.check_decoder(model.task, model.recipe.task.name)
        protocols = self.protocols(model)
        if options.losses and len(protocols) > 1:
            raise ValueError("--losses needs one protocol: give --protocol carried or fresh")
        if options.comprehensive:
            from statewise.evaluation.evaluate import evaluate_whole_texts

            with model.asking() as predictor:
                return {
                    one.label: evaluate_whole_texts(model.task, predictor, one)
                    for one in announced(protocols, "protocols", len(protocols))
                }
        chosen = options.num, options.data, self.decoder, self.held_out_set
        if not protocols:
            return {"": model.evaluate(*chosen, losses=losses)}
        return {
            one.label: model.evaluate(
                *chosen, one.protocol, one.passes or None, details=not place, losses=None if place else losses
            )
            for place, one in enumerate(announced(protocols, "protocols", len(protocols)))
        }

    def report(self, model: Model, evaluations: Mapping[str, Evaluation]) -> dict[str, Any]:
        """The content of the report on what `evaluate` returned."""
        from statewise.evaluation.evaluate import report

        by_protocol = {label: one.metrics for label, one in evaluations.items() if label}
        first = next(iter(evaluations.values()))
        return report(model.task, first, self.data, by_protocol, self.held_out_set, self.decoding)

    def score_fills(self, model: Model) -> tuple[str, dict[str, Any]]:
        """Name and content of the report on the likelihood, under the model, of the sequences that `statewise fill`
        wrote into the file of `--fills`. Raises `LacksCapability` if the task is not text."""
        from statewise.evaluation.infilling import read_fills, referee
        from statewise.tasks.base import RunningText

        path = Path(self.options.fills)
        fills = read_fills(path)
        with model.asking() as predictor:
            if not isinstance(model.task, RunningText):
                raise LacksCapability("a referee needs a task of text under a tokenizer", RunningText)
            refereed = referee(predictor, model.task, fills)
        name = report_of("fills", path.resolve()) + _checkpoint_suffix(self.options.checkpoint)
        left_out = [place + 1 for place in refereed.left_out]
        num = len(fills) - len(left_out)
        return name, {"file": str(path.resolve()), "num": num, "left_out": left_out, "metrics": refereed.metrics}


def _checkpoint_suffix(checkpoint: str) -> str:
    return "" if checkpoint == "best" else f"-checkpoint-{checkpoint}"


def _check_where(options: argparse.Namespace) -> None:
    from statewise.training.machine import choose_device

    check_checkpoint(options.checkpoint)
    choose_device(options.device)


def _checked(
    parser: Parser, words: Sequence[str], sets: Mapping[str, str]
) -> tuple[argparse.Namespace, tuple[str, str] | None]:
    """The options of `statewise evaluate`, and the other held-out set that they choose."""
    options, fields = parser.split(words)
    if options.decoder == GREEDY:
        options = parser.parse_args(words)  # fields of a decoder are unknown options here, refused with near misses
    options.fields = pairs(fields)
    chosen = [(option, _in_order(value)) for option in sets if (value := getattr(options, option)) is not None]
    if options.fills and (options.data or options.num is not None or chosen):
        raise ValueError("--fills scores the whole file: omit --data, --num and other sets")
    ignored = [f"--{name}" for name in ("protocol", "warmup", "comprehensive") if getattr(options, name)]
    if options.fills and ignored:
        raise ValueError(f"--fills scores what was filled in, without chunks or documents: omit {ignored[0]}")
    if options.decoder != GREEDY and (options.fills or options.comprehensive):
        raise ValueError(f"--{'fills' if options.fills else 'comprehensive'} decodes nothing: omit --decoder")
    for what in ("fills", "comprehensive") if options.losses else ():
        if getattr(options, what):
            raise ValueError(f"--losses needs an evaluation on examples: omit --{what}")
    if options.losses and options.protocol == "same-chunk":
        raise ValueError("same-chunk sees its own targets, so that it gives no likelihood: omit --losses")
    if options.overwrite and not options.losses:
        raise ValueError("--overwrite is for the file of --losses: reports replace reports of the same name")
    if len(chosen) > 1:
        raise ValueError(f"{' and '.join(f'--{option}' for option, _ in chosen)} are different sets: give one")
    if options.comprehensive and (options.data or options.num is not None or chosen):
        raise ValueError("--comprehensive reads all held-out documents: omit --data, --num and other sets")
    return options, chosen[0] if chosen else None


def _decoder(options: argparse.Namespace) -> tuple[Decoder, dict[str, Any]]:
    """`EvaluationRequest.decoder` and `EvaluationRequest.decoding`."""
    from statewise.decoding import make_decoder

    decoder = make_decoder(options.decoder, **options.fields)
    if options.decoder == GREEDY:
        return decoder, {}
    values = {field.name: getattr(decoder.config, field.name) for field in dataclasses.fields(decoder.config)}
    defaults = {field.name: field.default for field in dataclasses.fields(decoder.config)}
    changed = {name: value for name, value in values.items() if value != defaults[name]}
    return decoder, {"name": options.decoder, **changed}


def _in_order(value: str) -> str:
    """Several numbers, which choose the same set in any order: each once and in ascending order. Other values
    unchanged."""
    numbers = {part.strip() for part in value.split(",")}
    if not all(one.isascii() and one.isdigit() for one in numbers):
        return value
    return ",".join(sorted(numbers, key=int))


def _other_held_out(words: Sequence[str], task: str | None) -> dict[str, str]:
    """Options that select another held-out set of a task, with their values and tasks in words.

    They come from all our tasks, from `task`, and from the tasks of the runs in `words`, which may be those of other
    packages. The model need not be loaded, so a mistyped option is refused at once, with its near misses.
    """
    tasks = {name: TASKS[name] for name in [*TASKS, *([task] if task else [])]}
    for word in words:
        with suppress(OSError, ValueError, KeyError):  # reported when the run is loaded
            name = Run.open(Path(word)).recipe()["task"]["name"]
            tasks[name] = TASKS[name]
    values_by_option: dict[str, list[str]] = {}
    for name, kind in tasks.items():
        for option, values in kind.other_held_out.items():
            values_by_option.setdefault(option, []).append(f"{' or '.join(values)} (task {name})")
    return {option: ", ".join(sets) for option, sets in values_by_option.items()}


def learned(
    task: Task, run: Run | None, examples: Examples, nats: np.ndarray, scored: np.ndarray, protocol: str = ""
) -> Verdict | None:
    """What the model of a run (None: of none) has learned of its task's sequences; the arrays are what
    `evaluation.evaluate` passes to `losses`. None for tasks of which more is known, and for a `protocol` under which a
    model sees its own targets."""
    from statewise.evaluation.verdict import learning_curve, verdict
    from statewise.tasks.base import ComparedBySymbol

    if not isinstance(task, ComparedBySymbol) or seeing_targets([protocol]):
        return None
    records = [] if run is None else run.metrics()
    return verdict(examples, nats, scored, task.baseline_nats(examples), learning_curve(records))


def verdict(task: Task, evaluation: Evaluation, *, own: bool) -> str:
    """The headline metric in one sentence, with what it is compared with: the value from which the task is solved,
    chance if the examples are the task's `own`, and baselines."""
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
