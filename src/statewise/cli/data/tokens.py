"""statewise data tokens: a corpus of token shards from files of token ids."""

from __future__ import annotations

from pathlib import Path

from statewise.runtime.arguments import Parser, at_least

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
        help="of .bin files (default: uint16)",
    )
    parser.add_argument(
        "--held-out", type=float, default=0.01, help="share of documents held out (default: 0.01; 1: all)"
    )
    parser.add_argument(
        "--shard-tokens", type=at_least(1), default=100_000_000, help="tokens per shard (default: 10^8)"
    )
    parser.add_overwrite("replace the corpus in --out")
    options = parser.parse_args(words)

    from statewise.cli.data.text import written
    from statewise.experiments.progress import Count
    from statewise.tasks.corpus.token_files import find
    from statewise.tasks.corpus.writing import Listener, write_tokens

    files = find([Path(file) for file in options.files], options.field, options.type)
    with Count("tokens") as count:
        corpus = write_tokens(
            files,
            Path(options.out),
            options.tokenizer,
            held_out=options.held_out,
            shard_tokens=options.shard_tokens,
            overwrite=options.overwrite,
            listener=Listener(count.stage, count.advance, count.note),
        )
    return written(corpus, options.out)
