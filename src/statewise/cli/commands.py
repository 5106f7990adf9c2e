"""Commands with subcommands, and lists of names with descriptions."""

from __future__ import annotations

import importlib
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence

from statewise.runtime.messages import say

Command = Callable[[list[str]], int]
"""Runs a command with its words; returns the exit code."""


def in_modules(package: str) -> Callable[[str], Command]:
    """Finds a command by its name: the function `run` of the module of that name in `package`."""

    def command(name: str) -> Command:
        module = "listing" if name == "list" else name.replace("-", "_")
        run: Command = importlib.import_module(f"{package}.{module}").run
        return run

    return command


def dispatch(
    words: Sequence[str],
    commands: Mapping[str, str],
    program: str,
    command: Callable[[str], Command],
    footer: Callable[[], str] = lambda: "",
) -> int:
    """Runs the subcommand of `program` that the first word names, `command(name)`; returns its exit code. Without a
    subcommand, and for help, it lists the `commands` with their descriptions, and prints the `footer`.

    Raises `ValueError` for an unknown subcommand.
    """
    if not words or words[0] in ("-h", "--help"):
        say(f"usage: {program} COMMAND ...   ({program} COMMAND --help: more)\n\n{listed(commands)}")
        if text := footer():
            say(f"\n{text}")
        return 0 if words else 2
    if words[0] not in commands:
        from statewise.config.recipe import unknown

        raise ValueError(unknown(f"{program.removeprefix('statewise')} command".strip(), words[0], commands))
    return command(words[0])(list(words[1:]))


def terminal_width(without_terminal: int = 100) -> int:
    """Characters in a line of the terminal; `without_terminal` if there is none."""
    return shutil.get_terminal_size((without_terminal, 24)).columns


def say_lines(*lines: str) -> None:
    """Prints lines; a terminal gets them broken between words, and not within, and indented further."""
    if sys.stdout.isatty():
        from statewise.reporting.tables import narrowed, widened

        width = max(20, terminal_width())
        lines = tuple(
            narrowed(
                textwrap.fill(
                    widened(line),
                    width,
                    subsequent_indent=" " * (len(line) - len(line.lstrip()) + 2),
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            )
            for line in lines
        )
    say(*lines, sep="\n")


def listed(rows: Mapping[str, str], width: int | None = None, without_terminal: int = 80) -> str:
    """One line per name with its description, wrapped to the terminal, or to `without_terminal` characters. `width`:
    that of the column of names."""
    width = max(map(len, rows)) if width is None else width
    room = terminal_width(without_terminal)
    hanging = " " * (width + 4)
    return "\n".join(
        textwrap.fill(
            what,
            max(room, width + 30),
            initial_indent=f"  {name:{width}}  ",
            subsequent_indent=hanging,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for name, what in rows.items()
    )
