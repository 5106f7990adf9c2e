"""Recipes, the complete configuration of a run, as frozen dataclasses, and their only parser.

A recipe names a task, a backbone and an objective and sets their fields; fields come from a YAML file and
from dotted flags. Names are read first, since they determine which fields exist. Errors about an unknown name or
key list the choices and close matches.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from statewise.config.field_help import Declared, declared_fields
from statewise.config.trainer import TWO_UNITS, TrainerConfig
from statewise.runtime.bounds import LARGEST
from statewise.runtime.messages import cut, cut_words, series, short, suggestion, without_advice

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser, Namespace

KINDS = ("task", "backbone", "objective")
"""The parts of a recipe that are chosen by name from a table."""


class Choices(Protocol):
    """Classes by name, each with the dataclass `Config` of its fields, such as `registry.Table`."""

    def __getitem__(self, name: str) -> Any:
        """Raises `ValueError` for an unknown name."""


@dataclass(frozen=True)
class Component:
    """A part chosen by name, with its fields."""

    name: str
    config: Any
    """A frozen dataclass of the named class."""


@dataclass(frozen=True)
class Recipe:
    """Everything that determines a run."""

    task: Component
    backbone: Component
    objective: Component
    trainer: TrainerConfig
    seed: int

    def as_dict(self) -> dict[str, Any]:
        """Plain data, which `parse` reads back."""
        parts: dict[str, Any] = {
            kind: {"name": getattr(self, kind).name, **dataclasses.asdict(getattr(self, kind).config)} for kind in KINDS
        }
        trainer = dataclasses.asdict(self.trainer)
        trainer["betas"] = list(trainer["betas"])
        return {**parts, "trainer": trainer, "seed": self.seed}


def unknown(kind: str, name: str, choices: Sequence[str] | Mapping[str, Any]) -> str:
    """The message for an unknown name."""
    return f"unknown {kind} {cut(repr(name))}: {suggestion(name, choices)}choices: {', '.join(choices)}"


def parse(
    base: Mapping[str, Any], flags: Sequence[str], tables: Mapping[str, Choices], source: str = "recipe"
) -> Recipe:
    """The recipe of `base` (as read from YAML), overridden by `flags` (`--trainer.steps=100`, `--objective=NAME`).

    `tables` maps each of `KINDS` to its table; `source` names the origin of `base` in errors. Raises `ValueError` for
    unknown names and keys and for invalid values.
    """
    from jsonargparse import ArgumentError

    chosen = _chosen(base, flags, source)
    configs: dict[str, type] = {}
    for kind in KINDS:
        try:
            configs[kind] = tables[kind][chosen[kind]].Config
        except ValueError as error:
            by_flag = any(flag.partition("=")[0] == f"--{kind}" for flag in flags)
            raise ValueError(str(error) if by_flag else f"{source}: {error}") from None
    configs["trainer"] = TrainerConfig
    known = ["seed", *(f"{group}.{name}" for group, config in configs.items() for name in field_names(config))]
    fields, flags = _given(base, flags, chosen, known, source)
    given: dict[str, list[str]] = {group: [] for group in (*configs, "seed")}
    for option in (*(f"--{key}={_as_flag(value)}" for key, value in fields.items()), *flags):
        given[option.removeprefix("--").partition("=")[0].partition(".")[0]].append(option)
    built: dict[str, Any] = {}
    try:
        parsers = {group: _parser(group, configs.get(group)) for group in given}
        parsed = {group: _parsed(parsers[group], options) for group, options in given.items()}
        for group, values in parsed.items():
            built |= parsers[group].instantiate_classes(values).as_dict()
    except (ArgumentError, ValueError, OverflowError) as error:
        message = _plain(str(error)) if isinstance(error, ArgumentError) else str(error)
        if isinstance(error, OverflowError):
            message = _too_large([option for options in given.values() for option in options])
        by_flag = any(flag.partition("=")[0].rpartition(".")[2].removeprefix("--") in message for flag in flags)
        raise ValueError(message if by_flag else f"{source}: {message}") from None
    if not 0 <= built["seed"] < LARGEST:
        where = "" if any(flag.partition("=")[0] == "--seed" for flag in flags) else f"{source}: "
        raise ValueError(f"{where}seed must be at least 0 and less than {LARGEST:,}, not {short(built['seed'])}")
    return Recipe(
        **{
            kind: Component(chosen[kind], built[kind] if len(dataclasses.fields(configs[kind])) else configs[kind]())
            for kind in KINDS
        },
        trainer=built["trainer"],
        seed=built["seed"],
    )


@lru_cache(maxsize=64)  # to make one takes longer than to use it, and sweeps read hundreds of recipes
def _parser(group: str, config: type | None) -> ArgumentParser:
    """A parser of the fields of one group, or of the seed. Its time grows faster than the number of its fields, so each
    group has its own."""
    parser = _new_parser()
    if config is None:
        parser.add_argument(f"--{group}", type=int, default=1)
    else:
        parser.add_class_arguments(config, group)
    return parser


def _new_parser() -> ArgumentParser:
    """A parser of values as YAML, except that only `null` is null: YAML would also read `#` and `~` so."""
    import yaml
    from jsonargparse import ArgumentParser, get_loader, set_loader

    as_yaml = get_loader("yaml")

    def load(text: str) -> Any:
        content = as_yaml(text)
        return text if content is None and text.strip() not in ("null", "") else content

    set_loader("statewise", load, exceptions=(yaml.YAMLError,))
    return ArgumentParser(exit_on_error=False, parser_mode="statewise")


def _parsed(parser: ArgumentParser, flags: Sequence[str]) -> Namespace:
    """The values of `flags`, each of which is `--key=value`. Raises `ArgumentError`, also for numbers to the base of
    60, which YAML has: `1:30` would be 90."""
    from jsonargparse import ArgumentError

    parsed = parser.parse_args(list(flags))
    for flag in flags:
        key, _, value = flag.removeprefix("--").partition("=")
        if ":" in value and isinstance(number := parsed[key], (int, float)):
            raise ArgumentError(None, f'Parser key "{key}": Expected a {type(number)}. Got value: {value}')
    return parsed


def as_flags(fields: Mapping[str, Any], besides: Sequence[str] = ()) -> list[str]:
    """Keywords as dotted flags, `--key=value`.

    A key is a part (`objective="next_latent"`, or with fields `objective={"name": "next_latent", "horizon": 2}`), a
    field of the trainer (`steps=20`), the seed, or any field with a dot (`**{"backbone.width": 64}`). Raises
    `ValueError` for other keys, with close matches among all these and `besides`, and for values that are not plain
    data.
    """
    short = [field.name for field in dataclasses.fields(TrainerConfig)]
    flat: dict[str, Any] = {}
    for key, value in fields.items():
        if key in (*KINDS, "trainer") and isinstance(value, Mapping):
            for name, item in value.items():
                flat |= {key: item} if name == "name" else dict(_leaves(f"{key}.{name}", item))
        elif key in (*KINDS, "trainer", "seed") or "." in key:
            flat[key] = value
        elif key in short:
            flat[f"trainer.{key}"] = value
        else:
            raise ValueError(
                f"{unknown('keyword', key, [*KINDS, 'trainer', 'seed', *short, *besides])}; other fields go with their "
                'part, as in backbone={"width": 64}'
            )
    return [f"--{key}={_as_flag(value)}" for key, value in flat.items()]


def fill(config: type, fields: Mapping[str, Any], what: str) -> Any:
    """An instance of the dataclass `config` with `fields`. Raises `ValueError` for unknown ones and wrong values."""
    from jsonargparse import ArgumentError

    known = [field.name for field in dataclasses.fields(config)]
    for field in fields:
        if field not in known:
            choices = f": {unknown('field', field, known)}" if known else f" has no field {field!r}: it has none"
            raise ValueError(f"{what}{choices}")
    if not known:
        return config()
    parser = _parser("it", config)
    options = [f"--it.{key}={_as_flag(value)}" for key, value in fields.items()]
    try:
        return parser.instantiate_classes(_parsed(parser, options)).it
    except (ArgumentError, OverflowError) as error:
        message = _plain(str(error)) if isinstance(error, ArgumentError) else _too_large(options)
        raise ValueError(f"{what}: {message.removeprefix('it.')}") from None


def field_help(
    base: Mapping[str, Any], flags: Sequence[str], target: Callable[[str, str], str], source: str = "recipe"
) -> str:
    """A line or two per field: the recipe's value and the field's documentation. `target` gives the class
    (`"module:Class"`) of a kind and name; it is not imported. Raises `ValueError` as `parse` does for unknown names and
    keys; values are not checked."""
    chosen = _chosen(base, flags, source)
    groups = {kind: declared_fields(target(kind, chosen[kind])) for kind in KINDS}
    groups["trainer"] = declared_fields("statewise.config.trainer:TrainerConfig")
    known = ["seed", *(f"{group}.{name}" for group, fields in groups.items() for name in fields)]
    values, flags = _given(base, flags, chosen, known, source)
    values |= {flag.partition("=")[0].removeprefix("--"): flag.partition("=")[2] for flag in flags}
    lines = []
    for group, fields in groups.items():
        lines.append(f"\n{group}" + (f": {chosen[group]}" if group in chosen else ""))
        lines += lines_of(fields, f"{group}.", values)
    seed = f"  --seed {values.get('seed', 1)}\n        Seed of the initial weights and of the order of data."
    return "\n".join([*lines, "", seed])


def lines_of(fields: Mapping[str, Declared], prefix: str = "", values: Mapping[str, Any] | None = None) -> list[str]:
    """For each field its flag with its value or default, and its documentation, wrapped to the terminal's width."""
    room, indent = shutil.get_terminal_size((80, 24)).columns, " " * 8
    return [
        f"  --{prefix}{name} {_as_flag((values or {}).get(prefix + name, field.default))}\n"
        + textwrap.fill(
            _with_choices(field),
            room,
            initial_indent=indent,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for name, field in fields.items()
    ]


def _with_choices(field: Declared) -> str:
    """A field's documentation, and its possible words, unless it names them all."""
    named = all(re.search(rf"\b{re.escape(word)}\b", field.text) for word in field.choices)
    return field.text if named else f"{field.text} One of {', '.join(field.choices)}."


def _chosen(base: Mapping[str, Any], flags: Sequence[str], source: str) -> dict[str, str]:
    chosen = {}
    for kind in KINDS:
        choice = base.get(kind)
        name = choice.get("name") if isinstance(choice, Mapping) else choice
        for flag in flags:
            if flag.partition("=")[0] == f"--{kind}":
                name = flag.partition("=")[2]
        if name and not isinstance(name, str):
            raise ValueError(f"{source}: {kind}.name must be text, not {short(name)}")
        if not name:
            raise ValueError(f"{source}: no {kind} is named: set {kind}.name or give --{kind}")
        chosen[kind] = name
    return chosen


def _given(
    base: Mapping[str, Any], flags: Sequence[str], chosen: Mapping[str, str], known: Sequence[str], source: str
) -> tuple[dict[str, Any], list[str]]:
    """The fields set by `base`, and the flags except those that choose a part. Raises `ValueError` for keys that are
    not `known`."""
    flags = [flag for flag in flags if flag.partition("=")[0] not in {f"--{kind}" for kind in KINDS}]
    flat = {name: item for key, value in _flat(base, chosen, source).items() for name, item in _leaves(key, value)}
    fields = _in_one_unit(flat, flags)
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
    return fields, flags


def field_names(config: type, prefix: str = "") -> Iterator[str]:
    """Names of the fields of a dataclass, dotted where the value is a dataclass again."""
    for field in dataclasses.fields(config):
        if dataclasses.is_dataclass(field.default):
            yield from field_names(type(field.default), f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values; no field of a part has a mapping as its value."""
    if not isinstance(value, Mapping) or "." not in key:
        yield key, value
        return
    if not value:
        yield key, value
    for name, item in value.items():
        yield from _leaves(f"{key}.{name}", item)


def _flat(base: Mapping[str, Any], chosen: Mapping[str, str], source: str) -> dict[str, Any]:
    """Dotted keys of `base` without the names; the fields of a part that a flag replaces are dropped."""
    flat: dict[str, Any] = {}
    for group, value in base.items():
        if not isinstance(group, str):
            raise ValueError(f"{source}: keys must be text, not {short(group)}: put the key in quotes")
        if group not in (*KINDS, "trainer"):
            flat[group] = value
        elif isinstance(value, Mapping):
            if group == "trainer" or value.get("name", chosen[group]) == chosen[group]:
                flat |= {f"{group}.{key}": item for key, item in value.items() if (group, key) != (group, "name")}
        elif group == "trainer" and value is not None:
            raise ValueError(f"{source}: trainer must be keys with values, not {short(value)}")
    return flat


def _in_one_unit(fields: dict[str, Any], flags: Sequence[str]) -> dict[str, Any]:
    """`fields` without lengths in tokens that a flag replaces by steps. Raises `ValueError` if flags give both."""
    value_of = {flag.partition("=")[0].removeprefix("--"): flag.partition("=")[2] for flag in flags}
    for steps, tokens in TWO_UNITS.items():
        if steps in value_of and tokens not in value_of:
            fields = {key: value for key, value in fields.items() if key != tokens}
        elif steps in value_of and value_of[tokens] not in ("null", "None", ""):
            raise ValueError(f"give --{steps} or --{tokens}, not both: they are the same length in two units")
    return fields


def _as_flag(value: Any) -> str:
    import yaml

    if isinstance(value, (str, os.PathLike)):
        return str(value)
    value = list(value) if isinstance(value, tuple) else value
    try:
        return yaml.safe_dump(value, default_flow_style=True, width=2**30).removesuffix("...\n").strip()
    except (yaml.YAMLError, ValueError):
        raise ValueError(f"{short(value)} is not plain data, so a recipe cannot hold it") from None


def _unknown_key(key: str, known: Sequence[str], flag: bool) -> str:
    """The message of `unknown` for a key, with the choices of the key's group if it has one."""
    group, dot, _ = key.partition(".")
    mates = [name for name in known if name.startswith(f"{group}.")]
    dashes = "--" if flag else ""
    if dot and group in KINDS and not mates:
        return f"unknown {'option' if flag else 'key'} {cut(repr(dashes + key))}: the chosen {group} has no fields"
    if not dot and (meant := [dashes + name for name in known if name.endswith(f".{key}")]):
        what = "option" if flag else "key"
        return f"unknown {what} {cut(repr(dashes + key))}: did you mean {series(meant[:3], 'or')}?"
    mates = mates or [*KINDS, "trainer", "seed"]
    return unknown("option" if flag else "key", dashes + key, [dashes + name for name in mates])


def _too_large(flags: Sequence[str]) -> str:
    """The message for a number that is too large: the longest one, since the parser does not say which."""
    key, _, value = max(flags, key=len).removeprefix("--").partition("=")
    return f"{key}: {cut(value)} is too large"


def _plain(message: str) -> str:
    """Simplifies a parser's message: `task.length: expected a whole number, not 'x'`."""
    message = " ".join(message.split())
    match = re.match(r'Parser key "(.+?)": Expected an? (.+?)\. Got value:(.*)', message)
    if match:
        return f"{match[1]}: expected {_type(match[2])}, not {cut(repr(match[3].strip()))}"
    match = re.match(
        r'Parser key "(.+?)": Does not validate .*? Subtypes: \[(.+?)\] Errors: .* Given value:(.*)', message
    )
    if match:
        kinds = " or ".join(map(_type, match[2].split(", ")))
        return f"{match[1]}: expected {kinds}, not {cut(repr(match[3].strip()))}"
    key, quote, problem = message.removeprefix('Parser key "').partition('": ')
    return cut_words(f"{key}: {without_advice(ValueError(problem))}" if quote else message)


def _type(name: str) -> str:
    """A parser's type in words."""
    name = re.sub(r"<class '(\w+)'>", r"\1", name).replace("typing.Literal", "one of ")
    name = re.sub(r"tuple with (\d+) elements", r"a list of \1 values", name)
    words = {
        "int": "a whole number",
        "float": "a finite number",
        "bool": "true or false",
        "str": "text",
        "NoneType": "null",
    }
    return words.get(name, name)
