"""statewise serve: runs behind the OpenAI protocol."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from statewise.cli.served import models_of, names_of, server_module, start
from statewise.runtime.arguments import Parser, above, at_least
from statewise.runtime.messages import say
from statewise.runtime.text_files import read_text

if TYPE_CHECKING:
    from statewise.deploy.serving.served import Served
    from statewise.deploy.serving.settings import ServerSettings

KEY = "STATEWISE_SERVE_KEY"

DESCRIPTION = f"""Serves runs with the OpenAI protocol for completions and embeddings (extra `serve`).

  statewise serve runs/bst runs/nl
  statewise serve small=runs/a large=runs/b --port 8000
  curl http://127.0.0.1:8000/v1/completions \\
      -d '{{"model": "bst", "prompt": "Once", "suffix": "the end."}}'

At / is the playground, a page that shows the models token by token; --open opens it in the browser.

A model has the name of its run directory, or the NAME in NAME=RUN. Ctrl-C lets running requests finish; a second one
does not. On another address than this machine's own, requests need a key: set it with --api-key, --api-key-file, or in
the environment variable {KEY}."""


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser("serve", DESCRIPTION)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run directories; NAME=RUN sets the model name")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1)")
    parser.add_argument(
        "--port", type=at_least(0), default=8000, help="port to listen on; 0 picks a free one (default: 8000)"
    )
    parser.add_argument("--open", action="store_true", help="open the playground in the browser")
    parser.add_checkpoint()
    parser.add_device()
    parser.add_argument(
        "--api-key", metavar="KEY", help="key that requests must carry; other users of this machine may see it"
    )
    parser.add_argument("--api-key-file", metavar="FILE", help="file that holds the key")
    parser.add_argument("--no-auth", action="store_true", help="allow another address without a key")
    parser.add_argument(
        "--allowed-host",
        metavar="NAME",
        type=_host,
        action="append",
        default=[],
        help="additional hostname to accept in the Host header (repeatable)",
    )
    parser.add_argument(
        "--cors-origin",
        metavar="ORIGIN",
        type=_origin,
        action="append",
        default=[],
        help="site whose pages may use it, as https://example.org (repeatable)",
    )
    parser.add_argument(
        "--max-rows",
        type=at_least(1),
        default=32,
        metavar="N",
        help="sequences of a model that are decoded together (default: 32)",
    )
    parser.add_argument(
        "--max-waiting",
        type=at_least(1),
        default=256,
        metavar="N",
        help="sequences that may wait; beyond that, status 429 (default: 256)",
    )
    parser.add_argument(
        "--max-tokens",
        type=at_least(1),
        default=4096,
        metavar="N",
        help="maximum tokens per completion (default: 4096)",
    )
    parser.add_argument(
        "--draft",
        type=_draft,
        default=0,
        metavar="N|auto",
        help="tokens that a model drafts in each cycle, at most (default: 0, none); auto: as many as "
        "are measured to be fastest, by the number of running sequences",
    )
    parser.add_argument(
        "--drafter",
        choices=("model", "prompt_lookup"),
        default="model",
        help="what drafts: the model itself, or for any model what followed its last tokens before (default: model)",
    )
    parser.add_argument(
        "--request-timeout",
        type=above(0),
        default=600.0,
        metavar="SECONDS",
        help="seconds within which a request must be answered (default: 600)",
    )
    parser.add_argument(
        "--drain-timeout",
        type=above(0),
        default=30.0,
        metavar="SECONDS",
        help="seconds that running requests get to finish at shutdown (default: 30)",
    )
    options = parser.parse_args(words)
    named = names_of(options.runs)
    key = _key(options.api_key, options.api_key_file)
    if options.port > 65535:
        raise ValueError(f"--port must be at most 65535, not {options.port}")

    server = server_module()
    from statewise.deploy.serving.settings import ServerSettings

    if key is None and not options.no_auth and not server.is_loopback(options.host):
        raise ValueError(
            f"{options.host} can be reached by other machines: set a key with --api-key-file, or add --no-auth"
        )
    settings = ServerSettings(
        options.max_rows,
        options.max_waiting,
        options.max_tokens,
        key=key,
        hosts=tuple(options.allowed_host),
        origins=tuple(options.cors_origin),
        request_seconds=options.request_timeout,
        drain_seconds=options.drain_timeout,
        draft=options.draft,
        drafter=options.drafter,
    )
    bound = server.listen(options.host, options.port)
    models = models_of(named, options.checkpoint, options.device)
    check_drafts(models, settings)
    return start(models, settings, bound, show=options.open)


def check_drafts(models: Sequence[Served], settings: ServerSettings) -> None:
    """Says which models decode without drafts although these are wanted. Raises `ValueError` if all do."""
    from statewise.decoding.predictor import Drafter, require
    from statewise.deploy.serving.choosing import may_draft

    without = [one for one in models if settings.draft != 0 and not may_draft(one.predictor, settings.drafter)]
    if without and len(without) == len(models):
        with models[0].model.asking() as predictor:
            require(predictor, Drafter)
    for one in without:
        say(f"{one.name} cannot draft and decodes without; --drafter prompt_lookup drafts for any model", flush=True)


def _draft(text: str) -> int | Literal["auto"]:
    """The type of --draft."""
    if text == "auto":
        return "auto"
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number or auto, not {text}")
    return at_least(0)(text)


def _host(text: str) -> str:
    """The type of --allowed-host: a name as requests are compared with it."""
    if not re.fullmatch(r"\*|[\w.-]+", text):
        raise argparse.ArgumentTypeError(
            f"must be the name of a host, as statewise.example, without a port, not {text!r}"
        )
    return text.lower()


def _origin(text: str) -> str:
    """The type of --cors-origin: an origin as browsers send it."""
    if not re.fullmatch(r"\*|[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#@]+", text):
        raise argparse.ArgumentTypeError(f"must be a site, as https://example.org, without a path, not {text!r}")
    return text.lower()


def _key(text: str | None, file: str | None) -> str | None:
    """The key, from the option, the file or the environment. Raises `ValueError` if it is empty, set by both options,
    or cannot be sent."""
    if text is not None and file is not None:
        raise ValueError("--api-key and --api-key-file both give a key: omit one")
    key = read_text(Path(file)) if file is not None else text
    key = os.environ.get(KEY) if key is None else key
    if key is None:
        return None
    key = key.strip()
    if not key:
        raise ValueError("the key is empty")
    if not re.fullmatch("[!-~]+", key):
        raise ValueError("the key may hold printable ASCII characters only, no spaces: give another")
    return key
