"""statewise completion: a script that lets a shell complete commands, options and names."""

from __future__ import annotations

import argparse
import importlib
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from statewise.cli import COMMANDS
from statewise.cli.commands import in_modules
from statewise.runtime.arguments import Parser, parser_of
from statewise.runtime.messages import say

DESCRIPTION = """Prints a script with which a shell completes commands, options, and names of recipes, analyses and
other parts.

  statewise completion bash > ~/.statewise-completion
  statewise completion zsh > ~/.statewise-completion
  statewise completion fish > ~/.config/fish/completions/statewise.fish

bash and zsh then need this line in ~/.bashrc, or in ~/.zshrc after compinit:

  source ~/.statewise-completion

It takes effect in new shells. Print it again after an update of statewise."""
FAMILIES = ("data", "strips")
"""Commands that have subcommands with options of their own."""


@dataclass(frozen=True)
class Option:
    """An option of a command."""

    about: str
    takes_value: bool
    values: tuple[str, ...] = ()
    """What it may be, if there are few; else files are completed."""


@dataclass(frozen=True)
class Place:
    """A command or subcommand, and what may follow it."""

    command: tuple[str, ...]
    about: str
    options: Mapping[str, Option]
    names: tuple[str, ...] = ()
    """Words that may follow without an option."""


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser("completion", DESCRIPTION)
    parser.add_argument("shell", choices=sorted(SCRIPTS), help="which shell")
    options = parser.parse_args(words)
    say(SCRIPTS[options.shell](places()), end="")
    return 0


def places() -> list[Place]:
    """All commands, and subcommands of `FAMILIES`."""
    found = []
    for name, about in COMMANDS.items():
        if name in FAMILIES:
            below = _subcommands(name)
            found.append(Place((name,), about, {}, tuple(below)))
            found += [_place((name, one), what) for one, what in below.items()]
        else:
            found.append(_place((name,), about))
    return found


def _subcommands(family: str) -> Mapping[str, str]:
    below: Mapping[str, str] = importlib.import_module(f"statewise.cli.{family}").COMMANDS
    return below


def _place(command: tuple[str, ...], about: str) -> Place:
    run_command = in_modules("statewise.cli")(command[0])
    parser = parser_of(lambda words: run_command([*command[1:], *words]))
    options: dict[str, Option] = {}
    names: list[str] = []
    for action in parser._actions:
        choices = tuple(map(str, action.choices or ()))
        for flag in action.option_strings:
            if flag.startswith("--"):
                values = choices or (_decoders() if flag == "--decoder" else ())
                options[flag] = Option(_first_line(action), action.nargs != 0, values)
        if not action.option_strings:
            names += choices
    options |= _fields() if command == ("train",) else {}
    return Place(command, about, options, (*names, *_names(command)))


def _first_line(action: argparse.Action) -> str:
    return " ".join((action.help or "").replace("%%", "%").split())


def _names(command: tuple[str, ...]) -> tuple[str, ...]:
    """Names that a command takes besides the choices of its parser."""
    match command:
        case ("train",):
            from statewise.config.recipes import recipe_names

            return tuple(recipe_names())
        case ("suite",):
            from statewise.config.suites import suite_names

            return tuple(suite_names())
        case ("analyze",):
            return tuple(importlib.import_module("statewise.analysis").ANALYSES)
    return ()


def _decoders() -> tuple[str, ...]:
    from statewise.decoding import DECODERS

    return tuple(DECODERS)


def _fields() -> dict[str, Option]:
    """Fields of recipes that do not depend on the recipe."""
    from statewise.backbones import BACKBONES
    from statewise.config.field_help import declared_fields
    from statewise.objectives import OBJECTIVES
    from statewise.tasks import TASKS

    parts: dict[str, Iterable[str]] = {"--task": TASKS, "--backbone": BACKBONES, "--objective": OBJECTIVES}
    chosen = {flag: Option(f"the {flag.removeprefix('--')}", True, tuple(table)) for flag, table in parts.items()}
    fields = declared_fields("statewise.config.trainer:TrainerConfig")
    trainer = {
        f"--trainer.{name}": Option(" ".join(field.text.split()), True, tuple(map(str, field.choices)))
        for name, field in fields.items()
    }
    return {**chosen, "--seed": Option("seed of weights and batches", True), **trainer}


