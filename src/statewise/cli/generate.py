"""statewise generate: complete a prompt with a trained run."""

from __future__ import annotations

import json

from statewise.cli.arguments import Parser, pairs


def run(words: list[str]) -> int:
    """Runs the verb."""
    parser = Parser(
        "generate",
        "Completes a prompt.\n\n"
        "  statewise generate runs/nl-1 --prompt '3,4|5,6|3,5|4,7/3,7='\n"
        "  statewise generate runs/mine --prompt 'a b c' --decoder sample --temperature 0.8 --seed 3\n\n"
        "Options of the decoder `sample`: --temperature, --top_k, --top_p, --seed.",
    )
    parser.add_argument("run", metavar="RUN", help="run directory")
    parser.add_argument("--prompt", required=True, help="as in the task's files")
    parser.add_argument("--decoder", default="greedy", help="`statewise list` shows them (default: greedy)")
    parser.add_argument("--limit", type=int, help="most tokens to generate (default: what the context leaves)")
    parser.add_argument("--checkpoint", default="best", help="best, last, or a step (default: best)")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--json", action="store_true", help="print JSON with the log-probability")
    options, rest = parser.split(words)
    fields = pairs(rest)

    from statewise.experiment import Experiment, make_decoder

    make_decoder(options.decoder, **fields)  # a wrong option should not wait for the model to load
    experiment = Experiment.load(options.run, options.checkpoint, options.device)
    (completion,) = experiment.generate([options.prompt], options.decoder, options.limit, **fields)
    text = experiment.task.decode(completion.tokens)
    if options.json:
        print(json.dumps({"completion": text, "log_probability": completion.log_probability}))
    else:
        print(text)
    return 0
