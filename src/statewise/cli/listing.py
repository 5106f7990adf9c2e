"""statewise list: what there is to choose from."""

from __future__ import annotations

from statewise.analysis import ANALYSES
from statewise.backbones import BACKBONES
from statewise.cli.arguments import Parser
from statewise.config import Table
from statewise.decoding import DECODERS
from statewise.objectives import OBJECTIVES
from statewise.recipes import recipe_names, recipe_summary
from statewise.tasks import TASKS


def run(words: list[str]) -> int:
    """Prints every table, a line a row."""
    Parser("list", "Lists tasks, objectives, backbones, decoders, analyses and recipes.").parse_args(words)
    sections: dict[str, dict[str, str]] = {}
    tables: dict[str, Table] = {
        "tasks": TASKS, "objectives": OBJECTIVES, "backbones": BACKBONES, "decoders": DECODERS, "analyses": ANALYSES,
    }  # fmt: skip
    for title, table in tables.items():
        sections[title] = {name: table.describe(name) for name in table}
    sections["recipes"] = {name: recipe_summary(name) for name in recipe_names()}
    width = max(len(name) for rows in sections.values() for name in rows)
    for title, rows in sections.items():
        print(title)
        for name, what in rows.items():
            print(f"  {name:{width}}  {what}")
    return 0
