"""statewise data: corpora and maps to train on. A file a verb, as in the folder above."""

from __future__ import annotations

import importlib

VERBS = {
    "city": "make the street map of a grid city",
    "manhattan": "read a published street map",
    "text": "make a corpus of token shards from text files, JSON lines, folders or a data set",
    "check": "compare every checksum of a corpus",
}


def run(words: list[str]) -> int:
    """Hands on to the verb."""
    if not words or words[0] in ("-h", "--help"):
        print("usage: statewise data VERB ...   (statewise data VERB --help explains a verb)\n")
        print(*(f"  {verb:10} {what}" for verb, what in VERBS.items()), sep="\n")
        return 0 if words else 2
    if words[0] not in VERBS:
        from statewise.config import unknown

        raise ValueError(unknown("data verb", words[0], VERBS))
    code: int = importlib.import_module(f"statewise.cli.data.{words[0]}").run(words[1:])
    return code
