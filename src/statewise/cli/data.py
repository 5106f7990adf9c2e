"""statewise data: corpora and street maps to train on."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statewise.cli.commands import dispatch
from statewise.runtime.arguments import Parser, at_least, with_flags
from statewise.runtime.messages import say

if TYPE_CHECKING:
    from statewise.tasks.corpus.documents import Source
    from statewise.tasks.corpus.folder import Corpus
    from statewise.tasks.manhattan.street_map import StreetMap

COMMANDS = {
    "city": "make the street map of a grid city",
    "manhattan": "read a published street map",
    "text": "write a corpus of token shards from text files, JSON lines, parquet or a dataset",
    "tokens": "write a corpus of token shards from files of token ids",
    "check": "verify the checksums of a corpus",
}

CITY = """Writes the map of a city on a grid: alternating one-way streets and avenues, some two-way, a diagonal,
gaps, dead ends and loops. The same numbers give the same city.

  statewise data city --rows 12 --columns 16 --seed 1 --out maps/city
  statewise train city-small --task.map maps/city --out runs/city

The task `manhattan` also makes such a city from task.rows, task.columns and task.city_seed. Use files to change a
city."""

MANHATTAN = """Reads a street map and writes it as a folder for the task `manhattan`.

  statewise data manhattan --from DIR --out maps/manhattan
  statewise train manhattan --task.map maps/manhattan --out runs/manhattan

DIR holds edges.csv (or edges_BUILD.csv, chosen by --build; default: random) with the columns
from_node,direction,to_node, and optionally nodes.csv with node and maybe x,y or synthetic_x,synthetic_y; all may be
gzipped (.csv.gz). Directions are N, NE, E, SE, S, SW, W, NW. Pickles are never read."""

TEXT = """Writes a corpus for the task `text`: token shards of encoded documents.

  statewise data text FILE_OR_DIR... --tokenizer bpe:4096 --out corpus/
  statewise data text books/ --tokenizer gpt2:DIR \\
      --documents blank-lines --out corpus/
  statewise data text --hub tinystories --tokenizer bpe:4096 --out corpus/

Files are UTF-8 text, JSON lines (.jsonl) with one document per line, both optionally gzipped, or parquet with one per
row. A folder stands for all its files. --tokenizer: bpe:N learns a byte-level BPE of N tokens from the training
documents; gpt2:DIR reads its vocab.json and merges.txt; hf:MODEL is that of a Hugging Face model, a folder or a name on
the hub, for --backbone hf; a path reads that tokenizer.json. If interrupted, no corpus is left: run the command
again."""

TOKENS = """Writes a corpus for the task `text` from documents that are token ids already.

  statewise data tokens ids/ --tokenizer tokenizer.json --out corpus/

