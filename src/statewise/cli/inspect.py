"""statewise inspect: what is this file, and how do I train on it?"""

from __future__ import annotations

from pathlib import Path

from statewise.cli.commands import say_lines
from statewise.runtime.arguments import Parser
from statewise.runtime.json_files import printable
from statewise.runtime.messages import say

FIELDS = {
    "format": "format, where the file's name or content misleads (see docs/own-data.md)",
    "encoding": "encoding of its text, such as windows-1252",
    "delimiter": "separator of the columns of CSV",
}


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser(
        "inspect",
        "Says what a file of yours is (format, encoding, columns and what they look like, times, missing cells) and\n"
        "prints the command that trains on it. Reads the beginning of a large file alone, and says so.\n\n"
        "  statewise inspect events.csv\n"
        "  statewise inspect log.xes.gz",
    )
    parser.add_argument(
        "file", metavar="FILE", help="text, JSON, CSV, XES, FASTA, Parquet, Feather, .gz, .zip; or a folder"
    )
    for name, what in FIELDS.items():
        parser.add_argument(f"--{name}", metavar=name.upper(), help=what)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(words)

    from typing import get_args, get_type_hints

    from statewise.config.recipe import unknown
    from statewise.tasks.own_files.inspection import inspect
    from statewise.tasks.own_files.layout import SequenceFile

    formats = get_args(get_type_hints(SequenceFile)["format"])
    if options.format is not None and options.format not in formats:
        raise ValueError(unknown("format", options.format, formats))
    given = {name: value for name in FIELDS if (value := getattr(options, name)) is not None}
    found = inspect(Path(options.file), SequenceFile(**given))
    if options.json:
        say(printable(found.as_json()))
        return 0
    *lines, command = found.as_text().split("\n")
    say_lines(*lines)
    say(command)  # on one line, to be copied
    return 0
