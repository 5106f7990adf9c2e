"""Recipes: what a run is made of, as frozen dataclasses, and the one place where they are parsed.

A recipe names a task, a backbone and an objective and sets their fields; fields come from a YAML file and
from dotted flags. Names are read first, since they decide which fields exist. An unknown name or key is
answered with the choices and the near misses.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

KINDS = ("task", "backbone", "objective")
"""The parts of a recipe that are chosen by name from a table."""


TWO_UNITS = {"trainer.steps": "trainer.tokens", "trainer.warmup_steps": "trainer.warmup_tokens"}
"""Lengths that can be said in steps or in tokens; the second is used where it is set."""


def token_count(given: int | str) -> int:
    """A number of tokens as a person writes it: 1000, 1_000, 300k, 50M, 2B, 1.5T. Raises `ValueError` for others."""
    found = re.fullmatch(r"(-?[\d_]*\.?\d+) *([kMBT]?)", str(given).strip())
    if not found:
        raise ValueError(f"expected a number of tokens such as 300k, 50M or 2B, not {given!r}")
    count = Decimal(found[1]) * {"": 1, "k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}[found[2]]
    if count != int(count):
        raise ValueError(f"expected a whole number of tokens, not {given!r}")
    return int(count)


@dataclass(frozen=True)
class TrainerConfig:
    """How a model is trained; the fields of `trainer`."""

    steps: int = 1000
    """Optimiser steps; not used where `tokens` is set."""
    tokens: int | str | None = None
    """Tokens to train on, such as 300k, 50M or 2B; null: `steps` says how long. Every row counts as the task's longest
    sequence, so steps are these tokens over `batch_size` such rows, rounded up."""
    batch_size: int = 128
    """Sequences a step, over all processes and accumulated batches."""
    accumulate: int = 1
    """Parts into which a step's batch is cut, to save memory; the result is the same."""
    learning_rate: float = 1e-3
    """Peak learning rate of AdamW."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's averaging factors."""
    weight_decay: float = 0.1
    """AdamW's weight decay, on matrices alone: not on norms, biases and other vectors."""
    schedule: Literal["linear", "cosine"] = "linear"
    """After the warm-up: constant, then linear decay over the last `decay_share` of steps; or one cosine."""
    warmup_steps: int = 100
    """Steps of linear warm-up; not used where `warmup_tokens` is set."""
    warmup_tokens: int | str | None = None
    """The same in tokens, counted as in `tokens`; null: `warmup_steps` says how long."""
    decay_share: float = 0.0
    """Share of all steps over which `linear` decays at the end; 0 keeps the rate constant. With a warm-up this is
    warm-up, stable, decay (WSD), whether in steps or in tokens."""
    final_rate: float = 0.0
    """Where the decay ends, as a share of the peak."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 leaves it alone."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """bf16: mixed precision. auto: bf16 where the processor or GPU is fast at it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU if there is one."""
    devices: int = 1
    """Processes, one a device; losses are those of one process at the same batch size."""
    threads: int | None = None
    """Processor threads; null: what PyTorch chooses."""
    compile: bool = False
    """Whether to compile the model. Pays for long runs on a GPU."""
    log_every: int = 50
    """Steps between lines of training metrics."""
    evaluate_every: int = 500
    """Steps between evaluations; 0: only at the end."""
    evaluate_num: int = 1000
    """Held-out examples of an evaluation while training."""
    report_num: int | None = None
    """Held-out examples of the report on the best checkpoint at the end; null: all."""
    checkpoint_every: int = 500
    """Steps between checkpoints. The newest two, the best and the last are kept."""
    keep_every: int = 0
    """Steps between checkpoints that are kept for good; 0: none."""
    stop_when_solved: bool = False
    """Whether to stop once two evaluations in a row solve the task: one alone may be luck."""
    tensorboard: bool = False
    """Whether to log to TensorBoard too (extra `track`)."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "accumulate", "devices", "log_every", "evaluate_num", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"trainer.{name} must be at least 1, not {getattr(self, name)}")
        if self.report_num is not None and self.report_num < 1:
            raise ValueError(f"trainer.report_num must be at least 1, or null for all, not {self.report_num}")
        for name in ("warmup_steps", "evaluate_every", "keep_every", "clip", "weight_decay"):
            if getattr(self, name) < 0:
                raise ValueError(f"trainer.{name} must not be negative")
        for name in ("tokens", "warmup_tokens"):
            given = getattr(self, name)
            if given is not None:
                try:
                    enough = token_count(given) >= (name == "tokens")
                except ValueError as error:
                    raise ValueError(f"trainer.{name}: {error}") from None
                if not enough:
                    raise ValueError(f"trainer.{name} must be at least {int(name == 'tokens')}, not {given}")
        if not self.learning_rate > 0:
            raise ValueError(f"trainer.learning_rate must be positive, not {self.learning_rate}")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"trainer.threads must be at least 1, not {self.threads}")
        for name in ("decay_share", "final_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"trainer.{name} must lie between 0 and 1, not {getattr(self, name)}")
        if self.batch_size % (self.accumulate * self.devices):
            raise ValueError(
                f"trainer.batch_size {self.batch_size} cannot be cut into {self.accumulate} parts "
                f"for {self.devices} processes: choose a multiple of {self.accumulate * self.devices}"
            )


@dataclass(frozen=True)
class Component:
    """A part chosen by name, with its fields."""

    name: str
    config: Any
    """A frozen dataclass of the named class."""


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a run."""

    task: Component
    backbone: Component
    objective: Component
    trainer: TrainerConfig
    seed: int

    def as_dict(self) -> dict[str, Any]:
        """Plain data; `parse` takes it back."""
        parts: dict[str, Any] = {
            kind: {"name": getattr(self, kind).name, **dataclasses.asdict(getattr(self, kind).config)} for kind in KINDS
        }
        trainer = dataclasses.asdict(self.trainer)
        trainer["betas"] = list(trainer["betas"])
        return {**parts, "trainer": trainer, "seed": self.seed}


class Table(Mapping[str, type]):
    """Names to classes, imported when asked for, so that listing them costs nothing.

    Rows are `name: ("module:Class", "what it is, in a line")`.
    """

    def __init__(self, kind: str, rows: dict[str, tuple[str, str]]) -> None:
        self.kind, self.rows = kind, rows

    def __getitem__(self, name: str) -> type:
        if name not in self.rows:
            raise ValueError(unknown(self.kind, name, self.rows))
        module, _, attribute = self.rows[name][0].partition(":")
        found: type = getattr(importlib.import_module(module), attribute)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def describe(self, name: str) -> str:
        """The line about `name`."""
        return self.rows[name][1]


def unknown(kind: str, name: str, choices: Sequence[str] | Mapping[str, Any]) -> str:
    """What to say of a name that does not exist."""
    near = difflib.get_close_matches(name, list(choices), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"unknown {kind} {name!r}: {hint}choices: {', '.join(choices)}"


def parse(
    base: Mapping[str, Any], flags: Sequence[str], tables: Mapping[str, Mapping[str, type]], source: str = "recipe"
) -> Recipe:
    """The recipe of `base` (as read from YAML) with `flags` (`--trainer.steps=100`, `--objective=NAME`) over it.

    `tables` maps each of `KINDS` to its table; `source` says in errors where `base` came from. Raises
    `ValueError` for unknown names and keys and for values that do not fit.
    """
    from jsonargparse import ArgumentError, ArgumentParser

    chosen = _chosen(base, flags, source)
    flags = [flag for flag in flags if flag.partition("=")[0] not in {f"--{kind}" for kind in KINDS}]
    fields = _in_one_unit(_flat(base, chosen, source), flags)

    parser = ArgumentParser(exit_on_error=False)
    configs: dict[str, type] = {}
    for kind in KINDS:
        configs[kind] = tables[kind][chosen[kind]].Config  # type: ignore[attr-defined]
    configs["trainer"] = TrainerConfig
    known = ["seed"]
    for group, config in configs.items():
        parser.add_class_arguments(config, group)
        known += [f"{group}.{field.name}" for field in dataclasses.fields(config)]
    parser.add_argument("--seed", type=int, default=1)
    for key in fields:
        if key not in known:
            raise ValueError(f"{source}: {_unknown_key(key, known, flag=False)}")
    for flag in flags:
        key = flag.partition("=")[0].removeprefix("--")
        if not flag.startswith("--"):
            raise ValueError(f"unexpected argument {flag!r}")
        if key not in known:
            raise ValueError(_unknown_key(key, known, flag=True))
        if "=" not in flag:
            raise ValueError(f"option {flag} needs a value")
    from_base = [f"--{key}={_as_flag(value)}" for key, value in fields.items()]
    try:
        parsed = parser.parse_args([*from_base, *flags])
        built = parser.instantiate_classes(parsed)
    except ArgumentError as error:
        raise ValueError(_plain(str(error))) from None
    if built["seed"] < 0:
        raise ValueError(f"seed must not be negative, not {built['seed']}")
    return Recipe(
        **{
            kind: Component(chosen[kind], built[kind] if len(dataclasses.fields(configs[kind])) else configs[kind]())
            for kind in KINDS
        },
        trainer=built["trainer"],
        seed=built["seed"],
    )


def read_yaml(text: str, source: str) -> dict[str, Any]:
    """The keys of YAML `text`. Raises `ValueError` with the line if it is not YAML, or holds no keys."""
    import yaml

    try:
        found = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}:{mark.line + 1}" if mark else source
        raise ValueError(f"{where}: not YAML: {getattr(error, 'problem', error)}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{source}: a recipe must hold keys, not {type(found).__name__}")
    return found


def fill(config: type, fields: Mapping[str, Any], what: str) -> Any:
    """An instance of the dataclass `config` with `fields`. Raises `ValueError` for unknown ones and wrong values."""
    from jsonargparse import ArgumentError, ArgumentParser

    known = [field.name for field in dataclasses.fields(config)]
    for field in fields:
        if field not in known:
            choices = f": {unknown('field', field, known)}" if known else f" has no field {field!r}: it has none"
            raise ValueError(f"{what}{choices}")
    if not known:
        return config()
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(config, "it")
    try:
        return parser.instantiate_classes(parser.parse_args([f"--it.{k}={_as_flag(v)}" for k, v in fields.items()])).it
    except ArgumentError as error:
        raise ValueError(f"{what}: {_plain(str(error)).removeprefix('it.')}") from None


def field_help(
    base: Mapping[str, Any], flags: Sequence[str], tables: Mapping[str, Mapping[str, type]], source: str = "recipe"
) -> str:
    """A line or two a field, with the recipe's value and what the field's class says of it."""
    recipe = parse(base, flags, tables, source)
    lines = []
    for group in (*KINDS, "trainer"):
        part = getattr(recipe, group)
        config = part.config if isinstance(part, Component) else part
        lines.append(f"\n{group}" + (f": {part.name}" if isinstance(part, Component) else ""))
        lines += fields_of(config, f"{group}.")
    return "\n".join([*lines, f"\n  --seed {recipe.seed}\n        Decides initial weights and the order of data."])


def fields_of(config: Any, prefix: str = "") -> list[str]:
    """Of each field of a dataclass instance the flag, its value, and what the class says of it."""
    import docstring_parser

    texts: dict[str, str] = {}
    for parent in filter(dataclasses.is_dataclass, reversed(type(config).__mro__)):
        found = docstring_parser.parse_from_object(parent)
        texts |= {param.arg_name: param.description or "" for param in found.params}
    return [
        f"  --{prefix}{field.name} {_as_flag(getattr(config, field.name))}\n"
        f"        {' '.join(texts.get(field.name, '').split())}"
        for field in dataclasses.fields(config)
    ]


def _chosen(base: Mapping[str, Any], flags: Sequence[str], source: str) -> dict[str, str]:
    chosen = {}
    for kind in KINDS:
        given = base.get(kind)
        name = given.get("name") if isinstance(given, Mapping) else given
        for flag in flags:
            if flag.partition("=")[0] == f"--{kind}":
                name = flag.partition("=")[2]
        if not name:
            raise ValueError(f"{source}: no {kind} is named: set {kind}.name or give --{kind}")
        chosen[kind] = str(name)
    return chosen


def _flat(base: Mapping[str, Any], chosen: Mapping[str, str], source: str) -> dict[str, Any]:
    """Dotted keys of `base` without the names; the fields of a part that a flag replaced go with its name."""
    flat: dict[str, Any] = {}
    for group, value in base.items():
        if group not in (*KINDS, "trainer"):
            flat[group] = value
        elif isinstance(value, Mapping):
            if group == "trainer" or value.get("name", chosen[group]) == chosen[group]:
                flat |= {f"{group}.{key}": item for key, item in value.items() if (group, key) != (group, "name")}
        elif group == "trainer" and value is not None:
            raise ValueError(f"{source}: trainer must hold keys, not {value!r}")
    return flat


def _in_one_unit(fields: dict[str, Any], flags: Sequence[str]) -> dict[str, Any]:
    """`fields` without those tokens in whose place a flag gives steps. Raises `ValueError` for flags that give both."""
    given = {flag.partition("=")[0].removeprefix("--"): flag.partition("=")[2] for flag in flags}
    for steps, tokens in TWO_UNITS.items():
        if steps in given and tokens not in given:
            fields = {key: value for key, value in fields.items() if key != tokens}
        elif steps in given and given[tokens] not in ("null", "None", ""):
            raise ValueError(f"give --{steps} or --{tokens}, not both: they say the same length in two units")
    return fields


def _as_flag(value: Any) -> str:
    import yaml

    if isinstance(value, str):
        return value
    value = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(value, default_flow_style=True, width=2**30).removesuffix("...\n").strip()


def _unknown_key(key: str, known: Sequence[str], flag: bool) -> str:
    """As `unknown`, with the choices of the key's own group if it names one."""
    group = key.partition(".")[0] + "."
    mates = [name for name in known if name.startswith(group)] or [*KINDS, "trainer", "seed"]
    dashes = "--" if flag else ""
    return unknown("option" if flag else "key", dashes + key, [dashes + name for name in mates])


def _plain(message: str) -> str:
    """A parser's message in the user's words: `task.length: expected int, not 'x'`."""
    message = " ".join(message.split())
    found = re.match(r'Parser key "(.+?)": Expected an? (.+?)\. Got value: (.*)', message)
    if not found:
        return message
    kind = re.sub(r"<class '(\w+)'>", r"\1", found[2]).replace("typing.Literal", "one of ")
    return f"{found[1]}: expected {kind}, not {found[3]!r}"
