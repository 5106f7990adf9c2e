"""A command whose subcommands are the modules of a package."""

from __future__ import annotations

import importlib
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence

from statewise.runtime.messages import say


def dispatch(
    words: Sequence[str], commands: Mapping[str, str], package: str, footer: Callable[[], str] = lambda: ""
) -> int:
    """Runs the subcommand that the first word names, a module of `package`; returns its exit code. Without a
    subcommand, and for help, it lists the `commands` with their descriptions, and prints the `footer`.

    Raises `ValueError` for an unknown subcommand.
    """
    program = package.replace(".cli", "").replace(".", " ")
    if not words or words[0] in ("-h", "--help"):
        say(f"usage: {program} COMMAND ...   ({program} COMMAND --help: more)\n\n{listed(commands)}")
        if text := footer():
            say(f"\n{text}")
        return 0 if words else 2
    if words[0] not in commands:
        from statewise.config.recipe import unknown

        raise ValueError(unknown(f"{program.removeprefix('statewise')} command".strip(), words[0], commands))
    module = words[0].replace("-", "_")
    code: int = importlib.import_module(f"{package}.{'listing' if module == 'list' else module}").run(list(words[1:]))
    return code


def listed(rows: Mapping[str, str], width: int | None = None, without_terminal: int = 80) -> str:
    """One line per name with its description, wrapped to the terminal, or to `without_terminal` characters. `width`:
    that of the column of names."""
    width = max(map(len, rows)) if width is None else width
    room = shutil.get_terminal_size((without_terminal, 24)).columns
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
