"""statewise playground: models shown token by token, on a page."""

from __future__ import annotations

from pathlib import Path

from statewise.cli.served import models_of, names_of, server_module, start
from statewise.runtime.arguments import Parser, at_least
from statewise.runtime.messages import say

DESCRIPTION = """Shows runs token by token: what each model predicts and holds, beside what is true.

  statewise playground runs/demo/next-token runs/demo/next-latent
  statewise playground runs/city --export page.html

It starts the server of `statewise serve` and opens its page in the browser. With --export it writes the page as one
file with recorded traces of held-out prompts, which needs no server. Runs of one task stand side by side, those of
different tasks on tabs."""


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser("playground", DESCRIPTION)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run directories; NAME=RUN sets the model name")
    parser.add_argument("--export", metavar="FILE", help="write the page with recorded traces to a file")
    parser.add_argument(
        "--examples",
        type=at_least(1),
        default=8,
        metavar="N",
        help="with --export: number of held-out prompts (default: 8)",
    )
    parser.add_argument(
        "--seed", type=at_least(0), default=1, help="seed for choosing the held-out prompts (default: 1)"
    )
    parser.add_overwrite("replace an existing page")
    parser.add_argument(
        "--port", type=at_least(0), default=8000, help="port of the server; 0 picks a free one (default: 8000)"
    )
    parser.add_checkpoint()
    parser.add_device()
    options = parser.parse_args(words)

    named = names_of(options.runs)
    if options.port > 65535:
        raise ValueError(f"--port must be at most 65535, not {options.port}")
    path = None if options.export is None else Path(options.export)

    from statewise.deploy.playground.page import claimed, export

    if path is not None:
        with claimed(path, options.overwrite):
            models = models_of(named, options.checkpoint, options.device)
            written = export(models, path, options.examples, options.seed, overwrite=options.overwrite)
        fewer = f"; only {written:,} prompts are held out" if written < options.examples else ""
        say(f"wrote {path} ({path.stat().st_size / 1000:,.0f} kB){fewer}")
        return 0
    models = models_of(named, options.checkpoint, options.device)
    server = server_module()
    from statewise.deploy.serving.settings import ServerSettings

    return start(models, ServerSettings(), server.listen("127.0.0.1", options.port), show=True)
