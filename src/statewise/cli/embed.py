"""statewise embed: belief vectors of sequences, as a NumPy file."""

from __future__ import annotations

from pathlib import Path

from statewise.cli.counter import shown_progress
from statewise.runtime.arguments import Parser
from statewise.runtime.messages import say

SHOWN = 10
"""Maximum number of omitted sequences that are listed."""


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser(
        "embed",
        "Writes the belief vectors of the sequences in a file: OUT, a float32 array for numpy.load; OUT.index.npy\n"
        "(without OUT's .npy), sequence and position of each vector, (rows, 2), both counted from 0; and OUT.json,\n"
        "its origin and the sequences that were left out.\n\n"
        "  statewise embed runs/nl-1 graphs.txt --out beliefs.npy\n"
        "  statewise embed runs/nl-1 prompts.txt --prompts --out beliefs.npy\n"
        "  statewise embed runs/nl-1 graphs.txt --positions all --out beliefs.npy\n"
        "  statewise embed runs/nl-1 graphs.txt --layer blocks.1.hook_resid_post \\\n"
        "      --out layer.npy\n\n"
        "--positions last: one vector per sequence, (n, D), after its last token (the end symbol, if the task has\n"
        "one). prompt: after the prompt. all: one vector per position, (sum of lengths, D); those of sequence i are\n"
        "rows offsets[i] to offsets[i + 1], where offsets is in the file OUT.offsets.npy (without OUT's .npy).",
    )
    parser.add_run()
    parser.add_argument("file", metavar="FILE", help="sequences in the task's own format")
    parser.add_argument("--out", metavar="OUT.npy", required=True, help="file to write")
    parser.add_overwrite("replace OUT and the files beside it")
    parser.add_argument("--prompts", action="store_true", help="FILE holds prompts without answers, one per line")
    parser.add_argument(
        "--positions",
        default="last",
        choices=["last", "prompt", "all"],
        help="where to read: after the last token, the prompt's last token, or every token (default: last)",
    )
    parser.add_argument(
        "--of",
        default="prefix",
        choices=["prefix", "suffix"],
        help="beliefs of prefixes (default) or, if the model has them, of suffixes: of the whole sequence (last), the "
        "answer (prompt), of the suffix from each position (all)",
    )
    parser.add_argument(
        "--layer",
        metavar="NAME",
        help="activations instead of belief states: one by name, such as blocks.2.hook_resid_post; all layers (all), "
        "or all names that match a pattern ('blocks.*.hook_attn_out'), as (layers, n, D); all layers concatenated "
        "(concat)",
    )
    options = parser.parse_args(words)
    out = Path(options.out)

    from statewise.analysis.beliefs.vectors import claimed_vectors

    with claimed_vectors(out, options.positions == "all", options.overwrite):
        from statewise.model.model import load_model

        model = load_model(options.run, options.checkpoint, options.device)
        assert model.checkpoint is not None
        with shown_progress():
            vectors = model.embed(
                options.file, prompts=options.prompts, positions=options.positions, of=options.of, layer=options.layer
            )
        written = vectors.save(out, overwrite=options.overwrite)
    say(
        f"{options.run}, step {model.checkpoint.step}, {len(vectors.offsets) - 1:,} sequences, "
        f"{'' if vectors.vectors.ndim == 2 else f'{len(vectors.layers)} layers, '}"
        f"{vectors.vectors.shape[-2]:,} vectors of {vectors.vectors.shape[-1]}"
    )
    if vectors.left_out:
        count = len(vectors.left_out)
        say(f"left out: {count:,} of {len(vectors.sequences) + count:,} sequences of {options.file}")
        for one in vectors.left_out[:SHOWN]:
            say(f"  line {one.line}: {one.why}")
        if count > SHOWN:
            say(f"  and {count - SHOWN:,} more, see {written[-1]}")
    say("wrote", ", ".join(map(str, written)))
    return 0
