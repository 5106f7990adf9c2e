"""statewise data check: verify the checksums of a corpus."""

from __future__ import annotations

from pathlib import Path

from statewise.runtime.arguments import Parser
from statewise.runtime.messages import say


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser("data check", "Reads a whole corpus, verifies every checksum, and names a file that differs.")
    parser.add_argument("corpus", metavar="CORPUS", help="folder that `statewise data text` wrote")
    options = parser.parse_args(words)

    from statewise.experiments.progress import Count
    from statewise.tasks.corpus.folder import Corpus

    corpus = Corpus(Path(options.corpus))
    with Count("tokens") as count:
        count.stage("checking", len(corpus.training) + len(corpus.held_out))
        corpus.check(count.advance)
    shards = len(corpus.training.shards) + len(corpus.held_out.shards)
    say(f"{options.corpus}: {shards} shards, all as they were written")
    return 0
