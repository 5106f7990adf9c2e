"""statewise data text: a corpus of token shards from text."""

from __future__ import annotations

from pathlib import Path

from statewise.cli.corpus_options import add_corpus_options, write_corpus
from statewise.runtime.arguments import Parser

DESCRIPTION = """Writes a corpus for the task `text`: token shards of encoded documents.

  statewise data text FILE_OR_DIR... --tokenizer bpe:4096 --out corpus/
  statewise data text books/ --tokenizer gpt2:DIR \\
      --documents blank-lines --out corpus/
  statewise data text --hub tinystories --tokenizer bpe:4096 --out corpus/

Files are UTF-8 text, JSON lines (.jsonl) with one document per line, both optionally gzipped, or parquet with one per
row. A folder stands for all its files. --tokenizer: bpe:N learns a byte-level BPE of N tokens from the training
documents; gpt2:DIR reads its vocab.json and merges.txt; hf:MODEL is that of a Hugging Face model, a folder or a name on
the hub, for --backbone hf; a path reads that tokenizer.json. If interrupted, no corpus is left: run the command
again."""


def run(words: list[str]) -> int:
    """Runs the command."""
    from statewise.tasks.corpus.documents import SEPARATIONS

    parser = Parser("data text", DESCRIPTION)
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
    add_corpus_options(parser)
    options = parser.parse_args(words)
    if bool(options.sources) == bool(options.hub):
        raise ValueError("give files or folders, or --hub NAME" + (", not both" if options.hub else ""))

    from statewise.tasks.corpus.documents import DataSet, Source, find
    from statewise.tasks.corpus.writing import write

    sources: list[Source]
    if options.hub:
        sources = [DataSet(options.hub, options.split, options.field)]
    else:
        sources = find([Path(source) for source in options.sources], options.documents, options.field)
    return write_corpus(options, "characters", write, sources, documents=options.documents, field=options.field)
