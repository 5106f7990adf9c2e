"""statewise demo: three small trained models in the playground, at once; or trained here."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
from pathlib import Path

from statewise.cli.served import models_of, opened, server_module, start
from statewise.runtime.arguments import Parser, at_least
from statewise.runtime.messages import in_words, say

DESCRIPTION = """Shows three small trained models on star graphs token by token: next-token prediction guesses the arm,
next-latent prediction and the Belief State Transformer know it. Nothing is trained or downloaded.

  statewise demo
  statewise demo --export demo.html
  statewise demo --train

It starts a server and opens its page in the browser. With --export it writes the page as one file with recorded
traces, which needs no server. With --train it trains the three models anew, and compares them."""

HOW = "statewise demo --train"
QUESTION = "Press Enter to train these three models here (minutes), or Ctrl-C to end."


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser("demo", DESCRIPTION)
    parser.add_argument("--export", metavar="FILE", help="write the page with recorded traces to a file")
    parser.add_argument("--train", action="store_true", help="train the three models, and compare them")
    parser.add_argument("--out", metavar="DIR", help="with --train: folder of the runs (default: runs/demo)")
    parser.add_argument(
        "--seed", type=at_least(0), help="with --train: seed of weights and graphs (default: that of the shipped ones)"
    )
    parser.add_overwrite("replace an existing page")
    parser.add_argument(
        "--port", type=at_least(0), default=0, help="port of the server (default: 0, which picks a free one)"
    )
    options = parser.parse_args(words)
    if options.export is not None and options.train:
        raise ValueError("give --export or --train, not both")
    for flag, given in (("--out", options.out), ("--seed", options.seed)):
        if given is not None and not options.train:
            raise ValueError(f"{flag} is for --train")
    if options.overwrite and options.export is None:
        raise ValueError("--overwrite is for --export; --train replaces the runs of an earlier one")
    if options.port > 65535:
        raise ValueError(f"--port must be at most 65535, not {options.port}")
    if options.train:
        return _train(Path(options.out or "runs/demo"), options.seed)
    if options.export is not None:
        return _export(Path(options.export), options.overwrite)
    return _show(options.port)


def _export(path: Path, overwrite: bool) -> int:
    from statewise.deploy.playground import demo
    from statewise.deploy.playground.page import claimed, page
    from statewise.runtime.durable import write_atomically

    with claimed(path, overwrite) as scratch:
        write_atomically(scratch, page(demo.recorded()))
    say(f"wrote {path} ({path.stat().st_size / 1000:,.0f} kB)")
    return 0


def _show(port: int) -> int:
    """Opens the page, live where the extra `serve` is installed, and offers to train."""
    say("loading three small models", flush=True)
    terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    try:
        server = server_module()
    except ValueError as error:
        return _show_recorded(in_words(error), terminal)
    from statewise.deploy.playground import demo
    from statewise.deploy.serving.settings import ServerSettings

    wanted = threading.Event()
    bound = server.listen("127.0.0.1", port)
    models = models_of(demo.runs(), "best", "cpu")
    recorded = {**demo.recorded(), "live": demo.LIVE}

    def offer() -> None:
        say(QUESTION if terminal else f"To train these models here: {HOW}", flush=True)
        if terminal:
            threading.Thread(target=_wait, args=(wanted,), daemon=True).start()

    code = start(models, ServerSettings(), bound, show=True, recorded=recorded, after=offer)
    return _train(Path("runs/demo"), None) if wanted.is_set() else code


def _wait(wanted: threading.Event) -> None:
    """Ends the server once Enter is pressed."""
    if sys.stdin.readline():
        wanted.set()
        signal.raise_signal(signal.SIGINT)


def _show_recorded(why: str, terminal: bool) -> int:
    from statewise.deploy.playground import demo
    from statewise.deploy.playground.page import page

    path = Path(tempfile.mkdtemp(prefix="statewise-demo-")) / "demo.html"
    path.write_bytes(page(demo.recorded()))
    say(f"the page, with recorded traces, is {path}", f"for live models, {why}", sep="\n", flush=True)
    opened(path.as_uri())
    if not terminal:
        say(f"To train these models here: {HOW}")
        return 0
    say("Train these three models here (minutes)? [y/N] ", end="", flush=True)
    return _train(Path("runs/demo"), None) if sys.stdin.readline().strip().lower() in ("y", "yes") else 0


def _train(folder: Path, seed: int | None) -> int:
    """Trains with a bar for each model, and says the finding."""
    say(f"training three models into {folder}: loading PyTorch", flush=True)
    from statewise.experiments import demo
    from statewise.experiments.progress import Bars

    with Bars("steps") as bars:
        compared = demo.train(folder, demo.SEED if seed is None else seed, bars.show)
    if isinstance(compared, int):
        say(f"stopped; {HOW} begins again", file=sys.stderr)
        return 128 + compared
    say(compared.finding(), *(f"wrote {path}" for path in compared.files), sep="\n")
    return 0
