"""statewise embed: the belief vectors of sequences, as a NumPy file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from statewise.cli.arguments import Parser


def run(words: list[str]) -> int:
    """Runs the verb."""
    parser = Parser(
        "embed",
        "Writes the belief vectors of the sequences of a file: OUT, float32, to be read with numpy.load, and\n"
        "OUT.json, which says where they come from.\n\n"
        "  statewise embed runs/nl-1 graphs.txt --out beliefs.npy\n"
        "  statewise embed runs/nl-1 prompts.txt --prompts --out beliefs.npy\n"
        "  statewise embed runs/nl-1 graphs.txt --positions all --out beliefs.npy\n\n"
        "--positions last: a vector a sequence, (n, D), of the whole of it, with the end symbol where the task has\n"
        "one. prompt: a vector a sequence, of its prompt. all: a vector a position, (sum of lengths, D); rows\n"
        "offsets[i] to offsets[i + 1] are those of sequence i, by OUT with .offsets.npy in place of .npy.",
    )
    parser.add_argument("run", metavar="RUN", help="run directory")
    parser.add_argument("file", metavar="FILE", help="sequences in the task's own format")
    parser.add_argument("--out", metavar="OUT.npy", required=True, help="file to write; replaced if it exists")
    parser.add_argument("--prompts", action="store_true", help="FILE holds prompts without answers, one a line")
    parser.add_argument("--positions", default="last", choices=["last", "prompt", "all"], help="(default: last)")
    parser.add_argument(
        "--of",
        default="prefix",
        choices=["prefix", "suffix"],
        help="beliefs of what was read (default), or, where a model has them, of what follows: of the whole sequence "
        "(last), of the answer (prompt), of the suffix that begins at each position (all)",
    )
    parser.add_argument("--checkpoint", default="best", help="best, last, or a step (default: best)")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    options = parser.parse_args(words)
    out = Path(options.out)
    if out.suffix != ".npy":
        raise ValueError(f"--out must end in .npy, not be {options.out!r}")
    if not out.parent.is_dir():
        raise ValueError(f"{out.parent}: no such folder to write {out.name} into")

    from statewise.experiment import Experiment
    from statewise.run import write_array, write_atomically

    experiment = Experiment.load(options.run, options.checkpoint, options.device)
    assert experiment.checkpoint is not None
    source = Path(options.file)
    found = experiment.embed(source, prompts=options.prompts, positions=options.positions, of=options.of)
    sidecar = {
        "run": str(Path(options.run).resolve()),
        "checkpoint": experiment.checkpoint.step,
        "input": str(source),
        "input_sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
        "prompts": options.prompts,
        "positions": options.positions,
        "of": options.of,
        "sequences": len(found.offsets) - 1,
        "shape": list(found.vectors.shape),
    }
    written = [out]
    write_array(out, found.vectors)
    if options.positions == "all":
        written.append(out.with_suffix(".offsets.npy"))
        write_array(written[-1], found.offsets)
        sidecar["offsets"] = written[-1].name
    written.append(out.with_name(f"{out.name}.json"))
    write_atomically(written[-1], (json.dumps(sidecar, indent=2) + "\n").encode())
    print(f"{options.run}, step {experiment.checkpoint.step}, {len(found.offsets) - 1:,} sequences, "
          f"{found.vectors.shape[0]:,} vectors of {found.vectors.shape[1]}")  # fmt: skip
    print("wrote", ", ".join(map(str, written)))
    return 0