def bash(every: Iterable[Place]) -> str:
    """The script for bash."""
    every = list(every)
    families = " | ".join(FAMILIES)
    options = [f"        {_case(one.command)}) options={_words(one.options)} ;;" for one in every]
    names = [f"        {_case(one.command)}) names={_words(one.names)} ;;" for one in every if one.names]
    values = [
        f"        {_case((*one.command, flag))}) values={_words(option.values)} ;;"
        for one in every
        for flag, option in one.options.items()
        if option.values
    ]
    plain = " | ".join(
        _case((*one.command, flag))
        for one in every
        for flag, option in one.options.items()
        if option.takes_value and not option.values
    )
    lines = "\n".join
    return f"""# Completion of statewise for bash; made by `statewise completion bash`.
_statewise() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
    local place=${{COMP_WORDS[1]}} first=2 options= names= values=
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W {_words([*COMMANDS, "--version", "--help"])} -- "$current"))
        return
    fi
    case $place in
        {families}) if [ "$COMP_CWORD" -gt 2 ]; then place="$place ${{COMP_WORDS[2]}}"; fi ;;
    esac
    case "$place $before" in
{lines(values)}
        {plain}) return ;;
    esac
    if [ -n "$values" ]; then
        COMPREPLY=($(compgen -W "$values" -- "$current"))
        return
    fi
    case "$place" in
{lines(options)}
    esac
    case "$place" in
{lines(names)}
    esac
    case $current in
        -*) COMPREPLY=($(compgen -W "$options" -- "$current")) ;;
        *) COMPREPLY=($(compgen -W "$names" -- "$current")) ;;
    esac
}}
complete -o default -F _statewise statewise
"""


def zsh(every: Iterable[Place]) -> str:
    """The script for zsh, which runs that for bash."""
    return f"autoload -U +X bashcompinit && bashcompinit\n{bash(every)}".replace("for bash; made", "for zsh; made")


def fish(every: Iterable[Place]) -> str:
    """The script for fish."""
    lines = ["# Completion of statewise for fish; made by `statewise completion fish`."]
    lines += [
        f"complete -c statewise -n __fish_use_subcommand -f -a {name} -d {_quoted(about)}"
        for name, about in COMMANDS.items()
    ]
    lines.append("complete -c statewise -n __fish_use_subcommand -l version -d 'print the version'")
    for one in every:
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in one.command)
        start = f"complete -c statewise -n {_quoted(seen)}"
        if one.command[0] in FAMILIES and len(one.command) == 1:
            below = _subcommands(one.command[0])
            none = f"{seen}; and not __fish_seen_subcommand_from {' '.join(below)}"
            lines += [
                f"complete -c statewise -n {_quoted(none)} -f -a {name} -d {_quoted(about)}"
                for name, about in below.items()
            ]
            continue
        if one.names:
            lines.append(f"{start} -a {_words(one.names)}")
        for flag, option in one.options.items():
            value = f" -x -a {_words(option.values)}" if option.values else " -r" if option.takes_value else ""
            lines.append(f"{start} -l {flag.removeprefix('--')}{value} -d {_quoted(option.about)}")
    return "\n".join(lines) + "\n"


SCRIPTS = {"bash": bash, "zsh": zsh, "fish": fish}


def _case(words: Iterable[str]) -> str:
    """A pattern of a shell's `case` that matches these words alone."""
    return f'"{" ".join(words)}"'


def _words(words: Iterable[str]) -> str:
    return f"'{' '.join(words)}'"


def _quoted(text: str) -> str:
    return shlex.quote(text).replace("'\"'\"'", "\\'")
