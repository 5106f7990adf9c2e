"""What `statewise serve` and `statewise playground` have in common: models by name, and a server that shows them."""

from __future__ import annotations

import socket
import threading
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statewise.runtime.messages import say, short, to_install

if TYPE_CHECKING:
    from statewise.deploy.serving.served import Served
    from statewise.deploy.serving.settings import ServerSettings


def models_of(named: dict[str, str], checkpoint: str, device: str) -> list[Served]:
    """The models of runs by name."""
    from statewise.deploy.serving.served import Served
    from statewise.model.model import load_model

    return [Served(name, load_model(run, checkpoint, device)) for name, run in named.items()]


def start(
    models: Sequence[Served],
    settings: ServerSettings,
    bound: socket.socket,
    *,
    show: bool,
    recorded: dict[str, Any] | None = None,
    after: Callable[[], None] = lambda: None,
) -> int:
    """Serves models and the playground at a bound socket until a signal; `show`: opens the browser. `recorded` is what
    the page also holds; `after` is called once the address is said. Returns the exit code."""
    from statewise.deploy.playground.routes import OPEN_PATHS, routes

    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"

    def announce(line: str) -> None:
        say(line, f"the playground is at {url}", sep="\n", flush=True)
        if show:
            threading.Thread(target=opened, args=(url,), daemon=True).start()
        after()

    shown = routes(models, recorded)
    return server_module().run(models, settings, bound, announce, routes=shown, open_paths=OPEN_PATHS)


def opened(url: str) -> None:
    """Opens an address in the browser; without a browser, prints it."""
    if not webbrowser.open(url):
        say(f"there is no browser to open: open {url} yourself", flush=True)


def server_module() -> Any:
    """The module of the server. Raises `ValueError` if its extra is not installed."""
    try:
        from statewise.deploy.serving import server
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "prometheus_client", "h11"):
            raise
        raise ValueError(f"serving needs the extra `serve`: {to_install('serve')}") from None
    return server


def names_of(runs: list[str]) -> dict[str, str]:
    """Runs by name. Raises `ValueError` if two have the same, and for names that requests could not give."""
    named: dict[str, str] = {}
    for word in runs:
        name, equals, run = word.partition("=")
        if not equals or Path(word).exists():
            name, run = Path(word).resolve().name, word
        if not name or not run:
            raise ValueError(f"{word!r} is not a run directory: give RUN or NAME=RUN")
        if not name.isprintable():
            raise ValueError(f"the name {name!r} cannot be written: give the model another with NAME={short(run)}")
        if name in named:
            raise ValueError(f"two models have the name {name!r}: give one another name with NAME={run}")
        named[name] = run
    return named
