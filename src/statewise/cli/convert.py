"""statewise convert: makes a run of a checkpoint of other code."""

from __future__ import annotations

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

    from statewise.deploy.export.sps_checkpoint import model_of_sps
    from statewise.model.model import keep_model

    with Run.claimed(out, options.overwrite):
        model = model_of_sps(
            options.checkpoint, options.config, options.corpus, variant=options.variant, context=options.context
        )
        keep_model(model, out, overwrite=options.overwrite)
    count = sum(parameter.numel() for parameter in model.objective.parameters())
    say(f"wrote {out}: two_stream, variant {model.recipe.backbone.config.variant}, {count:,} parameters, in fp32")
    return 0