Files are .parquet, with a list of ids in each row (--field); or one array of ids, in which the end-of-text token ends
each document: .npy, or raw numbers (.bin, of the type --type). A folder stands for all such files in it. --tokenizer is
the one that the ids were made with: gpt2:DIR, hf:MODEL or the path of a tokenizer.json. If interrupted, no corpus is
left: run the command again."""


def run(words: list[str]) -> int:
    """Runs a subcommand."""
    subcommands = {"city": city, "manhattan": manhattan, "text": text, "tokens": tokens, "check": check}
    return dispatch(words, COMMANDS, "statewise data", subcommands.__getitem__)


def city(words: list[str]) -> int:
    """Makes the street map of a grid city."""
    parser = Parser("data city", CITY)
    parser.add_argument("--rows", type=at_least(2), default=12, help="rows of crossings (default: 12)")
    parser.add_argument("--columns", type=at_least(2), default=16, help="columns of crossings (default: 16)")
    parser.add_argument("--seed", type=at_least(0), default=1, help="seed of the generated city (default: 1)")
    parser.add_argument("--out", metavar="DIR", required=True, help="folder of the map")
    parser.add_overwrite("replace the map in --out")
    options = parser.parse_args(words)

    from statewise.tasks.manhattan.street_map import grid_city

    return _write_map(grid_city(options.rows, options.columns, options.seed), Path(options.out), options.overwrite)


def manhattan(words: list[str]) -> int:
    """Reads a published street map."""
    parser = Parser("data manhattan", MANHATTAN)
    parser.add_argument("--from", dest="source", metavar="DIR", required=True, help="folder of the published files")
    parser.add_argument("--build", metavar="NAME", help="which list of streets, if there are several")
    parser.add_argument("--out", metavar="DIR", required=True, help="folder of the map")
    parser.add_overwrite("replace the map in --out")
    options = parser.parse_args(words)

    from statewise.tasks.manhattan.street_map import read_map

    return _write_map(read_map(Path(options.source), options.build), Path(options.out), options.overwrite)


def _write_map(streets: StreetMap, folder: Path, overwrite: bool) -> int:
    """Writes a map and prints a summary."""
    from statewise.tasks.manhattan.street_map import write_map

    files = write_map(streets, folder, overwrite)
    begin, _, _ = streets.streets
    dead_ends = int((streets.neighbour < 0).all(axis=1).sum())
    places = "with" if streets.coordinates is not None else "without"
    say(f"{len(streets):,} crossings {places} coordinates and {len(begin):,} streets; {dead_ends} dead ends")
    for path in files:
        say(f"wrote {path}")
    return 0


def text(words: list[str]) -> int:
    """Writes a corpus of token shards from text."""
    from statewise.tasks.corpus.documents import SEPARATIONS

    parser = Parser("data text", TEXT)
    parser.add_argument("sources", metavar="FILE_OR_DIR", nargs="*", help="where the text is")
    parser.add_argument(
        "--hub",
        metavar="NAME",
        help="instead of files: a dataset that the `datasets` package streams, by name or local folder; tinystories "
        "and fineweb-edu are short names",
    )
    parser.add_argument("--split", default="train", help="split of that dataset (default: train)")
    parser.add_argument("--field", default="text", help="field that holds a document (default: text)")
    parser.add_argument("--tokenizer", required=True, help="bpe:N, gpt2:DIR, hf:MODEL, or the path of a tokenizer.json")
    parser.add_argument("--out", metavar="DIR", required=True, help="corpus to write")
    parser.add_argument(
        "--documents",
        default="auto",
        choices=SEPARATIONS,
        help="what separates documents in a text file: mark, a line <|endoftext|>; blank-lines; line, one per line; "
        "file, one per file; auto, the mark if present, else file (default)",
    )
    _add_corpus_options(parser)
    options = parser.parse_args(words)
    if bool(options.sources) == bool(options.hub):
        raise ValueError("give files or folders, or --hub NAME" + (", not both" if options.hub else ""))

    from statewise.tasks.corpus.documents import DataSet, find
    from statewise.tasks.corpus.writing import write

    sources: list[Source]
    if options.hub:
        sources = [DataSet(options.hub, options.split, options.field)]
    else:
        sources = find([Path(source) for source in options.sources], options.documents, options.field)
    return _write_corpus(options, "characters", write, sources, documents=options.documents, field=options.field)


def tokens(words: list[str]) -> int:
    """Writes a corpus of token shards from files of token ids."""
    parser = Parser("data tokens", TOKENS)
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
    _add_corpus_options(parser)
    options = parser.parse_args(words)

    from statewise.tasks.corpus.token_files import find
    from statewise.tasks.corpus.writing import write_tokens

    files = find([Path(file) for file in options.files], options.field, options.type)
    return _write_corpus(options, "tokens", write_tokens, files)


def _add_corpus_options(parser: Parser) -> None:
    """Adds --held-out, --shard-tokens and --overwrite."""
    parser.add_argument(
        "--held-out", type=float, default=0.01, help="share of documents held out (default: 0.01; 1: all)"
    )
    parser.add_argument(
        "--shard-tokens", type=at_least(1), default=100_000_000, help="tokens per shard (default: 10^8)"
    )
    parser.add_overwrite("replace the corpus in --out")


def _write_corpus(
    options: Namespace, unit: str, write: Callable[..., Corpus], sources: list[Any], **fields: str
) -> int:
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
            listener=Listener(count.stage, count.advance, lambda note: count.note(with_flags(note))),
            **fields,
        )
    for name, side in (("to train on", corpus.training), ("held out", corpus.held_out)):
        say(f"{len(side):,} tokens of {side.documents:,} documents {name} ({side.words:,} words, {side.size:,} bytes)")
    say(f"wrote {options.out}")
    return 0


def check(words: list[str]) -> int:
    """Verifies the checksums of a corpus."""
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
