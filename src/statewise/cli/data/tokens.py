"""statewise data tokens: a corpus of token shards from files of token ids."""

from __future__ import annotations

from pathlib import Path

from statewise.cli.corpus_options import add_corpus_options, write_corpus
from statewise.runtime.arguments import Parser

DESCRIPTION = """Writes a corpus for the task `text` from documents that are token ids already.

  statewise data tokens ids/ --tokenizer tokenizer.json --out corpus/

Files are .parquet, with a list of ids in each row (--field); or one array of ids, in which the end-of-text token ends
each document: .npy, or raw numbers (.bin, of the type --type). A folder stands for all such files in it. --tokenizer is
the one that the ids were made with: gpt2:DIR, hf:MODEL or the path of a tokenizer.json. If interrupted, no corpus is
left: run the command again."""


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser("data tokens", DESCRIPTION)
    parser.add_argument("files", metavar="FILE_OR_DIR", nargs="+", help="where the token ids are")
    parser.add_argument("--tokenizer", required=True, help="gpt2:DIR, hf:MODEL, or the path of a tokenizer.json")
    parser.add_argument("--out", metavar="DIR", required=True, help="corpus to write")
    parser.add_argument("--field", default="tokens", help="column of parquet files (default: tokens)")
    parser.add_argument(
        "--type",
        default="uint16",
        choices=("uint16", "uint32", "int32", "int64"),
        help="type of the ids in .bin files (default: uint16)",
    )
    add_corpus_options(parser)
    options = parser.parse_args(words)

    from statewise.tasks.corpus.token_files import find
    from statewise.tasks.corpus.writing import write_tokens

    files = find([Path(file) for file in options.files], options.field, options.type)
    return write_corpus(options, "tokens", write_tokens, files)
