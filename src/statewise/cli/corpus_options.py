"""What the commands that write a corpus share: options, progress, and the summary at the end."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statewise.runtime.arguments import Parser, at_least
from statewise.runtime.messages import say

if TYPE_CHECKING:
    from statewise.tasks.corpus.folder import Corpus


def add_corpus_options(parser: Parser) -> None:
    """Adds --held-out, --shard-tokens and --overwrite."""
    parser.add_argument(
        "--held-out", type=float, default=0.01, help="share of documents held out (default: 0.01; 1: all)"
    )
    parser.add_argument(
        "--shard-tokens", type=at_least(1), default=100_000_000, help="tokens per shard (default: 10^8)"
    )
    parser.add_overwrite("replace the corpus in --out")


def write_corpus(options: Namespace, unit: str, write: Callable[..., Corpus], sources: list[Any], **fields: str) -> int:
    """Calls `write` with the command's options and shows its progress, counted in `unit`; then prints a summary."""
    from statewise.experiments.progress import Count
    from statewise.tasks.corpus.writing import Listener

    with Count(unit) as count:
        corpus = write(
            sources,
            Path(options.out),
            options.tokenizer,
            held_out=options.held_out,
            shard_tokens=options.shard_tokens,
            overwrite=options.overwrite,
            listener=Listener(count.stage, count.advance, count.note),
            **fields,
        )
    for name, side in (("to train on", corpus.training), ("held out", corpus.held_out)):
        say(f"{len(side):,} tokens of {side.documents:,} documents {name} ({side.words:,} words, {side.size:,} bytes)")
    say(f"wrote {options.out}")
    return 0
