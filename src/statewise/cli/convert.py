"""statewise convert: makes a run of a checkpoint of other code."""

from __future__ import annotations

import json
from pathlib import Path

from statewise.run import Run
from statewise.runtime.arguments import Parser, at_least
from statewise.runtime.messages import say

DESCRIPTION = """Makes a run of a checkpoint of the State-Prediction Separation paper's code (sps).

  statewise convert sps model.safetensors --config config.json \\
      --corpus CORPUS --out runs/theirs
  statewise evaluate runs/theirs             # every command but training

The corpus (`statewise data text`) gives the tokenizer, which must be the checkpoint's, and the held-out text. Files of
PyTorch may hold tensors and plain data alone."""
VARIANTS = ("standard", "sps", "double_memory", "delayed_state", "reverse_sps", "strict")


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser("convert", DESCRIPTION)
    parser.add_argument(
        "format", choices=["sps"], help="format of the checkpoint: sps, the State-Prediction Separation paper's code"
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a .safetensors file, or one of torch.save")
    parser.add_argument("--config", metavar="FILE", required=True, help="the checkpoint's config.json")
    parser.add_argument("--corpus", metavar="DIR", required=True, help="a corpus with the checkpoint's tokenizer")
    parser.add_argument("--out", metavar="RUN", required=True, help="directory of the new run")
    parser.add_argument(
        "--variant",
        choices=VARIANTS,
        metavar="NAME",
        help=f"one of {', '.join(VARIANTS)} (default: sps; standard if the configuration has no predict_token_id)",
    )
    parser.add_argument("--context", metavar="N", type=at_least(2), help="tokens of a row (default: block_size)")
    parser.add_overwrite("replace the run in --out")
    options = parser.parse_args(words)
    out = Path(options.out)

    from statewise.deploy.export import sps_checkpoint as conversion
    from statewise.model.model import keep_model, new_model
    from statewise.model.recipes import read_recipe
    from statewise.tasks.corpus.folder import Corpus

    with Run.claimed(out, options.overwrite):
        config = conversion.read_config(Path(options.config))
        tensors = conversion.read_tensors(Path(options.checkpoint))
        bpe = Corpus(Path(options.corpus)).bpe
        converted = conversion.convert_sps(tensors, config, len(bpe.symbols), options.variant)
        if bpe.end != config["eos_token_id"]:
            raise ValueError(
                f"the corpus ends its texts with token {bpe.end}, and the checkpoint with {config['eos_token_id']}: "
                "encode it with the tokenizer that the checkpoint was trained with"
            )
        recipe = {
            "task": {"name": "text", "path": options.corpus, "context": options.context or config["block_size"]},
            "backbone": {"name": "two_stream", **converted.backbone},
            "objective": "next_token",
            "trainer": {"precision": "fp32"},
        }
        model = new_model(read_recipe(json.dumps(recipe), source=options.config))
        model.objective.load_state_dict({f"backbone.{name}": tensor for name, tensor in converted.weights.items()})
        keep_model(model, out, overwrite=options.overwrite)
    count = sum(parameter.numel() for parameter in model.objective.parameters())
    say(f"wrote {out}: two_stream, variant {converted.backbone['variant']}, {count:,} parameters, in fp32")
    return 0
