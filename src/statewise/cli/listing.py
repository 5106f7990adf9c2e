"""statewise list: names of all parts and recipes."""

from __future__ import annotations

from typing import Any

from statewise.analysis import ANALYSES
from statewise.backbones import BACKBONES
from statewise.cli.commands import listed
from statewise.config.recipes import recipe_names, recipe_summary
from statewise.config.registry import Table
from statewise.decoding import DECODERS
from statewise.objectives import OBJECTIVES
from statewise.runtime.arguments import Parser
from statewise.runtime.messages import say
from statewise.tasks import TASKS


def run(words: list[str]) -> int:
    """Prints every table."""
    Parser(
        "list",
        "Names all tasks, objectives, backbones, decoders, analyses and recipes, also of installed packages.\n"
        "A class of your own can be given as module:Class wherever a name is expected.",
    ).parse_args(words)
    sections: dict[str, dict[str, str]] = {}
    tables: dict[str, Table[Any]] = {
        "tasks": TASKS,
        "objectives": OBJECTIVES,
        "backbones": BACKBONES,
        "decoders": DECODERS,
        "analyses": ANALYSES,
    }
    for title, table in tables.items():
        sections[title] = {name: table.describe(name) for name in [*table, *table.announced()]}
    sections["recipes"] = {name: recipe_summary(name) for name in recipe_names()}
    width = max(len(name) for rows in sections.values() for name in rows)
    for title, rows in sections.items():
        say(f"{title}\n{listed(rows, width, without_terminal=1000)}")
    return 0
