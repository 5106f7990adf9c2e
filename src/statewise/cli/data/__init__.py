"""statewise data: corpora and street maps to train on."""

from __future__ import annotations

from statewise.cli.commands import dispatch

COMMANDS = {
    "city": "make the street map of a grid city",
    "manhattan": "read a published street map",
    "text": "write a corpus of token shards from text files, JSON lines, parquet or a dataset",
    "tokens": "write a corpus of token shards from files of token ids",
    "check": "verify the checksums of a corpus",
}


def run(words: list[str]) -> int:
    """Runs a subcommand."""
    return dispatch(words, COMMANDS, __name__)
