"""statewise export: a run as a model of Hugging Face, or as a GGUF file."""

from __future__ import annotations

import shlex
from pathlib import Path

from statewise.run import Run
from statewise.runtime.arguments import Parser
from statewise.runtime.messages import say

DESCRIPTION = """Writes the model of a run in a format that other libraries load.

  statewise export runs/nl-1 --to hf --out exported
  statewise export runs/nl-1 --to gguf --out model.gguf
  statewise export tuned --to gguf --out model.gguf

hf: a folder for transformers. Plain decoders become models of an existing architecture (Llama, GPT-2, Starcoder2 or
StableLM), which vLLM and others load too; other models need `import statewise.hf` before they are loaded. gguf: a file
for llama.cpp and what is built on it; only decoders with the blocks of Llama, also from a folder of transformers."""


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser("export", DESCRIPTION)
    parser.add_argument("run", metavar="RUN", help="run directory, or for gguf a folder of transformers")
    parser.add_checkpoint()
    parser.add_argument("--to", choices=["hf", "gguf"], default="hf", help="format (default: hf)")
    parser.add_argument("--out", metavar="PATH", required=True, help="folder to write, or file for gguf")
    parser.add_overwrite("replace an exported model in --out")
    options = parser.parse_args(words)
    out, source = Path(options.out), Path(options.run)

    from statewise.deploy.export.export import claimed, export, of_transformers
    from statewise.model.model import load_model

    theirs = of_transformers(source)
    if not theirs:
        Run.open(source)
    with claimed(out, options.to, options.overwrite):
        model = source if theirs else load_model(source, options.checkpoint, "cpu")
        command = shlex.join(["statewise", "export", *words])
        result = export(model, out, options.to, overwrite=options.overwrite, command=command)
    say(f"wrote {options.out}: {result.architecture}, {result.parameters:,} parameters, {result.bytes / 1e6:,.1f} MB")
    for note in result.notes:
        say(f"note: {note}")
    return 0
